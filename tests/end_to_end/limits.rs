//! What is in flight is bounded, whatever the sink does: issue 3, behaviours 7 and 13.

use std::time::{Duration, Instant};

use tidegate_harness::workload::messages;
use tidegate_harness::{Broker, Message, Oracle, WindowKind, Workload, Writer, checker, process, wait};

use crate::case::{Case, DEADLINE, long, numbered, window_steps};

// E27 E40 P17 P20 I11 L59
#[test]
fn a_slow_sink_keeps_memory_flat_and_the_limit_that_bites_is_named() {
    let case = Case::new("slow-sink", 2);
    let steps = "- delay: { when: \"true\", for: 10ms }\n- sink: { kafka: { topic: OUT } }";
    let flow = case.flow(steps).consumer("in_flight_bytes: 1MiB").consumer("in_flight_records: 2000");
    let mut cluster = case.launch(&flow).test_steps().start();
    cluster.wait_ready(DEADLINE);
    let seconds = if long() { 60 } else { 8 };
    let writer = Writer::new(&case.kafka);
    let filler = "x".repeat(150);
    let started = Instant::now();
    let (mut sent, mut early, mut late) = (0_u64, 0, 0);
    while started.elapsed() < Duration::from_secs(seconds) {
        while (sent as f64) < started.elapsed().as_secs_f64() * 50_000.0 {
            let value = format!("{{\"id\":{sent},\"f\":\"{filler}\"}}");
            writer.send(&case.input, &Message::new(format!("k{}", sent % 7), value));
            sent += 1;
        }
        let resident = process::resident_bytes(cluster.pid(0)).unwrap_or(0);
        // The first third is the time in which prefetch queues fill up to their own limits.
        if started.elapsed() < Duration::from_secs(seconds) / 3 {
            early = early.max(resident);
        } else {
            late = late.max(resident);
        }
    }
    writer.flush();
    eprintln!("slow sink: {sent} records, memory {} MiB, then {} MiB", early >> 20, late >> 20);
    // The client's own prefetch queue has its own limit of tens of MiB.
    assert!(late < early + (96 << 20), "I11 bounds: memory rose from {} to {} MiB", early >> 20, late >> 20);
    cluster.wait_for("the status names the limit", DEADLINE, |cluster| {
        cluster.status(0).is_some_and(|status| status.to_string().contains("in_flight"))
    });
    cluster.wait_logged(0, "in_flight", DEADLINE);
    let (_, _, committed) = (sent, case.outputs(), case.kafka.group_offsets(&case.group, &case.input));
    let done: i64 = committed.values().sum();
    assert!(done > 0, "I8 liveness: nothing is committed behind a slow sink");
}

// I11: behaviour 13
#[test]
fn a_hundred_records_in_flight_fill_windows_of_an_hour() {
    let case = Case::new("small-limit", 2);
    let events = Workload { partitions: 2, records: 3_000, ..Workload::default() }.events();
    case.kafka.produce(&case.input, &messages(&events));
    let flow = case
        .flow(&window_steps("out_of_order: 2s", "tumbling: 1h"))
        .consumer("in_flight_records: 100")
        .consumer("batch_size: 50");
    case.launch(&flow).shape(2, 1).recovery(&case.store()).until_end().run_to_exit(0, DEADLINE);
    let oracle =
        Oracle { kind: WindowKind::Tumbling { size: 3_600_000 }, out_of_order_ms: 2_000, lateness_ms: 0 };
    checker::assert_windows(&case.kafka.drain(&case.output), &oracle.paid(&events).windows);
}

// fault P6 I11
#[test]
fn a_step_that_keeps_more_keys_than_it_may_ends_the_flow_and_goes_on_under_a_higher_limit() {
    let case = Case::new("many-keys", 2);
    let steps = "- decode: json\n\
         - key_by: string(value.id)\n\
         - stateful_map: { name: seen, initial: '0', state: state + 1, emit: value }\n\
         - sink: { kafka: { topic: OUT } }";
    let launch = |max: u32| {
        let flow = case.flow(steps).top(&format!("state_rows_max: {max}"));
        case.launch(&flow).shape(2, 1).recovery(&case.store())
    };
    let mut cluster = launch(500).start();
    case.kafka.produce(&case.input, &numbered(0..600, 2));
    cluster.wait_for("each process shows its share of the keys", DEADLINE, |cluster| {
        let shown = (0..2).filter_map(|n| {
            let (_, page) = cluster.get(n, "/metrics")?;
            let rows = page
                .lines()
                .find_map(|line| line.strip_prefix("tidegate_step_state_rows{step=\"seen\"} "))?;
            rows.parse::<u32>().ok()
        });
        shown.sum::<u32>() == 600
    });
    case.kafka.produce(&case.input, &numbered(600..2_000, 2));
    let codes = [cluster.wait_exit(0, DEADLINE), cluster.wait_exit(1, DEADLINE)];
    assert!(codes.contains(&65), "{codes:?}");
    let said: String = (0..2).map(|n| cluster.stderr(n)).collect();
    assert!(
        said.contains("STATE_TOO_LARGE") && said.contains("seen") && said.contains("state_rows_max"),
        "{said}"
    );
    launch(5_000).until_end().run_to_exit(0, DEADLINE);
    case.wait_caught_up();
    checker::assert_no_loss(&case.kafka.drain(&case.output), 0..2_000);
}

// I11: behaviour 13
#[test]
fn a_record_larger_than_the_limit_passes_alone() {
    let case = Case::new("large-record", 1);
    let mut records = numbered(0..20, 1);
    records[7] = Message::new("k", format!("{{\"id\":7,\"f\":\"{}\"}}", "x".repeat(600_000))).to(0);
    case.kafka.produce(&case.input, &records);
    let flow = case.copy().consumer("in_flight_bytes: 1KiB");
    case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..20);
}

// L24: behaviour 13
#[test]
fn a_record_that_becomes_many_comes_out_whole_under_a_small_limit() {
    let case = Case::without_topics(Broker::shared().kafka(), "fan-out");
    // The long form's record is larger than a topic takes by default.
    case.kafka.create_topic_with(&case.input, 1, &[("max.message.bytes", "4000000")]);
    case.kafka.create_topic(&case.output, 2);
    let count = if long() { 100_000 } else { 20_000 };
    let list: Vec<String> = (0..count).map(|id| format!("{{\"id\":{id}}}")).collect();
    case.kafka.produce(&case.input, &[Message::new("k", format!("{{\"all\":[{}]}}", list.join(","))).to(0)]);
    let steps = "- decode: { json: {} }\n- flat_map: value.all\n- sink: { kafka: { topic: OUT } }";
    let flow = case.flow(steps).consumer("in_flight_records: 100");
    case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..count);
    case.wait_caught_up();
}

// A31: behaviour 13
#[test]
fn one_partition_a_day_ahead_of_the_others_moves_nothing_too_early() {
    let case = Case::new("day-ahead", 3);
    let mut events = Workload { partitions: 3, records: 1_500, ..Workload::default() }.events();
    for event in events.iter_mut().filter(|event| event.partition == 2) {
        event.at_ms += 86_400_000;
    }
    case.kafka.produce(&case.input, &messages(&events));
    let flow = case.flow(&window_steps("out_of_order: 2s", "tumbling: 10s"));
    let launch = case.launch(&flow).shape(1, 2).recovery(&case.store());
    let mut cluster = launch.start();
    // More than `max_skew` ahead: the partition is not read before the others have ended, so the lag stays.
    wait::until("windows of the others come out", DEADLINE, || (case.outputs() > 0).then_some(()));
    cluster.kill_all();
    launch.until_end().run_to_exit(0, DEADLINE);
    let oracle =
        Oracle { kind: WindowKind::Tumbling { size: 10_000 }, out_of_order_ms: 2_000, lateness_ms: 0 };
    checker::assert_windows(&case.kafka.drain(&case.output), &oracle.paid(&events).windows);
}

// I11: behaviour 13, every key's window closes at the same moment.
#[test]
fn a_multitude_of_windows_that_close_at_once_comes_out_whole() {
    let case = Case::new("multitude", 4);
    let keys: u64 = if long() { 1_000_000 } else { 40_000 };
    let start = 1_735_689_600_000_i64;
    let writer = Writer::new(&case.kafka);
    for id in 0..keys {
        let value =
            format!("{{\"id\":{id},\"customer\":\"c{id}\",\"at_ms\":{start},\"amount\":1,\"paid\":true}}");
        let partition = i32::try_from(id % 4).unwrap_or(0);
        writer.send(&case.input, &Message::new(format!("c{id}"), value).to(partition).at(start));
    }
    for partition in 0..4 {
        let at = start + 60_000;
        let value =
            format!("{{\"id\":{keys},\"customer\":\"end\",\"at_ms\":{at},\"amount\":1,\"paid\":true}}");
        writer.send(&case.input, &Message::new("end", value).to(partition).at(at));
    }
    writer.flush();
    let flow =
        case.flow(&window_steps("out_of_order: 0s", "tumbling: 10s")).consumer("in_flight_records: 5000");
    let mut cluster = case.launch(&flow).shape(1, 2).recovery(&case.store()).start();
    let deadline = DEADLINE * 4;
    wait::until("every window came out", deadline, || {
        assert_eq!(cluster.exited(0), None, "the process ended");
        (case.kafka.stable_bounds(&case.output).values().map(|(_, end)| end).sum::<i64>()
            >= i64::try_from(keys).ok()?)
        .then_some(())
    });
    let mut seen = std::collections::BTreeSet::new();
    for row in case.kafka.drain(&case.output) {
        assert_eq!(row.json()["count"].as_i64(), Some(1));
        assert!(seen.insert(row.key_text()), "{} came out twice", row.key_text());
    }
    assert_eq!(seen.len() as u64, keys);
}

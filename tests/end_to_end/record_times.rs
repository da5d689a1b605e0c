//! Timestamps that say nothing about when something happened: absent, long past, far ahead, or suddenly the broker's.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_harness::workload::messages;
use tidegate_harness::{Broker, Event, Message, Oracle, WindowKind, Workload, checker, wait};

use crate::case::{Case, DEADLINE, window_steps};
use crate::status;

const PARTITIONS: i32 = 2;
const TEN_YEARS_MS: i64 = 10 * 365 * 86_400_000;
/// `event_time.max_ahead`, which is the default.
const MAX_AHEAD_MS: i64 = 3_600_000;
/// The broker refuses no timestamp.
const ANY_TIME: (&str, &str) = ("message.timestamp.after.max.ms", "9223372036854775807");

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// Some records get a timestamp from another time, or none.
fn spoil(events: &mut [Event]) {
    for (place, event) in events.iter_mut().enumerate() {
        match place % 40 {
            7 => event.at_ms = -1,
            17 => event.at_ms = 1,
            27 => event.at_ms += TEN_YEARS_MS,
            _ => {}
        }
    }
}

/// Sets whose timestamps the topic keeps, and waits until it does so: `mark` is written to every partition again and again.
fn set_timestamps(case: &Case, of: &str, mark: &Event, is_set: impl Fn(i64) -> bool) {
    case.kafka.set_topic(&case.input, &[ANY_TIME, ("message.timestamp.type", of)]);
    let marks: Vec<Message> = (0..PARTITIONS).map(|partition| mark.message().to(partition)).collect();
    wait::until(&format!("the topic keeps {of}"), DEADLINE, || {
        case.kafka.produce(&case.input, &marks);
        let rows = case.kafka.drain(&case.input);
        let newest: BTreeMap<i32, i64> =
            rows.iter().filter_map(|row| Some((row.partition, row.timestamp?))).collect();
        newest.values().all(|at| is_set(*at)).then_some(())
    });
}

/// What the flow must have made of the input as the broker has it: a record without a timestamp, and one too far ahead, is
/// dropped and moves nothing.
fn as_the_flow_sees_them(case: &Case, events: &[Event]) -> (Vec<Event>, usize) {
    let by_id: BTreeMap<u64, &Event> = events.iter().map(|event| (event.id, event)).collect();
    let rows = case.kafka.drain(&case.input);
    let far = now_ms() + MAX_AHEAD_MS;
    let ahead = rows.iter().filter(|row| row.timestamp.is_some_and(|at| at > far)).count();
    let seen = rows.iter().filter_map(|row| {
        let at_ms = row.timestamp.filter(|at| *at <= far)?;
        let event = *by_id.get(&row.json()["id"].as_u64()?)?;
        Some(Event { at_ms, partition: row.partition, offset: row.offset, ..event.clone() })
    });
    (seen.collect(), ahead)
}

// fault K14 I9
#[test]
fn timestamps_that_are_absent_old_far_ahead_or_suddenly_the_brokers_never_poison_the_watermark() {
    let case = Case::without_topics(Broker::shared().kafka(), "record-times");
    case.kafka.create_topic_with(&case.input, PARTITIONS, &[ANY_TIME]);
    case.kafka.create_topic(&case.output, 2);
    let workload = Workload { partitions: PARTITIONS, records: 1_200, keys: 20, ..Workload::default() };
    let mut events = Workload { unpaid_per_mille: 100, late_per_mille: 50, ..workload }.events();
    // Filtered out, so that how often it is written shows in no window.
    let mark = Event { id: 1_000_000, paid: false, ..events[500].clone() };
    let begin = now_ms();
    spoil(&mut events);
    for event in &mut events[800..] {
        // Afterwards a part of the records is of this hour, the others are two years late.
        if event.id % 3 == 0 {
            event.at_ms = begin + i64::try_from(event.id).unwrap_or(0);
        }
    }

    let order = "on_error: drop, out_of_order: 2s, idle: 1h";
    let steps = window_steps(order, "tumbling: 10s").replace("value.at_ms", "timestamp");
    let launch = case.launch(&case.flow(&steps)).shape(1, 2).recovery(&case.store());
    let mut cluster = launch.start();
    case.kafka.produce(&case.input, &messages(&events[..500]));
    case.wait_caught_up();
    set_timestamps(&case, "LogAppendTime", &mark, |at| at >= begin);
    case.kafka.produce(&case.input, &messages(&events[500..800]));
    set_timestamps(&case, "CreateTime", &mark, |at| at == mark.at_ms);
    case.kafka.produce(&case.input, &messages(&events[800..]));
    case.wait_caught_up();
    events.push(mark);
    let (seen, ahead) = as_the_flow_sees_them(&case, &events);
    let oracle =
        Oracle { kind: WindowKind::Tumbling { size: 10_000 }, out_of_order_ms: 2_000, lateness_ms: 0 };
    let verdict = oracle.paid(&seen);
    let old = verdict.windows.values().filter(|(end, _)| *end < begin).count();
    assert!(ahead > 0 && verdict.late > 100 && old > 0, "{ahead} ahead, {} late, {old} old", verdict.late);
    assert!(verdict.windows.len() > old, "no window of this hour");
    cluster.wait_for("what is late or ahead is counted", DEADLINE, |cluster| {
        status::metric(cluster, 0, "tidegate_step_ahead_total") == Some(ahead as f64)
            && status::metric(cluster, 0, "tidegate_step_late_total") == Some(verdict.late as f64)
    });
    cluster.wait_for("the windows before the change come out", DEADLINE, |_| case.outputs() >= old);
    cluster.kill_all();
    // The end of a run gives a window of now that time as timestamp.
    let end = verdict.windows.values().map(|(end, _)| *end).max().unwrap_or(begin);
    wait::until("the newest window has ended", DEADLINE, || (now_ms() >= end).then_some(()));
    launch.until_end().run_to_exit(0, DEADLINE);
    checker::assert_windows(&case.kafka.drain(&case.output), &verdict.windows);
}

//! The sink's promises: order, no record lost or doubled by a bad connection, a full queue.

use std::time::Duration;

use tidegate_harness::workload::messages;
use tidegate_harness::{Broker, Message, Workload, checker, wait};

use crate::case::{Case, DEADLINE, numbered};

// P4 P37 P42 A35 I5
#[test]
fn order_and_number_hold_while_the_connection_to_the_output_is_reset_again_and_again() {
    let Some(proxy) = Broker::shared().proxy() else { return };
    let case = Case::new("resets", 1);
    let workload = Workload { partitions: 1, records: 20_000, keys: 10, ..Workload::default() };
    let events = workload.events();
    case.kafka.produce(&case.input, &messages(&events));
    // A slow connection, so that each reset finds something under way.
    proxy.throttle(Some(1_000_000));
    let flow = case.copy().producer_at(&proxy.address());
    let mut cluster = case.launch(&flow).until_end().start();
    let mut resets = 0;
    wait::until("the flow ends", DEADLINE, || {
        if resets < 20 {
            proxy.reset();
            resets += 1;
            // The pace of the disturbance: nothing is waited for here.
            std::thread::sleep(Duration::from_millis(100));
        }
        cluster.exited(0)
    });
    cluster.expect_exit(0, DEADLINE);
    case.assert_copied_once(&events);
}

// P18 K17 P17: the producer's queue is sized by `in_flight_records`; each record becomes far more than it holds.
#[test]
fn a_full_producer_queue_holds_records_back_and_loses_and_reorders_none() {
    let case = Case::new("queue-full", 1);
    let records: Vec<Message> = (0..20_u64)
        .map(|record| {
            let items: Vec<String> = (0..100).map(|n| format!("{{\"id\":{}}}", record * 100 + n)).collect();
            Message::new("k", format!("{{\"all\":[{}]}}", items.join(","))).to(0)
        })
        .collect();
    case.kafka.produce(&case.input, &records);
    let steps = "- decode: { json: {} }\n- flat_map: value.all\n- sink: { kafka: { topic: OUT } }";
    case.launch(&case.flow(steps).consumer("in_flight_records: 5")).until_end().run_to_exit(0, DEADLINE);
    let rows = case.kafka.drain(&case.output);
    checker::assert_exactly(&rows, 0..2_000);
    let order: Vec<u64> = rows.iter().filter_map(|row| row.json()["id"].as_u64()).collect();
    assert!(order.is_sorted(), "I5 order per key");
}

// P3
#[test]
fn earlier_outputs_are_written_and_acknowledged_while_a_step_is_busy_with_a_later_record() {
    let case = Case::new("busy", 2);
    let steps = "- decode: { json: {} }\n\
                 - delay: { when: value.id == 50, for: 3s }\n\
                 - sink: { kafka: { topic: OUT } }";
    case.kafka.produce(&case.input, &numbered(0..100, 2));
    let mut cluster = case.launch(&case.flow(steps)).test_steps().shape(1, 2).start();
    cluster.wait_for("the other worker's records come out", DEADLINE, |_| case.outputs() >= 50);
    case.wait_caught_up();
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..100);
}

// P10: what the runtime owns in librdkafka is refused with a reason.
#[test]
fn a_client_setting_that_the_runtime_owns_is_refused_with_the_reason() {
    let case = Case::new("owned-setting", 1);
    for (flow, key) in [
        (case.copy().consumer("extra: { enable.auto.commit: true }"), "enable.auto.commit"),
        (case.copy().producer("extra: { enable.idempotence: false }"), "enable.idempotence"),
    ] {
        let launch = case.launch(&flow);
        let output = crate::case::tidegate(&["check", &launch.flow_file().display().to_string()]);
        let text = crate::case::text_of(&output);
        assert_eq!(output.status.code(), Some(78), "{text}");
        assert!(text.contains(key), "{text}");
    }
}

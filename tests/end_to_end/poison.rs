//! Records that a step fails on, under `fail` and `drop`, and those that the broker does not take.

use tidegate_harness::{Message, checker};

use crate::case::{Case, DEADLINE, numbered};
use crate::status;

/// 100 records, of which number 50 is not JSON.
fn with_poison(case: &Case) {
    let mut records = numbered(0..100, 1);
    records[50] = Message::new("k", "not json {").to(0);
    case.kafka.produce(&case.input, &records);
}

fn decoded(case: &Case, policy: &str) -> crate::case::FlowText {
    case.flow(&format!("- decode: {{ json: {{}}{policy} }}\n- sink: {{ kafka: {{ topic: OUT }} }}"))
}

// E19 fault P1 I10
#[test]
fn a_record_that_cannot_be_decoded_stops_the_flow_by_default_and_its_offset_is_not_passed() {
    let case = Case::new("fail", 1);
    with_poison(&case);
    for _ in 0..2 {
        let mut cluster = case.launch(&decoded(&case, "")).until_end().start();
        cluster.expect_exit(65, DEADLINE);
        let stderr = cluster.stderr(0);
        let line = stderr.lines().find(|line| line.contains(&case.input) && line.contains("50"));
        assert!(line.is_some(), "no line names topic and offset: {stderr}");
        let committed = case.kafka.group_offsets(&case.group, &case.input);
        assert!(
            committed.get(&0).is_none_or(|offset| *offset <= 50),
            "{committed:?} passed the poison at 50"
        );
    }
}

// E19: every process of the cluster ends, and says why.
#[test]
fn a_record_that_stops_one_process_stops_its_peer_too() {
    let case = Case::new("fail-2x1", 1);
    with_poison(&case);
    let mut cluster = case.launch(&decoded(&case, "")).shape(2, 1).start();
    let codes = [cluster.wait_exit(0, DEADLINE), cluster.wait_exit(1, DEADLINE)];
    assert!(codes.contains(&65), "{codes:?}");
    assert!(codes.iter().all(|code| [65, 75].contains(code)), "{codes:?}");
}

// E20 fault P1
#[test]
fn a_dropped_record_is_counted_and_all_others_come_out() {
    let case = Case::new("drop", 1);
    with_poison(&case);
    let mut cluster = case.launch(&decoded(&case, ", on_error: drop")).start();
    case.wait_caught_up();
    checker::assert_exactly(&case.kafka.drain(&case.output), (0..100).filter(|id| *id != 50));
    cluster.wait_for("one record is counted as dropped", DEADLINE, |cluster| {
        status::metric(cluster, 0, "tidegate_step_dropped_total") == Some(1.0)
    });
}

// P2 K15 K17
#[test]
fn a_record_that_is_too_large_for_the_output_stops_the_flow_and_is_named() {
    let case = Case::new("too-large", 1);
    let small = format!("{}-small", case.output);
    case.kafka.create_topic_with(&small, 1, &[("max.message.bytes", "2000")]);
    let mut records = numbered(0..10, 1);
    records[5] = Message::new("k", "x".repeat(100_000)).to(0);
    case.kafka.produce(&case.input, &records);
    let flow = case.flow("- sink: { kafka: { topic: OUT-small } }");
    let mut cluster = case.launch(&flow).until_end().start();
    cluster.expect_exit(65, DEADLINE);
    assert!(cluster.stderr(0).contains(&small), "the topic is not named");
    let committed = case.kafka.group_offsets(&case.group, &case.input);
    assert!(committed.get(&0).is_none_or(|offset| *offset <= 5), "{committed:?}");
}

// L52: an error inside an expression is the record's error, not the flow's.
#[test]
fn a_missing_field_follows_the_steps_policy() {
    let case = Case::new("missing-field", 1);
    let mut records = numbered(0..10, 1);
    records[3] = Message::new("k", "{\"other\":1}").to(0);
    case.kafka.produce(&case.input, &records);
    let steps = "- decode: { json: {} }\n\
                 - map: { value: \"{'id': value.id, 'twice': value.id * 2}\", on_error: drop }\n\
                 - sink: { kafka: { topic: OUT } }";
    let cluster = case.launch(&case.flow(steps)).until_end().run_to_exit(0, DEADLINE);
    let stderr = cluster.stderr(0);
    let left_out: Vec<&str> =
        stderr.lines().filter(|line| line.contains("the step left records out")).collect();
    assert_eq!(left_out.len(), 1, "{stderr}");
    assert!(left_out[0].contains("map") && left_out[0].contains("dropped"), "{stderr}");
    let rows = case.kafka.drain(&case.output);
    checker::assert_exactly(&rows, (0..10).filter(|id| *id != 3));
    assert!(
        rows.iter().all(|row| row.json()["twice"].as_u64() == row.json()["id"].as_u64().map(|id| id * 2))
    );
}

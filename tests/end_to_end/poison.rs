//! Records that a step fails on, under each `on_error`, and those that the broker does not take.

use tidegate_harness::{Message, Received, checker};

use crate::case::{Case, DEADLINE, FlowText, numbered};
use crate::status;

/// 100 records, of which number 50 is not JSON.
fn with_poison(case: &Case) {
    let mut records = numbered(0..100, 1);
    records[50] = Message::new("k", "not json {").to(0);
    case.kafka.produce(&case.input, &records);
}

fn decoded(case: &Case, policy: &str) -> FlowText {
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

/// A thousand records that are read as one batch, with these among them.
fn among_a_thousand(case: &Case, poison: &[(usize, Message)]) {
    let mut records = numbered(0..1000, 1);
    for (offset, message) in poison {
        records[*offset] = message.clone();
    }
    case.kafka.produce(&case.input, &records);
}

// E19 E20 E21 P1
#[test]
fn a_poison_record_at_the_first_middle_and_last_place_of_a_batch_follows_each_policy() {
    let places = [0, 500, 999];
    let poison = || Message::new("k", "not json {").to(0);
    for (name, policy) in [("drop", "drop"), ("letter", "{ dead_letter: OUT-dlq }")] {
        let case = Case::new(&format!("thousand-{name}"), 1);
        let letters = format!("{}-dlq", case.output);
        case.kafka.create_topic(&letters, 1);
        among_a_thousand(&case, &places.map(|place| (place, poison())));
        let flow = decoded(&case, &format!(", on_error: {policy}")).consumer("batch_size: 1000");
        case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
        let good = (0..1000).filter(|id| !places.contains(&(*id as usize)));
        checker::assert_exactly(&case.kafka.drain(&case.output), good);
        case.wait_caught_up();
        let found = case.kafka.drain(&letters);
        assert_eq!(found.len(), if policy == "drop" { 0 } else { places.len() });
        assert!(found.iter().all(|letter| letter.value == poison().value && letter.key == poison().key));
    }
    for place in places {
        let case = Case::new(&format!("thousand-fail-{place}"), 1);
        among_a_thousand(&case, &[(place, poison())]);
        let mut cluster = case.launch(&decoded(&case, "").consumer("batch_size: 1000")).until_end().start();
        cluster.expect_exit(65, DEADLINE);
        assert_last_line_names(&cluster.stderr(0), &case, place);
        let committed = case.kafka.group_offsets(&case.group, &case.input);
        assert!(committed.get(&0).is_none_or(|offset| *offset <= place as i64), "{committed:?}");
    }
}

#[track_caller]
fn assert_last_line_names(stderr: &str, case: &Case, offset: usize) {
    let last = stderr.lines().last().unwrap_or_default();
    for part in [case.input.as_str(), &format!("{}:0@{offset})", case.input)] {
        assert!(last.contains(part), "{part} is not in the last line: {last}");
    }
}

// E19 E20 E21 P1: in key, value, header and time field, and in each kind of step.
#[test]
fn poison_in_any_part_of_a_record_follows_the_policy_of_the_step_that_meets_it() {
    let at = "1700000000000";
    let good = |id: u64| {
        let value = format!("{{\"id\":{id},\"at\":{at},\"n\":1,\"list\":[{{\"id\":{id}}}]}}");
        Message::new(format!("{{\"k\":\"k{id}\"}}"), value).to(0).header("amount", b"7")
    };
    let with_value = |value: &str| Message { value: Some(value.as_bytes().to_vec()), ..good(1) };
    let field = |from: &str, to: &str| {
        with_value(&String::from_utf8_lossy(&good(1).value.unwrap_or_default()).replace(from, to))
    };
    let poison = [
        ("decode", Message { key: Some(b"{\"k\":".to_vec()), ..good(1) }),
        ("decode", with_value("{\"id\":")),
        ("event_time", field(at, "\"yesterday\"")),
        ("filter", Message { headers: vec![("amount".into(), Some(b"seven".to_vec()))], ..good(1) }),
        ("map", field("\"n\":1", "\"m\":1")),
        ("flat_map", field("[{\"id\":1}]", "7")),
        ("key_by", Message { key: Some(b"{}".to_vec()), ..good(1) }),
        ("stateful_map", field("\"n\":1", "\"n\":9223372036854775807")),
    ];
    let steps = |policy: &str| {
        format!(
            "- decode: {{ json: {{}}, key: json, on_error: {policy} }}\n\
             - event_time: {{ from: value.at, out_of_order: 1s, on_error: {policy} }}\n\
             - filter: {{ when: int(headers.amount) > 3, on_error: {policy} }}\n\
             - map: {{ value: \"{{'id': value.id, 'n': value.n, 'list': value.list}}\", on_error: {policy} }}\n\
             - flat_map: {{ items: \"value.list.map(x, {{'id': x.id, 'n': value.n}})\", on_error: {policy} }}\n\
             - key_by: {{ key: key.k, on_error: {policy} }}\n\
             - stateful_map: {{ initial: '1', state: state + value.n, emit: value, on_error: {policy} }}\n\
             - sink: {{ kafka: {{ topic: OUT }} }}"
        )
    };
    let flow = |case: &Case, policy: &str| case.flow(&steps(policy)).top("volatile_state: allow");
    for (step, message) in &poison {
        let case = Case::new(&format!("part-{step}"), 1);
        case.kafka.produce(&case.input, [&good(0), message, &good(2)]);
        let mut cluster = case.launch(&flow(&case, "fail")).until_end().start();
        cluster.expect_exit(65, DEADLINE);
        assert_last_line_names(&cluster.stderr(0), &case, 1);
        let last = cluster.stderr(0).lines().last().unwrap_or_default().to_owned();
        assert!(last.contains(&format!("step {step}")), "{step} is not in the last line: {last}");
    }
    let case = Case::new("parts", 1);
    let letters = format!("{}-dlq", case.output);
    case.kafka.create_topic(&letters, 1);
    let records: Vec<Message> =
        poison.iter().enumerate().flat_map(|(at, (_, message))| [good(at as u64), message.clone()]).collect();
    case.kafka.produce(&case.input, &records);
    let launch = case.launch(&flow(&case, "{ dead_letter: OUT-dlq }"));
    launch.until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..poison.len() as u64);
    let mut found = case.kafka.drain(&letters);
    found.sort_by_key(|letter| header(letter, "offset").parse::<usize>().unwrap_or(usize::MAX));
    assert_eq!(found.len(), poison.len(), "{found:?}");
    for (letter, (step, message)) in found.iter().zip(&poison) {
        assert_eq!(header(letter, "step"), *step, "{letter:?}");
        assert_eq!((&letter.key, &letter.value), (&message.key, &message.value), "{step}");
        assert!(letter.headers.starts_with(&message.headers), "{step}");
    }
    // What was put aside has left no trace in the state, and dropping it is the same.
    let case = Case::new("parts-drop", 1);
    case.kafka.produce(&case.input, &records);
    let cluster = case.launch(&flow(&case, "drop")).until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..poison.len() as u64);
    assert!(cluster.stderr(0).contains("the step left records out"));
}

/// A diagnostic header of a dead letter.
fn header(letter: &Received, name: &str) -> String {
    let name = format!("tidegate-error-{name}");
    let found = letter.headers.iter().find(|(of, _)| *of == name).and_then(|(_, value)| value.clone());
    String::from_utf8(found.unwrap_or_default()).unwrap_or_default()
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

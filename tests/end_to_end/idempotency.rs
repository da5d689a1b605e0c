//! The name of a result in the header `idempotency-key`: the same whenever the result is written again.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_harness::Message;

use crate::case::{Case, DEADLINE, FlowText};

const HEADER: &str = "idempotency-key";

/// What each name stands for: the key and value of all records that have it.
fn named(case: &Case) -> BTreeMap<String, Vec<(String, String)>> {
    let mut names: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for row in case.kafka.drain(&case.output) {
        let of_name: Vec<_> = row.headers.iter().filter(|(name, _)| name == HEADER).collect();
        assert_eq!(of_name.len(), 1, "{row:?}");
        let name = String::from_utf8_lossy(of_name[0].1.as_deref().unwrap_or_default()).into_owned();
        let value = String::from_utf8_lossy(row.value.as_deref().unwrap_or_default()).into_owned();
        names.entry(name).or_default().push((row.key_text(), value));
    }
    names
}

/// Runs a flow over all of its input twice: the second time all is read and written again.
fn run_twice(case: &Case, flow: &FlowText) {
    case.launch(flow).until_end().run_to_exit(0, DEADLINE);
    let begin: Vec<(i32, i64)> =
        (0..case.kafka.partitions(&case.input)).map(|partition| (partition, 0)).collect();
    case.kafka.set_group_offsets(&case.group, &case.input, begin);
    // With more workers, so that records and keys lie elsewhere.
    case.launch(flow).shape(1, 3).until_end().run_to_exit(0, DEADLINE);
}

// A44 L12 L65
#[test]
fn a_record_that_is_written_again_has_the_name_that_it_had() {
    let case = Case::new("names", 2);
    let records: Vec<Message> =
        (0..20).map(|id| Message::new(format!("k{id}"), format!("{id}")).to(id % 2)).collect();
    case.kafka.produce(&case.input, &records);
    let own = Message::new("own", "20").to(0).header("other", b"o").header(HEADER, b"chosen-before");
    case.kafka.produce(&case.input, &[own]);
    let flow = case.flow(
        "- filter: 'string(value) != \"3\"'\n- sink: { kafka: { topic: OUT, idempotency_key: header } }",
    );
    run_twice(&case, &flow);
    let names = named(&case);
    let mut expected: BTreeSet<String> =
        (0..20).filter(|id| *id != 3).map(|id| format!("{}-{}-{}", case.input, id % 2, id / 2)).collect();
    expected.insert("chosen-before".into());
    assert_eq!(names.keys().cloned().collect::<BTreeSet<_>>(), expected);
    for (name, results) in &names {
        assert!(results.len() == 2 && results[0] == results[1], "{name} stands for {results:?}");
    }
}

// A44 L65
#[test]
fn a_windows_result_is_named_by_step_key_and_start_however_often_it_is_written() {
    let case = Case::new("window-names", 2);
    let at = |id: i64| 1_700_000_000_000 + id * 4_000;
    let records: Vec<Message> = (0..30)
        .map(|id| Message::new(format!("c{}", id % 3), "1").to((id % 3 % 2) as i32).at(at(id)))
        .collect();
    case.kafka.produce(&case.input, &records);
    let flow = case
        .flow(
            "- event_time: { from: timestamp, out_of_order: 0s }\n\
             - key_by: key\n\
             - window: { name: per-ten, tumbling: 10s, aggregate: { n: count() } }\n\
             - map: value.n\n\
             - sink: { kafka: { topic: OUT, idempotency_key: header } }",
        )
        .top("volatile_state: allow");
    run_twice(&case, &flow);
    let expected: BTreeSet<String> =
        (0..30).map(|id| format!("per-ten-c{}-{}", id % 3, at(id).div_euclid(10_000) * 10_000)).collect();
    let names = named(&case);
    assert_eq!(names.keys().cloned().collect::<BTreeSet<_>>(), expected);
    for (name, results) in &names {
        assert!(results.len() == 2 && results[0] == results[1], "{name} stands for {results:?}");
    }
}

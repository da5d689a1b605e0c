//! State without a store: refused where it would be lost, kept safe where it need not be (issue 3, behaviour 15).

use std::collections::BTreeMap;

use serde_json::Value;
use tidegate_harness::{OffsetWatch, wait};

use crate::case::{Case, DEADLINE, numbered, text_of, tidegate, window_steps};

// L18 L52
#[test]
fn a_keyed_window_without_a_store_is_refused_with_what_to_add() {
    let case = Case::new("no-store", 2);
    let flow = case.flow(&window_steps("out_of_order: 2s", "tumbling: 10s"));
    let launch = case.launch(&flow);
    let output = tidegate(&["check", &launch.flow_file().display().to_string()]);
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(78), "{text}");
    assert!(text.contains("STATE_WITHOUT_RECOVERY") && text.contains("-r"), "{text}");
    let mut cluster = launch.clone().shape(2, 1).until_end().run_to_exit(78, DEADLINE);
    assert!(cluster.all_stderr().contains("DELIVERY_KEYED_MULTIPROCESS"), "no code for several processes");
    assert_eq!(cluster.exited(0), Some(78));
    assert_eq!(case.outputs(), 0);
    launch.recovery(&case.store()).until_end().run_to_exit(0, DEADLINE);
}

// L52
#[test]
fn volatile_state_can_be_allowed() {
    let case = Case::new("volatile", 2);
    let flow = case.flow(&window_steps("out_of_order: 2s", "tumbling: 10s")).top("volatile_state: allow");
    let events = tidegate_harness::Workload { partitions: 2, records: 200, ..Default::default() }.events();
    case.kafka.produce(&case.input, &tidegate_harness::workload::messages(&events));
    case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
    assert!(case.outputs() > 0, "no window came out");
}

/// How often each id is found anywhere in a value, whatever the shape of a batch.
fn collect(value: &Value, ids: &mut BTreeMap<u64, usize>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| collect(value, ids)),
        Value::Object(fields) => {
            if let Some(id) = fields.get("id").and_then(Value::as_u64) {
                *ids.entry(id).or_default() += 1;
            }
            fields
                .values()
                .filter(|value| value.is_array() || value.is_object())
                .for_each(|value| collect(value, ids));
        }
        _ => {}
    }
}

// L18 L19 L9 L49
#[test]
fn collect_batch_without_a_store_on_2x2_survives_ten_kills_without_losing_a_record() {
    let case = Case::new("collect-batch", 4);
    let steps = "- decode: { json: {} }\n\
                 - key_by: key\n\
                 - collect_batch: { name: batches, max_records: 7, timeout: 300ms }\n\
                 - sink: { kafka: { topic: OUT } }";
    let launch = case.launch(&case.flow(steps).top("epoch_interval: 50ms")).shape(2, 2);
    let watch = OffsetWatch::start(&case.kafka, &case.group, &case.input);
    let found = || {
        let mut ids = BTreeMap::new();
        for row in case.kafka.drain(&case.output) {
            collect(&row.json(), &mut ids);
        }
        ids
    };
    let rounds = 10_u64;
    for round in 0..rounds {
        let before = found().len();
        let mut cluster = launch.start();
        case.kafka.produce(&case.input, &numbered(round * 200..round * 200 + 200, 4));
        wait::until("some of it comes out", DEADLINE, || (found().len() > before).then_some(()));
        cluster.kill(usize::from(round % 2 == 1));
        cluster.kill_all();
    }
    let mut cluster = launch.start();
    case.wait_caught_up();
    cluster.terminate_all();
    for n in 0..2 {
        let _code = cluster.wait_exit(n, DEADLINE);
    }
    let ids = found();
    let missing: Vec<u64> = (0..rounds * 200).filter(|id| !ids.contains_key(id)).collect();
    assert!(
        missing.is_empty(),
        "I1 no loss: {} ids are missing, such as {:?}",
        missing.len(),
        &missing[..missing.len().min(10)]
    );
    watch.assert_only_rises();
}

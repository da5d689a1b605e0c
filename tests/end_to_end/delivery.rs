//! What `delivery` and its deprecated forerunner mean (L4, L10–L15, L20).

use std::time::Duration;

use tidegate_harness::{checker, wait};

use crate::case::{Case, DEADLINE, FlowText, numbered, text_of, tidegate};

fn check(case: &Case, flow: &FlowText) -> (Option<i32>, String) {
    let launch = case.launch(flow);
    let output = tidegate(&["check", "--explain", &launch.flow_file().display().to_string()]);
    (output.status.code(), text_of(&output))
}

/// The effective delivery that `check --explain` prints.
fn effective(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.contains("kafka.consumer.delivery"))?;
    ["at_least_once", "at_most_once", "exactly_once"].into_iter().find(|value| line.contains(value))
}

// L13 L14 L15
#[test]
fn only_contradicting_pairs_of_delivery_and_enable_auto_commit_are_refused() {
    let case = Case::new("matrix", 1);
    let unset = case.copy().without_delivery();
    for (delivery, auto, expected) in [
        (Some("at_least_once"), Some(true), None),
        (Some("at_most_once"), Some(false), None),
        (Some("at_least_once"), Some(false), Some("at_least_once")),
        (Some("at_most_once"), Some(true), Some("at_most_once")),
        (Some("at_least_once"), None, Some("at_least_once")),
        (Some("at_most_once"), None, Some("at_most_once")),
        (None, Some(false), Some("at_least_once")),
        (None, Some(true), Some("at_most_once")),
        (None, None, Some("at_most_once")),
    ] {
        let mut flow = unset.clone();
        if let Some(delivery) = delivery {
            flow = flow.consumer(&format!("delivery: {delivery}"));
        }
        if let Some(auto) = auto {
            flow = flow.consumer(&format!("enable_auto_commit: {auto}"));
        }
        let (code, text) = check(&case, &flow);
        let row = format!("delivery {delivery:?}, enable_auto_commit {auto:?}: {text}");
        match expected {
            None => {
                assert_eq!(code, Some(78), "{row}");
                assert!(text.contains("DELIVERY_CONFLICT"), "{row}");
                assert!(text.contains("kafka.consumer.enable_auto_commit"), "{row}");
            }
            Some(delivery) => {
                assert_eq!(code, Some(0), "{row}");
                assert_eq!(effective(&text), Some(delivery), "{row}");
                assert_eq!(text.contains("DEPRECATED_OPTION"), auto.is_some(), "{row}");
            }
        }
    }
}

// L1.
#[test]
fn an_unknown_delivery_is_refused_with_the_allowed_values() {
    let case = Case::new("unknown-delivery", 1);
    let (code, text) = check(&case, &case.copy().consumer("delivery: exactly"));
    assert_eq!(code, Some(78), "{text}");
    for part in ["kafka.consumer.delivery", "exactly", "at_least_once", "at_most_once", "exactly_once"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

fn gated(case: &Case) -> (FlowText, std::path::PathBuf) {
    let gate = case.scratch.join("gate");
    let steps =
        format!("- gate: {{ when: \"true\", file: {gate:?} }}\n- sink: {{ kafka: {{ topic: OUT }} }}");
    (case.flow(&steps), gate)
}

fn open(gate: &std::path::Path) {
    std::fs::write(gate, "").unwrap_or_else(|e| panic!("open {}: {e}", gate.display()));
}

// L4 L13 A20
#[test]
fn at_least_once_commits_nothing_before_the_sink_has_confirmed_also_when_only_auto_commit_false_says_so() {
    for explicit in [true, false] {
        let case = Case::new("alo", 1);
        case.kafka.produce(&case.input, &numbered(0..20, 1));
        let (mut flow, gate) = gated(&case);
        if !explicit {
            flow = flow.without_delivery().consumer("enable_auto_commit: false");
        }
        let mut cluster = case.launch(&flow).test_steps().start();
        cluster.wait_ready(DEADLINE);
        wait::holds_for("nothing is committed while the sink waits", Duration::from_secs(2), || {
            case.kafka.group_offsets(&case.group, &case.input).get(&0).is_none_or(|offset| *offset == 0)
        });
        open(&gate);
        case.wait_caught_up();
        cluster.terminate_all();
        cluster.expect_exit(0, DEADLINE);
        checker::assert_exactly(&case.kafka.drain(&case.output), 0..20);
    }
}

// L11 L12 L14
#[test]
fn at_most_once_commits_before_it_emits_and_a_crash_loses_and_never_repeats() {
    for line in [Some("delivery: at_most_once"), Some("enable_auto_commit: true"), None] {
        let case = Case::new("amo", 1);
        case.kafka.produce(&case.input, &numbered(0..20, 1));
        let (flow, gate) = gated(&case);
        let mut flow = flow.without_delivery();
        if let Some(line) = line {
            flow = flow.consumer(line);
        }
        let launch = case.launch(&flow).test_steps();
        let mut cluster = launch.start();
        case.wait_caught_up();
        assert_eq!(case.outputs(), 0, "{line:?}: the gate is closed");
        cluster.kill_all();
        open(&gate);
        case.kafka.produce(&case.input, &numbered(20..40, 1));
        launch.clone().until_end().run_to_exit(0, DEADLINE);
        let rows = case.kafka.drain(&case.output);
        checker::assert_no_repeats(&rows);
        checker::assert_exactly(&rows, 20..40);
    }
}

// L12 P32: killed at random under load, no id ever comes out twice.
#[test]
fn at_most_once_killed_under_load_never_repeats_a_record() {
    let case = Case::new("amo-kill", 2);
    let launch = case.launch(&case.copy().consumer("delivery: at_most_once")).shape(2, 1);
    for round in 0..4_u64 {
        let before = case.outputs();
        let mut cluster = launch.start();
        case.kafka.produce(&case.input, &numbered(round * 1_000..(round + 1) * 1_000, 2));
        wait::until("something came out", DEADLINE, || (case.outputs() > before).then_some(()));
        cluster.kill_all();
    }
    launch.clone().until_end().run_to_exit(0, DEADLINE);
    checker::assert_no_repeats(&case.kafka.drain(&case.output));
    case.wait_caught_up();
}

// L20
#[test]
fn at_most_once_allows_a_keyed_flow_on_two_processes_without_a_store() {
    let case = Case::new("amo-keyed", 3);
    let steps = crate::case::window_steps("out_of_order: 2s", "tumbling: 10s");
    let flow = case.flow(&steps).consumer("delivery: at_most_once");
    let workload = tidegate_harness::Workload { partitions: 3, records: 300, ..Default::default() };
    case.kafka.produce(&case.input, &tidegate_harness::workload::messages(&workload.events()));
    case.launch(&flow).shape(2, 1).until_end().run_to_exit(0, DEADLINE);
    assert!(case.outputs() > 0, "no window came out");
}

// L12 with a store: the larger of state and group offset is where at_most_once begins.
#[test]
fn at_most_once_with_a_store_never_begins_below_the_group() {
    let case = Case::new("amo-store", 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    let flow = case.copy().consumer("delivery: at_most_once");
    let launch = case.launch(&flow).recovery(&case.store()).until_end();
    launch.run_to_exit(0, DEADLINE);
    case.kafka.produce(&case.input, &numbered(10..20, 1));
    case.kafka.set_group_offsets(&case.group, &case.input, [(0, 15)]);
    launch.run_to_exit(0, DEADLINE);
    let rows = case.kafka.drain(&case.output);
    checker::assert_exactly(&rows, (0..10).chain(15..20));
}

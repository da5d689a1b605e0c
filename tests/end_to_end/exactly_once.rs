//! Exactly once by way of the store: what a `read_committed` reader sees, and the group's offsets.

use tidegate_harness::workload::messages;
use tidegate_harness::{Broker, Workload, checker};

use crate::case::{Case, DEADLINE, FlowText, long, numbered, window_steps};
use crate::restore::{kill_at_random_under, kills};

/// Kills of one run.
fn many_kills() -> usize {
    if long() { 50 } else { kills() }
}

/// Each window once, over one process and two, and the lag reaches zero.
#[test]
fn a_bounded_run_publishes_each_window_once_and_commits_the_end() {
    for (processes, workers) in [(1, 1), (2, 2)] {
        let case = Case::new("exactly-once", 4);
        let workload = Workload { records: 4_000, keys: 200, ..Workload::default() };
        let events = workload.events();
        case.kafka.produce(&case.input, &messages(&events));
        let flow = case.flow(&window_steps("out_of_order: 2s", "tumbling: 10s")).exactly_once();
        let launch = case.launch(&flow).recovery(&case.store()).shape(processes, workers);
        launch.until_end().run_to_exit(0, DEADLINE);
        case.assert_windows_once(&events);
        case.wait_caught_up();
    }
}

/// Kills over these shapes; each window is published once.
pub(crate) fn killed_at_random(broker: &Broker, name: &str, shapes: &[(usize, usize)], kills: usize) {
    let repeats = kill_at_random_under(broker, FlowText::exactly_once, name, shapes, kills);
    assert_eq!(repeats, 0, "I2 no duplicates");
}

// E12 E33 E35 F4 P13 A34 I1 I2 I4
#[test]
fn two_processes_killed_at_random_publish_each_window_once() {
    killed_at_random(Broker::shared(), "exactly-once-2x2", &[(2, 2)], many_kills());
}

// E34 S10 fault E6
#[test]
fn a_cluster_killed_at_random_and_reshaped_publishes_each_window_once() {
    let shapes = [(2, 1), (1, 2), (3, 1)];
    killed_at_random(Broker::shared(), "exactly-once-reshape", &shapes, kills().min(10));
}

// Two brokers are two clusters: no transaction spans them.
#[test]
fn exactly_once_from_one_cluster_to_another_is_refused_with_both_ids() {
    let case = Case::new("exactly-once-clusters", 1);
    let other = Broker::start(&[]);
    other.kafka().create_topic(&case.output, 1);
    let flow = case.copy().exactly_once().producer_at(other.kafka().bootstrap());
    let refused = case.launch(&flow).recovery(&case.store()).until_end().run_to_exit(78, DEADLINE);
    assert!(refused.stderr(0).contains("EXACTLY_ONCE_BLOCKED"), "{}", refused.stderr(0));
}

// A control topic that loses markers would let output be published again.
#[test]
fn a_control_topic_that_is_missing_or_forgets_is_refused_with_what_to_do() {
    let case = Case::new("exactly-once-control", 1);
    let control = format!("{}.control", case.output);
    let flow = case.copy().exactly_once().top(&format!("exactly_once: {{ control_topic: {control} }}"));
    let launch = case.launch(&flow).recovery(&case.store()).until_end();
    let missing = launch.run_to_exit(66, DEADLINE);
    assert!(missing.stderr(0).contains("cleanup.policy=compact"), "{}", missing.stderr(0));
    case.kafka.create_topic_with(&control, 1, &[("cleanup.policy", "compact,delete")]);
    let forgets = launch.run_to_exit(78, DEADLINE);
    assert!(forgets.stderr(0).contains("EXACTLY_ONCE_BLOCKED"), "{}", forgets.stderr(0));
    case.kafka.set_topic(&control, &[("cleanup.policy", "compact")]);
    case.kafka.add_partitions(&control, 2);
    let wide = launch.run_to_exit(78, DEADLINE);
    assert!(wide.stderr(0).contains("2 partitions"), "{}", wide.stderr(0));
}

// What is owed is not lost in silence when the flow is changed.
#[test]
fn a_flow_leaves_exactly_once_only_when_its_output_is_published() {
    let case = Case::new("exactly-once-left", 1);
    let flow = case.copy().exactly_once();
    let launch = case.launch(&flow).recovery(&case.store());
    case.kafka.produce(&case.input, &numbered(0..100, 1));
    let at = "kill store.record 1";
    let mut killed = launch.clone().test_steps().env("TIDEGATE_TEST_AT", at).start();
    assert_eq!(killed.wait_exit(0, DEADLINE), 128 + 9);
    let left = case.launch(&case.copy()).recovery(&case.store()).until_end();
    let refused = left.run_to_exit(78, DEADLINE);
    assert!(refused.stderr(0).contains("OUTPUT_OWED"), "{}", refused.stderr(0));
    launch.until_end().run_to_exit(0, DEADLINE);
    case.kafka.produce(&case.input, &numbered(100..150, 1));
    left.run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..150);
}

//! Exactly once by way of the store: what a `read_committed` reader sees, and the group's offsets.

use tidegate_harness::workload::messages;
use tidegate_harness::{Oracle, WindowKind, Workload, checker};

use crate::case::{Case, DEADLINE, FlowText, window_steps};
use crate::restore::{kill_at_random_under, kills};

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
        let oracle =
            Oracle { kind: WindowKind::Tumbling { size: 10_000 }, out_of_order_ms: 2_000, lateness_ms: 0 };
        let rows = case.kafka.drain(&case.output);
        assert_eq!(checker::assert_windows(&rows, &oracle.paid(&events).windows), 0, "I2 no duplicates");
        case.wait_caught_up();
    }
}

// E12 E33 F4 I1 I2 I4
#[test]
fn two_processes_killed_at_random_publish_each_window_once() {
    let repeats = kill_at_random_under(FlowText::exactly_once, "exactly-once-2x2", &[(2, 2)], kills());
    assert_eq!(repeats, 0, "I2 no duplicates");
}

// S10 fault E6
#[test]
fn a_cluster_killed_at_random_and_reshaped_publishes_each_window_once() {
    let shapes = [(2, 1), (1, 2), (3, 1)];
    let repeats =
        kill_at_random_under(FlowText::exactly_once, "exactly-once-reshape", &shapes, kills().min(10));
    assert_eq!(repeats, 0, "I2 no duplicates");
}

//! `--until-end` and stops: issue 3, behaviour 14.

use std::collections::BTreeMap;

use tidegate_harness::oracle::Windows;
use tidegate_harness::workload::messages;
use tidegate_harness::{Event, Oracle, Received, WindowKind, Workload, checker, wait};

use crate::case::{Case, DEADLINE, highest_record, numbered, window_steps};

/// Only the newest row of each window: a window that a later run adds to comes out again, whole.
///
/// A key lies on one output partition, so the rows of a window are in their order there.
fn newest(rows: &[Received]) -> Vec<Received> {
    let mut newest: BTreeMap<(String, i64), Received> = BTreeMap::new();
    for row in rows {
        let start = row.json()["window_start"].as_i64().unwrap_or(i64::MIN);
        newest.insert((row.key_text(), start), row.clone());
    }
    newest.into_values().collect()
}

fn windows(events: &[Event], size: i64) -> Windows {
    Oracle { kind: WindowKind::Tumbling { size }, out_of_order_ms: 2_000, lateness_ms: 0 }
        .paid(events)
        .windows
}

// C15 A31
#[test]
fn a_bounded_run_fires_every_window_commits_everything_and_exits_0_on_all_processes() {
    let case = Case::new("bounded", 3);
    let events = Workload { partitions: 3, records: 1_000, ..Workload::default() }.events();
    case.kafka.produce(&case.input, &messages(&events));
    let flow = case.flow(&window_steps("out_of_order: 2s", "tumbling: 10s"));
    let launch = case.launch(&flow).shape(3, 2).recovery(&case.store()).until_end();
    launch.run_to_exit(0, DEADLINE).assert_stdout_empty();
    let rows = case.kafka.drain(&case.output);
    assert_eq!(checker::assert_windows(&rows, &windows(&events, 10_000)), 0, "repeats in a calm run");
    case.wait_caught_up();
    assert!(highest_record(&case.store()).is_some(), "no commit record");
}

// C15: an input without a record, and one whose end is reached before the start.
#[test]
fn an_empty_input_and_one_that_is_done_already_end_at_once_with_0() {
    let case = Case::new("empty", 2);
    let launch = case.launch(&case.copy()).shape(2, 1).recovery(&case.store()).until_end();
    launch.run_to_exit(0, DEADLINE);
    case.kafka.produce(&case.input, &numbered(0..10, 2));
    launch.run_to_exit(0, DEADLINE);
    launch.run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..10);
}

// The end is where the log ended at the start: what comes later is for the next run.
#[test]
fn a_bounded_run_does_not_chase_a_log_that_grows() {
    let case = Case::new("chase", 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    let gate = case.scratch.join("gate");
    let steps =
        format!("- gate: {{ when: \"true\", file: {gate:?} }}\n- sink: {{ kafka: {{ topic: OUT }} }}");
    let launch = case.launch(&case.flow(&steps)).test_steps().until_end();
    let mut cluster = launch.start();
    cluster.wait_ready(DEADLINE);
    case.kafka.produce(&case.input, &numbered(10..20, 1));
    std::fs::write(&gate, "").unwrap_or_else(|e| panic!("open the gate: {e}"));
    cluster.expect_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..10);
    launch.run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..20);
}

// S9: behaviour 14
#[test]
fn a_stop_fires_no_window_and_the_open_ones_are_in_the_snapshot() {
    let case = Case::new("stop", 2);
    // All of it lies within one window, far from its borders.
    let start_ms = Workload::default().start_ms + 600_000;
    let events = Workload { partitions: 2, records: 600, start_ms, ..Workload::default() }.events();
    let flow = case.flow(&window_steps("out_of_order: 2s", "tumbling: 1h"));
    let launch = case.launch(&flow).recovery(&case.store());
    case.kafka.produce(&case.input, &messages(&events[..300]));
    let mut cluster = launch.clone().shape(2, 2).start();
    case.wait_caught_up();
    cluster.terminate_all();
    for n in 0..2 {
        let code = cluster.wait_exit(n, DEADLINE);
        // Each got the signal, but the one that is told by its peer first may leave as one that lost it.
        assert!([0, 75].contains(&code), "process {n}: exit code {code}");
    }
    assert_eq!(case.outputs(), 0, "a stop fired a window");
    case.kafka.produce(&case.input, &messages(&events[300..]));
    launch.shape(1, 3).until_end().run_to_exit(0, DEADLINE);
    checker::assert_windows(&case.kafka.drain(&case.output), &windows(&events, 3_600_000));
}

// I9: behaviour 14
#[test]
fn data_appended_after_an_end_is_not_late_and_a_window_that_both_runs_touch_comes_out_whole() {
    let case = Case::new("append", 2);
    let events = Workload { partitions: 2, records: 900, ..Workload::default() }.events();
    let flow = case.flow(&window_steps("out_of_order: 2s", "tumbling: 10s"));
    let launch = case.launch(&flow).recovery(&case.store()).until_end();
    let mut runs = 0;
    for part in events.chunks(300) {
        case.kafka.produce(&case.input, &messages(part));
        launch.clone().shape(1, runs % 2 + 1).run_to_exit(0, DEADLINE);
        runs += 1;
        let all = &events[..300 * runs];
        checker::assert_windows(&newest(&case.kafka.drain(&case.output)), &windows(all, 10_000));
    }
    assert!(
        case.outputs() > newest(&case.kafka.drain(&case.output)).len(),
        "no window was touched by two runs"
    );
}

// I10: the end of one run and a kill in it do not mix.
#[test]
fn a_bounded_run_that_is_killed_is_finished_by_the_next_one() {
    let case = Case::new("killed-end", 2);
    let events = Workload { partitions: 2, records: 20_000, keys: 300, ..Workload::default() }.events();
    case.kafka.produce(&case.input, &messages(&events));
    let flow = case.flow(&window_steps("out_of_order: 2s", "tumbling: 10s"));
    let launch = case.launch(&flow).shape(1, 2).recovery(&case.store()).until_end();
    for _ in 0..3 {
        let before = highest_record(&case.store());
        let mut cluster = launch.start();
        wait::until("a further commit record, or the end", DEADLINE, || {
            (highest_record(&case.store()) > before || cluster.exited(0).is_some()).then_some(())
        });
        cluster.kill_all();
    }
    launch.run_to_exit(0, DEADLINE);
    checker::assert_windows(&newest(&case.kafka.drain(&case.output)), &windows(&events, 10_000));
    case.wait_caught_up();
}

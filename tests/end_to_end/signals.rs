//! Signals, and a worker that panics.

use std::time::Duration;

use tidegate_harness::{Cluster, checker, wait};

use crate::case::{Case, DEADLINE, numbered};
use crate::status;

/// Waits until the process has read this many records: a stop before that has nothing to drain.
fn wait_read(cluster: &mut Cluster, count: f64) {
    cluster.wait_for("the records are read", DEADLINE, |cluster| {
        status::metric(cluster, 0, "tidegate_records_read_total").is_some_and(|read| read >= count)
    });
}

// C9 L38
#[test]
fn sigterm_and_sigint_end_a_running_flow_with_0_and_nothing_is_repeated() {
    let case = Case::new("signals", 1);
    let launch = case.launch(&case.copy()).recovery(&case.store());
    for (round, interrupt) in [false, true].into_iter().enumerate() {
        let first = round as u64 * 10;
        let mut cluster = launch.start();
        case.kafka.produce(&case.input, &numbered(first..first + 10, 1));
        cluster.wait_for("the records come out", DEADLINE, |_| case.outputs() as u64 == first + 10);
        if interrupt {
            cluster.interrupt(0)
        } else {
            cluster.terminate(0)
        }
        cluster.expect_exit(0, DEADLINE);
        assert_eq!(case.kafka.lag(&case.group, &case.input), 0, "the last commit is missing");
        cluster.assert_stdout_empty();
    }
    launch.until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..20);
}

// C9
#[test]
fn a_second_signal_stops_at_once_with_its_own_code_and_a_restart_is_exact() {
    for (interrupt, code) in [(false, 143), (true, 130)] {
        let case = Case::new("second-signal", 1);
        let gate = case.scratch.join("gate");
        let steps =
            format!("- gate: {{ when: \"true\", file: {gate:?} }}\n- sink: {{ kafka: {{ topic: OUT }} }}");
        case.kafka.produce(&case.input, &numbered(0..10, 1));
        let launch = case.launch(&case.flow(&steps)).test_steps().recovery(&case.store());
        let mut cluster = launch.start();
        wait_read(&mut cluster, 10.0);
        let send = |cluster: &Cluster| {
            if interrupt { cluster.interrupt(0) } else { cluster.terminate(0) }
        };
        send(&cluster);
        wait::holds_for("the first signal waits for the gate", Duration::from_secs(1), || {
            cluster.exited(0).is_none()
        });
        send(&cluster);
        assert_eq!(cluster.wait_exit(0, Duration::from_secs(5)), code);
        std::fs::write(&gate, "").unwrap_or_else(|e| panic!("open the gate: {e}"));
        launch.until_end().run_to_exit(0, DEADLINE);
        checker::assert_exactly(&case.kafka.drain(&case.output), 0..10);
    }
}

// C9 P43
#[test]
fn a_stop_that_cannot_drain_ends_at_shutdown_timeout_with_75_and_commits_nothing_undone() {
    let case = Case::new("shutdown-timeout", 1);
    let gate = case.scratch.join("gate");
    let steps =
        format!("- gate: {{ when: \"true\", file: {gate:?} }}\n- sink: {{ kafka: {{ topic: OUT }} }}");
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    let flow = case.flow(&steps).cluster("shutdown_timeout: 2s");
    let mut cluster = case.launch(&flow).test_steps().start();
    wait_read(&mut cluster, 10.0);
    cluster.terminate(0);
    cluster.expect_exit(75, Duration::from_secs(15));
    assert!(case.kafka.group_offsets(&case.group, &case.input).get(&0).is_none_or(|offset| *offset == 0));
}

// C9: SIGTERM to one process of a cluster ends that one with 0, after a last epoch of the whole cluster.
#[test]
fn sigterm_to_one_process_drains_and_commits_the_whole_cluster() {
    let case = Case::new("one-of-two", 2);
    let launch = case.launch(&case.copy()).shape(2, 1).recovery(&case.store());
    let mut cluster = launch.start();
    cluster.wait_ready(DEADLINE);
    case.kafka.produce(&case.input, &numbered(0..2_000, 2));
    wait::until("output begins", DEADLINE, || (case.outputs() > 0).then_some(()));
    cluster.terminate(1);
    assert_eq!(cluster.wait_exit(1, DEADLINE), 0);
    let code = cluster.wait_exit(0, DEADLINE);
    assert!([0, 75].contains(&code), "the other leaves, to be started again: {code}");
    launch.until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..2_000);
}

// C10 fault P2 I10
#[test]
fn a_panic_in_a_worker_ends_the_process_though_another_waits_and_names_step_and_cause_once() {
    let case = Case::new("panic", 2);
    let gate = case.scratch.join("gate");
    let steps = format!(
        "- decode: {{ json: {{}} }}\n\
         - gate: {{ when: value.id % 2 == 0, file: {gate:?} }}\n\
         - fail_on: {{ when: value.id == 31, how: panic }}\n\
         - sink: {{ kafka: {{ topic: OUT }} }}"
    );
    case.kafka.produce(&case.input, &numbered(0..40, 2));
    let mut cluster = case.launch(&case.flow(&steps)).test_steps().shape(1, 2).start();
    cluster.wait_logged(0, "fail_on", DEADLINE);
    let code = cluster.wait_exit(0, Duration::from_secs(20));
    assert!([70, 75].contains(&code), "exit code {code}");
    let committed = case.kafka.group_offsets(&case.group, &case.input);
    assert!(
        committed.get(&1).is_none_or(|offset| *offset <= 15),
        "{committed:?} passed the record that failed"
    );
}

// E19 fault P1
#[test]
fn an_error_of_a_step_stops_with_65_and_an_abort_is_like_a_kill() {
    let case = Case::new("fail-on", 1);
    case.kafka.produce(&case.input, &numbered(0..20, 1));
    for (how, code) in [("error", 65), ("abort", 134)] {
        let steps = format!(
            "- decode: {{ json: {{}} }}\n- fail_on: {{ when: value.id == 10, how: {how} }}\n- sink: {{ kafka: {{ topic: OUT }} }}"
        );
        let mut cluster = case.launch(&case.flow(&steps)).test_steps().start();
        cluster.expect_exit(code, DEADLINE);
        let committed = case.kafka.group_offsets(&case.group, &case.input);
        assert!(committed.get(&0).is_none_or(|offset| *offset <= 10), "{how}: {committed:?}");
    }
    case.launch(&case.copy()).until_end().run_to_exit(0, DEADLINE);
    checker::assert_no_loss(&case.kafka.drain(&case.output), 0..20);
}

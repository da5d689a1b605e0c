//! Who owns which partition, and that the group is an offset store and nothing more.

use std::collections::BTreeSet;

use tidegate_harness::workload::messages;
use tidegate_harness::{Cluster, Oracle, Outcome, WindowKind, Workload, Writer, checker, wait, witness};

use crate::case::{Case, DEADLINE, window_steps};
use crate::status;

/// Writes the workload so that every partition has commit markers, aborted records, and one of those at its end.
fn produce_in_transactions(case: &Case, workload: &Workload) -> Vec<tidegate_harness::Event> {
    let events = workload.events();
    let writer = Writer::transactional(&case.kafka, &case.name);
    for part in events.chunks(200) {
        writer.transaction(&case.input, &messages(part), Outcome::Commit);
        writer.transaction(&case.input, &messages(&part[..20]), Outcome::Abort);
    }
    events
}

// L34 L41 L42 L43 L45 L49 A8 A11 K12 P16
#[test]
fn two_processes_own_partitions_in_turn_and_commit_the_end_of_each_though_keys_live_elsewhere() {
    let case = Case::new("ownership", 3);
    let workload = Workload { partitions: 3, records: 1_200, ..Workload::default() };
    let events = produce_in_transactions(&case, &workload);
    let flow = case.flow(&window_steps("out_of_order: 2s", "tumbling: 10s"));
    let launch = case.launch(&flow).shape(2, 1).recovery(&case.store());
    let mut cluster = launch.start();
    cluster.wait_ready(DEADLINE);
    for (process, partitions) in [(0, BTreeSet::from([0, 2])), (1, BTreeSet::from([1]))] {
        cluster.wait_for(&format!("process {process} owns {partitions:?}"), DEADLINE, |cluster| {
            status::owned(cluster, process) == partitions
        });
    }
    case.wait_caught_up();
    let lines = witness::describe_group(&case.kafka, &case.group);
    assert_eq!(lines.len(), 3);
    for ((topic, partition), line) in &lines {
        assert_eq!((line.lag, &line.member), (0, &None), "{topic}:{partition}: {line:?}");
    }
    assert!(witness::group_members(&case.kafka, &case.group).is_empty());
    cluster.kill_all();
    launch.clone().until_end().run_to_exit(0, DEADLINE);
    let oracle =
        Oracle { kind: WindowKind::Tumbling { size: 10_000 }, out_of_order_ms: 2_000, lateness_ms: 0 };
    let rows = case.kafka.drain(&case.output);
    // The aborted repeats take offsets, but the order within a partition stays, and only that matters to the oracle.
    checker::assert_windows(&rows, &oracle.paid(&events).windows);
}

// L41
#[test]
fn twelve_partitions_on_three_processes_of_two_workers_are_each_owned_once() {
    let case = Case::new("twelve", 12);
    let mut cluster = case.launch(&case.copy()).shape(3, 2).start();
    cluster.wait_ready(DEADLINE);
    let owned = |cluster: &Cluster| (0..3).map(|n| status::owned(cluster, n)).collect::<Vec<BTreeSet<i32>>>();
    cluster.wait_for("each process owns four partitions", DEADLINE, |cluster| {
        owned(cluster).iter().all(|partitions| partitions.len() == 4)
    });
    let owned = owned(&cluster);
    assert_eq!(owned.iter().flatten().collect::<BTreeSet<_>>().len(), 12, "{owned:?}");
}

// A16 P9
#[test]
fn the_lag_that_the_process_shows_is_the_one_that_an_outsider_computes() {
    let case = Case::new("lag", 2);
    let gate = case.scratch.join("gate");
    let steps =
        format!("- gate: {{ when: \"true\", file: {:?} }}\n- sink: {{ kafka: {{ topic: OUT }} }}", gate);
    case.kafka.produce(&case.input, &crate::case::numbered(0..40, 2));
    let mut cluster = case.launch(&case.flow(&steps)).test_steps().start();
    cluster.wait_for("the lag is 40", DEADLINE, |cluster| status::lag(cluster, 0) == Some(40));
    assert_eq!(case.kafka.lag(&case.group, &case.input), 40);
    std::fs::write(&gate, "").unwrap_or_else(|e| panic!("open the gate: {e}"));
    case.wait_caught_up();
    cluster.wait_for("the lag is 0", DEADLINE, |cluster| status::lag(cluster, 0) == Some(0));
    wait::until("the metric follows", DEADLINE, || {
        (status::metric(&cluster, 0, "tidegate_lag") == Some(0.0)).then_some(())
    });
}

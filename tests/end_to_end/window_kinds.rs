//! Tumbling, sliding and session windows give what the oracle computes, late records included, whatever the number of
//! workers and wherever the run is interrupted (issue 3, behaviour 4; the simulation of the operators explores far more).

use tidegate_harness::workload::messages;
use tidegate_harness::{Oracle, WindowKind, Workload, checker, wait};

use crate::case::{Case, DEADLINE, highest_record, seed, window_steps};

fn same_on_all_shapes(name: &str, window: &str, kind: WindowKind, lateness_ms: i64) {
    let seed = seed(name);
    let workload = Workload {
        seed,
        records: 3_000,
        keys: 30,
        late_per_mille: 60,
        late_by_ms: 40_000,
        repeats_per_mille: 20,
        unpaid_per_mille: 100,
        ..Workload::default()
    };
    let events = workload.events();
    let verdict = Oracle { kind, out_of_order_ms: 2_000, lateness_ms }.paid(&events);
    assert!(verdict.late > 0, "the workload has no late records");
    for (round, (processes, workers)) in [(1, 1), (1, 2), (2, 2)].into_iter().enumerate() {
        let case = Case::new(name, 4);
        // The first half is there at the start, the second comes while it runs, and one of the runs is cut.
        case.kafka.produce(&case.input, &messages(&events[..1_500]));
        let flow = case.flow(&window_steps("out_of_order: 2s", window));
        let launch = case.launch(&flow).shape(processes, workers).recovery(&case.store());
        let mut cluster = launch.start();
        if round == 1 {
            wait::until("a commit record", DEADLINE, || highest_record(&case.store()));
            cluster.kill_all();
            cluster = launch.start();
        }
        case.kafka.produce(&case.input, &messages(&events[1_500..]));
        case.wait_caught_up();
        cluster.kill_all();
        launch.until_end().run_to_exit(0, DEADLINE);
        let rows = case.kafka.drain(&case.output);
        eprintln!("{name} on {processes}x{workers}: {} windows", rows.len());
        checker::assert_windows(&rows, &verdict.windows);
    }
}

// A28 A30 A31 fault P7 I9
#[test]
fn tumbling_windows_are_the_oracles_on_one_two_and_four_workers() {
    same_on_all_shapes(
        "tumbling",
        "tumbling: 10s, lateness: 3s",
        WindowKind::Tumbling { size: 10_000 },
        3_000,
    );
}

// A28 A31
#[test]
fn sliding_windows_are_the_oracles_on_one_two_and_four_workers() {
    same_on_all_shapes(
        "sliding",
        "sliding: { size: 10s, every: 4s }",
        WindowKind::Sliding { size: 10_000, every: 4_000 },
        0,
    );
}

// A28 A31
#[test]
fn session_windows_are_the_oracles_on_one_two_and_four_workers() {
    same_on_all_shapes(
        "session",
        "session: { gap: 2s }, lateness: 1s",
        WindowKind::Session { gap: 2_000 },
        1_000,
    );
}

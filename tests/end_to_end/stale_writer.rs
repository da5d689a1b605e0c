//! A frozen cluster is overtaken and does no harm when it wakes: issue 3, behaviour 12.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tidegate_harness::workload::messages;
use tidegate_harness::{Oracle, WindowKind, Workload, checker, wait};

use crate::case::{Case, DEADLINE, highest_record, long, seed, text_of, tidegate, window_steps};

// F1 F15 L46 fault E7 C2 I2 I7
#[test]
fn a_frozen_cluster_that_another_one_overtook_writes_nothing_and_exits_75_when_it_is_thawed() {
    let seed = seed("stale-writer");
    let mut random = SmallRng::seed_from_u64(seed);
    let rounds = if long() { 20 } else { 3 };
    let case = Case::new("stale-writer", 4);
    let workload = Workload { seed, records: 2_000 * rounds * 2, keys: 400, ..Workload::default() };
    let events = workload.events();
    let mut parts = events.chunks(2_000);
    // Commits follow one another closely, so that a random moment lies within one.
    let flow = case
        .flow(&window_steps("out_of_order: 2s", "tumbling: 10s"))
        .top("epoch_interval: 20ms")
        .recovery("commit_interval: 20ms")
        .cluster("peer_timeout: 1s");
    let launch = case.launch(&flow).recovery(&case.store());
    for round in 0..rounds {
        let shapes = [(2, 1), (1, 3), (1, 1), (2, 2)];
        let (old, new) = (shapes[round % 4], shapes[(round + 1) % 4]);
        let mut stale = launch.clone().shape(old.0, old.1).start();
        stale.wait_ready(DEADLINE);
        let before = highest_record(&case.store());
        case.kafka.produce(&case.input, &messages(parts.next().unwrap_or_default()));
        stale.wait_for("it commits", DEADLINE, |_| highest_record(&case.store()) > before);
        let moment = Duration::from_millis(random.random_range(0..200));
        wait::holds_for("it runs until it is frozen", moment, || true);
        stale.freeze_all();

        let mut fresh = launch.clone().shape(new.0, new.1).start();
        fresh.wait_ready(DEADLINE);
        let taken = highest_record(&case.store()).unwrap_or(0);
        for part in parts.next().unwrap_or_default().chunks(200) {
            let before = highest_record(&case.store());
            case.kafka.produce(&case.input, &messages(part));
            fresh.wait_for("the new one commits", DEADLINE, |_| highest_record(&case.store()) > before);
        }
        case.wait_caught_up();
        assert!(highest_record(&case.store()).unwrap_or(0) >= taken + 5, "five commit records");
        fresh.terminate_all();
        for n in 0..fresh.len() {
            let code = fresh.wait_exit(n, DEADLINE);
            assert!([0, 75].contains(&code), "exit code {code}");
        }
        let record = highest_record(&case.store());
        stale.thaw_all();
        for n in 0..stale.len() {
            assert_eq!(stale.wait_exit(n, DEADLINE), 75, "the stale process {n} must leave");
        }
        assert_eq!(highest_record(&case.store()), record, "the stale cluster published a commit record");
        let verified = tidegate(&["recovery", "verify", &case.store().display().to_string()]);
        assert_eq!(verified.status.code(), Some(0), "{}", text_of(&verified));
    }
    launch.until_end().run_to_exit(0, DEADLINE);
    let oracle =
        Oracle { kind: WindowKind::Tumbling { size: 10_000 }, out_of_order_ms: 2_000, lateness_ms: 0 };
    checker::assert_windows(&case.kafka.drain(&case.output), &oracle.paid(&events).windows);
    case.wait_caught_up();
}

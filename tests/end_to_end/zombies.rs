//! Exactly once against a process that stops at the worst moments, is overtaken, and goes on: issue 4, points 2 and 10.

use tidegate_harness::workload::messages;
use tidegate_harness::{Broker, Cluster, Launch, OffsetWatch, Workload, wait};

use crate::case::{Case, DEADLINE, long, text_of, tidegate, window_steps};

/// Processes and workers of the cluster that is overtaken, and of the one that overtakes it.
pub(crate) type Overtaking = ((usize, usize), (usize, usize));

/// A cluster is frozen at `place`, another of another shape takes over and finishes, and the first is thawed: each window
/// comes out once, the offsets only rise, and the old one leaves with 75.
pub(crate) fn overtaken_at(broker: &Broker, name: &str, place: &str, nth: u64, shapes: &[Overtaking]) {
    let shapes = if long() { shapes } else { &shapes[..1] };
    for (old, new) in shapes {
        let case = Case::on(broker.kafka(), name, 4);
        let workload = Workload { records: 6_000, keys: 200, ..Workload::default() };
        let events = workload.events();
        let mut parts = events.chunks(2_000);
        let flow = case
            .flow(&window_steps("out_of_order: 2s", "tumbling: 10s"))
            .exactly_once()
            .cluster("peer_timeout: 1s");
        let launch = case.launch(&flow).recovery(&case.store());
        let watch = OffsetWatch::start(&case.kafka, &case.group, &case.input);
        let mut stale = frozen_at(&case, &launch.clone().shape(old.0, old.1), place, nth, || {
            case.kafka.produce(&case.input, &messages(parts.next().unwrap_or_default()));
        });

        let mut fresh = launch.clone().shape(new.0, new.1).start();
        fresh.wait_ready(DEADLINE);
        for part in parts {
            case.kafka.produce(&case.input, &messages(part));
        }
        case.wait_caught_up();
        thaw_overtaken(&case, &mut stale, &["PRODUCER_FENCED", "LEASE_LOST", "PEER_LOST", "STOOD_STILL"]);
        fresh.terminate_all();
        fresh.expect_exit_in(&[0, 75], DEADLINE);
        let verified = tidegate(&["recovery", "verify", &case.store().display().to_string()]);
        assert_eq!(verified.status.code(), Some(0), "{}", text_of(&verified));

        launch.until_end().run_to_exit(0, DEADLINE);
        case.assert_windows_once(&events);
        case.wait_caught_up();
        watch.assert_only_rises();
    }
}

/// Thaws a cluster that was overtaken: it publishes nothing, and each process leaves with 75 and the code of the fence that it met.
#[track_caller]
pub(crate) fn thaw_overtaken(case: &Case, stale: &mut Cluster, codes: &[&str]) {
    let before = case.kafka.drain(&case.output);
    wait::until("the overtaken processes have ended", DEADLINE, || {
        // One that was frozen from outside may come to the place only now.
        stale.thaw_all();
        stale.exits().iter().all(Option::is_some).then_some(())
    });
    for n in 0..stale.len() {
        assert_eq!(stale.wait_exit(n, DEADLINE), 75, "the overtaken process {n} must leave");
        let said = stale.stderr(n);
        assert!(codes.iter().any(|code| said.contains(code)), "the code of the fence that it met: {said}");
    }
    assert_eq!(case.kafka.drain(&case.output), before, "the overtaken cluster published something");
}

/// A cluster of which at least one process stopped itself at the place, and the others at the same moment.
pub(crate) fn frozen_at(case: &Case, launch: &Launch, place: &str, nth: u64, feed: impl FnOnce()) -> Cluster {
    let at = format!("freeze {place} {nth}");
    let mut cluster = launch.clone().test_steps().env("TIDEGATE_TEST_AT", &at).start();
    feed();
    cluster.wait_for(&format!("a process of {} is at {place}", case.name), DEADLINE, |cluster| {
        (0..cluster.len()).any(|n| cluster.is_frozen(n))
    });
    cluster.freeze_all();
    cluster
}

pub(crate) const TWO_TO_ONE: Overtaking = ((2, 1), (1, 2));
pub(crate) const ONE_TO_THREE: Overtaking = ((1, 2), (3, 1));

// F25: who initialises last wins the producer, and must lose all the same.
#[test]
fn a_process_frozen_before_it_initialises_its_producer_loses_when_it_is_thawed() {
    overtaken_at(Broker::shared(), "zombie-init", "publication.initialise", 1, &[ONE_TO_THREE, TWO_TO_ONE]);
}

// fault E3
#[test]
fn a_cluster_frozen_behind_a_commit_record_loses_when_it_is_thawed() {
    overtaken_at(Broker::shared(), "zombie-record", "store.record", 2, &[TWO_TO_ONE, ONE_TO_THREE]);
}

// E7 P14 P15 P45 F5 F6 fault E7
#[test]
fn a_cluster_frozen_in_a_transaction_loses_when_it_is_thawed() {
    overtaken_at(Broker::shared(), "zombie-sent", "publication.sent", 1, &[ONE_TO_THREE, TWO_TO_ONE]);
}

// fault E4 fault E5
#[test]
fn a_cluster_frozen_behind_the_end_of_a_transaction_loses_when_it_is_thawed() {
    overtaken_at(Broker::shared(), "zombie-ended", "publication.ended", 1, &[TWO_TO_ONE, ONE_TO_THREE]);
}

//! Exactly once without a store against a process that stops at the worst moments, is overtaken, and goes on: issue 4, points 9
//! and 10. There is no lease: only the identity of the producers keeps an old owner away.

use tidegate_harness::workload::messages;
use tidegate_harness::{Broker, OffsetWatch, Workload, checker};

use crate::case::{Case, DEADLINE, FlowText, long, numbered};
use crate::exactly_once_direct::copy_once;
use crate::zombies::{ONE_TO_THREE, Overtaking, TWO_TO_ONE, frozen_at, thaw_overtaken};

/// A cluster is frozen at `place`, another of another shape takes over and finishes, and the first is thawed: what is expected
/// comes out once and in order, the offsets only rise, the old one leaves with 75, and the new one is not disturbed.
pub(crate) fn overtaken_at(
    broker: &Broker,
    place: &str,
    nth: u64,
    shapes: &[Overtaking],
    flow: impl Fn(&Case) -> FlowText,
    comes_out: bool,
) {
    let shapes = if long() { shapes } else { &shapes[..1] };
    for (old, new) in shapes {
        let case = Case::on(broker.kafka(), "zombie-direct", 4);
        let workload = Workload { records: 4_000, ..Workload::default() };
        let events = workload.events();
        let mut parts = events.chunks(1_000);
        let launch = case.launch(&flow(&case).cluster("peer_timeout: 1s"));
        let watch = OffsetWatch::start(&case.kafka, &case.group, &case.input);
        let mut stale = frozen_at(&case, &launch.clone().shape(old.0, old.1), place, nth, || {
            case.kafka.produce(&case.input, &messages(parts.next().unwrap_or_default()));
        });

        let mut fresh = launch.clone().shape(new.0, new.1).start();
        fresh.wait_ready(DEADLINE);
        for part in parts.by_ref().take(2) {
            case.kafka.produce(&case.input, &messages(part));
        }
        case.wait_caught_up();
        thaw_overtaken(&case, &mut stale, &["PRODUCER_FENCED", "PEER_LOST", "STOOD_STILL"]);
        case.kafka.produce(&case.input, &messages(parts.next().unwrap_or_default()));
        if place != BEFORE_INITIALISING {
            case.wait_caught_up();
            assert!(fresh.exits().iter().all(Option::is_none), "the new cluster was disturbed");
        }
        fresh.terminate_all();
        fresh.expect_exit_in(&[0, 75], DEADLINE);
        launch.clone().shape(new.0, new.1).until_end().run_to_exit(0, DEADLINE);
        let rows = case.kafka.drain(&case.output);
        if comes_out {
            checker::assert_exactly(&rows, events.iter().map(|event| event.id));
            checker::assert_key_order(&rows, &events);
        } else {
            assert_eq!(rows, []);
        }
        case.wait_caught_up();
        watch.assert_only_rises();
    }
}

/// Nothing can be looked at between the last look and the request that initialises: a process frozen just there fences the new
/// owner once, which leaves with 75 and is started again.
const BEFORE_INITIALISING: &str = "direct.initialise";

// F25: who initialises last wins the producer, and publishes nothing with it.
#[test]
fn an_owner_frozen_before_it_initialises_its_producers_publishes_nothing() {
    overtaken_at(Broker::shared(), BEFORE_INITIALISING, 1, &[ONE_TO_THREE, TWO_TO_ONE], copy_once, true);
}

// P45 E10 F5 F6 fault E7
#[test]
fn an_owner_frozen_in_a_transaction_is_fenced_by_the_next_one_of_its_partitions() {
    overtaken_at(Broker::shared(), "direct.sent", 2, &[TWO_TO_ONE, ONE_TO_THREE], copy_once, true);
}

// P45 E10: a cluster that grows.
#[test]
fn an_owner_frozen_in_a_transaction_is_fenced_by_several_processes() {
    overtaken_at(Broker::shared(), "direct.sent", 3, &[ONE_TO_THREE], copy_once, true);
}

// fault E4 E5
#[test]
fn an_owner_frozen_behind_the_end_of_a_transaction_publishes_nothing_more() {
    overtaken_at(Broker::shared(), "direct.ended", 2, &[ONE_TO_THREE, TWO_TO_ONE], copy_once, true);
}

// F11: offsets without output are fenced as well.
#[test]
fn an_owner_of_filtered_records_frozen_in_a_transaction_does_not_move_the_offsets_any_more() {
    let filter = |case: &Case| {
        let steps = "- decode: { json: {} }\n- filter: value.id < 0\n- sink: { kafka: { topic: OUT } }";
        case.flow(steps).consumer("delivery: exactly_once")
    };
    overtaken_at(Broker::shared(), "direct.sent", 2, &[TWO_TO_ONE, ONE_TO_THREE], filter, false);
}

// E33: the ids of the partitions are fenced by a start with a store as well.
#[test]
fn an_owner_frozen_in_a_transaction_is_fenced_by_a_start_with_a_store() {
    let case = Case::new("zombie-to-store", 2);
    let flow = copy_once(&case).cluster("peer_timeout: 1s");
    let mut stale = frozen_at(&case, &case.launch(&flow), "direct.sent", 1, || {
        case.kafka.produce(&case.input, &numbered(0..1_000, 2));
    });
    let with_store = case.launch(&flow.exactly_once()).recovery(&case.store());
    let mut fresh = with_store.start();
    case.wait_caught_up();
    stale.thaw_all();
    stale.expect_exit(75, DEADLINE);
    assert_eq!(fresh.exited(0), None);
    fresh.terminate_all();
    fresh.expect_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..1_000);
    case.wait_caught_up();
}

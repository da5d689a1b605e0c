//! Transactions that the brokers end by themselves or do not allow at all.

use std::sync::LazyLock;
use std::time::Duration;

use tidegate_harness::proxy::api;
use tidegate_harness::workload::messages;
use tidegate_harness::{Broker, OffsetWatch, Workload, checker};

use crate::case::{Case, DEADLINE, numbered};

/// Where transactions are ended soon after their time is over.
pub(crate) const ENDS_SOON: (&str, &str) =
    ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "200");

static BROKER: LazyLock<Broker> = LazyLock::new(|| Broker::start(&[ENDS_SOON]));

/// Freezes a cluster of one process or more with a transaction open until the broker has ended that; thaws it.
pub(crate) fn freeze_until_expired(broker: &Broker, processes: usize) {
    let Some(proxy) = broker.proxy() else { return };
    let case = Case::on(broker.kafka(), "expired", 2);
    case.make_control_topic();
    let workload = Workload { partitions: 2, records: 600, ..Workload::default() };
    let events = workload.events();
    let flow = case
        .copy()
        .exactly_once()
        .top("exactly_once: { transaction_timeout: 1s, request_timeout: 1s }")
        .cluster("peer_timeout: 60s")
        .producer_at(&proxy.address());
    let watch = OffsetWatch::start(&case.kafka, &case.group, &case.input);
    let mut cluster = case.launch(&flow).shape(processes, 2).recovery(&case.store()).start();
    case.kafka.produce(&case.input, &messages(&events[..200]));
    case.wait_caught_up();
    proxy.swallow(api::END_TRANSACTION);
    case.kafka.produce(&case.input, &messages(&events[200..400]));
    case.kafka.wait_something_open(&case.output, DEADLINE);
    cluster.freeze_all();
    proxy.heal();
    case.kafka.wait_nothing_open(&case.output, DEADLINE);
    assert_eq!(case.outputs(), 200, "what was open was aborted");
    cluster.thaw_all();
    case.kafka.produce(&case.input, &messages(&events[400..]));
    case.wait_caught_up();
    assert!(cluster.exits().iter().all(Option::is_none), "a process ended: {:?}", cluster.exits());
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);
    case.assert_copied_once(&events);
    watch.assert_only_rises();
}

// fault E10 I1 I2 I4 I8
#[test]
fn a_frozen_process_whose_transaction_has_expired_goes_on_when_it_is_thawed() {
    freeze_until_expired(&BROKER, 1);
}

// fault E10 I1 I2 I4 I8
#[test]
fn two_frozen_processes_whose_transactions_have_expired_go_on_when_they_are_thawed() {
    freeze_until_expired(&BROKER, 2);
}

// fault E15
#[test]
fn a_transactional_id_that_the_broker_denies_ends_the_start_with_78_and_names_what_to_grant() {
    let broker = Broker::start(&[
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("allow.everyone.if.no.acl.found", "true"),
    ]);
    let case = Case::on(broker.kafka(), "denied-id", 1);
    case.make_control_topic();
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    case.kafka.allow_transactions("User:somebody-else", "tidegate.");
    let launch = case.launch(&case.copy().exactly_once()).recovery(&case.store()).until_end();
    let begin = std::time::Instant::now();
    let cluster = launch.run_to_exit(78, DEADLINE);
    assert!(begin.elapsed() < Duration::from_secs(10), "it took {:?}", begin.elapsed());
    let text = cluster.stderr(0);
    let last = text.lines().last().unwrap_or_default();
    for part in [&format!("TransactionalId `tidegate.{}.", case.name), "Write", "grant"] {
        assert!(last.contains(part), "{part:?} is not in {last:?}");
    }
    assert_eq!(case.outputs(), 0);
    assert_eq!(case.kafka.group_offsets(&case.group, &case.input).len(), 0, "offsets were committed");
    case.kafka.allow_transactions("User:ANONYMOUS", "tidegate.");
    launch.run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..10);
}

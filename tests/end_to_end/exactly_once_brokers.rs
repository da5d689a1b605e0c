//! Exactly once while brokers are frozen, bounced and killed, with a transaction open, and their coordinators move.

use std::time::Duration;

use tidegate_harness::proxy::api;
use tidegate_harness::workload::messages;
use tidegate_harness::{Broker, BrokerCluster, Cluster, OffsetWatch, Proxy, Workload, wait};

use crate::case::{Case, DEADLINE};

/// A client notices soon that an answer does not come, and a transaction lives longer than a broker is away.
pub(crate) const IMPATIENT: &str = "extra: { socket.timeout.ms: 1000 }";

/// A copy on two processes that write by way of these proxies, with the first 500 records through.
fn start_copying(case: &Case, proxies: &[Proxy], events: &[tidegate_harness::Event]) -> Cluster {
    case.make_control_topic();
    let addresses: Vec<String> = proxies.iter().map(Proxy::address).collect();
    let flow = case
        .copy()
        .exactly_once()
        .top("exactly_once: { transaction_timeout: 20s }")
        .producer(IMPATIENT)
        .producer_at(&addresses.join(","));
    let mut cluster = case.launch(&flow).shape(2, 1).recovery(&case.store()).start();
    case.kafka.produce(&case.input, &messages(&events[..500]));
    wait_recovered(case, &mut cluster);
    cluster
}

/// Writes a part, and returns when its transaction is open in the output and its end is held back by the proxies.
fn leave_open(case: &Case, proxies: &[Proxy], part: &[tidegate_harness::Event]) {
    for proxy in proxies {
        proxy.swallow(api::END_TRANSACTION);
    }
    case.kafka.produce(&case.input, &messages(part));
    case.kafka.wait_something_open(&case.output, DEADLINE);
}

/// The flow gets over it by itself: everything is published, nothing is left open, and no process has ended.
fn wait_recovered(case: &Case, cluster: &mut Cluster) {
    case.wait_caught_up();
    case.kafka.wait_nothing_open(&case.output, DEADLINE);
    case.kafka.wait_nothing_open(&case.control_topic(), DEADLINE);
    assert!(cluster.exits().iter().all(Option::is_none), "a process ended: {:?}", cluster.exits());
}

/// A broker is frozen, bounced and killed, each time with a transaction open.
pub(crate) fn disturb_with_transactions_open(broker: &Broker) {
    let proxies: Vec<Proxy> = broker.proxy().into_iter().collect();
    let case = Case::on(broker.kafka(), "broken-broker", 2);
    let workload = Workload { partitions: 2, records: 2_000, ..Workload::default() };
    let events = workload.events();
    let watch = OffsetWatch::start(&case.kafka, &case.group, &case.input);
    let mut cluster = start_copying(&case, &proxies, &events);
    for (part, trouble) in events[500..].chunks(500).zip(["frozen", "bounced", "killed"]) {
        leave_open(&case, &proxies, part);
        match trouble {
            "frozen" => {
                broker.freeze();
                proxies[0].heal();
                wait::holds_for("the processes wait for the broker", Duration::from_secs(3), || {
                    cluster.exits().iter().all(Option::is_none)
                });
                broker.thaw();
            }
            "bounced" => {
                broker.stop();
                proxies[0].heal();
                broker.resume();
            }
            _ => {
                broker.kill();
                proxies[0].heal();
                broker.resume();
            }
        }
        wait_recovered(&case, &mut cluster);
    }
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);
    case.assert_copied_once(&events);
    watch.assert_only_rises();
}

// E41 fault E12 K2 K3 I1 I2 I4 I8
#[test]
fn a_broker_frozen_bounced_and_killed_with_a_transaction_open_is_waited_for_and_nothing_stays_open() {
    disturb_with_transactions_open(&Broker::start(&[]));
}

// E41 fault E12 K4 K5 I1 I2 I4 I8
#[test]
fn the_coordinators_of_transactions_and_of_groups_move_to_other_brokers_and_the_flow_goes_on() {
    let brokers = BrokerCluster::start();
    // All brokers tell a client that came by a proxy to reach the others by theirs.
    let proxies: Vec<Proxy> = (0..3).filter_map(|index| brokers.broker(index).proxy()).collect();
    let case = Case::on(brokers.kafka(), "moved-coordinator", 2);
    let workload = Workload { partitions: 2, records: 2_000, ..Workload::default() };
    let events = workload.events();
    let watch = OffsetWatch::start(&case.kafka, &case.group, &case.input);
    let mut cluster = start_copying(&case, &proxies, &events);
    for (part, whom) in events[500..].chunks(500).zip(["transactions", "groups", "output"]) {
        brokers.wait_in_sync();
        leave_open(&case, &proxies, part);
        let victim = match whom {
            "transactions" => brokers.transaction_coordinator(),
            "groups" => brokers.group_coordinator(),
            _ => brokers.leader(&case.output, 0),
        };
        brokers.broker(victim).kill();
        for proxy in &proxies {
            proxy.heal();
        }
        // While it is away: another one has to take over.
        wait_recovered(&case, &mut cluster);
        brokers.broker(victim).resume();
    }
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);
    case.assert_copied_once(&events);
    watch.assert_only_rises();
}

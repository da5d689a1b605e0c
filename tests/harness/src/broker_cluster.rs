//! Three real brokers as one cluster: each is controller and broker, everything has three copies, and two are enough.
//!
//! The topics behind the coordinators have one partition each, so that whoever leads it coordinates every group or
//! every transaction: [`BrokerCluster::transaction_coordinator`] and [`BrokerCluster::group_coordinator`].

use std::time::Duration;

use crate::broker::{Extras, Quorum, random_cluster_id};
use crate::{Broker, Kafka, ports, wait};

const BROKERS: usize = 3;
/// Three brokers start on two cores at the same time.
const START_DEADLINE: Duration = Duration::from_secs(120);

/// What a broker of a cluster has beside the usual.
const PROPERTIES: [(&str, &str); 5] = [
    ("offsets.topic.num.partitions", "1"),
    ("transaction.state.log.num.partitions", "1"),
    // A dead broker is noticed soon.
    ("broker.session.timeout.ms", "2000"),
    ("broker.heartbeat.interval.ms", "500"),
    // What is open after its time is over is ended soon.
    ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "500"),
];

/// Three brokers of this process; they end with it.
pub struct BrokerCluster {
    brokers: Vec<Broker>,
    kafka: Kafka,
}

impl BrokerCluster {
    /// Starts them and waits until all serve.
    pub fn start() -> BrokerCluster {
        let controllers: Vec<u16> = (0..BROKERS).map(|_| ports::free()).collect();
        let cluster_id = random_cluster_id();
        let prepare = |index| {
            let quorum = Quorum { index, controllers: controllers.clone(), cluster_id: cluster_id.clone() };
            Broker::prepare(Extras { properties: &PROPERTIES, quorum: Some(quorum), ..Extras::default() })
        };
        let prepare = &prepare;
        let brokers: Vec<Broker> = std::thread::scope(|scope| {
            let preparing: Vec<_> = (0..BROKERS).map(|index| scope.spawn(move || prepare(index))).collect();
            preparing
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| panic!("prepare a broker")))
                .collect()
        });
        for broker in &brokers {
            broker.resume_without_waiting();
        }
        let addresses: Vec<&str> = brokers.iter().map(|broker| broker.kafka().bootstrap()).collect();
        let kafka = Kafka::at(&addresses.join(","));
        let cluster = BrokerCluster { brokers, kafka };
        for broker in &cluster.brokers {
            broker.kafka().wait_ready(START_DEADLINE);
        }
        cluster.kafka.wait_in_sync(START_DEADLINE);
        cluster
    }

    /// The client's side of all of them.
    pub fn kafka(&self) -> &Kafka {
        &self.kafka
    }

    /// One of them, from 0.
    pub fn broker(&self, index: usize) -> &Broker {
        &self.brokers[index]
    }

    /// Which broker coordinates the transactions; known once there has been one.
    #[track_caller]
    pub fn transaction_coordinator(&self) -> usize {
        self.leader("__transaction_state", 0)
    }

    /// Which broker keeps the groups' offsets.
    #[track_caller]
    pub fn group_coordinator(&self) -> usize {
        self.leader("__consumer_offsets", 0)
    }

    /// Which broker leads a partition.
    #[track_caller]
    pub fn leader(&self, topic: &str, partition: i32) -> usize {
        wait::until(&format!("{topic}:{partition} has a leader"), START_DEADLINE, || {
            usize::try_from(self.kafka.leader(topic, partition)? - 1).ok()
        })
    }

    /// Waits until all copies of everything are in step again.
    #[track_caller]
    pub fn wait_in_sync(&self) {
        self.kafka.wait_in_sync(START_DEADLINE);
    }
}

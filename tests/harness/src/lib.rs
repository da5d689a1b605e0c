//! What Tidegate's tests stand on: a real Kafka broker, N processes of the real binary, a proxy between
//! them, a workload that is a function of a seed, an oracle that computes the results again with one
//! thread, and a checker that names the broken invariant.
//!
//! Guarantees:
//! - every process that a test starts dies with the test process, also when that one is killed;
//! - every port is on 127.0.0.1 and free when it is handed out; no two tests of a run get the same one;
//! - nothing waits by sleeping: [`wait::until`] polls a condition and names it when its deadline passes.
//!
//! A part that cannot do its work panics and says what it was doing: in a test that is the report. A
//! failing test prints the tail of what its processes wrote to stderr, and the seed of its workload.
//!
//! Assumes Linux, a JDK of at least 17 on the `PATH`, and the broker's jars, which `tests/all` fetches. With
//! `TIDEGATE_TEST_BROKERS=host:port` the shared broker is the one named there instead of one that is started.

pub mod broker;
pub mod broker_cluster;
pub mod checker;
pub mod cluster;
pub mod drain;
pub mod http;
pub mod kafka;
pub mod line;
pub mod member;
pub mod oracle;
pub mod output_watch;
pub mod ports;
pub mod process;
pub mod produce;
pub mod proxy;
pub mod scratch;
pub mod secure;
pub mod wait;
pub mod watch;
pub mod witness;
pub mod workload;

pub use broker::Broker;
pub use broker_cluster::BrokerCluster;
pub use cluster::{Cluster, Launch};
pub use drain::Received;
pub use kafka::Kafka;
pub use line::Line;
pub use member::{ConsoleConsumer, Member};
pub use oracle::{Oracle, WindowKind};
pub use output_watch::{Looks, OutputWatch};
pub use produce::{Message, Outcome, Writer};
pub use proxy::{Loss, Proxy};
pub use scratch::Scratch;
pub use secure::SecureBroker;
pub use watch::OffsetWatch;
pub use workload::{Event, Workload};

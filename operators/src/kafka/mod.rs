//! Kafka: reading partitions, committing offsets, writing records.
//!
//! What these parts promise:
//!
//! - A reader hands out every record of its partitions once, in offset order, from the offset that it was
//!   given, and says exactly where each partition goes on, also past control records, aborted transactions,
//!   compaction gaps and skipped tombstones.
//! - Nothing is skipped in silence: an offset that the broker no longer has, a damaged batch, a topic that is
//!   gone end the run or follow the policy, with a line in the log.
//! - A writer counts a record as written when all replicas in sync have it. The client never gives a record up.
//! - The group is an offset store: no client ever joins it.
//! - No call blocks a worker thread on a broker that is away; closing is done by the [`reaper`].
//!
//! What they assume: one librdkafka client per worker thread and side; all calls of a reader or writer come from
//! that thread. The only unsafe code is in the private module `raw`.

mod admin;
mod advice;
mod arena;
mod config;
mod consume;
mod control;
mod output_watch;
mod outputs;
mod produce;
mod raw;
pub mod reaper;
mod start;
mod token;
mod topics;
mod transaction;
mod wake;

pub use advice::{Advice, COMPACTED_AS_LOG, KEEPALIVE_ABOVE_RETENTION, offsets_retention};
pub use config::{
    Connection, ConsumerConfig, IsolationLevel, PREFETCH_BYTES, PRODUCER_IN_FLIGHT_BYTES,
    PRODUCER_IN_FLIGHT_RECORDS, ProducerConfig, refusal,
};
pub use consume::{KafkaReader, OutOfRange, PartitionStart, ReaderOptions, Tombstones};
pub use control::{read_markers, write_token};
pub use output_watch::{OutputWatch, OutputWatchSettings};
pub use outputs::{
    OutputFound, OutputTopic, check_control_topic, check_outputs, check_same_cluster, fit_to_topics,
};
pub(crate) use produce::timestamp_to_write;
pub use produce::{KafkaProducer, KafkaWriter};
pub use start::{
    AutoOffsetReset, From, LogBounds, Lookup, PartitionFacts, Stale, StartDecision, StartPolicy, TopicFacts,
    announce, begin_anew, decide, partitions_added,
};
pub use token::TokenSource;
pub use topics::KnownTopic;
pub use transaction::{TransactionTrouble, TransactionalProducer};

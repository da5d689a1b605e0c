//! Input partitions and the offsets at which they go on.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A Kafka partition: topic, then number. Their order is the order in which they are dealt to workers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicPartition {
    /// Name of the topic.
    pub topic: Arc<str>,
    /// Number of the partition.
    pub partition: i32,
}

impl TopicPartition {
    /// Partition `partition` of `topic`.
    pub fn new(topic: impl AsRef<str>, partition: i32) -> TopicPartition {
        TopicPartition { topic: Arc::from(topic.as_ref()), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.topic, self.partition)
    }
}

/// First offset that is **not yet** processed. Never "last offset", never one of Kafka's sentinels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NextOffset(pub i64);

impl fmt::Display for NextOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

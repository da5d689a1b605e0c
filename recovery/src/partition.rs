//! Input topics, their partitions, and the offsets at which they go on.

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

/// The id that Kafka drew when a topic was made. A topic that is deleted and made again has another one, and offsets of the
/// old one mean nothing in the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicId(pub u128);

impl fmt::Display for TopicId {
    /// As Kafka's own tools show it: base64 in its form for addresses, without padding.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        for digit in 0..22 {
            let below = 122 - 6 * digit;
            let six = if below >= 0 { self.0 >> below } else { self.0 << -below };
            write!(f, "{}", char::from(DIGITS[(six & 63) as usize]))?;
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_id_is_shown_as_kafka_shows_it() {
        // Kafka's reserved ids, as its tools print them.
        assert_eq!(TopicId(0).to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(TopicId(1).to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
        assert_eq!(TopicId(u128::MAX).to_string(), "_____________________w");
        assert_eq!(TopicId(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f).to_string(), "AAECAwQFBgcICQoLDA0ODw");
    }
}

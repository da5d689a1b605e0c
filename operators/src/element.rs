//! What travels in a stream: a value and what is known of the record that it came from.

use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::sync::Arc;
use tidegate_recovery::{EventTime, KeyHash};

/// A value that may travel between workers and processes.
pub trait Data: Clone + Send + Sync + Serialize + DeserializeOwned + 'static {}
impl<T: Clone + Send + Sync + Serialize + DeserializeOwned + 'static> Data for T {}

/// Place of an input partition in the run's list of all input partitions, sorted by (topic, partition).
///
/// It is the same on every worker of a run, and may be another one in the next run: state names the
/// partition itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartitionId(pub u32);

impl PartitionId {
    /// Of a result that is made of several records.
    pub const NONE: PartitionId = PartitionId(u32::MAX);
}

/// Header of a record: a name and an optional value; the order of a record's headers is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Name.
    pub name: Arc<str>,
    /// Value; Kafka tells absent from empty.
    #[serde(with = "crate::wire::arena_bytes::option")]
    pub value: Option<Bytes>,
}

/// The headers of a record; cheap to clone, one word when there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Headers(Option<Arc<Vec<Header>>>);

impl Headers {
    /// The given headers, in their order.
    pub fn new(headers: Vec<Header>) -> Headers {
        Headers(if headers.is_empty() { None } else { Some(Arc::new(headers)) })
    }

    /// The headers in their order.
    pub fn as_slice(&self) -> &[Header] {
        self.0.as_ref().map_or(&[], |headers| headers.as_slice())
    }
}

/// What is known of the record that an element came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Where it was read; [`PartitionId::NONE`] for a result made of several records.
    pub partition: PartitionId,
    /// Its offset there; -1 for a result made of several records.
    pub offset: i64,
    /// The record's timestamp in milliseconds; `None` when the topic keeps none.
    pub timestamp: Option<i64>,
    /// Event time; [`EventTime::MIN`] until the stream passed `event_time`.
    pub event: EventTime,
    /// The watermark that the record's own partition had just before it; [`EventTime::MIN`] until `event_time`.
    pub watermark: EventTime,
    /// The record's headers.
    pub headers: Headers,
    /// The record as it was read, for the dead letter of a later step; `None` where no later step has one, and
    /// for a result made of several records. See [`crate::record::keep_original`].
    pub original: Option<Arc<Original>>,
}

/// A record as it was read. Its bytes are slices of what the reader holds anyway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Original {
    /// Key and value.
    pub record: Record,
    /// Headers.
    pub headers: Headers,
    /// Timestamp in milliseconds.
    pub timestamp: Option<i64>,
}

/// A value on its way through the flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Element<T> {
    /// The value.
    pub value: T,
    /// Where it came from.
    pub meta: Meta,
}

/// Key and value of a Kafka record; timestamp and headers stand in the element's [`Meta`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The key; Kafka tells absent from empty.
    #[serde(with = "crate::wire::arena_bytes::option")]
    pub key: Option<Bytes>,
    /// The value; absent in a tombstone.
    #[serde(with = "crate::wire::arena_bytes::option")]
    pub value: Option<Bytes>,
}

/// A value with its key. The key is encoded and hashed once, where `key_by` stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Keyed<T> {
    /// The key's bytes (design: bytes and strings as they are, everything else canonical JSON); `None` is
    /// the null key.
    #[serde(with = "crate::wire::arena_bytes::option")]
    pub key: Option<Bytes>,
    /// Hash of the key, for routing and for look-ups.
    pub hash: KeyHash,
    /// The value.
    pub value: T,
}

//! Reading a topic from its start to the end that it has now.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::kafka::Kafka;

/// The longest silence of the broker before a drain gives up.
const SILENCE: Duration = Duration::from_secs(30);

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Its timestamp in ms.
    pub timestamp: Option<i64>,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value.
    pub value: Option<Vec<u8>>,
    /// Its headers in their order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Received {
    /// The key as text; "" for none.
    pub fn key_text(&self) -> String {
        self.key.as_deref().map(|key| String::from_utf8_lossy(key).into_owned()).unwrap_or_default()
    }

    /// The value as JSON; panics when it is none.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        let value = self.value.as_deref().unwrap_or_default();
        serde_json::from_slice(value).unwrap_or_else(|e| {
            panic!(
                "partition {} offset {}: value is not JSON ({e}): {}",
                self.partition,
                self.offset,
                String::from_utf8_lossy(value)
            )
        })
    }
}

impl Kafka {
    /// Everything that a `read_committed` reader sees in a topic, from the log start to the stable end of this
    /// moment, ordered by partition and offset.
    pub fn drain(&self, topic: &str) -> Vec<Received> {
        self.drain_with(topic, "read_committed")
    }

    /// Like [`Kafka::drain`], with open and aborted transactions.
    pub fn drain_uncommitted(&self, topic: &str) -> Vec<Received> {
        self.drain_with(topic, "read_uncommitted")
    }

    fn drain_with(&self, topic: &str, isolation: &str) -> Vec<Received> {
        let bounds =
            if isolation == "read_committed" { self.stable_bounds(topic) } else { self.log_bounds(topic) };
        let mut open: BTreeSet<i32> =
            bounds.iter().filter(|(_, (start, end))| start < end).map(|(partition, _)| *partition).collect();
        let reader = self.reader("harness-drain", isolation);
        let mut list = TopicPartitionList::new();
        for partition in &open {
            list.add_partition_offset(topic, *partition, Offset::Offset(bounds[partition].0))
                .unwrap_or_else(|e| panic!("start of {topic}:{partition}: {e}"));
        }
        reader.assign(&list).unwrap_or_else(|e| panic!("assign {topic}: {e}"));
        let mut records = Vec::new();
        let mut heard = Instant::now();
        while !open.is_empty() {
            match reader.poll(Duration::from_millis(100)) {
                Some(Ok(message)) => {
                    heard = Instant::now();
                    // The position moves over control records, so the end is judged by it below, not here.
                    if message.offset() < bounds[&message.partition()].1 {
                        records.push(received(&message));
                    }
                }
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    heard = Instant::now();
                    open.remove(&partition);
                }
                // One broker of several that is away is no matter while the others answer.
                Some(Err(KafkaError::MessageConsumption(
                    RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::AllBrokersDown,
                ))) => {}
                Some(Err(error)) => panic!("drain {topic}: {error}"),
                None => {}
            }
            close_passed(&reader, topic, &bounds, &mut open);
            assert!(heard.elapsed() < SILENCE, "drain {topic}: the broker was silent for {SILENCE:?}");
        }
        records.sort_by_key(|record| (record.partition, record.offset));
        records
    }
}

/// Closes the partitions that were read past the end that was asked for, while others still write to them.
fn close_passed(
    reader: &BaseConsumer,
    topic: &str,
    bounds: &BTreeMap<i32, (i64, i64)>,
    open: &mut BTreeSet<i32>,
) {
    let Ok(positions) = reader.position() else { return };
    for element in positions.elements_for_topic(topic) {
        if let Offset::Offset(position) = element.offset()
            && position >= bounds[&element.partition()].1
        {
            open.remove(&element.partition());
        }
    }
}

fn received(message: &rdkafka::message::BorrowedMessage<'_>) -> Received {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        headers.iter().map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect()
    });
    Received {
        partition: message.partition(),
        offset: message.offset(),
        timestamp: message.timestamp().to_millis(),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers,
    }
}

//! Writing records: plain and in transactions, to chosen partitions and with chosen timestamps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};

use crate::kafka::{Kafka, REQUEST};

/// A record to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The partition; the client's partitioner chooses when there is none.
    pub partition: Option<i32>,
    /// The key.
    pub key: Option<Vec<u8>>,
    /// The value; none is a tombstone.
    pub value: Option<Vec<u8>>,
    /// The timestamp in ms; "now" when there is none.
    pub timestamp: Option<i64>,
    /// Headers in their order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Message {
    /// A record with a key and a value.
    pub fn new(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Message {
        Message { key: Some(key.into()), value: Some(value.into()), ..Message::default() }
    }

    /// A record with a key and no value.
    pub fn tombstone(key: impl Into<Vec<u8>>) -> Message {
        Message { key: Some(key.into()), ..Message::default() }
    }

    /// To this partition.
    pub fn to(mut self, partition: i32) -> Message {
        self.partition = Some(partition);
        self
    }

    /// With this timestamp in ms.
    pub fn at(mut self, timestamp: i64) -> Message {
        self.timestamp = Some(timestamp);
        self
    }

    /// With one more header that has no value.
    pub fn null_header(mut self, name: &str) -> Message {
        self.headers.push((name.to_owned(), None));
        self
    }

    /// With one more header.
    pub fn header(mut self, name: &str, value: &[u8]) -> Message {
        self.headers.push((name.to_owned(), Some(value.to_vec())));
        self
    }
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Committed.
    Commit,
    /// Aborted.
    Abort,
}

#[derive(Clone, Default)]
struct Reports {
    failed: Arc<AtomicU64>,
}

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, _opaque: ()) {
        if result.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A producer that keeps the order in which it was given records.
pub struct Writer {
    producer: BaseProducer<Reports>,
    reports: Reports,
}

impl Writer {
    /// A plain, idempotent producer.
    pub fn new(kafka: &Kafka) -> Writer {
        Writer::with(kafka, &[])
    }

    /// A plain, idempotent producer that compresses so: `gzip`, `snappy` …
    pub fn compressing(kafka: &Kafka, codec: &str) -> Writer {
        Writer::with(kafka, &[("compression.type", codec)])
    }

    /// A producer of transactions; older ones of the same id are fenced, their open transactions aborted.
    pub fn transactional(kafka: &Kafka, id: &str) -> Writer {
        let writer = Writer::with(kafka, &[("transactional.id", id)]);
        writer
            .producer
            .init_transactions(REQUEST)
            .unwrap_or_else(|e| panic!("init transactions of {id}: {e}"));
        writer
    }

    fn with(kafka: &Kafka, further: &[(&str, &str)]) -> Writer {
        let reports = Reports::default();
        let mut config = kafka.client();
        config
            .set("enable.idempotence", "true")
            .set("partitioner", "murmur2_random")
            .set("linger.ms", "2")
            .set("batch.num.messages", "10000")
            // The topic's limit decides.
            .set("message.max.bytes", "10000000")
            .set("message.timeout.ms", "60000");
        for (name, value) in further {
            config.set(*name, *value);
        }
        let producer = config
            .create_with_context(reports.clone())
            .unwrap_or_else(|e| panic!("create a producer for {}: {e}", kafka.bootstrap()));
        Writer { producer, reports }
    }

    /// Hands one record over; it is written when [`Writer::flush`] has returned.
    pub fn send(&self, topic: &str, message: &Message) {
        loop {
            let mut record = BaseRecord::<[u8], [u8]>::to(topic);
            record.partition = message.partition;
            record.key = message.key.as_deref();
            record.payload = message.value.as_deref();
            record.timestamp = message.timestamp;
            if !message.headers.is_empty() {
                let mut headers = OwnedHeaders::new();
                for (name, value) in &message.headers {
                    headers = headers.insert(Header { key: name, value: value.as_deref() });
                }
                record.headers = Some(headers);
            }
            match self.producer.send(record) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                    self.producer.poll(Duration::from_millis(10));
                }
                Err((error, _)) => panic!("produce to {topic}: {error}"),
            }
        }
        self.producer.poll(Duration::ZERO);
    }

    /// Waits until the broker has acknowledged every record; panics when it refused one.
    pub fn flush(&self) {
        self.producer.flush(Duration::from_secs(90)).unwrap_or_else(|e| panic!("flush the producer: {e}"));
        let failed = self.reports.failed.load(Ordering::Relaxed);
        assert_eq!(failed, 0, "the broker refused {failed} records");
    }

    /// Begins a transaction; the records sent from now on are part of it.
    pub fn begin(&self) {
        self.producer.begin_transaction().unwrap_or_else(|e| panic!("begin a transaction: {e}"));
    }

    /// Ends the transaction that is open.
    pub fn end(&self, outcome: Outcome) {
        self.flush();
        let result = match outcome {
            Outcome::Commit => self.producer.commit_transaction(REQUEST),
            Outcome::Abort => self.producer.abort_transaction(REQUEST),
        };
        result.unwrap_or_else(|e| panic!("{outcome:?} a transaction: {e}"));
    }

    /// One whole transaction.
    pub fn transaction(&self, topic: &str, messages: &[Message], outcome: Outcome) {
        self.begin();
        for message in messages {
            self.send(topic, message);
        }
        self.end(outcome);
    }
}

impl Kafka {
    /// Writes records to a topic in the given order and waits for the broker's answer to each.
    pub fn produce<'a>(&self, topic: &str, messages: impl IntoIterator<Item = &'a Message>) {
        let writer = Writer::new(self);
        for message in messages {
            writer.send(topic, message);
        }
        writer.flush();
    }
}

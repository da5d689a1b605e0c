//! Readers and writers as the tests use them.

use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_harness::{Kafka, wait};
use tidegate_operators::element::{Element, Header, Headers, Meta, PartitionId, Record};
use tidegate_operators::fault::Fault;
use tidegate_operators::kafka::{
    Connection, ConsumerConfig, KafkaProducer, KafkaReader, KafkaWriter, OutOfRange, PartitionStart,
    ProducerConfig, ReaderOptions, Tombstones,
};
use tidegate_operators::sink::{Refused, SinkWriter, Ticket};
use tidegate_operators::source::{PollBudget, SourceReader};
use tidegate_recovery::{EventTime, NextOffset, TopicPartition, WorkerIndex};

pub(crate) const SOON: Duration = Duration::from_secs(30);
pub(crate) const ALL: PollBudget = PollBudget { records: 500, bytes: 4 << 20 };

pub(crate) fn connection(kafka: &Kafka, extra: &[(&str, &str)]) -> Connection {
    Connection {
        brokers: vec![kafka.bootstrap().to_owned()],
        client_id: "test".into(),
        extra: extra
            .iter()
            .chain(&[("broker.address.family", "v4"), ("reconnect.backoff.max.ms", "200")])
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

pub(crate) fn consumer(kafka: &Kafka, group: &str) -> ConsumerConfig {
    ConsumerConfig { connection: connection(kafka, &[]), group_id: group.into(), ..ConsumerConfig::default() }
}

pub(crate) fn options(kafka: &Kafka, group: &str) -> ReaderOptions {
    ReaderOptions {
        config: consumer(kafka, group),
        worker: WorkerIndex(0),
        tombstones: Tombstones::Skip,
        on_out_of_range: OutOfRange::Fail,
    }
}

pub(crate) fn starts(topic: &str, offsets: &[i64]) -> Vec<PartitionStart> {
    offsets
        .iter()
        .enumerate()
        .map(|(number, offset)| PartitionStart {
            id: PartitionId(number as u32),
            partition: TopicPartition::new(topic, number as i32),
            start: NextOffset(*offset),
            end_at_start: NextOffset(0),
            lost: 0,
        })
        .collect()
}

pub(crate) fn open(options: ReaderOptions, starts: Vec<PartitionStart>) -> KafkaReader {
    KafkaReader::open(options, starts).unwrap_or_else(|fault| panic!("open a reader: {fault}"))
}

/// Everything that was handed out so far, by partition.
#[derive(Default)]
pub(crate) struct Read {
    pub(crate) elements: BTreeMap<u32, Vec<Element<Record>>>,
}

impl Read {
    pub(crate) fn poll(&mut self, reader: &mut KafkaReader, budget: PollBudget) -> Result<usize, Fault> {
        let mut batches = Vec::new();
        reader.poll(budget, &mut batches)?;
        let mut count = 0;
        for batch in batches {
            count += batch.elements.len();
            self.elements.entry(batch.partition.0).or_default().extend(batch.elements);
        }
        Ok(count)
    }

    /// Polls until every partition's position is what is given.
    #[track_caller]
    pub(crate) fn until_positions(&mut self, reader: &mut KafkaReader, positions: &[i64]) {
        wait::until(&format!("the positions are {positions:?}"), SOON, || {
            self.poll(reader, ALL).unwrap_or_else(|fault| panic!("poll: {fault}"));
            (positions_of(reader) == positions).then_some(())
        });
    }

    pub(crate) fn values(&self, partition: u32) -> Vec<String> {
        self.elements.get(&partition).map_or(Vec::new(), |elements| {
            elements.iter().map(|element| text(element.value.value.as_deref())).collect()
        })
    }
}

/// Polls until it fails.
#[track_caller]
pub(crate) fn until_fault(reader: &mut KafkaReader) -> Fault {
    let mut read = Read::default();
    wait::until("reading ends with a fault", SOON, || read.poll(reader, ALL).err())
}

pub(crate) fn positions_of(reader: &KafkaReader) -> Vec<i64> {
    reader.partitions().iter().map(|id| reader.position(*id).0).collect()
}

pub(crate) fn text(bytes: Option<&[u8]>) -> String {
    bytes.map_or("<none>".to_owned(), |bytes| String::from_utf8_lossy(bytes).into_owned())
}

pub(crate) fn element(key: Option<&str>, value: Option<&str>, timestamp: Option<i64>) -> Element<Record> {
    let bytes = |text: &str| bytes::Bytes::copy_from_slice(text.as_bytes());
    Element {
        value: Record { key: key.map(bytes), value: value.map(bytes) },
        meta: Meta {
            partition: PartitionId(0),
            offset: 0,
            timestamp,
            event: EventTime::MIN,
            watermark: EventTime::MIN,
            headers: Headers::default(),
            original: None,
        },
    }
}

pub(crate) fn with_header(mut element: Element<Record>, name: &str, value: Option<&str>) -> Element<Record> {
    let mut headers = element.meta.headers.as_slice().to_vec();
    headers.push(Header {
        name: name.into(),
        value: value.map(|value| bytes::Bytes::copy_from_slice(value.as_bytes())),
    });
    element.meta.headers = Headers::new(headers);
    element
}

pub(crate) fn producer(kafka: &Kafka, change: impl FnOnce(&mut ProducerConfig)) -> KafkaProducer {
    let mut config =
        ProducerConfig { connection: connection(kafka, &[("linger.ms", "1")]), ..ProducerConfig::default() };
    change(&mut config);
    KafkaProducer::new(&config, WorkerIndex(0)).unwrap_or_else(|fault| panic!("make a producer: {fault}"))
}

/// A writer and what it said so far.
pub(crate) struct Writing {
    pub(crate) writer: KafkaWriter,
    pub(crate) done: Vec<Ticket>,
    pub(crate) refused: Vec<Refused>,
}

impl Writing {
    pub(crate) fn new(producer: &KafkaProducer, topic: &str) -> Writing {
        let writer = producer.writer(topic).unwrap_or_else(|fault| panic!("make a writer: {fault}"));
        Writing { writer, done: Vec::new(), refused: Vec::new() }
    }

    pub(crate) fn look(&mut self) -> Result<(), Fault> {
        self.writer.acknowledged(&mut self.done, &mut self.refused)
    }

    /// Submits all, waiting for room, as one ticket.
    #[track_caller]
    pub(crate) fn submit_all(&mut self, ticket: u64, elements: &[Element<Record>]) {
        let mut rest = elements;
        wait::until("all elements are taken", SOON, || {
            let taken = self.writer.submit(Ticket(ticket), rest, false).unwrap_or_else(|f| panic!("{f}"));
            rest = &rest[taken..];
            self.look().unwrap_or_else(|fault| panic!("{fault}"));
            rest.is_empty().then_some(())
        });
    }

    #[track_caller]
    pub(crate) fn until_done(&mut self, tickets: &[u64]) {
        wait::until(&format!("tickets {tickets:?} are acknowledged"), SOON, || {
            self.look().unwrap_or_else(|fault| panic!("{fault}"));
            let mut done: Vec<u64> = self.done.iter().map(|ticket| ticket.0).collect();
            done.sort_unstable();
            (done == tickets).then_some(())
        });
    }

    #[track_caller]
    pub(crate) fn until_fault(&mut self) -> Fault {
        wait::until("writing ends with a fault", SOON, || self.look().err())
    }
}

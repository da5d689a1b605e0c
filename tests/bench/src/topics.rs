//! The topics of a benchmark: the one that is read, filled once, and one for the output of each run.

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::{Message as _, Offset, TopicPartitionList};
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_harness::Kafka;
use tidegate_harness::kafka::unique;

use crate::error::{Error, Result};
use crate::librdkafka::Producer;
use crate::workload::{WindowTotals, Workload};

/// Records carry old timestamps and must stay; what is deleted should be gone at once, or many rounds fill the disk.
const SETTINGS: [(&str, &str); 3] =
    [("retention.ms", "-1"), ("file.delete.delay.ms", "1000"), ("segment.bytes", "268435456")];

/// A topic that is deleted with this.
pub(crate) struct Topic {
    kafka: Kafka,
    name: String,
    partitions: i32,
}

impl Topic {
    /// A new, empty topic.
    pub(crate) fn new(kafka: &Kafka, base: &str, partitions: i32) -> Topic {
        let name = unique(&format!("bench-{base}"));
        kafka.create_topic_with(&name, partitions, &SETTINGS);
        Topic { kafka: kafka.clone(), name, partitions }
    }

    /// A new topic that keeps only the newest records, for output that nobody reads.
    pub(crate) fn passing(kafka: &Kafka, base: &str, partitions: i32) -> Topic {
        let name = unique(&format!("bench-{base}"));
        let settings = [
            ("segment.bytes", "16777216"),
            ("retention.bytes", "67108864"),
            ("file.delete.delay.ms", "1000"),
        ];
        kafka.create_topic_with(&name, partitions, &settings);
        Topic { kafka: kafka.clone(), name, partitions }
    }

    /// A new topic with all records of `workload`.
    pub(crate) fn filled(kafka: &Kafka, workload: &Workload) -> Result<Topic> {
        let topic = Topic::new(kafka, "in", workload.partitions);
        let settings = [
            ("bootstrap.servers", kafka.bootstrap()),
            ("broker.address.family", "v4"),
            ("enable.idempotence", "true"),
            ("linger.ms", "20"),
        ];
        let mut producer = Producer::new(&settings, &topic.name)?;
        let (mut key, mut value) = (String::new(), Vec::new());
        for order in workload.orders() {
            order.write_key(&mut key);
            order.write_value(&mut value);
            producer.send(Some(order.partition), Some(key.as_bytes()), Some(&value), order.at_ms)?;
            if order.number % 1_000 == 0 {
                producer.serve(0);
            }
        }
        producer.finish()?;
        topic.expect_records(workload.records)?;
        Ok(topic)
    }

    /// The name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Checks how many records the topic has.
    pub(crate) fn expect_records(&self, expected: u64) -> Result<()> {
        let spanned: i64 = self.kafka.log_bounds(&self.name).values().map(|(start, end)| end - start).sum();
        let mut got = spanned.unsigned_abs();
        if got > expected {
            // Transactions leave records of their own in the log.
            got = 0;
            self.read(|_| {
                got += 1;
                Ok(())
            })?;
        }
        Error::expect(format!("records in {}", self.name), expected, got)
    }

    /// Reads the topic's window results and checks their number and the sum of their counts.
    pub(crate) fn expect_windows(&self, expected: WindowTotals) -> Result<()> {
        self.expect_records(expected.results)?;
        let mut counted = 0;
        self.read(|value| {
            let result: serde_json::Value =
                serde_json::from_slice(value).map_err(|e| Error::system("read a window's result", e))?;
            counted +=
                result["orders"].as_u64().ok_or_else(|| Error::system("read a window's result", &result))?;
            Ok(())
        })?;
        Error::expect(format!("records counted by the windows in {}", self.name), expected.records, counted)
    }

    /// A consumer that is ready for the first record; make it before whatever writes it is started.
    pub(crate) fn first_record(&self) -> Result<FirstRecord> {
        let consumer = self.consumer(false)?;
        // Connects and fetches, so that the record is seen at once when it comes.
        match consumer.poll(Duration::from_millis(500)) {
            None => Ok(FirstRecord(consumer)),
            Some(_) => Err(Error::system("wait for the first record", "the topic is not empty")),
        }
    }

    fn read(&self, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        const QUIET: Duration = Duration::from_secs(30);
        let consumer = self.consumer(true)?;
        // Each partition says when its end is reached, also behind what transactions leave in the log.
        let mut open: BTreeSet<i32> = (0..self.partitions).collect();
        while !open.is_empty() {
            match consumer.poll(QUIET) {
                Some(Ok(record)) => each(record.payload().unwrap_or_default())?,
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    open.remove(&partition);
                }
                Some(Err(e)) => return Err(Error::system("read the results", e)),
                None => return Err(Error::system("read the results", "nothing came")),
            }
        }
        Ok(())
    }

    /// `ends` makes it tell where the partitions end.
    fn consumer(&self, ends: bool) -> Result<BaseConsumer> {
        let consumer: BaseConsumer = self
            .kafka
            .client()
            .set("group.id", "tidegate-bench-check")
            .set("enable.auto.commit", "false")
            .set("fetch.wait.max.ms", "5")
            .set("enable.partition.eof", if ends { "true" } else { "false" })
            .create()
            .map_err(|e| Error::system("create a consumer", e))?;
        let mut list = TopicPartitionList::new();
        for partition in 0..self.partitions {
            list.add_partition_offset(&self.name, partition, Offset::Beginning)
                .map_err(|e| Error::system("assign partitions", e))?;
        }
        consumer.assign(&list).map_err(|e| Error::system("assign partitions", e))?;
        Ok(consumer)
    }
}

/// Waits for the first record of a topic.
pub(crate) struct FirstRecord(BaseConsumer);

impl FirstRecord {
    /// Returns when it has come.
    pub(crate) fn wait(&self, deadline: Duration) -> Result<()> {
        match self.0.poll(deadline) {
            Some(Ok(_)) => Ok(()),
            Some(Err(e)) => Err(Error::system("wait for the first record", e)),
            None => Err(Error::system("wait for the first record", format!("none within {deadline:?}"))),
        }
    }
}

impl Drop for Topic {
    fn drop(&mut self) {
        self.kafka.delete_topic(&self.name);
    }
}

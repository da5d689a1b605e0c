//! The demo's input and its check: orders that are produced at a pace, their recount, and the totals read back.

use super::DemoError;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Orders and revenue in cents, per customer and start of the minute.
pub(super) type Recount = BTreeMap<(String, i64), (i64, i64)>;

const CUSTOMERS: u64 = 200;
const FIRST_EVENT_MS: i64 = 1_750_000_020_000;
const MINUTE_MS: i64 = 60_000;

/// Produces the orders at an even pace and recounts them on the side.
pub(super) struct Orders {
    producer: BaseProducer,
    partitions: i32,
    total: u64,
    produced: u64,
    began: Instant,
    lasts: Duration,
    recount: Recount,
}

impl Orders {
    pub(super) fn begin(
        servers: &str,
        partitions: i32,
        total: u64,
        lasts: Duration,
    ) -> Result<Orders, DemoError> {
        let producer = ClientConfig::new()
            .set("bootstrap.servers", servers)
            .set("broker.address.family", "v4")
            .set("linger.ms", "20")
            .create()?;
        Ok(Orders {
            producer,
            partitions,
            total,
            produced: 0,
            began: Instant::now(),
            lasts,
            recount: Recount::new(),
        })
    }

    pub(super) fn produced(&self) -> u64 {
        self.produced
    }

    pub(super) fn finished(&self) -> bool {
        self.produced == self.total
    }

    pub(super) fn recount(&self) -> &Recount {
        &self.recount
    }

    /// Produces what is due by now.
    pub(super) fn produce_due(&mut self) -> Result<(), DemoError> {
        let share = (self.began.elapsed().as_secs_f64() / self.lasts.as_secs_f64()).min(1.0);
        let due = (self.total as f64 * share) as u64;
        while self.produced < due {
            self.produce_next()?;
        }
        self.producer.poll(Duration::ZERO);
        Ok(())
    }

    fn produce_next(&mut self) -> Result<(), DemoError> {
        let number = self.produced;
        // A fixed scramble: customers come in no order, and an order is up to a second out of order.
        let scrambled = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        let customer = format!("customer-{:03}", scrambled % CUSTOMERS);
        let at_ms = FIRST_EVENT_MS + (number as i64) * 12 - (scrambled % 1000) as i64;
        let cents = 100 + (scrambled % 9_900) as i64;
        let value =
            format!("{{\"order\":{number},\"customer\":\"{customer}\",\"at_ms\":{at_ms},\"cents\":{cents}}}");
        let key = number.to_string();
        let partition = (number % self.partitions as u64) as i32;
        let mut record = BaseRecord::to("orders").key(&key).payload(&value).partition(partition);
        while let Err((error, refused)) = self.producer.send(record) {
            if !matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)) {
                return Err(error.into());
            }
            self.producer.poll(Duration::from_millis(10));
            record = refused;
        }
        let window = at_ms.div_euclid(MINUTE_MS) * MINUTE_MS;
        let total = self.recount.entry((customer, window)).or_default();
        total.0 += 1;
        total.1 += cents;
        self.produced += 1;
        Ok(())
    }

    /// Waits until the broker has everything.
    pub(super) fn flush(&self) -> Result<(), DemoError> {
        Ok(self.producer.flush(Duration::from_secs(10))?)
    }
}

/// The flow's output, read back from its topic.
pub(super) struct Totals {
    windows: BTreeMap<(String, i64), Vec<(i64, i64)>>,
}

/// What a comparison found.
pub(super) struct Verdict {
    /// Windows that the recount has and the output has not.
    pub(super) lost: usize,
    /// Windows whose figures differ, or that the recount does not know.
    pub(super) wrong: usize,
    /// One of them.
    pub(super) example: Option<String>,
}

impl Totals {
    /// Reads the topic from its start to its present end.
    pub(super) fn read(servers: &str, topic: &str, partitions: i32) -> Result<Totals, DemoError> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", servers)
            .set("broker.address.family", "v4")
            .set("group.id", "demo-reader")
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .create()?;
        let mut assignment = TopicPartitionList::new();
        for partition in 0..partitions {
            assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
        }
        consumer.assign(&assignment)?;
        let mut windows: BTreeMap<(String, i64), Vec<(i64, i64)>> = BTreeMap::new();
        let mut ended = std::collections::BTreeSet::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        while ended.len() < partitions as usize {
            if Instant::now() > deadline {
                return Err(DemoError::Wrong(format!("topic {topic} could not be read to its end")));
            }
            match consumer.poll(Duration::from_millis(100)) {
                None => {}
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    ended.insert(partition);
                }
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(message)) => {
                    let key = String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned();
                    let value: serde_json::Value =
                        serde_json::from_slice(message.payload().unwrap_or_default()).map_err(|error| {
                            DemoError::Wrong(format!("a result for {key} is not JSON: {error}"))
                        })?;
                    let number = |name: &str| {
                        value[name].as_i64().ok_or_else(|| {
                            DemoError::Wrong(format!("a result for {key} has no integer {name}: {value}"))
                        })
                    };
                    windows
                        .entry((key.clone(), number("window_start")?))
                        .or_default()
                        .push((number("orders")?, number("revenue")?));
                }
            }
        }
        Ok(Totals { windows })
    }

    /// Distinct windows.
    pub(super) fn windows(&self) -> usize {
        self.windows.len()
    }

    /// Results that came again.
    pub(super) fn repeated(&self) -> usize {
        self.windows.values().map(|results| results.len() - 1).sum()
    }

    /// Every window of the recount must be there, and each of its results must be the recount's.
    pub(super) fn compare(&self, recount: &Recount) -> Verdict {
        let mut verdict = Verdict { lost: 0, wrong: 0, example: None };
        for (window, expected) in recount {
            match self.windows.get(window) {
                None => {
                    verdict.lost += 1;
                    verdict.example.get_or_insert(format!("{window:?} is missing, expected {expected:?}"));
                }
                Some(results) if results.iter().any(|result| result != expected) => {
                    verdict.wrong += 1;
                    verdict
                        .example
                        .get_or_insert(format!("{window:?} is {results:?}, expected {expected:?}"));
                }
                Some(_) => {}
            }
        }
        for window in self.windows.keys().filter(|window| !recount.contains_key(*window)) {
            verdict.wrong += 1;
            verdict.example.get_or_insert(format!("{window:?} has no order"));
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(results: &[(&str, i64, i64, i64)]) -> Totals {
        let mut windows: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (customer, window, orders, cents) in results {
            windows.entry(((*customer).to_owned(), *window)).or_default().push((*orders, *cents));
        }
        Totals { windows }
    }

    #[test]
    fn a_single_figure_that_is_off_is_found() {
        let recount = Recount::from([(("a".into(), 0), (2, 30)), (("b".into(), 0), (1, 5))]);
        let right = totals(&[("a", 0, 2, 30), ("b", 0, 1, 5), ("a", 0, 2, 30)]);
        let verdict = right.compare(&recount);
        assert_eq!((verdict.lost, verdict.wrong, right.repeated()), (0, 0, 1));
        for (bad, lost, wrong) in [
            (totals(&[("a", 0, 2, 30)]), 1, 0),
            (totals(&[("a", 0, 2, 31), ("b", 0, 1, 5)]), 0, 1),
            (totals(&[("a", 0, 2, 30), ("a", 0, 1, 30), ("b", 0, 1, 5)]), 0, 1),
            (totals(&[("a", 0, 2, 30), ("b", 0, 1, 5), ("c", 0, 1, 1)]), 0, 1),
        ] {
            let verdict = bad.compare(&recount);
            assert_eq!((verdict.lost, verdict.wrong), (lost, wrong));
            assert!(verdict.example.is_some());
        }
    }
}

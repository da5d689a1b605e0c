//! Counters and gauges of a process, in base units, with bounded labels (steps and input partitions only).
//!
//! An operator takes its handles when it is built and adds once per batch, never per record.

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_recovery::{EventTime, StepId, TopicPartition};

/// A gauge of seconds or of another real number.
pub type RealGauge = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    step: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LetterLabels {
    step: String,
    topic: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PartitionLabels {
    topic: String,
    partition: i32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerLabels {
    worker: u32,
}

/// The counters of one step; clones count together.
#[derive(Clone, Debug, Default)]
pub struct StepMetrics {
    /// Records that came in.
    pub received: Counter,
    /// Records, results or writes that went out.
    pub emitted: Counter,
    /// Records refused because they were late.
    pub late: Counter,
    /// Records dropped under `on_error: drop`, or with an event time too far ahead.
    pub dropped: Counter,
    /// Records whose event time was too far ahead of the wall clock.
    pub ahead: Counter,
    /// Records that a destination refused for ever.
    pub refused: Counter,
    /// Rows of state that the step keeps in this process.
    pub state_rows: Gauge,
    letters: Letters,
}

/// Counters of one step; clones are the same.
type ByTopic = Arc<Mutex<BTreeMap<Arc<str>, Counter>>>;

/// The dead letters of one step, by topic.
#[derive(Clone, Debug, Default)]
struct Letters {
    step: String,
    all: Family<LetterLabels, Counter>,
    own: ByTopic,
}

impl StepMetrics {
    /// Records that went to this topic for dead letters.
    pub fn dead_letters_to(&self, topic: &Arc<str>) -> Counter {
        let Letters { step, all, own } = &self.letters;
        let new = || {
            let labels = LetterLabels { step: step.clone(), topic: topic.to_string() };
            all.get_or_create(&labels).clone()
        };
        let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
        own.entry(topic.clone()).or_insert_with(new).clone()
    }

    /// Records that went to each topic for dead letters.
    pub fn dead_letters(&self) -> BTreeMap<Arc<str>, u64> {
        let own = self.letters.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.iter().map(|(topic, written)| (topic.clone(), written.get())).collect()
    }
}

/// The figures of one input partition; clones show the same.
#[derive(Clone, Debug, Default)]
pub struct PartitionMetrics {
    /// Records read.
    pub records: Counter,
    /// Bytes of keys, values and headers read.
    pub bytes: Counter,
    /// First offset not yet read.
    pub position: Gauge,
    /// First offset not yet committed.
    pub committed: Gauge,
    /// Records between what is committed and the end of the log.
    pub lag: Gauge,
    /// Offsets that were never read, because the broker did not have them any more.
    pub lost: Counter,
    /// How long the partition has been waiting for the end of an open transaction.
    pub open_transaction_seconds: RealGauge,
    /// Offset commits that the broker took.
    pub commits: Counter,
    /// Offset commits that failed.
    pub commit_failures: Counter,
}

/// The figures of one worker thread; clones show the same.
#[derive(Clone, Debug, Default)]
pub struct WorkerMetrics {
    /// Bytes read and not yet through the flow.
    pub in_flight_bytes: Gauge,
    /// Records read and not yet through the flow.
    pub in_flight_records: Gauge,
    /// The epoch hand of this worker.
    pub epoch: Gauge,
}

/// All figures of a process.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    received: Family<StepLabels, Counter>,
    emitted: Family<StepLabels, Counter>,
    late: Family<StepLabels, Counter>,
    dropped: Family<StepLabels, Counter>,
    ahead: Family<StepLabels, Counter>,
    refused: Family<StepLabels, Counter>,
    state_rows: Family<StepLabels, Gauge>,
    letters: Family<LetterLabels, Counter>,
    letters_of: Mutex<BTreeMap<StepId, ByTopic>>,
    records: Family<PartitionLabels, Counter>,
    bytes: Family<PartitionLabels, Counter>,
    position: Family<PartitionLabels, Gauge>,
    committed: Family<PartitionLabels, Gauge>,
    lag: Family<PartitionLabels, Gauge>,
    watermark: Family<PartitionLabels, RealGauge>,
    lost: Family<PartitionLabels, Counter>,
    open_transaction: Family<PartitionLabels, RealGauge>,
    commits: Family<PartitionLabels, Counter>,
    commit_failures: Family<PartitionLabels, Counter>,
    in_flight_bytes: Family<WorkerLabels, Gauge>,
    in_flight_records: Family<WorkerLabels, Gauge>,
    epoch: Family<WorkerLabels, Gauge>,
    /// Partitions that were added to input topics since the start, and are read by nobody before the next one.
    pub partitions_added: Gauge,
    /// The newest epoch that is durable.
    pub durable_epoch: Gauge,
    /// Newest epoch whose output every process has published; only where output goes by way of the store.
    pub published_epoch: Gauge,
    /// How long a worker thread was with the publication of exactly-once output: it hands over and takes news, and never
    /// waits for a transaction.
    pub publication_wait: Histogram,
    /// The number of the newest commit record.
    pub record_number: Gauge,
    /// The generation.
    pub generation: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

impl Metrics {
    /// All figures at zero.
    pub fn new() -> Metrics {
        let mut page = Page(Registry::with_prefix("tidegate"));
        Metrics {
            received: page.shows("step_received", "Records that came into a step"),
            emitted: page.shows("step_emitted", "Records that a step emitted"),
            late: page.shows("step_late", "Records that a step refused as late"),
            dropped: page.shows("step_dropped", "Records that a step dropped"),
            ahead: page.shows("step_ahead", "Records with an event time too far ahead of the wall clock"),
            refused: page.shows("sink_refused", "Records that a destination refused for ever"),
            state_rows: page
                .shows("step_state_rows", "Rows of state that a step keeps: keys, or keys of open windows"),
            letters: page.shows("step_dead_letters", "Records that a step gave to a topic for dead letters"),
            letters_of: Mutex::default(),
            records: page.shows("records_read", "Records read from a partition"),
            bytes: page.shows_in(Unit::Bytes, "read", "Bytes read from a partition"),
            position: page.shows("position", "First offset not yet read"),
            committed: page.shows("committed", "First offset not yet committed"),
            lag: page.shows("lag", "Records between the committed offset and the log end"),
            watermark: page.shows_in(
                Unit::Seconds,
                "watermark",
                "Watermark of a partition since the Unix epoch",
            ),
            lost: page.shows(
                "lost_offsets",
                "Offsets that were never read because the broker did not have them any more",
            ),
            open_transaction: page.shows_in(
                Unit::Seconds,
                "open_transaction",
                "How long a partition has been waiting for the end of an open transaction",
            ),
            commits: page.shows("commits", "Offset commits that the broker took"),
            commit_failures: page.shows("commit_failures", "Offset commits that failed"),
            in_flight_bytes: page.shows_in(
                Unit::Bytes,
                "in_flight",
                "Bytes read and not yet through the flow",
            ),
            in_flight_records: page.shows("in_flight_records", "Records read and not yet through the flow"),
            epoch: page.shows("epoch", "Epoch hand of a worker"),
            partitions_added: page.shows(
                "partitions_added",
                "Partitions added to input topics since the start, not read before the next",
            ),
            durable_epoch: page.shows("durable_epoch", "Newest durable epoch"),
            published_epoch: page.shows(
                "published_epoch",
                "Newest epoch whose output every process has published (exactly once with a store)",
            ),
            publication_wait: page.shows_times(
                "publication_wait",
                "How long a worker thread was with the publication of exactly-once output",
            ),
            record_number: page.shows("record_number", "Number of the newest commit record"),
            generation: page.shows("generation", "Generation of the cluster"),
            registry: Mutex::new(page.0),
        }
    }

    /// The counters of a step.
    pub fn step(&self, step: &StepId) -> StepMetrics {
        let labels = StepLabels { step: step.to_string() };
        StepMetrics {
            received: self.received.get_or_create(&labels).clone(),
            emitted: self.emitted.get_or_create(&labels).clone(),
            late: self.late.get_or_create(&labels).clone(),
            dropped: self.dropped.get_or_create(&labels).clone(),
            ahead: self.ahead.get_or_create(&labels).clone(),
            refused: self.refused.get_or_create(&labels).clone(),
            state_rows: self.state_rows.get_or_create(&labels).clone(),
            letters: Letters {
                all: self.letters.clone(),
                own: self
                    .letters_of
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .entry(step.clone())
                    .or_default()
                    .clone(),
                step: labels.step,
            },
        }
    }

    /// The figures of an input partition.
    pub fn partition(&self, partition: &TopicPartition) -> PartitionMetrics {
        let labels = PartitionLabels { topic: partition.topic.to_string(), partition: partition.partition };
        PartitionMetrics {
            records: self.records.get_or_create(&labels).clone(),
            bytes: self.bytes.get_or_create(&labels).clone(),
            position: self.position.get_or_create(&labels).clone(),
            committed: self.committed.get_or_create(&labels).clone(),
            lag: self.lag.get_or_create(&labels).clone(),
            lost: self.lost.get_or_create(&labels).clone(),
            open_transaction_seconds: self.open_transaction.get_or_create(&labels).clone(),
            commits: self.commits.get_or_create(&labels).clone(),
            commit_failures: self.commit_failures.get_or_create(&labels).clone(),
        }
    }

    /// The figures of a worker thread.
    pub fn worker(&self, worker: u32) -> WorkerMetrics {
        let labels = WorkerLabels { worker };
        WorkerMetrics {
            in_flight_bytes: self.in_flight_bytes.get_or_create(&labels).clone(),
            in_flight_records: self.in_flight_records.get_or_create(&labels).clone(),
            epoch: self.epoch.get_or_create(&labels).clone(),
        }
    }

    /// Shows the watermark of an input partition. A partition that never had one is not on the page: it is not at 1970.
    pub fn watermark(&self, partition: &TopicPartition, watermark: EventTime) {
        let labels = PartitionLabels { topic: partition.topic.to_string(), partition: partition.partition };
        self.watermark.get_or_create(&labels).set(watermark.0 as f64 / 1000.0);
    }

    /// Registers further figures of the process.
    pub fn register_with(&self, register: impl FnOnce(&mut Registry)) {
        register(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// All figures in the OpenMetrics text format.
    pub fn encode(&self) -> String {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut page = String::new();
        text::encode(&mut page, &registry).expect("writing to a string does not fail");
        page
    }
}

/// The page that is being put together.
struct Page(Registry);

impl Page {
    /// A figure at zero that the page shows.
    fn shows<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        let figure = M::default();
        self.0.register(name, help, figure.clone());
        figure
    }

    /// The same with its unit behind its name.
    /// A histogram of short times.
    fn shows_times(&mut self, name: &str, help: &str) -> Histogram {
        let histogram = Histogram::new([0.000_1, 0.001, 0.005, 0.02, 0.1, 1.0]);
        self.0.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        histogram
    }

    fn shows_in<M: Metric + Clone + Default>(&mut self, unit: Unit, name: &str, help: &str) -> M {
        let figure = M::default();
        self.0.register_with_unit(name, help, unit, figure.clone());
        figure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_steps_and_partitions_are_on_the_page() {
        let metrics = Metrics::new();
        metrics.step(&StepId::new("per-minute")).late.inc_by(3);
        metrics.partition(&TopicPartition::new("orders", 2)).lag.set(17);
        let page = metrics.encode();
        assert!(page.contains("tidegate_step_late_total{step=\"per-minute\"} 3"), "{page}");
        assert!(page.contains("tidegate_lag{topic=\"orders\",partition=\"2\"} 17"), "{page}");
    }

    #[test]
    fn a_partition_without_a_watermark_shows_none() {
        let metrics = Metrics::new();
        let partition = TopicPartition::new("orders", 2);
        metrics.partition(&partition);
        let sample = "tidegate_watermark_seconds{";
        assert!(!metrics.encode().contains(sample), "{}", metrics.encode());
        metrics.watermark(&partition, EventTime(1_500));
        let expected = format!("{sample}topic=\"orders\",partition=\"2\"}} 1.5");
        assert!(metrics.encode().contains(&expected), "{}", metrics.encode());
    }
}

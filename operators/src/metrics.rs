//! Counters and gauges of a process, in base units, with bounded labels (steps and input partitions only).
//!
//! An operator takes its handles when it is built and adds once per batch, never per record.

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use tidegate_recovery::{StepId, TopicPartition};

/// A gauge of seconds or of another real number.
pub type RealGauge = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    step: String,
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
    /// The partition's watermark, in seconds since the Unix epoch.
    pub watermark_seconds: RealGauge,
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
    records: Family<PartitionLabels, Counter>,
    bytes: Family<PartitionLabels, Counter>,
    position: Family<PartitionLabels, Gauge>,
    committed: Family<PartitionLabels, Gauge>,
    lag: Family<PartitionLabels, Gauge>,
    watermark: Family<PartitionLabels, RealGauge>,
    commits: Family<PartitionLabels, Counter>,
    commit_failures: Family<PartitionLabels, Counter>,
    in_flight_bytes: Family<WorkerLabels, Gauge>,
    in_flight_records: Family<WorkerLabels, Gauge>,
    epoch: Family<WorkerLabels, Gauge>,
    /// The newest epoch that is durable.
    pub durable_epoch: Gauge,
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
        let mut metrics = Metrics {
            registry: Mutex::new(Registry::default()),
            received: Family::default(),
            emitted: Family::default(),
            late: Family::default(),
            dropped: Family::default(),
            ahead: Family::default(),
            refused: Family::default(),
            records: Family::default(),
            bytes: Family::default(),
            position: Family::default(),
            committed: Family::default(),
            lag: Family::default(),
            watermark: Family::default(),
            commits: Family::default(),
            commit_failures: Family::default(),
            in_flight_bytes: Family::default(),
            in_flight_records: Family::default(),
            epoch: Family::default(),
            durable_epoch: Gauge::default(),
            record_number: Gauge::default(),
            generation: Gauge::default(),
        };
        let mut registry = Registry::with_prefix("tidegate");
        registry.register("step_received", "Records that came into a step", metrics.received.clone());
        registry.register("step_emitted", "Records that a step emitted", metrics.emitted.clone());
        registry.register("step_late", "Records that a step refused as late", metrics.late.clone());
        registry.register("step_dropped", "Records that a step dropped", metrics.dropped.clone());
        registry.register(
            "step_ahead",
            "Records with an event time too far ahead of the wall clock",
            metrics.ahead.clone(),
        );
        registry.register(
            "sink_refused",
            "Records that a destination refused for ever",
            metrics.refused.clone(),
        );
        registry.register("records_read", "Records read from a partition", metrics.records.clone());
        registry.register_with_unit(
            "read",
            "Bytes read from a partition",
            Unit::Bytes,
            metrics.bytes.clone(),
        );
        registry.register("position", "First offset not yet read", metrics.position.clone());
        registry.register("committed", "First offset not yet committed", metrics.committed.clone());
        registry.register("lag", "Records between the committed offset and the log end", metrics.lag.clone());
        registry.register_with_unit(
            "watermark",
            "Watermark of a partition since the Unix epoch",
            Unit::Seconds,
            metrics.watermark.clone(),
        );
        registry.register("commits", "Offset commits that the broker took", metrics.commits.clone());
        registry.register("commit_failures", "Offset commits that failed", metrics.commit_failures.clone());
        registry.register_with_unit(
            "in_flight",
            "Bytes read and not yet through the flow",
            Unit::Bytes,
            metrics.in_flight_bytes.clone(),
        );
        registry.register(
            "in_flight_records",
            "Records read and not yet through the flow",
            metrics.in_flight_records.clone(),
        );
        registry.register("epoch", "Epoch hand of a worker", metrics.epoch.clone());
        registry.register("durable_epoch", "Newest durable epoch", metrics.durable_epoch.clone());
        registry.register(
            "record_number",
            "Number of the newest commit record",
            metrics.record_number.clone(),
        );
        registry.register("generation", "Generation of the cluster", metrics.generation.clone());
        metrics.registry = Mutex::new(registry);
        metrics
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
            watermark_seconds: self.watermark.get_or_create(&labels).clone(),
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
}

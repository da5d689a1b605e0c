//! What `/status` shows: where every partition stands, what is in flight, and what is waited for and why.
//!
//! Workers update it once per epoch; whoever asks gets a copy.

use crate::element::PartitionId;
use crate::ending::Ending;
use crate::inputs::InputTable;
use crate::metrics::StepMetrics;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_recovery::{Epoch, EventTime, Generation, NextOffset, RecordNumber, StepId};

/// Where an input partition stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartitionStatus {
    /// Topic.
    pub topic: String,
    /// Number.
    pub partition: i32,
    /// The worker that reads it.
    pub worker: u32,
    /// Where the run began to read it.
    pub start: Option<NextOffset>,
    /// First offset not yet read.
    pub position: Option<NextOffset>,
    /// First offset not yet committed, as the broker last confirmed.
    pub committed: Option<NextOffset>,
    /// End of what a reader may see.
    pub readable_end: Option<NextOffset>,
    /// End of the log.
    pub log_end: Option<NextOffset>,
    /// Records between what is committed (or, before the first commit, where the run began) and the end of the
    /// log.
    pub lag: Option<i64>,
    /// The partition's watermark, where event time is set.
    pub watermark: Option<EventTime>,
    /// Why it is not read at the moment.
    pub held: Option<String>,
    /// Offsets that were never read since the run began, because the broker did not have them any more.
    pub lost: u64,
    /// Offset commits that the broker took.
    pub commits: u64,
    /// Offset commits that failed.
    pub commit_failures: u64,
}

/// What a worker waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// The oldest epoch that is held.
    pub epoch: Epoch,
    /// The step that holds it.
    pub step: StepId,
    /// Why.
    pub reason: &'static str,
}

/// Where a worker thread stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkerStatus {
    /// Its epoch hand.
    pub epoch: Epoch,
    /// Bytes read and not yet through the flow.
    pub in_flight_bytes: usize,
    /// Records read and not yet through the flow.
    pub in_flight_records: usize,
    /// The limit that keeps its sources from polling.
    pub limit: Option<&'static str>,
    /// The oldest epoch that a step holds, and why.
    pub waiting: Option<Waiting>,
    /// What is agreed about the end of the run.
    pub ending: Ending,
}

/// What a step says about the oldest epoch that it holds; the status shows the oldest of the worker.
#[derive(Clone, Debug)]
pub struct Hold(Arc<Mutex<Option<(Epoch, &'static str)>>>);

impl Hold {
    /// The step holds `epoch` because of `reason`.
    pub fn set(&self, epoch: Epoch, reason: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((epoch, reason));
    }

    /// The step holds nothing.
    pub fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn get(&self) -> Option<(Epoch, &'static str)> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a step counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StepStatus {
    /// Records that came in.
    pub received: u64,
    /// Records that went out.
    pub emitted: u64,
    /// Records refused as late.
    pub late: u64,
    /// Records dropped.
    pub dropped: u64,
    /// Records too far ahead of the wall clock.
    pub ahead: u64,
    /// Records that the destination refused.
    pub refused: u64,
    /// Dead letters, by topic.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub dead_letters: BTreeMap<Arc<str>, u64>,
}

/// All that a process knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Incarnation of the cluster.
    pub generation: Generation,
    /// The newest epoch hand of a worker of this process.
    pub epoch: Epoch,
    /// The newest durable epoch.
    pub durable_epoch: Epoch,
    /// Number of the newest commit record, where there is a store.
    pub record: Option<RecordNumber>,
    /// Bytes that the sinks of this process hold.
    pub sink_bytes: usize,
    /// Partitions that this process reads.
    pub partitions: Vec<PartitionStatus>,
    /// Its worker threads, by number.
    pub workers: BTreeMap<u32, WorkerStatus>,
    /// The steps of the flow.
    pub steps: BTreeMap<StepId, StepStatus>,
}

#[derive(Debug, Default)]
struct Board {
    status: Status,
    partitions: BTreeMap<PartitionId, PartitionStatus>,
    steps: BTreeMap<StepId, StepMetrics>,
    holds: Vec<(u32, StepId, Hold)>,
}

/// The status that the workers of a process keep together; clones show the same.
#[derive(Clone, Debug, Default)]
pub struct StatusBoard(Arc<Mutex<Board>>);

impl StatusBoard {
    /// An empty board.
    pub fn new(generation: Generation) -> StatusBoard {
        let board = StatusBoard::default();
        board.with(|board| board.status.generation = generation);
        board
    }

    fn with<R>(&self, change: impl FnOnce(&mut Board) -> R) -> R {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The counters of a step: the board shows them.
    pub fn add_step(&self, step: StepId, metrics: StepMetrics) {
        self.with(|board| board.steps.insert(step, metrics));
    }

    /// A place where a step of a worker says what it holds.
    pub fn add_hold(&self, worker: u32, step: &StepId) -> Hold {
        let hold = Hold(Arc::default());
        self.with(|board| board.holds.push((worker, step.clone(), hold.clone())));
        hold
    }

    /// Changes what is known of a partition.
    pub fn partition(&self, inputs: &InputTable, id: PartitionId, change: impl FnOnce(&mut PartitionStatus)) {
        let Some(input) = inputs.get(id) else { return };
        self.with(|board| {
            let status = board.partitions.entry(id).or_insert_with(|| PartitionStatus {
                topic: input.name.topic.to_string(),
                partition: input.name.partition,
                worker: input.owner.0,
                ..PartitionStatus::default()
            });
            change(status);
            let done = status.committed.or(status.start);
            status.lag = status.log_end.zip(done).map(|(end, done)| (end.0 - done.0).max(0));
        });
    }

    /// Changes what is known of a worker thread.
    pub fn worker(&self, worker: u32, change: impl FnOnce(&mut WorkerStatus)) {
        self.with(|board| {
            let status = board.status.workers.entry(worker).or_default();
            change(status);
            board.status.epoch = board.status.epoch.max(status.epoch);
        });
    }

    /// An epoch became durable, with this record if it has one.
    pub fn durable(&self, epoch: Epoch, record: Option<RecordNumber>) {
        self.with(|board| {
            board.status.durable_epoch = board.status.durable_epoch.max(epoch);
            board.status.record = board.status.record.max(record);
        });
    }

    /// Bytes that the sinks of this process hold.
    pub fn sink_bytes(&self, bytes: usize) {
        self.with(|board| board.status.sink_bytes = bytes);
    }

    /// A copy of everything.
    pub fn snapshot(&self) -> Status {
        self.with(|board| {
            let mut status = board.status.clone();
            status.partitions = board.partitions.values().cloned().collect();
            for (worker, step, hold) in &board.holds {
                let Some((epoch, reason)) = hold.get() else { continue };
                let waiting = &mut status.workers.entry(*worker).or_default().waiting;
                if waiting.as_ref().is_none_or(|oldest| epoch < oldest.epoch) {
                    *waiting = Some(Waiting { epoch, step: step.clone(), reason });
                }
            }
            status.steps = board
                .steps
                .iter()
                .map(|(step, metrics)| {
                    let counted = StepStatus {
                        received: metrics.received.get(),
                        emitted: metrics.emitted.get(),
                        late: metrics.late.get(),
                        dropped: metrics.dropped.get(),
                        ahead: metrics.ahead.get(),
                        refused: metrics.refused.get(),
                        dead_letters: metrics.dead_letters(),
                    };
                    (step.clone(), counted)
                })
                .collect();
            status
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_recovery::TopicPartition;

    #[test]
    fn the_oldest_hold_is_what_a_worker_waits_for() {
        let board = StatusBoard::new(Generation(1));
        let (one, two) = (board.add_hold(3, &StepId::new("one")), board.add_hold(3, &StepId::new("two")));
        let waiting = || board.snapshot().workers.get(&3).and_then(|worker| worker.waiting.clone());
        assert_eq!(waiting(), None);
        one.set(Epoch(9), "an acknowledgement");
        two.set(Epoch(8), "its frontier");
        assert_eq!(waiting().map(|waiting| waiting.step), Some(StepId::new("two")));
        two.clear();
        assert_eq!(waiting().map(|waiting| waiting.epoch), Some(Epoch(9)));
    }

    #[test]
    fn lag_counts_from_the_committed_offset() {
        // L43
        let inputs = InputTable::deal([TopicPartition::new("t", 0)], 1);
        let board = StatusBoard::new(Generation(4));
        board.partition(&inputs, PartitionId(0), |partition| {
            partition.start = Some(NextOffset(10));
            partition.position = Some(NextOffset(11));
            partition.log_end = Some(NextOffset(12));
        });
        assert_eq!(board.snapshot().partitions[0].lag, Some(2));
        board.partition(&inputs, PartitionId(0), |partition| partition.committed = Some(NextOffset(5)));
        assert_eq!(board.snapshot().partitions[0].lag, Some(7));
        let text = serde_json::to_string(&board.snapshot()).expect("plain data");
        assert!(text.contains("\"generation\":4"), "{text}");
    }
}

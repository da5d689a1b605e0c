//! The commit tracker of the process behind the dataflow's partition numbers and clock.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_operators::commit::OffsetMarks;
use tidegate_operators::element::PartitionId;
use tidegate_operators::inputs::InputTable;
use tidegate_operators::source::CommitOutcome;
use tidegate_recovery::{CommitTracker, Epoch, NextOffset, TopicPartition};

/// The tracker, as sources and the receiver of durable epochs see it.
pub(crate) struct Offsets {
    tracker: Arc<CommitTracker>,
    inputs: InputTable,
    /// The moment that the operators' clock calls zero.
    origin: Instant,
}

impl Offsets {
    pub(crate) fn new(tracker: Arc<CommitTracker>, inputs: InputTable, origin: Instant) -> Offsets {
        Offsets { tracker, inputs, origin }
    }

    fn name(&self, partition: PartitionId) -> &TopicPartition {
        self.inputs.name(partition).expect("a source marks only the partitions that it was given")
    }

    fn ids(&self, offsets: Vec<(TopicPartition, NextOffset)>) -> Vec<(PartitionId, NextOffset)> {
        offsets.into_iter().filter_map(|(name, next)| Some((self.inputs.id(&name)?, next))).collect()
    }

    fn names(&self, partitions: &[PartitionId]) -> Vec<TopicPartition> {
        partitions.iter().map(|partition| self.name(*partition).clone()).collect()
    }
}

impl OffsetMarks for Offsets {
    fn mark(&self, partition: PartitionId, epoch: Epoch, next: NextOffset) {
        self.tracker.mark(self.name(partition), epoch, next);
    }

    fn complete(&self, epoch: Epoch) {
        self.tracker.complete(epoch);
    }

    fn due(&self, partitions: &[PartitionId], now: Duration) -> Vec<(PartitionId, NextOffset)> {
        self.ids(self.tracker.due(&self.names(partitions), self.origin + now))
    }

    fn settle(&self, outcome: &CommitOutcome, now: Duration) {
        let offsets: Vec<_> =
            outcome.offsets.iter().map(|(partition, next)| (self.name(*partition).clone(), *next)).collect();
        match outcome.error {
            None => self.tracker.committed(&offsets, self.origin + now),
            Some(_) => self.tracker.failed(&offsets, self.origin + now),
        }
    }

    fn due_at_close(&self, partitions: &[PartitionId]) -> Vec<(PartitionId, NextOffset)> {
        self.ids(self.tracker.due_at_close(&self.names(partitions)))
    }
}

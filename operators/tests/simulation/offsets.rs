//! The real commit tracker behind the dataflow's partition numbers and the virtual clock.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_operators::commit::OffsetMarks;
use tidegate_operators::element::PartitionId;
use tidegate_operators::inputs::InputTable;
use tidegate_operators::source::CommitOutcome;
use tidegate_recovery::{CommitTracker, Epoch, NextOffset, TopicPartition};

pub(crate) struct Offsets {
    pub(crate) tracker: Arc<CommitTracker>,
    pub(crate) inputs: InputTable,
    pub(crate) origin: Instant,
}

impl Offsets {
    fn name(&self, partition: PartitionId) -> TopicPartition {
        self.inputs.name(partition).expect("a source marks its own partitions").clone()
    }

    fn names(&self, partitions: &[PartitionId]) -> Vec<TopicPartition> {
        partitions.iter().map(|partition| self.name(*partition)).collect()
    }

    fn ids(&self, offsets: Vec<(TopicPartition, NextOffset)>) -> Vec<(PartitionId, NextOffset)> {
        offsets.into_iter().filter_map(|(name, next)| Some((self.inputs.id(&name)?, next))).collect()
    }
}

impl OffsetMarks for Offsets {
    fn mark(&self, partition: PartitionId, epoch: Epoch, next: NextOffset) {
        self.tracker.mark(&self.name(partition), epoch, next);
    }

    fn complete(&self, epoch: Epoch) {
        self.tracker.complete(epoch);
    }

    fn due(&self, partitions: &[PartitionId], now: Duration) -> Vec<(PartitionId, NextOffset)> {
        self.ids(self.tracker.due(&self.names(partitions), self.origin + now))
    }

    fn due_at_close(&self, partitions: &[PartitionId]) -> Vec<(PartitionId, NextOffset)> {
        self.ids(self.tracker.due_at_close(&self.names(partitions)))
    }

    fn settle(&self, outcome: &CommitOutcome, now: Duration) {
        let offsets: Vec<_> = outcome.offsets.iter().map(|(id, next)| (self.name(*id), *next)).collect();
        match outcome.error {
            None => self.tracker.committed(&offsets, self.origin + now),
            Some(_) => self.tracker.failed(&offsets, self.origin + now),
        }
    }
}

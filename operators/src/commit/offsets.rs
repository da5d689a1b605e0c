//! What the dataflow needs of the process's commit tracker.

use crate::element::PartitionId;
use crate::source::CommitOutcome;
use std::time::Duration;
use tidegate_recovery::{Epoch, NextOffset};

/// The commit tracker, as sources and the receiver of durable epochs see it. One per process, shared by its
/// worker threads.
pub trait OffsetMarks: Send + Sync + 'static {
    /// After all that was read in `epoch` and before, `partition` goes on at `next`. Called before the source's
    /// hand leaves `epoch`, so that an epoch's marks are complete when its frontier has passed.
    fn mark(&self, partition: PartitionId, epoch: Epoch, next: NextOffset);

    /// `epoch` and all before it are durable.
    fn complete(&self, epoch: Epoch);

    /// What is to be committed now of these partitions. What is handed out is on its way until
    /// [`OffsetMarks::settle`].
    fn due(&self, partitions: &[PartitionId], now: Duration) -> Vec<(PartitionId, NextOffset)>;

    /// What is to be committed of these partitions at a close: everything that is complete and that the group
    /// does not have yet, whatever the backoff says.
    fn due_at_close(&self, partitions: &[PartitionId]) -> Vec<(PartitionId, NextOffset)>;

    /// The outcome of a commit. What failed stays dirty and is due again after a backoff.
    fn settle(&self, outcome: &CommitOutcome, now: Duration);
}

/// Nobody commits: for a dataflow of which only the results count.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOffsets;

impl OffsetMarks for NoOffsets {
    fn mark(&self, _: PartitionId, _: Epoch, _: NextOffset) {}

    fn complete(&self, _: Epoch) {}

    fn due(&self, _: &[PartitionId], _: Duration) -> Vec<(PartitionId, NextOffset)> {
        Vec::new()
    }

    fn due_at_close(&self, _: &[PartitionId]) -> Vec<(PartitionId, NextOffset)> {
        Vec::new()
    }

    fn settle(&self, _: &CommitOutcome, _: Duration) {}
}

//! What the dataflow needs of the recovery store.

use crate::fault::Fault;
use tidegate_recovery::{Epoch, Part, RecordNumber, RowBuffer};
use timely::scheduling::SyncActivator;

/// A process's part of a commit epoch, written and synced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenPart {
    /// The commit epoch.
    pub epoch: Epoch,
    /// `None` when the process has neither rows nor moved offsets.
    pub part: Option<Part>,
}

/// A commit epoch that is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedEpoch {
    /// The commit epoch.
    pub epoch: Epoch,
    /// The commit record's number.
    pub record: RecordNumber,
}

/// The recovery store, as the worker threads of one process see it. No call blocks: files are written by a
/// thread behind it (the simulation writes at once), and whoever waits is woken through its activator.
pub trait SnapshotIo: Send + Sync + 'static {
    /// Whom to wake when a part is written. Called once per worker thread, before anything else.
    fn wake_for_parts(&self, activator: SyncActivator);

    /// Whom to wake when a record is published. Called on process 0.
    fn wake_for_records(&self, activator: SyncActivator);

    /// The rows of one worker thread of this process for a commit epoch. Every worker thread calls this once
    /// for every commit epoch, in ascending order, also without rows; when all have, the part is written.
    fn submit(&self, epoch: Epoch, rows: RowBuffer);

    /// The parts that were written since the last call, in ascending order of epochs.
    fn written(&self) -> Result<Vec<WrittenPart>, Fault>;

    /// Publishes the record of an epoch. Called on process 0, in ascending order, one at a time.
    fn publish(&self, epoch: Epoch, parts: Vec<Part>);

    /// The records that were published since the last call.
    fn published(&self) -> Result<Vec<PublishedEpoch>, Fault>;
}

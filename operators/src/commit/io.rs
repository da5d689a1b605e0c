//! What the dataflow needs of the recovery store, and of whoever publishes output.

use crate::element::PartitionId;
use crate::fault::Fault;
use crate::sink::PartitionOutput;
use tidegate_recovery::{
    Epoch, NextOffset, OutputBuffer, Part, RecordNumber, RowBuffer, Slot, TopicPartition,
};
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

    /// The rows of one worker thread of this process for a commit epoch, and what its exactly-once sinks have to
    /// publish. Every worker thread calls this once for every commit epoch, in ascending order, also with nothing; when all
    /// have, the part is written.
    fn submit(&self, epoch: Epoch, rows: RowBuffer, output: OutputBuffer);

    /// The parts that were written since the last call, in ascending order of epochs.
    fn written(&self) -> Result<Vec<WrittenPart>, Fault>;

    /// Publishes the record of an epoch. Called on process 0, in ascending order, one at a time.
    fn publish(&self, epoch: Epoch, parts: Vec<Part>);

    /// The records that were published since the last call.
    fn published(&self) -> Result<Vec<PublishedEpoch>, Fault>;
}

/// What the publication of this process's output says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicationNews {
    /// Everything of this slot up to this epoch is published.
    Published(Slot, Epoch),
    /// These offsets of the group were committed together with it.
    Committed(Vec<(TopicPartition, NextOffset)>),
}

/// The publication of output by way of the store, as the worker threads of one process see it. No call blocks: a thread
/// behind it owns the transactional producer.
pub trait OutputIo: Send + Sync + 'static {
    /// Whom to wake when there is news. Called once, on the first worker thread.
    fn wake_with(&self, activator: SyncActivator);

    /// The slots of all processes.
    fn slots(&self) -> Vec<Slot>;

    /// This process's own.
    fn own(&self) -> Slot;

    /// A commit epoch is durable. Called for every one, in ascending order.
    fn durable(&self, epoch: Epoch);

    /// Another slot has published everything up to this epoch.
    fn peer_published(&self, slot: Slot, epoch: Epoch);

    /// No further commit epoch will come.
    fn last(&self);

    /// The news since the last call.
    fn news(&self) -> Result<Vec<PublicationNews>, Fault>;

    /// Whether nothing is left to publish, nor any offset to commit.
    fn is_settled(&self) -> bool;

    /// On process 0: commit records need not name this slot's outboxes up to this epoch any more.
    fn forget(&self, slot: Slot, epoch: Epoch);
}

/// What the publication without a store says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectNews {
    /// The group's offset of a partition was committed together with the output up to it.
    Committed(PartitionId, NextOffset),
    /// Everything of this process up to this commit epoch is published. Said for every commit epoch, in ascending order.
    Published(Epoch),
}

/// The publication of output without a store, as the worker threads of one process see it: each input partition has a
/// transaction of its own per commit epoch. No call blocks: threads behind it own the transactional producers.
pub trait DirectIo: Send + Sync + 'static {
    /// Whom to wake when there is news. Called once, on the first worker thread.
    fn wake_with(&self, activator: SyncActivator);

    /// The output of one worker thread of this process in a commit epoch, by input partition. Every worker thread calls this
    /// once for every commit epoch, in ascending order, also with nothing; when all have, it is published, together with where
    /// the partitions go on.
    fn submit(&self, epoch: Epoch, output: Vec<(PartitionId, PartitionOutput)>);

    /// The news since the last call.
    fn news(&self) -> Result<Vec<DirectNews>, Fault>;

    /// Bytes of output that was submitted and is not published.
    fn bytes(&self) -> usize;
}

//! What one process reports of a commit epoch: a [`Part`].

use crate::{Epoch, Generation, NextOffset, ProcessIndex, Slot, TopicPartition};
use serde::{Deserialize, Serialize};

/// A segment file that is written and synced.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentRef {
    /// The epoch whose changes it holds.
    pub epoch: Epoch,
    /// The generation that wrote it.
    pub generation: Generation,
    /// The process that wrote it.
    pub process: ProcessIndex,
    /// Length of the file in bytes.
    pub length: u64,
    /// Checksum of the whole file.
    pub checksum: u32,
}

/// An outbox file that is written and synced: what one process has to publish of a commit epoch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OutboxRef {
    /// The epoch whose output it holds.
    pub epoch: Epoch,
    /// The generation that wrote it.
    pub generation: Generation,
    /// The process that wrote it.
    pub process: ProcessIndex,
    /// Under whose transactional identity it is published, whoever does it.
    pub slot: Slot,
    /// Length of the file in bytes.
    pub length: u64,
    /// Checksum of the whole file.
    pub checksum: u32,
}

/// One process's part of a commit epoch. Only synced files are named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The commit epoch.
    pub epoch: Epoch,
    /// The process.
    pub process: ProcessIndex,
    /// The segment with this epoch's rows, if there were any.
    pub segment: Option<SegmentRef>,
    /// The outbox with this epoch's output, if there was any.
    pub outbox: Option<OutboxRef>,
    /// Older segments in which this process still has live rows.
    pub needs: Vec<SegmentRef>,
    /// Where each partition that this process reads goes on after the epoch, where that moved.
    pub offsets: Vec<(TopicPartition, NextOffset)>,
}

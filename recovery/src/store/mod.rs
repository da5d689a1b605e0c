//! The recovery store: what a start reads, what a commit epoch writes, and who may write it.
//!
//! - [`RecoveryStore::open`] is the start of process 0: it takes the lease, chooses the highest commit record,
//!   makes it durable and checks that the flow's steps fit. [`RecoveryStore::join`] is that of every other process.
//!   [`RecoveryStore::claim`] does the same in two halves, between which older generations can be cut off from Kafka.
//! - [`ProcessStore`] restores a process's rows and writes its part of each commit epoch.
//! - [`Publisher`], on process 0, publishes the commit record once all parts are there.
//!
//! All calls block on the disk and belong on an I/O thread. A full or failing disk is tried again with backoff
//! for `store_timeout`; a failed sync is never tried again.

mod chosen;
mod claim;
mod drive;
mod inspect;
mod needs;
mod open;
mod outbox;
mod process;
mod publisher;
mod restore;
mod retry;
mod rewrite;

pub use claim::Claim;
pub use inspect::{Damage, InspectedLease, InspectedRecord, InspectedStep, Inspection, Verification};
pub use open::{OpenOptions, Opened, RecoveryStore};
pub use process::{ProcessOptions, ProcessStore, StoreFigures};
pub use publisher::{Published, Publisher};
pub use restore::{Restoration, RestoredStep};

use crate::lease::LeaseHolder;
use crate::steps::{RecordedStep, StepTable};
use crate::{
    ClusterShape, Epoch, Generation, NextOffset, OutboxRef, RecordNumber, SegmentRef, Slot, StoreId, TopicId,
    TopicPartition,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a generation goes on from. Process 0 gets it from [`RecoveryStore::open`] and hands it to the others in the
/// handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeState {
    /// The store.
    pub store: StoreId,
    /// This generation's lease. Its run is the nonce by which the other processes know the store.
    pub lease: LeaseHolder,
    /// The commit record that was chosen; `None` in an empty store.
    pub record: Option<RecordNumber>,
    /// Its epoch; the numbering goes on with the next one.
    pub epoch: Epoch,
    /// The generation that published it.
    pub recorded_by: Option<Generation>,
    /// The shape of the cluster that published it.
    pub recorded_shape: Option<ClusterShape>,
    /// Where every partition goes on, ascending.
    pub offsets: Vec<(TopicPartition, NextOffset)>,
    /// The ids of topics whose offsets these are, where they are known; ascending by name.
    pub topics: Vec<(Arc<str>, TopicId)>,
    /// The live segments, ascending by epoch.
    pub segments: Vec<SegmentRef>,
    /// Outboxes whose publication the record does not know, ascending by epoch.
    pub outboxes: Vec<OutboxRef>,
    /// This flow's steps that keep rows; a step's place is its number.
    pub steps: Vec<RecordedStep>,
    /// Every transactional identity that an older generation may have used.
    pub slots: Vec<Slot>,
    /// Leases that are damaged, so that their slots are not known.
    pub unreadable_leases: Vec<Generation>,
}

impl ResumeState {
    /// This generation.
    pub fn generation(&self) -> Generation {
        self.lease.generation
    }

    /// Where a partition goes on.
    pub fn offset(&self, partition: &TopicPartition) -> Option<NextOffset> {
        let found = self.offsets.binary_search_by(|(other, _)| other.cmp(partition));
        found.ok().map(|at| self.offsets[at].1)
    }

    /// The id of the topic whose offsets these are, where it is known.
    pub fn topic(&self, name: &str) -> Option<TopicId> {
        self.topics.iter().find(|(topic, _)| **topic == *name).map(|(_, id)| *id)
    }

    /// This flow's steps that keep rows.
    pub fn table(&self) -> StepTable {
        StepTable::recorded(&self.steps)
    }
}

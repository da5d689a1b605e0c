//! A commit record: all that a start needs.

use super::{HEAD, Kind, check_head, nothing_after, read_sealed, seal};
use crate::names::Name;
use crate::protocol::RecordFacts;
use crate::steps::RecordedStep;
use crate::{
    ClusterShape, Epoch, FlowFingerprint, Generation, NextOffset, OutboxRef, RecordNumber, RunId, SegmentRef,
    Slot, StoreError, StoreId, TopicId, TopicPartition,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The content of `commits/<n>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CommitRecord {
    pub(crate) store: StoreId,
    pub(crate) number: RecordNumber,
    pub(crate) epoch: Epoch,
    pub(crate) generation: Generation,
    /// The run of process 0 that published it: what an unclear creation is told by.
    pub(crate) run: RunId,
    pub(crate) shape: ClusterShape,
    pub(crate) slots: Vec<Slot>,
    pub(crate) fingerprint: FlowFingerprint,
    pub(crate) steps: Vec<RecordedStep>,
    /// Ascending by partition.
    pub(crate) offsets: Vec<(TopicPartition, NextOffset)>,
    /// Every live segment, ascending.
    pub(crate) segments: Vec<SegmentRef>,
    /// Every outbox whose publication was not known, ascending; also of earlier epochs.
    pub(crate) outboxes: Vec<OutboxRef>,
    /// The ids of the topics whose offsets stand above, where the brokers told them; ascending by name.
    pub(crate) topics: Vec<(Arc<str>, TopicId)>,
}

/// Version 1 had no outboxes. Version 2 is the same with the outboxes behind it, and no topic ids.
#[derive(Deserialize)]
struct CommitRecord1 {
    store: StoreId,
    number: RecordNumber,
    epoch: Epoch,
    generation: Generation,
    run: RunId,
    shape: ClusterShape,
    slots: Vec<Slot>,
    fingerprint: FlowFingerprint,
    steps: Vec<RecordedStep>,
    offsets: Vec<(TopicPartition, NextOffset)>,
    segments: Vec<SegmentRef>,
}

impl CommitRecord1 {
    fn with(self, outboxes: Vec<OutboxRef>) -> CommitRecord {
        CommitRecord {
            store: self.store,
            number: self.number,
            epoch: self.epoch,
            generation: self.generation,
            run: self.run,
            shape: self.shape,
            slots: self.slots,
            fingerprint: self.fingerprint,
            steps: self.steps,
            offsets: self.offsets,
            segments: self.segments,
            outboxes,
            topics: Vec::new(),
        }
    }
}

impl CommitRecord {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, StoreError> {
        seal(Kind::Record, self)
    }

    /// Decodes the record that stands under `number`.
    pub(crate) fn decode(file: &str, number: RecordNumber, bytes: &[u8]) -> Result<CommitRecord, StoreError> {
        let (record, end): (CommitRecord, usize) = match check_head(file, bytes, Kind::Record)? {
            1 => {
                let (record, end): (CommitRecord1, usize) = read_sealed(file, bytes, HEAD)?;
                (record.with(Vec::new()), end)
            }
            2 => {
                let ((record, outboxes), end): ((CommitRecord1, _), usize) = read_sealed(file, bytes, HEAD)?;
                (record.with(outboxes), end)
            }
            _ => read_sealed(file, bytes, HEAD)?,
        };
        nothing_after(file, bytes, end)?;
        if record.number != number {
            let what = format!("it is record {}, under another's name", record.number);
            return Err(StoreError::damaged(file, 0, what));
        }
        Ok(record)
    }

    pub(crate) fn facts(&self) -> RecordFacts {
        let segments = self.segments.iter().map(|segment| Name::Segment(segment.into()));
        let outboxes = self.outboxes.iter().map(|outbox| Name::Outbox(outbox.into()));
        RecordFacts {
            number: self.number,
            epoch: self.epoch,
            generation: self.generation,
            files: segments.chain(outboxes).collect(),
        }
    }
}

//! A commit record: all that a start needs.

use super::{HEAD, Kind, check_head, nothing_after, read_sealed, seal};
use crate::names::Name;
use crate::protocol::RecordFacts;
use crate::steps::RecordedStep;
use crate::{
    ClusterShape, Epoch, FlowFingerprint, Generation, NextOffset, OutboxRef, RecordNumber, RunId, SegmentRef,
    Slot, StoreError, StoreId, TopicPartition,
};
use serde::{Deserialize, Serialize};

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
}

/// Version 1 had no outboxes.
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

impl From<CommitRecord1> for CommitRecord {
    fn from(record: CommitRecord1) -> CommitRecord {
        CommitRecord {
            store: record.store,
            number: record.number,
            epoch: record.epoch,
            generation: record.generation,
            run: record.run,
            shape: record.shape,
            slots: record.slots,
            fingerprint: record.fingerprint,
            steps: record.steps,
            offsets: record.offsets,
            segments: record.segments,
            outboxes: Vec::new(),
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
                (record.into(), end)
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

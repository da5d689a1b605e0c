//! A commit record: all that a start needs.

use super::{Kind, nothing_after, seal, unseal};
use crate::names::SegmentName;
use crate::protocol::RecordFacts;
use crate::steps::RecordedStep;
use crate::{
    ClusterShape, Epoch, FlowFingerprint, Generation, NextOffset, RecordNumber, RunId, SegmentRef, Slot,
    StoreError, StoreId, TopicPartition,
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
}

impl CommitRecord {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, StoreError> {
        seal(Kind::Record, self)
    }

    /// Decodes the record that stands under `number`.
    pub(crate) fn decode(file: &str, number: RecordNumber, bytes: &[u8]) -> Result<CommitRecord, StoreError> {
        let (record, end): (CommitRecord, usize) = unseal(file, bytes, Kind::Record)?;
        nothing_after(file, bytes, end)?;
        if record.number != number {
            let what = format!("it is record {}, under another's name", record.number);
            return Err(StoreError::damaged(file, 0, what));
        }
        Ok(record)
    }

    pub(crate) fn facts(&self) -> RecordFacts {
        RecordFacts {
            number: self.number,
            epoch: self.epoch,
            generation: self.generation,
            segments: self.segments.iter().map(SegmentName::from).collect(),
        }
    }
}

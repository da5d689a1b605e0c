//! An outbox: the output rows of one commit epoch and process, in the frames of a segment.

use super::builder::{Encoder, FRAME_BYTES};
use super::segment::{FrameRef, ROW_BYTES_MAX, frame_rows, read_frames};
use super::{
    HEAD, Kind, append_sealed, check_head, check_length, check_whole, head, nothing_after, read_sealed, seal,
    unseal,
};
use crate::names::{Name, PartName};
use crate::outbox::{Decision, Destination, OutputBuffer, StoredRow, decode_output};
use crate::{Epoch, Generation, OutboxRef, ProcessIndex, Slot, StoreError};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What stands in front of an outbox's frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OutboxHead {
    pub(crate) epoch: Epoch,
    pub(crate) generation: Generation,
    pub(crate) process: ProcessIndex,
    pub(crate) slot: Slot,
    /// What the rows' destination numbers mean.
    pub(crate) destinations: Vec<Destination>,
}

/// The content of a decision file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DecisionBody {
    pub(crate) epoch: Epoch,
    pub(crate) generation: Generation,
    pub(crate) process: ProcessIndex,
    pub(crate) row: u64,
    pub(crate) decision: Decision,
}

impl DecisionBody {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, StoreError> {
        seal(Kind::Decision, self)
    }

    /// Decodes the decision that stands under this name.
    pub(crate) fn decode(part: PartName, row: u64, bytes: &[u8]) -> Result<Decision, StoreError> {
        let file = Name::Decision(part, row).to_string();
        let (body, end): (DecisionBody, usize) = unseal(&file, bytes, Kind::Decision)?;
        nothing_after(&file, bytes, end)?;
        let found = PartName { epoch: body.epoch, generation: body.generation, process: body.process };
        if (found, body.row) != (part, row) {
            let what = format!("it is {}, under another's name", Name::Decision(found, body.row));
            return Err(StoreError::damaged(file, HEAD, what));
        }
        Ok(body.decision)
    }
}

/// Makes an outbox of what the worker threads have; `None` when there are no rows. Rows keep their order within a buffer.
pub(crate) fn build(
    name: PartName,
    slot: Slot,
    buffers: &[OutputBuffer],
) -> Result<Option<(Vec<u8>, OutboxRef)>, StoreError> {
    if buffers.iter().all(OutputBuffer::is_empty) {
        return Ok(None);
    }
    let mut table = OutputBuffer::new();
    let mut numbers = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        let of_buffer =
            buffer.destinations().iter().map(|known| table.destination(&known.step, &known.topic));
        let of_buffer: Option<Vec<_>> = of_buffer.collect();
        let full = || StoreError::Internal(format!("an outbox has more than {} destinations", u16::MAX));
        numbers.push(of_buffer.ok_or_else(full)?);
    }
    let PartName { epoch, generation, process } = name;
    let destinations = table.destinations().to_vec();
    let mut bytes = head(Kind::Outbox).to_vec();
    append_sealed(&mut bytes, &OutboxHead { epoch, generation, process, slot, destinations })?;
    let mut encoder = Encoder::new(bytes);
    let mut rows = Vec::new();
    for (buffer, numbers) in buffers.iter().zip(&numbers) {
        for mut rest in buffer.chunks() {
            while !rest.is_empty() {
                let Some((row, tail)) = decode_output(rest) else {
                    return Err(StoreError::Internal("a buffer of output holds something else".to_owned()));
                };
                let Some(number) = numbers.get(usize::from(row.destination.0)) else {
                    let what = format!("an output row names the destination {}", row.destination.0);
                    return Err(StoreError::Internal(what));
                };
                let length = rest.len() - tail.len();
                if length > ROW_BYTES_MAX {
                    let step = &buffer.destinations()[usize::from(row.destination.0)].step;
                    let (bytes, limit) = (length as u64, ROW_BYTES_MAX as u64);
                    return Err(StoreError::RowTooLarge { step: step.to_string(), bytes, limit });
                }
                let start = rows.len();
                rows.extend_from_slice(&rest[..length]);
                // See the row's framing in `outbox.rs`: flags, then destination.
                rows[start + 1..start + 3].copy_from_slice(&number.0.to_le_bytes());
                if rows.len() >= FRAME_BYTES {
                    encoder.frame(&rows);
                    rows.clear();
                }
                rest = tail;
            }
        }
    }
    if !rows.is_empty() {
        encoder.frame(&rows);
    }
    let bytes = encoder.bytes;
    let (length, checksum) = (bytes.len() as u64, crc32fast::hash(&bytes));
    Ok(Some((bytes, OutboxRef { epoch, generation, process, slot, length, checksum })))
}

/// An outbox that was read whole, with what a person decided about its rows.
#[derive(Clone, Debug)]
pub struct Outbox {
    file: String,
    head: OutboxHead,
    frames: Vec<FrameRef>,
    bytes: Bytes,
    pub(crate) decisions: BTreeMap<u64, Decision>,
}

impl Outbox {
    /// Checks the bytes of an outbox against what the record says of it.
    pub(crate) fn open(outbox: &OutboxRef, bytes: Vec<u8>) -> Result<Outbox, StoreError> {
        let name = PartName::from(outbox);
        let file = Name::Outbox(name).to_string();
        check_length(&file, bytes.len() as u64, outbox.length)?;
        check_head(&file, &bytes, Kind::Outbox)?;
        let (head, at): (OutboxHead, usize) = read_sealed(&file, &bytes, HEAD)?;
        let found = PartName { epoch: head.epoch, generation: head.generation, process: head.process };
        if found != name || head.slot != outbox.slot {
            let what = format!("it is {} of slot {}, under another's name", Name::Outbox(found), head.slot);
            return Err(StoreError::damaged(&file, HEAD, what));
        }
        let frames = read_frames(&file, &bytes, at)?;
        check_whole(&file, &bytes, outbox.checksum)?;
        Ok(Outbox { file, head, frames, bytes: Bytes::from(bytes), decisions: BTreeMap::new() })
    }

    /// The topics that the rows of an outbox go to, from its head alone.
    pub(crate) fn topics(name: PartName, bytes: &[u8]) -> Result<Vec<String>, StoreError> {
        let file = Name::Outbox(name).to_string();
        check_head(&file, bytes, Kind::Outbox)?;
        let (head, _): (OutboxHead, usize) = read_sealed(&file, bytes, HEAD)?;
        Ok(head.destinations.iter().map(|to| to.topic.to_string()).collect())
    }

    /// The file in the store.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Visits the rows in the order in which they are to be published.
    ///
    /// # Errors
    ///
    /// What `visit` says, or `STORE_DAMAGED` with file and offset.
    pub fn visit<E: From<StoreError>>(
        &self,
        mut visit: impl FnMut(StoredRow<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut number = 0;
        for frame in &self.frames {
            let rows = frame_rows(&self.file, frame, &self.bytes)?;
            let mut rest = &rows[..];
            while !rest.is_empty() {
                let damaged = || {
                    StoreError::damaged(
                        &self.file,
                        frame.offset as usize,
                        "there is no output row in the frame there",
                    )
                };
                let (row, tail) = decode_output(rest).ok_or_else(damaged)?;
                let destination =
                    self.head.destinations.get(usize::from(row.destination.0)).ok_or_else(damaged)?;
                visit(StoredRow { number, destination, row, decision: self.decisions.get(&number) })?;
                number += 1;
                rest = tail;
            }
        }
        Ok(())
    }

    /// Number of rows.
    ///
    /// # Errors
    ///
    /// `STORE_DAMAGED` with file and offset.
    pub fn rows(&self) -> Result<u64, StoreError> {
        let mut rows = 0;
        self.visit(|_| {
            rows += 1;
            Ok::<(), StoreError>(())
        })?;
        Ok(rows)
    }
}

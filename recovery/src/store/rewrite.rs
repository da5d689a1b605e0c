//! Old rows are written again, oldest segment first, so that its file can go: `decisions/0001` says when and why.

use super::process::{ProcessStore, Staged, row_starts};
use crate::StoreError;
use crate::format::segment::{FRAME_HEAD, open_frame};
use crate::names::{Name, PartName};
use crate::rows::{RowChange, decode_row};
use bytes::Bytes;

/// How far a segment was read backwards in search of live rows.
#[derive(Debug)]
pub(crate) struct Cursor {
    segment: u32,
    /// Frames that were not looked at.
    frames: usize,
    /// The rows of the frame that is being looked at, and where its remaining rows begin.
    rows: Bytes,
    starts: Vec<u32>,
}

impl ProcessStore {
    /// Writes old live rows again, oldest segment first, as far as the bounds ask for and the budget allows.
    pub(super) fn rewrite(
        &mut self,
        budget: u64,
        moved: bool,
        staged: &mut Staged,
    ) -> Result<(), StoreError> {
        let share = (self.options.segments_max / self.processes.max(1) as usize).max(8);
        let start = staged.builder.row_bytes();
        loop {
            let crowded = self.needs.needed().count() > share - share / 8;
            let helping = moved && self.needs.needed().next().is_some_and(|(_, held)| held.shared);
            if !(crowded || helping || self.needs.must_rewrite(share, self.options.dead_bytes_min)) {
                return Ok(());
            }
            let Some(oldest) = self.needs.needed().map(|(number, _)| number).next() else { return Ok(()) };
            // One row is always allowed, however large, or it could never move.
            if staged.builder.row_bytes() - start >= budget && !crowded {
                return Ok(());
            }
            let live = self.needs.get(oldest).map_or(0, |held| held.live);
            if live == 0 {
                // Only a delete row that an older file of the record still needs keeps it.
                return Ok(());
            }
            let left = if crowded { u64::MAX } else { budget - (staged.builder.row_bytes() - start) };
            if !self.rewrite_from(oldest, left, staged)? {
                return Ok(());
            }
            self.needs.release();
        }
    }

    /// Writes live rows of one segment again; `false` when the budget ended first.
    ///
    /// It is read backwards: of several versions of a row in one segment, the last is the live one.
    fn rewrite_from(&mut self, number: u32, budget: u64, staged: &mut Staged) -> Result<bool, StoreError> {
        let start = staged.builder.row_bytes();
        loop {
            let held = self.needs.get(number).expect("the oldest needed segment is held");
            if held.live == 0 {
                self.cursor = None;
                return Ok(true);
            }
            let file = Name::Segment(PartName::from(&held.segment)).to_string();
            let steps = held.steps.clone();
            let cursor = match &mut self.cursor {
                Some(cursor) if cursor.segment == number => cursor,
                _ => self.cursor.insert(Cursor {
                    segment: number,
                    frames: held.frames.len(),
                    rows: Bytes::new(),
                    starts: Vec::new(),
                }),
            };
            if cursor.starts.is_empty() {
                let Some(frames) = cursor.frames.checked_sub(1) else {
                    let what = format!("{} bytes of live rows of {file} cannot be found in it", held.live);
                    return Err(StoreError::Internal(what));
                };
                let frame = held.frames[frames];
                let length = FRAME_HEAD + frame.stored as usize;
                let bytes = self.storage.read_range(&file, frame.offset, length);
                cursor.rows = open_frame(&file, &frame, bytes.map_err(StoreError::io("read", &file))?)?;
                cursor.starts = row_starts(&file, &cursor.rows)?;
                cursor.frames = frames;
            }
            while let Some(at) = cursor.starts.last().copied() {
                let bytes = &cursor.rows[at as usize..];
                let (row, tail) = decode_row(bytes).expect("the rows of the frame were decoded before");
                let bytes = &bytes[..bytes.len() - tail.len()];
                if let (RowChange::Put(_), Some(Some(mapping))) =
                    (row.change, steps.get(usize::from(row.step.0)))
                {
                    let id = self.live.id(mapping.step, row.key);
                    let found = self.live.get(id, row.sub);
                    if found.is_some_and(|location| location.segment == number) {
                        let written = staged.builder.row_bytes() - start;
                        if written > 0 && written + bytes.len() as u64 > budget {
                            return Ok(false);
                        }
                        let location = staged.location(bytes);
                        self.live.put(id, row.sub, location);
                        staged.live += u64::from(location.bytes);
                        self.needs.died(number, location.bytes);
                        staged.builder.push_as(bytes, mapping.written)?;
                    }
                }
                cursor.starts.pop();
            }
        }
    }
}

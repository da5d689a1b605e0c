//! One process's side of a commit epoch: its rows become a segment, and old rows follow where they must.
//!
//! Guarantees, in bytes of encoded rows (a file is never larger than its rows by more than its heads):
//! a commit writes at most twice its changes plus `max(1 MiB, live / 1024)`; the files stay below
//! three times the live rows; nothing changed means nothing written. `decisions/0001` has the measurements.
//!
//! On failure: a full or failing disk is tried again for `store_timeout`; after an error that is
//! returned, the store does nothing more: what it knows of its own files may be wrong.

use super::ResumeState;
use super::drive::{self, perform};
use super::needs::{Held, Needs, StepMapping};
use super::retry::Retry;
use super::rewrite::Cursor;
use crate::format::builder::SegmentBuilder;
use crate::format::outbox;
use crate::format::segment::ROW_BYTES_MAX;
use crate::lease::LeaseView;
use crate::live::{KeyId, LiveIndex};
use crate::names::{Folder, Name, PartName};
use crate::protocol::part::PartMachine;
use crate::protocol::{Action, Event, Rules, highest_record};
use crate::rows::{RowChange, RowRef, decode_row};
use crate::steps::StepTable;
use crate::storage::Storage;
use crate::{
    Epoch, NextOffset, OutputBuffer, Part, ProcessIndex, RecordNumber, RowBuffer, SegmentRef, Slot, StepId,
    StepNumber, StoreError, TopicPartition,
};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

/// Rewriting may always take this part of the live rows in a commit, however small its changes are.
const REWRITE_PART: u64 = 1024;
/// With fewer changed bytes than this a thread of its own does not pay.
const BACKGROUND_BYTES_MIN: usize = 1024 * 1024;
/// Memory of up to this many bytes is kept from one segment to the next.
const ROOM_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Rows that are put in the order of their places in the index together.
const CHUNK_ROWS: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 15;

/// Limits of a [`ProcessStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessOptions {
    /// Live segments of the whole store; each process keeps to its share.
    pub segments_max: usize,
    /// How long a full or failing disk is tried again.
    pub store_timeout: Duration,
    /// Rewriting old rows may always take this many bytes of a commit, however small its changes are.
    pub rewrite_bytes_min: u64,
    /// Dead rows of this many bytes are not worth rewriting others for.
    pub dead_bytes_min: u64,
}

impl Default for ProcessOptions {
    fn default() -> ProcessOptions {
        ProcessOptions {
            segments_max: 4096,
            store_timeout: Duration::from_secs(60),
            rewrite_bytes_min: 1024 * 1024,
            dead_bytes_min: 64 * 1024,
        }
    }
}

/// Figures of a [`ProcessStore`], for status and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreFigures {
    /// Bytes of live rows of this process.
    pub live_bytes: u64,
    /// Bytes on disk for this process's sake.
    pub file_bytes: u64,
    /// Segments that this process needs.
    pub segments: usize,
    /// Bytes of changed rows written since the start.
    pub changed_bytes: u64,
    /// Bytes of old rows written again since the start.
    pub rewritten_bytes: u64,
    /// Bytes of segment files written since the start.
    pub written_bytes: u64,
    /// Bytes of outbox files written since the start.
    pub outbox_bytes: u64,
}

/// A process's rows and segments. One per process, used from its I/O thread.
#[derive(Debug)]
pub struct ProcessStore {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) resume: ResumeState,
    pub(crate) process: ProcessIndex,
    pub(super) processes: u32,
    pub(super) options: ProcessOptions,
    pub(crate) table: StepTable,
    /// The steps that this process's segments name: the table's, then aliases for rows of older versions.
    pub(crate) written_steps: Vec<(StepId, u32)>,
    own_steps: Arc<[Option<StepMapping>]>,
    pub(crate) live: LiveIndex,
    pub(crate) needs: Needs,
    /// What the last part said of older segments.
    reported: BTreeSet<SegmentRef>,
    /// The newest record that was looked at.
    looked_at: RecordNumber,
    pub(super) cursor: Option<Cursor>,
    pub(crate) epoch: Epoch,
    figures: StoreFigures,
    /// Memory of the last segment, for the next one.
    room: Vec<u8>,
    failed: bool,
}

impl ProcessStore {
    /// The store of process `process` in a generation that goes on from `resume`. Call
    /// [`ProcessStore::restore`] before the first part, in an empty store too.
    pub fn new(
        storage: Arc<dyn Storage>,
        resume: &ResumeState,
        process: ProcessIndex,
        options: ProcessOptions,
    ) -> ProcessStore {
        let table = resume.table();
        let written_steps: Vec<(StepId, u32)> =
            table.iter().map(|step| (step.id.clone(), step.version)).collect();
        ProcessStore {
            storage,
            resume: resume.clone(),
            process,
            processes: resume.lease.shape.processes,
            options,
            table,
            own_steps: Arc::from([]),
            written_steps,
            // Drawn anew in every process, so that nobody outside can make two keys meet.
            live: LiveIndex::new(RandomState::new().hash_one(0_u64)),
            needs: Needs::default(),
            reported: resume.segments.iter().cloned().collect(),
            looked_at: resume.record.unwrap_or_default(),
            cursor: None,
            epoch: resume.epoch,
            figures: StoreFigures::default(),
            room: Vec::new(),
            failed: false,
        }
    }

    /// Once the rows are restored: how this run's segments number their steps.
    pub(crate) fn ready(&mut self) {
        let mapping = self.written_steps.iter().enumerate().map(|(written, (id, version))| {
            let step = self.table.number(id)?;
            Some(StepMapping { step, version: *version, written: StepNumber(written as u16) })
        });
        self.own_steps = mapping.collect();
        if self.processes > 1 {
            let ours = self.needs.needed().filter(|(_, held)| held.inherited && held.owned > 0);
            let pinned = ours.map(|(_, held)| PartName::from(&held.segment)).collect();
            self.needs.pin(pinned);
        }
        self.needs.release();
    }

    /// Figures for status and metrics.
    pub fn figures(&self) -> StoreFigures {
        StoreFigures {
            live_bytes: self.needs.live(),
            file_bytes: self.needs.files(),
            segments: self.needs.needed().count(),
            ..self.figures
        }
    }

    /// Writes this process's part of commit epoch `epoch`: the rows that changed since the last one, and where
    /// partitions go on that moved. The part may be reported at once: its segment is durable. `None` when there
    /// is nothing to report. Blocks.
    ///
    /// # Errors
    ///
    /// What the disk says after `store_timeout`; then the store is not to be used any more.
    pub fn write_part(
        &mut self,
        epoch: Epoch,
        rows: &[RowBuffer],
        offsets: Vec<(TopicPartition, NextOffset)>,
    ) -> Result<Option<Part>, StoreError> {
        self.write_part_with_output(epoch, rows, &[], offsets)
    }

    /// The same with output rows of exactly-once sinks, which become an outbox under the slot of this process.
    ///
    /// # Errors
    ///
    /// As [`ProcessStore::write_part`].
    pub fn write_part_with_output(
        &mut self,
        epoch: Epoch,
        rows: &[RowBuffer],
        output: &[OutputBuffer],
        offsets: Vec<(TopicPartition, NextOffset)>,
    ) -> Result<Option<Part>, StoreError> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(StoreError::Internal("a part was to be written after one that failed".to_owned()));
        }
        if epoch <= self.epoch {
            let what = format!("the part of epoch {epoch} was to be written after that of {}", self.epoch);
            return Err(StoreError::Internal(what));
        }
        let part = self.part(epoch, rows, output, offsets)?;
        self.epoch = epoch;
        self.failed = false;
        Ok(part)
    }

    fn part(
        &mut self,
        epoch: Epoch,
        rows: &[RowBuffer],
        output: &[OutputBuffer],
        offsets: Vec<(TopicPartition, NextOffset)>,
    ) -> Result<Option<Part>, StoreError> {
        let name = PartName { epoch, generation: self.resume.generation(), process: self.process };
        let mut builder =
            SegmentBuilder::new(name, self.written_steps.clone(), std::mem::take(&mut self.room))?;
        if rows.iter().map(|rows| rows.as_bytes().len()).sum::<usize>() >= BACKGROUND_BYTES_MIN {
            builder = builder.in_background();
        }
        let mut staged = Staged { number: self.needs.next(), builder, live: 0, deletes: 0 };
        for buffer in rows {
            self.apply(buffer, &mut staged)?;
        }
        let changed = staged.builder.row_bytes();
        let moved = self.needs.is_pinned() && self.look_at_record()?;
        self.needs.release();
        // An idle process makes room too, while the others commit: it may pin what they cannot drop alone.
        if changed > 0 || moved {
            let budget = changed + self.options.rewrite_bytes_min.max(self.needs.live() / REWRITE_PART);
            self.rewrite(budget, moved, &mut staged)?;
        }
        self.figures.changed_bytes += changed;
        self.figures.rewritten_bytes += staged.builder.row_bytes() - changed;

        let mut segment = None;
        if staged.builder.row_bytes() > 0 {
            let owned = staged.builder.row_bytes();
            let mut built = staged.builder.finish()?;
            self.write_file(Name::Segment(name), &built.bytes)?;
            self.figures.written_bytes += built.segment.length;
            if built.bytes.capacity() <= ROOM_BYTES_MAX {
                built.bytes.clear();
                self.room = built.bytes;
            }
            self.needs.push(Held {
                segment: built.segment.clone(),
                owned,
                live: 0,
                deletes: staged.deletes,
                shared: false,
                inherited: false,
                released: false,
                frames: built.frames.into(),
                steps: self.own_steps.clone(),
            });
            self.needs.born(staged.number, staged.live);
            segment = Some(built.segment);
        }
        self.needs.release();
        let needs: BTreeSet<SegmentRef> = self
            .needs
            .needed()
            .map(|(_, held)| held.segment.clone())
            .filter(|held| segment.as_ref() != Some(held))
            .collect();
        let mut outbox = None;
        if let Some((bytes, built)) = outbox::build(name, self.slot(), output)? {
            self.write_file(Name::Outbox(name), &bytes)?;
            self.figures.outbox_bytes += built.length;
            outbox = Some(built);
        }
        if segment.is_none() && outbox.is_none() && offsets.is_empty() && needs == self.reported {
            return Ok(None);
        }
        let part = Part {
            epoch,
            process: self.process,
            segment,
            outbox,
            needs: needs.iter().cloned().collect(),
            offsets,
        };
        self.reported = needs;
        self.reported.extend(part.segment.clone());
        Ok(Some(part))
    }

    /// Takes changed rows into the index and the new segment.
    ///
    /// A chunk of them is taken in the order of their places in the index, and so they lie in the segment: an index of
    /// many keys does not fit into the processor's caches, and a walk through it in its own order, now and when the rows are
    /// written again, waits for memory once per page instead of once per row. Rows of one key keep their order.
    fn apply(&mut self, buffer: &RowBuffer, staged: &mut Staged) -> Result<(), StoreError> {
        let mut rest = buffer.as_bytes();
        let mut order = Vec::new();
        let mut rows = Vec::new();
        while !rest.is_empty() {
            let place = self.live.places();
            order.clear();
            rows.clear();
            while rows.len() < CHUNK_ROWS && !rest.is_empty() {
                let Some((row, tail)) = decode_row(rest) else {
                    return Err(StoreError::Internal("a buffer of rows holds something else".to_owned()));
                };
                let id = self.live.id(row.step, row.key);
                order.push((place(id) << CHUNK_BITS) | rows.len() as u64);
                rows.push((id, row, &rest[..rest.len() - tail.len()]));
                rest = tail;
            }
            order.sort_unstable();
            for at in &order {
                let (id, row, bytes) = &rows[(*at & (CHUNK_ROWS as u64 - 1)) as usize];
                self.apply_row(row, bytes, *id, staged)?;
            }
        }
        Ok(())
    }

    fn apply_row(
        &mut self,
        row: &RowRef<'_>,
        bytes: &[u8],
        id: KeyId,
        staged: &mut Staged,
    ) -> Result<(), StoreError> {
        let Some(step) = self.table.get(row.step) else {
            let what = format!("a row came from step number {}, which keeps none", row.step.0);
            return Err(StoreError::Internal(what));
        };
        if bytes.len() > ROW_BYTES_MAX {
            return Err(StoreError::RowTooLarge {
                step: step.id.to_string(),
                bytes: bytes.len() as u64,
                limit: ROW_BYTES_MAX as u64,
            });
        }
        match row.change {
            RowChange::Put(_) => {
                let location = staged.location(bytes);
                let before = self.live.put(id, row.sub, location);
                staged.live += u64::from(location.bytes);
                if let Some(before) = before {
                    died(&mut self.needs, staged, before);
                }
            }
            RowChange::Delete => match self.live.remove(id, row.sub) {
                Some(before) => {
                    died(&mut self.needs, staged, before);
                    staged.deletes += bytes.len() as u64;
                }
                // Nothing alive to delete: whatever is older is hidden already.
                None => return Ok(()),
            },
            RowChange::DeletePrefix => {
                let mut gone = 0_usize;
                let needs = &mut self.needs;
                self.live.remove_prefix(id, row.sub, |before| {
                    gone += 1;
                    died(needs, staged, before);
                });
                if gone == 0 {
                    return Ok(());
                }
                staged.deletes += bytes.len() as u64;
            }
        }
        staged.builder.push(bytes)
    }

    /// The transactional identity of this process: a slot is a process's place.
    fn slot(&self) -> Slot {
        let slots = &self.resume.lease.slots;
        slots.get(self.process.0 as usize).copied().unwrap_or(Slot(self.process.0))
    }

    fn write_file(&self, name: Name, bytes: &[u8]) -> Result<(), StoreError> {
        let mut retry = Retry::new(self.options.store_timeout);
        'attempt: loop {
            let mut machine = PartMachine::new(Rules::ALL, name);
            let mut action = machine.on(Event::Go);
            while action != Action::Report {
                match perform(&*self.storage, &action, &[bytes]) {
                    Ok(event) => action = machine.on(event),
                    Err(error) => {
                        // A newer generation deletes what an old one left half done.
                        LeaseView::new(self.storage.clone(), self.resume.generation()).still_mine()?;
                        retry.after(error, "write a part of a commit epoch")?;
                        continue 'attempt;
                    }
                }
            }
            return Ok(());
        }
    }

    /// Looks which inherited segments the newest record still names; returns whether there is a newer record
    /// than at the last look.
    fn look_at_record(&mut self) -> Result<bool, StoreError> {
        let names = drive::list(&*self.storage, Folder::Commits)?;
        let Some(newest) = highest_record(&names).filter(|newest| *newest > self.looked_at) else {
            return Ok(false);
        };
        // Retention may have taken it meanwhile: there is a newer one, and another look.
        let Some(record) = drive::read_record(&*self.storage, newest)? else { return Ok(false) };
        if record.generation == self.resume.generation() {
            self.needs.seen_in_record(&record.segments.iter().map(PartName::from).collect());
        }
        self.looked_at = newest;
        Ok(true)
    }
}

/// The segment that is being made.
pub(super) struct Staged {
    pub(super) number: u32,
    pub(super) builder: SegmentBuilder,
    pub(super) live: u64,
    deletes: u64,
}

impl Staged {
    pub(super) fn location(&self, bytes: &[u8]) -> crate::live::Location {
        crate::live::Location { segment: self.number, bytes: bytes.len() as u32 }
    }
}

fn died(needs: &mut Needs, staged: &mut Staged, before: crate::live::Location) {
    if before.segment == staged.number {
        staged.live -= u64::from(before.bytes);
    } else {
        needs.died(before.segment, before.bytes);
    }
}

/// Where the rows of a frame begin.
pub(crate) fn row_starts(file: &str, rows: &[u8]) -> Result<Vec<u32>, StoreError> {
    let mut starts = Vec::new();
    let mut rest = rows;
    while !rest.is_empty() {
        let at = rows.len() - rest.len();
        let Some((_, tail)) = decode_row(rest) else {
            return Err(StoreError::damaged(file, at, "there is no row there"));
        };
        starts.push(at as u32);
        rest = tail;
    }
    Ok(starts)
}

/// A row as it would be under today's step numbers.
pub(crate) fn today<'a>(row: RowRef<'a>, mapping: StepMapping) -> RowRef<'a> {
    RowRef { step: mapping.step, ..row }
}

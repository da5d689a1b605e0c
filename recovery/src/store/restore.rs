//! Reading a process's rows back: the newest version of each, routed to the worker that owns it now.
//!
//! Every process reads every segment that the record names, since any of them may hold rows that are its own
//! after a rescale. Segments are read, checked and expanded in parallel, newest first, so that the first version of a
//! row that is met is the one that counts. Rows are slices of the expanded frames: nothing is copied.

use super::chosen::{self, read_segment};
use super::needs::{Held, StepMapping};
use super::process::{ProcessStore, today};
use crate::format::segment::{FrameRef, SegmentFile};
use crate::live::{KeyId, KeyMap, Location, key_id};
use crate::rows::{RestoredRow, RestoredRows, RowChange, RowRef, decode_row};
use crate::{SegmentRef, StepNumber, StoreError};
use bytes::Bytes;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Segments are read ahead of their turn up to this many bytes.
const READ_AHEAD: u64 = 256 * 1024 * 1024;

/// Less than this is read sooner than a thread is started.
const PARALLEL_BYTES_MIN: u64 = 512 * 1024;

/// The rows of one step and version that one worker owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredStep {
    /// The step.
    pub step: StepNumber,
    /// The version of the step's encoding that wrote the rows. A step gets its rows of an older version apart.
    pub version: u32,
    /// The rows.
    pub rows: RestoredRows,
}

/// What [`ProcessStore::restore`] read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restoration {
    /// Per local worker, its steps that have rows, ascending.
    pub workers: Vec<Vec<RestoredStep>>,
    /// Rows of this process.
    pub rows: u64,
    /// Bytes of segment files that were read.
    pub read_bytes: u64,
}

impl ProcessStore {
    /// Reads the rows of this process's `workers` worker threads; `owner` says which of them owns a row, `None` when
    /// it is another process's. Blocks, on several threads.
    ///
    /// # Errors
    ///
    /// `STORE_DAMAGED` with file and offset, `STATE_VERSION_UNSUPPORTED`, or what the disk says.
    pub fn restore(
        &mut self,
        workers: usize,
        owner: &(dyn Fn(&RowRef<'_>) -> Option<usize> + Sync),
    ) -> Result<Restoration, StoreError> {
        self.read_back(workers, owner).map_err(chosen::with_hint)
    }

    fn read_back(
        &mut self,
        workers: usize,
        owner: &(dyn Fn(&RowRef<'_>) -> Option<usize> + Sync),
    ) -> Result<Restoration, StoreError> {
        let started = Instant::now();
        let mut segments = self.resume.segments.clone();
        segments.sort_by_key(|segment| crate::names::PartName::from(segment));
        let mut collected = Collected::new(workers);
        let mut held = Vec::with_capacity(segments.len());
        let mut rest = &segments[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let ahead = rest.iter().rev().take_while(|segment| {
                bytes += segment.length;
                bytes <= READ_AHEAD
            });
            let (older, batch) = rest.split_at(rest.len() - ahead.count().max(1));
            rest = older;
            let files = in_parallel(
                batch,
                |segment| segment.length,
                |segment| read_segment(&*self.storage, segment),
            )?;
            for (at, file) in files.iter().enumerate().rev() {
                let number = (older.len() + at) as u32;
                collected.restoration.read_bytes += batch[at].length;
                held.push(self.restore_segment(number, &batch[at], file, owner, &mut collected)?);
            }
        }
        for held in held.into_iter().rev() {
            self.needs.push(held);
        }
        for (number, live) in collected.live.iter().enumerate() {
            self.needs.born(number as u32, *live);
        }
        self.ready();
        let restoration = collected.finish();
        tracing::info!(
            generation = %self.resume.generation(),
            process = %self.process,
            rows = restoration.rows,
            bytes = restoration.read_bytes,
            milliseconds = started.elapsed().as_millis() as u64,
            "restored state"
        );
        Ok(restoration)
    }

    fn restore_segment(
        &mut self,
        number: u32,
        segment: &SegmentRef,
        file: &SegmentFile,
        owner: &(dyn Fn(&RowRef<'_>) -> Option<usize> + Sync),
        collected: &mut Collected,
    ) -> Result<Held, StoreError> {
        let steps = self.mapping(segment, file)?;
        let seed = self.live.seed();
        let frames = in_parallel(
            &file.frames,
            |frame| frame.rows.into(),
            |frame| decode_frame(file, frame, &steps, seed, owner),
        )?;
        let mut held = Held {
            segment: segment.clone(),
            owned: 0,
            live: 0,
            deletes: 0,
            shared: frames.iter().any(|frame| frame.foreign),
            inherited: true,
            released: false,
            frames: file.frames.clone().into(),
            steps: steps.clone(),
        };
        collected.live.resize(collected.live.len().max(number as usize + 1), 0);
        self.live.reserve(frames.iter().map(|frame| frame.rows.len()).sum());
        for frame in frames.iter().rev() {
            for found in frame.rows.iter().rev() {
                held.owned += u64::from(found.bytes);
                let (row, _) = decode_row(&frame.bytes[found.at as usize..])
                    .expect("the rows of the frame were decoded before");
                let mapping =
                    steps[usize::from(row.step.0)].expect("only rows of steps that go on are collected");
                match row.change {
                    RowChange::Put(value) => {
                        if collected.hidden(found.id, row.sub) || self.live.get(found.id, row.sub).is_some() {
                            continue;
                        }
                        let location = Location { segment: number, bytes: found.bytes };
                        self.live.put(found.id, row.sub, location);
                        collected.live[number as usize] += u64::from(found.bytes);
                        let slice = |part: &[u8]| frame.bytes.slice_ref(part);
                        collected.push(
                            found.worker as usize,
                            mapping,
                            RestoredRow {
                                route: row.route,
                                key: slice(row.key),
                                sub: slice(row.sub),
                                value: slice(value),
                            },
                        );
                    }
                    RowChange::Delete => {
                        held.deletes += u64::from(found.bytes);
                        collected.deleted.entry(found.id).or_default().insert(row.sub.to_vec());
                    }
                    RowChange::DeletePrefix => {
                        held.deletes += u64::from(found.bytes);
                        let prefixes = collected.prefixes.entry(found.id).or_default();
                        if !prefixes.iter().any(|prefix| row.sub.starts_with(prefix)) {
                            prefixes.push(row.sub.to_vec());
                        }
                    }
                }
            }
        }
        Ok(held)
    }

    /// What the step numbers of a segment mean today; `None` for steps that are gone.
    fn mapping(
        &mut self,
        segment: &SegmentRef,
        file: &SegmentFile,
    ) -> Result<Arc<[Option<StepMapping>]>, StoreError> {
        let mut mapping = Vec::with_capacity(file.head.steps.len());
        for (id, version) in &file.head.steps {
            let step = self.table.number(id).filter(|step| {
                // A step that was dropped and came back has nothing to do with its old rows.
                self.resume.steps[usize::from(step.0)].since <= segment.epoch
            });
            let Some(step) = step else {
                mapping.push(None);
                continue;
            };
            let supported = self.resume.steps[usize::from(step.0)].shape.version;
            if *version > supported {
                return Err(StoreError::StateVersion {
                    store: self.storage.place(),
                    step: id.to_string(),
                    found: *version,
                    supported,
                });
            }
            let known = self.written_steps.iter().position(|(other, v)| other == id && v == version);
            let written = known.unwrap_or_else(|| {
                self.written_steps.push((id.clone(), *version));
                self.written_steps.len() - 1
            });
            let written = u16::try_from(written)
                .map_err(|_| StoreError::Internal("too many versions of steps in one store".to_owned()))?;
            mapping.push(Some(StepMapping { step, version: *version, written: StepNumber(written) }));
        }
        Ok(mapping.into())
    }
}

/// A row of this process in a frame.
struct Found {
    id: KeyId,
    at: u32,
    bytes: u32,
    worker: u32,
}

struct DecodedFrame {
    bytes: Bytes,
    rows: Vec<Found>,
    /// There are rows of other processes too.
    foreign: bool,
}

fn decode_frame(
    file: &SegmentFile,
    frame: &FrameRef,
    steps: &[Option<StepMapping>],
    seed: u64,
    owner: &(dyn Fn(&RowRef<'_>) -> Option<usize> + Sync),
) -> Result<DecodedFrame, StoreError> {
    let bytes = file.rows(frame)?;
    let mut decoded = DecodedFrame { rows: Vec::with_capacity(bytes.len() / 64), bytes, foreign: false };
    let mut rest = &decoded.bytes[..];
    while !rest.is_empty() {
        let at = decoded.bytes.len() - rest.len();
        let found =
            decode_row(rest).and_then(|(row, tail)| Some((row, tail, steps.get(usize::from(row.step.0))?)));
        let Some((row, tail, mapping)) = found else {
            let what = format!("there is no row at byte {at} of the frame");
            return Err(StoreError::damaged(&file.file, frame.offset as usize, what));
        };
        let bytes = (rest.len() - tail.len()) as u32;
        rest = tail;
        let Some(mapping) = *mapping else { continue };
        match owner(&today(row, mapping)) {
            Some(worker) => decoded.rows.push(Found {
                id: key_id(seed, mapping.step, row.key),
                at: at as u32,
                bytes,
                worker: worker as u32,
            }),
            None => decoded.foreign = true,
        }
    }
    Ok(decoded)
}

/// What was met so far, newest first.
struct Collected {
    restoration: Restoration,
    /// Per worker and (step, version), its place in `restoration`.
    places: Vec<Vec<(StepMapping, usize)>>,
    deleted: KeyMap<HashSet<Vec<u8>>>,
    prefixes: KeyMap<Vec<Vec<u8>>>,
    /// Live bytes by segment number.
    live: Vec<u64>,
}

impl Collected {
    fn new(workers: usize) -> Collected {
        Collected {
            restoration: Restoration { workers: vec![Vec::new(); workers], ..Restoration::default() },
            places: vec![Vec::new(); workers],
            deleted: KeyMap::default(),
            prefixes: KeyMap::default(),
            live: Vec::new(),
        }
    }

    /// Whether a newer delete row covers the row.
    #[inline]
    fn hidden(&self, id: KeyId, sub: &[u8]) -> bool {
        (!self.deleted.is_empty() && self.deleted.get(&id).is_some_and(|subs| subs.contains(sub)))
            || (!self.prefixes.is_empty()
                && self
                    .prefixes
                    .get(&id)
                    .is_some_and(|prefixes| prefixes.iter().any(|prefix| sub.starts_with(prefix))))
    }

    fn push(&mut self, worker: usize, mapping: StepMapping, row: RestoredRow) {
        let steps = &mut self.restoration.workers[worker];
        let places = &mut self.places[worker];
        let place = match places.iter().find(|(other, _)| *other == mapping) {
            Some((_, place)) => *place,
            None => {
                steps.push(RestoredStep {
                    step: mapping.step,
                    version: mapping.version,
                    rows: RestoredRows::default(),
                });
                places.push((mapping, steps.len() - 1));
                steps.len() - 1
            }
        };
        steps[place].rows.rows.push(row);
        self.restoration.rows += 1;
    }

    fn finish(mut self) -> Restoration {
        for steps in &mut self.restoration.workers {
            steps.sort_by_key(|step| (step.step, step.version));
        }
        self.restoration
    }
}

/// Applies `work` to every item on as many threads as there are cores, and keeps the order; the first error counts.
fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    weight: impl Fn(&T) -> u64,
    work: impl Fn(&T) -> Result<R, StoreError> + Sync,
) -> Result<Vec<R>, StoreError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let light = items.iter().map(weight).sum::<u64>() < PARALLEL_BYTES_MIN;
    let threads = if light { 1 } else { cores.min(items.len()).min(8) };
    if threads <= 1 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    let mut results: Vec<(usize, Result<R, StoreError>)> = std::thread::scope(|scope| {
        let handles: Vec<_> = (1..threads).map(|_| scope.spawn(worker)).collect();
        let mut results = worker();
        for handle in handles {
            match handle.join() {
                Ok(more) => results.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        results
    });
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

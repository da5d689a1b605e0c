//! Windows with fixed borders: tumbling and sliding.
//!
//! All keys of one window share a pane: one table of rows, one arena of key bytes. A record costs a look-up
//! with the hash it came with, a window that closes costs its rows, and a row costs no allocation of its own.

use super::aggregate::{AggregateError, Aggregator, decode_all};
use super::order::PartitionNames;
use super::spec::last_start;
use super::state::{Fired, OpenCursor, WindowRecord};
use crate::keyed::rows::{parse_time, time_bytes};
use crate::keyed::{Applied, Closing, KeyRow, StateError, StepRows};
use bytes::Bytes;
use hashbrown::HashTable;
use std::collections::BTreeMap;
use tidegate_recovery::{EventTime, KeyHash};

/// All panes of a worker, by the end of their window.
pub(super) struct Panes<S> {
    size: i64,
    every: i64,
    align: i64,
    lateness: i64,
    panes: BTreeMap<i64, Pane<S>>,
    /// Rows of all panes that are not given out yet.
    rows: usize,
}

/// The keys of one window.
struct Pane<S> {
    index: HashTable<u32>,
    rows: Vec<Row<S>>,
    keys: Vec<u8>,
    dirty: Vec<u32>,
    /// Rows that were given out already; 0 while the window is open.
    given: usize,
    /// The arena once the window began to close: results share it.
    frozen: Option<Bytes>,
}

struct Row<S> {
    hash: KeyHash,
    /// The key's first bytes, padded with zeros: most keys are known by them without a look at the arena.
    head: [u64; 2],
    key_start: usize,
    /// [`NULL_KEY`] for the null key.
    key_length: u32,
    dirty: bool,
    /// The store has a row of it.
    stored: bool,
    state: S,
}

const NULL_KEY: u32 = u32::MAX;

/// How many rows a pane can have.
const PANE_ROWS_MAX: usize = u32::MAX as usize;

/// A key as it is looked up.
#[derive(Clone, Copy)]
struct Probe<'a> {
    hash: KeyHash,
    head: [u64; 2],
    length: u32,
    key: Option<&'a [u8]>,
}

const HEAD: usize = size_of::<[u64; 2]>();

impl<'a> Probe<'a> {
    fn new(hash: KeyHash, key: Option<&'a [u8]>) -> Probe<'a> {
        let Some(bytes) = key else {
            return Probe { hash, head: [0; 2], length: NULL_KEY, key };
        };
        let length = u32::try_from(bytes.len()).ok().filter(|length| *length != NULL_KEY);
        let mut head = [0; HEAD];
        let known = bytes.len().min(HEAD);
        head[..known].copy_from_slice(&bytes[..known]);
        let (first, second) = head.split_at(HEAD / 2);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("half of the head"));
        Probe { hash, head: [word(first), word(second)], length: length.expect("a key below 4 GiB"), key }
    }
}

impl<S> Row<S> {
    fn key<'a>(&self, keys: &'a [u8]) -> Option<&'a [u8]> {
        (self.key_length != NULL_KEY)
            .then(|| &keys[self.key_start..self.key_start + self.key_length as usize])
    }

    fn shared_key(&self, keys: &Bytes) -> Option<Bytes> {
        (self.key_length != NULL_KEY)
            .then(|| keys.slice(self.key_start..self.key_start + self.key_length as usize))
    }
}

impl<S> Default for Pane<S> {
    fn default() -> Pane<S> {
        Pane {
            index: HashTable::new(),
            rows: Vec::new(),
            keys: Vec::new(),
            dirty: Vec::new(),
            given: 0,
            frozen: None,
        }
    }
}

impl<S> Pane<S> {
    #[inline]
    fn find(&self, probe: &Probe<'_>) -> Option<usize> {
        let same = |&index: &u32| {
            let row = &self.rows[index as usize];
            row.hash == probe.hash
                && row.key_length == probe.length
                && row.head == probe.head
                && (row.key_length as usize <= HEAD || row.key(&self.keys) == probe.key)
        };
        self.index.find(probe.hash.0, same).map(|&index| index as usize)
    }

    fn insert(&mut self, probe: &Probe<'_>, state: S) -> usize {
        let place = self.rows.len();
        assert!(place < PANE_ROWS_MAX, "more than {PANE_ROWS_MAX} keys in one window on one worker");
        let key_start = self.keys.len();
        self.keys.extend_from_slice(probe.key.unwrap_or(&[]));
        let Probe { hash, head, length, .. } = *probe;
        self.rows.push(Row { hash, head, key_start, key_length: length, dirty: false, stored: false, state });
        let Self { index, rows, .. } = self;
        index.insert_unique(hash.0, place as u32, |&other| rows[other as usize].hash.0);
        place
    }

    fn touch(&mut self, place: usize, kept: bool) {
        let row = &mut self.rows[place];
        if kept && !row.dirty {
            row.dirty = true;
            self.dirty.push(place as u32);
        }
    }
}

impl<S: Clone> Panes<S> {
    pub(super) fn new(size: i64, every: i64, align: i64, lateness: i64) -> Panes<S> {
        Panes { size, every, align, lateness, panes: BTreeMap::new(), rows: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.rows
    }

    pub(super) fn earliest_end(&self) -> Option<i64> {
        self.panes.first_key_value().map(|(end, _)| *end)
    }

    fn closed(&self, end: i64, watermark: EventTime) -> bool {
        end.saturating_add(self.lateness) <= watermark.0
    }

    pub(super) fn apply<T, A: Aggregator<T, State = S>>(
        &mut self,
        record: &WindowRecord<'_, T>,
        aggregate: &A,
        input: &A::Input,
        names: &PartitionNames,
        kept: bool,
    ) -> Result<Applied, AggregateError> {
        let event = record.order.event.0;
        let outside = || AggregateError::EventTime(event);
        let last = last_start(event, self.every, self.align).ok_or_else(outside)?;
        let last_end = last.checked_add(self.size).ok_or_else(outside)?;
        // Ends of the windows of the record, from the latest down to the earliest that is open.
        let every = self.every;
        let first_end = event.checked_add(1).ok_or_else(outside)?;
        event.checked_sub(self.size).ok_or_else(outside)?;
        let ends = move || std::iter::successors(Some(last_end), move |end| end.checked_sub(every));
        let windows = ends()
            .take_while(|end| *end >= first_end && !self.closed(*end, record.watermark))
            .take_while(|end| self.panes.get(end).is_none_or(|pane| pane.frozen.is_none()))
            .count();
        if windows == 0 {
            return Ok(Applied::Late);
        }
        let probe = Probe::new(record.hash, record.key);
        if windows > 1 && aggregate.can_refuse() {
            let fresh = aggregate.start();
            for end in ends().take(windows) {
                let state = self
                    .panes
                    .get(&end)
                    .and_then(|pane| pane.find(&probe).map(|place| &pane.rows[place].state));
                aggregate.check(state.unwrap_or(&fresh), input)?;
            }
        }
        for end in ends().take(windows) {
            // A pane comes into being with its first row: a record that is refused leaves no empty one.
            let known = self.panes.get_mut(&end);
            let found = known.as_ref().and_then(|pane| pane.find(&probe));
            if let (Some(pane), Some(place)) = (known, found) {
                let state = &mut pane.rows[place].state;
                aggregate.check(state, input)?;
                aggregate.add(state, input, &record.order, names);
                pane.touch(place, kept);
            } else {
                let mut state = aggregate.start();
                aggregate.check(&state, input)?;
                aggregate.add(&mut state, input, &record.order, names);
                let pane = self.panes.entry(end).or_default();
                let place = pane.insert(&probe, state);
                pane.touch(place, kept);
                self.rows += 1;
            }
        }
        Ok(Applied::Taken)
    }

    pub(super) fn close<T, A: Aggregator<T, State = S>>(
        &mut self,
        watermark: EventTime,
        max: usize,
        aggregate: &A,
        rows: &mut StepRows,
        fired: &mut Vec<Fired<A::Out>>,
    ) -> Closing {
        let mut left = max;
        loop {
            let lateness = self.lateness;
            let Some(mut entry) = self.panes.first_entry() else {
                return Closing::Done;
            };
            let end = *entry.key();
            if end.saturating_add(lateness) > watermark.0 {
                return Closing::Done;
            }
            if left == 0 {
                return Closing::More;
            }
            let start = end - self.size;
            let pane = entry.get_mut();
            let keys = pane.frozen.get_or_insert_with(|| Bytes::from(std::mem::take(&mut pane.keys)));
            let slice = pane.given..pane.rows.len().min(pane.given + left);
            left -= slice.len();
            for row in &pane.rows[slice.clone()] {
                if row.stored {
                    rows.delete(row.hash.bucket(), row.key(keys), &time_bytes(start));
                }
                let value = aggregate.finish(&row.state);
                fired.push(Fired::new(row.shared_key(keys), row.hash, (start, end), value));
            }
            self.rows -= slice.len();
            pane.given = slice.end;
            if pane.given == pane.rows.len() {
                entry.remove();
            }
        }
    }

    pub(super) fn fire_open<T, A: Aggregator<T, State = S>>(
        &self,
        from: OpenCursor,
        max: usize,
        aggregate: &A,
        fired: &mut Vec<Fired<A::Out>>,
    ) -> Option<OpenCursor> {
        let mut left = max;
        for (&end, pane) in self.panes.range(from.end..) {
            let begin = if end == from.end { from.row.max(pane.given) } else { pane.given };
            if left == 0 {
                return Some(OpenCursor { end, row: begin });
            }
            let keys = match &pane.frozen {
                Some(frozen) => frozen.clone(),
                None => Bytes::copy_from_slice(&pane.keys),
            };
            let stop = pane.rows.len().min(begin + left);
            left -= stop - begin;
            for row in &pane.rows[begin..stop] {
                let value = aggregate.finish(&row.state);
                fired.push(Fired::new(row.shared_key(&keys), row.hash, (end - self.size, end), value));
            }
            if stop < pane.rows.len() {
                return Some(OpenCursor { end, row: stop });
            }
        }
        None
    }

    pub(super) fn snapshot<T, A: Aggregator<T, State = S>>(
        &mut self,
        aggregate: &A,
        names: &PartitionNames,
        rows: &mut StepRows,
    ) {
        for (&end, pane) in &mut self.panes {
            let sub = time_bytes(end - self.size);
            let keys = pane.frozen.as_deref().unwrap_or(&pane.keys);
            for place in pane.dirty.drain(..) {
                let row = &mut pane.rows[place as usize];
                row.dirty = false;
                if (place as usize) < pane.given {
                    continue;
                }
                row.stored = true;
                let state = &row.state;
                rows.put(row.hash.bucket(), row.key(keys), &sub, |out| aggregate.encode(state, names, out));
            }
        }
    }

    pub(super) fn restore<T, A: Aggregator<T, State = S>>(
        &mut self,
        row: &KeyRow,
        hash: KeyHash,
        aggregate: &A,
        names: &mut PartitionNames,
    ) -> Result<(), StateError> {
        let start = parse_time(&row.sub).ok_or(StateError::Damaged("no window start in its sub-key"))?;
        if last_start(start, self.every, self.align) != Some(start) {
            return Err(StateError::Damaged("no window of this step begins where its sub-key says"));
        }
        let end =
            start.checked_add(self.size).ok_or(StateError::Damaged("its window ends beyond all time"))?;
        let state = decode_all(aggregate, &row.value, names)?;
        let pane = self.panes.entry(end).or_default();
        let probe = Probe::new(hash, row.key.as_deref());
        if pane.find(&probe).is_some() {
            return Err(StateError::Damaged("two rows of one key and window"));
        }
        let place = pane.insert(&probe, state);
        pane.rows[place].stored = true;
        self.rows += 1;
        Ok(())
    }
}

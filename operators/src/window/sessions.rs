//! Sessions: records of a key that are at most the gap apart.
//!
//! A session reaches from its first to its last record plus the gap. A record that is exactly the gap away
//! still joins, so a session is closed only when the watermark is *above* its end plus the lateness: a record
//! that comes later, and is not refused, is then more than the gap away from it.
//!
//! A record costs a look-up. When a session closes is found lazily: each session has one entry in a heap,
//! with the end that it had when the entry was made; an entry that comes up too early is put back.

use super::aggregate::{AggregateError, Aggregator, decode_all};
use super::order::{PartitionNames, decode, encode};
use super::spec::{WindowKind, WindowSpec};
use super::state::{Fired, OpenCursor, WindowRecord};
use crate::keyed::rows::{parse_time, time_bytes};
use crate::keyed::{Applied, Closing, KeyRow, StateError, StepRows};
use bytes::Bytes;
use hashbrown::HashTable;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tidegate_recovery::{EventTime, KeyHash};

/// All sessions of a worker.
pub(super) struct Sessions<S> {
    gap: i64,
    lateness: i64,
    index: HashTable<u32>,
    keys: Slab<Key>,
    sessions: Slab<Session<S>>,
    /// (an end that is not above the session's, the session).
    ends: BinaryHeap<Reverse<(i64, Handle)>>,
    dirty: Vec<Handle>,
}

struct Key {
    hash: KeyHash,
    key: Option<Bytes>,
    /// First of the list of its sessions.
    head: u32,
}

struct Session<S> {
    key: u32,
    next: u32,
    first: i64,
    last: i64,
    dirty: bool,
    /// Under which first event time the store has its row.
    stored: Option<i64>,
    state: S,
}

const NO_SESSION: u32 = u32::MAX;

/// A place in a slab and which of the tenants of that place is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Handle {
    place: u32,
    tenant: u32,
}

/// Values at places that are used again.
struct Slab<V> {
    places: Vec<(u32, Option<V>)>,
    free: Vec<u32>,
}

impl<V> Slab<V> {
    fn new() -> Slab<V> {
        Slab { places: Vec::new(), free: Vec::new() }
    }

    fn insert(&mut self, value: V) -> Handle {
        if let Some(place) = self.free.pop() {
            let slot = &mut self.places[place as usize];
            slot.1 = Some(value);
            return Handle { place, tenant: slot.0 };
        }
        let place = u32::try_from(self.places.len()).ok().filter(|place| *place != NO_SESSION);
        let place = place.expect("fewer than four billion sessions on one worker");
        self.places.push((0, Some(value)));
        Handle { place, tenant: 0 }
    }

    fn remove(&mut self, place: u32) -> V {
        let slot = &mut self.places[place as usize];
        slot.0 = slot.0.wrapping_add(1);
        self.free.push(place);
        slot.1.take().expect("a place in use")
    }

    fn at(&self, place: u32) -> &V {
        self.places[place as usize].1.as_ref().expect("a place in use")
    }

    fn at_mut(&mut self, place: u32) -> &mut V {
        self.places[place as usize].1.as_mut().expect("a place in use")
    }

    fn get_mut(&mut self, handle: Handle) -> Option<&mut V> {
        let slot = &mut self.places[handle.place as usize];
        if slot.0 == handle.tenant { slot.1.as_mut() } else { None }
    }

    fn handle(&self, place: u32) -> Handle {
        Handle { place, tenant: self.places[place as usize].0 }
    }

    fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

impl<S: Clone> Sessions<S> {
    pub(super) fn new(spec: &WindowSpec) -> Sessions<S> {
        let WindowKind::Session { gap } = spec.kind else {
            unreachable!("windows with borders are panes");
        };
        Sessions {
            gap,
            lateness: spec.lateness,
            index: HashTable::new(),
            keys: Slab::new(),
            sessions: Slab::new(),
            ends: BinaryHeap::new(),
            dirty: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// The earliest end, or one that was its a moment ago: never above it.
    pub(super) fn earliest_end(&self) -> Option<i64> {
        self.ends.peek().map(|Reverse((end, _))| *end)
    }

    fn find_key(&self, hash: KeyHash, key: Option<&[u8]>) -> Option<u32> {
        let same = |&place: &u32| {
            let known = self.keys.at(place);
            known.hash == hash && known.key.as_deref() == key
        };
        self.index.find(hash.0, same).copied()
    }

    /// Sessions of the key that the event time joins: none, one, or one on either side.
    fn joined(&self, key: u32, event: i64) -> [u32; 2] {
        let mut joined = [NO_SESSION; 2];
        let mut place = self.keys.at(key).head;
        while place != NO_SESSION {
            let session = self.sessions.at(place);
            if session.first.saturating_sub(self.gap) <= event
                && event <= session.last.saturating_add(self.gap)
            {
                let slot = usize::from(joined[0] != NO_SESSION);
                joined[slot] = place;
            }
            place = session.next;
        }
        joined
    }

    pub(super) fn apply<T, A: Aggregator<T, State = S>>(
        &mut self,
        record: &WindowRecord<'_, T>,
        aggregate: &A,
        input: &A::Input,
        names: &PartitionNames,
        rows: &mut StepRows,
    ) -> Result<Applied, AggregateError> {
        let event = record.order.event.0;
        if event.saturating_add(self.lateness) < record.watermark.0 {
            return Ok(Applied::Late);
        }
        if event.checked_add(self.gap).is_none() || event == i64::MIN {
            return Err(AggregateError::EventTime(event));
        }
        let key = self.find_key(record.hash, record.key);
        let place = match key.map_or([NO_SESSION; 2], |key| self.joined(key, event)) {
            [NO_SESSION, _] => {
                let mut state = aggregate.start();
                aggregate.check(&state, input)?;
                aggregate.add(&mut state, input, &record.order, names);
                let key = key.unwrap_or_else(|| self.insert_key(record.hash, record.key));
                self.insert(key, event, event, state, None)
            }
            [place, NO_SESSION] => {
                let session = self.sessions.at_mut(place);
                aggregate.check(&session.state, input)?;
                aggregate.add(&mut session.state, input, &record.order, names);
                session.first = session.first.min(event);
                session.last = session.last.max(event);
                place
            }
            [left, right] => {
                let mut state = self.sessions.at(left).state.clone();
                aggregate.merge(&mut state, &self.sessions.at(right).state, names)?;
                aggregate.check(&state, input)?;
                aggregate.add(&mut state, input, &record.order, names);
                let absorbed = self.remove(right, rows);
                let session = self.sessions.at_mut(left);
                session.state = state;
                session.first = session.first.min(absorbed.first);
                session.last = session.last.max(absorbed.last);
                left
            }
        };
        if rows.kept() {
            let session = self.sessions.at_mut(place);
            if !session.dirty {
                session.dirty = true;
                let handle = self.sessions.handle(place);
                self.dirty.push(handle);
            }
        }
        Ok(Applied::Taken)
    }

    fn insert_key(&mut self, hash: KeyHash, key: Option<&[u8]>) -> u32 {
        // A copy: a slice of what was read would keep the whole of it in memory.
        let key = key.map(Bytes::copy_from_slice);
        let place = self.keys.insert(Key { hash, key, head: NO_SESSION }).place;
        let keys = &self.keys;
        self.index.insert_unique(hash.0, place, |&other| keys.at(other).hash.0);
        place
    }

    fn insert(&mut self, key: u32, first: i64, last: i64, state: S, stored: Option<i64>) -> u32 {
        let next = self.keys.at(key).head;
        let session = Session { key, next, first, last, dirty: false, stored, state };
        let handle = self.sessions.insert(session);
        self.keys.at_mut(key).head = handle.place;
        self.ends.push(Reverse((last + self.gap, handle)));
        handle.place
    }

    /// Takes a session out of its key's list, and its row out of the store; its key stays.
    fn remove(&mut self, place: u32, rows: &mut StepRows) -> Session<S> {
        let removed = self.sessions.remove(place);
        let key = self.keys.at_mut(removed.key);
        if let Some(first) = removed.stored {
            rows.delete(key.hash.bucket(), key.key.as_deref(), &time_bytes(first));
        }
        if key.head == place {
            key.head = removed.next;
        } else {
            let mut before = key.head;
            while self.sessions.at(before).next != place {
                before = self.sessions.at(before).next;
            }
            self.sessions.at_mut(before).next = removed.next;
        }
        removed
    }

    fn forget_key_without_sessions(&mut self, key: u32) {
        let known = self.keys.at(key);
        if known.head == NO_SESSION {
            let entry = self.index.find_entry(known.hash.0, |&place| place == key);
            entry.expect("every key is in the index").remove();
            self.keys.remove(key);
        }
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
        while let Some(&Reverse((queued, handle))) = self.ends.peek() {
            if queued.saturating_add(self.lateness) >= watermark.0 {
                return Closing::Done;
            }
            if left == 0 {
                return Closing::More;
            }
            left -= 1;
            self.ends.pop();
            let Some(session) = self.sessions.get_mut(handle) else {
                continue; // another session has absorbed it
            };
            let end = session.last + self.gap;
            if end > queued {
                self.ends.push(Reverse((end, handle)));
                continue;
            }
            let session = self.remove(handle.place, rows);
            let key = self.keys.at(session.key);
            let value = aggregate.finish(&session.state);
            fired.push(Fired::new(key.key.clone(), key.hash, (session.first, end), value));
            self.forget_key_without_sessions(session.key);
        }
        Closing::Done
    }

    pub(super) fn fire_open<T, A: Aggregator<T, State = S>>(
        &self,
        from: OpenCursor,
        max: usize,
        aggregate: &A,
        fired: &mut Vec<Fired<A::Out>>,
    ) -> Option<OpenCursor> {
        let stop = self.sessions.places.len().min(from.row.saturating_add(max));
        for (_, session) in &self.sessions.places[from.row..stop] {
            if let Some(session) = session {
                let key = self.keys.at(session.key);
                let borders = (session.first, session.last + self.gap);
                let value = aggregate.finish(&session.state);
                fired.push(Fired::new(key.key.clone(), key.hash, borders, value));
            }
        }
        (stop < self.sessions.places.len()).then_some(OpenCursor { end: i64::MIN, row: stop })
    }

    pub(super) fn snapshot<T, A: Aggregator<T, State = S>>(
        &mut self,
        aggregate: &A,
        names: &PartitionNames,
        rows: &mut StepRows,
    ) {
        for handle in self.dirty.drain(..) {
            let Some(session) = self.sessions.get_mut(handle) else {
                continue; // closed or absorbed, and its row deleted then
            };
            session.dirty = false;
            let key = self.keys.at(session.key);
            let (bucket, bytes) = (key.hash.bucket(), key.key.as_deref());
            if let Some(stored) = session.stored.filter(|stored| *stored != session.first) {
                rows.delete(bucket, bytes, &time_bytes(stored));
            }
            session.stored = Some(session.first);
            let session = &*session;
            rows.put(bucket, bytes, &time_bytes(session.first), |out| {
                encode(&session.last, out);
                aggregate.encode(&session.state, names, out);
            });
        }
    }

    pub(super) fn restore<T, A: Aggregator<T, State = S>>(
        &mut self,
        row: &KeyRow,
        hash: KeyHash,
        aggregate: &A,
        names: &mut PartitionNames,
    ) -> Result<(), StateError> {
        let first = parse_time(&row.sub).ok_or(StateError::Damaged("no first event time in its sub-key"))?;
        let mut bytes = &row.value[..];
        let last: i64 = decode(&mut bytes)?;
        let state = decode_all(aggregate, bytes, names)?;
        if last < first || last.checked_add(self.gap).is_none() {
            return Err(StateError::Damaged("its session ends before it begins or beyond all time"));
        }
        let key = match self.find_key(hash, row.key.as_deref()) {
            Some(key) => key,
            None => self.insert_key(hash, row.key.as_deref()),
        };
        if [first, last].into_iter().any(|event| self.joined(key, event)[0] != NO_SESSION) {
            return Err(StateError::Damaged("two sessions of one key overlap"));
        }
        self.insert(key, first, last, state, Some(first));
        Ok(())
    }
}

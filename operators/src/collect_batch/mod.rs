//! Collects the records of a key into batches: up to so many records, or what came in so much time.
//!
//! With a store the records that wait are state: they are in the snapshot, and a restart goes on with them.
//! Without a store they would be lost with the process, so the step holds the epoch of its oldest record whose
//! batch is not acknowledged: a crash replays it. Batches may then be cut otherwise, and records may come
//! twice; none is lost. The epoch is held on the stream that only the committer sees. Held on the results it
//! would keep everything behind the step from moving, and with small limits for ever.
//!
//! A batch carries the largest event time and timestamp of its records, and the step's event hand waits for
//! it, so that it is not late downstream.

mod held;

use crate::batch::ElementStream;
use crate::build::FlowBuild;
use crate::element::{Data, Element, Keyed};
use crate::keyed::{
    Applied, Closing, Keep, KeyRow, KeyTable, KeyedLogic, LastEpoch, Outlet, RecordError, StateError,
    StepRows, keyed_step,
};
use crate::record::{OnError, as_record};
use crate::steps::StepSpec;
use bytes::Bytes;
use held::Held;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;
use tidegate_recovery::{Epoch, EventTime, KeyHash, StepId};

/// When a batch is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Records, at least 1.
    pub records_max: usize,
    /// Time since the first record of the batch, by this process's clock.
    pub timeout: Duration,
}

/// Collects the values of each key in the order in which they come.
///
/// # Panics
///
/// If `records_max` is 0.
pub fn collect_batch<'s, T: Data>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, Keyed<T>>,
    limits: BatchLimits,
) -> ElementStream<'s, Keyed<Vec<T>>> {
    assert!(limits.records_max > 0, "a batch has at least one record");
    keyed_step(build, stream, step, CollectBatch::new(limits), OnError::Fail, as_record)
}

/// The step in the table of steps.
pub fn step_spec(id: StepId) -> StepSpec {
    StepSpec::stateful(id, "collect_batch", u16::from(COLLECT_BATCH_STATE_VERSION))
}

/// Version of the rows of a `collect_batch`.
pub const COLLECT_BATCH_STATE_VERSION: u8 = 1;

/// What waits for company.
struct CollectBatch<T> {
    limits: BatchLimits,
    keys: KeyTable<Pending<T>>,
    /// (due, key, number of its batch), in the order in which they become due.
    due: VecDeque<(Duration, u32, u64)>,
    /// A lower bound of each pending batch's event time; (bound, key, number of its batch).
    events: BinaryHeap<Reverse<(EventTime, u32, u64)>>,
    batches: u64,
    cut_early: bool,
    held: Held,
    restoring: Vec<Restoring<T>>,
}

/// The open batch of a key.
struct Pending<T> {
    /// Which batch of the step it is.
    number: u64,
    values: Vec<T>,
    event: EventTime,
    timestamp: Option<i64>,
    /// Epoch of the first record.
    epoch: Epoch,
    /// How many of the records the store has.
    stored: usize,
}

/// A row that came back; the rows of a key come in no particular order.
struct Restoring<T> {
    hash: KeyHash,
    key: Option<Bytes>,
    place: u64,
    record: StoredRecord<T>,
}

/// A record as the store keeps it, under its place in the batch.
#[derive(Serialize, Deserialize)]
struct StoredRecord<V> {
    /// The batch's event time and timestamp when the row was written.
    event: EventTime,
    timestamp: Option<i64>,
    value: V,
}

impl<T> Pending<T> {
    fn new(number: u64, epoch: Epoch) -> Pending<T> {
        Pending { number, values: Vec::new(), event: EventTime::MIN, timestamp: None, epoch, stored: 0 }
    }

    fn push(&mut self, event: EventTime, timestamp: Option<i64>, value: T) {
        self.event = self.event.max(event);
        self.timestamp = self.timestamp.max(timestamp);
        self.values.push(value);
    }
}

impl<T: Data> CollectBatch<T> {
    fn new(limits: BatchLimits) -> CollectBatch<T> {
        CollectBatch {
            limits,
            keys: KeyTable::new(),
            due: VecDeque::new(),
            events: BinaryHeap::new(),
            batches: 0,
            cut_early: false,
            held: Held::default(),
            restoring: Vec::new(),
        }
    }

    /// The open batch of a key; a new one has a first record at `event`.
    fn open(
        &mut self,
        (hash, key): (KeyHash, Option<&[u8]>),
        event: EventTime,
        epoch: Epoch,
        now: Duration,
    ) -> (u32, bool) {
        if let Some(place) = self.keys.find(hash, key) {
            return (place, false);
        }
        self.tidy();
        let number = self.batches;
        self.batches += 1;
        let place = self.keys.find_or_insert(hash, key, || Pending::new(number, epoch));
        self.due.push_back((now.saturating_add(self.limits.timeout), place, number));
        self.events.push(Reverse((event, place, number)));
        (place, true)
    }

    /// Forgets what the queues still say about batches that were full before they were due, when that is most
    /// of it.
    fn tidy(&mut self) {
        let enough = 2 * self.keys.len() + 64;
        let keys = &self.keys;
        let open = |place: u32, number: u64| keys.get(place).is_some_and(|slot| slot.value.number == number);
        if self.due.len() > enough {
            self.due.retain(|(_, place, number)| open(*place, *number));
        }
        if self.events.len() > enough {
            self.events.retain(|Reverse((_, place, number))| open(*place, *number));
        }
    }

    /// Emits the batch of a key and forgets it.
    fn cut(&mut self, place: u32, outlet: &mut Outlet<'_, Keyed<Vec<T>>>) {
        let slot = self.keys.remove(place);
        let pending = slot.value;
        for place in 0..pending.stored as u64 {
            outlet.rows.delete(slot.hash.bucket(), slot.key.as_deref(), &place.to_be_bytes());
        }
        if !outlet.rows.kept() {
            self.held.emit(pending.epoch, outlet.epoch, pending.values.len());
        }
        // A record that was late already when it came must not make its batch late.
        let mut meta = outlet.meta_of_many(pending.event.max(outlet.hand));
        meta.timestamp = pending.timestamp;
        let value = Keyed { key: slot.key, hash: slot.hash, value: pending.values };
        outlet.results.push(Element { value, meta });
    }

    fn is_open(&self, place: u32, number: u64) -> bool {
        self.keys.get(place).is_some_and(|slot| slot.value.number == number)
    }

    /// Cuts batches from the oldest on, while `wanted` says so and there is room.
    fn cut_oldest(
        &mut self,
        max: usize,
        wanted: impl Fn(Duration) -> bool,
        outlet: &mut Outlet<'_, Keyed<Vec<T>>>,
    ) -> Closing {
        let mut left = max;
        while let Some((due, place, number)) = self.due.front().copied() {
            let open = self.is_open(place, number);
            if open && !wanted(due) {
                break;
            }
            if open && left == 0 {
                return Closing::More;
            }
            self.due.pop_front();
            if open {
                left -= 1;
                self.cut(place, outlet);
            }
        }
        Closing::Done
    }
}

impl<T: Data> KeyedLogic for CollectBatch<T> {
    type In = T;
    type Out = Keyed<Vec<T>>;

    fn version(&self) -> u8 {
        COLLECT_BATCH_STATE_VERSION
    }

    fn acts_on_watermarks(&self) -> bool {
        false
    }

    fn lateness_ms(&self) -> i64 {
        0
    }

    fn state_rows(&self) -> usize {
        self.keys.len()
    }

    fn restore(&mut self, row: &KeyRow, hash: KeyHash) -> Result<(), StateError> {
        let place = row.sub[..].try_into().map(u64::from_be_bytes);
        let place = place.map_err(|_| StateError::Damaged("no place in a batch in its sub-key"))?;
        let (record, rest) = postcard::take_from_bytes(&row.value)
            .map_err(|_| StateError::Damaged("it is not a record that this step keeps"))?;
        if !rest.is_empty() {
            return Err(StateError::Damaged("more bytes than a record that this step keeps"));
        }
        self.restoring.push(Restoring { hash, key: row.key.clone(), place, record });
        Ok(())
    }

    fn restored(&mut self, first: Epoch, now: Duration) -> Result<(), StateError> {
        let mut rows = std::mem::take(&mut self.restoring);
        rows.sort_by(|left, right| (&left.key, left.place).cmp(&(&right.key, right.place)));
        for Restoring { hash, key, place, record } in rows {
            let (slot, _) = self.open((hash, key.as_deref()), record.event, first, now);
            let pending = &mut self.keys.at_mut(slot).value;
            if pending.values.len() as u64 != place {
                return Err(StateError::Damaged("a record of a batch is missing"));
            }
            pending.push(record.event, record.timestamp, record.value);
            pending.stored += 1;
        }
        Ok(())
    }

    fn apply(
        &mut self,
        record: Element<Keyed<T>>,
        _: EventTime,
        outlet: &mut Outlet<'_, Self::Out>,
    ) -> Result<Applied, RecordError> {
        let Element { value: Keyed { key, hash, value }, meta } = record;
        let volatile = !outlet.rows.kept();
        let (place, new) = self.open((hash, key.as_deref()), meta.event, outlet.epoch, outlet.now);
        if volatile {
            self.held.record();
            if new {
                self.held.open(outlet.epoch);
            }
        }
        let pending = &mut self.keys.at_mut(place).value;
        pending.push(meta.event, meta.timestamp, value);
        if pending.values.len() >= self.limits.records_max {
            self.cut(place, outlet);
        } else if !volatile {
            self.keys.touch(place);
        }
        Ok(Applied::Taken)
    }

    fn earliest_result(&mut self) -> Option<EventTime> {
        while let Some(Reverse((bound, place, number))) = self.events.peek().copied() {
            match self.keys.get(place).filter(|slot| slot.value.number == number) {
                Some(slot) if slot.value.event > bound => {
                    let event = slot.value.event;
                    self.events.pop();
                    self.events.push(Reverse((event, place, number)));
                }
                Some(_) => return Some(bound),
                None => {
                    self.events.pop();
                }
            }
        }
        None
    }

    fn hand_out(&mut self, _: EventTime, max: usize, outlet: &mut Outlet<'_, Self::Out>) -> Closing {
        let (now, all) = (outlet.now, self.cut_early);
        let closing = self.cut_oldest(max, |due| all || due <= now, outlet);
        if closing == Closing::Done {
            self.cut_early = false;
        }
        closing
    }

    fn hand_out_last(&mut self, last: LastEpoch, max: usize, outlet: &mut Outlet<'_, Self::Out>) -> Closing {
        if last == LastEpoch::Stop && outlet.rows.kept() {
            return Closing::Done;
        }
        self.cut_oldest(max, |_| true, outlet)
    }

    fn snapshot(&mut self, rows: &mut StepRows) {
        self.keys.visit_changed(|slot| {
            let (bucket, key) = (slot.hash.bucket(), slot.key.as_deref());
            let pending = &mut slot.value;
            let (event, timestamp) = (pending.event, pending.timestamp);
            for (value, place) in pending.values.iter().zip(0_u64..).skip(pending.stored) {
                rows.put(bucket, key, &place.to_be_bytes(), |out| {
                    *out =
                        postcard::to_extend(&StoredRecord { event, timestamp, value }, std::mem::take(out))
                            .expect("a value that can travel can be encoded");
                });
            }
            pending.stored = pending.values.len();
            Keep::Yes
        });
    }

    fn due_at(&self) -> Option<Duration> {
        self.due.front().map(|(due, _, _)| *due)
    }

    fn holds_without_store(&self) -> bool {
        true
    }

    fn held_epoch(&mut self, released: &dyn Fn(Epoch) -> bool) -> Option<Epoch> {
        self.held.oldest(released)
    }

    fn held_records(&self) -> usize {
        self.held.records()
    }

    fn cut_early(&mut self) {
        self.cut_early = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::Ending;
    use crate::keyed::Wake;
    use crate::keyed::hand_driven::HandDriven;
    use crate::time::Time;

    type Batches = HandDriven<CollectBatch<i64>>;

    const LIMITS: BatchLimits = BatchLimits { records_max: 3, timeout: Duration::from_secs(10) };

    fn with_store() -> Batches {
        HandDriven::new(|| CollectBatch::new(LIMITS), OnError::Fail)
    }

    fn without_store() -> Batches {
        HandDriven::volatile(|| CollectBatch::new(LIMITS), OnError::Fail)
    }

    fn batches(step: &mut Batches) -> Vec<(u64, String, Vec<i64>)> {
        let results = step.take_results().into_iter();
        results.map(|(time, batch)| (time.epoch.0, batch.key_text(), batch.value.value)).collect()
    }

    fn batch(epoch: u64, key: &str, values: &[i64]) -> (u64, String, Vec<i64>) {
        (epoch, key.to_owned(), values.to_vec())
    }

    #[test]
    fn a_batch_comes_when_it_is_full_or_when_its_time_is_up() {
        let mut step = with_store();
        for (key, value) in [("a", 1), ("b", 10), ("a", 2), ("a", 3), ("a", 4)] {
            step.push(1, key, value);
        }
        step.frontier(2);
        assert_eq!(batches(&mut step), [batch(1, "a", &[1, 2, 3])]);
        assert_eq!(step.wake, Wake::After(LIMITS.timeout));
        step.now = Duration::from_secs(9);
        step.push(2, "c", 20);
        step.run();
        assert_eq!(batches(&mut step), []);
        step.now = Duration::from_secs(10);
        step.run();
        assert_eq!(batches(&mut step), [batch(2, "b", &[10]), batch(2, "a", &[4])]);
        assert_eq!(step.wake, Wake::After(Duration::from_secs(9)));
    }

    #[test]
    fn with_a_store_a_restart_goes_on_with_the_records_that_wait() {
        // L50
        let mut step = with_store();
        step.push(1, "a", 1);
        step.push(5, "a", 2);
        step.push(5, "b", 3);
        step.frontier(9);
        assert_eq!(step.stored_rows(), 3);
        assert_eq!(step.holds().results, Some(Time::new(Epoch(9), EventTime::MIN)), "they are state");
        step.restart_after(8);
        step.push(9, "a", 4);
        step.push(9, "a", 5);
        step.frontier(13);
        assert_eq!(batches(&mut step), [batch(9, "a", &[1, 2, 4])]);
        assert_eq!(step.stored_rows(), 2);
        step.now = Duration::from_secs(60);
        step.restart_after(12);
        step.run();
        assert_eq!(batches(&mut step), [], "their time begins anew with the process");
        step.now = Duration::from_secs(70);
        step.frontier(17);
        let mut left = batches(&mut step);
        left.sort();
        assert_eq!(left, [batch(13, "a", &[5]), batch(13, "b", &[3])]);
        assert_eq!(step.stored_rows(), 0);
    }

    #[test]
    fn without_a_store_the_oldest_record_holds_its_epoch_until_its_batch_is_acknowledged() {
        // Rule 2.4, behaviour 15
        let mut step = without_store();
        step.push(2, "a", 1);
        step.push(3, "b", 9);
        step.frontier(7);
        let holds = step.holds();
        assert_eq!(holds.rows, Some(Epoch(2)), "the committer waits");
        assert_eq!(holds.results.map(|time| time.epoch), Some(Epoch(7)), "nobody else does");
        step.push(7, "a", 2);
        step.push(7, "a", 3);
        step.run();
        assert_eq!(batches(&mut step), [batch(7, "a", &[1, 2, 3])]);
        assert_eq!((step.holds().rows, step.held_records()), (Some(Epoch(2)), 4));
        step.released.insert(Epoch(7));
        assert_eq!((step.holds().rows, step.held_records()), (Some(Epoch(3)), 1));
    }

    #[test]
    fn without_a_store_a_stop_leaves_nothing_behind() {
        let mut step = without_store();
        step.push(2, "a", 1);
        step.frontier(3);
        step.ending = Ending::Stop { last: Epoch(4) };
        step.empty();
        assert_eq!(batches(&mut step), [batch(4, "a", &[1])]);
        let holds = step.holds();
        assert_eq!((holds.results, holds.rows), (None, Some(Epoch(2))));
        step.released.insert(Epoch(4));
        assert_eq!(step.holds().rows, None);
    }

    #[test]
    fn with_a_store_a_stop_leaves_what_waits_in_the_snapshot_and_an_end_gives_it_out() {
        let mut step = with_store();
        step.push(2, "a", 1);
        step.frontier(3);
        step.ending = Ending::Stop { last: Epoch(4) };
        step.empty();
        assert_eq!((batches(&mut step), step.stored_rows()), (vec![], 1));
        step.restart_after(4);
        step.ending = Ending::End { last: Epoch(8) };
        step.empty();
        assert_eq!((batches(&mut step), step.stored_rows()), (vec![batch(8, "a", &[1])], 0));
    }

    #[test]
    fn too_many_held_records_cut_batches_early() {
        // E27
        let mut step = without_store();
        step.push(1, "a", 1);
        step.push(1, "b", 2);
        step.frontier(2);
        step.cut_early();
        step.run();
        assert_eq!(batches(&mut step), [batch(2, "a", &[1]), batch(2, "b", &[2])]);
        step.push(2, "a", 3);
        step.run();
        assert_eq!(batches(&mut step), [], "once");
    }

    #[test]
    fn a_batch_is_not_late_behind_the_step() {
        let mut step = with_store();
        let event = |ms| EventTime(ms);
        step.push_at(Time::new(Epoch(1), event(5)), "a", 1, event(7), event(5));
        step.hands(1, 100);
        assert_eq!(step.holds().results, Some(Time::new(Epoch(1), event(7))), "the hand waits for it");
        step.push_at(Time::new(Epoch(1), event(100)), "a", 2, event(120), event(100));
        step.run();
        assert_eq!(step.holds().results, Some(Time::new(Epoch(1), event(100))));
        // A record that is late already does not make its batch late.
        step.push_at(Time::new(Epoch(1), event(100)), "b", 3, event(2), event(100));
        step.now = LIMITS.timeout;
        step.run();
        for (time, batch) in step.take_results() {
            assert!(batch.meta.event >= time.event && batch.meta.watermark == time.event, "{batch:?}");
        }
    }

    #[test]
    fn batches_that_were_full_long_before_their_time_are_forgotten() {
        let mut step = with_store();
        for value in 0..30_000 {
            step.push(1, &(value % 10).to_string(), value);
        }
        step.frontier(2);
        assert_eq!(step.take_results().len(), 10_000);
        let logic = step.logic();
        assert!(
            logic.due.len() < 200 && logic.events.len() < 200,
            "{} {}",
            logic.due.len(),
            logic.events.len()
        );
    }
}

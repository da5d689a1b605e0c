//! The order in which a keyed step works: epochs, watermarks, slices, the last epoch.
//!
//! Guarantees:
//!
//! - Records of an epoch are applied when every earlier epoch is closed. An epoch is closed when the frontier
//!   has left it, each by itself also when the frontier jumps over several; the rows of a commit epoch are
//!   emitted before a record of a later one is touched.
//! - The watermark that the step acts on is the smaller of the event frontier and of the stamps in its buffer
//!   (records that left the input: the frontier no longer speaks for them). It never falls. An event hand at
//!   the maximum is no information.
//! - What is acted on is stored per key bucket. After a restart the step acts from the lowest watermark of its
//!   buckets, and each bucket refuses records by its own.
//! - Once the last epoch is agreed the acted-on watermark is frozen: workers let go one at a time, and each
//!   raises the frontier of the rest.
//! - Results are handed out in slices. Between two slices the step waits while the sinks of its process are
//!   over their limit.
//!
//! The machine knows no timely: what it buffers keeps a capability of an opaque type, and what it may still
//! emit stands in [`Holds`].

use super::buckets::Buckets;
use super::logic::{Applied, Closing, KeyedLogic, LastEpoch, Outlet, RecordError};
use super::rows::{KeyedRow, StepRows, read_row};
use crate::element::{Element, Keyed};
use crate::ending::Ending;
use crate::fault::Fault;
use crate::frontier::FrontierHands;
use crate::process::Sabotage;
use crate::record::{DeadLetters, OnError, Place};
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tidegate_recovery::{Bucket, Epoch, EpochSchedule, EventTime, KeyHash, RestoredRows, RowBuffer, StepId};

/// What a machine is told when it runs.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The frontier of its input.
    pub hands: FrontierHands,
    /// What is agreed about the end of the run.
    pub ending: Ending,
    /// Time since some fixed moment of this process.
    pub now: Duration,
    /// Milliseconds since the Unix epoch.
    pub wall_ms: i64,
    /// Results to hand out at most in this run.
    pub slice: usize,
    /// The sinks of this process are over their limit.
    pub crowded: bool,
    /// Rules that a test takes away.
    pub sabotage: &'a Sabotage,
}

/// Where a machine emits.
pub trait Emit<O, C> {
    /// Results of records that came with this capability.
    fn results_of(&mut self, capability: &C, results: &mut Vec<Element<O>>);
    /// Results at a time that the machine held.
    fn results_at(&mut self, time: Time, results: &mut Vec<Element<O>>);
    /// The changed rows of a commit epoch.
    fn rows(&mut self, epoch: Epoch, rows: RowBuffer);
}

/// What a keyed step does with records that it does not take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyedPolicies {
    /// With one that it fails on.
    pub on_error: OnError,
    /// Where late ones go; `None` drops them.
    pub late: Option<DeadLetters>,
}

impl KeyedPolicies {
    /// Whether a record may be needed after it was not taken.
    fn keep_records(&self) -> bool {
        self.late.is_some() || self.on_error.dead_letters().is_some()
    }
}

impl From<OnError> for KeyedPolicies {
    fn from(on_error: OnError) -> KeyedPolicies {
        KeyedPolicies { on_error, late: None }
    }
}

/// Why a record was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untaken {
    /// The step failed on it, as often as the policy says.
    Failed(RecordError),
    /// It came too late.
    Late,
}

/// Takes the records that a machine gives up under [`OnError::DeadLetter`] or [`KeyedPolicies::late`].
pub trait Bury<T, C> {
    /// A record that came with this capability. An error says why no dead letter can be written.
    fn bury(&mut self, capability: &C, record: &Element<Keyed<T>>, why: Untaken) -> Result<(), RecordError>;
}

/// When a machine wants to run again, besides new input and a moved frontier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Not by itself.
    Never,
    /// At once: it is in the middle of a slice.
    Now,
    /// When the sinks have room.
    WhenSinksHaveRoom,
    /// After this time.
    After(Duration),
}

/// What a machine may still emit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holds {
    /// No result comes at a time that is not at or above this one; `None`: none at all.
    pub results: Option<Time>,
    /// No row comes for an epoch before this one; `None`: none at all.
    pub rows: Option<Epoch>,
}

/// What a machine counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records taken.
    pub received: u64,
    /// Results emitted.
    pub emitted: u64,
    /// Records refused as late.
    pub late: u64,
    /// Records dropped because of an error.
    pub dropped: u64,
}

/// A record that the step cannot take, under [`OnError::Fail`]. The machine is of no use after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why.
    pub error: RecordError,
    /// Which record.
    pub place: Place,
}

/// Batches in the order in which they came; of the first, what is left.
type Records<T> = VecDeque<std::vec::IntoIter<Element<Keyed<T>>>>;

/// A keyed step on one worker.
pub struct Machine<L: KeyedLogic, C> {
    logic: L,
    policies: KeyedPolicies,
    schedule: EpochSchedule,
    rows: StepRows,
    /// By time: epochs in order, and within an epoch by the event hand, so that the records of a partition stay
    /// in order.
    buffer: BTreeMap<Time, (C, Records<L::In>)>,
    /// The oldest epoch that is not closed.
    current: Epoch,
    acted: EventTime,
    hand: EventTime,
    buckets: Buckets,
    frozen: bool,
    /// The last run ended because its slice was full.
    mid_slice: bool,
    finished: bool,
    counts: Counts,
    results: Vec<Element<L::Out>>,
}

fn next_record<T>(records: &mut Records<T>) -> Option<Element<Keyed<T>>> {
    loop {
        match records.front_mut()?.next() {
            None => records.pop_front(),
            some => return some,
        };
    }
}

/// Hash under which a step knows a key: of the null key only the bucket counts.
fn table_hash(key: Option<&[u8]>, bucket: Bucket) -> KeyHash {
    key.map_or(KeyHash(u64::from(bucket.0) << 54), KeyHash::of)
}

impl<L: KeyedLogic, C> Machine<L, C> {
    /// A machine for worker `worker` of `peers`, with the rows that the worker now owns.
    #[allow(clippy::too_many_arguments, reason = "each is another thing, and there is one caller")]
    pub fn new(
        step: &StepId,
        mut logic: L,
        policies: impl Into<KeyedPolicies>,
        schedule: EpochSchedule,
        rows: StepRows,
        (worker, peers): (usize, usize),
        restored: &RestoredRows,
        now: Duration,
        sabotage: &Sabotage,
    ) -> Result<Machine<L, C>, Fault> {
        let mut buckets = Buckets::new(worker, peers);
        for row in &restored.rows {
            let read = read_row(row, logic.version()).and_then(|row| match row {
                KeyedRow::Watermark(bucket, watermark) => {
                    buckets.restore(bucket, EventTime(watermark));
                    Ok(())
                }
                KeyedRow::Key(row) => {
                    let hash = table_hash(row.key.as_deref(), row.bucket);
                    logic.restore(&row, hash)
                }
            });
            read.map_err(|error| error.into_fault(step))?;
        }
        logic.restored(schedule.first, now).map_err(|error| error.into_fault(step))?;
        let acted = buckets.start(sabotage.largest_watermark);
        let current = schedule.first;
        let mut machine = Machine {
            logic,
            policies: policies.into(),
            schedule,
            rows,
            buffer: BTreeMap::new(),
            current,
            acted,
            hand: EventTime::MIN,
            buckets,
            frozen: false,
            mid_slice: false,
            finished: false,
            counts: Counts::default(),
            results: Vec::new(),
        };
        machine.move_hand(sabotage);
        Ok(machine)
    }

    /// Buffers records that arrived at `time`; `capability` is asked for when there is none at that time yet.
    pub fn push(&mut self, time: Time, capability: impl FnOnce() -> C, records: Vec<Element<Keyed<L::In>>>) {
        debug_assert!(time.epoch >= self.current, "the frontier had left the epoch of a record");
        self.buffer
            .entry(time)
            .or_insert_with(|| (capability(), Records::new()))
            .1
            .push_back(records.into_iter());
    }

    /// Does what can be done now.
    pub fn run(
        &mut self,
        around: &Surroundings<'_>,
        emit: &mut (impl Emit<L::Out, C> + Bury<L::In, C>),
    ) -> Result<Wake, Failure> {
        if self.finished {
            return Ok(Wake::Never);
        }
        if self.mid_slice && around.crowded {
            return Ok(Wake::WhenSinksHaveRoom);
        }
        let mut left = around.slice.max(1);
        self.mid_slice = !self.work(around, &mut left, emit)?;
        self.move_hand(around.sabotage);
        if self.mid_slice {
            return Ok(if around.crowded { Wake::WhenSinksHaveRoom } else { Wake::Now });
        }
        let due = self.logic.due_at().map(|due| Wake::After(due.saturating_sub(around.now)));
        Ok(due.unwrap_or(Wake::Never))
    }

    /// Works until there is nothing more to do (true) or the slice is full (false).
    fn work(
        &mut self,
        around: &Surroundings<'_>,
        left: &mut usize,
        emit: &mut (impl Emit<L::Out, C> + Bury<L::In, C>),
    ) -> Result<bool, Failure> {
        loop {
            if !self.apply_current(around, left, emit)? {
                return Ok(false);
            }
            self.act(around);
            let watermark = self.acted;
            if !self.hand_out(around, left, emit, |logic, max, outlet| logic.hand_out(watermark, max, outlet))
            {
                return Ok(false);
            }
            if !around.hands.has_left(self.current) {
                return Ok(true);
            }
            if around.ending.last() == Some(self.current) {
                let last = match around.ending {
                    Ending::End { .. } => LastEpoch::End,
                    _ => LastEpoch::Stop,
                };
                if !self
                    .hand_out(around, left, emit, |logic, max, outlet| logic.hand_out_last(last, max, outlet))
                {
                    return Ok(false);
                }
            }
            if !self.close_epoch(around, emit) {
                return Ok(true);
            }
        }
    }

    /// Applies what is buffered of the current epoch; false when the slice is full.
    fn apply_current(
        &mut self,
        around: &Surroundings<'_>,
        left: &mut usize,
        emit: &mut (impl Emit<L::Out, C> + Bury<L::In, C>),
    ) -> Result<bool, Failure> {
        while let Some(mut entry) = self.buffer.first_entry() {
            let time = *entry.key();
            let together = around.sabotage.close_epochs_together && around.hands.has_left(time.epoch);
            if time.epoch > self.current && !together {
                break;
            }
            if *left == 0 {
                return Ok(false);
            }
            let (capability, records) = entry.get_mut();
            let mut outlet = Outlet {
                results: &mut self.results,
                rows: &mut self.rows,
                epoch: self.current,
                hand: self.hand,
                now: around.now,
                wall_ms: around.wall_ms,
            };
            let mut failure = None;
            while let Some(mut record) = next_record(records) {
                let bucket = record.value.hash.bucket();
                if record.value.key.is_none() {
                    record.value.hash = table_hash(None, bucket);
                }
                let floor = self.acted.max(self.buckets.of(bucket));
                let place = Place::of(&record.meta);
                self.counts.received += 1;
                let kept = self.policies.keep_records().then(|| record.clone());
                let mut applied = self.logic.apply(record, floor, &mut outlet);
                for _ in 1..self.policies.on_error.attempts() {
                    let (Err(_), Some(kept)) = (&applied, &kept) else { break };
                    applied = self.logic.apply(kept.clone(), floor, &mut outlet);
                }
                let outcome = match applied {
                    Ok(Applied::Taken) => Ok(()),
                    Ok(Applied::Late) => {
                        self.counts.late += 1;
                        match kept.filter(|_| self.policies.late.is_some()) {
                            Some(record) => emit.bury(capability, &record, Untaken::Late),
                            None => Ok(()),
                        }
                    }
                    Err(error) => match (&self.policies.on_error, kept) {
                        (OnError::Drop, _) => {
                            self.counts.dropped += 1;
                            Ok(())
                        }
                        (OnError::DeadLetter(_), Some(record)) => {
                            emit.bury(capability, &record, Untaken::Failed(error))
                        }
                        _ => Err(error),
                    },
                };
                if let Err(error) = outcome {
                    failure = Some(Failure { error, place });
                    break;
                }
                if outlet.results.len() >= *left {
                    break;
                }
            }
            if !outlet.results.is_empty() {
                *left = left.saturating_sub(outlet.results.len());
                self.counts.emitted += outlet.results.len() as u64;
                emit.results_of(capability, outlet.results);
                outlet.results.clear();
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
            if records.iter().all(|batch| batch.len() == 0) {
                entry.remove();
            }
        }
        Ok(true)
    }

    /// Moves the acted-on watermark.
    fn act(&mut self, around: &Surroundings<'_>) {
        let sabotage = around.sabotage;
        if around.ending.is_agreed() && !sabotage.do_not_freeze {
            self.frozen = true;
        }
        if sabotage.empty_frontier_is_the_end && around.hands.epoch.is_none() {
            self.acted = EventTime::MAX;
        }
        if self.frozen || around.hands.epoch.is_none() || around.hands.event == EventTime::MAX {
            return;
        }
        let mut watermark = around.hands.event;
        if !sabotage.ignore_buffer_stamps {
            watermark = self.buffer.keys().map(|time| time.event).fold(watermark, EventTime::min);
        }
        self.acted = self.acted.max(watermark);
    }

    /// Hands out a slice under the machine's own hand; false when there is more.
    fn hand_out(
        &mut self,
        around: &Surroundings<'_>,
        left: &mut usize,
        emit: &mut impl Emit<L::Out, C>,
        hand_out: impl FnOnce(&mut L, usize, &mut Outlet<'_, L::Out>) -> Closing,
    ) -> bool {
        let mut outlet = Outlet {
            results: &mut self.results,
            rows: &mut self.rows,
            epoch: self.current,
            hand: self.hand,
            now: around.now,
            wall_ms: around.wall_ms,
        };
        let closing = hand_out(&mut self.logic, *left, &mut outlet);
        if !self.results.is_empty() {
            debug_assert!(
                self.results.iter().all(|result| result.meta.event >= self.hand)
                    || *around.sabotage != Sabotage::default(),
                "a result below the step's event hand"
            );
            *left = left.saturating_sub(self.results.len());
            self.counts.emitted += self.results.len() as u64;
            emit.results_at(Time::new(self.current, self.hand), &mut self.results);
            self.results.clear();
        }
        closing == Closing::Done
    }

    /// Closes the current epoch, which the frontier has left; false when it was the last of all.
    fn close_epoch(&mut self, around: &Surroundings<'_>, emit: &mut impl Emit<L::Out, C>) -> bool {
        if self.schedule.is_commit(self.current) {
            self.logic.snapshot(&mut self.rows);
            if self.logic.acts_on_watermarks() {
                self.buckets.put(self.acted, &mut self.rows);
            }
            let rows = self.rows.take();
            if !rows.is_empty() {
                emit.rows(self.current, rows);
            }
        }
        let buffered = self.buffer.keys().next().map(|time| time.epoch);
        let open = match around.hands.epoch {
            Some(open) => open,
            None => {
                // Nothing comes any more: the agreed last epoch is closed too, so that its rows are complete.
                let last = around.ending.last();
                let last = last.unwrap_or_else(|| self.schedule.commit_at_or_after(self.current));
                if self.current >= last && buffered.is_none() {
                    self.finished = true;
                    return false;
                }
                last.max(self.current.next())
            }
        };
        // Of the epochs that the frontier jumped over, only those need a visit in which something happens: the
        // next with records, the last of all, and the commit epoch that snapshots what was changed.
        let mut next = open.min(buffered.unwrap_or(open));
        if !self.schedule.is_commit(self.current) {
            next = next.min(self.schedule.commit_at_or_after(self.current));
        }
        if let Some(last) = around.ending.last().filter(|last| *last > self.current) {
            next = next.min(last);
        }
        self.current = next;
        true
    }

    /// Moves the hand behind which no result can appear any more.
    fn move_hand(&mut self, sabotage: &Sabotage) {
        let lateness = if sabotage.forget_lateness_hold { 0 } else { self.logic.lateness_ms() };
        // At the minimum nothing is known yet, and subtracting keeps it there.
        let may_appear = self.acted.saturating_sub(lateness);
        let pending = self.logic.earliest_result().unwrap_or(EventTime::MAX);
        let hand = may_appear.min(pending);
        if hand != EventTime::MAX {
            self.hand = self.hand.max(hand);
        }
    }

    /// What may still be emitted. `released` says, for a step that keeps records without a store, whether
    /// everything that it emitted in an epoch is acknowledged.
    pub fn holds(&mut self, released: &dyn Fn(Epoch) -> bool) -> Holds {
        let results = (!self.finished).then_some(Time::new(self.current, self.hand));
        let rows = if self.rows.kept() {
            (!self.finished).then(|| self.schedule.commit_at_or_after(self.current))
        } else if self.logic.holds_without_store() {
            let held = self.logic.held_epoch(released);
            let open = (!self.finished).then_some(self.current);
            held.into_iter().chain(open).min()
        } else {
            None
        };
        Holds { results, rows }
    }

    /// Rows of state that the step keeps here.
    pub fn state_rows(&self) -> usize {
        self.logic.state_rows()
    }

    /// Records held for a replay, without a store.
    pub fn held_records(&self) -> usize {
        self.logic.held_records()
    }

    /// Too many records are held for a replay: what is pending is due now.
    pub fn cut_early(&mut self) {
        self.logic.cut_early();
    }

    /// What was counted since the last call.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// The oldest epoch that is not closed.
    pub fn current(&self) -> Epoch {
        self.current
    }

    /// Whether it stopped because a slice was full.
    pub fn is_mid_slice(&self) -> bool {
        self.mid_slice
    }

    /// What it runs.
    pub fn logic(&self) -> &L {
        &self.logic
    }

    /// The watermark that it acts on.
    pub fn acted_on(&self) -> EventTime {
        self.acted
    }
}

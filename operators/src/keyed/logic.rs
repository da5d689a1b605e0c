//! What a keyed step must know to be run by [`super::keyed_step`].

use super::rows::{KeyRow, StateError, StepRows};
use crate::element::{Data, Element, Keyed, Meta};
use std::time::Duration;
use tidegate_recovery::{Epoch, EventTime, KeyHash};

/// Whether there is more to hand out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Everything that was asked for is handed out.
    Done,
    /// The slice is full: call again.
    More,
}

/// Why a step cannot take a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordError(pub String);

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It was used.
    Taken,
    /// It came too late and changed nothing.
    Late,
}

/// How a run comes to its last epoch, as a step sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastEpoch {
    /// A stop: what is pending stays in the snapshot. Without a store it is emitted, or nobody would have it.
    Stop,
    /// The end of a bounded run: what is pending is emitted.
    End,
}

/// What a step writes to while it works.
pub struct Outlet<'a, O> {
    /// Results, in order.
    pub results: &'a mut Vec<Element<O>>,
    /// Changed rows.
    pub rows: &'a mut StepRows,
    /// The epoch that is worked on.
    pub epoch: Epoch,
    /// The step's event hand: the watermark of a result that is made of several records.
    pub hand: EventTime,
    /// Time since some fixed moment of this process.
    pub now: Duration,
    /// Milliseconds since the Unix epoch.
    pub wall_ms: i64,
}

impl<O> Outlet<'_, O> {
    /// Meta of a result that is made of several records, at this event time.
    pub fn meta_of_many(&self, event: EventTime) -> Meta {
        Meta {
            partition: crate::element::PartitionId::NONE,
            offset: -1,
            timestamp: Some(event.0),
            event,
            watermark: self.hand,
            headers: crate::element::Headers::default(),
            original: None,
        }
    }
}

/// The pure part of a keyed step: records, watermarks and moments go in, results and rows come out.
pub trait KeyedLogic: 'static {
    /// Values that come in.
    type In: Data;
    /// Values that go out.
    type Out: Data;

    /// Version of its rows.
    fn version(&self) -> u8;

    /// Whether it acts on watermarks: they are then part of its state.
    fn acts_on_watermarks(&self) -> bool;

    /// How far below the acted-on watermark a new result may appear, in milliseconds.
    fn lateness_ms(&self) -> i64;

    /// Takes a row back. `hash` is the hash of its key.
    fn restore(&mut self, row: &KeyRow, hash: KeyHash) -> Result<(), StateError>;

    /// All rows are back; the first epoch of the run is `first`.
    fn restored(&mut self, first: Epoch, now: Duration) -> Result<(), StateError> {
        let _ = (first, now);
        Ok(())
    }

    /// Applies a record. `floor` is the watermark that the record's bucket has acted on; the record carries its
    /// own partition's. After an error nothing has changed.
    fn apply(
        &mut self,
        record: Element<Keyed<Self::In>>,
        floor: EventTime,
        outlet: &mut Outlet<'_, Self::Out>,
    ) -> Result<Applied, RecordError>;

    /// The event time of the earliest result that may come of what is pending.
    fn earliest_result(&mut self) -> Option<EventTime>;

    /// Hands out up to `max` results that are due because of the watermark or of the time.
    fn hand_out(&mut self, watermark: EventTime, max: usize, outlet: &mut Outlet<'_, Self::Out>) -> Closing;

    /// Hands out up to `max` results of what is pending when the last epoch closes.
    fn hand_out_last(&mut self, last: LastEpoch, max: usize, outlet: &mut Outlet<'_, Self::Out>) -> Closing;

    /// Puts the rows that changed since the last call.
    fn snapshot(&mut self, rows: &mut StepRows);

    /// When the time makes something due, if it does.
    fn due_at(&self) -> Option<Duration> {
        None
    }

    /// Rows of state that are kept: keys, or keys of open windows.
    fn state_rows(&self) -> usize;

    /// Whether it holds epochs for a replay when there is no store.
    fn holds_without_store(&self) -> bool {
        false
    }

    /// Without a store: the oldest epoch of a record whose result is not acknowledged. `released` says whether
    /// everything that the step emitted in an epoch is.
    fn held_epoch(&mut self, released: &dyn Fn(Epoch) -> bool) -> Option<Epoch> {
        let _ = released;
        None
    }

    /// Without a store: how many records are held for a replay.
    fn held_records(&self) -> usize {
        0
    }

    /// Too many records are held for a replay: what is pending is due now.
    fn cut_early(&mut self) {}
}

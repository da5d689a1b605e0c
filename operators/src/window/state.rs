//! The windows of one worker: the pure machine behind the step.

use super::aggregate::{AggregateError, Aggregator};
use super::order::{Order, PartitionNames};
use super::panes::Panes;
use super::sessions::Sessions;
use super::spec::{WindowError, WindowSpec};
use crate::keyed::{Applied, Closing, KeyRow, StateError, StepRows};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidegate_recovery::{EventTime, KeyHash};

/// A window's result, with the window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windowed<O> {
    /// First event time of the window (of a session: of its first record).
    #[serde(rename = "window_start")]
    pub start: EventTime,
    /// First event time behind the window (of a session: its last record plus the gap).
    #[serde(rename = "window_end")]
    pub end: EventTime,
    /// The result.
    pub value: O,
}

/// A result as the machine gives it out.
#[derive(Clone, Debug, PartialEq)]
pub struct Fired<O> {
    /// The key; `None` is the null key.
    pub key: Option<Bytes>,
    /// Its hash.
    pub hash: KeyHash,
    /// The window and its result.
    pub windowed: Windowed<O>,
}

impl<O> Fired<O> {
    pub(super) fn new(key: Option<Bytes>, hash: KeyHash, (start, end): (i64, i64), value: O) -> Fired<O> {
        Fired { key, hash, windowed: Windowed { start: EventTime(start), end: EventTime(end), value } }
    }
}

/// A record on its way into the windows.
#[derive(Clone, Copy, Debug)]
pub struct WindowRecord<'a, T> {
    /// The key; `None` is the null key.
    pub key: Option<&'a [u8]>,
    /// Its hash.
    pub hash: KeyHash,
    /// Event time and place.
    pub order: Order,
    /// The larger of the watermark that the record carries and of the one that its bucket acted on: windows
    /// that this watermark has closed refuse the record.
    pub watermark: EventTime,
    /// The value.
    pub value: &'a T,
}

/// The windows of one worker.
///
/// ```
/// use tidegate_operators::keyed::StepRows;
/// use tidegate_operators::element::PartitionId;
/// use tidegate_operators::window::*;
/// use tidegate_recovery::{EventTime, KeyHash};
///
/// let mut windows = WindowState::new(Tumbling::secs(60).into(), count(), PartitionNames::default()).unwrap();
/// let mut rows = StepRows::volatile();
/// for event in [1_000, 59_999, 60_000] {
///     let order = Order { event: EventTime(event), partition: PartitionId(0), offset: event };
///     let (key, hash) = (Some(&b"k"[..]), KeyHash::of(b"k"));
///     let record = WindowRecord { key, hash, order, watermark: EventTime::MIN, value: &() };
///     windows.apply(record, &mut rows).unwrap();
/// }
/// let mut fired = Vec::new();
/// windows.close(EventTime(60_000), 100, &mut rows, &mut fired);
/// assert_eq!(fired[0].windowed.value, 2);
/// ```
pub struct WindowState<T, A: Aggregator<T>> {
    spec: WindowSpec,
    aggregate: A,
    names: PartitionNames,
    input: A::Input,
    windows: Windows<T, A>,
    open_cursor: Option<OpenCursor>,
}

/// Panes with fixed borders, or sessions.
enum Windows<T, A: Aggregator<T>> {
    Panes(Panes<A::State>),
    Sessions(Sessions<A::State>),
}

/// How far [`WindowState::fire_open`] has come: end and place of the next window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OpenCursor {
    pub(super) end: i64,
    pub(super) row: usize,
}

impl<T, A: Aggregator<T>> WindowState<T, A> {
    /// No windows yet. `names` are the run's input partitions.
    pub fn new(
        spec: WindowSpec,
        aggregate: A,
        names: PartitionNames,
    ) -> Result<WindowState<T, A>, WindowError> {
        spec.check()?;
        let windows = match spec.borders() {
            Some((size, every)) => Windows::Panes(Panes::new(size, every, spec.align, spec.lateness)),
            None => Windows::Sessions(Sessions::new(&spec)),
        };
        Ok(WindowState { spec, aggregate, names, input: A::Input::default(), windows, open_cursor: None })
    }

    /// The definition.
    pub fn spec(&self) -> &WindowSpec {
        &self.spec
    }

    /// Adds a record to the windows that it belongs to. After an error nothing has changed.
    pub fn apply(
        &mut self,
        record: WindowRecord<'_, T>,
        rows: &mut StepRows,
    ) -> Result<Applied, AggregateError> {
        self.aggregate.input(record.value, &mut self.input)?;
        let Self { aggregate, names, input, .. } = self;
        match &mut self.windows {
            Windows::Panes(panes) => panes.apply(&record, aggregate, input, names, rows.kept()),
            Windows::Sessions(sessions) => sessions.apply(&record, aggregate, input, names, rows),
        }
    }

    /// The smallest result that may still come of what is there: the end of the earliest window, less one.
    pub fn earliest_result(&self) -> Option<EventTime> {
        let end = match &self.windows {
            Windows::Panes(panes) => panes.earliest_end(),
            Windows::Sessions(sessions) => sessions.earliest_end(),
        };
        end.map(|end| EventTime(end - 1))
    }

    /// Gives out, and forgets, up to `max` windows that `watermark` has closed, the earliest end first.
    pub fn close(
        &mut self,
        watermark: EventTime,
        max: usize,
        rows: &mut StepRows,
        fired: &mut Vec<Fired<A::Out>>,
    ) -> Closing {
        match &mut self.windows {
            Windows::Panes(panes) => panes.close(watermark, max, &self.aggregate, rows, fired),
            Windows::Sessions(sessions) => sessions.close(watermark, max, &self.aggregate, rows, fired),
        }
    }

    /// Gives out every window that is there, `max` at a time, without forgetting any. Between the first call
    /// and the one that says [`Closing::Done`] no record may be added.
    pub fn fire_open(&mut self, max: usize, fired: &mut Vec<Fired<A::Out>>) -> Closing {
        let from = self.open_cursor.unwrap_or(OpenCursor { end: i64::MIN, row: 0 });
        self.open_cursor = match &self.windows {
            Windows::Panes(panes) => panes.fire_open(from, max, &self.aggregate, fired),
            Windows::Sessions(sessions) => sessions.fire_open(from, max, &self.aggregate, fired),
        };
        if self.open_cursor.is_some() { Closing::More } else { Closing::Done }
    }

    /// Puts the rows that changed since the last call.
    pub fn snapshot(&mut self, rows: &mut StepRows) {
        match &mut self.windows {
            Windows::Panes(panes) => panes.snapshot(&self.aggregate, &self.names, rows),
            Windows::Sessions(sessions) => sessions.snapshot(&self.aggregate, &self.names, rows),
        }
    }

    /// Takes a row back. `hash` is the hash of its key.
    pub fn restore(&mut self, row: &KeyRow, hash: KeyHash) -> Result<(), StateError> {
        match &mut self.windows {
            Windows::Panes(panes) => panes.restore(row, hash, &self.aggregate, &mut self.names),
            Windows::Sessions(sessions) => sessions.restore(row, hash, &self.aggregate, &mut self.names),
        }
    }

    /// Number of open windows, counted per key.
    pub fn open_windows(&self) -> usize {
        match &self.windows {
            Windows::Panes(panes) => panes.len(),
            Windows::Sessions(sessions) => sessions.len(),
        }
    }
}

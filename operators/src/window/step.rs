//! Windows as a step of a flow.

use super::aggregate::Aggregator;
use super::order::{Order, PartitionNames};
use super::spec::{WindowError, WindowKind, WindowSpec};
use super::state::{Fired, WindowRecord, WindowState, Windowed};
use crate::batch::ElementStream;
use crate::build::FlowBuild;
use crate::element::{Data, Element, Keyed, Meta};
use crate::keyed::{
    Applied, Closing, KeyRow, KeyedLogic, KeyedPolicies, LastEpoch, Outlet, RecordError, StateError,
    StepRows, keyed_step,
};
use crate::process::Sabotage;
use crate::record::{DeadLetters, OnError, RecordOf, as_record};
use crate::steps::StepSpec;
use tidegate_recovery::{EventTime, KeyHash, StepId};

/// What a window step does with a record that comes after all its windows are closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LatePolicy {
    /// The record is dropped and counted.
    #[default]
    Drop,
    /// The record goes to a topic for dead letters.
    DeadLetter(DeadLetters),
}

/// The settings of a window step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowSettings {
    /// Which windows.
    pub windows: WindowSpec,
    /// What becomes of late records.
    pub late: LatePolicy,
    /// What becomes of a record that the aggregate cannot take.
    pub on_error: OnError,
}

impl<W: Into<WindowSpec>> From<W> for WindowSettings {
    fn from(windows: W) -> WindowSettings {
        WindowSettings { windows: windows.into(), late: LatePolicy::default(), on_error: OnError::default() }
    }
}

impl WindowSettings {
    /// Late records go to a topic for dead letters.
    pub fn late_to(mut self, letters: impl Into<DeadLetters>) -> WindowSettings {
        self.late = LatePolicy::DeadLetter(letters.into());
        self
    }

    /// What becomes of a record that the aggregate cannot take.
    pub fn on_error(mut self, on_error: OnError) -> WindowSettings {
        self.on_error = on_error;
        self
    }

    fn policies(self) -> KeyedPolicies {
        let late = match self.late {
            LatePolicy::Drop => None,
            LatePolicy::DeadLetter(letters) => Some(letters),
        };
        KeyedPolicies { on_error: self.on_error, late }
    }

    /// The step in the table of steps. Windows and aggregates shape its state; lateness and policies do not.
    pub fn step_spec<T, A: Aggregator<T>>(&self, id: StepId, aggregate: &A) -> StepSpec {
        let spec = StepSpec::stateful(id, "window", u16::from(WINDOW_STATE_VERSION));
        let spec = match self.windows.kind {
            WindowKind::Tumbling { size } => spec.parameter("tumbling", size),
            WindowKind::Sliding { size, every } => spec.parameter("size", size).parameter("every", every),
            WindowKind::Session { gap } => spec.parameter("gap", gap),
        };
        spec.parameter("align", self.windows.align).parameter("aggregate", aggregate.shape())
    }
}

/// Version of the rows of a window step.
pub const WINDOW_STATE_VERSION: u8 = 1;

/// Gives one result per key and window when the window is closed; the stream has passed `event_time` and
/// `key_by`. A result's timestamp and event time are the end of its window less one millisecond; at the end of a bounded run a
/// window that ends in the future has the time of that end as timestamp.
pub fn window<'s, T: Data, A>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, Keyed<T>>,
    settings: impl Into<WindowSettings>,
    aggregate: A,
) -> Result<ElementStream<'s, Keyed<Windowed<A::Out>>>, WindowError>
where
    A: Aggregator<T>,
    A::Out: Data,
{
    window_of(build, step, stream, settings, as_record, aggregate)
}

/// The same where a dead letter has a form of its own for a value whose record is not kept.
pub fn window_of<'s, T: Data, A>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, Keyed<T>>,
    settings: impl Into<WindowSettings>,
    record_of: RecordOf<T>,
    aggregate: A,
) -> Result<ElementStream<'s, Keyed<Windowed<A::Out>>>, WindowError>
where
    A: Aggregator<T>,
    A::Out: Data,
{
    let settings = settings.into();
    let context = build.context();
    let names = PartitionNames::new(context.inputs().iter().map(|(_, input)| input.name.clone()));
    let logic = WindowLogic::new(&settings, aggregate, names, &context.sabotage())?;
    Ok(keyed_step(build, stream, step, logic, settings.policies(), record_of))
}

/// The windows of one worker as a [`KeyedLogic`].
pub struct WindowLogic<T, A: Aggregator<T>> {
    windows: WindowState<T, A>,
    fired: Vec<Fired<A::Out>>,
    /// A rule that a test takes away.
    session_by_step_only: bool,
}

impl<T: Data, A: Aggregator<T>> WindowLogic<T, A>
where
    A::Out: Data,
{
    /// No windows yet. `names` are the run's input partitions.
    pub fn new(
        settings: &WindowSettings,
        aggregate: A,
        names: PartitionNames,
        sabotage: &Sabotage,
    ) -> Result<WindowLogic<T, A>, WindowError> {
        let session = matches!(settings.windows.kind, WindowKind::Session { .. });
        Ok(WindowLogic {
            windows: WindowState::new(settings.windows, aggregate, names)?,
            fired: Vec::new(),
            session_by_step_only: session && sabotage.sessions_ignore_partition_watermark,
        })
    }

    /// Emits what was fired; no timestamp lies behind `latest`, as far as it lies in its window.
    fn emit(&mut self, latest: i64, outlet: &mut Outlet<'_, Keyed<Windowed<A::Out>>>) {
        outlet.results.reserve(self.fired.len());
        for Fired { key, hash, windowed } in self.fired.drain(..) {
            let event = EventTime(windowed.end.0.saturating_sub(1));
            let timestamp = event.0.min(latest.max(windowed.start.0));
            let meta = Meta { timestamp: Some(timestamp), ..outlet.meta_of_many(event) };
            outlet.results.push(Element { value: Keyed { key, hash, value: windowed }, meta });
        }
    }
}

impl<T: Data, A: Aggregator<T>> KeyedLogic for WindowLogic<T, A>
where
    A::Out: Data,
{
    type In = T;
    type Out = Keyed<Windowed<A::Out>>;

    fn version(&self) -> u8 {
        WINDOW_STATE_VERSION
    }

    fn acts_on_watermarks(&self) -> bool {
        true
    }

    fn state_rows(&self) -> usize {
        self.windows.open_windows()
    }

    fn lateness_ms(&self) -> i64 {
        self.windows.spec().lateness
    }

    fn restore(&mut self, row: &KeyRow, hash: KeyHash) -> Result<(), StateError> {
        self.windows.restore(row, hash)
    }

    fn apply(
        &mut self,
        record: Element<Keyed<T>>,
        floor: EventTime,
        outlet: &mut Outlet<'_, Self::Out>,
    ) -> Result<Applied, RecordError> {
        let own = if self.session_by_step_only { EventTime::MIN } else { record.meta.watermark };
        let window_record = WindowRecord {
            key: record.value.key.as_deref(),
            hash: record.value.hash,
            order: Order::of(&record.meta),
            watermark: own.max(floor),
            value: &record.value.value,
        };
        let applied = self.windows.apply(window_record, outlet.rows);
        applied.map_err(|error| RecordError(error.to_string()))
    }

    fn earliest_result(&mut self) -> Option<EventTime> {
        self.windows.earliest_result()
    }

    fn hand_out(&mut self, watermark: EventTime, max: usize, outlet: &mut Outlet<'_, Self::Out>) -> Closing {
        let closing = self.windows.close(watermark, max, outlet.rows, &mut self.fired);
        self.emit(i64::MAX, outlet);
        closing
    }

    fn hand_out_last(&mut self, last: LastEpoch, max: usize, outlet: &mut Outlet<'_, Self::Out>) -> Closing {
        match last {
            LastEpoch::Stop => Closing::Done,
            LastEpoch::End => {
                let closing = self.windows.fire_open(max, &mut self.fired);
                // A window of now ends in the future, and topics refuse timestamps from there.
                self.emit(outlet.wall_ms, outlet);
                closing
            }
        }
    }

    fn snapshot(&mut self, rows: &mut StepRows) {
        self.windows.snapshot(rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{Tumbling, count, sum};

    #[test]
    fn another_window_or_aggregate_is_another_state_and_another_lateness_is_not() {
        // S12
        let id = || StepId::new("per-minute");
        let both = || count().and(sum(|amount: &i64| *amount));
        let settings = WindowSettings::from(Tumbling::minutes(1));
        let spec = settings.step_spec(id(), &both());
        let late = WindowSpec::from(Tumbling::minutes(1)).lateness(std::time::Duration::from_secs(9));
        assert_eq!(spec, WindowSettings::from(late).step_spec(id(), &both()));
        assert_ne!(spec, WindowSettings::from(Tumbling::minutes(2)).step_spec(id(), &both()));
        assert_ne!(spec, settings.step_spec::<i64, _>(id(), &count()));
        assert_eq!(spec.parameters["aggregate"], "count,sum");
    }
}

//! A keyed step as a timely operator: the thin shell around [`Machine`].

use super::logic::{KeyedLogic, RecordError};
use super::machine::{
    Bury, Counts, Emit, Failure, Holds, KeyedPolicies, Machine, Surroundings, Untaken, Wake,
};
use super::rows::StepRows;
use crate::batch::{ElementStream, Parcel};
use crate::build::{FlowBuild, SnapshotRows};
use crate::context::{StepHandle, WorkerContext};
use crate::element::{Data, Element, Keyed, Record};
use crate::fault::Fault;
use crate::frontier::FrontierHands;
use crate::record::{DeadLetters, FailureClass, LetterBox, RecordOf};
use crate::status::Hold;
use crate::time::Time;
use crate::wake::WakeUp;
use std::cell::Cell;
use std::fmt::Display;
use std::time::Duration;
use tidegate_recovery::{Epoch, ErrorClass, EventTime, RowBuffer, StepId};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::generic::{OutputBuilder, OutputBuilderSession};

/// How soon a step that waits for the sinks looks again.
const SINK_WAIT: Duration = Duration::from_millis(2);

type ResultsOutput<O> = CapacityContainerBuilder<Parcel<Element<O>>>;
type RowsOutput = CapacityContainerBuilder<Vec<SnapshotRows>>;

/// Runs a keyed logic on a stream whose records are with the worker that owns their key (see `key_by`).
///
/// After a failure the step takes nothing more and keeps its capabilities: no epoch completes behind it.
pub fn keyed_step<'s, L: KeyedLogic>(
    build: &FlowBuild<'s>,
    stream: ElementStream<'s, Keyed<L::In>>,
    step: &StepId,
    logic: L,
    policies: impl Into<KeyedPolicies>,
    record_of: RecordOf<L::In>,
) -> ElementStream<'s, L::Out> {
    let context = build.context().clone();
    let handle = build.step(step);
    let scope = build.scope();
    let mut builder = OperatorBuilder::new(step.to_string(), scope);
    let info = builder.operator_info();
    let mut input = builder.new_input(stream, Pipeline);
    let (results, result_stream) = builder.new_output::<Parcel<Element<L::Out>>>();
    let mut results = OutputBuilder::<Time, ResultsOutput<L::Out>>::from(results);
    // Disconnected: what the step holds there is its own capability, moved once per commit epoch.
    let (rows, row_stream) = builder.new_output_connection::<Vec<SnapshotRows>, _>([]);
    let mut rows = OutputBuilder::<Time, RowsOutput>::from(rows);
    let policies = policies.into();
    let mut open = |letters: &DeadLetters| LetterBox::open(build, &mut builder, &handle, letters);
    let mut burial = Burial {
        failed: policies.on_error.dead_letters().map(&mut open),
        late: policies.late.as_ref().map(&mut open),
        attempts: policies.on_error.attempts(),
        record_of,
    };
    let kept = handle.number.filter(|_| context.has_store());
    let volatile = if kept.is_none() && logic.holds_without_store() {
        Some(build.collect_volatile(row_stream))
    } else {
        build.collect_rows(row_stream);
        None
    };

    let mut wake_up = WakeUp::new(scope, info.address.clone(), &context);
    context.watch_ending(wake_up.activator().clone());
    if let Some(hold) = &volatile {
        hold.wake_with(wake_up.activator().clone());
    }
    let state = kept.map_or_else(StepRows::volatile, |number| StepRows::new(number, logic.version()));
    let restored = kept.map(|number| context.take_restored(number)).unwrap_or_default();
    let place = (context.worker().0 as usize, context.peers());
    let now = context.clock().now();
    let machine = Machine::new(
        step,
        logic,
        policies,
        context.schedule(),
        state,
        place,
        &restored,
        now,
        &context.sabotage(),
    );
    drop(restored);
    let first = context.schedule().first;
    let shell = Shell { hold: context.hold(step), context, handle, state_rows: Cell::new(0) };

    builder.build_reschedule(move |capabilities| {
        // Results and rows; behind them the outputs for dead letters, under capabilities of the records.
        let mut capabilities = capabilities.into_iter();
        let mut held = Held { results: capabilities.next(), rows: capabilities.next() };
        drop(capabilities);
        let mut failed = false;
        let mut machine = machine.map_err(|fault| shell.context.fail(fault)).ok();
        move |frontiers| {
            // A machine that failed stays, with the capabilities of what it has buffered.
            let Some(machine) = machine.as_mut().filter(|_| !failed) else {
                return true;
            };
            input.for_each(|capability, batch| {
                let time = *capability.stamp().expect_singleton();
                let records = std::mem::take(&mut batch.0);
                let arrived = || Arrived {
                    results: capability.delayed(&time, 0),
                    failed: burial.failed.as_ref().map(|letters| letters.retain(&capability)),
                    late: burial.late.as_ref().map(|letters| letters.retain(&capability)),
                };
                machine.push(time, arrived, records);
            });
            let context = &shell.context;
            let limits = context.limits();
            if volatile.is_some() && context.volatile_records() >= limits.volatile_records_max {
                machine.cut_early();
            }
            let sabotage = context.sabotage();
            let around = Surroundings {
                hands: FrontierHands::of_input(&frontiers[0], first),
                ending: context.ending(),
                now: context.clock().now(),
                wall_ms: context.clock().wall_ms(),
                slice: limits.slice_records,
                crowded: context.process().sinks.is_over(),
                sabotage: &sabotage,
            };
            let mut ports = Ports {
                results: results.activate(),
                rows: rows.activate(),
                held: &held,
                burial: &mut burial,
            };
            let outcome = machine.run(&around, &mut ports);
            drop(ports);
            shell.count(machine.take_counts());
            let wake = match outcome {
                Ok(wake) => wake,
                Err(failure) => {
                    shell.fail(&failure);
                    failed = true;
                    return true;
                }
            };
            if let Err(fault) = shell.count_state(machine.state_rows()) {
                shell.context.fail(fault);
                failed = true;
                return true;
            }
            match wake {
                Wake::Never => (),
                Wake::Now => wake_up.now(),
                Wake::WhenSinksHaveRoom => wake_up.after(SINK_WAIT),
                Wake::After(time) => wake_up.after(time),
            }
            let holds = machine.holds(&|epoch| volatile.as_ref().is_none_or(|hold| hold.is_released(epoch)));
            if let Some(hold) = &volatile {
                hold.set_records(machine.held_records());
            }
            shell.say_what_is_held(machine, around.crowded, holds.rows);
            held.move_to(holds);
            // An operator that says that it goes on has its progress checked in debug builds.
            held.is_any()
        }
    });
    result_stream
}

/// The capabilities of a step.
struct Held {
    results: Option<Capability<Time>>,
    rows: Option<Capability<Time>>,
}

impl Held {
    fn is_any(&self) -> bool {
        self.results.is_some() || self.rows.is_some()
    }

    fn move_to(&mut self, holds: Holds) {
        let rows = holds.rows.map(|epoch| Time::new(epoch, EventTime::MAX));
        for (capability, time) in [(&mut self.results, holds.results), (&mut self.rows, rows)] {
            match (capability.as_mut(), time) {
                (Some(held), Some(time)) if *held.time() != time => held.downgrade(&time),
                (Some(_), None) => *capability = None,
                _ => (),
            }
        }
    }
}

/// The outputs of a step while it runs.
struct Ports<'a, I, O: Data> {
    results: OutputBuilderSession<'a, Time, ResultsOutput<O>>,
    rows: OutputBuilderSession<'a, Time, RowsOutput>,
    held: &'a Held,
    burial: &'a mut Burial<I>,
}

impl<I, O: Data> Ports<'_, I, O> {
    fn send(&mut self, capability: &Capability<Time>, results: &mut Vec<Element<O>>) {
        let mut parcel = Parcel(std::mem::take(results));
        self.results.session(capability).give_container(&mut parcel);
        // What comes back, if anything does, is an allocation to use again.
        *results = parcel.0;
        results.clear();
    }
}

impl<I, O: Data> Emit<O, Arrived> for Ports<'_, I, O> {
    fn results_of(&mut self, arrived: &Arrived, results: &mut Vec<Element<O>>) {
        self.send(&arrived.results, results);
    }

    fn results_at(&mut self, time: Time, results: &mut Vec<Element<O>>) {
        let held = self.held.results.as_ref().expect("a machine that works holds its results");
        self.send(&held.delayed(&time), results);
    }

    fn rows(&mut self, epoch: Epoch, rows: RowBuffer) {
        let held = self.held.rows.as_ref().expect("a machine that keeps rows holds its commit epoch");
        let capability = held.delayed(&Time::new(epoch, EventTime::MAX));
        self.rows.session(&capability).give(SnapshotRows { epoch, rows });
    }
}

impl<I, O: Data> Bury<I, Arrived> for Ports<'_, I, O> {
    fn bury(
        &mut self,
        arrived: &Arrived,
        record: &Element<Keyed<I>>,
        why: Untaken,
    ) -> Result<(), RecordError> {
        let Burial { failed, late, attempts, record_of } = self.burial;
        let value = || {
            let value = record_of(&record.value.value)?.value;
            Ok(Record { key: record.value.key.clone(), value })
        };
        let (letters, capability, what, reason): (_, _, _, &dyn Display) = match &why {
            Untaken::Failed(error) => (failed, &arrived.failed, (FailureClass::Failed, *attempts), error),
            Untaken::Late => (late, &arrived.late, (FailureClass::Late, 1), &LATE),
        };
        let (Some(letters), Some(capability)) = (letters, capability) else {
            unreachable!("a machine buries under policies that have a topic")
        };
        letters.put(&record.meta, value, what, reason).map_err(RecordError)?;
        letters.send(capability);
        Ok(())
    }
}

/// Said of a late record.
const LATE: &str = "the record came after all its windows were closed";

/// What came with the records of one time: what their results need, and their dead letters.
struct Arrived {
    results: Capability<Time>,
    failed: Option<Capability<Time>>,
    late: Option<Capability<Time>>,
}

/// Where the records go that the step does not take.
struct Burial<I> {
    failed: Option<LetterBox>,
    late: Option<LetterBox>,
    attempts: u32,
    record_of: RecordOf<I>,
}

/// What the operator says about itself.
struct Shell {
    context: WorkerContext,
    handle: StepHandle,
    hold: Hold,
    /// What this worker's share of the process's figure is.
    state_rows: Cell<usize>,
}

impl Shell {
    fn count(&self, counts: Counts) {
        let metrics = &self.handle.metrics;
        metrics.received.inc_by(counts.received);
        metrics.emitted.inc_by(counts.emitted);
        metrics.late.inc_by(counts.late);
        metrics.dropped.inc_by(counts.dropped);
    }

    /// Shows how many rows of state there are; an error when they are too many.
    fn count_state(&self, rows: usize) -> Result<(), Fault> {
        let change = rows as i64 - self.state_rows.replace(rows) as i64;
        self.handle.metrics.state_rows.inc_by(change);
        let max = self.context.limits().state_rows_max;
        if rows <= max {
            return Ok(());
        }
        let text = format!(
            "it keeps {rows} rows of state on one worker, and `state_rows_max` is {max}: see whether the key is what it should be and whether its windows close; else raise the limit, or use more workers"
        );
        Err(Fault::new(ErrorClass::Data, text).code("STATE_TOO_LARGE").at_step(self.handle.id.clone()))
    }

    fn fail(&self, failure: &Failure) {
        self.context.fail(failure.place.fault(&self.context, &self.handle, &failure.error));
    }

    fn say_what_is_held<L: KeyedLogic>(
        &self,
        machine: &Machine<L, Arrived>,
        crowded: bool,
        rows: Option<Epoch>,
    ) {
        if machine.is_mid_slice() {
            let reason =
                if crowded { "waits until the sinks have room" } else { "hands out results in slices" };
            self.hold.set(machine.current(), reason);
        } else {
            match rows.filter(|_| machine.held_records() > 0) {
                Some(epoch) => self.hold.set(epoch, "keeps records until their batch is acknowledged"),
                None => self.hold.clear(),
            }
        }
    }
}

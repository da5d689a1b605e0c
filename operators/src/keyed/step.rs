//! A keyed step as a timely operator: the thin shell around [`Machine`].

use super::logic::KeyedLogic;
use super::machine::{Counts, Emit, Failure, Holds, Machine, Surroundings, Wake};
use super::rows::StepRows;
use crate::batch::{ElementStream, Parcel};
use crate::build::{FlowBuild, SnapshotRows};
use crate::context::{StepHandle, WorkerContext};
use crate::element::{Data, Element, Keyed};
use crate::frontier::FrontierHands;
use crate::record::OnError;
use crate::status::Hold;
use crate::time::Time;
use crate::wake::WakeUp;
use std::time::Duration;
use tidegate_recovery::{Epoch, EventTime, RowBuffer, StepId};
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
    on_error: OnError,
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
        on_error,
        context.schedule(),
        state,
        place,
        &restored,
        now,
        &context.sabotage(),
    );
    drop(restored);
    let first = context.schedule().first;
    let shell = Shell { hold: context.hold(step), context, handle };

    builder.build_reschedule(move |capabilities| {
        let [results_held, rows_held] =
            <[Capability<Time>; 2]>::try_from(capabilities).expect("a keyed step has two outputs");
        let mut held = Held { results: Some(results_held), rows: Some(rows_held) };
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
                machine.push(time, || capability.delayed(&time, 0), records);
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
                slice: limits.slice_records,
                crowded: context.process().sinks.is_over(),
                sabotage: &sabotage,
            };
            let mut ports = Ports { results: results.activate(), rows: rows.activate(), held: &held };
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
struct Ports<'a, O: Data> {
    results: OutputBuilderSession<'a, Time, ResultsOutput<O>>,
    rows: OutputBuilderSession<'a, Time, RowsOutput>,
    held: &'a Held,
}

impl<O: Data> Ports<'_, O> {
    fn send(&mut self, capability: &Capability<Time>, results: &mut Vec<Element<O>>) {
        let mut parcel = Parcel(std::mem::take(results));
        self.results.session(capability).give_container(&mut parcel);
        // What comes back, if anything does, is an allocation to use again.
        *results = parcel.0;
        results.clear();
    }
}

impl<O: Data> Emit<O, Capability<Time>> for Ports<'_, O> {
    fn results_of(&mut self, capability: &Capability<Time>, results: &mut Vec<Element<O>>) {
        self.send(capability, results);
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

/// What the operator says about itself.
struct Shell {
    context: WorkerContext,
    handle: StepHandle,
    hold: Hold,
}

impl Shell {
    fn count(&self, counts: Counts) {
        let metrics = &self.handle.metrics;
        metrics.received.inc_by(counts.received);
        metrics.emitted.inc_by(counts.emitted);
        metrics.late.inc_by(counts.late);
        metrics.dropped.inc_by(counts.dropped);
    }

    fn fail(&self, failure: &Failure) {
        self.context.fail(failure.place.fault(&self.context, &self.handle, &failure.error));
    }

    fn say_what_is_held<L: KeyedLogic>(
        &self,
        machine: &Machine<L, Capability<Time>>,
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

//! The two operators of `event_time`.

use crate::batch::{ElementStream, Parcel};
use crate::build::{FlowBuild, SnapshotRows};
use crate::commit::CommitEpochs;
use crate::context::WorkerContext;
use crate::element::{Data, Element, PartitionId};
use crate::event_time::hand::{EventHand, Report};
use crate::event_time::silence::Look;
use crate::event_time::watermark::{Ahead, EventTimeSettings, PartitionWatermarks, Verdict};
use crate::fault::Fault;
use crate::frontier::FrontierHands;
use crate::record::{ErrorHandling, ErrorPolicy, FailureClass, LetterBox, Place};
use crate::source::SkewGroup;
use crate::time::{Hands, Time};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;
use tidegate_recovery::rows::{RowChange, RowRef, parse_partition_key, partition_key};
use tidegate_recovery::{Epoch, ErrorClass, EventTime, RowBuffer, RowRoute, StepId, StepNumber, WorkerIndex};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::Stream;
use timely::dataflow::channels::pact::{ExchangeCore, Pipeline};
use timely::dataflow::operators::CapabilitySet;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::progress::Antichain;
use timely::progress::operate::FrontierInterest;

/// A worker's report, on its way to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Addressed {
    to: u32,
    from: u32,
    report: Report,
}

/// What the first operator leaves for the second one of its worker.
#[derive(Default)]
struct Own {
    report: Option<Report>,
    /// The partitions that it leaves out.
    idle: Vec<PartitionId>,
}

impl Own {
    fn set(&mut self, report: Report, idle: impl Iterator<Item = PartitionId>) {
        self.report = Some(report);
        self.idle.clear();
        self.idle.extend(idle);
    }
}

type ReportStream<'s> = Stream<'s, Time, Parcel<Addressed>>;

/// Sets the event time that `f` names, and the watermark of the record's partition.
///
/// The step keeps rows: a watermark per topic and partition, which follows the partition.
pub fn event_time<'s, T: Data, E: Display>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    settings: EventTimeSettings,
    handling: impl Into<ErrorHandling<T>>,
    f: impl FnMut(&Element<T>) -> Result<EventTime, E> + 'static,
) -> ElementStream<'s, T> {
    let context = build.context();
    let ours = |id: &PartitionId| {
        let name = context.inputs().name(*id);
        settings.topics.is_empty() || name.is_some_and(|name| settings.topics.contains(&name.topic))
    };
    let owned: Vec<PartitionId> =
        context.inputs().owned_by(context.worker()).into_iter().filter(ours).collect();
    let owners: Vec<WorkerIndex> =
        context.inputs().iter().filter(|(id, _)| ours(id)).map(|(_, input)| input.owner).collect();
    let own = Rc::new(RefCell::new(Own::default()));
    let group = context.input_desk().group(settings.skew_group);

    let (elements, reports) =
        read_timestamps(build, step, stream, &settings, handling.into(), owned.clone(), own.clone(), f);
    let keeper = Keeper { own, group, step: step.clone(), holds: !owned.is_empty(), owners };
    hold_capabilities(build, elements, reports, keeper)
}

/// The first operator: timestamps, watermarks, reports, rows.
#[expect(clippy::too_many_arguments, reason = "one call, of the step's own front")]
fn read_timestamps<'s, T: Data, E: Display>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    settings: &EventTimeSettings,
    handling: ErrorHandling<T>,
    owned: Vec<PartitionId>,
    own: Rc<RefCell<Own>>,
    mut f: impl FnMut(&Element<T>) -> Result<EventTime, E> + 'static,
) -> (ElementStream<'s, T>, ReportStream<'s>) {
    let mut builder = OperatorBuilder::new(format!("event time {step}"), build.scope());
    let mut input = builder.new_input_connection(stream, Pipeline, []);
    let keep = [(0, Antichain::from_elem(Hands::Keep))];
    let (output, elements) = builder.new_output_connection::<Parcel<Element<T>>, _>(keep);
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<Parcel<Element<T>>>>::from(output);
    let (reports, report_stream) = builder.new_output_connection::<Parcel<Addressed>, _>([]);
    let mut reports = OutputBuilder::<_, CapacityContainerBuilder<Parcel<Addressed>>>::from(reports);
    let (rows, row_stream) = builder.new_output_connection::<Vec<SnapshotRows>, _>([]);
    let mut rows = OutputBuilder::<_, CapacityContainerBuilder<Vec<SnapshotRows>>>::from(rows);
    build.collect_rows(row_stream);

    let context = build.context().clone();
    let handle = build.step(step);
    let mut state = Timestamps::new(&context, handle.number, settings, owned);
    let group = context.input_desk().group(settings.skew_group);
    let record_of = handling.record_of;
    let mut policy = ErrorPolicy::new(build, &mut builder, &handle, handling);
    let mut ahead_letters = match &settings.ahead {
        Ahead::DeadLetter(letters) => Some(LetterBox::open(build, &mut builder, &handle, letters)),
        Ahead::Keep | Ahead::Drop => None,
    };
    let max_ahead_ms = settings.max_ahead_ms;
    let schedule = context.schedule();
    let peers = context.peers() as u32;
    let from = context.worker().0;
    let step_ms = context.limits().watermark_step_ms;

    builder.build(move |capabilities| {
        // Elements, reports, rows; behind them those for dead letters.
        let mut rows_held = capabilities.into_iter().nth(2);
        let mut commits = CommitEpochs::new(schedule);
        let mut said = None;
        let mut ticked = None;
        move |frontiers| {
            if policy.has_failed() {
                return;
            }
            let now = context.clock().now();
            let wall_ms = context.clock().wall_ms();
            input.for_each(|capability, batch| {
                if policy.has_failed() {
                    policy.unfinished().keep_input(&capability, 0);
                    return;
                }
                handle.metrics.received.inc_by(batch.len() as u64);
                let epoch = capability.stamp().expect_singleton().epoch;
                let mut failed = false;
                batch.retain_mut(|element| {
                    if failed {
                        return false;
                    }
                    let mut event = EventTime::MIN;
                    let mut find = |element: &mut Element<T>| f(element).map(|found| event = found).map(|()| true);
                    if !policy.decide(element, &mut find, &mut failed) {
                        return false;
                    }
                    match state.marks.record(element.meta.partition, event, epoch, now, wall_ms) {
                        Verdict::Pass { watermark, ahead } => {
                            element.meta.event = event;
                            element.meta.watermark = watermark;
                            if ahead {
                                handle.metrics.ahead.inc();
                            }
                            true
                        }
                        Verdict::RefuseAhead => {
                            handle.metrics.ahead.inc();
                            let Some(letters) = &mut ahead_letters else {
                                handle.metrics.dropped.inc();
                                return false;
                            };
                            let reason = format_args!(
                                "the event time {event} ms is more than {max_ahead_ms} ms ahead of the wall clock"
                            );
                            let value = || record_of(&element.value);
                            let put = letters.put(&element.meta, value, (FailureClass::Ahead, 1), &reason);
                            if let Err(reason) = put {
                                context.fail(Place::of(&element.meta).fault(&context, &handle, &reason));
                                failed = true;
                            }
                            false
                        }
                        Verdict::NotOurs => {
                            let fault = Fault::new(
                                ErrorClass::Internal,
                                "event_time stands behind an exchange: it met a record of a partition that this worker does not read",
                            );
                            context.fail(fault.at_step(handle.id.clone()));
                            failed = true;
                            false
                        }
                    }
                });
                if failed {
                    policy.unfinished().keep_input(&capability, 0);
                }
                policy.send_letters(&capability);
                if let Some(letters) = &mut ahead_letters {
                    letters.send_of(&capability);
                }
                output.activate().session(&capability).give_container(batch);
            });
            if policy.has_failed() {
                return;
            }
            let open = FrontierHands::of_input(&frontiers[0], schedule.first).epoch;
            if ticked != Some(open) {
                ticked = Some(open);
                state.look_for_idle(&context, now);
            }
            for (id, watermark) in state.marks.iter() {
                group.set_watermark(id, watermark);
            }
            // The report goes to the second operator of this worker through a cell, which it reads after it has
            // forwarded everything that was sent before: records first, then the hand.
            let report = state.marks.report();
            own.borrow_mut().set(report, state.marks.idle());
            let told = report.in_steps(step_ms);
            let news = said.is_none_or(|said: Report| {
                said.minimum != told.minimum
                    || said.slowest != told.slowest
                    || (told.minimum.is_none() && said.largest != told.largest)
            });
            if news && !state.marks.is_empty() {
                said = Some(told);
                // Without a capability: a report makes no claim about progress, and none is lost if it is late.
                let free = CapabilitySet::new();
                let mut reports = reports.activate();
                let mut session = reports.session(&free);
                for to in (0..peers).filter(|to| *to != from) {
                    session.give(Addressed { to, from, report: told });
                }
            }
            if let Some(held) = &mut rows_held {
                let last = context.ending().last();
                while let Some(commit) = commits.pass(open, last) {
                    if let Some(closed) = state.rows(&context, commit) {
                        let at = held.delayed(&Time::new(commit, EventTime::MAX));
                        rows.activate().session(&at).give(SnapshotRows { epoch: commit, rows: closed });
                    }
                    held.downgrade(&Time::new(commits.open(), EventTime::MAX));
                }
                if open.is_none() {
                    rows_held = None;
                }
            }
        }
    });
    (elements, report_stream)
}

/// State of the first operator.
struct Timestamps {
    marks: PartitionWatermarks,
    number: Option<StepNumber>,
    shown: BTreeMap<PartitionId, EventTime>,
}

impl Timestamps {
    fn new(
        context: &WorkerContext,
        number: Option<StepNumber>,
        settings: &EventTimeSettings,
        owned: Vec<PartitionId>,
    ) -> Timestamps {
        let marks = PartitionWatermarks::new(settings, context.schedule(), owned, context.clock().now());
        let mut state = Timestamps { marks, number, shown: BTreeMap::new() };
        state.restore(context);
        state
    }

    /// Takes the watermarks that were stored for this worker's partitions.
    fn restore(&mut self, context: &WorkerContext) {
        let Some(number) = self.number else { return };
        for row in context.take_restored(number).rows {
            let name = parse_partition_key(&row.key);
            let watermark = <[u8; 8]>::try_from(&row.value[..]).ok().map(i64::from_be_bytes);
            match (name, watermark) {
                (Some(name), Some(watermark)) => {
                    // A partition that is no longer an input keeps its row; nobody here needs it.
                    if let Some(id) = context.inputs().id(&name) {
                        self.marks.restore(id, EventTime(watermark));
                    }
                }
                _ => context.fail(
                    Fault::new(ErrorClass::Data, "a stored watermark cannot be read; is the store damaged?")
                        .code("STORE_DAMAGED"),
                ),
            }
        }
    }

    /// The rows of a closed commit epoch, if there is a store and anything moved.
    fn rows(&mut self, context: &WorkerContext, commit: Epoch) -> Option<RowBuffer> {
        let moved = self.marks.close(commit);
        let number = self.number.filter(|_| context.has_store())?;
        let mut buffer = RowBuffer::new();
        for (id, watermark) in moved {
            let Some(name) = context.inputs().name(id) else { continue };
            buffer.push(RowRef {
                step: number,
                route: RowRoute::Partition,
                key: &partition_key(name),
                sub: &[],
                change: RowChange::Put(&watermark.0.to_be_bytes()),
            });
        }
        (!buffer.is_empty()).then_some(buffer)
    }

    /// Once per epoch: who is idle, and what `/status` and `/metrics` show.
    fn look_for_idle(&mut self, context: &WorkerContext, now: Duration) {
        let desk = context.input_desk();
        self.marks.tick(now, context.sabotage().idle_with_backlog, |id| desk.get(id));
        let process = context.process();
        for (id, watermark) in self.marks.iter() {
            if watermark == EventTime::MIN || self.shown.insert(id, watermark) == Some(watermark) {
                continue;
            }
            if let Some(name) = process.inputs.name(id) {
                process.metrics.watermark(name, watermark);
            }
            process.status.partition(&process.inputs, id, |partition| partition.watermark = Some(watermark));
        }
    }
}

/// What the second operator needs.
struct Keeper {
    own: Rc<RefCell<Own>>,
    group: Rc<SkewGroup>,
    step: StepId,
    holds: bool,
    owners: Vec<WorkerIndex>,
}

/// The second operator: holds the capabilities of everything behind it.
fn hold_capabilities<'s, T: Data>(
    build: &FlowBuild<'s>,
    elements: ElementStream<'s, T>,
    reports: ReportStream<'s>,
    keeper: Keeper,
) -> ElementStream<'s, T> {
    let context = build.context().clone();
    let mut builder = OperatorBuilder::new(format!("event hand {}", keeper.step), build.scope());
    // ⚑ Disconnected on both sides: a plain `new_output` would connect every input again.
    let mut input = builder.new_input_connection(elements, Pipeline, []);
    let to_all = ExchangeCore::<CapacityContainerBuilder<Parcel<Addressed>>, _>::new(|report: &Addressed| {
        u64::from(report.to)
    });
    let mut reports = builder.new_input_connection(reports, to_all, []);
    builder.set_notify_for(1, FrontierInterest::Never);
    let (output, stream) = if context.sabotage().connect_event_time {
        builder.new_output::<Parcel<Element<T>>>()
    } else {
        builder.new_output_connection::<Parcel<Element<T>>, _>([])
    };
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<Parcel<Element<T>>>>::from(output);
    let schedule = context.schedule();
    let worker = context.worker().0;
    let step_ms = context.limits().watermark_step_ms;

    builder.build(move |mut capabilities| {
        let mut held = capabilities.pop().filter(|_| keeper.holds);
        drop(capabilities);
        let owners = keeper.owners.iter().map(|owner| owner.0);
        let mut hand = EventHand::new(worker, owners, step_ms);
        let mut idle_at_maximum = false;
        move |frontiers| {
            let desk = context.input_desk();
            // Records first, under the old hand; then the hand moves.
            input.for_each(|capability, batch| {
                let epoch = capability.stamp().expect_singleton().epoch;
                match &held {
                    Some(held) => {
                        let event = if idle_at_maximum { EventTime::MAX } else { hand.at() };
                        let at = held.delayed(&Time::new(epoch.max(held.time().epoch), event));
                        output.activate().session(&at).give_container(batch);
                    }
                    None => unreachable!("only a worker that reads a partition gets records here"),
                }
            });
            reports.for_each(|_, reports| {
                for addressed in reports.drain(..) {
                    hand.hear(addressed.from, addressed.report, desk.looks());
                }
            });
            let own = keeper.own.borrow();
            if let Some(report) = own.report {
                hand.hear(worker, report, desk.looks());
                if context.sabotage().idle_to_the_maximum && report.minimum.is_none() {
                    idle_at_maximum = true;
                }
            }
            keeper.group.set_slowest(&keeper.step, hand.slowest());
            let Some(capability) = &mut held else { return };
            match FrontierHands::of_input(&frontiers[0], schedule.first).epoch {
                Some(epoch) => {
                    let left_out: &[PartitionId] =
                        if context.sabotage().trust_old_looks { &[] } else { &own.idle };
                    let looks = left_out.iter().map(|id| look_at(&context, *id));
                    let event = if idle_at_maximum { EventTime::MAX } else { hand.advance(epoch, looks) };
                    let to = Time::new(epoch, event.max(capability.time().event));
                    if to != *capability.time() {
                        capability.downgrade(&to);
                    }
                }
                None => held = None,
            }
        }
    });
    stream
}

/// What the last look at an idle partition found.
fn look_at(context: &WorkerContext, partition: PartitionId) -> Look {
    let desk = context.input_desk();
    let seen = desk.get(partition);
    Look {
        number: desk.look_at(partition),
        at_end: context.sabotage().idle_with_backlog || seen.is_some_and(|seen| seen.at_end()),
        last_read: seen.and_then(|seen| seen.last_read),
    }
}

//! The source operator: reads partitions, moves the epoch hand, and never makes anything wait for ever.
//!
//! Guarantees: before its hand leaves an epoch, the position of every partition is marked for it; it polls
//! only while what is in flight is below the limits, but its hand moves on all the same (or nothing could ever
//! complete), and with nothing in flight one batch is always allowed; a worker without partitions moves its
//! hand like any other; it drops its last capability only when every worker is frozen (see [`crate::ending`]).
//!
//! Under `at_most_once` what was read is kept until its offsets are committed and the broker has answered; it
//! is handed on only if less than `peer_timeout` has passed since it was read, because after that another
//! owner may have read the same records. It does not wait for anything downstream.
//!
//! A reader that fails reports a fault and keeps the capability: no epoch completes behind a failure.

use crate::batch::{ElementStream, Parcel};
use crate::build::FlowBuild;
use crate::context::{SharedReader, StepHandle, WorkerContext};
use crate::element::{PartitionId, Record};
use crate::ending::SourceEnding;
use crate::fault::Fault;
use crate::metrics::{PartitionMetrics, WorkerMetrics};
use crate::process::DeliveryGuarantee;
use crate::source::desk::SkewGroup;
use crate::source::in_flight::{Bite, InFlight};
use crate::source::open_transaction::TransactionWait;
use crate::source::{CommitOutcome, SourceBatch, SourceReader};
use crate::time::Time;
use crate::wake::WakeUp;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tidegate_recovery::{Epoch, ErrorClass, EventTime, NextOffset, StepId};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// Polls of one activation: enough to keep overhead small, few enough to let the rest of the flow run.
const POLLS_PER_ACTIVATION: usize = 8;

/// What the flow says about a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceSettings {
    /// Sources whose streams meet in a window, a join or a merge are in one group: `max_skew` holds between
    /// their partitions.
    pub skew_group: u32,
}

/// Reads what `reader` gives. The step is in the table of steps; it keeps no rows.
pub fn source<'s, R: SourceReader>(
    build: &FlowBuild<'s>,
    step: &StepId,
    reader: R,
    settings: SourceSettings,
) -> ElementStream<'s, Record> {
    let context = build.context().clone();
    let scope = build.scope();
    let mut builder = OperatorBuilder::new(format!("source {step}"), scope);
    let info = builder.operator_info();
    let (output, records) = builder.new_output::<Parcel<_>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<Parcel<_>>>::from(output);
    // Carries no rows: the commit of an epoch waits until every source has marked its positions for it.
    let (_hands, hands) = builder.new_output();
    build.collect_rows(hands);

    let mut wake = WakeUp::new(scope, info.address.clone(), &context);
    context.watch_ending(wake.activator().clone());
    let handle = build.step(step);
    let reader: Rc<RefCell<R>> = Rc::new(RefCell::new(reader));
    reader.borrow_mut().wake_with(scope.worker().sync_activator_for(info.address.to_vec()));
    context.add_reader(reader.clone() as SharedReader);

    builder.build(move |capabilities| {
        let [records, hands] =
            <[Capability<Time>; 2]>::try_from(capabilities).expect("a source has two outputs");
        let mut state = Source::new(context, handle, reader, settings, Hand { records, hands });
        move |_frontiers| {
            if state.hand.is_none() {
                return;
            }
            let mut output = output.activate();
            let sleep = state.run(|hand, batch| {
                output.session(&hand.records).give_container(&mut Parcel(batch.elements));
            });
            if let Some(sleep) = sleep {
                wake.after(sleep);
            }
        }
    });
    records
}

/// The capabilities of a source: for its records, and for the commit that waits for its marks.
struct Hand {
    records: Capability<Time>,
    hands: Capability<Time>,
}

impl Hand {
    fn epoch(&self) -> Epoch {
        self.records.time().epoch
    }

    fn advance(&mut self, epoch: Epoch) {
        self.records.downgrade(&Time::new(epoch, EventTime::MIN));
        self.hands.downgrade(&Time::new(epoch, EventTime::MAX));
    }
}

/// A partition of the source.
pub(super) struct Input {
    pub(super) id: PartitionId,
    pub(super) metrics: PartitionMetrics,
    marked: Option<NextOffset>,
    pub(super) last_read: Option<Epoch>,
    /// Too far ahead of the slowest.
    pub(super) held: bool,
    pub(super) waits: TransactionWait,
}

/// What was read under `at_most_once` and waits for the broker's answer.
#[derive(Default)]
struct Unconfirmed {
    batches: Vec<SourceBatch>,
    oldest: Option<Duration>,
    records: usize,
    bytes: usize,
    /// What was committed last.
    committed: BTreeMap<PartitionId, NextOffset>,
}

pub(super) struct Source<R> {
    pub(super) context: WorkerContext,
    step: StepHandle,
    pub(super) reader: Rc<RefCell<R>>,
    hand: Option<Hand>,
    pub(super) inputs: Vec<Input>,
    pub(super) flight: InFlight,
    pub(super) worker_metrics: WorkerMetrics,
    /// What the gauge of the process has of this reader.
    pub(super) partitions_added: u64,
    ending: Rc<SourceEnding>,
    skew: Rc<SkewGroup>,
    unconfirmed: Option<Unconfirmed>,
    pub(super) bite: Option<Bite>,
    /// The limit that the log has named last.
    said: Option<Bite>,
    started: bool,
    failed: bool,
    polled: Vec<SourceBatch>,
}

impl<R: SourceReader> Source<R> {
    fn new(
        context: WorkerContext,
        step: StepHandle,
        reader: Rc<RefCell<R>>,
        settings: SourceSettings,
        hand: Hand,
    ) -> Source<R> {
        let process = context.process().clone();
        let inputs = reader
            .borrow()
            .partitions()
            .iter()
            .map(|&id| Input {
                id,
                metrics: context
                    .inputs()
                    .name(id)
                    .map(|name| process.metrics.partition(name))
                    .unwrap_or_default(),
                marked: None,
                last_read: None,
                held: false,
                waits: TransactionWait::default(),
            })
            .collect();
        let at_most_once = process.delivery == DeliveryGuarantee::AtMostOnce;
        Source {
            worker_metrics: process.metrics.worker(context.worker().0),
            partitions_added: 0,
            ending: context.ending_desk().add_source(),
            skew: context.input_desk().group(settings.skew_group),
            unconfirmed: at_most_once.then(Unconfirmed::default),
            context,
            step,
            reader,
            hand: Some(hand),
            inputs,
            flight: InFlight::default(),
            bite: None,
            said: None,
            started: false,
            failed: false,
            polled: Vec::new(),
        }
    }

    /// One activation. Returns how long to sleep; `None` when there is nothing to come back for.
    fn run(&mut self, mut emit: impl FnMut(&Hand, SourceBatch)) -> Option<Duration> {
        let first = self.context.schedule().first;
        if !self.started {
            self.started = true;
            self.show_start();
            // All workers begin at the minimum of all times; the generation begins at its first epoch.
            if let Some(hand) = &mut self.hand {
                hand.advance(first);
            }
            self.look_at_positions();
        }
        if self.failed {
            // The capability stays: nothing completes behind a failure. The worker is about to leave.
            return None;
        }
        self.flight.passed(self.context.acknowledged());
        if self.context.ending_desk().release.get() {
            self.let_go();
            return None;
        }
        if self.context.ending_desk().halt.get() {
            return self.halt(&mut emit);
        }
        self.move_hand(&mut emit);
        let read = self.poll(&mut emit);
        if self.failed {
            return None;
        }
        self.look_at_positions();
        if self.context.process().until_end && !self.ending.reached_end.get() && self.is_at_end() {
            self.ending.reached_end.set(true);
            self.context.ending_desk().wake_member();
        }
        let limits = self.context.limits();
        Some(if read { Duration::ZERO } else { limits.poll_backoff.min(self.context.epochs().until_next()) })
    }

    /// Moves the hand to the epoch that the clock shows, after marking where everything goes on.
    fn move_hand(&mut self, emit: &mut impl FnMut(&Hand, SourceBatch)) {
        let now = self.context.epochs().epoch();
        let Some(current) = self.hand.as_ref().map(Hand::epoch) else { return };
        if now <= current {
            return;
        }
        if self.context.sabotage().limits_stop_hands && self.bite.is_some() {
            return;
        }
        if !self.confirm(emit) {
            return;
        }
        self.mark(current);
        if let Some(hand) = &mut self.hand {
            hand.advance(now);
        }
        self.show(now);
        if self.context.sabotage().source_commits {
            self.commit_durable();
        }
    }

    /// Polls while the limits allow it. Returns whether anything was read.
    fn poll(&mut self, emit: &mut impl FnMut(&Hand, SourceBatch)) -> bool {
        let mut read = false;
        for _ in 0..POLLS_PER_ACTIVATION {
            let budget = match self.budget() {
                Ok(budget) => {
                    self.bitten(None);
                    budget
                }
                Err(bite) => {
                    self.bitten(Some(bite));
                    return read;
                }
            };
            self.hold_what_is_too_far();
            let mut polled = std::mem::take(&mut self.polled);
            let outcome = self.reader.borrow_mut().poll(budget, &mut polled);
            if let Err(fault) = outcome {
                self.fail(fault);
                return read;
            }
            let empty = polled.iter().all(|batch| batch.elements.is_empty());
            for batch in polled.drain(..) {
                self.take(batch, emit);
            }
            self.polled = polled;
            if empty {
                return read;
            }
            read = true;
        }
        read
    }

    fn budget(&self) -> Result<crate::source::PollBudget, Bite> {
        let process = self.context.process();
        let limits = &process.limits;
        if self.context.volatile_records() >= limits.volatile_records_max {
            return Err(Bite::Volatile);
        }
        let waiting = self.unconfirmed.as_ref().map_or((0, 0), |waiting| (waiting.records, waiting.bytes));
        if waiting.0 >= limits.in_flight_records || waiting.1 >= limits.in_flight_bytes {
            return Err(if waiting.0 >= limits.in_flight_records { Bite::Records } else { Bite::Bytes });
        }
        if process.snapshots.is_some() || process.direct.is_some() {
            // A commit epoch is closed when everything read in it is through the flow.
            let every = process.schedule.commit_every;
            let hand = self.hand.as_ref().map_or(process.schedule.first, Hand::epoch);
            let closed = self.context.acknowledged().unwrap_or(hand).min(hand).0.saturating_sub(1) / every;
            let done = self.context.done().0 / every;
            if closed.saturating_sub(done) >= limits.commits_in_flight {
                return Err(Bite::Commits);
            }
            if self.context.outbox_bytes() >= limits.in_flight_bytes {
                return Err(Bite::Outbox);
            }
        }
        // What the sinks cannot take now would only lie about in memory, and out of the processor's cache. Their load falls
        // by itself, whatever the source does.
        if process.sinks.is_over() && self.flight.records() > 0 {
            return Err(Bite::Sinks);
        }
        self.flight.budget(limits)
    }

    fn take(&mut self, batch: SourceBatch, emit: &mut impl FnMut(&Hand, SourceBatch)) {
        let records = batch.elements.len();
        if records == 0 {
            return;
        }
        let Some(hand) = &self.hand else { return };
        if let Some(input) = self.inputs.iter_mut().find(|input| input.id == batch.partition) {
            input.metrics.records.inc_by(records as u64);
            input.metrics.bytes.inc_by(batch.bytes as u64);
            input.last_read = Some(hand.epoch());
        }
        self.step.metrics.received.inc_by(records as u64);
        if let Some(waiting) = &mut self.unconfirmed {
            waiting.oldest.get_or_insert(self.context.clock().now());
            waiting.records += records;
            waiting.bytes += batch.bytes;
            waiting.batches.push(batch);
            return;
        }
        self.flight.emitted(hand.epoch(), records, batch.bytes);
        self.step.metrics.emitted.inc_by(records as u64);
        emit(hand, batch);
    }

    /// Under `at_most_once`: commits what was read, waits for the answer, and hands the records on. Returns
    /// whether the hand may move.
    fn confirm(&mut self, emit: &mut impl FnMut(&Hand, SourceBatch)) -> bool {
        let Some(waiting) = &mut self.unconfirmed else { return true };
        let process = self.context.process().clone();
        let offsets: Vec<_> = {
            let reader = self.reader.borrow();
            let inputs = self.inputs.iter().map(|input| (input.id, reader.position(input.id)));
            inputs.filter(|(id, next)| waiting.committed.get(id) != Some(next)).collect()
        };
        if offsets.is_empty() {
            return true;
        }
        let read_at = waiting.oldest.unwrap_or_else(|| self.context.clock().now());
        let asked = (process.standing)().map(|()| {
            let age = self.context.clock().now().saturating_sub(read_at);
            let left = process.limits.peer_timeout.saturating_sub(age);
            self.reader.borrow_mut().commit_and_wait(&offsets, left.min(process.limits.commit_timeout))
        });
        let now = self.context.clock().now();
        let age = now.saturating_sub(read_at);
        match asked {
            Err(fault) => {
                self.fail(fault);
                return false;
            }
            Ok(Err(reason)) => {
                for (id, next) in &offsets {
                    if let Some(name) = self.context.partition_name(*id) {
                        tracing::error!(topic = %name.topic, partition = name.partition, offset = next.0, %reason, "an offset commit failed; records wait for it");
                        process.metrics.partition(&name).commit_failures.inc();
                    }
                }
                if age >= process.limits.peer_timeout {
                    let fault = Fault::new(
                        ErrorClass::Unavailable,
                        format!("offsets could not be committed for {age:?} under at_most_once: {reason}"),
                    );
                    self.fail(fault);
                }
                return false;
            }
            Ok(Ok(())) => {}
        }
        if age >= process.limits.peer_timeout {
            let fault = Fault::new(
                ErrorClass::TryAgain,
                format!(
                    "{age:?} passed between reading records and the answer to their commit, more than peer_timeout: another process may own the partitions now"
                ),
            );
            self.fail(fault);
            return false;
        }
        waiting.committed.extend(offsets.iter().copied());
        waiting.oldest = None;
        waiting.records = 0;
        waiting.bytes = 0;
        let batches = std::mem::take(&mut waiting.batches);
        if let Some(hand) = &self.hand {
            let epoch = hand.epoch();
            for (id, next) in &offsets {
                process.offsets.mark(*id, epoch, *next);
            }
            process.offsets.settle(&CommitOutcome { offsets, error: None }, now);
            for batch in batches {
                let records = batch.elements.len();
                self.flight.emitted(epoch, records, batch.bytes);
                self.step.metrics.emitted.inc_by(records as u64);
                emit(hand, batch);
            }
        }
        true
    }

    fn mark(&mut self, epoch: Epoch) {
        let reader = self.reader.borrow();
        for input in &mut self.inputs {
            let next = reader.position(input.id);
            if input.marked != Some(next) {
                input.marked = Some(next);
                self.context.process().offsets.mark(input.id, epoch, next);
            }
        }
    }

    fn hold_what_is_too_far(&mut self) {
        let max_skew = self.context.limits().max_skew_ms;
        for input in &mut self.inputs {
            let too_far = self.skew.is_too_far(input.id, max_skew);
            if too_far != input.held {
                input.held = too_far;
                self.reader.borrow_mut().hold(input.id, too_far);
            }
        }
    }

    fn is_at_end(&self) -> bool {
        let reader = self.reader.borrow();
        self.inputs.iter().all(|input| reader.position(input.id) >= reader.end_at_start(input.id))
            && self.unconfirmed.as_ref().is_none_or(|waiting| waiting.batches.is_empty())
    }

    /// The run is ending: no more polls, and the hand stays until every worker is frozen.
    fn halt(&mut self, emit: &mut impl FnMut(&Hand, SourceBatch)) -> Option<Duration> {
        if self.ending.halted.get().is_none() {
            if !self.confirm(emit) {
                return (!self.failed).then_some(self.context.limits().poll_backoff);
            }
            let epoch = self.hand.as_ref().map(Hand::epoch)?;
            self.mark(epoch);
            self.show(epoch);
            self.ending.halted.set(Some(epoch));
            self.context.ending_desk().wake_member();
        }
        Some(Duration::from_millis(1).min(self.context.limits().poll_backoff))
    }

    fn let_go(&mut self) {
        tracing::debug!(worker = self.context.worker().0, step = %self.step.id, "the source lets go");
        self.hand = None;
    }

    fn fail(&mut self, fault: Fault) {
        self.failed = true;
        self.context.fail(fault);
    }

    fn bitten(&mut self, bite: Option<Bite>) {
        if self.bite == bite {
            return;
        }
        self.bite = bite;
        let limit = bite.map(Bite::name);
        // A fast source in front of a slower sink comes and goes at its limit many times a second: that is said once.
        if let Some(limit) = limit
            && self.said != bite
        {
            self.said = bite;
            tracing::info!(
                worker = self.context.worker().0,
                step = %self.step.id,
                limit,
                in_flight_records = self.flight.records(),
                in_flight_bytes = self.flight.bytes(),
                "the source waits at a limit"
            );
        }
        self.context.process().status.worker(self.context.worker().0, |worker| worker.limit = limit);
    }

    /// Sabotage of rule 2.2: the source commits what is durable, and never sees the last epoch.
    fn commit_durable(&self) {
        let process = self.context.process();
        process.offsets.complete(self.context.durable());
        let owned: Vec<_> = self.inputs.iter().map(|input| input.id).collect();
        let due = process.offsets.due(&owned, self.context.clock().now());
        if !due.is_empty() {
            self.reader.borrow_mut().commit(&due);
        }
        for outcome in self.reader.borrow_mut().commit_outcomes() {
            process.offsets.settle(&outcome, self.context.clock().now());
        }
    }
}

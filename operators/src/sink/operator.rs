//! The sink operator: holds the capability of every batch until the destination has acknowledged it.
//!
//! Guarantees: the acknowledgement stream's frontier leaves an epoch only when every record of it is durably
//! written (or was refused and dropped, counted). What is in flight counts against the process's sink limit, which
//! makes the steps that create records wait; what has not been taken by the writer stays here, in order.

use crate::batch::{ElementStream, FrontierOnly};
use crate::build::{FlowBuild, epoch_only};
use crate::context::{StepHandle, WorkerContext};
use crate::element::{Element, PartitionId, Record};
use crate::fault::Fault;
use crate::frontier::FrontierHands;
use crate::limits::SinkShare;
use crate::record::{FailureClass, LetterBox, OnError};
use crate::sink::{Refusal, Refused, SinkWriter, Ticket};
use crate::status::Hold;
use crate::time::Time;
use crate::wake::WakeUp;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use tidegate_recovery::{Epoch, ErrorClass, EventTime, StepId};
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// How soon a full writer is tried again, should nobody wake the operator.
const FULL_RETRY: Duration = Duration::from_millis(5);

/// Writes every record to `writer`. The commit of an epoch waits for the acknowledgements.
pub fn sink<'s, W: SinkWriter>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, Record>,
    on_error: OnError,
    writer: W,
) {
    build_sink(build, step, stream, Policy::Of(on_error), writer);
}

/// Writes the dead letters of all steps to their topic. One that can never be written ends the run and names the record
/// that it is about, also where the topic itself is gone: a record that is nowhere must not be committed.
pub fn sink_of_dead_letters<'s, W: SinkWriter>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, Record>,
    writer: W,
) {
    build_sink(build, step, stream, Policy::LastResort, writer);
}

/// What becomes of a record that the destination refuses.
enum Policy {
    /// As the step says.
    Of(OnError),
    /// It is a dead letter: there is nowhere else to put it.
    LastResort,
}

fn build_sink<'s, W: SinkWriter>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, Record>,
    policy: Policy,
    mut writer: W,
) {
    let context = build.context().clone();
    let scope = build.scope();
    let mut builder = OperatorBuilder::new(format!("sink {step}"), scope);
    let info = builder.operator_info();
    let mut input = builder.new_input(stream, Pipeline);
    let (_output, acknowledgements) = builder.new_output_connection::<FrontierOnly, _>(epoch_only(0));
    build.collect_acknowledgements(acknowledgements);

    let handle = build.step(step);
    let letters = match &policy {
        Policy::Of(OnError::DeadLetter(letters)) => {
            Some(LetterBox::open(build, &mut builder, &handle, letters))
        }
        Policy::Of(OnError::Fail | OnError::Drop) | Policy::LastResort => None,
    };
    writer.wake_with(scope.worker().sync_activator_for(info.address.to_vec()));
    let mut wake = WakeUp::new(scope, info.address.clone(), &context);
    let first = context.schedule().first;
    let mut state = Sink {
        share: context.process().sinks.share(),
        hold: context.hold(step),
        step: handle,
        context,
        policy,
        letters,
        writer,
        next: Ticket(0),
        queue: VecDeque::new(),
        outstanding: BTreeMap::new(),
        waiting_bytes: 0,
        failed: false,
        open: None,
    };
    builder.build(move |_capabilities| {
        move |frontiers| {
            if state.failed {
                return;
            }
            input.for_each(|capability, batch| {
                let epoch = capability.stamp().expect_singleton().epoch;
                let letters = state.letters.as_ref().map(|letters| letters.retain(&capability));
                let capability = capability.delayed(&Time::new(epoch, EventTime::MAX), 0);
                state.take(capability, letters, std::mem::take(&mut batch.0));
            });
            let open = FrontierHands::of_input(&frontiers[0], first).epoch;
            if let Err(fault) = state.run(open) {
                state.failed = true;
                state.context.fail(fault);
                return;
            }
            if !state.queue.is_empty() {
                wake.after(FULL_RETRY);
            }
        }
    });
}

/// A batch that the writer has not taken whole.
struct Queued {
    ticket: Ticket,
    elements: Rc<Vec<Element<Record>>>,
    taken: usize,
}

/// What is kept of a batch where a refused record has a dead letter.
struct Kept {
    capability: Capability<Time>,
    elements: Rc<Vec<Element<Record>>>,
}

/// A batch until it is acknowledged: its capability, and the names of its records should one be refused.
struct Outstanding {
    capability: Option<Capability<Time>>,
    letters: Option<Kept>,
    epoch: Epoch,
    places: Vec<(PartitionId, i64)>,
    refused: usize,
}

/// State of a sink.
struct Sink<W> {
    context: WorkerContext,
    step: StepHandle,
    policy: Policy,
    letters: Option<LetterBox>,
    writer: W,
    next: Ticket,
    queue: VecDeque<Queued>,
    outstanding: BTreeMap<Ticket, Outstanding>,
    waiting_bytes: usize,
    share: SinkShare,
    hold: Hold,
    failed: bool,
    open: Option<Epoch>,
}

fn bytes_of(elements: &[Element<Record>]) -> usize {
    let length = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map_or(0, |bytes| bytes.len());
    elements.iter().map(|element| length(&element.value.key) + length(&element.value.value)).sum()
}

impl<W: SinkWriter> Sink<W> {
    fn take(
        &mut self,
        capability: Capability<Time>,
        letters: Option<Capability<Time>>,
        elements: Vec<Element<Record>>,
    ) {
        let ticket = self.next;
        self.next = Ticket(ticket.0 + 1);
        self.step.metrics.received.inc_by(elements.len() as u64);
        self.waiting_bytes += bytes_of(&elements);
        let elements = Rc::new(elements);
        let outstanding = Outstanding {
            letters: letters.map(|capability| Kept { capability, elements: Rc::clone(&elements) }),
            epoch: capability.time().epoch,
            capability: Some(capability),
            places: elements.iter().map(|element| (element.meta.partition, element.meta.offset)).collect(),
            refused: 0,
        };
        self.outstanding.insert(ticket, outstanding);
        self.queue.push_back(Queued { ticket, elements, taken: 0 });
    }

    fn run(&mut self, open: Option<Epoch>) -> Result<(), Fault> {
        self.settle()?;
        self.submit()?;
        if open != self.open {
            self.open = open;
            self.writer.flush();
            // A writer that acknowledges at once need not wait for its waker.
            self.settle()?;
        }
        self.share.set(self.writer.in_flight_bytes() + self.waiting_bytes);
        let process = self.context.process();
        process.status.sink_bytes(process.sinks.bytes());
        // Tickets ascend; their epochs do so nearly.
        match self.outstanding.first_key_value() {
            Some((_, batch)) => self.hold.set(batch.epoch, "an acknowledgement of the destination"),
            None => self.hold.clear(),
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Fault> {
        while let Some(batch) = self.queue.front_mut() {
            let rest = &batch.elements[batch.taken..];
            if batch.taken == 0
                && let Some(outstanding) = self.outstanding.get(&batch.ticket)
            {
                self.writer.open(batch.ticket, outstanding.epoch);
            }
            let taken = self.writer.submit(batch.ticket, rest, false)?;
            assert!(taken <= rest.len(), "a writer takes at most what it is given");
            self.waiting_bytes -= bytes_of(&rest[..taken]);
            batch.taken += taken;
            if batch.taken < batch.elements.len() {
                return Ok(());
            }
            if self.context.sabotage().forget_sink_capability
                && let Some(outstanding) = self.outstanding.get_mut(&batch.ticket)
            {
                outstanding.capability = None;
            }
            self.queue.pop_front();
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Fault> {
        let (mut tickets, mut refused) = (Vec::new(), Vec::new());
        self.writer.acknowledged(&mut tickets, &mut refused)?;
        for refused in refused {
            self.refuse(&refused)?;
        }
        for ticket in tickets {
            let Some(batch) = self.outstanding.remove(&ticket) else {
                return Err(Fault::new(
                    ErrorClass::Internal,
                    format!("the destination acknowledged batch {} twice, or never had it", ticket.0),
                )
                .at_step(self.step.id.clone()));
            };
            self.step.metrics.emitted.inc_by((batch.places.len() - batch.refused) as u64);
        }
        Ok(())
    }

    /// The destination refuses a record for ever.
    fn refuse(&mut self, refused: &Refused) -> Result<(), Fault> {
        let Some(batch) = self.outstanding.get_mut(&refused.ticket) else { return Ok(()) };
        batch.refused += 1;
        self.step.metrics.refused.inc();
        let reason = format!("the destination refuses the record: {}", refused.reason);
        let fault = |class, reason: String| {
            let fault = Fault::new(class, reason).at_step(self.step.id.clone());
            let place = batch.places.get(refused.index);
            match place.and_then(|(id, offset)| Some((self.context.partition_name(*id)?, *offset))) {
                Some((partition, offset)) => fault.at_record(partition, offset),
                None => fault,
            }
        };
        match (&self.policy, refused.refusal, &mut self.letters, &batch.letters) {
            (Policy::LastResort, _, _, _) => {
                let reason = format!("its dead letter can never be written: {}", refused.reason);
                Err(fault(ErrorClass::Data, reason))
            }
            (Policy::Of(_), Refusal::Everything, _, _) => {
                Err(fault(ErrorClass::Missing, refused.reason.clone()))
            }
            (Policy::Of(OnError::Drop), Refusal::Record, _, _) => {
                self.step.metrics.dropped.inc();
                Ok(())
            }
            (Policy::Of(_), Refusal::Record, Some(letters), Some(Kept { capability, elements })) => {
                let element = &elements[refused.index];
                let value = || Ok(element.value.clone());
                let what = (FailureClass::Refused, 1);
                match letters.put(&element.meta, value, what, &refused.reason) {
                    Ok(()) => letters.send(capability),
                    Err(reason) => return Err(fault(ErrorClass::Data, reason)),
                }
                Ok(())
            }
            (Policy::Of(_), Refusal::Record, _, _) => Err(fault(ErrorClass::Data, reason)),
        }
    }
}

//! What happens to a record that a step fails on.

use super::dead_letter::{DeadLetters, FailureClass, LetterBox, as_record};
use crate::build::FlowBuild;
use crate::context::{StepHandle, WorkerContext};
use crate::element::{Data, Element, Meta, PartitionId, Record};
use crate::fault::Fault;
use crate::time::Time;
use std::fmt::Display;
use tidegate_recovery::{ErrorClass, TopicPartition};
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::{Capability, InputCapability};

/// What a step does with a record that it fails on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The run ends with the record's topic, partition and offset as its last line.
    #[default]
    Fail,
    /// The record is dropped and counted.
    Drop,
    /// The record is tried again, and then goes to a topic for dead letters.
    DeadLetter(DeadLetters),
}

impl OnError {
    /// The record is tried again, and then goes to this topic. See [`DeadLetters`].
    pub fn dead_letter(letters: impl Into<DeadLetters>) -> OnError {
        OnError::DeadLetter(letters.into())
    }

    /// The topic, where there is one.
    pub fn dead_letters(&self) -> Option<&DeadLetters> {
        match self {
            OnError::DeadLetter(letters) => Some(letters),
            OnError::Fail | OnError::Drop => None,
        }
    }

    /// How often a record is tried.
    pub(crate) fn attempts(&self) -> u32 {
        self.dead_letters().map_or(1, DeadLetters::attempts_max)
    }
}

impl From<DeadLetters> for OnError {
    fn from(letters: DeadLetters) -> OnError {
        OnError::DeadLetter(letters)
    }
}

/// A step's [`OnError`], with what its values are as records. That is asked only where a dead letter is needed and
/// the record as it was read is not kept.
pub struct ErrorHandling<T> {
    pub(crate) on_error: OnError,
    pub(crate) record_of: RecordOf<T>,
}

/// What a value is as a record.
pub type RecordOf<T> = fn(&T) -> Result<Record, String>;

impl<T> ErrorHandling<T> {
    /// With a form of its own for values.
    pub fn new(on_error: OnError, record_of: RecordOf<T>) -> ErrorHandling<T> {
        ErrorHandling { on_error, record_of }
    }

    /// What becomes of a record.
    pub fn on_error(&self) -> &OnError {
        &self.on_error
    }

    /// Whether a record that failed must still be there.
    pub(crate) fn keeps_records(&self) -> bool {
        self.on_error.dead_letters().is_some()
    }
}

/// A record goes out as it is, any other value as JSON without a key.
impl<T: Data> From<OnError> for ErrorHandling<T> {
    fn from(on_error: OnError) -> ErrorHandling<T> {
        ErrorHandling { on_error, record_of: as_record }
    }
}

/// Capabilities of what could not be done. They are never given back: until the worker has left, the epoch of
/// the failed record must not complete, or its offset would be committed and the record lost.
#[derive(Debug, Default)]
pub struct Unfinished(Vec<Capability<Time>>);

impl Unfinished {
    /// Keeps what an input message was to lead to, for the output with this index.
    pub fn keep_input(&mut self, capability: &InputCapability<Time>, output: usize) {
        let stamp = capability.stamp().iter();
        self.0.extend(stamp.map(|time| capability.delayed(time, output)));
    }

    /// Keeps a capability.
    pub fn keep(&mut self, capability: Capability<Time>) {
        self.0.push(capability);
    }

    /// Whether something is unfinished: the step takes nothing more from its input, so that nothing behind the
    /// failure completes either.
    pub fn is_any(&self) -> bool {
        !self.0.is_empty()
    }
}

/// A step's policy for records that it fails on, and what came of it.
pub(crate) struct ErrorPolicy<T> {
    context: WorkerContext,
    step: StepHandle,
    handling: ErrorHandling<T>,
    letters: Option<LetterBox>,
    unfinished: Unfinished,
}

impl<T> ErrorPolicy<T> {
    /// The policy of a step whose inputs its builder has; dead letters get an output behind those that are there.
    pub(crate) fn new<'s>(
        build: &FlowBuild<'s>,
        builder: &mut OperatorBuilder<'s, Time>,
        step: &StepHandle,
        handling: ErrorHandling<T>,
    ) -> ErrorPolicy<T> {
        let letters = handling.on_error.dead_letters();
        ErrorPolicy {
            context: build.context().clone(),
            step: step.clone(),
            letters: letters.map(|letters| LetterBox::open(build, builder, step, letters)),
            handling,
            unfinished: Unfinished::default(),
        }
    }

    /// Whether the step has failed for good: it takes nothing more from its input.
    pub(crate) fn has_failed(&self) -> bool {
        self.unfinished.is_any()
    }

    /// How often a record is tried.
    pub(crate) fn attempts(&self) -> u32 {
        self.handling.on_error.attempts()
    }

    /// A record failed. Returns whether the step goes on with the next record; if not, the caller keeps its
    /// capability with [`ErrorPolicy::unfinished`] and takes nothing more from its input. If so, the caller calls
    /// [`ErrorPolicy::send_letters`] before it gives the capability of the record back. Only a dead letter needs the
    /// record itself: see [`ErrorHandling::keeps_records`].
    pub(crate) fn goes_on(
        &mut self,
        place: Place,
        element: Option<&Element<T>>,
        reason: &dyn Display,
    ) -> bool {
        let fault = match (&self.handling.on_error, &mut self.letters, element) {
            (OnError::Drop, _, _) => {
                self.step.metrics.dropped.inc();
                return true;
            }
            (OnError::DeadLetter(letters), Some(out), Some(element)) => {
                let what = (FailureClass::Failed, letters.attempts_max());
                let value = || (self.handling.record_of)(&element.value);
                match out.put(&element.meta, value, what, reason) {
                    Ok(()) => return true,
                    Err(reason) => place.fault(&self.context, &self.step, &reason),
                }
            }
            _ => place.fault(&self.context, &self.step, reason),
        };
        self.context.fail(fault);
        false
    }

    /// Whether an element passes `f`, which is asked again as often as the policy says. `failed` becomes true where
    /// the step cannot go on.
    pub(crate) fn decide<E: Display>(
        &mut self,
        element: &mut Element<T>,
        f: &mut impl FnMut(&mut Element<T>) -> Result<bool, E>,
        failed: &mut bool,
    ) -> bool {
        let mut tried = f(element);
        for _ in 1..self.attempts() {
            if tried.is_ok() {
                break;
            }
            tried = f(element);
        }
        match tried {
            Ok(keep) => keep,
            Err(reason) => {
                *failed = !self.goes_on(Place::of(&element.meta), Some(element), &reason);
                false
            }
        }
    }

    /// Where the capabilities of what could not be done are kept.
    pub(crate) fn unfinished(&mut self) -> &mut Unfinished {
        &mut self.unfinished
    }

    /// Sends the dead letters about records of this message.
    pub(crate) fn send_letters(&mut self, capability: &InputCapability<Time>) {
        if let Some(letters) = &mut self.letters {
            letters.send_of(capability);
        }
    }

    /// What a step that keeps the message for later keeps for its dead letters.
    pub(crate) fn retain(&self, capability: &InputCapability<Time>) -> Option<Capability<Time>> {
        self.letters.as_ref().map(|letters| letters.retain(capability))
    }

    /// Sends the dead letters about records for which this was retained.
    pub(crate) fn send_letters_of(&mut self, retained: Option<&Capability<Time>>) {
        if let (Some(letters), Some(retained)) = (&mut self.letters, retained) {
            letters.send(retained);
        }
    }
}

/// Which record: enough of its [`Meta`] to name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    partition: PartitionId,
    offset: i64,
}

impl Place {
    /// Of an element with this meta.
    pub fn of(meta: &Meta) -> Place {
        Place { partition: meta.partition, offset: meta.offset }
    }

    /// The partition, where the record has a place.
    pub(crate) fn partition(self, context: &WorkerContext) -> Option<TopicPartition> {
        context.partition_name(self.partition)
    }

    /// The offset there.
    pub(crate) fn offset(self) -> i64 {
        self.offset
    }

    /// The fault that names the record, where it has a name.
    pub fn fault(self, context: &WorkerContext, step: &StepHandle, reason: &dyn Display) -> Fault {
        let fault = Fault::new(ErrorClass::Data, reason.to_string()).at_step(step.id.clone());
        match self.partition(context) {
            Some(partition) => fault.at_record(partition, self.offset),
            None => fault,
        }
    }
}

//! What happens to a record that a step fails on.

use crate::context::{StepHandle, WorkerContext};
use crate::element::Meta;
use crate::fault::Fault;
use crate::time::Time;
use std::fmt::Display;
use tidegate_recovery::ErrorClass;
use timely::dataflow::operators::{Capability, InputCapability};

/// What a step does with a record that it fails on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The run ends with the record's topic, partition and offset as its last line.
    #[default]
    Fail,
    /// The record is dropped and counted.
    Drop,
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
pub struct ErrorPolicy {
    context: WorkerContext,
    step: StepHandle,
    on_error: OnError,
    unfinished: Unfinished,
}

impl ErrorPolicy {
    /// The policy of a step.
    pub fn new(context: &WorkerContext, step: &StepHandle, on_error: OnError) -> ErrorPolicy {
        ErrorPolicy {
            context: context.clone(),
            step: step.clone(),
            on_error,
            unfinished: Unfinished::default(),
        }
    }

    /// Whether the step has failed for good: it takes nothing more from its input.
    pub fn has_failed(&self) -> bool {
        self.unfinished.is_any()
    }

    /// A record failed. Returns whether the step goes on with the next record; if not, the caller keeps its
    /// capability with [`ErrorPolicy::unfinished`] and takes nothing more from its input.
    pub fn goes_on(&mut self, place: Place, reason: &dyn Display) -> bool {
        match self.on_error {
            OnError::Drop => {
                self.step.metrics.dropped.inc();
                true
            }
            OnError::Fail => {
                self.context.fail(place.fault(&self.context, &self.step, reason));
                false
            }
        }
    }

    /// Where the capabilities of what could not be done are kept.
    pub fn unfinished(&mut self) -> &mut Unfinished {
        &mut self.unfinished
    }
}

/// Which record: enough of its [`Meta`] to name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    partition: crate::element::PartitionId,
    offset: i64,
}

impl Place {
    /// Of an element with this meta.
    pub fn of(meta: &Meta) -> Place {
        Place { partition: meta.partition, offset: meta.offset }
    }

    /// The fault that names the record, where it has a name.
    pub fn fault(self, context: &WorkerContext, step: &StepHandle, reason: &dyn Display) -> Fault {
        let fault = Fault::new(ErrorClass::Data, reason.to_string()).at_step(step.id.clone());
        match context.partition_name(self.partition) {
            Some(partition) => fault.at_record(partition, self.offset),
            None => fault,
        }
    }
}

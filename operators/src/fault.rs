//! The first thing that went wrong on a worker, in a form that a person can act on.

use std::fmt;
use tidegate_recovery::{ErrorClass, StepId, TopicPartition};

/// A failure that ends the run. Its text is the last line of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Picks the exit code.
    pub class: ErrorClass,
    /// Stable code from the design, such as `OFFSET_OUT_OF_RANGE`; empty when there is none.
    pub code: &'static str,
    /// The step, where one is to blame.
    pub step: Option<StepId>,
    /// Topic, partition and offset of the record, where one is to blame.
    pub record: Option<(TopicPartition, i64)>,
    /// What, where and what to do: lower case, no full stop.
    pub message: String,
}

impl Fault {
    /// A failure of this class.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Fault {
        Fault { class, code: "", step: None, record: None, message: message.into() }
    }

    /// With a stable code.
    pub fn code(mut self, code: &'static str) -> Fault {
        self.code = code;
        self
    }

    /// With the step to blame.
    pub fn at_step(mut self, step: StepId) -> Fault {
        self.step = Some(step);
        self
    }

    /// With the record to blame.
    pub fn at_record(mut self, partition: TopicPartition, offset: i64) -> Fault {
        self.record = Some((partition, offset));
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.code.is_empty() {
            write!(f, "{}: ", self.code)?;
        }
        if let Some(step) = &self.step {
            write!(f, "step {step}: ")?;
        }
        f.write_str(&self.message)?;
        if let Some((partition, offset)) = &self.record {
            write!(f, " (record {}:{}@{offset})", partition.topic, partition.partition)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

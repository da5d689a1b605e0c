//! The first thing that went wrong on a worker, in a form that a person can act on.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

/// Where the workers of a process report what went wrong. The first fault wins; everyone sees that there is
/// one and leaves.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<FaultsInner>);

#[derive(Debug, Default)]
struct FaultsInner {
    raised: AtomicBool,
    first: Mutex<Option<Fault>>,
}

impl Faults {
    /// Nothing went wrong yet.
    pub fn new() -> Faults {
        Faults::default()
    }

    /// Reports a fault; returns whether it was the first.
    pub fn report(&self, fault: Fault) -> bool {
        let mut first = self.0.first.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = first.is_none();
        if is_first {
            *first = Some(fault);
            self.0.raised.store(true, Ordering::Release);
        } else {
            tracing::warn!(%fault, "a further failure, after the one that ends the run");
        }
        is_first
    }

    /// Whether something went wrong: every worker looks at it between two steps, and leaves.
    pub fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::Acquire)
    }

    /// The first fault.
    pub fn first(&self) -> Option<Fault> {
        self.0.first.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fault_wins() {
        let faults = Faults::new();
        assert!(!faults.is_raised());
        assert!(faults.report(Fault::new(ErrorClass::Data, "one")));
        assert!(!faults.report(Fault::new(ErrorClass::Internal, "two")));
        assert_eq!(faults.first().map(|fault| fault.message), Some("one".to_owned()));
    }

    #[test]
    fn a_fault_says_what_where_and_which_record() {
        // E19
        let fault = Fault::new(ErrorClass::Data, "missing field `amount`")
            .at_step(StepId::new("totals"))
            .at_record(TopicPartition::new("orders", 3), 17);
        assert_eq!(fault.to_string(), "step totals: missing field `amount` (record orders:3@17)");
    }
}

//! Why something ended, in the words of whoever hears of it: a [`Cause`] is the cluster's, a [`Fault`] the
//! dataflow's, a [`StoreError`] the store's. Class, code and text are the same in all three.

use std::fmt::Display;
use tidegate_cluster::Cause;
use tidegate_operators::fault::Fault;
use tidegate_recovery::{ErrorClass, StoreError};

/// Something in the configuration.
pub(crate) fn config(text: impl Into<String>) -> Cause {
    Cause::new(ErrorClass::Config, "", text)
}

/// Something that this program does not expect of the system or of itself.
pub(crate) fn internal(what: &str, error: &dyn Display) -> Cause {
    Cause::new(ErrorClass::Internal, "", format!("cannot {what}: {error}"))
}

/// The cause that a fault is.
pub(crate) fn cause_of(fault: &Fault) -> Cause {
    Cause::new(fault.class, fault.code, fault.to_string())
}

/// The fault that a cause is, for whoever speaks of faults.
pub(crate) fn fault_of(cause: &Cause) -> Fault {
    Fault::new(cause.class, cause.text.clone())
}

/// The cause that an error of the store is.
pub(crate) fn store_cause(error: &StoreError) -> Cause {
    Cause::new(error.class(), error.code(), error.to_string())
}

/// The fault that an error of the store is.
pub(crate) fn store_fault(error: &StoreError) -> Fault {
    Fault::new(error.class(), error.to_string()).code(error.code())
}

//! Who is who: generations, runs, processes, workers, slots, steps, stores and flows.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $width:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:0", $width, "x}"), self.0)
            }
        }
    };
}

number! {
    /// Incarnation of the whole cluster; a higher one fences all lower ones.
    Generation(u64)
}
number! {
    /// Place of a process in the address list, from 0.
    ProcessIndex(u32)
}
number! {
    /// Place of a worker thread in the whole cluster, from 0: `process * workers_per_process + thread`.
    WorkerIndex(u32)
}
number! {
    /// Transactional identity of a process index.
    Slot(u32)
}
number! {
    /// Number of a commit record; the numbers of a store are dense.
    RecordNumber(u64)
}
hex_id! {
    /// One start of one process; drawn at random, so that two starts never share it.
    RunId(u128), 32
}
hex_id! {
    /// Identity of a recovery store, drawn when it is made.
    StoreId(u128), 32
}
hex_id! {
    /// Hash of what shapes a flow's state and routing; processes of one cluster must agree on it.
    FlowFingerprint(u64), 16
}

/// Stable id of a step, from its name in the flow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepId(pub Arc<str>);

impl StepId {
    /// The id for a step's name.
    pub fn new(name: impl AsRef<str>) -> StepId {
        StepId(Arc::from(name.as_ref()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

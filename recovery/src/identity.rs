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

impl Generation {
    /// The generation after this one.
    pub fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
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

/// How many processes a cluster has, and how many worker threads each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClusterShape {
    /// Processes, at least 1.
    pub processes: u32,
    /// Worker threads of each process, at least 1.
    pub workers_per_process: u32,
}

impl ClusterShape {
    /// Worker threads of the whole cluster.
    pub fn workers(self) -> usize {
        self.processes as usize * self.workers_per_process as usize
    }

    /// The thread of `process` that is `worker`; `None` when it is another process's.
    pub fn local(self, process: ProcessIndex, worker: WorkerIndex) -> Option<usize> {
        let first = process.0 * self.workers_per_process;
        let local = worker.0.checked_sub(first)?;
        (local < self.workers_per_process).then_some(local as usize)
    }
}

impl fmt::Display for ClusterShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} workers", self.processes, self.workers_per_process)
    }
}

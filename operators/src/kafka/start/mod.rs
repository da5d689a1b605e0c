//! Where each partition begins: what is asked of the cluster before anything is read, and what is decided.

mod anew;
mod decide;
mod lookup;

pub use anew::{TopicFacts, begin_anew, partitions_added};
pub use decide::{
    AutoOffsetReset, From, PartitionFacts, Stale, StartDecision, StartPolicy, announce, decide,
};
pub(crate) use lookup::{Found, MISSING_FOR};
pub use lookup::{LogBounds, Lookup};

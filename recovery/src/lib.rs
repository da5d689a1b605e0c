//! The words, the commit tracker and the recovery store of Tidegate.
//!
//! This crate knows neither timely nor Kafka: it compiles and is tested in seconds.
//!
//! - [`Epoch`], [`EventTime`], [`Generation`], [`StepId`] … are the words that every other crate uses.
//! - [`rows`] is what a stateful step says about its state, in the form that a segment holds.

mod class;
mod identity;
mod part;
mod partition;
pub mod routing;
pub mod rows;
mod time;

pub use class::ErrorClass;
pub use identity::{
    FlowFingerprint, Generation, ProcessIndex, RecordNumber, RunId, Slot, StepId, StoreId, WorkerIndex,
};
pub use part::{Part, SegmentRef};
pub use partition::{NextOffset, TopicPartition};
pub use routing::{BUCKETS, Bucket, KeyHash};
pub use rows::{RestoredRow, RestoredRows, RowBuffer, RowRoute, StepNumber};
pub use time::{Epoch, EpochSchedule, EventTime};

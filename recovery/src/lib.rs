//! The words, the commit tracker and the recovery store of Tidegate.
//!
//! This crate knows neither timely nor Kafka: it compiles and is tested in seconds.
//!
//! - [`Epoch`], [`EventTime`], [`Generation`], [`StepId`] … are the words that every other crate uses.
//! - [`rows`] is what a stateful step says about its state, in the form that a segment holds.

mod class;
mod error;
mod format;
mod identity;
mod lease;
mod live;
mod names;
mod part;
mod partition;
mod protocol;
pub mod routing;
pub mod rows;
mod steps;
pub mod storage;
mod store;
mod time;
mod tracker;

pub use class::ErrorClass;
pub use error::{Outcome, StoreError};
pub use identity::{
    ClusterShape, FlowFingerprint, Generation, ProcessIndex, RecordNumber, RunId, Slot, StepId, StoreId,
    WorkerIndex,
};
pub use lease::{Lease, LeaseHolder, LeaseKeeper, LeaseView, Standing};
pub use part::{Part, SegmentRef};
pub use partition::{NextOffset, TopicPartition};
pub use routing::{BUCKETS, Bucket, KeyHash};
pub use rows::{RestoredRow, RestoredRows, RowBuffer, RowRoute, StepNumber};
pub use steps::{RecordedStep, StepDifference, StepShape, StepTable};
pub use storage::{FaultyStorage, LocalDirectory, Storage};
pub use store::{Damage, InspectedLease, InspectedRecord, InspectedStep, Inspection, Verification};
pub use store::{
    OpenOptions, Opened, ProcessOptions, ProcessStore, Published, Publisher, RecoveryStore, Restoration,
    RestoredStep, ResumeState, StoreFigures,
};
pub use time::{Epoch, EpochSchedule, EventTime};
pub use tracker::{Assignment, CommitTracker, PartitionCommit, StaleResume, TrackerSettings};

//! The words, the commit tracker and the recovery store of Tidegate.
//!
//! This crate knows neither timely nor Kafka: it compiles and is tested in seconds.
//!
//! - [`Epoch`], [`EventTime`], [`Generation`], [`StepId`] … are the words that every other crate uses.
//! - [`rows`] is what a stateful step says about its state, in the form that a segment holds; [`routing`] is who owns a key.
//! - [`CommitTracker`] says which offsets may be committed to the consumer group, and when.
//! - [`RecoveryStore`] is the start of a process on a store, [`ProcessStore`] its part of every commit epoch,
//!   [`Publisher`] the commit point on process 0, [`Lease`] who is in charge.
//! - [`exactly_once`] is how output leaves the store for Kafka, once: state machines for a driver that owns the producers; [`outbox`]
//!   is the output's form in the store.
//! - [`storage`] is the disk underneath, and one in memory that forgets what was not synced.
//!
//! # What it guarantees
//!
//! - After a crash at any moment a start goes on from the highest commit record: state and offsets of one epoch, of all
//!   processes, on any number of processes and workers.
//! - A generation that froze and goes on later can neither damage what a newer one needs nor publish behind its back: it ends
//!   with `LEASE_LOST`.
//! - Damage is named with file and offset; it never gives wrong state and never a panic.
//! - A reader of committed records sees each output row of an exactly-once sink once, in order per slot; a group offset that
//!   [`exactly_once::SlotPublisher`] carried passes no record whose output cannot be read.
//! - Files on disk, bytes per commit and bytes per restore are bounded: see [`ProcessStore`].
//!
//! # What it assumes
//!
//! That a file is created exclusively, that a listing shows what was created before it, and that a sync means what it
//! says. A network file system with cached listings breaks that; a start looks for the nonce of its process 0 and says
//! `STORE_NOT_SHARED`.
//!
//! # Exactly-once output
//!
//! A process drives one machine at a time on a thread of its own; no worker ever waits for that thread.
//!
//! 1. Process 0: [`RecoveryStore::claim`] takes the lease. [`exactly_once::OutputStart`] with [`Claim::slots`] says what
//!    to do, [`Claim::choose`] being one of its actions. At [`exactly_once::Action::Ready`]: [`Claim::open`], then
//!    [`Publisher::leftovers_published`].
//! 2. The barrier: the other processes get the [`ResumeState`] and [`RecoveryStore::join`].
//! 3. Every process: an [`exactly_once::SlotPublisher`] for its slot; work begins at its `Ready`.
//! 4. Each commit epoch: [`ProcessStore::write_part_with_output`] makes the outbox, [`Publisher::publish`] makes it durable; then every
//!    process's machine is told [`exactly_once::Event::Durable`]. [`exactly_once::Action::Announce`] goes to all other machines
//!    ([`exactly_once::Event::PeerPublished`]) and to [`Publisher::output_published`]. An epoch is in flight until
//!    [`exactly_once::SlotPublisher::published_by_all`] has reached it.
//! 5. At a stop, and when nothing is on its way: [`exactly_once::Event::Quiet`], until [`exactly_once::SlotPublisher::is_settled`].
//!
//! Without keyed state no store is needed: an [`exactly_once::PartitionPublisher`] for each input partition.
//!
//! # A commit epoch
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use tidegate_recovery::rows::{RowChange, RowRef};
//! use tidegate_recovery::*;
//!
//! # fn main() -> Result<(), StoreError> {
//! # fn options() -> OpenOptions {
//! #     OpenOptions {
//! #         flow: "orders".to_owned(),
//! #         fingerprint: FlowFingerprint(1),
//! #         steps: StepTable::new(vec![StepShape::new("per-minute", "window")]).expect("one step"),
//! #         run: RunId(1),
//! #         host: "localhost".to_owned(),
//! #         build: "test".to_owned(),
//! #         shape: ClusterShape { processes: 1, workers_per_process: 1 },
//! #         slots: vec![Slot(0)],
//! #         peer_timeout: Duration::from_secs(10),
//! #         store_timeout: Duration::from_secs(60),
//! #         allow_dropped_state: false,
//! #         allow_older_snapshot: false,
//! #     }
//! # }
//! let storage: Arc<dyn Storage> = Arc::new(FaultyStorage::new());
//! let store = RecoveryStore::new(storage.clone());
//!
//! // Process 0 takes the lease; every process restores its rows.
//! let mut opened = store.open(&options(), None)?;
//! let mut process = ProcessStore::new(storage, &opened.resume, ProcessIndex(0), ProcessOptions::default());
//! let restored = process.restore(1, &|_row| Some(0))?;
//! assert_eq!(restored.rows, 0);
//!
//! // At a commit epoch each process writes the rows that changed …
//! let mut rows = RowBuffer::new();
//! let key = b"customer-1";
//! let route = RowRoute::Bucket(KeyHash::of(key).bucket());
//! rows.push(RowRef { step: StepNumber(0), route, key, sub: b"", change: RowChange::Put(b"7") });
//! let offsets = vec![(TopicPartition::new("orders.in", 0), NextOffset(42))];
//! let part = process.write_part(Epoch(10), &[rows], offsets)?;
//!
//! // … and process 0 publishes the record once all parts are there. From then on the epoch is durable.
//! let parts: Vec<Part> = part.into_iter().collect();
//! assert_eq!(opened.publisher.publish(Epoch(10), &parts)?, Published::Record(RecordNumber(1)));
//! opened.publisher.retain()?;
//! # Ok(())
//! # }
//! ```

mod class;
mod dealing;
mod error;
mod format;
mod identity;
mod lease;
mod live;
mod names;
pub mod outbox;
mod part;
mod partition;
mod protocol;
pub mod routing;
pub mod rows;
mod steps;
mod stop;
pub mod storage;
mod store;
mod time;
mod tracker;

pub use class::ErrorClass;
pub use dealing::deal;
pub use error::{Outcome, StoreError};
pub use format::outbox::Outbox;
pub use identity::{
    ClusterShape, FlowFingerprint, Generation, ProcessIndex, RecordNumber, RunId, Slot, StepId, StoreId,
    WorkerIndex,
};
pub use lease::{Lease, LeaseHolder, LeaseKeeper, LeaseView, Standing};
pub use outbox::{Decision, OutputBuffer};
pub use part::{OutboxRef, Part, SegmentRef};
pub use partition::{NextOffset, TopicId, TopicPartition};
pub use protocol::exactly_once;
pub use routing::{BUCKETS, Bucket, KeyHash};
pub use rows::{RestoredRow, RestoredRows, RowBuffer, RowRoute, StepNumber};
pub use steps::{RecordedStep, StepDifference, StepShape, StepTable};
pub use stop::StopRequest;
pub use storage::{FaultyStorage, LocalDirectory, Storage};
pub use store::{
    Claim, OpenOptions, Opened, ProcessOptions, ProcessStore, Published, Publisher, RecoveryStore,
    Restoration, RestoredStep, ResumeState, StoreFigures,
};
pub use store::{Damage, InspectedLease, InspectedRecord, InspectedStep, Inspection, Verification};
pub use time::{Epoch, EpochSchedule, EventTime};
pub use tracker::{Assignment, CommitTracker, PartitionCommit, StaleResume, TrackerSettings};

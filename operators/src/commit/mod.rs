//! From a closed epoch to a durable one: snapshot parts, the commit record, offsets.
//!
//! On every worker [`write_snapshots`] collects the rows of its steps; at the end of a commit epoch the rows of
//! all worker threads of a process become one part, written and synced behind [`SnapshotIo`]. The parts travel to
//! worker 0, where [`commit_epochs`] waits until their frontier **and** that of every acknowledgement have left
//! the epoch, publishes the record, and broadcasts "durable". [`receive_durable`] on every worker commits offsets
//! and wakes whoever reads the durable epoch.
//!
//! Without a store the same operators run without files: an epoch is durable when the frontiers have left it; under exactly once,
//! when [`publish_directly`] has also published its output and offsets, a transaction for each input partition.

mod committer;
mod direct;
mod io;
mod offsets;
mod progress;
mod publication;
mod receiver;
mod schedule;
mod writer;

pub use committer::{CommitAction, Committer, Durable, DurableStream, commit_epochs};
pub use direct::publish_directly;
pub use io::{DirectIo, DirectNews, OutputIo, PublicationNews, PublishedEpoch, SnapshotIo, WrittenPart};
pub use offsets::{NoOffsets, OffsetMarks};
pub use progress::watch_progress;
pub use publication::publish_output;
pub use receiver::{commit_at_close, receive_durable};
pub use schedule::CommitEpochs;
pub use writer::{PartStream, write_snapshots};

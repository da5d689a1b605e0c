//! From a closed epoch to a durable one: snapshot parts, the commit record, offsets.

mod io;
mod offsets;

pub use io::{PublishedEpoch, SnapshotIo, WrittenPart};
pub use offsets::OffsetMarks;

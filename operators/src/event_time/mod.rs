//! Event time: what a record's own clock says, and how far every partition has come.
//!
//! It is two operators. The first reads timestamps, keeps a watermark per (step, topic, partition), and
//! broadcasts this worker's minimum over its partitions that are not idle when it changed. The second holds the
//! capabilities; it is disconnected in timely's sense, so the event hand of everything behind it is what it says.
//!
//! It stands on the worker that reads the partition, before any exchange, and before any filter if it can: what
//! is dropped earlier moves no watermark.

mod hand;
mod idle;
mod operator;
mod silence;
mod watermark;

pub use hand::{EventHand, Report};
pub use idle::IdleClock;
pub use operator::event_time;
pub use silence::{Look, Silence};
pub use watermark::{Ahead, EventTimeSettings, PartitionWatermarks, Verdict};

//! Keyed, stateful steps: what windows, `stateful_map` and `collect_batch` share.
//!
//! A step is a [`KeyedLogic`], which is pure; [`Machine`] says in which order it works (epochs one by one,
//! watermarks, slices, the last epoch) and is pure too; [`keyed_step`] runs both as one timely operator. State
//! is kept as rows ([`StepRows`]) that are emitted at the end of each commit epoch and come back at a restart,
//! on any number of workers.

mod buckets;
#[cfg(test)]
pub(crate) mod hand_driven;
mod logic;
mod machine;
pub mod rows;
mod step;
mod table;
#[cfg(test)]
mod tests;

pub use crate::record::OnError;
pub use logic::{Applied, Closing, KeyedLogic, LastEpoch, Outlet, RecordError};
pub use machine::{Bury, Counts, Emit, Failure, Holds, KeyedPolicies, Machine, Surroundings, Untaken, Wake};
pub use rows::{KeyRow, KeyedRow, StateError, StepRows, read_row};
pub use step::keyed_step;
pub(crate) use table::{Keep, KeyTable};

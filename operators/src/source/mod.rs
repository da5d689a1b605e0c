//! Sources: where records enter a flow.

mod desk;
mod in_flight;
mod open_transaction;
mod operator;
mod reader;
mod shown;

pub use desk::{InputDesk, InputPosition, SkewGroup};
pub use in_flight::{Bite, InFlight};
pub use operator::{SourceSettings, source};
pub use reader::{CommitOutcome, PollBudget, SourceBatch, SourceReader};

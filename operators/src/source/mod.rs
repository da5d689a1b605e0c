//! Sources: where records enter a flow.

mod desk;
mod in_flight;
mod operator;
mod reader;

pub use desk::{InputDesk, InputPosition, SkewGroup};
pub use in_flight::{Bite, InFlight};
pub use operator::{SourceSettings, source};
pub use reader::{CommitOutcome, PollBudget, SourceBatch, SourceReader};

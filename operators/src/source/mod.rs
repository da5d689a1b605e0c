//! Sources: where records enter a flow.

mod reader;

pub use reader::{CommitOutcome, PollBudget, SourceBatch, SourceReader};

//! Keyed, stateful steps: what they share.

pub mod rows;

pub use rows::{KeyRow, KeyedRow, StateError, StepRows, read_row};

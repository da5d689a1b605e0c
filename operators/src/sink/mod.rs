//! Sinks: where records leave a flow, and where their capability waits for the acknowledgement.

pub mod file;
mod lines;
pub mod stdout;
mod writer;

pub use writer::{Refused, SinkWriter, Ticket};

//! Sinks: where records leave a flow, and where their capability waits for the acknowledgement.

mod writer;

pub use writer::{Refused, SinkWriter, Ticket};

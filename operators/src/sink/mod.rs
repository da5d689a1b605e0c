//! Sinks: where records leave a flow, and where their capability waits for the acknowledgement.

mod operator;
mod writer;

pub use operator::sink;
pub use writer::{Refused, SinkWriter, Ticket};

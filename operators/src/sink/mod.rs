//! Sinks: where records leave a flow, and where their capability waits for the acknowledgement.

pub mod file;
mod lines;
mod operator;
mod outbox;
pub mod stdout;
mod writer;

pub use lines::LineWriter;
pub use operator::{sink, sink_of_dead_letters};
pub use outbox::{OutboxDesk, OutboxWriter, PartitionOutput, TopicLimits};
pub use writer::{Refusal, Refused, SinkWriter, Ticket};

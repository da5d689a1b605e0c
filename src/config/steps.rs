//! The steps of a YAML flow, checked and compiled: what the assembly builds the graph from.

use super::yaml::Origin;
use crate::expression::{Aggregate, Expression};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidegate_recovery::StepId;

pub use tidegate_operators::record::{DeadLetters, OnError};
pub use tidegate_operators::window::LatePolicy;

/// A step of a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its id, unique in the flow: its name, or its kind where it has none.
    pub id: StepId,
    /// What it does.
    pub operation: Operation,
    /// What becomes of a record on which it fails.
    pub on_error: OnError,
    /// Path of its key, such as `steps[2].window`.
    pub path: String,
    /// Where it stands.
    pub origin: Origin,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Turns bytes into values.
    Decode(Decode),
    /// Makes another record of each.
    Map(MapStep),
    /// Keeps the records for which the expression holds.
    Filter(Expression),
    /// Makes a record of each item of the list that the expression gives.
    FlatMap(Expression),
    /// Shows some records in the log.
    Inspect(Inspect),
    /// Sets the event time.
    EventTime(EventTimeStep),
    /// Groups by what the expression gives. Its key bytes become the record's key, so that behind it `key` is text
    /// (bytes where they are no text), whatever the expression gave: state and windows know nothing else of a key.
    KeyBy(Expression),
    /// Aggregates per key and window.
    Window(WindowStep),
    /// Keeps a state per key.
    StatefulMap(StatefulMap),
    /// Collects records of a key into a list.
    CollectBatch(CollectBatch),
    /// Writes records; what follows it sees the same records.
    Sink(Sink),
    /// Test step: records for which the expression holds wait until the file exists.
    Gate {
        /// Which records wait.
        when: Expression,
        /// What they wait for.
        file: PathBuf,
    },
    /// Test step: records for which the expression holds take this long.
    Delay {
        /// Which records.
        when: Expression,
        /// How long.
        time: Duration,
    },
    /// Test step: the first record for which the expression holds fails in this way.
    FailOn {
        /// Which record.
        when: Expression,
        /// How it fails.
        how: Failure,
    },
}

impl Operation {
    /// Whether there are records that the step cannot take.
    pub fn can_fail(&self) -> bool {
        !matches!(
            self,
            Operation::Inspect(_)
                | Operation::CollectBatch(_)
                | Operation::Gate { .. }
                | Operation::Delay { .. }
                | Operation::Sink(Sink::Stdout | Sink::File { .. })
        )
    }

    /// The kind of the step, as it is written.
    pub fn kind(&self) -> &'static str {
        match self {
            Operation::Decode(_) => "decode",
            Operation::Map(_) => "map",
            Operation::Filter(_) => "filter",
            Operation::FlatMap(_) => "flat_map",
            Operation::Inspect(_) => "inspect",
            Operation::EventTime(_) => "event_time",
            Operation::KeyBy(_) => "key_by",
            Operation::Window(_) => "window",
            Operation::StatefulMap(_) => "stateful_map",
            Operation::CollectBatch(_) => "collect_batch",
            Operation::Sink(_) => "sink",
            Operation::Gate { .. } => "gate",
            Operation::Delay { .. } => "delay",
            Operation::FailOn { .. } => "fail_on",
        }
    }

    /// Whether the step keeps rows in the store: then its id must stay the same from start to start.
    pub fn keeps_rows(&self) -> bool {
        matches!(self, Operation::EventTime(_)) || self.needs_key()
    }

    /// Whether a crash without a store loses what the step knows: true for keyed steps but `collect_batch`,
    /// which holds the epochs of its records.
    pub fn loses_state(&self) -> bool {
        self.needs_key() && !matches!(self, Operation::CollectBatch(_))
    }

    /// Whether the step needs a `key_by` before it.
    pub fn needs_key(&self) -> bool {
        matches!(self, Operation::Window(_) | Operation::StatefulMap(_) | Operation::CollectBatch(_))
    }
}

/// How bytes become a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// One JSON document.
    Json,
    /// UTF-8 text.
    Text,
    /// Bytes as they are.
    Bytes,
}

/// Turns bytes into values; what is absent stays null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decode {
    /// The value's codec.
    pub value: Codec,
    /// The key's codec.
    pub key: Codec,
}

/// Makes another record; timestamp and headers go on.
#[derive(Clone, Debug, PartialEq)]
pub struct MapStep {
    /// The new value; `None` leaves it.
    pub value: Option<Expression>,
    /// The new key; `None` leaves it.
    pub key: Option<Expression>,
}

/// Shows some records in the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspect {
    /// What is shown.
    pub value: Expression,
    /// How many records each worker shows at first.
    pub first: u64,
    /// After those, one of this many; 0 means none.
    pub every: u64,
}

/// Where the event time comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum EventTimeFrom {
    /// The expression: milliseconds as an integer, or an RFC 3339 text.
    Expression(Expression),
    /// The record's own timestamp.
    Timestamp,
    /// The wall clock when the record arrives.
    Arrival,
}

/// What becomes of a record far beyond the wall clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// It is dropped and counted.
    Drop,
    /// It goes on and moves no watermark.
    Keep,
    /// It is the record's error.
    Fail,
    /// It goes to a topic for dead letters.
    DeadLetter(DeadLetters),
}

/// Sets the event time, and with it the watermark of each partition.
#[derive(Clone, Debug, PartialEq)]
pub struct EventTimeStep {
    /// Where it comes from.
    pub from: EventTimeFrom,
    /// How far behind the highest event time of its partition a record may be and still be on time.
    pub out_of_order: Duration,
    /// After this time without a record, by the wall clock, a partition holds no watermark back. When all were silent
    /// that long, the first records of a burst move the watermark for all of them.
    pub idle: Duration,
    /// A record far beyond the wall clock.
    pub ahead: Ahead,
    /// How far that is.
    pub max_ahead: Duration,
    /// How far a partition may run ahead of the slowest one.
    pub max_skew: Duration,
    /// Steps in which the watermark moves.
    pub watermark_step: Duration,
}

/// The shape of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowShape {
    /// Windows of one size, side by side.
    Tumbling {
        /// Their size.
        size: Duration,
        /// By how much all borders are shifted.
        align: Duration,
    },
    /// Windows of one size that overlap.
    Sliding {
        /// Their size.
        size: Duration,
        /// Distance between their starts.
        every: Duration,
        /// By how much all borders are shifted.
        align: Duration,
    },
    /// Records of a key with no gap larger than this between them.
    Session {
        /// The gap.
        gap: Duration,
    },
}

/// Aggregates per key and window.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowStep {
    /// Its shape.
    pub shape: WindowShape,
    /// How long after its end a window still takes records.
    pub lateness: Duration,
    /// What becomes of a late record.
    pub late: LatePolicy,
    /// Aggregates by the name of the field that they become, in the order of the result's fields.
    pub aggregates: Vec<(Arc<str>, Aggregate)>,
}

/// Keeps a state per key.
///
/// For each record `state` is evaluated with `state` standing for what was kept before (`initial` at first) and
/// its result is kept (null forgets the key); then `emit` is evaluated with `state` standing for the new one.
/// Its result is the new record's value; null emits nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct StatefulMap {
    /// The state before the first record of a key; null when it is not given.
    pub initial: Option<Expression>,
    /// The new state.
    pub state: Expression,
    /// What is emitted; `None` emits the state.
    pub emit: Option<Expression>,
}

/// Collects records of a key into a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectBatch {
    /// A batch is cut at this many records.
    pub max_records: usize,
    /// A batch is cut when its oldest record is this old.
    pub timeout: Duration,
}

/// Where records are written.
#[derive(Clone, Debug, PartialEq)]
pub enum Sink {
    /// To a topic.
    Kafka(KafkaSink),
    /// To stdout, one JSON line per value.
    Stdout,
    /// To a file, one JSON line per value; `{process}` in the path is the process index.
    File {
        /// Its path.
        path: String,
    },
}

/// Writes to a topic.
#[derive(Clone, Debug, PartialEq)]
pub struct KafkaSink {
    /// The topic.
    pub topic: String,
    /// The key to write; `None` means the record's key.
    pub key: Option<Expression>,
    /// How a topic that is missing is made; `None` refuses it.
    pub create: Option<CreateTopic>,
    /// Whether each record gets a header with a name that is the same whenever the record is written again.
    pub idempotency_key: bool,
}

/// How a missing topic is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateTopic {
    /// Number of partitions.
    pub partitions: i32,
    /// Number of replicas.
    pub replication: i32,
}

/// How a `fail_on` step fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// As a step that returns an error.
    Error,
    /// As a step that panics.
    Panic,
    /// As a process that is killed.
    Abort,
}

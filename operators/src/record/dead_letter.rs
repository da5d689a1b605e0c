//! Dead letters: records that a step could not take, on their way to a topic of their own.
//!
//! A dead letter is the record as it was read: its key, value, headers (order, repeats, nulls) and timestamp. Behind
//! its own headers stand eight of ours, [`HEADERS`], that say what happened. They are bounded: only the message has
//! no natural bound, and it is cut at [`MESSAGE_BYTES_MAX`]. A reader takes them off again, so that a dead-letter
//! topic can be read by a repaired flow as if nothing had happened.
//!
//! The letters of a step leave it on an output of its own, behind which only epochs are tracked. Whoever assembles
//! the flow ends that stream in a sink, whose acknowledgement is what completes the record.

use crate::batch::{Batch, Parcel};
use crate::build::{FlowBuild, epoch_only};
use crate::context::{StepHandle, WorkerContext};
use crate::element::{Data, Element, Header, Headers, Meta, Original, Record};
use crate::record::Place;
use crate::time::Time;
use bytes::Bytes;
use prometheus_client::metrics::counter::Counter;
use std::any::Any;
use std::fmt::Display;
use std::sync::Arc;
use tidegate_recovery::EventTime;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::{Capability, InputCapability, Operator};

/// Bytes of a failure's message that a dead letter carries at most.
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// How often a record is tried where nothing else is said.
pub const ATTEMPTS: u32 = 3;

/// What the names of all our headers begin with.
const PREFIX: &str = "tidegate-error-";

/// The headers that say what happened, in the order in which they stand.
pub const HEADERS: [&str; 8] = [
    "tidegate-error-class",
    "tidegate-error-message",
    "tidegate-error-step",
    "tidegate-error-topic",
    "tidegate-error-partition",
    "tidegate-error-offset",
    "tidegate-error-attempt",
    "tidegate-error-flow",
];

/// Whether a header of this name is one of [`HEADERS`].
pub fn is_diagnostic(name: &[u8]) -> bool {
    // Nearly all headers end here.
    name.starts_with(PREFIX.as_bytes()) && HEADERS.iter().any(|header| header.as_bytes() == name)
}

/// Where records go that a step cannot take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetters {
    topic: Arc<str>,
    attempts: u32,
    create: Option<(i32, i32)>,
}

impl DeadLetters {
    /// To this topic, after [`ATTEMPTS`] attempts.
    pub fn to(topic: impl AsRef<str>) -> DeadLetters {
        DeadLetters { topic: Arc::from(topic.as_ref()), attempts: ATTEMPTS, create: None }
    }

    /// A record is tried this often (at least once) before it is given up. The attempts follow each other at once, so
    /// that the records behind it keep their order. A record that came too late, too far ahead, or that a
    /// destination refuses is not tried again.
    pub fn attempts(mut self, attempts: u32) -> DeadLetters {
        self.attempts = attempts.max(1);
        self
    }

    /// A topic that is missing at the start is made with this many partitions and replicas.
    pub fn create(mut self, partitions: i32, replication: i32) -> DeadLetters {
        self.create = Some((partitions, replication));
        self
    }

    /// The topic.
    pub fn topic(&self) -> &Arc<str> {
        &self.topic
    }

    /// Attempts at one record.
    pub fn attempts_max(&self) -> u32 {
        self.attempts
    }

    /// Partitions and replicas with which a missing topic is made.
    pub fn creation(&self) -> Option<(i32, i32)> {
        self.create
    }
}

impl From<&str> for DeadLetters {
    fn from(topic: &str) -> DeadLetters {
        DeadLetters::to(topic)
    }
}

impl From<String> for DeadLetters {
    fn from(topic: String) -> DeadLetters {
        DeadLetters::to(topic)
    }
}

/// What kind of failure a dead letter is about: the header `tidegate-error-class`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureClass {
    /// The step failed on the record.
    Failed,
    /// The record came after all its windows were closed.
    Late,
    /// The record's event time is too far ahead of the wall clock.
    Ahead,
    /// The destination refuses what was made of the record.
    Refused,
}

impl FailureClass {
    /// As the header has it.
    pub fn as_str(self) -> &'static str {
        match self {
            FailureClass::Failed => "failed",
            FailureClass::Late => "late",
            FailureClass::Ahead => "ahead",
            FailureClass::Refused => "refused",
        }
    }
}

/// Gives every element the record that it is at this place, for the dead letters of later steps.
///
/// One allocation per record: a flow has this only where a step that changes the record stands before one with
/// dead letters.
pub fn keep_original<'s>(
    stream: crate::batch::ElementStream<'s, Record>,
) -> crate::batch::ElementStream<'s, Record> {
    stream.unary::<CapacityContainerBuilder<Batch<Record>>, _, _, _>(Pipeline, "keep original", |_, _| {
        |input, output| {
            input.for_each(|capability, batch| {
                for Element { value, meta } in batch.iter_mut() {
                    let original = Original {
                        record: value.clone(),
                        headers: meta.headers.clone(),
                        timestamp: meta.timestamp,
                    };
                    meta.original = Some(Arc::new(original));
                }
                output.session(&capability).give_container(batch);
            });
        }
    })
}

/// What a value is as a record, where the record as it was read is not at hand: a record itself, anything else as
/// JSON.
pub fn as_record<T: Data>(value: &T) -> Result<Record, String> {
    if let Some(record) = (value as &dyn Any).downcast_ref::<Record>() {
        return Ok(record.clone());
    }
    match serde_json::to_vec(value) {
        Ok(json) => Ok(Record { key: None, value: Some(json.into()) }),
        Err(error) => Err(error.to_string()),
    }
}

/// The output of a step for dead letters to one topic. Without dead letters a step has none.
pub(crate) struct LetterBox {
    context: WorkerContext,
    step: StepHandle,
    flow: Arc<str>,
    port: usize,
    output: OutputBuilder<Time, CapacityContainerBuilder<Batch<Record>>>,
    written: Counter,
    waiting: Vec<Element<Record>>,
}

impl LetterBox {
    /// Adds the output to an operator whose inputs are all there; the flow gets the stream.
    pub(crate) fn open<'s>(
        build: &FlowBuild<'s>,
        builder: &mut OperatorBuilder<'s, Time>,
        step: &StepHandle,
        letters: &DeadLetters,
    ) -> LetterBox {
        let port = builder.shape().outputs();
        let (output, stream) = builder.new_output_connection::<Batch<Record>, _>(epoch_only(0));
        build.collect_dead_letters(letters.topic().clone(), stream);
        let context = build.context().clone();
        LetterBox {
            written: step.metrics.dead_letters_to(letters.topic()),
            step: step.clone(),
            flow: build.flow_name().clone(),
            context,
            port,
            output: OutputBuilder::from(output),
            waiting: Vec::new(),
        }
    }

    /// The letter about a record waits for [`LetterBox::send`]. `value` gives what the step got, for a record that
    /// is made of several; an error says that no letter can be written about it.
    pub(crate) fn put(
        &mut self,
        meta: &Meta,
        value: impl FnOnce() -> Result<Record, String>,
        (class, attempt): (FailureClass, u32),
        reason: &dyn Display,
    ) -> Result<(), String> {
        let (record, headers, timestamp) = match &meta.original {
            Some(original) => (original.record.clone(), &original.headers, original.timestamp),
            None => {
                let record = value().map_err(|error| {
                    format!("{reason}; no dead letter can be written, its value is no JSON: {error}")
                })?;
                (record, &meta.headers, meta.timestamp)
            }
        };
        let headers = self.headers(headers, Place::of(meta), (class, attempt), reason);
        let meta = Meta { timestamp, headers, original: None, ..meta.clone() };
        self.waiting.push(Element { value: record, meta });
        Ok(())
    }

    fn headers(
        &self,
        own: &Headers,
        place: Place,
        (class, attempt): (FailureClass, u32),
        reason: &dyn Display,
    ) -> Headers {
        let mut headers = own.as_slice().to_vec();
        headers.reserve(HEADERS.len());
        let partition = place.partition(&self.context);
        let attempt = attempt.to_string();
        let (number, offset) = (
            partition.as_ref().map(|partition| partition.partition.to_string()),
            partition.as_ref().map(|_| place.offset().to_string()),
        );
        let message = cut(reason.to_string());
        // A result that is made of several records has no place.
        let values = [
            Some(class.as_str()),
            Some(message.as_str()),
            Some(self.step.id.as_str()),
            partition.as_ref().map(|partition| &*partition.topic),
            number.as_deref(),
            offset.as_deref(),
            Some(attempt.as_str()),
            Some(&*self.flow),
        ];
        for (name, value) in HEADERS.into_iter().zip(values) {
            if let Some(value) = value {
                headers.push(Header {
                    name: Arc::from(name),
                    value: Some(Bytes::copy_from_slice(value.as_bytes())),
                });
            }
        }
        Headers::new(headers)
    }

    /// What lets a letter about a record of this message be sent later.
    pub(crate) fn retain(&self, capability: &InputCapability<Time>) -> Capability<Time> {
        let epoch = capability.stamp().expect_singleton().epoch;
        capability.delayed(&Time::new(epoch, EventTime::MAX), self.port)
    }

    /// Sends the letters about records of this message.
    pub(crate) fn send_of(&mut self, capability: &InputCapability<Time>) {
        if !self.waiting.is_empty() {
            let capability = self.retain(capability);
            self.send(&capability);
        }
    }

    /// Sends what waits, under a capability that was retained for it.
    pub(crate) fn send(&mut self, capability: &Capability<Time>) {
        if self.waiting.is_empty() {
            return;
        }
        self.written.inc_by(self.waiting.len() as u64);
        let mut letters = Parcel(std::mem::take(&mut self.waiting));
        self.output.activate().session(capability).give_container(&mut letters);
    }
}

/// At most [`MESSAGE_BYTES_MAX`] bytes of a text, whole characters.
fn cut(mut text: String) -> String {
    if text.len() > MESSAGE_BYTES_MAX {
        let end = (0..=MESSAGE_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_between_characters() {
        assert_eq!(cut("short".to_owned()), "short");
        let long = cut(format!("x{}", "ä".repeat(MESSAGE_BYTES_MAX)));
        assert_eq!(long.len(), MESSAGE_BYTES_MAX - 1, "an ä has two bytes");
        assert!(long.ends_with('ä'));
    }

    #[test]
    fn only_the_eight_headers_are_ours() {
        assert!(HEADERS.iter().all(|name| is_diagnostic(name.as_bytes()) && name.starts_with(PREFIX)));
        for other in ["", "trace", "tidegate-error-", "tidegate-error-classes", "Tidegate-error-class"] {
            assert!(!is_diagnostic(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_value_is_written_as_a_record_or_as_json() {
        let record = Record { key: None, value: Some(Bytes::from_static(b"\xff")) };
        assert_eq!(as_record(&record), Ok(record.clone()));
        assert_eq!(as_record(&vec![1, 2]).unwrap().value.as_deref(), Some(&b"[1,2]"[..]));
        let no_json = std::collections::BTreeMap::from([((1, 2), 3)]);
        assert!(as_record(&no_json).is_err());
    }
}

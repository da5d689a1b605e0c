//! [`Stream`]: values on their way, and the steps that look at one of them at a time.

use super::Flow;
use super::keyed::{KeyBytes, KeyedStream};
use super::plan::{Keeps, Known, Node};
use super::shape::Parameters;
use crate::connections::{Destination, WorkerClients};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;
use std::marker::PhantomData;
use std::time::Duration;
use tidegate_operators::batch::ElementStream;
use tidegate_operators::build::FlowBuild;
use tidegate_operators::element::{Data, Element, Record};
use tidegate_operators::event_time::{Ahead, EventTimeSettings, event_time};
use tidegate_operators::record::{self, DeadLetters, ErrorHandling, OnError, Unprojected};
use tidegate_operators::sink::{SinkWriter, sink};
use tidegate_recovery::{EventTime, StepId};
use timely::dataflow::operators::Concatenate;

/// A stream of values of type `T`. Using a stream twice forks it: both users see every value.
#[derive(Clone)]
pub struct Stream<'s, T: Data> {
    pub(super) flow: Flow<'s>,
    pub(super) node: Node,
    pub(super) event_time: bool,
    /// Whether its values stand for the records as they were read: no step has changed one.
    pub(super) as_read: bool,
    /// `None` while the flow is planned.
    pub(super) elements: Option<ElementStream<'s, T>>,
}

/// How much records of one partition may be out of order, for [`Stream::event_time`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfOrder {
    pub(crate) settings: EventTimeSettings,
}

impl OutOfOrder {
    /// A record is on time as long as it is no more than this behind the highest event time of its partition.
    pub fn of(out_of_order: Duration) -> OutOfOrder {
        OutOfOrder { settings: EventTimeSettings::out_of_order_ms(millis(out_of_order)) }
    }

    /// See [`OutOfOrder::of`].
    pub fn secs(secs: u64) -> OutOfOrder {
        OutOfOrder::of(Duration::from_secs(secs))
    }

    /// See [`OutOfOrder::of`].
    pub fn millis(millis: u64) -> OutOfOrder {
        OutOfOrder::of(Duration::from_millis(millis))
    }

    /// A partition without a record for this long holds no watermark back (30 s by default).
    ///
    /// This goes by the wall clock. When all partitions were silent that long, the first records of a burst move the
    /// watermark for all of them, and older ones that another partition delivers a moment later may be late.
    pub fn idle(mut self, idle: Duration) -> OutOfOrder {
        self.settings.idle = idle;
        self
    }

    /// A record that is too far ahead of the wall clock (by an hour) goes to a topic; without this it is dropped.
    pub fn ahead_to(mut self, letters: impl Into<DeadLetters>) -> OutOfOrder {
        self.settings.ahead = Ahead::DeadLetter(letters.into());
        self
    }
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Turns records into values.
pub trait Decode: 'static {
    /// What a record becomes.
    type Out: Data;

    /// The value of a record; the error's text says what is wrong with it.
    fn decode(&self, record: &Record) -> Result<Self::Out, String>;
}

/// Decodes a record's value as JSON.
pub struct Json<T>(PhantomData<fn() -> T>);

impl<T> Json<T> {
    /// A decoder of JSON documents.
    pub fn new() -> Json<T> {
        Json(PhantomData)
    }
}

impl<T> Default for Json<T> {
    fn default() -> Json<T> {
        Json::new()
    }
}

impl<T: Data + DeserializeOwned> Decode for Json<T> {
    type Out = T;

    fn decode(&self, record: &Record) -> Result<T, String> {
        match &record.value {
            None => Err("the record has no value".to_owned()),
            Some(value) => serde_json::from_slice(value)
                .map_err(|error| format!("the value is not the expected JSON: {error}")),
        }
    }
}

/// Makes records of values.
pub trait IntoRecord {
    /// A record with this key and `value` as JSON.
    fn json(key: impl KeyBytes, value: &impl Serialize) -> Record;
}

impl IntoRecord for Record {
    fn json(key: impl KeyBytes, value: &impl Serialize) -> Record {
        let value =
            serde_json::to_vec(value).expect("a value whose maps have string keys can be written as JSON");
        Record { key: key.key_bytes(), value: Some(value.into()) }
    }
}

impl<'s, T: Data> Stream<'s, T> {
    /// A step behind this one: the plan gets it, and where the flow is being built, `build` makes its operator.
    pub(super) fn step_that_keeps<U: Data>(
        self,
        name: Option<&str>,
        kind: &'static str,
        keeps: Keeps,
        parameters: Parameters,
        build: impl FnOnce(&FlowBuild<'s>, &StepId, ElementStream<'s, T>) -> ElementStream<'s, U>,
    ) -> Stream<'s, U> {
        let (node, id) = self.flow.add(name, kind, keeps, parameters, vec![self.node]);
        let elements = self.elements.map(|elements| {
            let (operators, _) = self.flow.building().expect("a stream with elements is being built");
            build(operators, &id, elements)
        });
        Stream { flow: self.flow, node, event_time: self.event_time, as_read: false, elements }
    }

    /// The same stream, whose step has not changed the records if `as_read` says that nobody has before.
    pub(super) fn unchanged(self, as_read: bool) -> Stream<'s, T> {
        Stream { as_read, ..self }
    }

    /// The same stream, whose step puts what it does not take to where its policy says.
    pub(super) fn dead_letters(self, letters: Option<&DeadLetters>, before_as_read: bool) -> Stream<'s, T> {
        self.flow.note_dead_letters(self.node, letters, before_as_read);
        self
    }

    /// The same for a step that keeps nothing.
    pub(super) fn step<U: Data>(
        self,
        name: Option<&str>,
        kind: &'static str,
        build: impl FnOnce(&FlowBuild<'s>, &StepId, ElementStream<'s, T>) -> ElementStream<'s, U>,
    ) -> Stream<'s, U> {
        self.step_that_keeps(name, kind, Keeps::Nothing, Parameters::new(), build)
    }

    /// The end of a stream: no step stands behind it.
    fn end(
        self,
        name: Option<&str>,
        kind: &'static str,
        known: Known,
        build: impl FnOnce(&FlowBuild<'s>, &WorkerClients, StepId, ElementStream<'s, T>),
    ) {
        let (node, id) = self.flow.add(name, kind, Keeps::Nothing, Parameters::new(), vec![self.node]);
        self.flow.mark_terminal(node);
        self.flow.note(node, |of_step| *of_step = known);
        if let Some(elements) = self.elements {
            let (operators, connections) =
                self.flow.building().expect("a stream with elements is being built");
            build(operators, connections, id, elements);
        }
    }

    /// A part of the step before, which the plan does not show as one of its own: it has no name to keep.
    pub(super) fn untracked<U: Data>(
        self,
        build: impl FnOnce(&FlowBuild<'s>, &StepId, ElementStream<'s, T>) -> ElementStream<'s, U>,
    ) -> Stream<'s, U> {
        self.step(Some("result"), "map", build)
    }

    /// Keeps the values for which `keep` holds.
    pub fn filter(self, name: &str, keep: impl Fn(&T) -> bool + 'static) -> Stream<'s, T> {
        let as_read = self.as_read;
        let kept = self.step(Some(name), "filter", move |build, id, elements| {
            record::filter(build, id, elements, move |element| keep(&element.value))
        });
        kept.unchanged(as_read)
    }

    /// Makes another value of each.
    pub fn map<U: Data>(self, name: &str, f: impl Fn(T) -> U + 'static) -> Stream<'s, U> {
        self.step(Some(name), "map", move |build, id, elements| record::map(build, id, elements, f))
    }

    /// Makes another value of each, or fails on it: see [`OnError`].
    pub fn try_map<U: Data, E: Display>(
        self,
        name: &str,
        on_error: OnError,
        f: impl Fn(T) -> Result<U, E> + 'static,
    ) -> Stream<'s, U> {
        self.try_map_elements(Some(name), "map", on_error, move |Element { value, meta }| {
            f(value).map(|value| Element { value, meta })
        })
    }

    /// The same over elements: timestamp, headers and where the record came from can be seen and changed.
    pub fn try_map_elements<U: Data, E: Display>(
        self,
        name: Option<&str>,
        kind: &'static str,
        handling: impl Into<ErrorHandling<T>>,
        f: impl Fn(Element<T>) -> Result<Element<U>, E> + 'static,
    ) -> Stream<'s, U> {
        let (as_read, handling) = (self.as_read, handling.into());
        let letters = handling.on_error().dead_letters().cloned();
        let mapped = self
            .step(name, kind, move |build, id, elements| record::try_map(build, id, elements, handling, f));
        mapped.dead_letters(letters.as_ref(), as_read)
    }

    /// The same with another value of each.
    pub(super) fn try_map_ref_elements<U: Data, E: Display>(
        self,
        name: Option<&str>,
        kind: &'static str,
        handling: impl Into<ErrorHandling<T>>,
        f: impl Fn(&Element<T>) -> Result<U, E> + 'static,
    ) -> Stream<'s, U> {
        let (as_read, handling) = (self.as_read, handling.into());
        let letters = handling.on_error().dead_letters().cloned();
        let mapped = self.step(name, kind, move |build, id, elements| {
            record::try_map_ref(build, id, elements, handling, f)
        });
        mapped.dead_letters(letters.as_ref(), as_read)
    }

    /// The same where each element is changed in its place; one on which `f` fails is as it was.
    pub(super) fn try_update_elements<E: Display>(
        self,
        name: Option<&str>,
        kind: &'static str,
        handling: impl Into<ErrorHandling<T>>,
        f: impl Fn(&mut Element<T>) -> Result<(), E> + 'static,
    ) -> Stream<'s, T> {
        let (as_read, handling) = (self.as_read, handling.into());
        let letters = handling.on_error().dead_letters().cloned();
        let updated = self.step(name, kind, move |build, id, elements| {
            record::try_update(build, id, elements, handling, f)
        });
        updated.dead_letters(letters.as_ref(), as_read)
    }

    /// Makes any number of values of each.
    pub fn flat_map<U: Data, I>(self, name: &str, f: impl Fn(T) -> I + 'static) -> Stream<'s, U>
    where
        I: IntoIterator<Item = U>,
        I::IntoIter: 'static,
    {
        self.step(Some(name), "flat_map", move |build, id, elements| record::flat_map(build, id, elements, f))
    }

    /// Makes any number of values of each element, or fails on it.
    pub fn try_flat_map_elements<U: Data, I, E: Display>(
        self,
        name: Option<&str>,
        handling: impl Into<ErrorHandling<T>>,
        f: impl Fn(Element<T>) -> Result<I, E> + 'static,
    ) -> Stream<'s, U>
    where
        I: IntoIterator<Item = U>,
        I::IntoIter: 'static,
    {
        let (as_read, handling) = (self.as_read, handling.into());
        let letters = handling.on_error().dead_letters().cloned();
        let mapped = self.step(name, "flat_map", move |build, id, elements| {
            record::try_flat_map(build, id, elements, handling, f)
        });
        mapped.dead_letters(letters.as_ref(), as_read)
    }

    /// Keeps the elements for which `keep` holds, or fails on one.
    pub fn try_filter_elements<E: Display>(
        self,
        name: Option<&str>,
        handling: impl Into<ErrorHandling<T>>,
        keep: impl Fn(&Element<T>) -> Result<bool, E> + 'static,
    ) -> Stream<'s, T> {
        let (as_read, handling) = (self.as_read, handling.into());
        let letters = handling.on_error().dead_letters().cloned();
        let kept = self.step(name, "filter", move |build, id, elements| {
            record::try_filter(build, id, elements, handling, keep)
        });
        kept.unchanged(as_read).dead_letters(letters.as_ref(), as_read)
    }

    /// Looks at each value.
    pub fn inspect(self, name: &str, f: impl Fn(&T) + 'static) -> Stream<'s, T> {
        self.inspect_elements(Some(name), move |element| f(&element.value))
    }

    /// Looks at each element.
    pub fn inspect_elements(self, name: Option<&str>, f: impl FnMut(&Element<T>) + 'static) -> Stream<'s, T> {
        let as_read = self.as_read;
        let seen =
            self.step(name, "inspect", move |build, id, elements| record::inspect(build, id, elements, f));
        seen.unchanged(as_read)
    }

    /// Sets the event time, in milliseconds since the Unix epoch, and with it the watermark of each partition.
    /// It stands before any `key_by`, and best before any filter: what is dropped earlier moves no watermark.
    pub fn event_time(
        self,
        name: &str,
        of: impl Fn(&T) -> i64 + 'static,
        order: OutOfOrder,
    ) -> Stream<'s, T> {
        self.event_time_elements(Some(name), order.settings, OnError::Fail, move |element| {
            Ok::<_, std::convert::Infallible>(of(&element.value))
        })
    }

    /// The same over elements; it may fail.
    pub fn event_time_elements<E: Display>(
        self,
        name: Option<&str>,
        settings: EventTimeSettings,
        handling: impl Into<ErrorHandling<T>>,
        of: impl Fn(&Element<T>) -> Result<i64, E> + 'static,
    ) -> Stream<'s, T> {
        let nothing_shapes_it = Parameters::new();
        let (as_read, handling) = (self.as_read, handling.into());
        let letters = handling.on_error().dead_letters().cloned();
        let ahead = match &settings.ahead {
            Ahead::DeadLetter(letters) => Some(letters.clone()),
            Ahead::Keep | Ahead::Drop => None,
        };
        let stream = self.step_that_keeps(
            name,
            "event_time",
            Keeps::Watermarks,
            nothing_shapes_it,
            move |build, id, elements| {
                event_time(build, id, elements, settings, handling, move |element| of(element).map(EventTime))
            },
        );
        let stream = stream.unchanged(as_read);
        let stream = stream.dead_letters(letters.as_ref(), as_read).dead_letters(ahead.as_ref(), as_read);
        Stream { event_time: true, ..stream }
    }

    /// Groups by a key; windows and other stateful steps work per key.
    pub fn key_by<K: KeyBytes + 'static>(self, key: impl Fn(&T) -> K + 'static) -> KeyedStream<'s, K, T> {
        self.try_key_by_elements(None, OnError::Fail, move |element| {
            Ok::<_, std::convert::Infallible>(key(&element.value).key_bytes())
        })
    }

    /// The same over elements, with the key's bytes; it may fail.
    pub fn try_key_by_elements<K: 'static, E: Display>(
        self,
        name: Option<&str>,
        handling: impl Into<ErrorHandling<T>>,
        key: impl Fn(&Element<T>) -> Result<Option<bytes::Bytes>, E> + 'static,
    ) -> KeyedStream<'s, K, T> {
        let (as_read, handling) = (self.as_read, handling.into());
        let letters = handling.on_error().dead_letters().cloned();
        let flow = self.flow.clone();
        let keyed = self.step(name, "key_by", move |build, id, elements| {
            record::try_key_by(build, id, elements, handling, flow.originals_from(id), key)
        });
        KeyedStream::new(keyed.dead_letters(letters.as_ref(), as_read))
    }

    /// Groups by a key and replaces each value before it moves to the worker that owns the key. A value that cannot be
    /// replaced is an error of the step with the id `of_value`.
    pub(super) fn key_by_projected<K: 'static, U: Data>(
        self,
        name: Option<&str>,
        key: ErrorHandling<T>,
        (of_value, value): (StepId, ErrorHandling<T>),
        f: impl Fn(&Element<T>) -> Result<(Option<bytes::Bytes>, U), Unprojected> + 'static,
    ) -> KeyedStream<'s, K, U> {
        let as_read = self.as_read;
        let letters = [&key, &value].map(|handling| handling.on_error().dead_letters().cloned());
        let flow = self.flow.clone();
        let keyed = self.step(name, "key_by", move |build, id, elements| {
            let originals = flow.originals_from(id);
            record::try_key_by_projected(build, (id, key), (&of_value, value), elements, originals, f)
        });
        let [key, value] = letters;
        KeyedStream::new(keyed.dead_letters(key.as_ref(), as_read).dead_letters(value.as_ref(), as_read))
    }

    /// Both streams in one. A watermark of the result is the smaller of theirs.
    pub fn merge(self, other: Stream<'s, T>) -> Stream<'s, T> {
        if self.event_time != other.event_time {
            self.flow.problem(
                crate::config::problems::Problem::error(
                    crate::config::problems::code::NO_EVENT_TIME,
                    "merge",
                    &crate::config::yaml::Origin::Default,
                    "a stream with event time is merged with one that has none",
                )
                .advise("give both an event_time before the merge"),
            );
        }
        let (node, _) =
            self.flow.add(None, "merge", Keeps::Nothing, Parameters::new(), vec![self.node, other.node]);
        let elements = match (self.elements, other.elements) {
            (Some(one), Some(two)) => Some(one.scope().concatenate([one, two])),
            _ => None,
        };
        let as_read = self.as_read && other.as_read;
        Stream { flow: self.flow, node, event_time: self.event_time, as_read, elements }
    }

    /// Ends the stream: its records are done when they arrive here.
    pub fn drain(self) {
        self.end(None, "drain", Known::default(), |operators, _, _, elements| operators.drain(elements));
    }
}

impl<'s> Stream<'s, Record> {
    /// Decodes each record. What becomes of one that cannot be decoded is said behind it.
    pub fn decode<D: Decode>(self, decoder: D) -> Decoded<'s, D> {
        Decoded { records: self, decoder }
    }

    /// Writes to a Kafka topic. A record's timestamp and headers go on.
    pub fn kafka_sink(self, topic: &str) {
        self.try_kafka_sink(topic, OnError::Fail);
    }

    /// The same; what the topic does not take, such as a record that is too large for it, follows `on_error`.
    pub fn try_kafka_sink(self, topic: &str, on_error: OnError) {
        self.sink(None, on_error, Destination::Topic(topic.to_owned()), None);
    }

    /// Writes the records' values to stdout, one line each.
    pub fn stdout_sink(self) {
        self.sink(None, OnError::Fail, Destination::Stdout, None);
    }

    /// Writes the records' values to a file, one line each; `{process}` in the path is the process index.
    pub fn file_sink(self, path: &str) {
        self.sink(None, OnError::Fail, Destination::File(path.to_owned()), None);
    }

    /// Writes to a destination. `create` are the partitions and replication of a topic that is missing.
    pub(crate) fn sink(
        self,
        name: Option<&str>,
        on_error: OnError,
        destination: Destination,
        create: Option<(i32, i32)>,
    ) {
        if let Destination::Topic(topic) = &destination {
            self.flow.0.plan.borrow_mut().add_output(topic, create);
        }
        let known = Known {
            destination: Some(destination.clone()),
            needs_original: on_error.dead_letters().is_some() && !self.as_read,
            dead_letters: on_error.dead_letters().cloned().into_iter().collect(),
            ..Known::default()
        };
        self.end(name, "sink", known, |operators, connections, id, elements| {
            write(operators, connections, &id, elements, &destination, |id, elements, writer| {
                sink(operators, id, elements, on_error, writer);
            });
        });
    }
}

/// Ends records in a sink that writes to a destination. Without a writer the run ends, with the step's name.
pub(super) fn write<'s>(
    operators: &FlowBuild<'s>,
    connections: &WorkerClients,
    id: &StepId,
    elements: ElementStream<'s, Record>,
    destination: &Destination,
    sink: impl FnOnce(&StepId, ElementStream<'s, Record>, Box<dyn SinkWriter>),
) {
    match connections.writer(operators.context(), id, destination) {
        Ok(writer) => sink(id, elements, writer),
        Err(fault) => {
            operators.context().fail(fault.at_step(id.clone()));
            operators.drain(elements);
        }
    }
}

/// Records that are to be decoded; what becomes of those that cannot be decoded is yet to be said.
pub struct Decoded<'s, D: Decode> {
    records: Stream<'s, Record>,
    decoder: D,
}

impl<'s, D: Decode> Decoded<'s, D> {
    /// Records that cannot be decoded end the run; the default, said aloud.
    pub fn or_fail(self) -> Stream<'s, D::Out> {
        self.on_error(OnError::Fail)
    }

    /// Records that cannot be decoded are dropped and counted.
    pub fn or_drop(self) -> Stream<'s, D::Out> {
        self.on_error(OnError::Drop)
    }

    /// Records that cannot be decoded go to a topic, as they were read. See [`DeadLetters`].
    pub fn or_dead_letter(self, letters: impl Into<DeadLetters>) -> Stream<'s, D::Out> {
        self.on_error(OnError::dead_letter(letters))
    }

    /// What becomes of records that cannot be decoded.
    pub fn on_error(self, on_error: OnError) -> Stream<'s, D::Out> {
        let Decoded { records, decoder } = self;
        records.try_map_ref_elements(None, "decode", on_error, move |element| decoder.decode(&element.value))
    }
}

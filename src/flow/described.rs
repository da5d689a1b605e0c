//! A flow in YAML, put together from the same steps as a flow in Rust.
//!
//! Between the steps travels a [`Row`]: key and value as [`Value`]s. An expression sees them under the names
//! `key` and `value`, and the record's metadata under the others. Behind a `key_by` the row's key is the new one.

use super::keyed::KeyedStream;
use super::plan::KeyGiven;
use super::row::{Bound, Row, Rowed, keyed_row};
use super::shape::{self, Parameters};
use super::stream::{Stream, millis};
use super::{Flow, idempotency};
use crate::config::flow_file::{FlowDescription, Input, StreamDescription};
use crate::config::steps::{
    Ahead, Decode, EventTimeFrom, EventTimeStep, Failure, Inspect, MapStep, Operation, Sink, StatefulMap,
    Step, WindowShape, WindowStep,
};
use crate::connections::Destination;
use crate::expression::{Aggregate, Expression};
use crate::value::Value;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tidegate_operators::collect_batch::BatchLimits;
use tidegate_operators::element::{Element, Keyed, Record};
use tidegate_operators::event_time::{Ahead as AheadPolicy, EventTimeSettings};
use tidegate_operators::record::{self, ErrorHandling, FailHow, OnError, Unprojected, delay, fail_on, gate};
use tidegate_operators::window::{WindowKind, WindowSettings, WindowSpec};
use tidegate_recovery::StepId;

/// A stream of rows, grouped or not.
enum Rows<'s> {
    Plain(Stream<'s, Row>),
    Keyed(Stream<'s, Keyed<Row>>),
    /// Grouped; each row's value is the list of what the window that follows aggregates.
    Projected(Stream<'s, Keyed<Row>>),
}

/// Describes the flow to the builder.
pub(crate) fn describe(flow: &Flow<'_>, description: &FlowDescription) {
    {
        let plan = &mut *flow.0.plan.borrow_mut();
        plan.expressions = shape::expressions(description);
        let place = |step: &Step| (step.id.clone(), (step.path.clone(), step.origin.clone()));
        plan.places = description.steps().map(|(_, step)| place(step)).collect();
    }
    let parameters = shape::parameters(description);
    let bound = Bound::new(flow.inputs());
    let mut assembly = Assembly { flow, description, bound, parameters, streams: HashMap::new() };
    for stream in &description.streams {
        assembly.stream(stream);
    }
}

struct Assembly<'f, 's> {
    flow: &'f Flow<'s>,
    description: &'f FlowDescription,
    bound: Bound,
    parameters: HashMap<StepId, Parameters>,
    streams: HashMap<Arc<str>, Stream<'s, Row>>,
}

impl<'s> Assembly<'_, 's> {
    fn stream(&mut self, description: &StreamDescription) {
        let first = match &description.input {
            Input::Topics(topics) => self.flow.topics(topics).rows(),
            Input::Stream(name) => self.streams[name].clone(),
            Input::Merge(names) => {
                let mut streams = names.iter().map(|name| self.streams[name].clone());
                let first = streams.next().expect("a merge has at least one stream");
                streams.fold(first, Stream::merge)
            }
        };
        let mut rows = Rows::Plain(first);
        for (index, step) in description.steps.iter().enumerate() {
            rows = self.step(rows, step, description.steps.get(index + 1));
        }
        let is_read = |other: &StreamDescription| match &other.input {
            Input::Topics(_) => false,
            Input::Stream(name) => *name == description.name,
            Input::Merge(names) => names.contains(&description.name),
        };
        if self.description.streams.iter().any(is_read) {
            let end = match rows {
                Rows::Plain(stream) => stream,
                Rows::Keyed(stream) | Rows::Projected(stream) => stream.rows(),
            };
            self.streams.insert(description.name.clone(), end);
        }
    }

    fn step(&self, rows: Rows<'s>, step: &Step, next: Option<&Step>) -> Rows<'s> {
        match (&step.operation, rows) {
            (Operation::KeyBy(key), rows) => {
                let stream = match rows {
                    Rows::Plain(stream) => stream,
                    Rows::Keyed(stream) | Rows::Projected(stream) => stream.rows(),
                };
                match next.map(|next| (next, &next.operation)) {
                    // A window needs only what it aggregates, and the exchange moves nothing else.
                    Some((next, Operation::Window(window))) => {
                        Rows::Projected(self.key_by_projected(stream, step, key, next, window))
                    }
                    _ => Rows::Keyed(self.key_by(stream, step, key)),
                }
            }
            (Operation::Window(window), Rows::Projected(stream)) => {
                Rows::Plain(self.window(stream, step, window))
            }
            (_, Rows::Projected(_)) => unreachable!("only the window before {} is projected for", step.id),
            (Operation::Window(window), Rows::Keyed(stream)) => {
                Rows::Plain(self.window(self.projected(stream, step, window), step, window))
            }
            (Operation::StatefulMap(map), Rows::Keyed(stream)) => {
                Rows::Keyed(self.stateful_map(stream, step, map))
            }
            (Operation::CollectBatch(batch), Rows::Keyed(stream)) => {
                let limits = BatchLimits { records_max: batch.max_records, timeout: batch.timeout };
                let batches = KeyedStream::<Bytes, Row>::new(stream).collect_batch_shaped(
                    name(step),
                    limits,
                    self.parameters[&step.id].clone(),
                );
                Rows::Keyed(batches.keyed_values().untracked_map(
                    |Keyed { key, hash, value }: Keyed<Vec<Row>>| {
                        let value = Value::list(value.into_iter().map(|row| row.value));
                        let row = Row { key: keyed_row(key.as_ref()), value };
                        Keyed { key, hash, value: row }
                    },
                ))
            }
            (
                Operation::Window(_) | Operation::StatefulMap(_) | Operation::CollectBatch(_),
                Rows::Plain(_),
            ) => {
                unreachable!("the flow file is read with a key_by before {}", step.id)
            }
            (_, Rows::Plain(stream)) => Rows::Plain(self.record_step(stream, step)),
            (Operation::Map(map), Rows::Keyed(stream)) if map.key.is_some() => {
                Rows::Plain(self.record_step(stream.rows(), step))
            }
            (_, Rows::Keyed(stream)) => Rows::Keyed(self.record_step(stream, step)),
        }
    }

    /// The steps that look at one row at a time, on grouped and on plain streams alike.
    fn record_step<R: Rowed>(&self, stream: Stream<'s, R>, step: &Step) -> Stream<'s, R> {
        let bound = self.bound.clone();
        let handling = handling::<R>(step);
        let as_read = stream.as_read;
        match &step.operation {
            Operation::Decode(Decode { value, key }) => {
                let (value, key) = (*value, *key);
                stream.try_update_elements(name(step), "decode", handling, move |element| {
                    element.value.row_mut().decode(value, key)
                })
            }
            Operation::Map(map) => self.map(stream, step, map),
            Operation::Filter(keep) => {
                let keep = keep.clone();
                stream.try_filter_elements(name(step), handling, move |element| bound.test(&keep, element))
            }
            Operation::FlatMap(list) => {
                let list = list.clone();
                stream.try_flat_map_elements(name(step), handling, move |element: Element<R>| {
                    let items = bound.list(&list, &element)?;
                    let base = element.value;
                    let with = move |item: Value| {
                        let mut value = base.clone();
                        value.row_mut().value = item;
                        value
                    };
                    Ok::<_, String>(items.into_iter().map(with))
                })
            }
            Operation::Inspect(inspect) => self.inspect(stream, step, inspect),
            Operation::EventTime(settings) => self.event_time(stream, step, settings),
            Operation::Sink(sink) => {
                self.sink(stream.clone(), step, sink);
                stream
            }
            Operation::Gate { when, file } => {
                let (when, file) = (when.clone(), file.clone());
                let passed = stream.step(name(step), "gate", move |build, id, elements| {
                    gate(build, id, elements, file, move |element| bound.holds(&when, element))
                });
                passed.unchanged(as_read)
            }
            Operation::Delay { when, time } => {
                let (when, time) = (when.clone(), *time);
                let passed = stream.step(name(step), "delay", move |build, id, elements| {
                    delay(build, id, elements, time, move |element| bound.holds(&when, element))
                });
                passed.unchanged(as_read)
            }
            Operation::FailOn { when, how } => {
                let when = when.clone();
                let how = match how {
                    Failure::Error => FailHow::Error,
                    Failure::Panic => FailHow::Panic,
                    Failure::Abort => FailHow::Abort,
                };
                let passed = stream.step(name(step), "fail_on", move |build, id, elements| {
                    fail_on(build, id, elements, handling, how, move |element| bound.holds(&when, element))
                });
                passed.unchanged(as_read).dead_letters(step.on_error.dead_letters(), as_read)
            }
            Operation::KeyBy(_)
            | Operation::Window(_)
            | Operation::StatefulMap(_)
            | Operation::CollectBatch(_) => unreachable!("step {} is not of this kind", step.id),
        }
    }

    fn map<R: Rowed>(&self, stream: Stream<'s, R>, step: &Step, map: &MapStep) -> Stream<'s, R> {
        let (map, bound) = (map.clone(), self.bound.clone());
        let key = map.key.as_ref().map(given);
        let mapped = stream.try_update_elements(name(step), "map", handling::<R>(step), move |element| {
            let new = |expression: &Option<Expression>| {
                expression.as_ref().map(|expression| bound.value(expression, element)).transpose()
            };
            let (value, key) = (new(&map.value)?, new(&map.key)?);
            let row = element.value.row_mut();
            row.value = value.unwrap_or_else(|| std::mem::take(&mut row.value));
            row.key = key.unwrap_or_else(|| std::mem::take(&mut row.key));
            Ok::<_, String>(())
        });
        self.flow.note(mapped.node, |known| known.key = key);
        mapped
    }

    fn inspect<R: Rowed>(&self, stream: Stream<'s, R>, step: &Step, inspect: &Inspect) -> Stream<'s, R> {
        let (inspect, bound, id) = (inspect.clone(), self.bound.clone(), step.id.clone());
        let mut seen = 0_u64;
        stream.inspect_elements(name(step), move |element| {
            seen += 1;
            let shown = seen <= inspect.first || (inspect.every > 0 && seen.is_multiple_of(inspect.every));
            if shown {
                match bound.value(&inspect.value, element) {
                    Ok(value) => tracing::info!(step = id.as_str(), record = seen, "{value}"),
                    Err(reason) => {
                        tracing::warn!(step = id.as_str(), record = seen, "cannot be shown: {reason}")
                    }
                }
            }
        })
    }

    fn event_time<R: Rowed>(
        &self,
        stream: Stream<'s, R>,
        step: &Step,
        settings: &EventTimeStep,
    ) -> Stream<'s, R> {
        let mut operator = EventTimeSettings::out_of_order_ms(millis(settings.out_of_order));
        operator.idle = settings.idle;
        operator.max_ahead_ms = millis(settings.max_ahead);
        operator.ahead = match &settings.ahead {
            Ahead::DeadLetter(letters) => AheadPolicy::DeadLetter(letters.clone()),
            Ahead::Drop => AheadPolicy::Drop,
            Ahead::Keep | Ahead::Fail => AheadPolicy::Keep,
        };
        let refuse_ahead = (settings.ahead == Ahead::Fail).then_some(operator.max_ahead_ms);
        let (from, bound) = (settings.from.clone(), self.bound.clone());
        let arrival = from == EventTimeFrom::Arrival;
        let timed = stream.event_time_elements(name(step), operator, handling::<R>(step), move |element| {
            let event = match &from {
                EventTimeFrom::Expression(expression) => bound.event_time(expression, element)?,
                EventTimeFrom::Timestamp => {
                    element.meta.timestamp.ok_or_else(|| "the record has no timestamp".to_owned())?
                }
                EventTimeFrom::Arrival => bound.arrival()?,
            };
            match refuse_ahead {
                Some(max) if event > bound.arrival()?.saturating_add(max) => {
                    Err(format!("the event time {event} ms is more than {max} ms ahead of the wall clock"))
                }
                _ => Ok(event),
            }
        });
        self.flow.note(timed.node, |known| known.arrival = arrival);
        timed
    }

    fn key_by(&self, stream: Stream<'s, Row>, step: &Step, key: &Expression) -> Stream<'s, Keyed<Row>> {
        let (key, bound) = (key.clone(), self.bound.clone());
        let keyed: KeyedStream<'s, Bytes, Row> =
            stream.try_key_by_elements(name(step), handling::<Row>(step), move |element| {
                bound.value(&key, element).map(|value| value.key_bytes())
            });
        let keyed = keyed.keyed_values();
        self.flow.note(keyed.node, |known| known.key = Some(KeyGiven::OfRecord));
        keyed
    }

    /// Groups, and replaces each row by the list of what the window behind it takes.
    fn key_by_projected(
        &self,
        stream: Stream<'s, Row>,
        step: &Step,
        key: &Expression,
        next: &Step,
        window: &WindowStep,
    ) -> Stream<'s, Keyed<Row>> {
        let (key, bound) = (key.clone(), self.bound.clone());
        let taken = taken_by(window);
        let of_window = (next.id.clone(), handling::<Row>(next));
        let keyed: KeyedStream<'s, Bytes, Row> =
            stream.key_by_projected(name(step), handling::<Row>(step), of_window, move |element| {
                let key = bound.value(&key, element).map_err(Unprojected::Key)?.key_bytes();
                let take = |of: &Option<Expression>| match of {
                    Some(expression) => bound.value(expression, element),
                    None => Ok(Value::Null),
                };
                let list: Result<Vec<Value>, String> = taken.iter().map(take).collect();
                let list = Value::list(list.map_err(Unprojected::Value)?);
                Ok((key, Row { key: Value::Null, value: list }))
            });
        let keyed = keyed.keyed_values();
        self.flow.note(keyed.node, |known| known.key = Some(KeyGiven::OfRecord));
        keyed
    }

    /// Replaces each row by the list of what the window's aggregates take from it.
    fn projected(
        &self,
        stream: Stream<'s, Keyed<Row>>,
        step: &Step,
        window: &WindowStep,
    ) -> Stream<'s, Keyed<Row>> {
        let aggregates = taken_by(window);
        let bound = self.bound.clone();
        let input = format!("{}-input", step.id);
        let handling = handling::<Keyed<Row>>(step);
        stream.try_update_elements(Some(&input), "window_input", handling, move |element| {
            let mut taken = Vec::with_capacity(aggregates.len());
            for aggregate in &aggregates {
                taken.push(match aggregate {
                    Some(expression) => bound.value(expression, element)?,
                    None => Value::Null,
                });
            }
            element.value.value = Row { key: Value::Null, value: Value::list(taken) };
            Ok::<_, String>(())
        })
    }

    fn window(&self, stream: Stream<'s, Keyed<Row>>, step: &Step, window: &WindowStep) -> Stream<'s, Row> {
        let (kind, align) = match window.shape {
            WindowShape::Tumbling { size, align } => (WindowKind::Tumbling { size: millis(size) }, align),
            WindowShape::Sliding { size, every, align } => {
                (WindowKind::Sliding { size: millis(size), every: millis(every) }, align)
            }
            WindowShape::Session { gap } => (WindowKind::Session { gap: millis(gap) }, Duration::ZERO),
        };
        let settings = WindowSettings {
            windows: WindowSpec::new(kind).align(align).lateness(window.lateness),
            late: window.late.clone(),
            on_error: step.on_error.clone(),
        };
        let parameters = self.parameters[&step.id].clone();
        let names: Arc<[Arc<str>]> = window.aggregates.iter().map(|(name, _)| name.clone()).collect();
        let kinds: Vec<&Aggregate> = window.aggregates.iter().map(|(_, aggregate)| aggregate).collect();
        let columns = super::row::columns(&names, &kinds);
        let (named, window_name) = (self.names_results(), step.id.to_string());
        KeyedStream::<Bytes, Row>::new(stream)
            .window_elements(name(step), settings, Row::record, parameters, columns)
            .untracked(move |build, id, results| {
                record::try_map(build, id, results, OnError::Fail, move |result| {
                    let Element { value: result, mut meta } = result;
                    if named {
                        meta.headers =
                            idempotency::of_window(&window_name, result.key.as_ref(), result.value.start.0);
                    }
                    Ok::<_, std::convert::Infallible>(Element {
                        value: super::row::window_row(&names, result),
                        meta,
                    })
                })
            })
    }

    /// Whether a sink of the flow writes the names of its results.
    fn names_results(&self) -> bool {
        let named = |step: &Step| matches!(&step.operation, Operation::Sink(Sink::Kafka(sink)) if sink.idempotency_key);
        self.description.steps().any(|(_, step)| named(step))
    }

    fn stateful_map(
        &self,
        stream: Stream<'s, Keyed<Row>>,
        step: &Step,
        map: &StatefulMap,
    ) -> Stream<'s, Keyed<Row>> {
        let (map, bound) = (map.clone(), self.bound.clone());
        let parameters = self.parameters[&step.id].clone();
        KeyedStream::<Bytes, Row>::new(stream)
            .stateful_map_shaped(name(step), handling::<Row>(step), parameters, move |state, row: Row| {
                let before = match (state.take(), &map.initial) {
                    (Some(kept), _) => kept,
                    (None, Some(initial)) => bound.of_row(initial, &row, Value::NULL)?,
                    (None, None) => Value::Null,
                };
                let after = bound.of_row(&map.state, &row, &before)?;
                let emitted = match &map.emit {
                    Some(emit) => bound.of_row(emit, &row, &after)?,
                    None => after.clone(),
                };
                *state = (!after.is_null()).then_some(after);
                Ok::<_, String>((!emitted.is_null()).then_some(Row { key: row.key, value: emitted }))
            })
            .keyed_values()
    }

    fn sink<R: Rowed>(&self, stream: Stream<'s, R>, step: &Step, sink: &Sink) {
        let (destination, key, create) = match sink {
            Sink::Kafka(kafka) => (
                Destination::Topic(kafka.topic.clone()),
                kafka.key.clone(),
                kafka.create.map(|create| (create.partitions, create.replication)),
            ),
            Sink::Stdout => (Destination::Stdout, None, None),
            Sink::File { path } => (Destination::File(path.clone()), None, None),
        };
        let lines = !matches!(sink, Sink::Kafka(_));
        let named = matches!(sink, Sink::Kafka(kafka) if kafka.idempotency_key);
        let inputs = named.then(|| self.flow.inputs());
        let key_given = key.as_ref().map(given);
        let bound = self.bound.clone();
        let encoded = format!("{}-encode", step.id);
        let as_written = stream.as_read && key.is_none() && !lines && !named;
        let records = stream.try_map_elements(
            Some(&encoded),
            "encode",
            handling::<R>(step),
            move |element: Element<R>| {
                let key = match &key {
                    Some(expression) => bound.value(expression, &element)?.key_bytes(),
                    None => element.value.key_bytes(),
                };
                let value = match lines {
                    true => element.value.row().line(),
                    false => element.value.row().value.output_bytes(),
                };
                let mut meta = element.meta;
                if let Some(inputs) = &inputs {
                    meta.headers = idempotency::of_record(&meta, inputs)?;
                }
                Ok::<_, String>(Element { value: Record { key, value }, meta })
            },
        );
        let records = records.unchanged(as_written);
        self.flow.note(records.node, |known| known.key = key_given);
        records.sink(name(step), step.on_error.clone(), destination, create);
    }
}

/// Which key an expression gives to the records.
fn given(key: &Expression) -> KeyGiven {
    match key.constant() {
        None => KeyGiven::OfRecord,
        Some(Value::Null) => KeyGiven::Null,
        Some(_) => KeyGiven::Constant,
    }
}

/// What the aggregates of a window take from each record.
fn taken_by(window: &WindowStep) -> Vec<Option<Expression>> {
    window.aggregates.iter().map(|(_, aggregate)| aggregate.of.clone()).collect()
}

fn name(step: &Step) -> Option<&str> {
    Some(step.id.as_str())
}

/// What becomes of records that a step does not take.
fn handling<R: Rowed>(step: &Step) -> ErrorHandling<R> {
    ErrorHandling::new(step.on_error.clone(), R::record)
}

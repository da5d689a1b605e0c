//! The streams of a flow: what each reads, in which order they can be built, and whether the steps of each
//! stand where they can.

use super::flow_file::{FlowDescription, Input, StreamDescription};
use super::guards::shared_file;
use super::kafka_reader::read_topics;
use super::layers::{Environment, join};
use super::nearest;
use super::problems::{Problem, code};
use super::reader::Reader;
use super::section::Section;
use super::settings::Settings;
use super::step_reader::{ReadSteps, read_steps};
use super::steps::{Operation, Sink, Step};
use super::yaml::{Data, Node, Origin};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tidegate_recovery::StepId;

/// Reads `steps`, or `streams`.
pub(super) fn read(
    section: &Section<'_, '_>,
    name: Arc<str>,
    settings: &Settings,
    environment: &Environment,
) -> FlowDescription {
    let reader = section.reader;
    let steps = section.get("steps");
    let streams = section.get("streams");
    let topics = settings.consumer.as_ref().map(|consumer| consumer.topics.clone());
    let mut broken = Broken::default();
    let mut described = match (steps, streams) {
        (Some(_), Some(streams)) => {
            let message = "`steps` and `streams` are both given";
            reader.report(
                Problem::error(code::INVALID_VALUE, "streams", &streams.origin, message)
                    .advise("steps at the top is short for one stream: move them into streams"),
            );
            Vec::new()
        }
        (None, None) => {
            let advice = "write steps: and a list of steps, or streams: and their names";
            if section.has("steps") {
                section.error(code::INVALID_VALUE, "steps", "there are no steps", advice);
            } else {
                section.missing("steps", advice);
            }
            Vec::new()
        }
        (Some(steps), None) => {
            let topics = topics.unwrap_or_default();
            if topics.is_empty() && settings.consumer.is_some() {
                let origin = section.get("kafka").map_or(Origin::Default, |node| node.origin.clone());
                reader.report(
                    Problem::error(
                        code::INVALID_VALUE,
                        "kafka.consumer.topics",
                        &origin,
                        "no topic is named",
                    )
                    .advise("write topics: [\"orders\"]"),
                );
            }
            let read = read_steps(reader, steps, "steps", environment);
            vec![StreamDescription {
                name: name.clone(),
                input: Input::Topics(topics),
                steps: broken.keep(&name, read),
                origin: steps.origin.clone(),
            }]
        }
        (None, Some(streams)) => {
            if topics.is_some_and(|topics| !topics.is_empty()) {
                reader.report(
                    Problem::error(
                        code::INVALID_VALUE,
                        "kafka.consumer.topics",
                        &streams.origin,
                        "with `streams`, each stream names its own topics",
                    )
                    .advise("move the topics to from: { kafka: … } of the streams"),
                );
            }
            read_streams(reader, streams, environment, &mut broken)
        }
    };
    order(reader, &mut described, &broken);
    name_steps(reader, &mut described);
    check_places(reader, &described, settings, &broken);
    FlowDescription { name, streams: described }
}

/// What could not be read: whatever would follow from its absence is not reported.
#[derive(Default)]
struct Broken {
    streams: Vec<Arc<str>>,
    /// Kinds of broken steps by stream.
    steps: HashMap<Arc<str>, Vec<String>>,
}

impl Broken {
    fn keep(&mut self, stream: &Arc<str>, read: ReadSteps) -> Vec<Step> {
        self.steps.insert(stream.clone(), read.broken);
        read.steps
    }

    fn has_step(&self, stream: &str, kind: &str) -> bool {
        self.steps.get(stream).is_some_and(|kinds| kinds.iter().any(|broken| broken == kind))
    }
}

fn read_streams(
    reader: &Reader,
    node: &Node,
    environment: &Environment,
    broken: &mut Broken,
) -> Vec<StreamDescription> {
    let Data::Map(fields) = &node.data else {
        reader.invalid(node, "streams", "a map of streams by their names");
        return Vec::new();
    };
    if fields.is_empty() {
        reader.invalid(node, "streams", "at least one stream");
    }
    let mut streams = Vec::new();
    for field in fields {
        let path = join("streams", &field.name);
        let section = Section::open(reader, Some(&field.node), path.as_str());
        section.later("table", "a table");
        let from = section.get("from");
        let merge = section.texts("merge", &[',']);
        let input = match (from, merge.is_empty()) {
            (Some(_), false) => {
                section.error(code::INVALID_VALUE, "merge", "`from` and `merge` are both given", "keep one");
                None
            }
            (Some(from), true) => read_from(&section, from),
            (None, false) => {
                Some(Input::Merge(merge.iter().map(|(name, _)| Arc::from(name.as_str())).collect()))
            }
            (None, true) => {
                if !section.has("table") {
                    section.missing(
                        "from",
                        "write from: { kafka: topic }, from: and a stream, or merge: [a, b]",
                    );
                }
                None
            }
        };
        let name: Arc<str> = Arc::from(field.name.as_str());
        let read = section
            .get("steps")
            .map(|steps| read_steps(reader, steps, &section.at("steps"), environment))
            .unwrap_or_default();
        section.finish();
        match input {
            Some(input) => streams.push(StreamDescription {
                steps: broken.keep(&name, read),
                name,
                input,
                origin: field.origin.clone(),
            }),
            None => broken.streams.push(name),
        }
    }
    streams
}

fn read_from(section: &Section<'_, '_>, from: &Node) -> Option<Input> {
    match &from.data {
        Data::Map(_) => {
            let inner = section.section("from");
            let topics = read_topics(&inner, "kafka");
            if topics.is_empty() && !inner.has("kafka") {
                inner.missing("kafka", "name the topic: from: { kafka: orders }");
            }
            inner.finish();
            (!topics.is_empty()).then_some(Input::Topics(topics))
        }
        _ => Some(Input::Stream(Arc::from(section.text("from")?))),
    }
}

/// Puts each stream behind those that it reads.
fn order(reader: &Reader, streams: &mut Vec<StreamDescription>, broken: &Broken) {
    let names: Vec<Arc<str>> = streams.iter().map(|stream| stream.name.clone()).collect();
    for stream in streams.iter() {
        for read in stream.reads() {
            if names.contains(read) || broken.streams.contains(read) {
                continue;
            }
            let advice = match nearest(read, names.iter().map(|name| &**name)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "a topic is read with from: { kafka: … }".into(),
            };
            let message = format!("there is no stream `{read}`");
            let path = join("streams", &stream.name);
            reader.report(Problem::error(code::INVALID_VALUE, path, &stream.origin, message).advise(advice));
        }
    }
    let mut waiting = std::mem::take(streams);
    loop {
        let ready = waiting.iter().position(|stream| {
            stream
                .reads()
                .iter()
                .all(|read| !names.contains(read) || streams.iter().any(|placed| placed.name == *read))
        });
        match ready {
            Some(at) => streams.push(waiting.remove(at)),
            None => break,
        }
    }
    if let Some(first) = waiting.first() {
        let circle: Vec<&str> = waiting.iter().map(|stream| &*stream.name).collect();
        let message = format!("the streams {} read from each other in a circle", circle.join(", "));
        reader.report(Problem::error(
            code::INVALID_VALUE,
            join("streams", &first.name),
            &first.origin,
            message,
        ));
        streams.extend(waiting);
    }
}

impl StreamDescription {
    /// The streams that this one reads.
    pub fn reads(&self) -> &[Arc<str>] {
        match &self.input {
            Input::Topics(_) => &[],
            Input::Stream(name) => std::slice::from_ref(name),
            Input::Merge(names) => names,
        }
    }
}

/// Makes the ids unique: a name stands once, and what keeps rows needs one when its kind is there twice.
fn name_steps(reader: &Reader, streams: &mut [StreamDescription]) {
    let mut taken: HashSet<StepId> = HashSet::new();
    for stream in streams.iter_mut() {
        for step in &mut stream.steps {
            if taken.insert(step.id.clone()) {
                continue;
            }
            let kind = step.operation.kind();
            let unnamed = step.id.as_str() == kind;
            if !unnamed {
                let message = format!("the name `{}` is taken by another step", step.id);
                let path = join(&step.path, "name");
                reader.report(
                    Problem::error(code::INVALID_VALUE, path, &step.origin, message)
                        .advise("a name stands once in a flow: state and metrics go by it"),
                );
            } else if step.operation.keeps_rows() {
                let message = format!("this is the second `{kind}` without a name, and it keeps state");
                reader.report(
                    Problem::error(code::INVALID_VALUE, &step.path, &step.origin, message)
                        .advise("give it a name: its state is found again by it after a change of the flow"),
                );
            } else {
                let free = (2..).map(|number| StepId::new(format!("{kind}-{number}")));
                step.id = free.into_iter().find(|id| !taken.contains(id)).expect("numbers do not end");
                taken.insert(step.id.clone());
            }
        }
    }
}

/// What is known of a stream at a place.
#[derive(Clone, Copy, Default)]
struct Place {
    event_time: bool,
    /// The name of the key is fixed and records stand where their key lives.
    keyed: bool,
    /// The records left the worker that read their partition.
    exchanged: bool,
}

fn check_places(reader: &Reader, streams: &[StreamDescription], settings: &Settings, broken: &Broken) {
    let mut ends: HashMap<&str, Place> = HashMap::new();
    let mut read: HashSet<&str> = HashSet::new();
    for stream in streams {
        let inputs: Vec<Place> =
            stream.reads().iter().filter_map(|name| ends.get(&**name).copied()).collect();
        read.extend(stream.reads().iter().map(|name| &**name));
        let mut place = match (&stream.input, inputs.as_slice()) {
            (Input::Merge(_), inputs) => {
                if inputs.iter().any(|input| input.event_time) && !inputs.iter().all(|input| input.event_time)
                {
                    let message = "some of the merged streams have an event time and some have not";
                    reader.report(
                        Problem::error(
                            code::NO_EVENT_TIME,
                            join("streams", &stream.name),
                            &stream.origin,
                            message,
                        )
                        .advise("put an event_time step into each, where its topics are read"),
                    );
                }
                Place {
                    event_time: inputs.iter().any(|input| input.event_time),
                    keyed: false,
                    exchanged: inputs.iter().any(|input| input.exchanged),
                }
            }
            (_, [input]) => *input,
            (Input::Topics(_), _) => Place::default(),
            // It reads what could not be read: nothing is known, and so nothing is missed.
            (Input::Stream(_), _) => Place { event_time: true, keyed: true, exchanged: false },
        };
        place.event_time |= broken.has_step(&stream.name, "event_time");
        place.keyed |= broken.has_step(&stream.name, "key_by");
        for step in &stream.steps {
            check_place(reader, step, &mut place, settings);
        }
        ends.insert(&stream.name, place);
    }
    for stream in streams {
        let ends_somewhere = stream
            .steps
            .iter()
            .any(|step| matches!(step.operation, Operation::Sink(_) | Operation::Inspect(_)));
        let broken_end = broken.has_step(&stream.name, "sink") || broken.has_step(&stream.name, "inspect");
        if !ends_somewhere && !broken_end && !read.contains(&*stream.name) {
            let alone = streams.len() == 1;
            let path = if alone { "steps".to_string() } else { join("streams", &stream.name) };
            reader.report(
                Problem::error(code::INVALID_VALUE, path, &stream.origin, "the results go nowhere")
                    .advise("end the steps with a sink: sink: { kafka: { topic: … } } or sink: stdout"),
            );
        }
    }
}

fn check_place(reader: &Reader, step: &Step, place: &mut Place, settings: &Settings) {
    let error = |code, message: &str, advice: &str| {
        reader.report(Problem::error(code, &step.path, &step.origin, message).advise(advice));
    };
    if step.operation.needs_key() && !place.keyed {
        let message = format!("a {} works per key, and the records have none yet", step.operation.kind());
        error(code::INVALID_VALUE, &message, "put a key_by before it, such as key_by: value.customer");
    }
    match &step.operation {
        Operation::EventTime(_) => {
            if place.exchanged {
                error(
                    code::INVALID_VALUE,
                    "the event time is set where a partition is read, not behind a key_by",
                    "move event_time before the first key_by",
                );
            } else if place.event_time {
                error(code::INVALID_VALUE, "the event time is already set", "take this one out");
            }
            place.event_time = true;
        }
        Operation::KeyBy(_) => {
            place.keyed = true;
            place.exchanged = true;
        }
        Operation::Map(map) if map.key.is_some() => place.keyed = false,
        Operation::Window(_) if !place.event_time => error(
            code::NO_EVENT_TIME,
            "a window goes by event time, and the stream has none",
            "put an event_time step before the key_by, such as event_time: { from: timestamp, out_of_order: 5s }",
        ),
        Operation::Sink(Sink::Kafka(_))
            if settings.producer.brokers.is_empty() && settings.consumer.is_some() =>
        {
            error(
                code::INVALID_VALUE,
                "there are no brokers to write to",
                "write kafka: { producer: { brokers: [\"host:9092\"] } }",
            );
        }
        Operation::Sink(Sink::File { path }) => {
            if let Some(problem) = shared_file(path, &step.path, &step.origin, settings) {
                reader.report(problem);
            }
        }
        _ => {}
    }
}

//! Reads the steps of a YAML flow.

use super::dead_letter_reader::{Attempts, read_dead_letters, read_on_error};
use super::layers::{Environment, join};
use super::nearest;
use super::problems::{Problem, code};
use super::reader::Reader;
use super::section::Section;
use super::steps::{
    Ahead, Codec, CollectBatch, Decode, EventTimeFrom, EventTimeStep, Failure, Inspect, MapStep, OnError,
    Operation, StatefulMap, Step,
};
use super::units;
use super::yaml::{Data, Field, Node, Plain};
use crate::expression::{Expression, Names};
use crate::value::Type;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_recovery::StepId;

/// The steps of this version.
const KINDS: [&str; 11] = [
    "decode",
    "map",
    "filter",
    "flat_map",
    "inspect",
    "event_time",
    "key_by",
    "window",
    "stateful_map",
    "collect_batch",
    "sink",
];
/// Steps that only tests may use.
const TEST_KINDS: [&str; 3] = ["gate", "delay", "fail_on"];
/// Steps that a later version brings, and what to do until then.
const LATER: [(&str, &str); 12] = [
    ("encode", "a sink writes structured values as JSON"),
    ("explode", "use flat_map, whose expression gives a list"),
    ("expand", "use flat_map, whose expression gives a list"),
    ("batch_expand", "use flat_map behind collect_batch"),
    ("expand_routes", "name streams, and filter each"),
    ("fork", "name streams, and filter each"),
    ("broadcast", "name streams: several may read from one"),
    ("merge", "name streams: { merge: [a, b] } makes one of several"),
    ("drain", "a stream that nothing reads is dropped"),
    ("dedup", ""),
    ("join", ""),
    ("table", ""),
];
/// The switch without which test steps are refused.
pub const TEST_STEPS_VARIABLE: &str = "TIDEGATE_TEST_STEPS";

pub(super) const ANY: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(100 * 365 * 86_400);
pub(super) const POSITIVE: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(100 * 365 * 86_400);

/// Steps that were read, and the kinds of those that could not be.
#[derive(Default)]
pub(super) struct ReadSteps {
    pub(super) steps: Vec<Step>,
    /// Kinds of steps that are there but wrong; of an unknown one the kind that was likely meant.
    pub(super) broken: Vec<String>,
}

/// Reads a list of steps; a step that is wrong is left out.
pub(super) fn read_steps(reader: &Reader, node: &Node, path: &str, environment: &Environment) -> ReadSteps {
    let mut read = ReadSteps::default();
    let Data::List(items) = &node.data else {
        reader.invalid(node, path, "a list of steps");
        return read;
    };
    for (at, item) in items.iter().enumerate() {
        match read_step(reader, item, &format!("{path}[{at}]"), environment) {
            Some(step) => read.steps.push(step),
            None => {
                let Data::Map(fields) = &item.data else { continue };
                read.broken.extend(
                    fields.iter().map(|field| nearest(&field.name, KINDS).unwrap_or(&field.name).to_string()),
                );
            }
        }
    }
    read
}

fn read_step(reader: &Reader, node: &Node, path: &str, environment: &Environment) -> Option<Step> {
    let field = match &node.data {
        Data::Map(fields) => match fields.as_slice() {
            [field] => field,
            [first, second, ..] => {
                let message =
                    format!("a step has one key, and here are `{}` and `{}`", first.name, second.name);
                reader.report(
                    Problem::error(code::INVALID_VALUE, path, &second.origin, message)
                        .advise("begin each step with a dash; options of a step stand inside of it"),
                );
                return None;
            }
            [] => {
                reader.invalid(node, path, "a step such as `filter: value.paid`");
                return None;
            }
        },
        Data::Scalar(scalar) => {
            let message = match scalar.resolve() {
                Plain::Text(text) => format!("`{text}` is no step by itself"),
                other => format!("found {other} where a step is needed"),
            };
            reader.report(
                Problem::error(code::UNKNOWN_STEP, path, &node.origin, message)
                    .advise("a step is a key with its options, such as `filter: value.paid`"),
            );
            return None;
        }
        Data::List(_) => {
            reader.invalid(node, path, "a step such as `filter: value.paid`");
            return None;
        }
    };
    let path = join(path, &field.name);
    if !is_known(reader, field, &path, environment) {
        return None;
    }
    let step = StepReader { reader, node: &field.node, path: path.clone() };
    let (operation, name, on_error) = step.read(&field.name)?;
    let id = StepId::new(name.unwrap_or_else(|| field.name.clone()));
    Some(Step { id, operation, on_error, path, origin: field.origin.clone() })
}

fn is_known(reader: &Reader, field: &Field, path: &str, environment: &Environment) -> bool {
    let kind = field.name.as_str();
    let report = |message: String, advice: String| {
        reader.report(Problem::error(code::UNKNOWN_STEP, path, &field.origin, message).advise(advice));
        false
    };
    if KINDS.contains(&kind) {
        return true;
    }
    if TEST_KINDS.contains(&kind) {
        return environment.get(TEST_STEPS_VARIABLE) == Some("1")
            || report(
                format!("the step `{kind}` is for tests only"),
                format!("take it out (tests set {TEST_STEPS_VARIABLE}=1)"),
            );
    }
    if let Some((_, advice)) = LATER.iter().find(|(later, _)| *later == kind) {
        return report(format!("the step `{kind}` is not available in this version"), advice.to_string());
    }
    let listed = format!("the steps are {}", KINDS.join(", "));
    let advice = match nearest(kind, KINDS) {
        Some(near) => format!("did you mean `{near}`? {listed}"),
        None => listed,
    };
    report(format!("there is no step `{kind}`"), advice)
}

pub(super) struct StepReader<'r, 'n> {
    pub(super) reader: &'r Reader,
    pub(super) node: &'n Node,
    pub(super) path: String,
}

pub(super) type Read = (Operation, Option<String>, OnError);

impl<'n> StepReader<'_, 'n> {
    fn read(&self, kind: &str) -> Option<Read> {
        match kind {
            "decode" => self.decode(),
            "map" => self.short("value", None, |section, value| {
                let key = section.expression("key", Names::RECORD);
                if value.is_none() && key.is_none() && !section.has("value") && !section.has("key") {
                    section.missing("value", "give the new value as an expression");
                }
                let complete =
                    (value.is_some() || !section.has("value")) && (key.is_some() || !section.has("key"));
                complete.then_some(Operation::Map(MapStep { value, key }))
            }),
            "filter" => self.short("when", Some(Type::Bool), |_, when| Some(Operation::Filter(when?))),
            "flat_map" => self.short("items", Some(Type::List), |_, items| Some(Operation::FlatMap(items?))),
            "key_by" => self.short("key", None, |_, key| Some(Operation::KeyBy(key?))),
            "inspect" => self.short("value", None, |section, value| {
                let first = section.integer("first", 10, 0..=1_000_000);
                let every = section.integer("every", 0, 0..=u64::MAX);
                Some(Operation::Inspect(Inspect { value: value?, first, every }))
            }),
            "event_time" => self.long(|section| self.event_time(section)),
            "window" => self.long(|section| self.window(section)),
            "stateful_map" => self.long(|section| self.stateful_map(section)),
            "collect_batch" => self.long(|section| self.collect_batch(section)),
            "sink" => self.sink(),
            "gate" => self.long(|section| {
                let when = self.test_when(section);
                let file = section.text("file");
                if file.is_none() {
                    section.missing("file", "name the file that opens the gate");
                }
                Some(Operation::Gate { when: when?, file: PathBuf::from(file?) })
            }),
            "delay" => self.long(|section| {
                let when = self.test_when(section);
                let time = self.needed_duration(section, "for", ANY);
                Some(Operation::Delay { when: when?, time: time? })
            }),
            _ => self.long(|section| {
                let when = self.test_when(section);
                let how = section.choice(
                    "how",
                    Failure::Error,
                    &[("error", Failure::Error), ("panic", Failure::Panic), ("abort", Failure::Abort)],
                );
                Some(Operation::FailOn { when: when?, how })
            }),
        }
    }

    /// A step whose options are a map.
    pub(super) fn long(&self, read: impl FnOnce(&Section<'_, 'n>) -> Option<Operation>) -> Option<Read> {
        let section = Section::open(self.reader, Some(self.node), self.path.as_str());
        if !matches!(self.node.data, Data::Map(_)) {
            if self.node.is_null() {
                self.reader.invalid(self.node, &self.path, "a map of options");
            }
            return None;
        }
        let name = read_name(&section);
        let operation = read(&section);
        let on_error = read_on_error(&section);
        if let (Some(operation), OnError::DeadLetter(_)) = (&operation, &on_error)
            && !operation.can_fail()
        {
            section.error(
                code::INVALID_VALUE,
                "on_error",
                "there is no record that this step cannot take: it has no dead letters",
                "take it out",
            );
        }
        section.finish();
        Some((operation?, name, on_error))
    }

    /// A step that is one expression, or a map with that expression under `main`.
    fn short(
        &self,
        main: &'static str,
        needed: Option<Type>,
        read: impl FnOnce(&Section<'_, 'n>, Option<Expression>) -> Option<Operation>,
    ) -> Option<Read> {
        if !matches!(self.node.data, Data::Map(_)) {
            let expression = self.reader.expression(self.node, &self.path, Names::RECORD)?;
            self.check_type(&expression, self.node, &self.path, needed)?;
            let none = Section::open(self.reader, None, self.path.as_str());
            return Some((read(&none, Some(expression))?, None, OnError::Fail));
        }
        self.long(|section| {
            let expression = section.expression(main, Names::RECORD);
            if expression.is_none() && !section.has(main) && self.path.rsplit('.').next() != Some("map") {
                let advice = format!("write {main}: and an expression, or the expression alone");
                section.missing(main, advice);
            }
            if let (Some(expression), Some(node)) = (&expression, section.get(main)) {
                self.check_type(expression, node, &section.at(main), needed)?;
            }
            read(section, expression)
        })
    }

    /// Refuses an expression whose result can never be of the type that is needed.
    fn check_type(
        &self,
        expression: &Expression,
        node: &Node,
        path: &str,
        needed: Option<Type>,
    ) -> Option<()> {
        match (expression.result_type(), needed) {
            (Some(found), Some(needed)) if found != needed => {
                let message = format!("the expression gives {found}, and {needed} is needed");
                self.reader.report(Problem::error(code::BAD_EXPRESSION, path, &node.origin, message));
                None
            }
            _ => Some(()),
        }
    }

    fn decode(&self) -> Option<Read> {
        if let Data::Scalar(_) = self.node.data {
            let value = read_codec(self.reader, self.node, &self.path)?;
            return Some((Operation::Decode(Decode { value, key: Codec::Bytes }), None, OnError::Fail));
        }
        self.long(|section| {
            let value = codec_of(section);
            let key = match section.get("key") {
                None => Some(Codec::Bytes),
                Some(node) => read_codec(self.reader, node, &section.at("key")),
            };
            let value = match value {
                Ok(None) if !section.has("key") => {
                    section.missing("json", "name a codec: json, text or bytes");
                    None
                }
                Ok(codec) => Some(codec.unwrap_or(Codec::Bytes)),
                Err(()) => None,
            };
            Some(Operation::Decode(Decode { value: value?, key: key? }))
        })
    }

    fn event_time(&self, section: &Section<'_, 'n>) -> Option<Operation> {
        let from = match section.get("from") {
            None => {
                section.missing("from", "write an expression such as value.at_ms, or timestamp, or arrival");
                None
            }
            Some(node) => match &node.data {
                Data::Scalar(scalar) if scalar.text == "timestamp" => Some(EventTimeFrom::Timestamp),
                Data::Scalar(scalar) if scalar.text == "arrival" => Some(EventTimeFrom::Arrival),
                _ => self
                    .reader
                    .expression(node, &section.at("from"), Names::RECORD)
                    .and_then(|expression| {
                        let fits = |found| matches!(found, Type::Int | Type::String);
                        match expression.result_type() {
                            Some(found) if !fits(found) => {
                                let message = format!(
                                    "the expression gives {found}, and milliseconds (int) or an RFC 3339 text \
                                     are needed"
                                );
                                section.error(code::BAD_EXPRESSION, "from", message, "");
                                None
                            }
                            _ => Some(EventTimeFrom::Expression(expression)),
                        }
                    }),
            },
        };
        let out_of_order = match (&from, section.has("out_of_order")) {
            (Some(EventTimeFrom::Arrival), false) => Some(Duration::ZERO),
            _ => self.needed_duration(section, "out_of_order", ANY),
        };
        let idle = section.duration("idle", Duration::from_secs(30), POSITIVE);
        let ahead = match read_dead_letters(section, "ahead", Attempts::One) {
            Some(letters) => letters.map_or(Ahead::Drop, Ahead::DeadLetter),
            None => {
                match section.choice("ahead", "drop", &[("drop", "drop"), ("keep", "keep"), ("fail", "fail")])
                {
                    "keep" => Ahead::Keep,
                    "fail" => Ahead::Fail,
                    _ => Ahead::Drop,
                }
            }
        };
        let hour = Duration::from_secs(3600);
        let max_ahead = section.duration("max_ahead", hour, ANY);
        let max_skew = section.duration("max_skew", hour, POSITIVE);
        let watermark_step = section.duration("watermark_step", Duration::from_millis(100), POSITIVE);
        Some(Operation::EventTime(EventTimeStep {
            from: from?,
            out_of_order: out_of_order?,
            idle,
            ahead,
            max_ahead,
            max_skew,
            watermark_step,
        }))
    }

    fn stateful_map(&self, section: &Section<'_, 'n>) -> Option<Operation> {
        section.later("ttl", "forgetting keys by age");
        let initial = section.expression("initial", Names::NONE);
        let state = section.expression("state", Names::RECORD_AND_STATE);
        if state.is_none() && !section.has("state") {
            section.missing("state", "give the new state as an expression over `state` and `value`");
        }
        let emit = section.expression("emit", Names::RECORD_AND_STATE);
        let complete =
            (initial.is_some() || !section.has("initial")) && (emit.is_some() || !section.has("emit"));
        let state = state?;
        complete.then_some(Operation::StatefulMap(StatefulMap { initial, state, emit }))
    }

    fn collect_batch(&self, section: &Section<'_, 'n>) -> Option<Operation> {
        let max_records = section.optional_integer("max_records", 1..=1_000_000);
        if max_records.is_none() && !section.has("max_records") {
            section.missing("max_records", "say at how many records a batch is cut");
        }
        let timeout = self.needed_duration(section, "timeout", POSITIVE);
        Some(Operation::CollectBatch(CollectBatch { max_records: max_records? as usize, timeout: timeout? }))
    }

    fn test_when(&self, section: &Section<'_, 'n>) -> Option<Expression> {
        let when = section.expression("when", Names::RECORD);
        if when.is_none() && !section.has("when") {
            section.missing("when", "say for which records, such as when: value.id == 7");
        }
        when
    }

    pub(super) fn needed_duration(
        &self,
        section: &Section<'_, 'n>,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let duration = section.optional_duration(key, range);
        if duration.is_none() && !section.has(key) {
            section.missing(key, format!("write {key}: and {}", units::DURATION_FORM));
        }
        duration
    }
}

fn read_name(section: &Section<'_, '_>) -> Option<String> {
    const LONGEST: usize = 64;
    let name = section.text("name")?;
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > LONGEST || !name.chars().all(legal) {
        section.error(
            code::INVALID_VALUE,
            "name",
            format!("`{name}` is no name of a step"),
            "a name has 1 to 64 letters, digits, dashes, underscores and dots",
        );
        return None;
    }
    Some(name)
}

const CODECS: [(&str, Codec); 3] = [("json", Codec::Json), ("text", Codec::Text), ("bytes", Codec::Bytes)];

/// `json`, or `{ json: {} }`.
fn read_codec(reader: &Reader, node: &Node, path: &str) -> Option<Codec> {
    match &node.data {
        Data::Scalar(scalar) => {
            let found = CODECS.iter().find(|(name, _)| *name == scalar.text).map(|(_, codec)| *codec);
            if found.is_none() {
                let advice = match nearest(&scalar.text, CODECS.iter().map(|(name, _)| *name)) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "the codecs of this version are json, text and bytes".into(),
                };
                let message = format!("{} is no codec", node.describe());
                reader
                    .report(Problem::error(code::INVALID_VALUE, path, &node.origin, message).advise(advice));
            }
            found
        }
        _ => {
            let section = Section::open(reader, Some(node), path);
            let codec = codec_of(&section);
            if codec == Ok(None) {
                section.missing("json", "name a codec: json, text or bytes");
            }
            section.finish();
            codec.ok().flatten()
        }
    }
}

/// The codec that a section names; the error is reported.
fn codec_of(section: &Section<'_, '_>) -> Result<Option<Codec>, ()> {
    for later in ["csv", "avro", "protobuf", "json_schema"] {
        section.later(later, "this codec");
    }
    let mut found = CODECS.iter().filter(|(name, _)| section.has(name));
    let first = found.next();
    for (name, _) in CODECS {
        if section.has(name) {
            section.section(name).finish();
        } else {
            section.get(name);
        }
    }
    match found.next() {
        Some((second, _)) => {
            section.error(code::INVALID_VALUE, second, "one value has one codec", "take all but one out");
            Err(())
        }
        None => Ok(first.map(|(_, codec)| *codec)),
    }
}

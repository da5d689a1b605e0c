//! Reads a `sink` step.

use super::kafka_reader::check_topic;
use super::problems::{Problem, code};
use super::section::Section;
use super::step_reader::{Read, StepReader};
use super::steps::{CreateTopic, KafkaSink, OnError, Operation, Sink};
use super::yaml::Data;
use crate::expression::Names;

impl<'n> StepReader<'_, 'n> {
    pub(super) fn sink(&self) -> Option<Read> {
        const FORMS: &str = "write kafka: { topic: … }, stdout or file: { path: … }";
        if let Data::Scalar(scalar) = &self.node.data {
            if scalar.text == "stdout" {
                return Some((Operation::Sink(Sink::Stdout), None, OnError::Fail));
            }
            let message = format!("{} is no sink by itself", self.node.describe());
            self.reader.report(
                Problem::error(code::INVALID_VALUE, &self.path, &self.node.origin, message).advise(FORMS),
            );
            return None;
        }
        self.long(|section| {
            section.later("postgres", "the postgres sink");
            let kinds = ["kafka", "stdout", "file"];
            let found: Vec<&str> = kinds.into_iter().filter(|kind| section.has(kind)).collect();
            // Asked for in any case, so that a wrong key is not reported as unknown because of another one.
            kinds.into_iter().for_each(|kind| {
                section.get(kind);
            });
            match found.as_slice() {
                ["kafka"] => self.kafka_sink(section.section("kafka")),
                ["stdout"] => {
                    section.section("stdout").finish();
                    Some(Operation::Sink(Sink::Stdout))
                }
                ["file"] => {
                    let inner = section.section("file");
                    let path = inner.text("path");
                    if path.is_none() && !inner.has("path") {
                        inner.missing("path", "name the file; {process} in it is the process index");
                    }
                    inner.finish();
                    Some(Operation::Sink(Sink::File { path: path? }))
                }
                [] => {
                    if !section.has("postgres") {
                        section.error(code::INVALID_VALUE, "", "the sink writes nowhere", FORMS);
                    }
                    None
                }
                several => {
                    let message =
                        format!("a sink writes to one place, and here are {}", several.join(" and "));
                    section.error(code::INVALID_VALUE, several[1], message, "write two sinks");
                    None
                }
            }
        })
    }

    fn kafka_sink(&self, section: Section<'_, 'n>) -> Option<Operation> {
        let topic = section.text("topic");
        match &topic {
            None if !section.has("topic") => section.missing("topic", "name the topic to write to"),
            None => {}
            Some(topic) => {
                if let Err((message, advice)) = check_topic(topic) {
                    section.error(code::INVALID_VALUE, "topic", message, advice);
                }
            }
        }
        let key = section.expression("key", Names::RECORD);
        let create = read_create(&section);
        let created = create.is_some() || section.get("create").is_none();
        let idempotency_key = section.choice("idempotency_key", false, &[("none", false), ("header", true)]);
        let complete = key.is_some() || !section.has("key");
        section.finish();
        let topic = topic?;
        let sink = KafkaSink { topic, key, create, idempotency_key };
        (complete && created).then_some(Operation::Sink(Sink::Kafka(sink)))
    }
}

/// `create: { partitions, replication }`: how a topic that is missing is made.
pub(super) fn read_create(section: &Section<'_, '_>) -> Option<CreateTopic> {
    section.get("create")?;
    let inner = section.section("create");
    let partitions = inner.optional_integer("partitions", 1..=100_000);
    let replication = inner.optional_integer("replication", 1..=1_000);
    for (name, given) in [("partitions", partitions), ("replication", replication)] {
        if given.is_none() && !inner.has(name) {
            inner.missing(name, "a topic is only made with both numbers given");
        }
    }
    inner.finish();
    Some(CreateTopic { partitions: partitions? as i32, replication: replication? as i32 })
}

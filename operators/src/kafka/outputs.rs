//! Output topics before the start: they are there, or they are made because the flow says so.
//!
//! These calls wait: they belong to the start of a process.

use super::admin::{Admin, SETTINGS_WITHIN, block_on};
use super::config::{Connection, ConsumerConfig};
use super::start::Lookup;
use crate::fault::Fault;
use rdkafka::admin::{AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::types::RDKafkaErrorCode;
use std::time::{Duration, Instant};
use tidegate_recovery::ErrorClass;

/// A topic that a flow writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputTopic {
    /// Its name.
    pub name: String,
    /// Make it with this many partitions and replicas when it is missing.
    pub create: Option<(i32, i32)>,
}

/// What is known of an output topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFound {
    /// Its name.
    pub name: String,
    /// The largest batch that it takes, in bytes; a producer that makes none larger never has a record refused
    /// because of its neighbours. `None` where the broker does not tell.
    pub record_bytes_max: Option<usize>,
}

impl OutputTopic {
    /// A topic that must be there.
    pub fn existing(name: impl Into<String>) -> OutputTopic {
        OutputTopic { name: name.into(), create: None }
    }

    /// A topic that is made when it is missing.
    pub fn created(name: impl Into<String>, partitions: i32, replication: i32) -> OutputTopic {
        OutputTopic { name: name.into(), create: Some((partitions, replication)) }
    }
}

/// Sees to it that all topics are there. Those that are missing and not to be made are listed in one fault, and
/// then none is made.
pub fn check_outputs(
    connection: &Connection,
    topics: &[OutputTopic],
    deadline: Duration,
) -> Result<Vec<OutputFound>, Fault> {
    let end = Instant::now() + deadline;
    let config = ConsumerConfig { connection: connection.clone(), ..ConsumerConfig::default() };
    let names: Vec<String> = topics.iter().map(|topic| topic.name.clone()).collect();
    let missing = Lookup::new(&config, deadline)?.find(&names)?.missing;
    let (to_make, absent): (Vec<_>, Vec<_>) =
        topics.iter().filter(|topic| missing.contains(&topic.name)).partition(|topic| topic.create.is_some());
    if !absent.is_empty() {
        let names: Vec<&str> = absent.iter().map(|topic| topic.name.as_str()).collect();
        return Err(Fault::new(
            ErrorClass::Missing,
            format!(
                "these output topics do not exist on {}: {}; make them, or say `create: {{ partitions, replication }}`",
                connection.brokers.join(","),
                names.join(", ")
            ),
        ));
    }
    let admin = Admin::new(connection, end)?;
    if !to_make.is_empty() {
        admin.create(&to_make)?;
        let left = end.saturating_duration_since(Instant::now());
        // A new topic travels through the metadata; the producer must not find it missing.
        Lookup::new(&config, left)?.partitions(&names)?;
    }
    admin.describe(&names)
}

impl Admin {
    fn create(&self, topics: &[&OutputTopic]) -> Result<(), Fault> {
        let topics: Vec<NewTopic<'_>> = topics
            .iter()
            .map(|topic| {
                let (partitions, replication) = topic.create.unwrap_or((-1, -1));
                NewTopic::new(&topic.name, partitions, TopicReplication::Fixed(replication))
            })
            .collect();
        let results = block_on(self.client().create_topics(&topics, &self.options()))
            .map_err(|error| self.unavailable("making topics", &error.to_string()))?;
        for result in results {
            match result {
                Ok(topic) => tracing::info!(topic, "output topic made"),
                // Another process of the cluster was faster.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, code)) => {
                    return Err(Fault::new(
                        ErrorClass::Config,
                        format!("output topic `{topic}` cannot be made (operation Create): {code}"),
                    ));
                }
            }
        }
        Ok(())
    }

    fn describe(&self, names: &[String]) -> Result<Vec<OutputFound>, Fault> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let asked: Vec<_> = names.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
        // Some brokers never answer this. Without it the run is right as well: a batch that is refused for its size
        // is tried again record by record.
        let options = AdminOptions::new()
            .request_timeout(Some(SETTINGS_WITHIN))
            .operation_timeout(Some(SETTINGS_WITHIN));
        let answer = self.configs(&asked, &options).unwrap_or_else(|fault| {
            tracing::debug!(%fault, "the size limits of the output topics are not known");
            names.iter().map(|_| None).collect()
        });
        Ok(names
            .iter()
            .zip(answer)
            .map(|(name, config)| OutputFound {
                name: name.clone(),
                record_bytes_max: config
                    .and_then(|config| config.get("max.message.bytes")?.value.as_ref()?.parse().ok()),
            })
            .collect())
    }
}

//! Output topics before the start: they are there, or they are made because the flow says so.
//!
//! These calls wait: they belong to the start of a process.

use super::admin::{Admin, SETTINGS_WITHIN, block_on};
use super::config::{Connection, ConsumerConfig, ProducerConfig};
use super::start::{Found, Lookup, MISSING_FOR};
use crate::fault::Fault;
use crate::sink::TopicLimits;
use rdkafka::admin::{AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::types::RDKafkaErrorCode;
use serde::{Deserialize, Serialize};
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFound {
    /// Its name.
    pub name: String,
    /// How many partitions it has.
    pub partitions: usize,
    /// What it takes. A producer that makes no larger batch never has a record refused because of its neighbours.
    pub limits: TopicLimits,
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
    let lookup = Lookup::new(&config, deadline)?;
    // One that may be made need not be waited for: whether it was missing shows when it is made.
    let Found { mut partitions, missing } = lookup.find(&names, Duration::ZERO)?;
    let (to_make, absent): (Vec<_>, Vec<_>) =
        topics.iter().filter(|topic| missing.contains(&topic.name)).partition(|topic| topic.create.is_some());
    let absent: Vec<String> = absent.iter().map(|topic| topic.name.clone()).collect();
    let absent = lookup.find(&absent, MISSING_FOR)?.missing;
    if !absent.is_empty() {
        return Err(Fault::new(
            ErrorClass::Missing,
            format!(
                "these output topics do not exist on {}: {}; make them, or say `create: {{ partitions, replication }}`",
                connection.brokers.join(","),
                absent.join(", ")
            ),
        ));
    }
    let admin = Admin::new(connection, end)?;
    if !to_make.is_empty() {
        let topics: Vec<NewTopic<'_>> = to_make
            .iter()
            .map(|topic| {
                let (partitions, replication) = topic.create.unwrap_or((-1, -1));
                NewTopic::new(&topic.name, partitions, TopicReplication::Fixed(replication))
            })
            .collect();
        admin.make(&lookup, &topics)?;
    }
    if !missing.is_empty() {
        partitions = lookup.partitions(&names)?;
    }
    let limits = admin.limits(&names)?;
    let found = |(name, limits): (String, TopicLimits)| OutputFound {
        partitions: partitions.iter().filter(|partition| *partition.topic == *name).count(),
        name,
        limits,
    };
    Ok(names.into_iter().zip(limits).map(found).collect())
}

/// Fits a client to all topics that it writes to: its records may be as large as the topic that takes most allows, and its
/// batches as the one that takes least. A topic that is not there, or a broker that does not tell, sets no limit.
pub fn fit_to_topics(
    config: &mut ProducerConfig,
    connection: &Connection,
    topics: &[String],
    deadline: Duration,
) -> Result<(), Fault> {
    if topics.is_empty() {
        return Ok(());
    }
    let found = Admin::new(connection, Instant::now() + deadline)?.limits(topics)?;
    let limits = || found.iter().filter_map(|topic| topic.record_bytes_max);
    config.record_bytes_max = limits().max();
    config.batch_bytes_max = limits().min();
    Ok(())
}

/// Refuses inputs and outputs in two clusters: a transaction cannot commit offsets of one with records of the other.
pub fn check_same_cluster(
    consumer: &ConsumerConfig,
    outputs: &Connection,
    deadline: Duration,
) -> Result<(), Fault> {
    if consumer.connection.brokers == outputs.brokers {
        return Ok(());
    }
    let read = Lookup::new(consumer, deadline)?.cluster_id()?;
    let writing = ConsumerConfig { connection: outputs.clone(), ..consumer.clone() };
    let written = Lookup::new(&writing, deadline)?.cluster_id()?;
    if read == written {
        return Ok(());
    }
    Err(Fault::new(
        ErrorClass::Config,
        format!(
            "exactly_once cannot be kept: {} is the cluster {read} and {} the cluster {written}, and a transaction reaches one cluster only: write to the cluster that is read, or use at_least_once",
            consumer.connection.brokers.join(","),
            outputs.brokers.join(",")
        ),
    )
    .code("EXACTLY_ONCE_BLOCKED"))
}

/// Sees to it that the control topic of exactly-once output is there, with one partition and compacted only: what is deleted
/// by age or size there would be published again.
pub fn check_control_topic(
    connection: &Connection,
    topic: &str,
    create_replication: Option<i32>,
    deadline: Duration,
) -> Result<(), Fault> {
    let end = Instant::now() + deadline;
    let config = ConsumerConfig { connection: connection.clone(), ..ConsumerConfig::default() };
    let names = [topic.to_owned()];
    let lookup = Lookup::new(&config, deadline)?;
    let missing_for = if create_replication.is_some() { Duration::ZERO } else { MISSING_FOR };
    let mut found = lookup.find(&names, missing_for)?;
    let admin = Admin::new(connection, end)?;
    if !found.missing.is_empty() {
        let Some(replication) = create_replication else {
            return Err(Fault::new(
                ErrorClass::Missing,
                format!(
                    "the control topic `{topic}` of exactly_once does not exist on {}: make it with one partition and cleanup.policy=compact, or say exactly_once: {{ create: {{ replication: N }} }}",
                    connection.brokers.join(",")
                ),
            ));
        };
        let compacted =
            NewTopic::new(topic, 1, TopicReplication::Fixed(replication)).set("cleanup.policy", "compact");
        if admin.make(&lookup, &[compacted])? {
            return Ok(());
        }
        found = lookup.find(&names, MISSING_FOR)?;
    }
    let wrong = |what: String| {
        let text = format!(
            "the control topic `{topic}` of exactly_once {what}: name another one with exactly_once: {{ control_topic: … }}, or make it anew with one partition and cleanup.policy=compact"
        );
        Err(Fault::new(ErrorClass::Config, text).code("EXACTLY_ONCE_BLOCKED"))
    };
    if found.partitions.len() != 1 {
        return wrong(format!("has {} partitions", found.partitions.len()));
    }
    let asked = [ResourceSpecifier::Topic(topic)];
    let settings = admin.configs(&asked, &admin.options())?;
    let policy = settings.iter().flatten().find_map(|config| config.get("cleanup.policy")?.value.clone());
    match policy.as_deref() {
        Some("compact") => Ok(()),
        Some(policy) => wrong(format!("has cleanup.policy={policy}, by which markers are deleted")),
        None => {
            tracing::warn!(
                topic,
                "the settings of the control topic cannot be read (operation DescribeConfigs): see that its cleanup.policy is compact"
            );
            Ok(())
        }
    }
}

impl Admin {
    /// Makes topics that seem to be missing, and sees that the metadata shows them: a producer must not find them missing.
    /// True when none of them was there.
    fn make(&self, lookup: &Lookup, topics: &[NewTopic<'_>]) -> Result<bool, Fault> {
        let names: Vec<String> = topics.iter().map(|topic| topic.name.to_owned()).collect();
        let made = self.create(topics);
        match lookup.partitions(&names) {
            // All are there, although this client may not make any.
            Ok(_) => Ok(made.unwrap_or(false)),
            Err(missing) => made.and(Err(missing)),
        }
    }

    fn create(&self, topics: &[NewTopic<'_>]) -> Result<bool, Fault> {
        let mut all_new = true;
        let results = block_on(self.client().create_topics(topics, &self.options()))
            .map_err(|error| self.unavailable("making topics", &error.to_string()))?;
        for result in results {
            match result {
                Ok(topic) => tracing::info!(topic, "output topic made"),
                // The metadata did not show it yet, or another process was faster.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => all_new = false,
                Err((topic, code)) => {
                    return Err(Fault::new(
                        ErrorClass::Config,
                        format!("output topic `{topic}` cannot be made (operation Create): {code}"),
                    ));
                }
            }
        }
        Ok(all_new)
    }

    /// What each topic takes.
    fn limits(&self, names: &[String]) -> Result<Vec<TopicLimits>, Fault> {
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
        let limits = |config: Option<ConfigResource>| {
            let setting = |of: &str| config.as_ref()?.get(of)?.value.clone();
            let created = setting("message.timestamp.type").is_none_or(|kind| kind == "CreateTime");
            TopicLimits {
                record_bytes_max: setting("max.message.bytes").and_then(|bytes| bytes.parse().ok()),
                ahead_max_ms: setting("message.timestamp.after.max.ms")
                    .and_then(|ms| ms.parse().ok())
                    .filter(|_| created),
            }
        };
        Ok(answer.into_iter().map(limits).collect())
    }
}

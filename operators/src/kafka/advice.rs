//! [`Advice`]: what the brokers' settings mean for a flow that can run.
//!
//! The clock of `offsets.retention.minutes` runs from the last commit when a group has no members, and ours never has:
//! what an idle partition commits again (`commit_keepalive_ms`) is what keeps its offset.

use super::admin::{Admin, SETTINGS_WITHIN};
use super::config::Connection;
use super::reaper;
use crate::fault::Fault;
use rdkafka::admin::{ConfigResource, ResourceSpecifier};
use std::time::{Duration, Instant};

/// How long the cluster keeps the offsets of a group without members; `None` where it does not tell.
pub fn offsets_retention(connection: &Connection, deadline: Duration) -> Result<Option<Duration>, Fault> {
    let admin = Admin::new(connection, Instant::now() + deadline)?;
    let metadata = admin
        .client()
        .inner()
        .fetch_metadata(Some("__consumer_offsets"), deadline)
        .map_err(|error| admin.unavailable("the brokers", &error.to_string()))?;
    let Some(broker) = metadata.brokers().first().map(|broker| broker.id()) else { return Ok(None) };
    let answer = admin.configs(&[ResourceSpecifier::Broker(broker)], &admin.options())?;
    let minutes = answer
        .iter()
        .flatten()
        .find_map(|config| config.get("offsets.retention.minutes")?.value.as_ref()?.parse::<u64>().ok());
    Ok(minutes.map(|minutes| Duration::from_secs(minutes * 60)))
}

/// Code of the warning that idle offsets are forgotten before they are committed again.
pub const KEEPALIVE_ABOVE_RETENTION: &str = "KEEPALIVE_ABOVE_RETENTION";
/// Code of the warning that a topic does not hold all that was written to it.
pub const COMPACTED_AS_LOG: &str = "COMPACTED_AS_LOG";

/// What is asked of the brokers' settings.
#[derive(Clone, Debug, Default)]
pub struct Advice {
    /// How often an idle partition's offset is committed again.
    pub keepalive: Duration,
    /// Topics of which every record counts, not only the newest of each key.
    pub logs: Vec<String>,
}

impl Advice {
    /// Warns of settings of the brokers under which the flow does not do what it seems to. They are asked on a thread
    /// of its own, which the end of the process waits for as for a client: no start waits for this, and a broker that
    /// does not tell costs nothing but the warning.
    pub fn give(self, connection: &Connection) {
        let connection = connection.clone();
        reaper::close("questions for the brokers' settings".to_owned(), move || {
            self.on_retention(&connection);
            self.on_compaction(&connection);
        });
    }

    fn on_retention(&self, connection: &Connection) {
        match offsets_retention(connection, SETTINGS_WITHIN) {
            Ok(Some(retention)) if self.keepalive >= retention => tracing::warn!(
                code = KEEPALIVE_ABOVE_RETENTION,
                keepalive_ms = self.keepalive.as_millis() as u64,
                retention_ms = retention.as_millis() as u64,
                "the brokers forget the offsets of an idle group (offsets.retention.minutes) before `commit_keepalive_ms` commits them again: make it smaller"
            ),
            Ok(_) => {}
            Err(fault) => tracing::debug!(%fault, "how long the brokers keep offsets is not known"),
        }
    }

    fn on_compaction(&self, connection: &Connection) {
        match compacted(connection, &self.logs) {
            Ok(topics) => topics.iter().for_each(|topic| {
                tracing::warn!(
                    code = COMPACTED_AS_LOG,
                    topic,
                    "the topic is compacted (cleanup.policy): a record that is overwritten before it is read is never seen, so what the flow counts or sums depends on when it reads; keep all records of the topic, or read one that does"
                );
            }),
            Err(fault) => tracing::debug!(%fault, "whether the input topics are compacted is not known"),
        }
    }
}

/// Those of the topics that are compacted, as far as the cluster tells.
fn compacted(connection: &Connection, topics: &[String]) -> Result<Vec<String>, Fault> {
    if topics.is_empty() {
        return Ok(Vec::new());
    }
    let admin = Admin::new(connection, Instant::now() + SETTINGS_WITHIN)?;
    let asked: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
    let answer = admin.configs(&asked, &admin.options())?;
    let is_compacted = |config: &Option<ConfigResource>| {
        let policy = config.as_ref().and_then(|config| config.get("cleanup.policy")?.value.as_deref());
        policy.is_some_and(|policy| policy.split(',').any(|part| part.trim() == "compact"))
    };
    let found = topics.iter().zip(&answer).filter(|(_, config)| is_compacted(config));
    Ok(found.map(|(topic, _)| topic.clone()).collect())
}

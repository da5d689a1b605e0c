//! How long the brokers keep the offsets of a group.
//!
//! The clock runs from the last commit when a group has no members, and ours never has: what an idle partition
//! commits again (`commit_keepalive_ms`) is what keeps its offset.

use super::admin::{Admin, SETTINGS_WITHIN};
use super::config::Connection;
use super::reaper;
use crate::fault::Fault;
use rdkafka::admin::ResourceSpecifier;
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

/// Warns when a group's offsets would be forgotten before an idle partition commits again. The brokers are asked
/// on a thread of its own, which the end of the process waits for as for a client: no start waits for this, and a
/// broker that does not tell costs nothing but the warning.
pub fn warn_of_retention(connection: &Connection, keepalive: Duration) {
    let connection = connection.clone();
    reaper::close("question for the retention of offsets".to_owned(), move || {
        match offsets_retention(&connection, SETTINGS_WITHIN) {
            Ok(Some(retention)) if keepalive >= retention => tracing::warn!(
                keepalive_ms = keepalive.as_millis() as u64,
                retention_ms = retention.as_millis() as u64,
                "the brokers forget the offsets of an idle group (offsets.retention.minutes) before `commit_keepalive_ms` commits them again: make it smaller"
            ),
            Ok(_) => {}
            Err(fault) => tracing::debug!(%fault, "how long the brokers keep offsets is not known"),
        }
    });
}

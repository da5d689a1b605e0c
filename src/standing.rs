//! Where a flow stands: `tidegate offsets show`. Nothing is changed, and nothing is joined; it may run beside the flow.

use crate::clients;
use crate::run::Job;
use crate::table;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use tidegate_operators::fault::Fault;
use tidegate_operators::kafka::{ConsumerConfig, Lookup};
use tidegate_recovery::storage::LocalDirectory;
use tidegate_recovery::{ErrorClass, NextOffset, RecoveryStore, TopicPartition};

/// Where a flow stands in one partition. All offsets are those of the next record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Position {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    /// What the group has committed.
    pub(crate) group: Option<i64>,
    /// Where a restore goes on.
    pub(crate) store: Option<i64>,
    pub(crate) log_start: i64,
    pub(crate) log_end: i64,
    /// From the group's offset to the end of the log.
    pub(crate) lag: Option<i64>,
}

impl Position {
    /// The partition.
    pub(crate) fn name(&self) -> TopicPartition {
        TopicPartition::new(&self.topic, self.partition)
    }
}

/// Where a flow stands in all its partitions, sorted.
pub(crate) struct Standing(Vec<Position>);

/// Asks the brokers and looks into the store.
pub(crate) fn find(job: &Job) -> Result<Standing, Fault> {
    let (plan, _) = job.plan();
    let clients = clients::configs(&job.settings)?;
    let stored = stored(job)?;
    let found = ask(job, &plan.input_topics, &clients.consumer, &stored);
    clients::close();
    found
}

fn ask(
    job: &Job,
    topics: &[String],
    consumer: &ConsumerConfig,
    stored: &[(TopicPartition, NextOffset)],
) -> Result<Standing, Fault> {
    let mut lookup = Lookup::new(consumer, job.settings.cluster.startup_timeout)?;
    let partitions = lookup.partitions(topics)?;
    positions(&mut lookup, partitions, stored).map(Standing)
}

/// Where a flow stands in these partitions, whose offsets in the store are given.
pub(crate) fn positions(
    lookup: &mut Lookup,
    partitions: Vec<TopicPartition>,
    stored: &[(TopicPartition, NextOffset)],
) -> Result<Vec<Position>, Fault> {
    let committed = lookup.committed(&partitions)?;
    let bounds = lookup.bounds(&partitions)?;
    let positions = partitions.into_iter().map(|partition| {
        let log = bounds[&partition];
        let group = committed.get(&partition).map(|next| next.0);
        let store = stored.iter().find(|(known, _)| *known == partition).map(|(_, next)| next.0);
        Position {
            topic: partition.topic.to_string(),
            partition: partition.partition,
            group,
            store,
            log_start: log.start.0,
            log_end: log.end.0,
            lag: group.map(|group| (log.end.0 - group).max(0)),
        }
    });
    Ok(positions.collect())
}

/// The offsets of the store's newest record; none when the flow has no store, or has not begun one.
fn stored(job: &Job) -> Result<Vec<(TopicPartition, NextOffset)>, Fault> {
    let Some(directory) = &job.settings.recovery.directory else { return Ok(Vec::new()) };
    if !directory.exists() {
        let what = format!("there is no recovery store in {}", directory.display());
        return Err(Fault::new(ErrorClass::Config, what));
    }
    let store = RecoveryStore::new(Arc::new(LocalDirectory::new(directory)));
    store.offsets().map_err(|error| Fault::new(error.class(), error.to_string()))
}

impl Standing {
    /// A JSON object for each partition, one per line.
    pub(crate) fn json(&self) -> String {
        let lines = self.0.iter().map(|one| serde_json::to_string(one).expect("numbers and a name"));
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["topic", "partition", "group", "store", "log start", "log end", "lag"];
        let rows = self.0.iter().map(|one| {
            [
                one.topic.clone(),
                one.partition.to_string(),
                table::offset(one.group),
                table::offset(one.store),
                one.log_start.to_string(),
                one.log_end.to_string(),
                table::offset(one.lag),
            ]
        });
        let rows: Vec<[String; 7]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
        table::write(f, &rows)
    }
}

//! `tidegate offsets replay`: a stopped flow is to go on somewhere else.
//!
//! 1. The brokers are asked where that is in each partition. A group with members is refused.
//! 2. The store is opened as a start opens it, under a lease of its own: a running flow is refused, and what the last run
//!    had left to publish under `exactly_once` is published, so that no output of the old state comes after the reset.
//! 3. A commit record says where the flow goes on, without any state, under the next epoch.
//! 4. The group gets the same offsets. They may go down: that is what was asked for.
//!
//! A start takes the store's word before the group's. So whatever happens between 3 and 4, the flow begins where it was
//! asked to, and the command, given once more, does the rest.
//!
//! Without a store only the group is reset, and nothing shows whether the flow runs: it is no member of its group.

use crate::causes::{cause_of, config, store_cause};
use crate::cli::ReplayTo;
use crate::clients::{self, Clients};
use crate::config::problems::Severity;
use crate::opening;
use crate::run::Job;
use crate::standing::{self, Position};
use crate::table;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tidegate_cluster::{Cause, new_run_id};
use tidegate_operators::kafka::Lookup;
use tidegate_recovery::storage::LocalDirectory;
use tidegate_recovery::{
    ClusterShape, ErrorClass, FlowFingerprint, NextOffset, OpenOptions, Opened, RecordNumber, RecoveryStore,
    TopicId, TopicPartition,
};

/// What a replay has done, or would do.
pub(crate) struct Replay {
    group: String,
    store: Option<String>,
    /// Where each partition stood, and where it goes on; `None` where nobody knows, so that a start decides.
    partitions: Vec<(Position, Option<i64>)>,
    /// The store's new record.
    record: Option<RecordNumber>,
    dry_run: bool,
}

/// Resets store and group, or only looks what that would do.
pub(crate) fn replay(job: &Job, to: &ReplayTo, dry_run: bool) -> Result<Replay, Cause> {
    let (plan, problems) = job.plan();
    if let Some(problem) = problems.iter().find(|problem| problem.severity == Severity::Error) {
        return Err(Cause::new(ErrorClass::Config, problem.code, problem.text()));
    }
    let clients = clients::configs(&job.settings).map_err(|fault| cause_of(&fault))?;
    let done =
        Replaying { job, clients: &clients, topics: &plan.input_topics, to, dry_run }.run(plan.fingerprint());
    clients::close();
    done
}

struct Replaying<'a> {
    job: &'a Job,
    clients: &'a Clients,
    topics: &'a [String],
    to: &'a ReplayTo,
    dry_run: bool,
}

impl Replaying<'_> {
    fn lookup(&self) -> Result<Lookup, Cause> {
        let deadline = self.job.settings.cluster.startup_timeout;
        Lookup::new(&self.clients.consumer, deadline).map_err(|fault| cause_of(&fault))
    }

    fn run(&self, fingerprint: FlowFingerprint) -> Result<Replay, Cause> {
        let mut lookup = self.lookup()?;
        let partitions = lookup.partitions(self.topics).map_err(|fault| cause_of(&fault))?;
        lookup.refuse_members().map_err(|fault| cause_of(&fault))?;
        let ids = lookup.topic_ids(self.topics).map_err(|fault| cause_of(&fault))?;
        let times = match self.to {
            ReplayTo::Timestamp(at) => lookup.at_time(&partitions, *at).map_err(|fault| cause_of(&fault))?,
            ReplayTo::Earliest | ReplayTo::Offsets(_) => BTreeMap::new(),
        };

        let store = self.store()?;
        let mut opened = match &store {
            Some(store) if !self.dry_run => Some(self.open(store, fingerprint)?),
            _ => None,
        };
        let stored = match (&store, &opened) {
            (_, Some(opened)) => opened.resume.offsets.clone(),
            (Some(store), None) => store.offsets().map_err(|error| store_cause(&error))?,
            (None, None) => Vec::new(),
        };
        let made_again = opened.as_ref().map_or_else(Vec::new, |opened| made_again(opened, &ids));
        let positions =
            standing::positions(&mut lookup, partitions, &stored).map_err(|fault| cause_of(&fault))?;
        let targets = targets(self.to, &positions, &times, &made_again)?;
        let offsets: Vec<(TopicPartition, NextOffset)> = positions
            .iter()
            .zip(&targets)
            .filter_map(|(position, target)| Some((position.name(), NextOffset((*target)?))))
            .collect();

        let mut record = None;
        // Keeps every start away until the group is reset too.
        let mut keeper = None;
        if let Some(opened) = &mut opened {
            let lost = |error| tracing::warn!(%error, "the lease was lost");
            keeper = Some(opened.lease.keep(lost).map_err(|error| store_cause(&error))?);
            opened.publisher.reads(ids, &made_again);
            let slots = opened.resume.slots.clone();
            let published = opened.publisher.begin_anew(offsets.iter().cloned(), slots);
            record = Some(published.map_err(|error| store_cause(&error))?);
        }
        if !self.dry_run {
            self.lookup()?.set_group(&offsets).map_err(|fault| {
                let mut cause = cause_of(&fault);
                if record.is_some() {
                    cause.text += "; the store is reset, and the next start goes on there: give the command again to reset the group too";
                }
                cause
            })?;
        }
        drop(keeper);
        Ok(Replay {
            group: self.clients.consumer.group_id.clone(),
            store: store.map(|store| store.storage().place()),
            partitions: positions.into_iter().zip(targets).collect(),
            record,
            dry_run: self.dry_run,
        })
    }

    fn store(&self) -> Result<Option<RecoveryStore>, Cause> {
        let Some(directory) = &self.job.settings.recovery.directory else { return Ok(None) };
        if !directory.exists() {
            return Err(config(format!("there is no recovery store in {}", directory.display())));
        }
        Ok(Some(RecoveryStore::new(Arc::new(LocalDirectory::new(directory)))))
    }

    /// Opens the store for a flow without steps: whatever its state was, it is given up.
    fn open(&self, store: &RecoveryStore, fingerprint: FlowFingerprint) -> Result<Opened, Cause> {
        let shape = ClusterShape { processes: 1, workers_per_process: 1 };
        let options = OpenOptions {
            allow_dropped_state: true,
            ..opening::open_options(self.job, fingerprint, new_run_id()?, shape)
        };
        opening::open_store(self.job, self.clients, store, &options)
    }
}

/// The topics whose stored offsets are those of another topic of the same name.
fn made_again(opened: &Opened, ids: &BTreeMap<Arc<str>, TopicId>) -> Vec<Arc<str>> {
    ids.iter()
        .filter(|(topic, id)| opened.resume.topic(topic).is_some_and(|recorded| recorded != **id))
        .map(|(topic, _)| topic.clone())
        .collect()
}

/// Where each partition goes on. What cannot be is listed in one error.
fn targets(
    to: &ReplayTo,
    positions: &[Position],
    times: &BTreeMap<TopicPartition, Option<NextOffset>>,
    made_again: &[Arc<str>],
) -> Result<Vec<Option<i64>>, Cause> {
    let named = match to {
        ReplayTo::Earliest => return Ok(positions.iter().map(|position| Some(position.log_start)).collect()),
        ReplayTo::Timestamp(_) => {
            let at = |position: &Position| times.get(&position.name()).copied().flatten();
            let target = |position| Some(at(position).map_or(position.log_end, |next| next.0));
            return Ok(positions.iter().map(target).collect());
        }
        ReplayTo::Offsets(named) => named,
    };
    let of = |position: &Position| {
        named
            .iter()
            .find(|(topic, partition, _)| *topic == position.topic && *partition == position.partition)
            .map(|(_, _, offset)| *offset)
    };
    let mut wrong: Vec<String> = named
        .iter()
        .filter(|(topic, partition, _)| {
            positions.iter().all(|known| (&known.topic, &known.partition) != (topic, partition))
        })
        .map(|(topic, partition, _)| format!("the flow does not read {topic}/{partition}"))
        .collect();
    let mut targets = Vec::new();
    for position in positions {
        targets.push(match of(position) {
            Some(offset) => {
                if !(position.log_start..=position.log_end).contains(&offset) {
                    wrong.push(format!(
                        "{}/{}={offset} is not in the log, which holds {} to {}",
                        position.topic, position.partition, position.log_start, position.log_end
                    ));
                }
                Some(offset)
            }
            // The known offset is that of a topic which is gone.
            None if made_again.iter().any(|topic| **topic == *position.topic) => Some(position.log_start),
            None => position.store.or(position.group),
        });
    }
    if wrong.is_empty() {
        return Ok(targets);
    }
    Err(Cause::new(ErrorClass::Usage, "", format!("--to: {}", wrong.join("; "))))
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["topic", "partition", "group", "store", "log start", "log end", "goes on at"];
        let rows = self.partitions.iter().map(|(position, target)| {
            [
                position.topic.clone(),
                position.partition.to_string(),
                table::offset(position.group),
                table::offset(position.store),
                position.log_start.to_string(),
                position.log_end.to_string(),
                table::offset(*target),
            ]
        });
        let rows: Vec<[String; 7]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
        table::write(f, &rows)?;
        let (were, now) = match self.dry_run {
            true => ("would be", "nothing was changed"),
            false => ("were", "start the flow to go on there"),
        };
        match (&self.store, self.record) {
            (Some(store), Some(record)) => {
                write!(f, "\nthe recovery store {store} (record {record}, its state is dropped) and ")?;
            }
            (Some(store), None) => write!(f, "\nthe recovery store {store} (its state dropped) and ")?,
            (None, _) => write!(
                f,
                "\nno recovery store is named, so that nothing shows whether the flow runs: it must be stopped\n"
            )?,
        }
        write!(f, "the offsets of group {} {were} reset; {now}", self.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(partition: i32, group: Option<i64>, store: Option<i64>) -> Position {
        Position { topic: "t".into(), partition, group, store, log_start: 10, log_end: 100, lag: None }
    }

    fn offsets(named: &[(&str, i32, i64)]) -> ReplayTo {
        ReplayTo::Offsets(named.iter().map(|(topic, p, n)| ((*topic).to_owned(), *p, *n)).collect())
    }

    #[test]
    fn each_form_finds_its_offsets_and_a_time_after_the_last_record_is_the_end() {
        // A10
        let positions = [position(0, Some(50), Some(60)), position(1, None, None)];
        let times = BTreeMap::from([
            (TopicPartition::new("t", 0), Some(NextOffset(42))),
            (TopicPartition::new("t", 1), None),
        ]);
        let targets = |to: ReplayTo| targets(&to, &positions, &times, &[]).unwrap();
        assert_eq!(targets(ReplayTo::Earliest), [Some(10), Some(10)]);
        assert_eq!(targets(ReplayTo::Timestamp(5)), [Some(42), Some(100)]);
        assert_eq!(targets(offsets(&[("t", 0, 100)])), [Some(100), None], "nobody knows the other one");
        assert_eq!(
            targets(offsets(&[("t", 1, 10)])),
            [Some(60), Some(10)],
            "the store goes before the group"
        );
    }

    #[test]
    fn partitions_that_are_not_there_and_offsets_outside_the_log_are_all_named() {
        let positions = [position(0, Some(50), None), position(1, Some(50), None)];
        let to = offsets(&[("t", 0, 9), ("t", 1, 101), ("t", 2, 50), ("u", 0, 50)]);
        let cause = targets(&to, &positions, &BTreeMap::new(), &[]).unwrap_err();
        assert_eq!(cause.exit_code(), 64);
        for part in ["t/0=9 is not in the log, which holds 10 to 100", "t/1=101", "read t/2", "read u/0"] {
            assert!(cause.text.contains(part), "{part} is not in {}", cause.text);
        }
    }

    #[test]
    fn of_a_topic_that_was_made_again_the_other_partitions_begin_at_their_start() {
        // K10
        let positions = [position(0, Some(50), Some(60)), position(1, Some(50), Some(60))];
        let to = offsets(&[("t", 0, 20)]);
        let targets = targets(&to, &positions, &BTreeMap::new(), &["t".into()]).unwrap();
        assert_eq!(targets, [Some(20), Some(10)]);
    }
}

//! What process 0 finds out before anything is read, and tells all: where each partition begins.
//!
//! The group's offsets are read after the old clients are gone (the lease is ours, all processes of this
//! generation are connected), so they are the commit floor. Old consumers of the same group, which is how many come to
//! this program, are refused before that. Nothing is decided twice: the other processes take
//! process 0's numbers.

use crate::config::kafka::{ConsumerSettings, OffsetReset, OutOfRange as OutOfRangeSetting};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_operators::fault::Fault;
use tidegate_operators::kafka::{
    AutoOffsetReset, ConsumerConfig, Lookup, OutOfRange, OutputFound, PartitionFacts, StartPolicy, announce,
    decide,
};
use tidegate_operators::process::DeliveryGuarantee;
use tidegate_operators::sink::TopicLimits;
use tidegate_recovery::{ErrorClass, NextOffset, ResumeState, TopicPartition};

/// Where one partition begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartitionPlan {
    /// The partition.
    pub(crate) partition: TopicPartition,
    /// The first offset to read.
    pub(crate) start: NextOffset,
    /// The log's end at the start.
    pub(crate) end: NextOffset,
    /// The offset in the resume state.
    pub(crate) resumed: Option<NextOffset>,
    /// The group's committed offset.
    pub(crate) group: Option<NextOffset>,
    /// Offsets before `start` that were known and whose records were deleted.
    pub(crate) lost: u64,
}

/// Where all partitions begin, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartPlan {
    /// The partitions of all input topics.
    pub(crate) partitions: Vec<PartitionPlan>,
    /// What is known of the output topics.
    pub(crate) outputs: Vec<OutputFound>,
}

impl StartPlan {
    /// The largest batch that every output topic takes, in bytes, where the brokers tell.
    pub(crate) fn record_bytes_max(&self) -> Option<usize> {
        self.outputs.iter().filter_map(|output| output.record_bytes_max).min()
    }

    /// What a topic takes.
    pub(crate) fn limits_of(&self, topic: &str) -> TopicLimits {
        let found = self.outputs.iter().find(|output| output.name == topic);
        TopicLimits {
            record_bytes_max: found.and_then(|found| found.record_bytes_max),
            ahead_max_ms: found.and_then(|found| found.ahead_max_ms),
        }
    }
}

/// What the look-up needs to know of the run.
pub(crate) struct StartQuestion<'a> {
    pub(crate) consumer: &'a ConsumerSettings,
    pub(crate) config: &'a ConsumerConfig,
    pub(crate) topics: &'a [String],
    pub(crate) delivery: DeliveryGuarantee,
    pub(crate) resume: Option<&'a ResumeState>,
    /// Whether a step would lose state if the store is empty.
    pub(crate) needs_store: bool,
    pub(crate) allow_lost_state: bool,
    pub(crate) deadline: Duration,
}

/// Asks the broker, decides and announces.
pub(crate) fn find(question: &StartQuestion<'_>) -> Result<StartPlan, Fault> {
    let mut lookup = Lookup::new(question.config, question.deadline)?;
    let partitions = lookup.partitions(question.topics)?;
    lookup.refuse_members()?;
    let committed = lookup.committed(&partitions)?;
    let bounds = lookup.bounds(&partitions)?;
    refuse_lost_state(question, &committed)?;
    let facts: BTreeMap<_, _> = partitions
        .iter()
        .map(|partition| {
            let facts = PartitionFacts {
                resume: question.resume.and_then(|resume| resume.offset(partition)),
                committed: committed.get(partition).copied(),
                log: bounds[partition],
            };
            (partition.clone(), facts)
        })
        .collect();
    let decisions = decide(policy(question), &facts)?;
    announce(&decisions);
    let partitions = decisions
        .into_iter()
        .map(|(partition, decision)| PartitionPlan {
            start: decision.next,
            end: facts[&partition].log.end,
            resumed: facts[&partition].resume,
            group: facts[&partition].committed,
            lost: decision.lost(),
            partition,
        })
        .collect();
    Ok(StartPlan { partitions, outputs: Vec::new() })
}

fn policy(question: &StartQuestion<'_>) -> StartPolicy {
    StartPolicy {
        auto_offset_reset: match question.consumer.auto_offset_reset {
            OffsetReset::Earliest => AutoOffsetReset::Earliest,
            OffsetReset::Latest => AutoOffsetReset::Latest,
            OffsetReset::Error => AutoOffsetReset::Error,
        },
        on_out_of_range: out_of_range(question.consumer.on_out_of_range),
        delivery: question.delivery,
    }
}

/// The operators' word for the setting.
pub(crate) fn out_of_range(setting: OutOfRangeSetting) -> OutOfRange {
    match setting {
        OutOfRangeSetting::Fail => OutOfRange::Fail,
        OutOfRangeSetting::Earliest => OutOfRange::Earliest,
        OutOfRangeSetting::Latest => OutOfRange::Latest,
    }
}

/// An empty store while the group has offsets: the state that led to them is gone.
fn refuse_lost_state(
    question: &StartQuestion<'_>,
    committed: &BTreeMap<TopicPartition, NextOffset>,
) -> Result<(), Fault> {
    let store_is_empty = question.resume.is_some_and(|resume| resume.record.is_none());
    let may_lose = question.delivery == DeliveryGuarantee::AtMostOnce || question.allow_lost_state;
    if !store_is_empty || !question.needs_store || committed.is_empty() || may_lose {
        return Ok(());
    }
    let known: Vec<_> = committed.iter().map(|(partition, next)| format!("{partition} at {next}")).collect();
    Err(Fault::new(
        ErrorClass::Config,
        format!(
            "the recovery store is empty, but group {} has committed {}: the state that belongs to these offsets is gone; restore the store, take another group_id, or start with --allow-lost-state",
            question.consumer.group_id,
            known.join(", ")
        ),
    )
    .code("STATE_LOST"))
}

//! What process 0 finds out before anything is read, and tells all: where each partition begins.
//!
//! The group's offsets are read after the old clients are gone (the lease is ours, all processes of this
//! generation are connected), so they are the commit floor, but for topics that were made again (`--reset-topic`):
//! nobody knows an offset of those. Old consumers of the same group, which is how many come to
//! this program, are refused before that. Nothing is decided twice: the other processes take
//! process 0's numbers.

use crate::config::kafka::{ConsumerSettings, OffsetReset, OutOfRange as OutOfRangeSetting};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidegate_operators::fault::Fault;
use tidegate_operators::kafka::{
    AutoOffsetReset, ConsumerConfig, IsolationLevel, KnownTopic, Lookup, OutOfRange, OutputFound,
    PartitionFacts, StartPolicy, TopicFacts, announce, begin_anew, decide, partitions_added,
};
use tidegate_operators::process::DeliveryGuarantee;
use tidegate_operators::sink::TopicLimits;
use tidegate_recovery::{ErrorClass, NextOffset, ResumeState, TopicId, TopicPartition};

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
    /// The ids of the input topics, where the brokers tell them.
    pub(crate) topics: BTreeMap<Arc<str>, TopicId>,
    /// Topics that were made again, which the user accepts.
    pub(crate) begun_anew: Vec<Arc<str>>,
    /// What is known of the output topics.
    pub(crate) outputs: Vec<OutputFound>,
}

impl StartPlan {
    /// What a topic takes.
    pub(crate) fn limits_of(&self, topic: &str) -> TopicLimits {
        let found = self.outputs.iter().find(|output| output.name == topic);
        found.map_or_else(TopicLimits::default, |found| found.limits)
    }
}

impl StartPlan {
    /// What the readers are to know of the topics, to see when something changes.
    pub(crate) fn known_topics(&self) -> Vec<KnownTopic> {
        let mut known: Vec<KnownTopic> = Vec::new();
        for PartitionPlan { partition, .. } in &self.partitions {
            match known.last_mut() {
                Some(topic) if topic.name == partition.topic => topic.partitions += 1,
                _ => known.push(KnownTopic {
                    name: partition.topic.clone(),
                    partitions: 1,
                    id: self.topics.get(&partition.topic).copied(),
                }),
            }
        }
        known
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
    /// Whether records are brought together by key.
    pub(crate) keyed: bool,
    /// Topics that begin anew if they were made again.
    pub(crate) reset_topics: &'a [String],
    pub(crate) deadline: Duration,
}

/// Asks the broker, decides and announces.
pub(crate) fn find(question: &StartQuestion<'_>) -> Result<StartPlan, Fault> {
    // A client that reads what is committed also waits for offsets whose transaction is about to end.
    let isolation = match question.delivery {
        DeliveryGuarantee::ExactlyOnce => IsolationLevel::ReadCommitted,
        _ => question.config.isolation,
    };
    let config = ConsumerConfig { isolation, ..question.config.clone() };
    let mut lookup = Lookup::new(&config, question.deadline)?;
    let partitions = lookup.partitions(question.topics)?;
    lookup.refuse_members()?;
    let committed = lookup.committed(&partitions)?;
    let bounds = lookup.bounds(&partitions)?;
    refuse_lost_state(question, &committed)?;
    let topics = lookup.topic_ids(question.topics)?;
    let mut facts: BTreeMap<_, _> = partitions
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
    let begun_anew = begin_anew(&topic_facts(question, &topics), question.reset_topics, &facts)?;
    for topic in &begun_anew {
        tracing::warn!(topic = &**topic, "--reset-topic: the topic was made again, and begins anew");
        for (_, facts) in facts.iter_mut().filter(|(partition, _)| partition.topic == *topic) {
            (facts.resume, facts.committed) = (None, None);
        }
    }
    let decisions = decide(policy(question), &facts)?;
    announce(&decisions);
    announce_added(question, &partitions_added(&facts, &decisions));
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
    Ok(StartPlan { partitions, topics, begun_anew, outputs: Vec::new() })
}

fn topic_facts(question: &StartQuestion<'_>, found: &BTreeMap<Arc<str>, TopicId>) -> Vec<TopicFacts> {
    let facts = |name: &String| TopicFacts {
        name: name.as_str().into(),
        recorded: question.resume.and_then(|resume| resume.topic(name)),
        found: found.get(name.as_str()).copied(),
    };
    question.topics.iter().map(facts).collect()
}

/// New partitions of topics that were read before begin at their start. What that means for keys is for the user to know.
fn announce_added(question: &StartQuestion<'_>, added: &BTreeMap<Arc<str>, Vec<i32>>) {
    for (topic, partitions) in added {
        let keys = if question.keyed {
            "; producers put keys into other partitions now, so that the records of a key from before and after the change come from two partitions, in no order between them"
        } else {
            ""
        };
        tracing::warn!(
            topic = &**topic,
            ?partitions,
            "PARTITIONS_ADDED: partitions were added to topic {topic} since it was read last, they are read from their beginning{keys}"
        );
    }
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

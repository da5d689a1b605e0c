//! The start offset of each partition, as a pure function of what is known.
//!
//! Resume state, then the group's committed offset, then `auto_offset_reset` (under `at_most_once` the larger of
//! resume state and group: records must not be read twice). A partition that neither knows, of a topic that one
//! of them does know, is new: it starts at its log start whatever the policy, or its first records would be
//! lost under `latest`. Every decision is a number; `latest` is resolved here, and the caller makes it durable
//! before anything is read.
//!
//! An offset below the log's start follows `on_out_of_range`, with the number of offsets that are lost. One beyond its
//! end follows no policy: the log was cut off or its topic made again, and its offsets mean other records.

use super::super::consume::{OutOfRange, beyond_the_end};
use super::lookup::LogBounds;
use crate::fault::Fault;
use crate::process::DeliveryGuarantee;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidegate_recovery::{ErrorClass, NextOffset, TopicPartition};

/// Where a partition begins of which no offset is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoOffsetReset {
    /// At its oldest record.
    #[default]
    Earliest,
    /// At the next record that is written.
    Latest,
    /// The run ends.
    Error,
}

/// What the user chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartPolicy {
    /// Where an unknown partition begins.
    pub auto_offset_reset: AutoOffsetReset,
    /// What to do when the records at a known offset were deleted.
    pub on_out_of_range: OutOfRange,
    /// The delivery guarantee.
    pub delivery: DeliveryGuarantee,
}

/// What is known of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionFacts {
    /// Where the resume state goes on.
    pub resume: Option<NextOffset>,
    /// The group's committed offset.
    pub committed: Option<NextOffset>,
    /// What the log holds.
    pub log: LogBounds,
}

/// What a start offset was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The resume state.
    Resume,
    /// The group's committed offset.
    Group,
    /// The policy, because no offset was known.
    Reset,
}

/// A resume state behind the group: records between the two are done again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Where the resume state goes on.
    pub resume: NextOffset,
    /// The group's committed offset.
    pub committed: NextOffset,
    /// How many offsets lie between.
    pub distance: i64,
}

/// Where one partition begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartDecision {
    /// The first offset to read.
    pub next: NextOffset,
    /// What it was taken from.
    pub from: From,
    /// Commits below it are suppressed.
    pub floor: Option<NextOffset>,
    /// The resume state is behind the group.
    pub stale: Option<Stale>,
    /// The records at the known offset were deleted, so the policy chose `next`.
    pub moved_from: Option<NextOffset>,
}

impl StartDecision {
    /// Offsets that were known and are not read, because their records were deleted.
    pub fn lost(&self) -> u64 {
        self.moved_from.map_or(0, |from| (self.next.0 - from.0).max(0).unsigned_abs())
    }
}

/// Decides for all partitions; what cannot be decided is listed in one fault.
pub fn decide(
    policy: StartPolicy,
    facts: &BTreeMap<TopicPartition, PartitionFacts>,
) -> Result<BTreeMap<TopicPartition, StartDecision>, Fault> {
    let known_topics: BTreeSet<Arc<str>> = facts
        .iter()
        .filter(|(_, facts)| facts.resume.is_some() || facts.committed.is_some())
        .map(|(partition, _)| partition.topic.clone())
        .collect();
    let mut decisions = BTreeMap::new();
    let (mut deleted, mut cut_off) = (Vec::new(), Vec::new());
    let mut unknown = Vec::new();
    for (partition, facts) in facts {
        let is_new = known_topics.contains(&partition.topic);
        match decide_one(policy, facts, is_new) {
            Ok(decision) => {
                decisions.insert(partition.clone(), decision);
            }
            Err(Undecided::Deleted(offset)) => deleted.push(format!(
                "{partition} at {offset}, the log holds {} to {} ({} offsets lost)",
                facts.log.start,
                facts.log.end,
                facts.log.start.0 - offset.0
            )),
            Err(Undecided::CutOff(offset)) => {
                cut_off.push(beyond_the_end(partition, offset.0, facts.log.end.0));
            }
            Err(Undecided::NoOffset) => unknown.push(partition.to_string()),
        }
    }
    if !deleted.is_empty() {
        cut_off.push(format!(
            "the broker does not have the offsets to go on at: {}; set `on_out_of_range: earliest | latest` to go on without them",
            deleted.join("; ")
        ));
    }
    if !cut_off.is_empty() {
        return Err(Fault::new(ErrorClass::Data, cut_off.join("; ")).code("OFFSET_OUT_OF_RANGE"));
    }
    if !unknown.is_empty() {
        return Err(Fault::new(
            ErrorClass::Config,
            format!(
                "no offset is known for {} and `auto_offset_reset` is `error`: commit one, or choose `earliest` or `latest`",
                unknown.join(", ")
            ),
        ));
    }
    Ok(decisions)
}

enum Undecided {
    Deleted(NextOffset),
    CutOff(NextOffset),
    NoOffset,
}

fn decide_one(
    policy: StartPolicy,
    facts: &PartitionFacts,
    topic_is_known: bool,
) -> Result<StartDecision, Undecided> {
    let chosen = match (facts.resume, facts.committed, policy.delivery) {
        (Some(resume), Some(committed), DeliveryGuarantee::AtMostOnce) if committed > resume => {
            Some((committed, From::Group))
        }
        (Some(resume), _, _) => Some((resume, From::Resume)),
        (None, Some(committed), _) => Some((committed, From::Group)),
        (None, None, _) => None,
    };
    let stale = match (facts.resume, facts.committed) {
        (Some(resume), Some(committed)) if resume < committed => {
            Some(Stale { resume, committed, distance: committed.0 - resume.0 })
        }
        _ => None,
    };
    let decision =
        |next, from, moved_from| StartDecision { next, from, floor: facts.committed, stale, moved_from };
    let log = facts.log;
    match chosen {
        Some((next, _)) if next > log.end => Err(Undecided::CutOff(next)),
        Some((next, from)) if next < log.start => match policy.on_out_of_range {
            OutOfRange::Fail => Err(Undecided::Deleted(next)),
            OutOfRange::Earliest => Ok(decision(log.start, from, Some(next))),
            OutOfRange::Latest => Ok(decision(log.end, from, Some(next))),
        },
        Some((next, from)) => Ok(decision(next, from, None)),
        None if topic_is_known => Ok(decision(log.start, From::Reset, None)),
        None => match policy.auto_offset_reset {
            AutoOffsetReset::Earliest => Ok(decision(log.start, From::Reset, None)),
            AutoOffsetReset::Latest => Ok(decision(log.end, From::Reset, None)),
            AutoOffsetReset::Error => Err(Undecided::NoOffset),
        },
    }
}

/// Says in the log where each partition begins and why; a stale resume and an offset that was not there are
/// warnings, one line per partition.
pub fn announce(decisions: &BTreeMap<TopicPartition, StartDecision>) {
    for (partition, decision) in decisions {
        let (topic, number) = (&*partition.topic, partition.partition);
        let from = match decision.from {
            From::Resume => "resume state",
            From::Group => "committed group offset",
            From::Reset => "auto_offset_reset",
        };
        tracing::info!(topic, partition = number, offset = decision.next.0, from, "partition starts");
        if let Some(stale) = decision.stale {
            tracing::warn!(
                topic,
                partition = number,
                resume = stale.resume.0,
                committed = stale.committed.0,
                distance = stale.distance,
                "STALE_RESUME: resume state {} is behind the committed group offset {} for {partition} (distance {}): these records are done again",
                stale.resume,
                stale.committed,
                stale.distance
            );
        }
        if let Some(was) = decision.moved_from {
            tracing::warn!(
                topic,
                partition = number,
                offset = was.0,
                next = decision.next.0,
                lost = decision.lost(),
                "OFFSET_OUT_OF_RANGE: the broker does not have offset {was} of {partition}; starting at {} as `on_out_of_range` says, {} offsets are lost",
                decision.next,
                decision.lost()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: StartPolicy = StartPolicy {
        auto_offset_reset: AutoOffsetReset::Earliest,
        on_out_of_range: OutOfRange::Fail,
        delivery: DeliveryGuarantee::AtLeastOnce,
    };

    fn facts(resume: Option<i64>, committed: Option<i64>, log: (i64, i64)) -> PartitionFacts {
        PartitionFacts {
            resume: resume.map(NextOffset),
            committed: committed.map(NextOffset),
            log: LogBounds { start: NextOffset(log.0), end: NextOffset(log.1) },
        }
    }

    fn one(policy: StartPolicy, facts: PartitionFacts) -> Result<StartDecision, Fault> {
        let partition = TopicPartition::new("t", 0);
        decide(policy, &BTreeMap::from([(partition.clone(), facts)])).map(|decisions| decisions[&partition])
    }

    #[test]
    fn resume_state_goes_before_the_group_and_the_group_before_the_policy() {
        // L54
        let at = |resume, committed| one(POLICY, facts(resume, committed, (10, 500))).unwrap();
        assert_eq!((at(Some(50), Some(40)).next.0, at(Some(50), Some(40)).from), (50, From::Resume));
        assert_eq!((at(None, Some(40)).next.0, at(None, Some(40)).from), (40, From::Group));
        assert_eq!((at(None, None).next.0, at(None, None).from), (10, From::Reset));
    }

    #[test]
    fn a_resume_state_behind_the_group_is_stale_and_the_group_is_the_floor() {
        // L55, L56
        let decision = one(POLICY, facts(Some(50), Some(100), (0, 500))).unwrap();
        assert_eq!((decision.next, decision.floor), (NextOffset(50), Some(NextOffset(100))));
        let stale = Stale { resume: NextOffset(50), committed: NextOffset(100), distance: 50 };
        assert_eq!(decision.stale, Some(stale));
        for resume in [100, 101] {
            assert_eq!(one(POLICY, facts(Some(resume), Some(100), (0, 500))).unwrap().stale, None);
        }
    }

    #[test]
    fn at_most_once_takes_the_larger_of_resume_state_and_group() {
        let policy = StartPolicy { delivery: DeliveryGuarantee::AtMostOnce, ..POLICY };
        assert_eq!(one(policy, facts(Some(50), Some(100), (0, 500))).unwrap().next.0, 100);
        assert_eq!(one(policy, facts(Some(150), Some(100), (0, 500))).unwrap().next.0, 150);
    }

    #[test]
    fn a_new_partition_of_a_known_topic_starts_at_its_log_start_whatever_the_policy() {
        // L48
        let policy = StartPolicy { auto_offset_reset: AutoOffsetReset::Latest, ..POLICY };
        let decisions = decide(
            policy,
            &BTreeMap::from([
                (TopicPartition::new("known", 0), facts(None, Some(40), (0, 500))),
                (TopicPartition::new("known", 1), facts(None, None, (3, 9))),
                (TopicPartition::new("other", 0), facts(None, None, (3, 9))),
            ]),
        )
        .unwrap();
        assert_eq!(decisions[&TopicPartition::new("known", 1)].next.0, 3);
        assert_eq!(decisions[&TopicPartition::new("other", 0)].next.0, 9, "latest is resolved to a number");
    }

    #[test]
    fn deleted_records_follow_the_policy_a_log_that_was_cut_off_follows_none_and_all_are_listed() {
        // A24, K4, K10, S16
        let below = facts(Some(5), None, (10, 500));
        let above = facts(None, Some(501), (10, 500));
        let fault = decide(
            POLICY,
            &BTreeMap::from([(TopicPartition::new("t", 0), below), (TopicPartition::new("t", 1), above)]),
        )
        .unwrap_err();
        assert_eq!((fault.code, fault.class), ("OFFSET_OUT_OF_RANGE", ErrorClass::Data));
        assert!(fault.message.contains("t:0 at 5,") && fault.message.contains("(5 offsets lost)"), "{fault}");
        assert!(fault.message.contains("partition t:1 goes on at offset 501"), "{fault}");
        for (policy, next, lost) in [(OutOfRange::Earliest, 10, 5), (OutOfRange::Latest, 500, 495)] {
            let policy = StartPolicy { on_out_of_range: policy, ..POLICY };
            let decision = one(policy, below).unwrap();
            assert_eq!(
                (decision.next.0, decision.moved_from, decision.lost()),
                (next, Some(NextOffset(5)), lost)
            );
            assert_eq!(one(policy, above).unwrap_err().code, "OFFSET_OUT_OF_RANGE", "read again in silence");
        }
        assert_eq!(one(POLICY, facts(Some(10), None, (10, 500))).unwrap().next.0, 10);
        assert_eq!(one(POLICY, facts(Some(500), None, (10, 500))).unwrap().next.0, 500);
    }

    #[test]
    fn without_any_offset_and_with_error_as_policy_the_run_ends() {
        let policy = StartPolicy { auto_offset_reset: AutoOffsetReset::Error, ..POLICY };
        assert_eq!(one(policy, facts(None, None, (0, 1))).unwrap_err().class, ErrorClass::Config);
    }
}

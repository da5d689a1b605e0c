//! What has happened to the input topics since their offsets were written: made again, or given more partitions.
//!
//! A topic that was made again has another id, and its offsets mean other records: the start is refused, also when the new
//! topic has more records than the old one had, unless the user accepts it (`--reset-topic`). Then the topic begins as if
//! nobody had ever read it. Where the id is not known (no store, or brokers that tell none) only a log that ends before
//! the known offset shows it. The acceptance is for what has happened, not for ever: a topic that is the known one is not
//! begun anew, so that the flag may stay on a command line.

use super::super::topics::made_again;
use super::decide::{From, PartitionFacts, StartDecision};
use crate::fault::Fault;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidegate_recovery::{ErrorClass, TopicId, TopicPartition};

/// What is known of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicFacts {
    /// Its name.
    pub name: Arc<str>,
    /// The id of the topic whose offsets the store has.
    pub recorded: Option<TopicId>,
    /// The id that the topic has now.
    pub found: Option<TopicId>,
}

/// The topics that begin anew, because they were made again and the user accepts it. Topics that were made again
/// without that are listed in one fault (`TOPIC_RECREATED`, 65).
pub fn begin_anew(
    topics: &[TopicFacts],
    accepted: &[String],
    partitions: &BTreeMap<TopicPartition, PartitionFacts>,
) -> Result<Vec<Arc<str>>, Fault> {
    let (mut anew, mut refused) = (Vec::new(), Vec::new());
    for topic in topics {
        let other = topic.recorded.zip(topic.found).filter(|(recorded, found)| recorded != found);
        let is_accepted = accepted.iter().any(|name| **name == *topic.name);
        match other {
            Some(_) if is_accepted => anew.push(topic.name.clone()),
            Some((was, is)) => refused.push(made_again(&topic.name, was, is)),
            None if is_accepted && ends_too_early(&topic.name, partitions) => anew.push(topic.name.clone()),
            None if is_accepted => tracing::warn!(
                topic = &*topic.name,
                "--reset-topic changes nothing: the topic is the one whose offsets are known, as far as can be told"
            ),
            None => {}
        }
    }
    if refused.is_empty() {
        return Ok(anew);
    }
    Err(Fault::new(ErrorClass::Data, refused.join("; ")).code("TOPIC_RECREATED"))
}

fn ends_too_early(topic: &str, partitions: &BTreeMap<TopicPartition, PartitionFacts>) -> bool {
    partitions.iter().any(|(partition, facts)| {
        *partition.topic == *topic
            && facts.resume.or(facts.committed).is_some_and(|known| known > facts.log.end)
    })
}

/// The partitions that were added to topics which are known, by topic.
pub fn partitions_added(
    partitions: &BTreeMap<TopicPartition, PartitionFacts>,
    decisions: &BTreeMap<TopicPartition, StartDecision>,
) -> BTreeMap<Arc<str>, Vec<i32>> {
    let is_known = |facts: &PartitionFacts| facts.resume.is_some() || facts.committed.is_some();
    let known: BTreeSet<&str> = partitions
        .iter()
        .filter(|(_, facts)| is_known(facts))
        .map(|(partition, _)| &*partition.topic)
        .collect();
    let mut added: BTreeMap<Arc<str>, Vec<i32>> = BTreeMap::new();
    for (partition, decision) in decisions {
        if decision.from == From::Reset && known.contains(&*partition.topic) {
            added.entry(partition.topic.clone()).or_default().push(partition.partition);
        }
    }
    added
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::{AutoOffsetReset, LogBounds, OutOfRange, StartPolicy, decide};
    use crate::process::DeliveryGuarantee;
    use tidegate_recovery::NextOffset;

    fn facts(resume: Option<i64>, committed: Option<i64>, end: i64) -> PartitionFacts {
        PartitionFacts {
            resume: resume.map(NextOffset),
            committed: committed.map(NextOffset),
            log: LogBounds { start: NextOffset(0), end: NextOffset(end) },
        }
    }

    fn topic(recorded: u128, found: u128) -> TopicFacts {
        let id = |id| Some(TopicId(id)).filter(|id| id.0 != 0);
        TopicFacts { name: "t".into(), recorded: id(recorded), found: id(found) }
    }

    fn anew(topic: TopicFacts, accepted: &[&str], facts: PartitionFacts) -> Result<usize, &'static str> {
        let accepted: Vec<String> = accepted.iter().map(|name| (*name).to_owned()).collect();
        let partitions = BTreeMap::from([(TopicPartition::new("t", 0), facts)]);
        begin_anew(&[topic], &accepted, &partitions).map(|anew| anew.len()).map_err(|fault| fault.code)
    }

    #[test]
    fn a_topic_that_was_made_again_is_refused_however_long_it_is_unless_it_is_accepted() {
        // K10
        for end in [10, 1_000] {
            assert_eq!(anew(topic(7, 8), &[], facts(Some(500), None, end)), Err("TOPIC_RECREATED"));
            assert_eq!(anew(topic(7, 8), &["u"], facts(Some(500), None, end)), Err("TOPIC_RECREATED"));
            assert_eq!(anew(topic(7, 8), &["t"], facts(Some(500), None, end)), Ok(1));
        }
    }

    #[test]
    fn a_topic_whose_id_is_the_known_one_or_not_known_begins_anew_only_if_its_log_ends_too_early() {
        for known in [topic(7, 7), topic(0, 8), topic(7, 0), topic(0, 0)] {
            assert_eq!(anew(known.clone(), &["t"], facts(None, Some(500), 1_000)), Ok(0));
            assert_eq!(anew(known.clone(), &["t"], facts(None, Some(500), 499)), Ok(1));
            assert_eq!(anew(known.clone(), &["t"], facts(Some(400), Some(500), 450)), Ok(0));
            assert_eq!(anew(known, &[], facts(None, Some(500), 499)), Ok(0), "a matter of its offsets");
        }
    }

    #[test]
    fn only_new_partitions_of_known_topics_count_as_added() {
        // L48, K7
        let partitions = BTreeMap::from([
            (TopicPartition::new("known", 0), facts(Some(3), None, 9)),
            (TopicPartition::new("known", 1), facts(None, None, 9)),
            (TopicPartition::new("new", 0), facts(None, None, 9)),
        ]);
        let policy = StartPolicy {
            auto_offset_reset: AutoOffsetReset::Latest,
            on_out_of_range: OutOfRange::Fail,
            delivery: DeliveryGuarantee::AtLeastOnce,
        };
        let decisions = decide(policy, &partitions).unwrap();
        assert_eq!(partitions_added(&partitions, &decisions), BTreeMap::from([("known".into(), vec![1])]));
    }
}

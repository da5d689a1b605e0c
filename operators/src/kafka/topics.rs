//! [`TopicWatch`]: what happens to input topics while they are read.
//!
//! The cluster is asked every half minute, without waiting: for the number of partitions (more are announced
//! once as `PARTITIONS_ADDED` and read after the next start), for the topic's id (another one than at the start means
//! that it was deleted and made again: its offsets mean other records now, `TOPIC_RECREATED`) and whether it is there at
//! all. A topic that is missing may only be on its way through the metadata: it ends the run when it is missing
//! in several answers over a while.

use super::raw::{Queue, TopicDescription};
use crate::fault::Fault;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_recovery::{ErrorClass, TopicId};

const ASK_EVERY: Duration = Duration::from_secs(30);
const ASK_EVERY_IN_DOUBT: Duration = Duration::from_secs(2);
const ASK_TIMEOUT: Duration = Duration::from_secs(20);
/// A topic counts as deleted when it is missing for this long …
const MISSING_FOR: Duration = Duration::from_secs(10);
/// … in this many answers.
const MISSING_ANSWERS: u32 = 3;

/// What a start found out about an input topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownTopic {
    /// Its name.
    pub name: Arc<str>,
    /// How many of its partitions are read.
    pub partitions: usize,
    /// Its id, where the brokers told it.
    pub id: Option<TopicId>,
}

/// The topic is not the one whose offsets are known, with both ids; the advice holds at a start too.
pub(crate) fn made_again(name: &str, was: TopicId, is: TopicId) -> String {
    format!(
        "topic `{name}` was deleted and made again (its id was {was} and is {is}): the offsets so far mean other records now; start with `--reset-topic {name}` to read the new topic by `auto_offset_reset`"
    )
}

/// Watches some topics.
pub(super) struct TopicWatch {
    topics: Vec<Watched>,
    asked: Option<(usize, Instant)>,
    due: Option<Instant>,
    added: u64,
}

struct Watched {
    name: Arc<str>,
    partitions: Option<usize>,
    id: Option<TopicId>,
    missing: Option<(Instant, u32)>,
}

impl TopicWatch {
    pub(super) fn new(topics: impl IntoIterator<Item = Arc<str>>) -> TopicWatch {
        let topics = topics
            .into_iter()
            .map(|name| Watched { name, partitions: None, id: None, missing: None })
            .collect();
        TopicWatch { topics, asked: None, due: None, added: 0 }
    }

    /// What the start knew of these topics.
    pub(super) fn expect(&mut self, known: &[KnownTopic]) {
        for topic in &mut self.topics {
            if let Some(known) = known.iter().find(|known| known.name == topic.name) {
                (topic.partitions, topic.id) = (Some(known.partitions), known.id);
            }
        }
    }

    /// Partitions that were added since the start, and are not read.
    pub(super) fn added(&self) -> u64 {
        self.added
    }

    /// Something was said of a topic that is not there: ask soon.
    pub(super) fn suspect(&mut self, now: Instant) {
        self.due = Some(now);
    }

    /// Asks when it is time; returns whether `tag` was used.
    pub(super) fn ask(&mut self, replies: &Queue, tag: usize, now: Instant) -> bool {
        let due = *self.due.get_or_insert(now);
        let waiting = self.asked.is_some_and(|(_, at)| now.duration_since(at) < ASK_TIMEOUT);
        if self.topics.is_empty() || now < due || waiting {
            return false;
        }
        self.due = Some(now + ASK_EVERY);
        match replies.ask_topics(self.topics.iter().map(|topic| &*topic.name), ASK_TIMEOUT, tag) {
            Ok(()) => {
                self.asked = Some((tag, now));
                true
            }
            Err(error) => {
                tracing::debug!(error, "the topics could not be asked for");
                false
            }
        }
    }

    /// The answer to the question `tag`.
    pub(super) fn answered(
        &mut self,
        tag: usize,
        result: Result<Vec<TopicDescription>, String>,
        now: Instant,
    ) -> Result<(), Fault> {
        if self.asked.take_if(|(asked, _)| *asked == tag).is_none() {
            return Ok(());
        }
        match result {
            Err(error) => tracing::debug!(error, "the topics were not answered"),
            Ok(descriptions) => {
                for description in descriptions {
                    self.learn(&description, now)?;
                }
            }
        }
        Ok(())
    }

    fn learn(&mut self, description: &TopicDescription, now: Instant) -> Result<(), Fault> {
        let Some(topic) = self.topics.iter_mut().find(|topic| *topic.name == description.name) else {
            return Ok(());
        };
        if description.error.is_missing() {
            let (since, answers) = topic.missing.get_or_insert((now, 0));
            *answers += 1;
            if *answers >= MISSING_ANSWERS && now.duration_since(*since) >= MISSING_FOR {
                return Err(Fault::new(
                    ErrorClass::Missing,
                    format!("topic `{}` is gone: it was deleted while it was read", topic.name),
                ));
            }
            self.due = Some(now + ASK_EVERY_IN_DOUBT);
            return Ok(());
        }
        if !description.error.is_ok() {
            tracing::debug!(topic = &*topic.name, error = %description.error, "the topic was not described");
            return Ok(());
        }
        topic.missing = None;
        if let Some(is) = description.id {
            let was = *topic.id.get_or_insert(is);
            if was != is {
                let text = made_again(&topic.name, was, is);
                return Err(Fault::new(ErrorClass::Data, text).code("TOPIC_RECREATED"));
            }
        }
        let known = topic.partitions.get_or_insert(description.partitions);
        if description.partitions > *known {
            tracing::warn!(
                topic = &*topic.name,
                partitions = description.partitions,
                read = *known,
                "PARTITIONS_ADDED: topic {} has {} partitions and {} are read; start the flow again to read the new ones, from their beginning",
                topic.name,
                description.partitions,
                *known
            );
            self.added += (description.partitions - *known) as u64;
            *known = description.partitions;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::raw::Code;
    use super::*;

    fn answer(error: Code, id: u128, partitions: usize) -> Result<Vec<TopicDescription>, String> {
        let id = Some(TopicId(id)).filter(|id| id.0 != 0);
        Ok(vec![TopicDescription { name: "t".into(), error, id, partitions }])
    }

    fn ask(
        watch: &mut TopicWatch,
        at: Instant,
        result: Result<Vec<TopicDescription>, String>,
    ) -> Result<(), Fault> {
        watch.asked = Some((1, at));
        watch.answered(1, result, at)
    }

    #[test]
    fn a_topic_that_is_missing_for_a_moment_is_waited_for_and_one_that_stays_away_ends_the_run() {
        let mut watch = TopicWatch::new([Arc::from("t")]);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        ask(&mut watch, at(0), answer(Code::UNKNOWN_TOPIC_OR_PART, 0, 0)).unwrap();
        ask(&mut watch, at(9), answer(Code::UNKNOWN_TOPIC_OR_PART, 0, 0)).unwrap();
        ask(&mut watch, at(10), answer(Code::OK, 7, 1)).unwrap();
        ask(&mut watch, at(40), answer(Code::UNKNOWN_TOPIC_OR_PART, 0, 0)).unwrap();
        assert_eq!(watch.due, Some(at(42)), "in doubt it is asked sooner");
        ask(&mut watch, at(42), answer(Code::UNKNOWN_TOPIC_OR_PART, 0, 0)).unwrap();
        let fault = ask(&mut watch, at(51), answer(Code::UNKNOWN_TOPIC_OR_PART, 0, 0)).unwrap_err();
        assert_eq!(fault.class, ErrorClass::Missing);
    }

    #[test]
    fn another_id_under_the_same_name_is_another_topic() {
        // K10: also when it was made again between the start's look and the first one here.
        for expected in [None, Some(TopicId(7))] {
            let mut watch = TopicWatch::new([Arc::from("t")]);
            watch.expect(&[KnownTopic { name: "t".into(), partitions: 1, id: expected }]);
            let now = Instant::now();
            if expected.is_none() {
                ask(&mut watch, now, answer(Code::OK, 7, 1)).unwrap();
            }
            ask(&mut watch, now, answer(Code::OK, 0, 1)).unwrap();
            let fault = ask(&mut watch, now, answer(Code::OK, 8, 1)).unwrap_err();
            assert_eq!((fault.code, fault.class), ("TOPIC_RECREATED", ErrorClass::Data));
            let ids = format!("its id was {} and is {}", TopicId(7), TopicId(8));
            assert!(fault.message.contains(&ids), "{fault}");
        }
    }

    #[test]
    fn more_partitions_are_announced_once() {
        // L48, K7
        let mut watch = TopicWatch::new([Arc::from("t")]);
        watch.expect(&[KnownTopic { name: "t".into(), partitions: 3, id: None }]);
        let now = Instant::now();
        for (partitions, added) in [(4, 1), (4, 1), (6, 3)] {
            ask(&mut watch, now, answer(Code::OK, 7, partitions)).unwrap();
            assert_eq!(watch.added(), added);
        }
    }
}

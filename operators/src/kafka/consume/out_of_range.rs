//! An offset that the broker does not have: what is asked, and what becomes of the partition.
//!
//! The client says only that the offset is not there; which end of the log it missed makes the difference. Below the
//! log's start, records were deleted before they were read: the policy decides, and the loss is counted. Beyond its end,
//! the log was cut off (by an unclean change of its leader) or the topic was made again: the offsets before the position mean
//! other records now, wherever one went on, so no policy covers it and the run ends. So it does when the client saw
//! that the log was cut off and it has grown past the position since. Which of the two it was, the topic's id tells.

use super::super::raw::{
    Code, Isolation, Message, OffsetSpec, PartitionList, PartitionOffset, TopicDescription,
};
use super::super::topics::made_again;
use super::{ENDS_EVERY, ENDS_TIMEOUT, KafkaReader, OutOfRange};
use crate::fault::Fault;
use std::time::Instant;
use tidegate_recovery::{ErrorClass, TopicId, TopicPartition};

/// A partition whose offset was not there, until both ends of its log and its topic are known.
pub(super) struct Search {
    input: usize,
    /// The client saw that the log was cut off.
    cut_off: bool,
    due: Instant,
    start: Question<i64>,
    end: Question<i64>,
    topic: Question<Option<TopicId>>,
}

/// One thing that is asked.
struct Question<T> {
    tag: Option<usize>,
    answer: Option<T>,
}

impl<T> Question<T> {
    fn asked(tag: Option<usize>) -> Question<T> {
        Question { tag, answer: None }
    }

    fn has(&self, tag: usize) -> bool {
        self.tag == Some(tag)
    }
}

/// What becomes of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It goes on here; the offsets between are lost.
    GoOn { target: i64, lost: i64 },
    /// Records were deleted before they were read, and the policy does not go on without them.
    Deleted { lost: i64 },
    /// The log does not reach the position any more.
    CutOff,
}

fn judge(policy: OutOfRange, position: i64, start: i64, end: i64, cut_off: bool) -> Verdict {
    if position < start {
        return match policy {
            OutOfRange::Fail => Verdict::Deleted { lost: start - position },
            OutOfRange::Earliest => Verdict::GoOn { target: start, lost: start - position },
            OutOfRange::Latest => Verdict::GoOn { target: end, lost: end - position },
        };
    }
    if position > end || cut_off {
        return Verdict::CutOff;
    }
    // It is there by now.
    Verdict::GoOn { target: position, lost: 0 }
}

/// The run cannot go on at an offset beyond the end of the log; the advice holds at a start too.
pub(crate) fn beyond_the_end(partition: &TopicPartition, position: i64, end: i64) -> String {
    format!(
        "partition {partition} goes on at offset {position}, and its log ends at {end}: the log was cut off (an unclean change of its leader), or the topic was made again; nothing is read twice or skipped in silence: choose where to go on with `tidegate offsets replay`, or accept the new topic with `--reset-topic {}`",
        partition.topic
    )
}

impl KafkaReader {
    /// The partition's offset is not there: asks for both ends of its log.
    pub(super) fn search(&mut self, index: usize, event: &Message, now: Instant) {
        if let Some(connected) = &mut self.connected {
            connected.topics.suspect(now);
        }
        if self.searches.iter().all(|search| search.input != index) {
            let cut_off = event.error_text().contains(&Code::LOG_TRUNCATION.to_string());
            let (start, end, topic) = (Question::asked(None), Question::asked(None), Question::asked(None));
            self.searches.push(Search { input: index, cut_off, due: now, start, end, topic });
        }
    }

    /// Asks for what is not known yet, of all searches that are due.
    pub(super) fn ask_for_logs(&mut self, now: Instant) {
        let Some(connected) = &self.connected else { return };
        for search in self.searches.iter_mut().filter(|search| now >= search.due) {
            search.due = now + ENDS_TIMEOUT;
            let partition = &self.inputs[search.input].partition;
            let questions =
                [(&mut search.start, OffsetSpec::Earliest), (&mut search.end, OffsetSpec::Latest)];
            for (question, spec) in questions {
                self.next_tag += 1;
                *question = Question::asked(Some(self.next_tag));
                // The log's end is where it is written next, also under `read_committed`.
                let isolation = Isolation::Uncommitted;
                let tag = self.next_tag;
                if let Err(error) =
                    connected.replies.ask_offsets([partition], spec, isolation, ENDS_TIMEOUT, tag)
                {
                    tracing::warn!(error, %partition, "the ends of the log could not be asked for");
                }
            }
            self.next_tag += 1;
            search.topic = Question::asked(Some(self.next_tag));
            if let Err(error) = connected.replies.ask_topics([&*partition.topic], ENDS_TIMEOUT, self.next_tag)
            {
                tracing::warn!(error, %partition, "the topic could not be asked for");
            }
        }
    }

    pub(super) fn on_log_offset(
        &mut self,
        tag: usize,
        result: Result<Vec<PartitionOffset>, String>,
        now: Instant,
    ) -> Result<(), Fault> {
        let is_asked = |search: &Search| search.start.has(tag) || search.end.has(tag);
        let Some(place) = self.searches.iter().position(is_asked) else { return Ok(()) };
        let search = &mut self.searches[place];
        let question = if search.start.has(tag) { &mut search.start } else { &mut search.end };
        match one_offset(result) {
            Ok(offset) => question.answer = Some(offset),
            Err(error) => search.again(&error, now),
        }
        self.decide_if_known(place)
    }

    /// Whether `tag` is a question for the topic of a search; if so, takes the answer.
    pub(super) fn on_log_topic(
        &mut self,
        tag: usize,
        result: &Result<Vec<TopicDescription>, String>,
        now: Instant,
    ) -> Result<bool, Fault> {
        let Some(place) = self.searches.iter().position(|search| search.topic.has(tag)) else {
            return Ok(false);
        };
        let search = &mut self.searches[place];
        let name = &self.inputs[search.input].partition.topic;
        let compares = self.known_topics.iter().any(|known| known.name == *name && known.id.is_some());
        match result.as_ref().map(|topics| topics.first()) {
            // A broker that tells no ids has told none at the start either: there is nothing to compare.
            Err(_) if !compares => search.topic.answer = Some(None),
            Ok(Some(topic)) if topic.error.is_ok() => search.topic.answer = Some(topic.id),
            Ok(Some(topic)) => search.again(&topic.error.to_string(), now),
            Ok(None) => search.again("the answer was empty", now),
            Err(error) => search.again(error, now),
        }
        self.decide_if_known(place)?;
        Ok(true)
    }

    fn decide_if_known(&mut self, place: usize) -> Result<(), Fault> {
        let search = &self.searches[place];
        let (Some(start), Some(end), Some(id)) =
            (search.start.answer, search.end.answer, search.topic.answer)
        else {
            return Ok(());
        };
        let search = self.searches.swap_remove(place);
        // Records may be deleted between the two answers.
        self.decide(&search, start, end.max(start), id)
    }

    fn decide(&mut self, search: &Search, start: i64, end: i64, id: Option<TopicId>) -> Result<(), Fault> {
        let input = &mut self.inputs[search.input];
        let partition = &input.partition;
        let known = self.known_topics.iter().find(|topic| topic.name == partition.topic);
        if let Some((was, is)) = known.and_then(|topic| topic.id).zip(id)
            && was != is
        {
            let text = made_again(&partition.topic, was, is);
            return Err(Fault::new(ErrorClass::Data, text).code("TOPIC_RECREATED"));
        }
        let refused = |text| Err(Fault::new(ErrorClass::Data, text).code("OFFSET_OUT_OF_RANGE"));
        let (target, lost) = match judge(
            self.options.on_out_of_range,
            input.position,
            start,
            end,
            search.cut_off,
        ) {
            Verdict::GoOn { target, lost } => (target, lost),
            Verdict::Deleted { lost } => {
                return refused(format!(
                    "partition {partition} goes on at offset {}, and its log begins at {start}: {lost} offsets were deleted before they were read; set `on_out_of_range: earliest | latest` to go on without them",
                    input.position
                ));
            }
            Verdict::CutOff => return refused(beyond_the_end(partition, input.position, end)),
        };
        if lost > 0 {
            tracing::warn!(
                topic = &*partition.topic,
                partition = partition.partition,
                position = input.position,
                target,
                lost,
                "OFFSET_OUT_OF_RANGE: {lost} offsets of {partition} were not read, their records are gone or passed over; going on at {target} as `on_out_of_range` says"
            );
        }
        input.lost += lost.unsigned_abs();
        input.position = target;
        input.at_end = false;
        if let Some(connected) = &self.connected {
            // After such an error the partition is stopped in the client, and a stopped one cannot seek.
            let list = PartitionList::new([(&input.partition, target)]);
            connected.client.reassign(&list).map_err(|error| {
                Fault::new(
                    ErrorClass::Internal,
                    format!("partition {} cannot go on: {error}", input.partition),
                )
            })?;
            input.ready.keep();
        }
        Ok(())
    }
}

impl Search {
    /// A question was not answered: all are asked again, a little later.
    fn again(&mut self, error: &str, now: Instant) {
        tracing::warn!(error, "what became of a log whose offset is not there was not answered");
        self.due = now + ENDS_EVERY;
    }
}

fn one_offset(result: Result<Vec<PartitionOffset>, String>) -> Result<i64, String> {
    match result?.first() {
        Some(one) if one.error.is_ok() && one.offset >= 0 => Ok(one.offset),
        Some(one) => Err(format!("{:?}", one.error)),
        None => Err("the answer was empty".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_records_follow_the_policy_and_a_log_that_was_cut_off_follows_none() {
        // K4, K11, A24
        let judged = |policy, position| judge(policy, position, 40, 100, false);
        assert_eq!(judged(OutOfRange::Fail, 10), Verdict::Deleted { lost: 30 });
        assert_eq!(judged(OutOfRange::Earliest, 10), Verdict::GoOn { target: 40, lost: 30 });
        assert_eq!(judged(OutOfRange::Latest, 10), Verdict::GoOn { target: 100, lost: 90 });
        for policy in [OutOfRange::Fail, OutOfRange::Earliest, OutOfRange::Latest] {
            assert_eq!(judged(policy, 101), Verdict::CutOff);
            assert_eq!(judged(policy, 100), Verdict::GoOn { target: 100, lost: 0 });
            assert_eq!(judge(policy, 60, 40, 100, true), Verdict::CutOff, "it has grown since");
            assert_ne!(judge(policy, 10, 40, 100, true), Verdict::CutOff, "its old epochs were deleted too");
        }
    }
}

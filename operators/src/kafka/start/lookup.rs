//! [`Lookup`]: what is asked of the cluster before anything is read.
//!
//! Every question is asked again, with growing pauses, until it is answered or the deadline passes; then the
//! start ends with class `Unavailable` (69). A committed offset that could not be fetched is never taken for one
//! that does not exist: the policy for unknown offsets would skip or repeat everything.
//!
//! A password, a certificate or a protocol that does not fit is not waited for: what the client heard of its brokers
//! ends the start within seconds, with the cause.
//!
//! These calls wait: they belong to the start of a process, not to a worker that runs.

use super::super::config::{ConsumerConfig, IsolationLevel};
use super::super::raw::{
    Client, Code, GroupMember, Isolation, Kind, OffsetSpec, PartitionList, Queue, Reply, TopicDescription,
    TroubleKind,
};
use super::super::reaper;
use crate::fault::Fault;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_recovery::{ErrorClass, NextOffset, TopicId, TopicPartition};

/// What a partition's log holds: `start` is its oldest offset, `end` the one that is written next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// The oldest offset that is there.
    pub start: NextOffset,
    /// The offset that the next record gets.
    pub end: NextOffset,
}

/// What [`Lookup::find`] found.
pub(crate) struct Found {
    pub(crate) partitions: Vec<TopicPartition>,
    pub(crate) missing: Vec<String>,
}

/// Asks the cluster.
pub struct Lookup {
    replies: Option<Queue>,
    client: Option<Arc<Client>>,
    group_id: String,
    brokers: String,
    deadline: Instant,
}

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// One attempt waits this long at most, so that a lost answer costs an attempt and not the deadline.
const ATTEMPT: Duration = Duration::from_secs(5);
/// A broker that refuses the client is asked again for this long: one that starts may not know its users yet.
const REFUSED_FOR: Duration = Duration::from_secs(2);
/// A port that seems to speak another protocol, for this long: a broker that starts or ends looks the same.
const OTHER_PROTOCOL_FOR: Duration = Duration::from_secs(4);
/// So many members of a group are named.
const MEMBERS_NAMED: usize = 5;
/// A topic counts as missing when the cluster says so for this long: a new one travels through the metadata.
pub(crate) const MISSING_FOR: Duration = Duration::from_secs(2);

impl Lookup {
    /// A client for questions; it contacts the cluster with the first. All questions together may take until
    /// `deadline`.
    pub fn new(config: &ConsumerConfig, deadline: Duration) -> Result<Lookup, Fault> {
        // So that the group's offsets are those behind every transaction that is ending (no record is read here).
        let config = ConsumerConfig { isolation: IsolationLevel::ReadCommitted, ..config.clone() };
        let client = Client::new(Kind::Consumer, &config.properties("-start", 1), 0)
            .map_err(|error| Fault::new(ErrorClass::Config, format!("the kafka consumer: {error}")))?;
        Ok(Lookup {
            replies: Some(Queue::new(&client)),
            client: Some(client),
            group_id: config.group_id.clone(),
            brokers: config.connection.brokers.join(","),
            deadline: Instant::now() + deadline,
        })
    }

    fn client(&self) -> &Client {
        self.client.as_ref().expect("the client is there until the look-up is dropped")
    }

    /// The id of the cluster, drawn when it was made.
    pub(crate) fn cluster_id(&self) -> Result<String, Fault> {
        let mut pauses = Pauses::new(self.deadline);
        loop {
            if let Some(id) = self.client().cluster_id(ATTEMPT.min(pauses.left())) {
                return Ok(id);
            }
            self.refusal(Code::TIMED_OUT)?;
            pauses.pause(|| self.unavailable("the id of its cluster", Code::TIMED_OUT))?;
        }
    }

    /// The partitions of the topics, sorted. Topics that do not exist are listed in one fault (66); a pattern
    /// is no topic.
    pub fn partitions(&self, topics: &[String]) -> Result<Vec<TopicPartition>, Fault> {
        let found = self.find(topics, MISSING_FOR)?;
        if !found.missing.is_empty() {
            return Err(Fault::new(
                ErrorClass::Missing,
                format!("these topics do not exist on {}: {}", self.brokers, found.missing.join(", ")),
            ));
        }
        Ok(found.partitions)
    }

    /// The partitions of the topics, sorted, and the topics of which the cluster says for as long as `missing_for` that they do
    /// not exist.
    pub(crate) fn find(&self, topics: &[String], missing_for: Duration) -> Result<Found, Fault> {
        let patterns: Vec<&str> =
            topics.iter().map(String::as_str).filter(|topic| is_pattern(topic)).collect();
        if !patterns.is_empty() {
            return Err(Fault::new(
                ErrorClass::Config,
                format!("topic patterns are not supported, name each topic: {}", patterns.join(", ")),
            ));
        }
        let mut partitions = Vec::new();
        let mut missing = Vec::new();
        let begin = Instant::now();
        let mut pauses = Pauses::new(self.deadline);
        for topic in topics {
            loop {
                let error = match self.client().metadata(Some(topic), ATTEMPT.min(pauses.left())) {
                    Ok(answer) => match answer.into_iter().find(|one| one.name == *topic) {
                        Some(one) if one.error.is_ok() && !one.partitions.is_empty() => {
                            partitions.extend(
                                one.partitions.iter().map(|number| TopicPartition::new(topic, *number)),
                            );
                            break;
                        }
                        Some(one) if one.error.is_ok() => Code::LEADER_NOT_AVAILABLE,
                        Some(one) => one.error,
                        None => Code::UNKNOWN_TOPIC_OR_PART,
                    },
                    Err(error) => error,
                };
                if error.is_denied() {
                    return Err(denied(&format!("topic `{topic}` (operation Describe)"), error));
                }
                if error == Code::TOPIC_EXCEPTION {
                    return Err(Fault::new(
                        ErrorClass::Config,
                        format!("`{topic}` is no name for a topic: {error}"),
                    ));
                }
                if error.is_missing() && begin.elapsed() >= missing_for {
                    missing.push(topic.clone());
                    break;
                }
                self.refusal(error)?;
                pauses.pause(|| self.unavailable(&format!("the partitions of topic `{topic}`"), error))?;
            }
        }
        partitions.sort();
        partitions.dedup();
        Ok(Found { partitions, missing })
    }

    /// The ids of the topics, where the brokers tell them.
    pub fn topic_ids(&mut self, topics: &[String]) -> Result<BTreeMap<Arc<str>, TopicId>, Fault> {
        let mut pauses = Pauses::new(self.deadline);
        let mut tag = 0;
        loop {
            tag += 1;
            let timeout = ATTEMPT.min(pauses.left());
            let replies = self.replies.as_mut().expect("the queue is there until the look-up is dropped");
            let asked = replies.ask_topics(topics.iter().map(String::as_str), timeout, tag);
            let answer = answer_to(asked, replies, timeout, |reply| match reply {
                Reply::Topics { tag: of, result } if of == tag => Some(result),
                _ => None,
            });
            let error = match answer {
                Err(error) => error,
                Ok(found) => match found.iter().find(|topic| !topic.error.is_ok()) {
                    Some(topic) => format!("topic `{}`: {}", topic.name, topic.error),
                    None => {
                        let known = |topic: TopicDescription| Some((Arc::from(topic.name), topic.id?));
                        return Ok(found.into_iter().filter_map(known).collect());
                    }
                },
            };
            self.refusal(Code::TIMED_OUT)?;
            pauses.pause(|| self.unavailable_text("the ids of the topics", &error))?;
        }
    }

    /// The group's committed offsets; a partition without one is not in the answer.
    pub fn committed(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, NextOffset>, Fault> {
        // L58
        let mut pauses = Pauses::new(self.deadline);
        loop {
            let mut list = PartitionList::new(partitions.iter().map(|partition| (partition, -1001)));
            let answer = self.client().committed(&mut list, ATTEMPT.min(pauses.left()));
            let elements = list.elements();
            let error =
                answer.err().or_else(|| elements.iter().map(|one| one.error).find(|code| !code.is_ok()));
            match error {
                None => {
                    return Ok(elements
                        .into_iter()
                        .filter(|one| one.offset >= 0)
                        .map(|one| (one.partition, NextOffset(one.offset)))
                        .collect());
                }
                Some(code) if code.is_denied() => {
                    return Err(denied(&format!("group `{}` (operation Describe)", self.group_id), code));
                }
                Some(code) => {
                    self.refusal(code)?;
                    let what = format!("the committed offsets of group `{}`", self.group_id);
                    tracing::debug!(error = ?code, group = self.group_id, "committed offsets are asked for again");
                    pauses.pause(|| self.unavailable(&what, code))?;
                }
            }
        }
    }

    /// Refuses a group that has members: they read the same partitions, and the coordinator takes no offsets from
    /// anybody else while they are there.
    pub fn refuse_members(&mut self) -> Result<(), Fault> {
        let mut pauses = Pauses::new(self.deadline);
        let mut tag = 0;
        loop {
            tag += 1;
            let timeout = ATTEMPT.min(pauses.left());
            let replies = self.replies.as_mut().expect("the queue is there until the look-up is dropped");
            let asked = replies.ask_members(&self.group_id, timeout, tag);
            let answer = match asked {
                Err(text) => return Err(Fault::new(ErrorClass::Config, text)),
                Ok(()) => wait_for(replies, timeout, |reply| match reply {
                    Reply::Members { tag: of, result } if of == tag => Some(result),
                    _ => None,
                }),
            };
            let code = match answer.unwrap_or(Err(Code::TIMED_OUT)) {
                Ok(members) if members.is_empty() => return Ok(()),
                Ok(members) => return Err(self.has_members(&members)),
                Err(code) => code,
            };
            match code {
                Code::UNSUPPORTED_FEATURE => {
                    tracing::debug!(group = self.group_id, "the brokers do not tell the members of a group");
                    return Ok(());
                }
                Code::INVALID_ARG => {
                    let text = format!("`{}` is a group of something else than consumers", self.group_id);
                    return Err(Fault::new(ErrorClass::Config, text));
                }
                code if code.is_denied() => {
                    return Err(denied(&format!("group `{}` (operation Describe)", self.group_id), code));
                }
                code => {
                    self.refusal(code)?;
                    let what = format!("the members of group `{}`", self.group_id);
                    pauses.pause(|| self.unavailable(&what, code))?;
                }
            }
        }
    }

    fn has_members(&self, members: &[GroupMember]) -> Fault {
        let names: Vec<String> = members.iter().take(MEMBERS_NAMED).map(ToString::to_string).collect();
        let more = match members.len().saturating_sub(MEMBERS_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Fault::new(
            ErrorClass::TryAgain,
            format!(
                "group `{}` has members that read the same partitions: {}{more}; stop them or take another group_id (one that was killed leaves after its session timeout)",
                self.group_id,
                names.join(", ")
            ),
        )
        .code("GROUP_HAS_MEMBERS")
    }

    /// Start and end of each partition's log (the end counts open transactions).
    pub fn bounds(
        &mut self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, LogBounds>, Fault> {
        let starts = self.offsets(partitions, OffsetSpec::Earliest, Isolation::Uncommitted)?;
        let ends = self.offsets(partitions, OffsetSpec::Latest, Isolation::Uncommitted)?;
        Ok(partitions
            .iter()
            .map(|partition| {
                let start = starts[partition];
                // Records may be deleted between the two questions.
                let end = ends[partition].max(start);
                (partition.clone(), LogBounds { start: NextOffset(start), end: NextOffset(end) })
            })
            .collect())
    }

    /// The end of each partition for readers with `read_committed`: where the oldest open transaction begins.
    pub(crate) fn stable_ends(
        &mut self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, NextOffset>, Fault> {
        let ends = self.offsets(partitions, OffsetSpec::Latest, Isolation::Committed)?;
        Ok(ends.into_iter().map(|(partition, end)| (partition, NextOffset(end))).collect())
    }

    /// The first offset of each partition whose record is not older than this (milliseconds since the Unix epoch, never
    /// negative); `None` where all are.
    pub fn at_time(
        &mut self,
        partitions: &[TopicPartition],
        milliseconds: i64,
    ) -> Result<BTreeMap<TopicPartition, Option<NextOffset>>, Fault> {
        let found = self.offsets(partitions, OffsetSpec::Timestamp(milliseconds), Isolation::Uncommitted)?;
        let known = |offset: i64| (offset >= 0).then_some(NextOffset(offset));
        Ok(found.into_iter().map(|(partition, offset)| (partition, known(offset))).collect())
    }

    /// Sets the group's offsets, also to lower ones; the group must have no members.
    pub fn set_group(&mut self, offsets: &[(TopicPartition, NextOffset)]) -> Result<(), Fault> {
        let mut pauses = Pauses::new(self.deadline);
        let mut tag = 0;
        loop {
            tag += 1;
            let timeout = ATTEMPT.min(pauses.left());
            let list = PartitionList::new(offsets.iter().map(|(partition, next)| (partition, next.0)));
            let replies = self.replies.as_mut().expect("the queue is there until the look-up is dropped");
            let code = match replies.commit(&list, tag) {
                Err(code) => code,
                Ok(()) => wait_for(replies, timeout, |reply| match reply {
                    Reply::Commit { tag: of, error, offsets } if of == tag => {
                        let refused = offsets.iter().map(|one| one.error).find(|code| !code.is_ok());
                        Some(refused.unwrap_or(error))
                    }
                    _ => None,
                })
                .unwrap_or(Code::TIMED_OUT),
            };
            if code.is_ok() {
                return Ok(());
            }
            if code.is_denied() {
                return Err(denied(&format!("group `{}` (operation Read)", self.group_id), code));
            }
            // Setting them again does no harm, so an answer that was lost is no question.
            if !code.is_transient() {
                let text = format!("the brokers do not take offsets of group `{}`: {code}", self.group_id);
                return Err(Fault::new(ErrorClass::TryAgain, text));
            }
            self.refusal(code)?;
            let what = format!("the offsets of group `{}`", self.group_id);
            pauses.pause(|| self.unavailable(&what, code))?;
        }
    }

    fn offsets(
        &mut self,
        partitions: &[TopicPartition],
        spec: OffsetSpec,
        isolation: Isolation,
    ) -> Result<BTreeMap<TopicPartition, i64>, Fault> {
        let mut known = BTreeMap::new();
        let mut pauses = Pauses::new(self.deadline);
        let mut tag = 0;
        loop {
            let open: Vec<&TopicPartition> =
                partitions.iter().filter(|partition| !known.contains_key(*partition)).collect();
            if open.is_empty() {
                return Ok(known);
            }
            tag += 1;
            let timeout = ATTEMPT.min(pauses.left());
            let leaders = find_leaders(self.client(), &open, timeout);
            let replies = self.replies.as_mut().expect("the queue is there until the look-up is dropped");
            let what = |open: &[&TopicPartition]| {
                let names: Vec<String> = open.iter().map(ToString::to_string).collect();
                format!("the offsets of {}", names.join(", "))
            };
            let answer = match leaders {
                Err((topic, code)) if code.is_denied() => {
                    return Err(denied(&format!("topic `{topic}` (operation Describe)"), code));
                }
                Err((topic, code)) => Err(format!("topic `{topic}`: {code:?}: {code}")),
                Ok(()) => {
                    let asked = replies.ask_offsets(open.iter().copied(), spec, isolation, timeout, tag);
                    answer_to(asked, replies, timeout, |reply| match reply {
                        Reply::Offsets { tag: of, result } if of == tag => Some(result),
                        _ => None,
                    })
                }
            };
            let error = match answer {
                Err(error) => error,
                Ok(offsets) => {
                    let mut error = String::new();
                    for one in offsets {
                        // Behind the last record there is no time; every log has a start and an end.
                        let none_is_fine = matches!(spec, OffsetSpec::Timestamp(_));
                        if one.error.is_ok() && (one.offset >= 0 || none_is_fine) {
                            known.insert(one.partition, one.offset);
                        } else if one.error.is_denied() {
                            let what = format!("topic `{}` (operation Describe)", one.partition.topic);
                            return Err(denied(&what, one.error));
                        } else {
                            error = format!("{:?}: {}", one.error, one.error);
                        }
                    }
                    if error.is_empty() {
                        continue;
                    }
                    error
                }
            };
            self.refusal(Code::TIMED_OUT)?;
            pauses.pause(|| self.unavailable_text(&what(&open), &error))?;
        }
    }

    /// A fault when the client could not ask because of something that does not pass by waiting. `code` is what became
    /// of the question: an error that a broker answered with is no matter of the connection.
    fn refusal(&self, code: Code) -> Result<(), Fault> {
        if !code.is_from_the_client() {
            return Ok(());
        }
        let troubles = self.client().troubles();
        let Some(worst) = troubles.first() else { return Ok(()) };
        let (lasted, class) = match worst.kind {
            TroubleKind::Away => return Ok(()),
            TroubleKind::OtherProtocol => (OTHER_PROTOCOL_FOR, ErrorClass::Unavailable),
            TroubleKind::Refused => (REFUSED_FOR, ErrorClass::Config),
            TroubleKind::NoToken => (Duration::ZERO, ErrorClass::Config),
        };
        if !worst.has_lasted(lasted) {
            return Ok(());
        }
        let text = format!("kafka cannot be used: {worst} (see `security`); nothing was read");
        Err(Fault::new(class, text))
    }

    fn unavailable(&self, what: &str, code: Code) -> Fault {
        self.unavailable_text(what, &format!("{code:?}: {code}"))
    }

    fn unavailable_text(&self, what: &str, error: &str) -> Fault {
        let troubles: Vec<String> = self.client().troubles().iter().map(ToString::to_string).collect();
        let error = if troubles.is_empty() { error.to_owned() } else { troubles.join("; ") };
        Fault::new(
            ErrorClass::Unavailable,
            format!(
                "kafka at {} did not answer in time for {what} ({error}); nothing was read",
                self.brokers
            ),
        )
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        self.replies = None;
        let client = self.client.take();
        reaper::close("start client".to_owned(), move || drop(client));
    }
}

/// Sees to it that the client knows the leaders of these partitions; else the topic and why not.
fn find_leaders(
    client: &Client,
    partitions: &[&TopicPartition],
    timeout: Duration,
) -> Result<(), (Arc<str>, Code)> {
    let topics: BTreeSet<&Arc<str>> = partitions.iter().map(|partition| &partition.topic).collect();
    for topic in topics {
        let found = client.metadata(Some(topic), timeout).and_then(|answer| {
            let found = answer.into_iter().find(|one| *one.name == **topic);
            let found = found.ok_or(Code::UNKNOWN_TOPIC_OR_PART)?;
            found.error.ok()?;
            if found.is_led { Ok(()) } else { Err(Code::LEADER_NOT_AVAILABLE) }
        });
        found.map_err(|code| (topic.clone(), code))?;
    }
    Ok(())
}

/// What came of a question, if it could be asked.
fn answer_to<T>(
    asked: Result<(), String>,
    replies: &mut Queue,
    timeout: Duration,
    pick: impl Fn(Reply) -> Option<Result<T, String>>,
) -> Result<T, String> {
    asked?;
    wait_for(replies, timeout, pick).unwrap_or_else(|| Err("no answer".to_owned()))
}

/// Waits for the answer that `pick` takes; `None` when there is none.
fn wait_for<T>(replies: &mut Queue, timeout: Duration, pick: impl Fn(Reply) -> Option<T>) -> Option<T> {
    // The library answers every question itself when its time is over; the second is for its thread.
    let end = Instant::now() + timeout + Duration::from_secs(1);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match replies.reply(left) {
            Some(reply) => {
                if let Some(picked) = pick(reply) {
                    return Some(picked);
                }
            }
            None if left.is_zero() => return None,
            None => {}
        }
    }
}

fn denied(what: &str, code: Code) -> Fault {
    Fault::new(ErrorClass::Config, format!("{what}: {code}; grant it, or use other credentials"))
}

/// Characters that no topic name has, but patterns do.
fn is_pattern(topic: &str) -> bool {
    topic.starts_with('^')
        || topic.chars().any(|c| matches!(c, '*' | '[' | ']' | '(' | ')' | '|' | '+' | '?' | '$'))
}

/// Growing pauses up to a deadline.
struct Pauses {
    next: Duration,
    deadline: Instant,
}

impl Pauses {
    fn new(deadline: Instant) -> Pauses {
        Pauses { next: PAUSE_MIN, deadline }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    /// Waits, unless the deadline has passed.
    fn pause(&mut self, late: impl FnOnce() -> Fault) -> Result<(), Fault> {
        if Instant::now() >= self.deadline {
            return Err(late());
        }
        std::thread::sleep(self.next.min(self.left()));
        self.next = (self.next * 2).min(PAUSE_MAX);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_not_taken_for_a_topic() {
        assert!(["^orders.*", "orders*", "a|b", "x[0-9]"].iter().all(|topic| is_pattern(topic)));
        assert!(!["orders.in", "a_b-c.D9"].iter().any(|topic| is_pattern(topic)));
    }
}

//! [`TransactionalProducer`]: records and offsets of one transaction after the other, all or nothing.
//!
//! It belongs to one thread, and every call may take as long as a broker does: the drivers of the machines in
//! [`tidegate_recovery::exactly_once`] call it. What it promises them:
//!
//! - **`Ok` means that the broker said so** (for a record: that the client has it; [`TransactionalProducer::commit`] tells about all).
//! - **[`TransactionTrouble::Fenced`] is certain.** A transaction that took longer than `transaction.timeout.ms` is ended by the
//!   coordinator, which then answers as it does to a fenced producer; so from that moment on the answer counts as unclear.
//! - **Whatever else went wrong is [`TransactionTrouble::Unclear`]**, and the instance is to be dropped. The client library sends
//!   requests again by itself when an answer is missing, and a request that arrives late could end the next transaction. So an instance
//!   that missed an answer, or lost a connection, finishes its transaction and begins no other.
//! - **A record that can never be written** fails its transaction; [`TransactionTrouble::Refused`] names its row. A broker refuses whole
//!   batches, and not every broker says which record is to blame: then it is the one whose size or timestamp explains it.
//! - **Dropping ends nothing.** Whoever initialises the id next ends what was open; an abort that arrives late could end more.
//!
//! `message.timeout.ms` stays 0 (which the library allows beside any `transaction.timeout.ms`): a record is given up with its
//! transaction and never alone.

use super::config::ProducerConfig;
use super::produce::{message_error, new_client, no_topic, size_of, timestamp_to_write};
use super::raw::{Client, Code, Message, Outgoing, PartitionList, Queue, Topic, TransactionError};
use super::reaper::{self, Open};
use crate::clock::wall_ms;
use crate::fault::Fault;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_recovery::{ErrorClass, NextOffset, TopicPartition};

/// Why a call of a [`TransactionalProducer`] was not done. The instance must be dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionTrouble {
    /// Another instance has the id now.
    Fenced(String),
    /// It may have happened, or may still happen.
    Unclear(String),
    /// A row that no broker will ever take.
    Refused {
        /// As it was given to [`TransactionalProducer::produce`].
        row: u64,
        /// What the broker or the client said.
        what: String,
    },
    /// Waiting does not help: the id, a topic or the group is denied, a topic is gone, the broker has no transactions.
    Denied(Fault),
}

impl std::fmt::Display for TransactionTrouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TransactionTrouble::Fenced(what) => write!(f, "fenced: {what}"),
            TransactionTrouble::Unclear(what) => f.write_str(what),
            TransactionTrouble::Refused { row, what } => write!(f, "row {row} can never be written: {what}"),
            TransactionTrouble::Denied(fault) => fault.fmt(f),
        }
    }
}

/// A producer with a `transactional.id`.
pub struct TransactionalProducer {
    id: String,
    /// Topics and queue go before the client; see `Drop`.
    topics: Vec<(String, Topic)>,
    reports: Option<Queue>,
    client: Option<Arc<Client>>,
    /// How long a transaction may take.
    timeout: Duration,
    /// How long one answer is waited for.
    answer_timeout: Duration,
    /// Of the transaction that is open.
    began: Option<Instant>,
    /// What the client had missed when it was initialised.
    unanswered: u64,
    /// Says to the reaper that the client is not closed.
    open: Option<Open>,
    /// The records of the open transaction, by their tags: the library does not tell the timestamp of one that was not written.
    sent: Vec<Sent>,
    refused: Vec<RefusedRow>,
    /// The first record that was not written for another reason.
    failed: Option<Failed>,
}

/// Why something was not done.
#[derive(Clone)]
struct Failed {
    code: Code,
    /// Its place among the topics, where it is about one.
    topic: Option<usize>,
    what: String,
}

struct RefusedRow {
    row: u64,
    code: Code,
    what: String,
    bytes: usize,
    timestamp: i64,
}

/// A record that the client was given.
#[derive(Clone, Copy)]
struct Sent {
    row: u64,
    /// Its place among the topics.
    topic: usize,
    timestamp: i64,
}

/// So often it is looked whether the client has given up, while records are on their way.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a new client may take to connect before it is asked for more.
const CONNECTED_WITHIN: Duration = Duration::from_secs(1);
/// So often it is looked whether a full client has room again, of which it says nothing: it sends hundreds of records meanwhile, of
/// the thousands that it holds.
const ROOM_EVERY: Duration = Duration::from_millis(2);
/// What the other records of a refused batch may take to come back.
const SETTLE: Duration = Duration::from_secs(5);

impl TransactionalProducer {
    /// Makes the client and initialises its transactions: whatever the id had open is aborted, and whoever had it is fenced.
    /// The answer is waited for at most `timeout`, and so are later ones; records have the time that their transaction has.
    pub fn initialise(
        config: &ProducerConfig,
        id: &str,
        timeout: Duration,
    ) -> Result<TransactionalProducer, TransactionTrouble> {
        let properties = config.transactional_properties(id);
        let transaction_timeout = properties
            .get("transaction.timeout.ms")
            .and_then(|ms| ms.parse().ok())
            .map_or(Duration::from_secs(60), Duration::from_millis);
        let client = new_client(&properties).map_err(TransactionTrouble::Denied)?;
        let mut producer = TransactionalProducer {
            id: id.to_owned(),
            topics: Vec::new(),
            reports: Some(Queue::of_producer(&client)),
            client: Some(client.clone()),
            timeout: transaction_timeout,
            answer_timeout: timeout,
            began: None,
            unanswered: 0,
            open: Some(reaper::open(format!("producer {id}"))),
            sent: Vec::new(),
            refused: Vec::new(),
            failed: None,
        };
        // The library looks for the coordinator at once and, as long as it is not connected, again after half a second only. When
        // nobody answers, the next call says so.
        let begin = Instant::now();
        client.cluster_id(timeout.min(CONNECTED_WITHIN));
        let left = timeout.saturating_sub(begin.elapsed());
        client.init_transactions(left).map_err(|error| producer.trouble(error, "initialise"))?;
        producer.unanswered = client.unanswered();
        Ok(producer)
    }

    /// Begins a transaction.
    pub fn begin(&mut self) -> Result<(), TransactionTrouble> {
        let client = self.client();
        if client.unanswered() != self.unanswered {
            return Err(TransactionTrouble::Unclear(format!(
                "an answer to the producer `{}` went missing, so it begins nothing more",
                self.id
            )));
        }
        client.begin_transaction().map_err(|error| self.trouble(error, "begin"))?;
        self.began = Some(Instant::now());
        self.sent.clear();
        Ok(())
    }

    /// Hands one record to the client; waits while the client has no room. Without a partition the client's partitioner chooses, without a
    /// timestamp it is the time of this call.
    #[allow(clippy::too_many_arguments)]
    pub fn produce<'h>(
        &mut self,
        topic: &str,
        partition: Option<i32>,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        timestamp: Option<i64>,
        headers: impl ExactSizeIterator<Item = (&'h str, Option<&'h [u8]>)> + Clone,
        row: u64,
    ) -> Result<(), TransactionTrouble> {
        let timestamp =
            timestamp_to_write(timestamp).map_err(|what| TransactionTrouble::Refused { row, what })?;
        let place = self.topic(topic)?;
        let tag = self.sent.len();
        let record = Outgoing { partition, key, value, timestamp, tag };
        loop {
            match self.topics[place].1.produce(&record, headers.clone()) {
                Ok(()) => {
                    self.sent.push(Sent { row, topic: place, timestamp });
                    return Ok(());
                }
                Err(Code::QUEUE_FULL) => {
                    self.serve(ROOM_EVERY);
                    self.look()?;
                }
                Err(code) => {
                    let what = format!("topic `{topic}`: {code:?}: {code}");
                    if code.refuses_a_batch() || matches!(code, Code::INVALID_ARG | Code::UNKNOWN_PARTITION) {
                        return Err(TransactionTrouble::Refused { row, what });
                    }
                    return Err(self.trouble_with(TransactionError::new(code, what), Some(place), "produce"));
                }
            }
        }
    }

    /// Makes the group's offsets part of the transaction.
    pub fn send_offsets(
        &mut self,
        group: &str,
        offsets: &[(TopicPartition, NextOffset)],
    ) -> Result<(), TransactionTrouble> {
        let list = PartitionList::new(offsets.iter().map(|(partition, next)| (partition, next.0)));
        self.client()
            .send_offsets_to_transaction(&list, group, self.left().min(self.answer_timeout))
            .map_err(|error| self.trouble(error, &format!("send the offsets of group `{group}`")))
    }

    /// Waits until every record is written and commits.
    pub fn commit(&mut self) -> Result<(), TransactionTrouble> {
        while !self.client().flush(self.left().min(LOOK_EVERY)) {
            self.serve(Duration::ZERO);
            self.look()?;
        }
        let timeout = self.left().min(self.answer_timeout);
        self.client().commit_transaction(timeout).map_err(|error| self.trouble(error, "commit"))?;
        self.began = None;
        Ok(())
    }

    fn client(&self) -> &Arc<Client> {
        self.client.as_ref().expect("the client is there until the producer is dropped")
    }

    /// What is left of the time that the open transaction may take.
    fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.began.map_or(Duration::ZERO, |began| began.elapsed()))
    }

    fn topic(&mut self, name: &str) -> Result<usize, TransactionTrouble> {
        // A flow has few topics.
        if let Some(index) = self.topics.iter().position(|(known, _)| known == name) {
            return Ok(index);
        }
        let topic = Topic::new(self.client(), name)
            .map_err(|code| TransactionTrouble::Denied(no_topic(name, code)))?;
        self.topics.push((name.to_owned(), topic));
        Ok(self.topics.len() - 1)
    }

    /// An error when the transaction's time is over, or when a record was not written.
    fn look(&mut self) -> Result<(), TransactionTrouble> {
        // An instance that gave up for good keeps its records.
        if self.failed.is_some() || !self.refused.is_empty() || self.client().fatal().is_some() {
            let error = TransactionError::new(Code::FATAL, "a record was not written");
            return Err(self.trouble(error, "produce"));
        }
        if !self.left().is_zero() {
            return Ok(());
        }
        let what = "the records were not acknowledged within transaction.timeout.ms";
        Err(self.trouble(TransactionError::new(Code::TIMED_OUT, what), "produce"))
    }

    /// Takes the reports of records that were not written; waits at most `timeout` for the first.
    fn serve(&mut self, timeout: Duration) {
        let TransactionalProducer { reports, sent, refused, failed, .. } = self;
        let reports = reports.as_mut().expect("the queue is there until the producer is dropped");
        reports.delivery_reports_within(timeout, |message: &Message, tag| {
            let Sent { row, topic, timestamp } = sent[tag];
            match message_error(message) {
                None => {}
                Some((code, what)) if code.refuses_a_batch() => {
                    let bytes = size_of(message.key(), message.value());
                    refused.push(RefusedRow { row, code, what, bytes, timestamp });
                }
                // Records that are thrown away because of another one come with it, and not always behind it.
                Some((code, what)) => match failed {
                    Some(known) if !known.code.is_purged() || code.is_purged() => {}
                    _ => *failed = Some(Failed { code, topic: Some(topic), what }),
                },
            }
        });
    }

    fn trouble(&mut self, error: TransactionError, what: &str) -> TransactionTrouble {
        self.trouble_with(error, None, what)
    }

    /// What an error means; `topic` is the one that it is about, if that is known.
    fn trouble_with(
        &mut self,
        error: TransactionError,
        topic: Option<usize>,
        what: &str,
    ) -> TransactionTrouble {
        // What is to blame may be reported behind the error, and all that the client throws away comes back at once.
        let end = Instant::now() + SETTLE;
        while (self.failed.is_some() || !self.refused.is_empty())
            && self.client().on_their_way() > 0
            && Instant::now() < end
        {
            self.serve(ROOM_EVERY);
        }
        let client = self.client();
        let text = format!("producer `{}` could not {what}: {error}", self.id);
        let gave_up = client.fatal_code();
        if gave_up == Some(Code::FENCED) || error.code == Code::FENCED {
            return if self.left().is_zero() {
                TransactionTrouble::Unclear(text)
            } else {
                TransactionTrouble::Fenced(text)
            };
        }
        if let Some(blamed) = to_blame(&self.refused, wall_ms()) {
            return TransactionTrouble::Refused {
                row: blamed.row,
                what: format!("{:?}: {}", blamed.code, blamed.what),
            };
        }
        // Records that are thrown away say only that something else went wrong; a client that did so says what.
        let abandoned = self.failed.as_ref().filter(|failed| failed.code.is_purged());
        let abandoned = abandoned.and_then(|_| client.why_abandoned());
        let said = |error: &TransactionError, topic| Failed {
            code: error.code,
            topic,
            what: format!("could not {what}: {error}"),
        };
        let causes = [
            self.failed.clone(),
            abandoned.map(|error| said(&error, None)),
            gave_up.map(|code| said(&TransactionError::new(code, client.fatal().unwrap_or_default()), None)),
            Some(said(&error, topic)),
        ];
        if let Some(fault) = causes.iter().flatten().find_map(|cause| self.denied(cause)) {
            return TransactionTrouble::Denied(fault);
        }
        let heard: Vec<String> = client.troubles().iter().map(ToString::to_string).collect();
        let heard = if heard.is_empty() { String::new() } else { format!(" ({})", heard.join("; ")) };
        TransactionTrouble::Unclear(format!("{text}{heard}"))
    }

    /// What waiting does not help against.
    fn denied(&self, cause: &Failed) -> Option<Fault> {
        let (id, text) = (&self.id, &cause.what);
        let topic = || match cause.topic {
            Some(place) => format!("topic `{}`", self.topics[place].0),
            None => {
                let all: Vec<String> = self.topics.iter().map(|(name, _)| format!("`{name}`")).collect();
                format!("topic {}", all.join(" or "))
            }
        };
        let config = |message: String| Some(Fault::new(ErrorClass::Config, message));
        match cause.code {
            Code::TRANSACTIONAL_ID_AUTHORIZATION_FAILED => config(format!(
                "the transactional id `{id}` may not be used by this client (operations Describe and Write on TransactionalId `{id}`, or the prefix `tidegate.`): {text}; grant it, or use other credentials"
            )),
            Code::UNSUPPORTED_FEATURE => config(format!(
                "the broker has no transactions, which `delivery: exactly_once` needs: {text}; use Kafka 0.11 or newer, or at_least_once"
            )),
            Code::INVALID_TRANSACTION_TIMEOUT => config(format!(
                "the broker does not allow transactions of {} ms (`transaction.timeout.ms`): {text}; it must not be above the broker's transaction.max.timeout.ms",
                self.timeout.as_millis()
            )),
            Code::TOPIC_AUTHORIZATION_FAILED => config(format!(
                "{} may not be written by this client (operation Write): {text}; grant it, or use other credentials",
                topic()
            )),
            Code::GROUP_AUTHORIZATION_FAILED => config(format!(
                "the group may not be used by this client (operation Read on the group): {text}; grant it, or use other credentials"
            )),
            code if code.is_denied() => config(format!(
                "the producer `{id}` may not be used by this client: {text}; grant it, or use other credentials"
            )),
            code if code.is_missing() => Some(Fault::new(
                ErrorClass::Missing,
                format!("{} does not exist any more (operation Write): {text}", topic()),
            )),
            _ => None,
        }
    }
}

impl Drop for TransactionalProducer {
    fn drop(&mut self) {
        // Topics and queue live inside the client and go first, here.
        self.topics.clear();
        self.reports = None;
        if let Some((client, open)) = self.client.take().zip(self.open.take()) {
            reaper::close_open(open, move || {
                client.purge();
                drop(client);
            });
        }
    }
}

/// The row of a refused batch that is to blame.
fn to_blame(refused: &[RefusedRow], now_ms: i64) -> Option<&RefusedRow> {
    // A newer broker names the records that it refuses and says of the others only that they lay beside them.
    let named: Vec<&RefusedRow> =
        refused.iter().filter(|row| row.code != Code::INVALID_DIFFERENT_RECORD).collect();
    let Some(first) = named.first().copied() else { return refused.first() };
    match first.code {
        Code::MSG_SIZE_TOO_LARGE | Code::RECORD_LIST_TOO_LARGE => {
            named.into_iter().rev().max_by_key(|row| row.bytes)
        }
        // A topic may refuse what is too far ahead or too long ago; by default only the first.
        Code::INVALID_TIMESTAMP => match named.iter().copied().max_by_key(|row| row.timestamp) {
            Some(latest) if latest.timestamp > now_ms => Some(latest),
            _ => named.into_iter().filter(|row| row.timestamp != 0).min_by_key(|row| row.timestamp),
        },
        _ => Some(first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(row: u64, code: Code, bytes: usize, timestamp: i64) -> RefusedRow {
        RefusedRow { row, code, what: String::new(), bytes, timestamp }
    }

    #[test]
    fn the_row_that_explains_the_refusal_is_to_blame() {
        let blamed = |rows: &[RefusedRow]| to_blame(rows, 1_000).map(|row| row.row);
        let (size, time) = (Code::MSG_SIZE_TOO_LARGE, Code::INVALID_TIMESTAMP);
        assert_eq!(blamed(&[]), None);
        assert_eq!(
            blamed(&[refused(1, size, 10, 0), refused(2, size, 90, 0), refused(3, size, 90, 0)]),
            Some(2)
        );
        assert_eq!(
            blamed(&[refused(1, time, 1, 5), refused(2, time, 1, 5_000), refused(3, time, 1, 0)]),
            Some(2)
        );
        assert_eq!(
            blamed(&[refused(1, time, 1, 700), refused(2, time, 1, 0), refused(3, time, 1, 5)]),
            Some(3)
        );
        let beside = Code::INVALID_DIFFERENT_RECORD;
        assert_eq!(blamed(&[refused(1, beside, 1, 1), refused(2, Code::INVALID_RECORD, 1, 1)]), Some(2));
        // The one that is named was not reported in time.
        assert_eq!(blamed(&[refused(7, beside, 1, 1)]), Some(7));
    }
}

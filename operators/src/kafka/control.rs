//! The control topic: what stands on it is read, and a token is written that proves that the reader saw the end.
//!
//! One partition, compacted only. A transaction that is open hides what lies behind it from a `read_committed` reader, so "the end
//! of the topic" proves nothing: whoever wants to know everything that was published before writes a token and reads until it comes back.

use super::config::{ConsumerConfig, IsolationLevel};
use super::raw::{Client, Code, Kind, Message, PartitionList, Queue};
use super::reaper;
use super::transaction::{TransactionTrouble, TransactionalProducer};
use crate::fault::Fault;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidegate_recovery::exactly_once::{ControlKey, Marker, SeenMarker, Token};
use tidegate_recovery::{ErrorClass, Slot, StoreId, TopicPartition};

/// librdkafka's number for the oldest offset that is there.
const FROM_THE_START: i64 = -2;
/// How long a fetch waits at the broker for something new.
const FETCH_WAIT_MS: u32 = 20;
/// How long the topic's leader is asked for before the topic is read all the same.
const KNOWN_WITHIN: Duration = Duration::from_secs(1);
/// Records that are taken at once.
const AT_ONCE: usize = 500;

/// Writes a token in a transaction of its own.
pub fn write_token(
    producer: &mut TransactionalProducer,
    control_topic: &str,
    store: StoreId,
    slot: Slot,
    token: Token,
) -> Result<(), TransactionTrouble> {
    let (key, value) = (ControlKey::Token(store, slot).to_string(), token.to_string());
    producer.begin()?;
    let none = std::iter::empty();
    producer.produce(control_topic, Some(0), Some(key.as_bytes()), Some(value.as_bytes()), None, none, 0)?;
    producer.commit()
}

/// Reads the topic from its start until the token is seen, and returns the newest marker of every slot of every store.
pub fn read_markers(
    config: &ConsumerConfig,
    control_topic: &str,
    token: Token,
    timeout: Duration,
) -> Result<Vec<SeenMarker>, TransactionTrouble> {
    let end = Instant::now() + timeout;
    let config = ConsumerConfig { isolation: IsolationLevel::ReadCommitted, ..config.clone() };
    let mut properties = config.properties("-markers", 1);
    // The end of a transaction moves the readable end a moment later than it is confirmed, and a broker does not answer a fetch
    // that waits because of that.
    properties.insert("fetch.wait.max.ms".to_owned(), FETCH_WAIT_MS.to_string());
    let client = Client::new(Kind::Consumer, &properties, 0).map_err(|error| {
        TransactionTrouble::Denied(Fault::new(ErrorClass::Config, format!("the kafka consumer: {error}")))
    })?;
    let mut queue = Queue::of_consumer(&client);
    let partition = TopicPartition::new(control_topic, 0);
    // Without a leader the library looks for the oldest offset after half a second only. What is wrong with the topic shows below.
    let known = client.metadata(Some(control_topic), timeout.min(KNOWN_WITHIN));
    let assigned = client.assign(&PartitionList::new([(&partition, FROM_THE_START)]));
    let mut reading = Reading { topic: control_topic, token, markers: BTreeMap::new(), token_seen: false };
    let mut last_error = known.err().or(assigned.err());
    let result = loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let heard: Vec<String> = client.troubles().iter().map(ToString::to_string).collect();
            let error =
                last_error.map(|code| format!(" ({code:?}) {}", heard.join("; "))).unwrap_or_default();
            break Err(TransactionTrouble::Unclear(format!(
                "the token on the control topic `{control_topic}` did not come back within {timeout:?}{error}"
            )));
        }
        let mut messages = Vec::new();
        // Waits for the first; the others are there.
        if queue.consume_within(left, 1, &mut messages) > 0 {
            queue.consume(AT_ONCE, &mut messages);
        }
        match messages.iter().try_for_each(|message| reading.take(message, &mut last_error)) {
            Ok(()) if reading.token_seen => break Ok(()),
            Ok(()) => {}
            Err(fault) => break Err(TransactionTrouble::Denied(fault)),
        }
    };
    drop(queue);
    reaper::close(format!("reader of `{control_topic}`"), move || drop(client));
    result.map(|()| reading.markers.into_values().collect())
}

struct Reading<'a> {
    topic: &'a str,
    token: Token,
    markers: BTreeMap<(StoreId, Slot), SeenMarker>,
    token_seen: bool,
}

impl Reading<'_> {
    fn take(&mut self, message: &Message, last_error: &mut Option<Code>) -> Result<(), Fault> {
        match message.error() {
            None => {}
            Some(Code::PARTITION_EOF) => return Ok(()),
            Some(code) if code.is_denied() => {
                return Err(Fault::new(
                    ErrorClass::Config,
                    format!(
                        "the control topic `{}` may not be read by this client (operation Read): {code}; grant it, or use other credentials",
                        self.topic
                    ),
                ));
            }
            // A topic that is not there may be new: metadata travels.
            Some(code) => {
                *last_error = Some(code);
                return Ok(());
            }
        }
        let Some(key) = message.key().and_then(ControlKey::parse) else {
            tracing::warn!(
                topic = self.topic,
                offset = message.offset(),
                "a record on the control topic is not ours and is left aside"
            );
            return Ok(());
        };
        match (key, message.value()) {
            (ControlKey::Token(..), value) => {
                self.token_seen |= value.and_then(Token::parse) == Some(self.token);
            }
            (ControlKey::Marker(store, slot), None) => {
                self.markers.remove(&(store, slot));
            }
            (ControlKey::Marker(store, slot), Some(value)) => {
                let marker = Marker::parse(value).ok_or_else(|| {
                    Fault::new(
                        ErrorClass::Config,
                        format!(
                            "the marker of {key} on the control topic `{}`, offset {}, is of no version that this build knows: `{}`; use a newer build",
                            self.topic,
                            message.offset(),
                            String::from_utf8_lossy(value)
                        ),
                    )
                })?;
                self.markers.insert((store, slot), SeenMarker { store, slot, marker });
            }
        }
        Ok(())
    }
}

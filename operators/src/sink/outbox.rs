//! Output of exactly-once sinks on its way into the recovery store.
//!
//! A record is encoded once, into the buffer of its commit epoch, and is acknowledged at once: from there on it is a
//! part of the epoch's snapshot, which is durable together with the state and the offsets that belong to it, and is published
//! afterwards. What the topic would refuse is refused here, while the step's `on_error` can still speak.
//!
//! What waits in the buffers counts against `in_flight_bytes`: sources stop polling, and since epochs close by the
//! clock the buffers are written and go.

use crate::element::{Element, Record};
use crate::fault::Fault;
use crate::sink::{Refused, SinkWriter, Ticket};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_recovery::outbox::OutputRow;
use tidegate_recovery::{Epoch, EpochSchedule, ErrorClass, OutputBuffer, StepId};
use timely::scheduling::SyncActivator;

/// What a topic takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicLimits {
    /// The largest batch, in bytes; `None` where the broker does not tell.
    pub record_bytes_max: Option<usize>,
    /// How far a timestamp may lie in the future, in milliseconds; `None` for no limit.
    pub ahead_max_ms: Option<i64>,
}

/// The buffers of one worker, by commit epoch. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct OutboxDesk(Rc<Desk>);

#[derive(Debug, Default)]
struct Desk {
    open: RefCell<BTreeMap<Epoch, OutputBuffer>>,
    bytes: Cell<usize>,
}

impl OutboxDesk {
    /// What this worker has to publish of a commit epoch that is closed.
    pub(crate) fn take(&self, epoch: Epoch) -> OutputBuffer {
        let taken = self.0.open.borrow_mut().remove(&epoch).unwrap_or_default();
        self.0.bytes.set(self.0.bytes.get() - taken.as_bytes().len());
        taken
    }

    /// Bytes that wait for the ends of their epochs.
    pub fn bytes(&self) -> usize {
        self.0.bytes.get()
    }
}

/// Writes the records of one step to one topic, by way of the store.
pub struct OutboxWriter {
    desk: OutboxDesk,
    schedule: EpochSchedule,
    step: StepId,
    topic: String,
    limits: TopicLimits,
    /// The batch that is being taken: its epoch, and how much of it was taken.
    batch: Option<(Ticket, Epoch, usize)>,
    done: Vec<Ticket>,
    refused: Vec<Refused>,
}

impl OutboxWriter {
    /// A writer of `step` to `topic`; epochs end as `schedule` says.
    pub fn new(
        desk: OutboxDesk,
        schedule: EpochSchedule,
        step: &StepId,
        topic: &str,
        limits: TopicLimits,
    ) -> OutboxWriter {
        let (step, topic) = (step.clone(), topic.to_owned());
        OutboxWriter {
            desk,
            schedule,
            step,
            topic,
            limits,
            batch: None,
            done: Vec::new(),
            refused: Vec::new(),
        }
    }

    fn refusal(&self, element: &Element<Record>, now_ms: i64) -> Option<String> {
        let topic = &self.topic;
        if let Some(timestamp) = element.meta.timestamp {
            if timestamp <= 0 {
                return Some(format!(
                    "topic `{topic}`: the timestamp {timestamp} cannot be written: the client would replace it; set another one"
                ));
            }
            if let Some(ahead) = self.limits.ahead_max_ms
                && timestamp.saturating_sub(now_ms) > ahead
            {
                return Some(format!(
                    "topic `{topic}`: the timestamp {timestamp} is more than {ahead} ms ahead of the clock, and the topic takes none such (message.timestamp.after.max.ms)"
                ));
            }
        }
        let limit = self.limits.record_bytes_max?;
        // Only what is large is measured exactly.
        let Record { key, value } = &element.value;
        let headers = element.meta.headers.as_slice();
        let rough = length(key.as_deref()) + length(value.as_deref()) + RECORD_HEAD_MAX;
        if headers.is_empty() && rough + BATCH_HEAD <= limit {
            return None;
        }
        let names =
            headers.iter().map(|header| (header.name.len(), header.value.as_deref().map(<[u8]>::len)));
        let bytes = batch_bytes(key.as_deref(), value.as_deref(), names);
        (bytes > limit).then(|| {
            format!("topic `{topic}`: the record is too large: {bytes} bytes with its frame, and the topic takes {limit} (max.message.bytes)")
        })
    }
}

/// The head of a record batch, format 2: base offset to record count.
const BATCH_HEAD: usize = 61;
/// A record's own frame without headers is never larger than this.
const RECORD_HEAD_MAX: usize = 32;

fn length(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(0, <[u8]>::len)
}

/// Bytes of a batch, format 2 and not compressed, with one record (<https://kafka.apache.org/documentation/#record>).
fn batch_bytes(
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: impl ExactSizeIterator<Item = (usize, Option<usize>)>,
) -> usize {
    let sized = |length: Option<usize>| match length {
        None => 1,
        Some(length) => varint(length) + length,
    };
    // Attributes, timestamp delta, offset delta.
    let mut bytes = 3 + sized(key.map(<[u8]>::len)) + sized(value.map(<[u8]>::len)) + varint(headers.len());
    for (name, value) in headers {
        bytes += sized(Some(name)) + sized(value);
    }
    BATCH_HEAD + varint(bytes) + bytes
}

/// Bytes of a number as a zigzag varint.
fn varint(number: usize) -> usize {
    let zigzag = (number as u64) << 1;
    (64 - zigzag.leading_zeros() as usize).max(1).div_ceil(7)
}

impl SinkWriter for OutboxWriter {
    /// Nothing is waited for, so nobody is to be woken.
    fn wake_with(&mut self, _activator: SyncActivator) {}

    fn open(&mut self, ticket: Ticket, epoch: Epoch) {
        self.batch = Some((ticket, epoch, 0));
    }

    fn submit(&mut self, ticket: Ticket, elements: &[Element<Record>], more: bool) -> Result<usize, Fault> {
        let Some((_, epoch, first)) = self.batch.filter(|(open, ..)| *open == ticket) else {
            return Err(Fault::new(ErrorClass::Internal, "a batch came to an outbox without its epoch"));
        };
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as i64);
        let refused = elements.iter().enumerate().filter_map(|(at, element)| {
            self.refusal(element, now_ms).map(|reason| Refused { ticket, index: first + at, reason })
        });
        let refused: Vec<Refused> = refused.collect();
        let mut next_refused = refused.iter().map(|refused| refused.index - first).peekable();
        let mut open = self.desk.0.open.borrow_mut();
        let buffer = open.entry(self.schedule.commit_at_or_after(epoch)).or_default();
        let before = buffer.as_bytes().len();
        let Some(destination) = buffer.destination(&self.step, &self.topic) else {
            return Err(Fault::new(
                ErrorClass::Internal,
                "a flow writes to more topics than an outbox can name",
            ));
        };
        for (at, element) in elements.iter().enumerate() {
            if next_refused.next_if_eq(&at).is_some() {
                continue;
            }
            let headers = element.meta.headers.as_slice();
            buffer.push(&OutputRow {
                destination,
                partition: None,
                timestamp: element.meta.timestamp,
                key: element.value.key.as_deref(),
                value: element.value.value.as_deref(),
                headers: headers.iter().map(|header| (&*header.name, header.value.as_deref())).collect(),
            });
        }
        self.desk.0.bytes.set(self.desk.0.bytes.get() + buffer.as_bytes().len() - before);
        drop(open);
        self.refused.extend(refused);
        self.batch = Some((ticket, epoch, first + elements.len()));
        if !more {
            self.done.push(ticket);
        }
        Ok(elements.len())
    }

    fn acknowledged(&mut self, tickets: &mut Vec<Ticket>, refused: &mut Vec<Refused>) -> Result<(), Fault> {
        tickets.append(&mut self.done);
        refused.append(&mut self.refused);
        Ok(())
    }

    fn flush(&mut self) {}

    /// They wait for the end of their epoch, whatever the steps before do: those must not wait for them.
    fn in_flight_bytes(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{Header, Headers, Meta, PartitionId};
    use bytes::Bytes;
    use std::sync::Arc;
    use tidegate_recovery::EventTime;

    fn element(value: Option<Bytes>, timestamp: i64, headers: Vec<Header>) -> Element<Record> {
        let meta = Meta {
            partition: PartitionId(0),
            offset: 0,
            timestamp: Some(timestamp),
            event: EventTime::MIN,
            watermark: EventTime::MIN,
            headers: Headers::new(headers),
        };
        Element { value: Record { key: Some(Bytes::from_static(b"k")), value }, meta }
    }

    fn writer(limits: TopicLimits) -> OutboxWriter {
        let schedule = EpochSchedule { first: Epoch(1), commit_every: 10 };
        OutboxWriter::new(OutboxDesk::default(), schedule, &StepId::new("sink"), "t", limits)
    }

    #[test]
    fn records_go_to_the_buffer_of_their_commit_epoch_and_are_acknowledged_at_once() {
        let mut writer = writer(TopicLimits::default());
        for (ticket, epoch) in [(1, 3), (2, 10), (3, 11)] {
            writer.open(Ticket(ticket), Epoch(epoch));
            let taken = writer.submit(Ticket(ticket), &[element(None, 5, Vec::new())], false);
            assert_eq!(taken.expect("it is taken"), 1);
        }
        let (mut tickets, mut refused) = (Vec::new(), Vec::new());
        writer.acknowledged(&mut tickets, &mut refused).expect("nothing is wrong");
        assert_eq!((tickets, refused.len()), (vec![Ticket(1), Ticket(2), Ticket(3)], 0));
        assert!(writer.desk.bytes() > 0);
        assert_eq!(writer.desk.take(Epoch(10)).len(), 2);
        assert_eq!(writer.desk.take(Epoch(20)).len(), 1);
        assert_eq!(writer.desk.bytes(), 0);
    }

    #[test]
    fn what_the_topic_would_refuse_is_refused_here_by_its_place() {
        let mut writer = writer(TopicLimits { record_bytes_max: Some(200), ahead_max_ms: Some(1000) });
        let large = Bytes::from(vec![b'x'; 150]);
        let header = Header { name: Arc::from("h"), value: Some(large.clone()) };
        let elements = [
            element(Some(large.clone()), 5, Vec::new()),
            element(None, 5, vec![header]),
            element(Some(large), i64::MAX / 2, Vec::new()),
            element(None, 5, Vec::new()),
            element(None, 0, Vec::new()),
        ];
        writer.open(Ticket(1), Epoch(1));
        writer.submit(Ticket(1), &elements[..1], true).expect("it is taken");
        writer.submit(Ticket(1), &elements[1..], false).expect("it is taken");
        let (mut tickets, mut refused) = (Vec::new(), Vec::new());
        writer.acknowledged(&mut tickets, &mut refused).expect("nothing is wrong");
        assert_eq!(tickets, [Ticket(1)]);
        assert_eq!(
            refused.iter().map(|refused| refused.index).collect::<Vec<_>>(),
            [0, 1, 2, 4],
            "{refused:?}"
        );
        assert_eq!(writer.desk.take(Epoch(10)).len(), 1);
    }

    #[test]
    fn the_size_of_a_batch_is_that_of_the_format() {
        // Length 8, attributes, two deltas, absent key, a value of 1 byte, no headers.
        assert_eq!(batch_bytes(None, Some(b"v"), [].into_iter()), 61 + 1 + 3 + 1 + 2 + 1);
        assert_eq!(
            batch_bytes(Some(b""), None, [(1, None), (1, Some(64))].into_iter()),
            61 + 2 + 3 + 1 + 1 + 1 + 3 + 68
        );
        assert_eq!([varint(0), varint(63), varint(64), varint(8191), varint(8192)], [1, 1, 2, 2, 3]);
    }
}

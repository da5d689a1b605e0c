//! Output of exactly-once sinks on its way into the recovery store.
//!
//! A record is encoded once, into the buffer of its commit epoch, and is acknowledged at once: from there on it is a
//! part of the epoch's snapshot, which is durable together with the state and the offsets that belong to it, and is published
//! afterwards. What the topic would refuse is refused here, while the step's `on_error` can still speak.
//!
//! Without a store, where every input partition has a transaction of its own ([`crate::commit::DirectIo`]), there is a buffer for
//! each partition that the records were read from, and the end of the commit epoch hands it to the publication.
//!
//! What waits in the buffers counts against `in_flight_bytes`: sources stop polling, and since epochs close by the
//! clock the buffers are written and go.

use crate::clock::wall_ms;
use crate::element::{Element, PartitionId, Record};
use crate::fault::Fault;
use crate::kafka::timestamp_to_write;
use crate::sink::{Refusal, Refused, SinkWriter, Ticket};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use tidegate_recovery::outbox::{DestinationNumber, OutputRow};
use tidegate_recovery::{Epoch, EpochSchedule, ErrorClass, OutputBuffer, StepId};
use timely::scheduling::SyncActivator;

/// What a topic takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicLimits {
    /// The largest batch, in bytes; `None` where the broker does not tell.
    pub record_bytes_max: Option<usize>,
    /// How far a timestamp may lie in the future, in milliseconds; `None` for no limit, or where the broker does not tell.
    pub ahead_max_ms: Option<i64>,
}

/// Output of one input partition in one commit epoch.
#[derive(Clone, Debug, Default)]
pub struct PartitionOutput {
    /// The rows, in their order.
    pub rows: OutputBuffer,
    /// For each row, the offset of the record that it was made of.
    pub offsets: Vec<i64>,
}

impl PartitionOutput {
    /// Bytes that it takes in memory.
    pub fn bytes(&self) -> usize {
        self.rows.byte_len() + self.offsets.len() * size_of::<i64>()
    }
}

/// The buffers of one worker, by commit epoch. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct OutboxDesk(Rc<Desk>);

#[derive(Debug, Default)]
struct Desk {
    /// By input partition where each has a transaction of its own; else all under [`PartitionId::NONE`].
    open: RefCell<BTreeMap<Epoch, Vec<(PartitionId, PartitionOutput)>>>,
    by_partition: bool,
    bytes: Cell<usize>,
}

impl OutboxDesk {
    /// A desk that keeps the output of each input partition apart.
    pub fn by_partition() -> OutboxDesk {
        OutboxDesk(Rc::new(Desk { by_partition: true, ..Desk::default() }))
    }

    /// What this worker has to publish of a commit epoch that is closed.
    pub(crate) fn take(&self, epoch: Epoch) -> OutputBuffer {
        debug_assert!(!self.0.by_partition, "output is either kept together or by partition");
        self.take_by_partition(epoch).pop().map(|(_, output)| output.rows).unwrap_or_default()
    }

    /// The same, for each input partition that has any.
    pub(crate) fn take_by_partition(&self, epoch: Epoch) -> Vec<(PartitionId, PartitionOutput)> {
        let taken = self.0.open.borrow_mut().remove(&epoch).unwrap_or_default();
        let bytes: usize = taken.iter().map(|(_, output)| output.bytes()).sum();
        self.0.bytes.set(self.0.bytes.get() - bytes);
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

    /// The buffer of a partition, and the number of the topic in it.
    fn place(
        &self,
        buffers: &mut Vec<(PartitionId, PartitionOutput)>,
        partition: PartitionId,
    ) -> Result<(PartitionId, usize, DestinationNumber), Fault> {
        if self.desk.0.by_partition && partition == PartitionId::NONE {
            let what = "what is made of several records cannot be published with the offset of one";
            return Err(Fault::new(ErrorClass::Internal, what).at_step(self.step.clone()));
        }
        let index = buffers.iter().position(|(of, _)| *of == partition).unwrap_or_else(|| {
            buffers.push((partition, PartitionOutput::default()));
            buffers.len() - 1
        });
        match buffers[index].1.rows.destination(&self.step, &self.topic) {
            Some(destination) => Ok((partition, index, destination)),
            None => {
                Err(Fault::new(ErrorClass::Internal, "a flow writes to more topics than an outbox can name"))
            }
        }
    }

    fn refusal(&self, element: &Element<Record>, now_ms: i64) -> Option<String> {
        let topic = &self.topic;
        if let Err(reason) = timestamp_to_write(element.meta.timestamp) {
            return Some(format!("topic `{topic}`: {reason}"));
        }
        if let (Some(timestamp), Some(ahead)) = (element.meta.timestamp, self.limits.ahead_max_ms)
            && timestamp.saturating_sub(now_ms) > ahead
        {
            return Some(format!(
                "topic `{topic}`: the timestamp {timestamp} is more than {ahead} ms ahead of the clock, and the topic takes none such (message.timestamp.after.max.ms)"
            ));
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
        let now_ms = wall_ms();
        let refused = elements.iter().enumerate().filter_map(|(at, element)| {
            let refuse = |reason| Refused { ticket, index: first + at, reason, refusal: Refusal::Record };
            self.refusal(element, now_ms).map(refuse)
        });
        let refused: Vec<Refused> = refused.collect();
        let mut next_refused = refused.iter().map(|refused| refused.index - first).peekable();
        let mut open = self.desk.0.open.borrow_mut();
        let buffers = open.entry(self.schedule.commit_at_or_after(epoch)).or_default();
        let mut bytes = 0;
        // Where the next row goes: the records of a batch have mostly been read from one partition.
        let mut place: Option<(PartitionId, usize, DestinationNumber)> = None;
        for (at, element) in elements.iter().enumerate() {
            if next_refused.next_if_eq(&at).is_some() {
                continue;
            }
            let partition = if self.desk.0.by_partition { element.meta.partition } else { PartitionId::NONE };
            if place.is_none_or(|(of, _, _)| of != partition) {
                place = Some(self.place(buffers, partition)?);
            }
            let Some((_, index, destination)) = place else { continue };
            let output = &mut buffers[index].1;
            let before = output.bytes();
            let headers = element.meta.headers.as_slice();
            output.rows.push(&OutputRow {
                destination,
                partition: None,
                timestamp: element.meta.timestamp,
                key: element.value.key.as_deref(),
                value: element.value.value.as_deref(),
                headers: headers.iter().map(|header| (&*header.name, header.value.as_deref())).collect(),
            });
            if self.desk.0.by_partition {
                output.offsets.push(element.meta.offset);
            }
            bytes += output.bytes() - before;
        }
        drop(open);
        self.desk.0.bytes.set(self.desk.0.bytes.get() + bytes);
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
            original: None,
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
    fn without_a_store_the_output_of_each_input_partition_is_kept_apart_with_its_offsets() {
        let mut writer = OutboxWriter { desk: OutboxDesk::by_partition(), ..writer(TopicLimits::default()) };
        let of = |partition: u32, offset: i64| {
            let mut element = element(None, 5, Vec::new());
            (element.meta.partition, element.meta.offset) = (PartitionId(partition), offset);
            element
        };
        writer.open(Ticket(1), Epoch(3));
        let taken = writer.submit(Ticket(1), &[of(0, 7), of(2, 1), of(0, 8), of(0, 9)], false);
        assert_eq!(taken.expect("it is taken"), 4);
        assert!(writer.desk.bytes() > 0);
        let output = writer.desk.take_by_partition(Epoch(10));
        let kept: Vec<_> =
            output.iter().map(|(of, output)| (of.0, output.rows.len(), output.offsets.clone())).collect();
        assert_eq!(kept, [(0, 3, vec![7, 8, 9]), (2, 1, vec![1])]);
        assert_eq!(writer.desk.bytes(), 0);
        writer.open(Ticket(2), Epoch(4));
        let mut of_many = of(0, -1);
        of_many.meta.partition = PartitionId::NONE;
        assert!(writer.submit(Ticket(2), &[of_many], false).is_err());
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

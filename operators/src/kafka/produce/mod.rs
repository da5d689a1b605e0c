//! [`KafkaWriter`]: records of one sink step go to one topic.
//!
//! One producer per worker thread, shared by the worker's sinks. A producer of the whole process would save
//! threads, but every record would then pass two locks that all workers share, and acknowledgements would have to
//! be carried to the worker that waits for them. Delivery reports are events on the producer's queue: whoever
//! comes first among the worker's sinks takes them all and puts each where it belongs. The client's thread wakes
//! the sinks when a report arrives, so nothing is polled, and a worker that is busy in a step finds all reports of
//! the meantime when it comes back.
//!
//! **What became of a record.** Written: all replicas in sync have it. Refused: the broker will never take this
//! record (too large, a timestamp that it does not allow); the step's `on_error` decides. A topic that is gone refuses
//! every record, and no policy drops them. Anything else that is final (the client may not write, the producer gave
//! up) ends the run: the record stays unacknowledged and is done again after the restart. There is no time-out: while a broker is away the epoch
//! stays open.
//!
//! **One bad record.** A broker refuses whole batches, and not every broker says which record is to blame. So the
//! records of a refused batch are tried again, each in a batch of its own, by a second producer that lives for
//! just that; meanwhile no new record is taken.
//!
//! **Order.** Records of a partition are written in their order, also when they are sent again (idempotence). One
//! exception: the good records of a refused batch come behind what was on its way when it was refused.
//!
//! **Timestamps** are kept. The library writes "now" for 0 and the protocol reads -1 as none, so a record dated 0
//! or before 1970 is refused and not changed in silence.

mod chunks;
mod trial;

use super::config::ProducerConfig;
use super::raw::{Client, Code, Kind, Message, Outgoing, Properties, Queue, Topic};
use super::reaper;
use super::wake::{Ready, Wake};
use crate::element::{Element, Header, Record};
use crate::fault::Fault;
use crate::sink::{Refusal, Refused, SinkWriter, Ticket};
use chunks::{Chunk, Chunks, PLACE_BITS, PLACE_MASK, Progress, chunk_decided};
use rdkafka_sys::bindings::RD_KAFKA_EVENT_DR;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use tidegate_recovery::{ErrorClass, WorkerIndex};
use timely::scheduling::SyncActivator;
use trial::{Suspect, Trial};

/// The producer of one worker. Clones are the same producer.
#[derive(Clone)]
pub struct KafkaProducer(Rc<RefCell<Shared>>);

/// Writes the records of one step to one topic.
pub struct KafkaWriter {
    shared: Rc<RefCell<Shared>>,
    index: usize,
}

/// What the library keeps beside a record's own bytes; counted, so that many small records stay bounded too.
const OVERHEAD_BYTES_PER_RECORD: usize = 200;

struct Shared {
    /// Topics and queue go before the client; see `Drop`.
    writers: Vec<Writer>,
    main: Option<Queue>,
    client: Option<Arc<Client>>,
    ready: Arc<Ready>,
    wake: Arc<Wake>,
    chunks: Chunks,
    in_flight_records: usize,
    in_flight_bytes: usize,
    records_max: usize,
    bytes_max: usize,
    /// Records of refused batches that are not tried yet.
    suspects: VecDeque<Suspect>,
    trial: Option<Trial>,
    config: ProducerConfig,
    fault: Option<Fault>,
    worker: WorkerIndex,
}

struct Writer {
    topic: Topic,
    name: String,
    tickets: HashMap<Ticket, Progress>,
    done: Vec<Ticket>,
    refused: Vec<Refused>,
    in_flight_bytes: usize,
}

impl KafkaProducer {
    /// Makes the worker's producer; does not wait for a broker.
    pub fn new(config: &ProducerConfig, worker: WorkerIndex) -> Result<KafkaProducer, Fault> {
        let properties = config.properties(&format!("-w{worker}"));
        let client = new_client(&properties)?;
        let wake = Arc::new(Wake::default());
        let ready = Ready::new(&wake);
        let mut main = Queue::of_producer(&client);
        main.signal_with(ready.clone());
        Ok(KafkaProducer(Rc::new(RefCell::new(Shared {
            writers: Vec::new(),
            main: Some(main),
            client: Some(client),
            ready,
            wake,
            chunks: Chunks::default(),
            in_flight_records: 0,
            in_flight_bytes: 0,
            records_max: config.in_flight_records,
            bytes_max: config.in_flight_bytes,
            suspects: VecDeque::new(),
            trial: None,
            config: config.clone(),
            fault: None,
            worker,
        }))))
    }

    /// A writer for `topic`.
    pub fn writer(&self, topic: &str) -> Result<KafkaWriter, Fault> {
        let mut shared = self.0.borrow_mut();
        let client = shared.client.as_ref().expect("the client is there until the producer is dropped");
        let handle = Topic::new(client, topic).map_err(|code| no_topic(topic, code))?;
        shared.writers.push(Writer {
            topic: handle,
            name: topic.to_owned(),
            tickets: HashMap::new(),
            done: Vec::new(),
            refused: Vec::new(),
            in_flight_bytes: 0,
        });
        Ok(KafkaWriter { shared: self.0.clone(), index: shared.writers.len() - 1 })
    }
}

impl Shared {
    fn has_room(&self) -> bool {
        // One record is always allowed, however large. While suspects are tried nothing may overtake them.
        self.in_flight_records == 0
            || (self.in_flight_records < self.records_max
                && self.in_flight_bytes < self.bytes_max
                && self.suspects.is_empty()
                && self.trial.is_none())
    }

    /// Takes the delivery reports that are there.
    fn serve(&mut self) -> Result<(), Fault> {
        if self.ready.take() {
            let mut main = self.main.take().expect("the queue is there until the producer is dropped");
            main.delivery_reports(|message, tag| self.report(message, tag));
            self.main = Some(main);
            if let Some(mut trial) = self.trial.take() {
                trial.queue.delivery_reports(|message, tag| {
                    trial.open -= 1;
                    self.decided(tag, size_of(message.key(), message.value()), message_error(message));
                });
                self.trial = Some(trial);
            }
        }
        if !self.suspects.is_empty() || self.trial.is_some() {
            self.try_suspects()?;
        }
        match &self.fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(()),
        }
    }

    /// What the main producer reports of one record.
    fn report(&mut self, message: &Message, tag: usize) {
        let error = message_error(message);
        match &error {
            Some((code, _)) if code.refuses_a_batch() => {
                let mut headers = Vec::new();
                message.headers(|name, value| {
                    headers.push(Header {
                        name: Arc::from(String::from_utf8_lossy(name)),
                        value: value.map(bytes::Bytes::copy_from_slice),
                    });
                });
                let chunk = &self.chunks.slots[tag >> PLACE_BITS];
                self.suspects.push_back(Suspect {
                    tag,
                    writer: chunk.writer,
                    key: message.key().map(<[u8]>::to_vec),
                    value: message.value().map(<[u8]>::to_vec),
                    timestamp: chunk.timestamps[tag & PLACE_MASK],
                    headers,
                });
            }
            _ => self.decided(tag, size_of(message.key(), message.value()), error),
        }
    }

    /// One record is written, refused, or the reason why the run ends.
    fn decided(&mut self, tag: usize, bytes: usize, error: Option<(Code, String)>) {
        let slot = tag >> PLACE_BITS;
        let place = tag & PLACE_MASK;
        let &Chunk { writer, ticket, first, .. } = &self.chunks.slots[slot];
        if let Some((code, text)) = error {
            let topic = &self.writers[writer].name;
            match self.verdict(code, &text, topic) {
                Verdict::Refused(refusal, reason) => {
                    let index = first + place;
                    self.writers[writer].refused.push(Refused { ticket, index, reason, refusal });
                }
                Verdict::Fault(fault) => {
                    // Not decided: its ticket stays open for ever, and the run ends.
                    self.fault.get_or_insert(fault);
                    return;
                }
            }
        }
        self.in_flight_records -= 1;
        let writer = &mut self.writers[writer];
        let mut freed = bytes + OVERHEAD_BYTES_PER_RECORD;
        let chunk = &mut self.chunks.slots[slot];
        chunk.open -= 1;
        if chunk.open == 0 {
            freed += chunk.header_bytes;
            self.chunks.free.push(slot as u32);
            if chunk_decided(&mut writer.tickets, ticket) {
                writer.done.push(ticket);
            }
        }
        self.in_flight_bytes -= freed;
        writer.in_flight_bytes -= freed;
    }

    fn verdict(&self, code: Code, text: &str, topic: &str) -> Verdict {
        let fault = |class, text: String| Verdict::Fault(Fault::new(class, text));
        match code {
            Code::INVALID_ARG | Code::UNKNOWN_PARTITION => {
                Verdict::Refused(Refusal::Record, format!("topic `{topic}`: {code:?}: {text}"))
            }
            code if code.refuses_a_batch() => {
                Verdict::Refused(Refusal::Record, format!("topic `{topic}`: {code:?}: {text}"))
            }
            code if code.is_missing() => Verdict::Refused(
                Refusal::Everything,
                format!("topic `{topic}` does not exist any more (operation Write): {text}"),
            ),
            code if code.is_denied() => fault(
                ErrorClass::Config,
                format!(
                    "topic `{topic}` may not be written by this client (operation Write): {text}; grant it, or use other credentials"
                ),
            ),
            code => {
                let fatal = self.client.as_ref().and_then(|client| client.fatal()).unwrap_or_default();
                let class = if code.is_transient() { ErrorClass::Unavailable } else { ErrorClass::TryAgain };
                fault(class, format!("topic `{topic}` could not be written ({code:?}: {text}) {fatal}"))
            }
        }
    }
}

pub(super) fn new_client(properties: &Properties) -> Result<Arc<Client>, Fault> {
    Client::new(Kind::Producer, properties, RD_KAFKA_EVENT_DR)
        .map_err(|error| Fault::new(ErrorClass::Config, format!("the kafka producer: {error}")))
}

pub(super) fn no_topic(name: &str, code: Code) -> Fault {
    Fault::new(ErrorClass::Config, format!("topic `{name}`: {code}"))
}

pub(super) fn message_error(message: &Message) -> Option<(Code, String)> {
    let code = message.error()?;
    Some((code, message.produce_error_text().unwrap_or_else(|| code.to_string())))
}

/// What is still with the client was not acknowledged, so nobody counts on it.
fn close(name: String, client: Arc<Client>) {
    reaper::close(name, move || {
        client.purge();
        drop(client);
    });
}

enum Verdict {
    Refused(Refusal, String),
    Fault(Fault),
}

impl SinkWriter for KafkaWriter {
    fn wake_with(&mut self, activator: SyncActivator) {
        self.shared.borrow().wake.add(activator);
    }

    fn submit(&mut self, ticket: Ticket, elements: &[Element<Record>], more: bool) -> Result<usize, Fault> {
        let mut shared = self.shared.borrow_mut();
        let shared = &mut *shared;
        shared.serve()?;
        let first = shared.writers[self.index].tickets.get(&ticket).map_or(0, |progress| progress.taken);
        let timestamps = Vec::new();
        let chunk = Chunk { writer: self.index, ticket, first, open: 0, header_bytes: 0, timestamps };
        let slot = shared.chunks.insert(chunk);
        let (mut taken, mut queued, mut header_bytes) = (0, 0, 0);
        for element in elements {
            if !shared.has_room() {
                break;
            }
            let key = element.value.key.as_deref();
            let value = element.value.value.as_deref();
            let headers = element.meta.headers.as_slice();
            let timestamp = timestamp_to_write(element.meta.timestamp);
            shared.chunks.slots[slot as usize].timestamps.push(*timestamp.as_ref().unwrap_or(&0));
            let outcome = match timestamp {
                Err(reason) => Err(Verdict::Refused(Refusal::Record, reason)),
                Ok(timestamp) => {
                    let tag = (slot as usize) << PLACE_BITS | taken;
                    let record = Outgoing { partition: None, key, value, timestamp, tag };
                    match shared.writers[self.index].topic.produce(&record, pairs(headers)) {
                        Ok(()) => Ok(()),
                        Err(Code::QUEUE_FULL) => break,
                        Err(code) => {
                            Err(shared.verdict(code, &code.to_string(), &shared.writers[self.index].name))
                        }
                    }
                }
            };
            match outcome {
                Ok(()) => {
                    let of_headers: usize =
                        headers.iter().map(|h| h.name.len() + h.value.as_ref().map_or(0, |v| v.len())).sum();
                    header_bytes += of_headers;
                    let bytes = size_of(key, value) + OVERHEAD_BYTES_PER_RECORD + of_headers;
                    shared.in_flight_records += 1;
                    shared.in_flight_bytes += bytes;
                    shared.writers[self.index].in_flight_bytes += bytes;
                    queued += 1;
                }
                Err(Verdict::Refused(refusal, reason)) => {
                    let index = first + taken;
                    shared.writers[self.index].refused.push(Refused { ticket, index, reason, refusal });
                }
                Err(Verdict::Fault(fault)) => {
                    shared.fault.get_or_insert(fault);
                }
            }
            taken += 1;
            if shared.fault.is_some() {
                break;
            }
        }
        let chunk = &mut shared.chunks.slots[slot as usize];
        (chunk.open, chunk.header_bytes) = (queued, header_bytes);
        let writer = &mut shared.writers[self.index];
        let progress = writer.tickets.entry(ticket).or_default();
        progress.taken += taken;
        progress.complete |= !more && taken == elements.len();
        if queued > 0 {
            progress.open += 1;
        } else {
            shared.chunks.free.push(slot);
            if progress.complete && progress.open == 0 {
                writer.tickets.remove(&ticket);
                writer.done.push(ticket);
            }
        }
        match &shared.fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(taken),
        }
    }

    fn acknowledged(&mut self, tickets: &mut Vec<Ticket>, refused: &mut Vec<Refused>) -> Result<(), Fault> {
        let mut shared = self.shared.borrow_mut();
        shared.wake.rearm();
        let result = shared.serve();
        let writer = &mut shared.writers[self.index];
        tickets.append(&mut writer.done);
        refused.append(&mut writer.refused);
        result
    }

    /// Nothing waits longer than `linger.ms`, which is short beside an epoch; the library could only be hurried
    /// by a call that blocks.
    fn flush(&mut self) {}

    fn in_flight_bytes(&self) -> usize {
        self.shared.borrow().writers[self.index].in_flight_bytes
    }
}

/// Headers as the library takes them.
fn pairs(headers: &[Header]) -> impl ExactSizeIterator<Item = (&str, Option<&[u8]>)> {
    headers.iter().map(|header| (&*header.name, header.value.as_deref()))
}

pub(super) fn size_of(key: Option<&[u8]>, value: Option<&[u8]>) -> usize {
    key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len)
}

/// The timestamp as the library takes it (0 means now), or why this one cannot be written.
pub(crate) fn timestamp_to_write(timestamp: Option<i64>) -> Result<i64, String> {
    match timestamp {
        None => Ok(0),
        Some(timestamp) if timestamp > 0 => Ok(timestamp),
        Some(timestamp) => Err(format!(
            "the timestamp {timestamp} cannot be written: the client would replace it; set another one"
        )),
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Topics and queue live inside the client and go first, here.
        self.writers.clear();
        self.main = None;
        if let Some(trial) = self.trial.take() {
            trial.close(self.worker);
        }
        if let Some(client) = self.client.take() {
            close(format!("producer of worker {}", self.worker), client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_that_the_client_would_change_is_refused() {
        assert_eq!(timestamp_to_write(None), Ok(0));
        assert_eq!(timestamp_to_write(Some(1)), Ok(1));
        for refused in [0, -1, -1000] {
            assert!(timestamp_to_write(Some(refused)).is_err());
        }
    }
}

//! The records of a refused batch are tried one by one.

use super::super::config::ProducerConfig;
use super::super::raw::{Client, Code, Outgoing, Queue, Topic};
use super::super::wake::Ready;
use super::{Shared, close, new_client, no_topic, pairs, size_of};
use crate::element::Header;
use crate::fault::Fault;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use tidegate_recovery::WorkerIndex;

/// A record of a refused batch.
pub(super) struct Suspect {
    pub(super) tag: usize,
    pub(super) writer: usize,
    pub(super) key: Option<Vec<u8>>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) timestamp: i64,
    pub(super) headers: Vec<Header>,
}

/// A producer that sends every record in a batch of its own.
pub(super) struct Trial {
    pub(super) topics: HashMap<usize, Topic>,
    pub(super) queue: Queue,
    pub(super) client: Arc<Client>,
    /// Records that it was given and that are not decided.
    pub(super) open: usize,
}

impl Shared {
    /// Begins to try the suspects when nothing else is on its way, goes on while the client has room, and ends
    /// when all are decided.
    pub(super) fn try_suspects(&mut self) -> Result<(), Fault> {
        let mut trial = match self.trial.take() {
            Some(trial) => trial,
            None if self.in_flight_records > self.suspects.len() => return Ok(()),
            None => {
                tracing::warn!(
                    worker = %self.worker,
                    records = self.suspects.len(),
                    "a broker refused a batch: its records are tried one by one"
                );
                Trial::new(&self.config, self.worker, &self.ready)?
            }
        };
        while let Some(suspect) = self.suspects.pop_front() {
            let topic = match trial.topics.entry(suspect.writer) {
                Entry::Occupied(topic) => topic.into_mut(),
                Entry::Vacant(place) => {
                    let name = &self.writers[suspect.writer].name;
                    place.insert(Topic::new(&trial.client, name).map_err(|code| no_topic(name, code))?)
                }
            };
            let record = Outgoing {
                partition: None,
                key: suspect.key.as_deref(),
                value: suspect.value.as_deref(),
                timestamp: suspect.timestamp,
                tag: suspect.tag,
            };
            match topic.produce(&record, pairs(&suspect.headers)) {
                Ok(()) => trial.open += 1,
                Err(Code::QUEUE_FULL) => {
                    self.suspects.push_front(suspect);
                    break;
                }
                Err(code) => {
                    let bytes = size_of(suspect.key.as_deref(), suspect.value.as_deref());
                    self.decided(suspect.tag, bytes, Some((code, code.to_string())));
                }
            }
        }
        if trial.open > 0 || !self.suspects.is_empty() {
            self.trial = Some(trial);
        } else {
            trial.close(self.worker);
        }
        Ok(())
    }
}

impl Trial {
    fn new(config: &ProducerConfig, worker: WorkerIndex, ready: &Arc<Ready>) -> Result<Trial, Fault> {
        let mut properties = config.properties(&format!("-w{worker}-trial"));
        properties.insert("batch.num.messages".to_owned(), "1".to_owned());
        properties.insert("linger.ms".to_owned(), "0".to_owned());
        let client = new_client(&properties)?;
        let mut queue = Queue::of_producer(&client);
        queue.signal_with(ready.clone());
        Ok(Trial { topics: HashMap::new(), queue, client, open: 0 })
    }

    pub(super) fn close(self, worker: WorkerIndex) {
        let Trial { topics, queue, client, .. } = self;
        drop((topics, queue));
        close(format!("trial producer of worker {worker}"), client);
    }
}

//! A broker, a group and a destination in memory: what the simulation and the in-memory benchmark read and write.
//!
//! They keep the promises of [`crate::source::SourceReader`] and [`crate::sink::SinkWriter`] and none beyond: a
//! destination may be frozen, slow or full, a commit may fail, and what was submitted and not acknowledged may or
//! may not have arrived when its writer is gone.

use crate::clock::Clock;
use crate::element::{Element, Headers, Meta, PartitionId, Record};
use crate::fault::Fault;
use crate::inputs::InputTable;
use crate::sink::{Refusal, Refused, SinkWriter, Ticket};
use crate::source::{CommitOutcome, PollBudget, SourceBatch, SourceReader};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_recovery::{EventTime, NextOffset, TopicPartition, WorkerIndex};
use timely::scheduling::SyncActivator;

/// What stands at one offset of a partition.
#[derive(Clone, Debug)]
enum Entry {
    Record {
        record: Record,
        timestamp: Option<i64>,
    },
    /// A control record, an aborted record, or a gap that compaction left.
    Nothing,
}

#[derive(Debug, Default)]
struct Log {
    entries: Vec<Entry>,
    /// Where an open transaction begins.
    open_from: Option<usize>,
}

#[derive(Debug, Default)]
struct Broker {
    logs: BTreeMap<TopicPartition, Log>,
    group: BTreeMap<TopicPartition, NextOffset>,
    commits_fail: Option<String>,
    rewinds: u64,
}

/// Topics and one consumer group; clones are the same broker.
#[derive(Clone, Debug, Default)]
pub struct MemoryBroker(Arc<Mutex<Broker>>);

impl MemoryBroker {
    /// A broker with these partitions, all empty.
    pub fn new(partitions: impl IntoIterator<Item = TopicPartition>) -> MemoryBroker {
        let broker = MemoryBroker::default();
        broker.lock().logs = partitions.into_iter().map(|name| (name, Log::default())).collect();
        broker
    }

    fn lock(&self) -> MutexGuard<'_, Broker> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a record.
    pub fn append(&self, partition: &TopicPartition, record: Record, timestamp: Option<i64>) {
        self.lock()
            .logs
            .entry(partition.clone())
            .or_default()
            .entries
            .push(Entry::Record { record, timestamp });
    }

    /// Takes an offset without a record: a control record, an aborted one, a gap.
    pub fn append_nothing(&self, partition: &TopicPartition) {
        self.lock().logs.entry(partition.clone()).or_default().entries.push(Entry::Nothing);
    }

    /// Opens a transaction: nobody reads beyond the present end until it is closed.
    pub fn open_transaction(&self, partition: &TopicPartition) {
        let mut broker = self.lock();
        let log = broker.logs.entry(partition.clone()).or_default();
        log.open_from.get_or_insert(log.entries.len());
    }

    /// Ends the transaction with a control record.
    pub fn close_transaction(&self, partition: &TopicPartition) {
        let mut broker = self.lock();
        let log = broker.logs.entry(partition.clone()).or_default();
        if log.open_from.take().is_some() {
            log.entries.push(Entry::Nothing);
        }
    }

    /// From now on commits fail for this reason, or succeed again.
    pub fn fail_commits(&self, reason: Option<&str>) {
        self.lock().commits_fail = reason.map(str::to_owned);
    }

    /// The end of a partition's log.
    pub fn log_end(&self, partition: &TopicPartition) -> NextOffset {
        NextOffset(self.lock().logs.get(partition).map_or(0, |log| log.entries.len()) as i64)
    }

    /// The records of a partition with their offsets.
    pub fn records(&self, partition: &TopicPartition) -> Vec<(i64, Record)> {
        let broker = self.lock();
        let entries = broker.logs.get(partition).map_or(&[][..], |log| &log.entries).iter();
        let records = entries.zip(0..).filter_map(|(entry, offset)| match entry {
            Entry::Record { record, .. } => Some((offset, record.clone())),
            Entry::Nothing => None,
        });
        records.collect()
    }

    /// What the group committed for a partition.
    pub fn committed(&self, partition: &TopicPartition) -> Option<NextOffset> {
        self.lock().group.get(partition).copied()
    }

    /// How often a commit moved the group back.
    pub fn rewinds(&self) -> u64 {
        self.lock().rewinds
    }

    fn commit(&self, offsets: &[(TopicPartition, NextOffset)]) -> Option<String> {
        let mut broker = self.lock();
        if broker.commits_fail.is_some() {
            return broker.commits_fail.clone();
        }
        for (name, next) in offsets {
            let before = broker.group.insert(name.clone(), *next);
            broker.rewinds += u64::from(before > Some(*next));
        }
        None
    }
}

/// Reads a worker's partitions of a [`MemoryBroker`].
pub struct MemoryReader {
    broker: MemoryBroker,
    partitions: Vec<PartitionId>,
    names: BTreeMap<PartitionId, TopicPartition>,
    positions: BTreeMap<PartitionId, NextOffset>,
    ends_at_start: BTreeMap<PartitionId, NextOffset>,
    held: BTreeSet<PartitionId>,
    outcomes: Vec<CommitOutcome>,
    next: usize,
}

impl MemoryReader {
    /// The partitions of `worker`, from where `start` says (or from the beginning). Only topics for which
    /// `reads` holds are read.
    pub fn new(
        broker: &MemoryBroker,
        inputs: &InputTable,
        worker: WorkerIndex,
        start: &BTreeMap<TopicPartition, NextOffset>,
        reads: impl Fn(&str) -> bool,
    ) -> MemoryReader {
        let owned = inputs.owned_by(worker).into_iter();
        let names: BTreeMap<PartitionId, TopicPartition> = owned
            .filter_map(|id| Some((id, inputs.name(id)?.clone())))
            .filter(|(_, name)| reads(&name.topic))
            .collect();
        let of = |name: &TopicPartition| start.get(name).copied().unwrap_or(NextOffset(0));
        MemoryReader {
            broker: broker.clone(),
            partitions: names.keys().copied().collect(),
            positions: names.iter().map(|(id, name)| (*id, of(name))).collect(),
            ends_at_start: names.iter().map(|(id, name)| (*id, broker.log_end(name))).collect(),
            names,
            held: BTreeSet::new(),
            outcomes: Vec::new(),
            next: 0,
        }
    }

    fn named(&self, offsets: &[(PartitionId, NextOffset)]) -> Vec<(TopicPartition, NextOffset)> {
        offsets.iter().map(|(id, next)| (self.names[id].clone(), *next)).collect()
    }
}

fn size_of(record: &Record) -> usize {
    let length = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map_or(0, |bytes| bytes.len());
    length(&record.key) + length(&record.value)
}

impl SourceReader for MemoryReader {
    fn partitions(&self) -> &[PartitionId] {
        &self.partitions
    }

    fn poll(&mut self, budget: PollBudget, batches: &mut Vec<SourceBatch>) -> Result<(), Fault> {
        let broker = self.broker.lock();
        let (mut records, mut bytes) = (budget.records, budget.bytes);
        let mut first = true;
        for turn in 0..self.partitions.len() {
            let id = self.partitions[(self.next + turn) % self.partitions.len()];
            if self.held.contains(&id) {
                continue;
            }
            let Some(log) = broker.logs.get(&self.names[&id]) else { continue };
            let readable = log.open_from.unwrap_or(log.entries.len());
            let position = self.positions.entry(id).or_insert(NextOffset(0));
            let mut batch = SourceBatch { partition: id, elements: Vec::new(), bytes: 0 };
            while (position.0 as usize) < readable {
                match &log.entries[position.0 as usize] {
                    Entry::Nothing => {}
                    Entry::Record { record, timestamp } => {
                        let size = size_of(record);
                        if records == 0 || (size > bytes && !first) {
                            break;
                        }
                        first = false;
                        records -= 1;
                        bytes = bytes.saturating_sub(size);
                        batch.bytes += size;
                        let meta = Meta {
                            partition: id,
                            offset: position.0,
                            timestamp: *timestamp,
                            event: EventTime::MIN,
                            watermark: EventTime::MIN,
                            headers: Headers::default(),
                            original: None,
                        };
                        batch.elements.push(Element { value: record.clone(), meta });
                    }
                }
                position.0 += 1;
            }
            if !batch.elements.is_empty() {
                batches.push(batch);
            }
        }
        self.next += 1;
        Ok(())
    }

    fn position(&self, partition: PartitionId) -> NextOffset {
        self.positions.get(&partition).copied().unwrap_or(NextOffset(0))
    }

    fn readable_end(&self, partition: PartitionId) -> Option<NextOffset> {
        let broker = self.broker.lock();
        let log = broker.logs.get(self.names.get(&partition)?)?;
        Some(NextOffset(log.open_from.unwrap_or(log.entries.len()) as i64))
    }

    fn log_end(&self, partition: PartitionId) -> Option<NextOffset> {
        Some(self.broker.log_end(self.names.get(&partition)?))
    }

    fn end_at_start(&self, partition: PartitionId) -> NextOffset {
        self.ends_at_start.get(&partition).copied().unwrap_or(NextOffset(0))
    }

    fn hold(&mut self, partition: PartitionId, held: bool) {
        if held {
            self.held.insert(partition);
        } else {
            self.held.remove(&partition);
        }
    }

    fn commit(&mut self, offsets: &[(PartitionId, NextOffset)]) {
        let error = self.broker.commit(&self.named(offsets));
        self.outcomes.push(CommitOutcome { offsets: offsets.to_vec(), error });
    }

    fn commit_outcomes(&mut self) -> Vec<CommitOutcome> {
        std::mem::take(&mut self.outcomes)
    }

    fn commit_and_wait(
        &mut self,
        offsets: &[(PartitionId, NextOffset)],
        _deadline: Duration,
    ) -> Result<(), String> {
        self.broker.commit(&self.named(offsets)).map_or(Ok(()), Err)
    }
}

/// Why a destination refuses a record for ever, if it does.
pub type RefuseRule = Arc<dyn Fn(&Record) -> Option<String> + Send + Sync>;

#[derive(Default)]
struct Output {
    written: Vec<Element<Record>>,
    /// What was submitted and is not acknowledged, by writer.
    pending: BTreeMap<u64, VecDeque<Submitted>>,
    writers: u64,
    frozen: bool,
    refuse: Option<RefuseRule>,
    wake: Vec<SyncActivator>,
}

struct Submitted {
    ticket: Ticket,
    elements: Vec<Element<Record>>,
    whole: bool,
    ready: Duration,
}

/// A destination; clones are the same one.
#[derive(Clone, Default)]
pub struct MemoryOutput(Arc<Mutex<Output>>);

impl MemoryOutput {
    /// An empty destination.
    pub fn new() -> MemoryOutput {
        MemoryOutput::default()
    }

    fn lock(&self) -> MutexGuard<'_, Output> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops or starts to acknowledge.
    pub fn freeze(&self, frozen: bool) {
        self.lock().frozen = frozen;
        self.wake();
    }

    /// Refuses the records for which the rule gives a reason.
    pub fn refuse(&self, rule: RefuseRule) {
        self.lock().refuse = Some(rule);
    }

    /// Wakes the writers: time has passed.
    pub fn wake(&self) {
        for activator in &self.lock().wake {
            // A worker that is gone needs no waking.
            let _ = activator.activate();
        }
    }

    /// All writers are gone. Of what was submitted and not acknowledged, `arrived` says which records are there
    /// all the same.
    pub fn lose_writers(&self, mut arrived: impl FnMut() -> bool) {
        let mut output = self.lock();
        output.wake.clear();
        for (_, pending) in std::mem::take(&mut output.pending) {
            for submitted in pending {
                output.written.extend(submitted.elements.into_iter().filter(|_| arrived()));
            }
        }
    }

    /// What was written, in order.
    pub fn written(&self) -> Vec<Element<Record>> {
        self.lock().written.clone()
    }

    /// Number of records that were written.
    pub fn len(&self) -> usize {
        self.lock().written.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Writes to a [`MemoryOutput`].
pub struct MemoryWriter {
    output: MemoryOutput,
    writer: u64,
    clock: Arc<dyn Clock>,
    latency: Duration,
    capacity: usize,
    refused: Vec<Refused>,
    bytes: usize,
}

impl MemoryWriter {
    /// A writer whose destination acknowledges after `latency`, and that takes `capacity` records at most until
    /// they are acknowledged.
    pub fn new(
        output: &MemoryOutput,
        clock: Arc<dyn Clock>,
        latency: Duration,
        capacity: usize,
    ) -> MemoryWriter {
        let mut state = output.lock();
        state.writers += 1;
        let writer = state.writers;
        drop(state);
        MemoryWriter {
            output: output.clone(),
            writer,
            clock,
            latency,
            capacity,
            refused: Vec::new(),
            bytes: 0,
        }
    }
}

impl SinkWriter for MemoryWriter {
    fn wake_with(&mut self, activator: SyncActivator) {
        self.output.lock().wake.push(activator);
    }

    fn submit(&mut self, ticket: Ticket, elements: &[Element<Record>], more: bool) -> Result<usize, Fault> {
        let mut output = self.output.lock();
        let refuse = output.refuse.clone();
        let pending = output.pending.entry(self.writer).or_default();
        let held: usize = pending.iter().map(|submitted| submitted.elements.len()).sum();
        let taken = elements.len().min(self.capacity.saturating_sub(held));
        if taken == 0 {
            return Ok(0);
        }
        let known = pending
            .iter()
            .filter(|submitted| submitted.ticket == ticket)
            .map(|s| s.elements.len())
            .sum::<usize>();
        let mut accepted = Vec::with_capacity(taken);
        for (index, element) in elements[..taken].iter().enumerate() {
            match refuse.as_ref().and_then(|refuse| refuse(&element.value)) {
                Some(reason) => self.refused.push(Refused {
                    ticket,
                    index: known + index,
                    reason,
                    refusal: Refusal::Record,
                }),
                None => accepted.push(element.clone()),
            }
        }
        self.bytes += accepted.iter().map(|element| size_of(&element.value)).sum::<usize>();
        let whole = taken == elements.len() && !more;
        let ready = self.clock.now() + self.latency;
        pending.push_back(Submitted { ticket, elements: accepted, whole, ready });
        Ok(taken)
    }

    fn acknowledged(&mut self, tickets: &mut Vec<Ticket>, refused: &mut Vec<Refused>) -> Result<(), Fault> {
        refused.append(&mut self.refused);
        let now = self.clock.now();
        let mut output = self.output.lock();
        if output.frozen {
            return Ok(());
        }
        let Some(pending) = output.pending.get_mut(&self.writer) else { return Ok(()) };
        let mut arrived = Vec::new();
        while let Some(submitted) = pending.front()
            && submitted.ready <= now
        {
            if submitted.whole {
                tickets.push(submitted.ticket);
            }
            if let Some(submitted) = pending.pop_front() {
                arrived.extend(submitted.elements);
            }
        }
        self.bytes -= arrived.iter().map(|element| size_of(&element.value)).sum::<usize>();
        output.written.extend(arrived);
        Ok(())
    }

    fn flush(&mut self) {}

    fn in_flight_bytes(&self) -> usize {
        self.bytes
    }
}

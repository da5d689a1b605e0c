//! A model of the recovery store: what a commit record and the rows that it names amount to.
//!
//! Parts and records take their time, by the virtual clock; a crash loses what was not published, and of a record
//! that was being published nobody knows. (The real store has crash tests of its own.)

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_operators::clock::{Clock, VirtualClock};
use tidegate_operators::commit::{PublishedEpoch, SnapshotIo, WrittenPart};
use tidegate_operators::fault::Fault;
use tidegate_operators::inputs::InputTable;
use tidegate_recovery::rows::{RowChange, parse_partition_key};
use tidegate_recovery::{
    CommitTracker, Epoch, Generation, NextOffset, OutputBuffer, Part, ProcessIndex, RecordNumber,
    RestoredRow, RestoredRows, RowBuffer, RowRoute, SegmentRef, StepNumber, TopicPartition, WorkerIndex,
};
use timely::scheduling::SyncActivator;

type RowKey = (StepNumber, RowRoute, Vec<u8>, Vec<u8>);

/// What is durable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Durable {
    pub(crate) number: Option<RecordNumber>,
    pub(crate) epoch: Option<Epoch>,
    pub(crate) offsets: BTreeMap<TopicPartition, NextOffset>,
    rows: BTreeMap<RowKey, Vec<u8>>,
}

impl Durable {
    fn apply(&mut self, rows: &RowBuffer) {
        for row in rows.iter() {
            let key: RowKey = (row.step, row.route, row.key.to_vec(), row.sub.to_vec());
            match row.change {
                RowChange::Put(value) => {
                    self.rows.insert(key, value.to_vec());
                }
                RowChange::Delete => {
                    self.rows.remove(&key);
                }
                RowChange::DeletePrefix => {
                    self.rows.retain(|(step, route, of, sub), _| {
                        (*step, *route, of.as_slice()) != (row.step, row.route, row.key)
                            || !sub.starts_with(row.sub)
                    });
                }
            }
        }
    }

    /// The rows that each worker owns in a cluster of `peers`.
    pub(crate) fn restore(
        &self,
        inputs: &InputTable,
        peers: usize,
    ) -> Vec<BTreeMap<StepNumber, RestoredRows>> {
        let mut workers = vec![BTreeMap::<StepNumber, RestoredRows>::new(); peers];
        for ((step, route, key, sub), value) in &self.rows {
            let owner = match route {
                RowRoute::Bucket(bucket) => bucket.worker(peers),
                RowRoute::Partition => {
                    let id = parse_partition_key(key).and_then(|name| inputs.id(&name));
                    id.and_then(|id| inputs.get(id)).map_or(WorkerIndex(0), |input| input.owner)
                }
            };
            let row = RestoredRow {
                route: *route,
                key: key.clone().into(),
                sub: sub.clone().into(),
                value: value.clone().into(),
            };
            workers[owner.0 as usize].entry(*step).or_default().rows.push(row);
        }
        workers
    }
}

#[derive(Default)]
struct Model {
    durable: Durable,
    segments: BTreeMap<(Epoch, ProcessIndex), RowBuffer>,
    publishing: Option<(Duration, Epoch, Vec<Part>)>,
    frozen: bool,
    latency: Duration,
    wake: Vec<SyncActivator>,
    records: u64,
}

impl Model {
    fn publish(&mut self, epoch: Epoch, parts: &[Part]) -> RecordNumber {
        let number = RecordNumber(self.durable.number.map_or(1, |number| number.0 + 1));
        for part in parts {
            if let Some(rows) = self.segments.get(&(epoch, part.process)) {
                self.durable.apply(rows);
            }
            self.durable.offsets.extend(part.offsets.iter().cloned());
        }
        self.durable.number = Some(number);
        self.durable.epoch = Some(epoch);
        self.records += 1;
        number
    }
}

/// The store of a simulated cluster; clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct StoreModel(Arc<Mutex<Model>>);

impl StoreModel {
    fn lock(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a start would resume from.
    pub(crate) fn durable(&self) -> Durable {
        self.lock().durable.clone()
    }

    /// Commit records that were ever published.
    pub(crate) fn records(&self) -> u64 {
        self.lock().records
    }

    /// Nothing gets written while it is frozen.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.lock().frozen = frozen;
        self.wake();
    }

    /// How long a write takes.
    pub(crate) fn latency(&self, latency: Duration) {
        self.lock().latency = latency;
    }

    /// Time has passed.
    pub(crate) fn wake(&self) {
        for activator in &self.lock().wake {
            // A worker that is gone needs no waking.
            let _ = activator.activate();
        }
    }

    /// Every process is gone. A record that was on its way is there, or not.
    pub(crate) fn crash(&self, arrived: bool) {
        let mut model = self.lock();
        model.wake.clear();
        if let Some((_, epoch, parts)) = model.publishing.take()
            && arrived
        {
            model.publish(epoch, &parts);
        }
        model.segments.clear();
        model.frozen = false;
    }

    /// The store as a process sees it.
    pub(crate) fn process(
        &self,
        clock: VirtualClock,
        process: ProcessIndex,
        threads: usize,
        tracker: Arc<CommitTracker>,
    ) -> ProcessIo {
        ProcessIo { store: self.clone(), clock, process, threads, tracker, open: Mutex::default() }
    }
}

#[derive(Default)]
struct Open {
    submitted: BTreeMap<Epoch, (usize, RowBuffer)>,
    written: VecDeque<(Duration, WrittenPart)>,
}

/// The store as one process sees it.
pub(crate) struct ProcessIo {
    store: StoreModel,
    clock: VirtualClock,
    process: ProcessIndex,
    threads: usize,
    tracker: Arc<CommitTracker>,
    open: Mutex<Open>,
}

impl SnapshotIo for ProcessIo {
    fn wake_for_parts(&self, activator: SyncActivator) {
        self.store.lock().wake.push(activator);
    }

    fn wake_for_records(&self, activator: SyncActivator) {
        self.store.lock().wake.push(activator);
    }

    fn submit(&self, epoch: Epoch, rows: RowBuffer, output: OutputBuffer) {
        assert!(output.is_empty(), "the simulation's sinks write directly");
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = open.submitted.entry(epoch).or_default();
        entry.0 += 1;
        entry.1.append(&rows);
        assert!(entry.0 <= self.threads, "a worker thread hands in its rows of an epoch once");
        if entry.0 < self.threads {
            return;
        }
        let (_, rows) = open.submitted.remove(&epoch).expect("it was there");
        let offsets = self.tracker.offsets_at(epoch);
        let part = (!rows.is_empty() || !offsets.is_empty()).then(|| Part {
            epoch,
            process: self.process,
            segment: (!rows.is_empty()).then_some(SegmentRef {
                epoch,
                generation: Generation(1),
                process: self.process,
                length: rows.as_bytes().len() as u64,
                checksum: 0,
            }),
            outbox: None,
            needs: Vec::new(),
            offsets,
        });
        let mut model = self.store.lock();
        model.segments.insert((epoch, self.process), rows);
        // What changes nothing costs nothing.
        let latency = if part.is_some() { model.latency } else { Duration::ZERO };
        open.written.push_back((self.clock.now() + latency, WrittenPart { epoch, part }));
        drop(model);
        self.store.wake();
    }

    fn written(&self) -> Result<Vec<WrittenPart>, Fault> {
        let mut written = Vec::new();
        if self.store.lock().frozen {
            return Ok(written);
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while open.written.front().is_some_and(|(ready, _)| *ready <= self.clock.now()) {
            written.extend(open.written.pop_front().map(|(_, part)| part));
        }
        Ok(written)
    }

    fn publish(&self, epoch: Epoch, parts: Vec<Part>) {
        let mut model = self.store.lock();
        assert!(model.publishing.is_none(), "one record at a time");
        model.publishing = Some((self.clock.now() + model.latency, epoch, parts));
        drop(model);
        self.store.wake();
    }

    fn published(&self) -> Result<Vec<PublishedEpoch>, Fault> {
        let mut model = self.store.lock();
        let ready = model.publishing.as_ref().is_some_and(|(ready, ..)| *ready <= self.clock.now());
        if !ready || model.frozen {
            return Ok(Vec::new());
        }
        let (_, epoch, parts) = model.publishing.take().expect("it is ready");
        let record = model.publish(epoch, &parts);
        Ok(vec![PublishedEpoch { epoch, record }])
    }
}

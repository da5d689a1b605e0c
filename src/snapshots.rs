//! The recovery store behind the dataflow: threads that write, so that no worker waits for a disk.
//!
//! Each process has a parts thread, which turns the rows of all its workers into one synced segment. Process 0
//! has a records thread besides, which publishes commit records and deletes what they made useless. Both work in
//! the order in which they were asked. A failure is handed to the dataflow, which ends the run with it; nothing
//! is written after a failure.

use crate::causes::store_fault;
use crate::test_points::reach;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_operators::commit::{PublishedEpoch, SnapshotIo, WrittenPart};
use tidegate_operators::fault::Fault;
use tidegate_recovery::{
    CommitTracker, Epoch, ErrorClass, OutputBuffer, Part, ProcessStore, Published, Publisher, RecordNumber,
    RowBuffer, Slot,
};
use timely::scheduling::SyncActivator;

/// The store of one process, for the worker threads of that process.
pub(crate) struct StoreThreads {
    workers: usize,
    gathering: Mutex<BTreeMap<Epoch, Gathered>>,
    parts: Sender<(Epoch, Gathered)>,
    records: Option<Sender<RecordsJob>>,
    done: Arc<Done>,
}

/// What the worker threads have handed in of a commit epoch.
#[derive(Default)]
struct Gathered {
    rows: Vec<RowBuffer>,
    output: Vec<OutputBuffer>,
}

/// What the records thread is asked for.
enum RecordsJob {
    Publish(Epoch, Vec<Part>),
    OutputPublished(Slot, Epoch),
    /// The run is over; whoever asks waits for the answer.
    Settle(Sender<()>),
}

/// What the threads have finished, and whom to wake.
#[derive(Default)]
struct Done {
    written: Mutex<Mailbox<WrittenPart>>,
    published: Mutex<Mailbox<PublishedEpoch>>,
}

struct Mailbox<T> {
    items: Vec<T>,
    failure: Option<Fault>,
    wake: Vec<SyncActivator>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Mailbox { items: Vec::new(), failure: None, wake: Vec::new() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Mailbox<T> {
    fn put(&mut self, item: Result<T, Fault>) {
        match item {
            Ok(item) => self.items.push(item),
            Err(fault) => self.failure = Some(fault),
        }
        for activator in &self.wake {
            // A worker that is gone needs no waking.
            let _ = activator.activate();
        }
    }

    fn take(&mut self) -> Result<Vec<T>, Fault> {
        match &self.failure {
            Some(fault) => Err(fault.clone()),
            None => Ok(std::mem::take(&mut self.items)),
        }
    }
}

impl StoreThreads {
    /// Starts the threads; `publisher` is there on process 0.
    pub(crate) fn start(
        workers: usize,
        store: ProcessStore,
        publisher: Option<Publisher>,
        offsets: Arc<CommitTracker>,
        on_part: OnPart,
    ) -> std::io::Result<StoreThreads> {
        let done = Arc::new(Done::default());
        let (parts, asked) = channel();
        let mailbox = Arc::clone(&done);
        std::thread::Builder::new()
            .name("store-parts".into())
            .spawn(move || write_parts(store, &offsets, &on_part, &asked, &mailbox))?;
        let records = match publisher {
            None => None,
            Some(publisher) => {
                let (records, asked) = channel();
                let mailbox = Arc::clone(&done);
                std::thread::Builder::new()
                    .name("store-records".into())
                    .spawn(move || publish_records(publisher, &asked, &mailbox))?;
                Some(records)
            }
        };
        Ok(StoreThreads { workers, gathering: Mutex::default(), parts, records, done })
    }
}

/// Hears of every part that is written, before anybody else does.
pub(crate) type OnPart = Box<dyn Fn(Epoch, &Part) + Send>;

fn write_parts(
    mut store: ProcessStore,
    offsets: &CommitTracker,
    on_part: &OnPart,
    asked: &Receiver<(Epoch, Gathered)>,
    done: &Done,
) {
    while let Ok((epoch, Gathered { rows, output })) = asked.recv() {
        let written = store.write_part_with_output(epoch, &rows, &output, offsets.offsets_at(epoch));
        let failed = written.is_err();
        if let Ok(Some(part)) = &written {
            on_part(epoch, part);
        }
        lock(&done.written)
            .put(written.map(|part| WrittenPart { epoch, part }).map_err(|error| store_fault(&error)));
        if failed {
            return;
        }
    }
}

fn publish_records(mut publisher: Publisher, asked: &Receiver<RecordsJob>, done: &Done) {
    while let Ok(job) = asked.recv() {
        let (epoch, parts) = match job {
            RecordsJob::Publish(epoch, parts) => (epoch, parts),
            RecordsJob::OutputPublished(slot, epoch) => {
                publisher.output_published(slot, epoch);
                continue;
            }
            RecordsJob::Settle(done) => {
                // The run is right as it is: the next start finds the same in the markers.
                if let Err(error) = publisher.settle() {
                    tracing::warn!(%error, "the store could not be told that all output is published");
                }
                // Whoever asked may have left.
                let _ = done.send(());
                continue;
            }
        };
        let published = publisher.publish(epoch, &parts);
        reach("store.record");
        let failed = published.is_err();
        let record = match published {
            Ok(Published::Record(record)) => Ok(record),
            Ok(Published::Unchanged) => Ok(publisher.record().unwrap_or(RecordNumber(0))),
            Err(error) => Err(store_fault(&error)),
        };
        lock(&done.published).put(record.map(|record| PublishedEpoch { epoch, record }));
        if failed {
            return;
        }
        // Behind the news of the record: nobody waits for what is only tidying up.
        if let Err(error) = publisher.retain() {
            lock(&done.published).put(Err(store_fault(&error)));
            return;
        }
    }
}

impl StoreThreads {
    /// On process 0, at the end of a run that went well: the newest commit record says that all output is published, if it is.
    pub(crate) fn settle(&self) {
        let Some(records) = &self.records else { return };
        let (done, answer) = channel();
        if records.send(RecordsJob::Settle(done)).is_ok() {
            // An error means that the thread has ended, and it has said why.
            let _ = answer.recv();
        }
    }

    /// On process 0: commit records need not name the slot's outboxes up to this epoch any more.
    pub(crate) fn output_published(&self, slot: Slot, epoch: Epoch) {
        if let Some(records) = &self.records {
            // A thread that has ended has said why.
            let _ = records.send(RecordsJob::OutputPublished(slot, epoch));
        }
    }
}

impl SnapshotIo for StoreThreads {
    fn wake_for_parts(&self, activator: SyncActivator) {
        lock(&self.done.written).wake.push(activator);
    }

    fn wake_for_records(&self, activator: SyncActivator) {
        lock(&self.done.published).wake.push(activator);
    }

    fn submit(&self, epoch: Epoch, rows: RowBuffer, output: OutputBuffer) {
        let mut gathering = lock(&self.gathering);
        let of_epoch = gathering.entry(epoch).or_default();
        of_epoch.rows.push(rows);
        of_epoch.output.push(output);
        if of_epoch.rows.len() < self.workers {
            return;
        }
        let gathered = gathering.remove(&epoch).unwrap_or_default();
        if self.parts.send((epoch, gathered)).is_err() && lock(&self.done.written).failure.is_none() {
            lock(&self.done.written)
                .put(Err(Fault::new(ErrorClass::Internal, "the thread that writes the store has ended")));
        }
    }

    fn written(&self) -> Result<Vec<WrittenPart>, Fault> {
        lock(&self.done.written).take()
    }

    fn publish(&self, epoch: Epoch, parts: Vec<Part>) {
        let job = RecordsJob::Publish(epoch, parts);
        let sent = self.records.as_ref().is_some_and(|records| records.send(job).is_ok());
        if !sent && lock(&self.done.published).failure.is_none() {
            lock(&self.done.published)
                .put(Err(Fault::new(ErrorClass::Internal, "the thread that publishes records has ended")));
        }
    }

    fn published(&self) -> Result<Vec<PublishedEpoch>, Fault> {
        lock(&self.done.published).take()
    }
}

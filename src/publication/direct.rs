//! Exactly-once output without a store: the publication of one process, as its dataflow sees it.
//!
//! Each input partition that the process reads has a thread ([`PartitionThread`]) with a transactional producer of its own. The
//! start, in this order: every process initialises the producers of the partitions that it is going to read, which fences
//! whoever read them before; the barrier of all processes; process 0 fetches the group's offsets; the threads learn where
//! their partitions begin.
//!
//! From then on the worker threads hand in what the sinks took in a commit epoch; when all of the process have, the threads
//! whose partition moved publish output and offset. An epoch is published when all of them have.

use super::partition::{Closed, Job, PartitionThread};
use super::waiting::Leaving;
use crate::causes::{cause_of, internal};
use crate::run::ended;
use crate::work::is_own;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_cluster::{ClusterError, Joined};
use tidegate_operators::commit::{DirectIo, DirectNews};
use tidegate_operators::element::PartitionId;
use tidegate_operators::fault::Fault;
use tidegate_operators::inputs::InputTable;
use tidegate_operators::kafka::{ConsumerConfig, Lookup, ProducerConfig};
use tidegate_operators::process::StandingCheck;
use tidegate_operators::sink::PartitionOutput;
use tidegate_recovery::{CommitTracker, Epoch, ErrorClass, NextOffset, TopicPartition};
use timely::scheduling::SyncActivator;

/// What the threads need to know.
pub(crate) struct DirectSettings {
    pub(crate) flow: String,
    pub(crate) group: String,
    pub(crate) producer: ProducerConfig,
    /// For questions about the group; always `read_committed`.
    pub(crate) consumer: ConsumerConfig,
    /// How long an answer is waited for before its outcome counts as unknown.
    pub(crate) request_timeout: Duration,
    /// After so long without a commit an idle partition's offset is committed again.
    pub(crate) keepalive: Duration,
    /// How long the start may take.
    pub(crate) start_timeout: Duration,
    /// Whether this process is still in charge.
    pub(crate) standing: StandingCheck,
}

/// What the threads of a process and its dataflow share.
pub(super) struct Shared {
    pub(super) settings: DirectSettings,
    pub(super) leaving: Leaving,
    bytes: AtomicUsize,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    news: Vec<DirectNews>,
    failure: Option<Fault>,
    /// How many partitions have not published a commit epoch, by epoch; every one that is not said to be published is here.
    outstanding: BTreeMap<Epoch, usize>,
    wake: Option<SyncActivator>,
}

impl Seen {
    fn tell(&mut self) {
        while let Some(first) = self.outstanding.first_entry()
            && *first.get() == 0
        {
            let (epoch, _) = first.remove_entry();
            self.news.push(DirectNews::Published(epoch));
        }
        if let Some(activator) = &self.wake {
            // A worker that is gone needs no waking.
            let _ = activator.activate();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A partition's offset is committed, with everything up to it.
    pub(super) fn committed(&self, partition: PartitionId, next: NextOffset) {
        let mut seen = self.lock();
        seen.news.push(DirectNews::Committed(partition, next));
        seen.tell();
    }

    /// A partition has nothing of this epoch left to publish.
    pub(super) fn published(&self, epoch: Epoch) {
        let mut seen = self.lock();
        if let Some(outstanding) = seen.outstanding.get_mut(&epoch) {
            *outstanding -= 1;
        }
        seen.tell();
    }

    /// Output was published and is not kept any more.
    pub(super) fn forgotten(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Nothing more is published. The first failure counts.
    pub(super) fn failed(&self, fault: Fault) {
        let mut seen = self.lock();
        seen.failure.get_or_insert(fault);
        seen.tell();
    }
}

/// The producers of a process are initialised; dropping it ends the threads without ending a transaction.
pub(crate) struct Initialised {
    shared: Arc<Shared>,
    threads: Threads,
}

/// The threads of a process by partition; dropping it ends them.
struct Threads(BTreeMap<TopicPartition, Thread>, Leaving);

struct Thread {
    jobs: Sender<Job>,
    answers: Receiver<Result<(), Fault>>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.1.leave();
    }
}

/// Where a partition begins.
pub(crate) struct PartitionBeginning {
    pub(crate) partition: TopicPartition,
    /// The group's offset, fetched behind the barrier.
    pub(crate) group: Option<NextOffset>,
    /// What the group is to have before anything is read, where a policy chose another start than its offset.
    pub(crate) chosen: Option<NextOffset>,
}

impl Initialised {
    /// Fences whoever read the partitions that this process is going to read. The group's offsets are fetched behind it: the
    /// exchange in which process 0 does that waits for every process.
    pub(crate) fn initialise(
        settings: DirectSettings,
        topics: &[String],
        joined: &mut Joined,
    ) -> Result<Initialised, ClusterError> {
        let supervisor = joined.supervisor().clone();
        let answer = joined.exchange(Vec::new(), |_| {
            let partitions = Lookup::new(&settings.consumer, settings.start_timeout)
                .and_then(|lookup| lookup.partitions(topics))
                .map_err(|fault| cause_of(&fault))?;
            postcard::to_stdvec(&partitions).map_err(|error| internal("encode the partitions", &error))
        })?;
        let partitions: Vec<TopicPartition> = postcard::from_bytes(&answer)
            .map_err(|error| ended(&supervisor, internal("read the partitions", &error)))?;
        let spec = joined.spec();
        let inputs = InputTable::deal(partitions, spec.workers());
        let own = inputs.iter().filter(|(_, input)| is_own(spec, input)).map(|(_, input)| input.name.clone());
        Initialised::partitions(settings, own.collect()).map_err(|fault| ended(&supervisor, cause_of(&fault)))
    }

    /// Starts a thread for each of these partitions and waits until all producers are initialised.
    fn partitions(settings: DirectSettings, own: Vec<TopicPartition>) -> Result<Initialised, Fault> {
        let deadline = Instant::now() + settings.start_timeout;
        let seen = Mutex::default();
        let shared =
            Arc::new(Shared { settings, leaving: Leaving::default(), bytes: AtomicUsize::new(0), seen });
        let mut threads = Threads(BTreeMap::new(), shared.leaving.clone());
        for partition in own {
            let (jobs, asked) = channel();
            let (answer, answers) = channel();
            let thread = PartitionThread::new(partition.clone(), Arc::clone(&shared), deadline);
            std::thread::Builder::new()
                .name(format!("publish {}:{}", partition.topic, partition.partition))
                .spawn(move || thread.run(&asked, &answer))
                .map_err(|error| {
                    Fault::new(ErrorClass::Internal, format!("cannot start a thread: {error}"))
                })?;
            threads.0.insert(partition, Thread { jobs, answers });
        }
        let initialised = Initialised { shared, threads };
        initialised.wait_for_all(deadline)?;
        Ok(initialised)
    }

    /// Tells the threads where their partitions begin and waits until the group has what a policy chose.
    pub(crate) fn begin(
        self,
        beginnings: Vec<PartitionBeginning>,
        inputs: &InputTable,
        tracker: Arc<CommitTracker>,
        workers: usize,
    ) -> Result<DirectPublication, Fault> {
        let begun: BTreeSet<_> = beginnings.iter().map(|one| &one.partition).collect();
        // A topic that got partitions meanwhile: nobody could be fenced before the offsets were fetched.
        if !self.threads.0.keys().eq(begun) {
            return Err(Fault::new(
                ErrorClass::TryAgain,
                "the partitions of the input topics changed while the cluster came up: start again",
            ));
        }
        let deadline = Instant::now() + self.shared.settings.start_timeout;
        for PartitionBeginning { partition, group, chosen } in beginnings {
            let (Some(thread), Some(id)) = (self.threads.0.get(&partition), inputs.id(&partition)) else {
                continue;
            };
            // A thread that has ended says why when it is asked for its answer.
            let _ = thread.jobs.send(Job::Begin { id, group, chosen });
        }
        self.wait_for_all(deadline)?;
        Ok(DirectPublication {
            shared: self.shared,
            threads: Mutex::new(Some(self.threads)),
            inputs: inputs.clone(),
            tracker,
            workers,
            gathering: Mutex::default(),
        })
    }

    /// Waits for an answer of every thread.
    fn wait_for_all(&self, deadline: Instant) -> Result<(), Fault> {
        // A thread looks at the deadline between two requests.
        let end = deadline + self.shared.settings.request_timeout;
        for (partition, thread) in &self.threads.0 {
            let left = end.saturating_duration_since(Instant::now());
            thread.answers.recv_timeout(left).unwrap_or_else(|_| {
                Err(Fault::new(
                    ErrorClass::Unavailable,
                    format!("the transactional producer of {partition} was not initialised in time"),
                ))
            })?;
        }
        Ok(())
    }
}

/// What the worker threads have handed in of a commit epoch.
#[derive(Default)]
struct Gathered {
    threads: usize,
    output: BTreeMap<PartitionId, PartitionOutput>,
}

/// The publication of one process.
pub(crate) struct DirectPublication {
    shared: Arc<Shared>,
    threads: Mutex<Option<Threads>>,
    inputs: InputTable,
    tracker: Arc<CommitTracker>,
    /// Worker threads of this process.
    workers: usize,
    gathering: Mutex<BTreeMap<Epoch, Gathered>>,
}

impl DirectPublication {
    /// Lets go of the threads: each ends with what it is doing, without ending a transaction.
    pub(crate) fn leave(&self) {
        *self.threads.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// At the end of a run that went well: waits for what the threads are doing (an offset that is committed again), so that no
    /// transaction stays open.
    pub(crate) fn settle(&self) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(threads) = &mut *threads else { return };
        let answers: Vec<_> =
            std::mem::take(&mut threads.0).into_values().map(|thread| thread.answers).collect();
        let end = Instant::now() + self.shared.settings.request_timeout;
        for answers in answers {
            // A thread that has ended answers no more.
            while answers.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {}
        }
    }

    fn publish(&self, epoch: Epoch, mut gathered: Gathered) {
        let moved: BTreeMap<_, _> = self.tracker.offsets_at(epoch).into_iter().collect();
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(threads) = &*threads else { return };
        let mut closed = Vec::new();
        for (partition, thread) in &threads.0 {
            let next = moved.get(partition).copied();
            let output = self.inputs.id(partition).and_then(|id| gathered.output.remove(&id));
            if next.is_some() || output.is_some() {
                closed.push((thread, Closed { epoch, output: output.unwrap_or_default(), next }));
            }
        }
        if let Some((id, _)) = gathered.output.first_key_value() {
            let what = format!("there is output of the input partition {}, which is not read here", id.0);
            self.shared.failed(Fault::new(ErrorClass::Internal, what));
            return;
        }
        {
            let mut seen = self.shared.lock();
            seen.outstanding.insert(epoch, closed.len());
            seen.tell();
        }
        for (thread, closed) in closed {
            // A thread that has ended has left its reason behind.
            let _ = thread.jobs.send(Job::Closed(closed));
        }
    }
}

impl DirectIo for DirectPublication {
    fn wake_with(&self, activator: SyncActivator) {
        self.shared.lock().wake = Some(activator);
    }

    fn submit(&self, epoch: Epoch, output: Vec<(PartitionId, PartitionOutput)>) {
        let bytes = output.iter().map(|(_, output)| output.bytes()).sum();
        self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut gathering = self.gathering.lock().unwrap_or_else(PoisonError::into_inner);
        let of_epoch = gathering.entry(epoch).or_default();
        of_epoch.threads += 1;
        // A partition is read by one worker thread.
        of_epoch.output.extend(output);
        if of_epoch.threads == self.workers {
            let gathered = gathering.remove(&epoch).unwrap_or_default();
            self.publish(epoch, gathered);
        }
    }

    fn news(&self) -> Result<Vec<DirectNews>, Fault> {
        let mut seen = self.shared.lock();
        match &seen.failure {
            Some(fault) => Err(fault.clone()),
            None => Ok(std::mem::take(&mut seen.news)),
        }
    }

    fn bytes(&self) -> usize {
        self.shared.bytes.load(Ordering::Relaxed)
    }
}

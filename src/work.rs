//! The work of one process in one generation: what its worker threads share, and what each of them does.

use crate::causes::{cause_of, config, fault_of, internal, store_fault};
use crate::clients::Clients;
use crate::config::kafka::{ConsumerSettings, OffsetReset};
use crate::connections::{Connections, WorkerClients};
use crate::flow::Flow;
use crate::flow::plan::FlowPlan;
use crate::offsets::Offsets;
use crate::publication::{DirectPublication, Initialised, PartitionBeginning, Publication};
use crate::restore::Restored;
use crate::run::{Describe, Job};
use crate::snapshots::{OnPart, StoreThreads};
use crate::start::StartPlan;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_cluster::{Cause, ClusterSpec, Joined};
use tidegate_operators::build::FlowBuild;
use tidegate_operators::clock::{Clock, EpochClock, SystemClock};
use tidegate_operators::commit::{SnapshotIo, commit_at_close};
use tidegate_operators::context::WorkerContext;
use tidegate_operators::ending::build_ending;
use tidegate_operators::fault::Faults;
use tidegate_operators::inputs::{InputPartition, InputTable};
use tidegate_operators::limits::{Limits, SinkLoad};
use tidegate_operators::metrics::Metrics;
use tidegate_operators::process::{ProcessContext, StandingCheck};
use tidegate_operators::status::StatusBoard;
use tidegate_operators::steps::FlowSteps;
use tidegate_operators::time::Time;
use tidegate_recovery::{
    Assignment, CommitTracker, Epoch, EpochSchedule, LeaseView, Publisher, RestoredRows, StepNumber,
    TrackerSettings,
};

/// Where the work begins: what the processes have agreed on, and what this one read back.
pub(crate) struct Beginning {
    /// The first epoch.
    pub(crate) first: Epoch,
    /// The moment at which it begins, on all processes.
    pub(crate) base: Instant,
    /// Where each partition begins.
    pub(crate) start: StartPlan,
    /// The partitions and their owners.
    pub(crate) inputs: InputTable,
    /// The state.
    pub(crate) restored: Restored,
    /// Publishes commit records; process 0 has it, where there is a store.
    pub(crate) publisher: Option<Publisher>,
    /// This generation's lease, where there is a store.
    pub(crate) lease: Option<LeaseView>,
    /// Publishes the output of exactly-once sinks, where there is a store.
    pub(crate) publication: Option<Publication>,
    /// The same without a store.
    pub(crate) direct: Option<Initialised>,
}

/// What the worker threads of this process run.
pub(crate) struct Work {
    name: String,
    topics: Vec<String>,
    describe: Describe,
    plan: FlowPlan,
    pub(crate) process: Arc<ProcessContext>,
    pub(crate) tracker: Arc<CommitTracker>,
    pub(crate) direct: Option<Arc<DirectPublication>>,
    pub(crate) store: Option<Arc<StoreThreads>>,
    connections: Arc<Connections>,
    rows: Mutex<Vec<Option<HashMap<StepNumber, RestoredRows>>>>,
}

impl Work {
    /// Starts the store's threads and joins all that the worker threads share.
    pub(crate) fn new(
        job: &Job,
        plan: FlowPlan,
        steps: FlowSteps,
        clients: Clients,
        beginning: Beginning,
        joined: &Joined,
    ) -> Result<Work, Cause> {
        let settings = &job.settings;
        let consumer = settings.consumer.clone().ok_or_else(|| config("the flow has no kafka.consumer"))?;
        let Beginning { first, base, start, inputs, restored, publisher, lease, publication, direct } =
            beginning;
        let spec = joined.spec();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::since(base));
        let tracker = Arc::new(CommitTracker::new(TrackerSettings {
            keepalive: consumer.commit_keepalive,
            ..TrackerSettings::default()
        }));
        // The stale ones were announced by process 0, for all partitions.
        drop(tracker.begin(&own_partitions(&start, &inputs, spec), base));
        let store = match restored.store {
            None => None,
            Some(store) => {
                let threads = spec.workers_per_process();
                let on_part: OnPart = match &publication {
                    Some(publication) => publication.on_part(),
                    None => Box::new(|_, _| ()),
                };
                let io = StoreThreads::start(threads, store, publisher, Arc::clone(&tracker), on_part)
                    .map_err(|error| internal("start the store's threads", &error))?;
                Some(Arc::new(io))
            }
        };
        let output = publication.zip(store.clone()).map(|(publication, store)| publication.into_io(store));
        let snapshots = store.clone().map(|store| store as Arc<dyn SnapshotIo>);
        let direct = match direct {
            None => None,
            Some(initialised) => {
                let partitions = direct_beginnings(&start, &inputs, spec, &consumer);
                let threads = spec.workers_per_process();
                let begun = initialised.begin(partitions, &inputs, Arc::clone(&tracker), threads);
                Some(Arc::new(begun.map_err(|fault| cause_of(&fault))?))
            }
        };
        let schedule = EpochSchedule { first, commit_every: settings.commit_every() };
        let limits = limits(job, &consumer);
        let stop = joined.supervisor().stop_request().clone();
        let generation = joined.generation();
        let metrics = Arc::new(Metrics::new());
        metrics.generation.set(i64::try_from(generation.0).unwrap_or(i64::MAX));
        let process = Arc::new(ProcessContext {
            process: spec.index(),
            workers_per_process: spec.workers_per_process(),
            peers: spec.workers(),
            generation,
            delivery: job.settings.delivery(),
            schedule,
            epochs: EpochClock::new(Arc::clone(&clock), &schedule, Duration::ZERO, settings.epoch_interval),
            inputs: inputs.clone(),
            steps,
            sinks: SinkLoad::new(limits.sink_in_flight_bytes),
            limits,
            until_end: job.until_end,
            stop,
            faults: Faults::new(),
            offsets: Arc::new(Offsets::new(Arc::clone(&tracker), inputs.clone(), base)),
            snapshots,
            output,
            direct: direct.clone().map(|direct| direct as Arc<_>),
            standing: standing(joined, lease),
            metrics,
            status: StatusBoard::new(generation),
            sabotage: Default::default(),
        });
        let connections = Arc::new(Connections {
            commit_deadline: direct.is_none().then_some(settings.cluster.startup_timeout),
            consumer,
            consumer_config: clients.consumer,
            producer_config: clients.producer,
            process: spec.index(),
            processes: spec.processes(),
            inputs,
            start,
        });
        let topics = connections.consumer.topics.clone();
        let rows = Mutex::new(restored.rows.into_iter().map(Some).collect());
        Ok(Work {
            name: job.name.clone(),
            topics,
            describe: job.describe.clone(),
            plan,
            process,
            tracker,
            direct,
            store,
            connections,
            rows,
        })
    }

    /// One worker thread, from its dataflow to its end.
    pub(crate) fn run(
        &self,
        worker: &mut timely::worker::Worker,
        cluster: &tidegate_cluster::WorkerContext,
    ) -> Result<(), Cause> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner)[cluster.thread].take();
        let context = WorkerContext::new(Arc::clone(&self.process), cluster.worker, rows.unwrap_or_default());
        let connections = Rc::new(WorkerClients::new(Arc::clone(&self.connections), cluster.worker));
        worker.dataflow_named::<Time, _, _>(&self.name, |scope| {
            let operators = FlowBuild::new(scope, context.clone());
            let describe = &self.describe;
            Flow::build(&self.name, &self.topics, &self.plan, operators, connections, |flow| describe(flow))
                .finish();
        });
        build_ending(worker, &context);
        while worker.has_dataflows() && !self.process.faults.is_raised() && !cluster.leaving() {
            cluster.step_or_park(worker, self.process.epochs.until_next());
        }
        if !self.process.faults.is_raised()
            && !cluster.leaving()
            && let Err(fault) = commit_at_close(&context)
        {
            context.fail(fault);
        }
        match self.process.faults.first() {
            None => Ok(()),
            Some(fault) => Err(cause_of(&fault).in_worker(cluster.worker)),
        }
    }
}

/// Whether a worker of this process reads the partition.
pub(crate) fn is_own(spec: &ClusterSpec, input: &InputPartition) -> bool {
    input.owner.0 as usize / spec.workers_per_process() == spec.index().0 as usize
}

/// The partitions whose offsets this process commits: those that its workers read.
pub(crate) fn own_partitions(start: &StartPlan, inputs: &InputTable, spec: &ClusterSpec) -> Vec<Assignment> {
    start
        .partitions
        .iter()
        .filter(|plan| {
            let input = inputs.id(&plan.partition).and_then(|id| inputs.get(id));
            input.is_some_and(|input| is_own(spec, input))
        })
        .map(|plan| Assignment {
            partition: plan.partition.clone(),
            resumed: plan.resumed,
            group: plan.group,
        })
        .collect()
}

/// Where the partitions that this process reads begin, for those who publish what is made of them.
fn direct_beginnings(
    start: &StartPlan,
    inputs: &InputTable,
    spec: &ClusterSpec,
    consumer: &ConsumerSettings,
) -> Vec<PartitionBeginning> {
    let own = own_partitions(start, inputs, spec).into_iter();
    own.map(|Assignment { partition, group, .. }| {
        let plan = start.partitions.iter().find(|plan| plan.partition == partition);
        // What `latest` means must not move with every crash; a reset that was accepted moves the group back.
        let is_chosen = match group {
            None => {
                start.begun_anew.contains(&partition.topic)
                    || consumer.auto_offset_reset == OffsetReset::Latest
            }
            Some(group) => plan.is_some_and(|plan| plan.start < group),
        };
        let chosen = plan.filter(|_| is_chosen).map(|plan| plan.start);
        PartitionBeginning { partition, group, chosen }
    })
    .collect()
}

fn limits(job: &Job, consumer: &ConsumerSettings) -> Limits {
    let settings = &job.settings;
    Limits {
        in_flight_bytes: usize::try_from(consumer.in_flight_bytes).unwrap_or(usize::MAX),
        in_flight_records: usize::try_from(consumer.in_flight_records).unwrap_or(usize::MAX),
        commits_in_flight: settings.recovery.commits_in_flight,
        volatile_records_max: usize::try_from(settings.volatile_records_max).unwrap_or(usize::MAX),
        state_rows_max: usize::try_from(settings.state_rows_max).unwrap_or(usize::MAX),
        batch_records: consumer.batch_size,
        poll_backoff: consumer.poll_backoff,
        peer_timeout: settings.cluster.peer_timeout,
        ..Limits::default()
    }
}

/// Whether this process may still commit: it did not stand still, and no newer generation has the lease.
pub(crate) fn standing(joined: &Joined, lease: Option<LeaseView>) -> StandingCheck {
    let liveness = joined.liveness();
    Arc::new(move || {
        liveness.check().map_err(|cause| fault_of(&cause))?;
        lease.as_ref().map_or(Ok(()), |lease| lease.still_mine().map_err(|error| store_fault(&error)))
    })
}

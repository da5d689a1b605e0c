//! The life of a process, from top to bottom.
//!
//! 1. The flow is planned and checked; a mistake ends it here, before anything is contacted.
//! 2. The port of the mesh is bound, and all processes find each other and agree.
//! 3. Process 0 opens the recovery store (lease, highest record), asks Kafka where each partition begins, and
//!    tells the others.
//! 4. Each process reads back the state that it now owns.
//! 5. Each worker thread builds the same dataflow and steps it until it is done, or until the first thing goes
//!    wrong somewhere.
//! 6. The clients are closed, the peers are told, and the exit code says how it went.

use crate::clients::{self, Clients};
use crate::config::problems::{Problem, Severity};
use crate::config::settings::Settings;
use crate::connections::{Connections, WorkerClients};
use crate::flow::Flow;
use crate::flow::plan::FlowPlan;
use crate::http::HttpServer;
use crate::offsets::Offsets;
use crate::probe::{ProcessProbe, Stage};
use crate::snapshots::StoreThreads;
use crate::start::{self, StartPlan, StartQuestion};
use crate::{progress, signals};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_cluster::{
    Assignment, Cause, ClusterError, ClusterSpec, HardExit, Identity, Joined, Mesh, Outcome, Present,
    StopRequest, Supervisor, Timeouts, new_run_id, worker_config,
};
use tidegate_operators::build::FlowBuild;
use tidegate_operators::clock::{Clock, EpochClock, SystemClock};
use tidegate_operators::commit::commit_at_close;
use tidegate_operators::context::WorkerContext;
use tidegate_operators::ending::build_ending;
use tidegate_operators::fault::{Fault, Faults};
use tidegate_operators::inputs::InputTable;
use tidegate_operators::kafka::{OutputTopic, check_outputs, reaper};
use tidegate_operators::limits::{Limits, SinkLoad};
use tidegate_operators::metrics::Metrics;
use tidegate_operators::process::{DeliveryGuarantee, ProcessContext, StopRequest as FlowStop};
use tidegate_operators::status::StatusBoard;
use tidegate_operators::steps::StepTable;
use tidegate_operators::time::Time;
use tidegate_recovery::storage::LocalDirectory;
use tidegate_recovery::{
    Assignment as PartitionAssignment, ClusterShape, CommitTracker, Epoch, EpochSchedule, ErrorClass,
    Generation, Lease, LeaseKeeper, OpenOptions, ProcessStore, Publisher, RecoveryStore, RestoredRows,
    ResumeState, RunId, Slot, StepNumber, StoreError, TrackerSettings,
};

/// A flow, as the run needs it: called once to plan and once on every worker thread.
pub(crate) type Describe = Arc<dyn Fn(&Flow<'_>) + Send + Sync>;

/// Everything that a run was asked for.
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) describe: Describe,
    pub(crate) settings: Settings,
    /// The settings that all processes must have in common, by path.
    pub(crate) in_common: BTreeMap<String, String>,
    pub(crate) until_end: bool,
    pub(crate) allow_lost_state: bool,
    pub(crate) allow_dropped_state: bool,
    pub(crate) allow_older_snapshot: bool,
}

/// What process 0 tells the others before they read the store.
#[derive(Serialize, Deserialize)]
struct StoreMessage {
    resume: Option<ResumeState>,
}

impl Job {
    /// The plan of the flow and everything that is wrong with it.
    pub(crate) fn plan(&self) -> (FlowPlan, Vec<Problem>) {
        let topics =
            self.settings.consumer.as_ref().map(|consumer| consumer.topics.clone()).unwrap_or_default();
        let plan = Flow::plan(&self.name, &topics, |flow| (self.describe)(flow));
        let problems = plan.guards(&self.settings);
        (plan, problems)
    }

    /// What the handshake compares besides the fingerprint and the build.
    fn in_common(&self, plan: &FlowPlan) -> BTreeMap<String, String> {
        let mut in_common = self.in_common.clone();
        in_common.insert("the definition of the flow's steps".into(), plan.definition().to_string());
        in_common.insert("--until-end".into(), self.until_end.to_string());
        in_common
    }

    fn delivery(&self) -> DeliveryGuarantee {
        match self.settings.delivery() {
            crate::config::kafka::DeliveryGuarantee::AtMostOnce => DeliveryGuarantee::AtMostOnce,
            crate::config::kafka::DeliveryGuarantee::AtLeastOnce => DeliveryGuarantee::AtLeastOnce,
            crate::config::kafka::DeliveryGuarantee::ExactlyOnce => DeliveryGuarantee::ExactlyOnce,
        }
    }
}

/// Runs the job and returns the exit code. The last line of a process that fails names the first cause.
pub(crate) fn run(job: Job) -> u8 {
    match live(job) {
        Ok(code) => code,
        Err(cause) => {
            say(&cause);
            cause.exit_code()
        }
    }
}

fn say(cause: &Cause) {
    tracing::error!(code = &*cause.code, exit = cause.exit_code(), "{}", cause.text);
}

fn live(job: Job) -> Result<u8, Cause> {
    let (plan, problems) = job.plan();
    refuse(&problems)?;
    let steps = plan
        .table()
        .map_err(|step| config(format!("two steps are called {step}: give each its own name")))?;
    let clients = clients::configs(&job.settings).map_err(|fault| cause_of(&fault))?;

    let supervisor = Supervisor::with_stop(StopRequest::new());
    let stop = supervisor.stop_request().clone();
    let shutdown = job.settings.cluster.shutdown_timeout;
    signals::listen(move |_| stop.request()).map_err(|error| internal("listen for signals", &error))?;
    arm_shutdown(&supervisor, shutdown);

    let stage = Stage::begin();
    let probe = Arc::new(ProcessProbe::new(&job.name, Arc::clone(&stage)));
    let _http = start_http(&job, &probe)?;
    let mesh = bind(&job, &plan, &supervisor)?;
    probe.watch(mesh.watch());
    stage.set("waiting for the other processes");
    let outcome = match bring_up(&job, plan, steps, clients, mesh, &supervisor, &stage, &probe) {
        Ok(outcome) => outcome,
        Err(ClusterError::Stopped) => {
            tracing::info!("stopped before the work began");
            return Ok(0);
        }
        Err(error) => return Err(error.into()),
    };
    close(outcome)
}

/// Ends a process whose stop takes longer than `shutdown_timeout`.
fn arm_shutdown(supervisor: &Supervisor, after: Duration) {
    let armed: Arc<Mutex<Option<HardExit>>> = Arc::default();
    supervisor.stop_request().on_request(move || {
        match HardExit::arm(after, ErrorClass::TryAgain.exit_code()) {
            Ok(exit) => *armed.lock().unwrap_or_else(PoisonError::into_inner) = Some(exit),
            Err(error) => tracing::warn!(%error, "the deadline of the shutdown cannot be watched"),
        }
    });
}

fn refuse(problems: &[Problem]) -> Result<(), Cause> {
    let mut errors = problems.iter().filter(|problem| problem.severity == Severity::Error).peekable();
    for warning in problems.iter().filter(|problem| problem.severity == Severity::Warning) {
        tracing::warn!(code = warning.code, path = warning.path, "{}", warning.text());
    }
    let Some(first) = errors.peek().copied().cloned() else { return Ok(()) };
    let count = errors.clone().count();
    for error in errors {
        tracing::error!(code = error.code, path = error.path, "{}", error.text());
    }
    let text = match count {
        1 => first.text(),
        more => format!("the flow has {more} mistakes, the first: {}", first.text()),
    };
    Err(Cause::new(ErrorClass::Config, first.code, text))
}

fn start_http(job: &Job, probe: &Arc<ProcessProbe>) -> Result<Option<HttpServer>, Cause> {
    let Some(address) = job.settings.http else { return Ok(None) };
    let server = HttpServer::start(&address.to_string(), Arc::clone(probe) as _).map_err(|error| {
        config(format!("the http port {address} cannot be used: {error}; choose another --http"))
    })?;
    tracing::info!(address = %server.address(), "serving /livez, /readyz, /metrics and /status");
    Ok(Some(server))
}

fn bind(job: &Job, plan: &FlowPlan, supervisor: &Supervisor) -> Result<Mesh, Cause> {
    let cluster = &job.settings.cluster;
    let spec = ClusterSpec::new(
        Some(cluster.process_index),
        &cluster.addresses,
        Some(cluster.workers_per_process as usize),
    )?;
    let identity = Identity {
        cluster_id: job.name.clone(),
        fingerprint: plan.fingerprint(),
        build: build_id(),
        in_common: job.in_common(plan),
        run_id: new_run_id()?,
        known_generation: Generation(0),
        secret: cluster.secret.as_ref().map(|secret| tidegate_cluster::Secret::new(secret.reveal())),
    };
    let timeouts = Timeouts {
        peer: cluster.peer_timeout,
        startup: cluster.startup_timeout,
        unwind: cluster.unwind_timeout,
        ..Timeouts::default()
    };
    Ok(Mesh::bind(spec, identity, timeouts, supervisor)?)
}

/// The build that runs: processes of one cluster must share it, since batches travel between them.
fn build_id() -> String {
    concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned()
}

#[expect(clippy::too_many_arguments, reason = "each is made once, above, and used once, here")]
fn bring_up(
    job: &Job,
    plan: FlowPlan,
    steps: StepTable,
    clients: Clients,
    mesh: Mesh,
    supervisor: &Supervisor,
    stage: &Stage,
    probe: &Arc<ProcessProbe>,
) -> Result<Outcome<()>, ClusterError> {
    let store = job
        .settings
        .recovery
        .directory
        .as_ref()
        .map(|directory| RecoveryStore::new(Arc::new(LocalDirectory::new(directory))));
    let mut leading = None;
    let mut joined = mesh.join(|present| {
        stage.set("opening the recovery store");
        lead(job, &plan, &steps, store.as_ref(), present, &mut leading)
    })?;
    let message: StoreMessage = postcard::from_bytes(joined.settings())
        .map_err(|error| ended(supervisor, internal("read what process 0 decided", &error)))?;
    let resume = message.resume;
    let keeper = keep_lease(leading.as_ref(), supervisor)?;
    if let (Some(store), Some(resume)) = (&store, &resume) {
        store.join(resume).map_err(|error| ended(supervisor, store_cause(&error)))?;
    }

    stage.set("asking Kafka where to begin");
    let start = find_start(job, &plan, &clients, resume.as_ref(), &mut joined)?;
    stage.set("reading the state back");
    let spec = joined.spec().clone();
    let inputs = InputTable::deal(start.partitions.iter().map(|plan| plan.partition.clone()), spec.workers());
    if inputs.len() < spec.workers() {
        tracing::warn!(
            code = "WORKERS_EXCEED_PARTITIONS",
            workers = spec.workers(),
            partitions = inputs.len(),
            "some workers read nothing: they only help with what is keyed"
        );
    }
    let restored = restore(&steps, store.as_ref(), resume.as_ref(), &inputs, &joined, job)
        .map_err(|error| ended(supervisor, store_cause(&error)))?;
    let base = joined.start_clock()?;
    stage.set("running");
    let work = Work::new(job, plan, steps, clients, start, inputs, resume, restored, leading, &joined, base)
        .map_err(|cause| ended(supervisor, cause))?;
    probe.serve(Arc::clone(&work.process), Arc::clone(&work.tracker));
    let faults = work.process.faults.clone();
    let progress = progress::show(job.until_end, &work.process);
    let outcome = joined.execute(worker_config(), move |worker, cluster| work.run(worker, cluster));
    drop(progress);
    drop(keeper);
    if let Some(fault) = faults.first() {
        tracing::debug!(%fault, "the first fault of this process");
    }
    Ok(outcome)
}

/// Process 0's part of the start: the lease, the highest record, the generation.
struct Leading {
    lease: Arc<Lease>,
    publisher: Publisher,
}

fn lead(
    job: &Job,
    plan: &FlowPlan,
    steps: &StepTable,
    store: Option<&RecoveryStore>,
    present: &Present,
    leading: &mut Option<Leading>,
) -> Result<Assignment, Cause> {
    let message = |resume: Option<ResumeState>| {
        postcard::to_stdvec(&StoreMessage { resume }).map_err(|error| internal("encode the start", &error))
    };
    let Some(store) = store else {
        return Ok(Assignment { generation: present.next_generation(), settings: message(None)? });
    };
    let processes = u32::try_from(present.run_ids.len()).unwrap_or(u32::MAX);
    let options = OpenOptions {
        flow: job.name.clone(),
        fingerprint: plan.fingerprint(),
        steps: recovery_steps(steps).map_err(|step| config(format!("two steps are called {step}")))?,
        run: present.run_ids.first().copied().unwrap_or(RunId(0)),
        host: clients::host_name(),
        build: build_id(),
        shape: ClusterShape { processes, workers_per_process: job.settings.cluster.workers_per_process },
        slots: (0..processes).map(Slot).collect(),
        peer_timeout: job.settings.cluster.peer_timeout,
        store_timeout: job.settings.recovery.store_timeout,
        allow_dropped_state: job.allow_dropped_state,
        allow_older_snapshot: job.allow_older_snapshot,
    };
    let opened = store.open(&options, None).map_err(|error| store_cause(&error))?;
    let settings = message(Some(opened.resume.clone()))?;
    let generation = opened.resume.generation();
    *leading = Some(Leading { lease: opened.lease, publisher: opened.publisher });
    Ok(Assignment { generation, settings })
}

/// The step table in the store's words.
fn recovery_steps(steps: &StepTable) -> Result<tidegate_recovery::StepTable, tidegate_recovery::StepId> {
    let shapes = steps.stateful().map(|(_, spec)| tidegate_recovery::StepShape {
        id: spec.id.clone(),
        kind: spec.kind.to_string(),
        version: u32::from(spec.version),
        parameters: spec.parameters.clone(),
    });
    tidegate_recovery::StepTable::new(shapes.collect())
}

fn keep_lease(
    leading: Option<&Leading>,
    supervisor: &Supervisor,
) -> Result<Option<LeaseKeeper>, ClusterError> {
    let Some(leading) = leading else { return Ok(None) };
    let lost = supervisor.clone();
    leading
        .lease
        .keep(move |error| {
            lost.report(store_cause(&error));
        })
        .map(Some)
        .map_err(|error| ended(supervisor, store_cause(&error)))
}

/// Where each partition begins: process 0 asks and decides, the others take its word.
fn find_start(
    job: &Job,
    plan: &FlowPlan,
    clients: &Clients,
    resume: Option<&ResumeState>,
    joined: &mut Joined,
) -> Result<StartPlan, ClusterError> {
    let supervisor = joined.supervisor().clone();
    let deadline = job.settings.cluster.startup_timeout;
    let answer = joined.exchange(Vec::new(), |_| {
        let consumer =
            job.settings.consumer.as_ref().ok_or_else(|| config("the flow has no kafka.consumer"))?;
        let outputs: Vec<_> = plan
            .output_topics
            .iter()
            .map(|output| OutputTopic { name: output.topic.clone(), create: output.create })
            .collect();
        let found = start::find(&StartQuestion {
            consumer,
            config: &clients.consumer,
            topics: &plan.input_topics,
            delivery: job.delivery(),
            resume,
            needs_store: plan.needs_store(),
            allow_lost_state: job.allow_lost_state,
            deadline,
        })
        .map_err(|fault| cause_of(&fault))?;
        let outputs =
            check_outputs(&clients.outputs, &outputs, deadline).map_err(|fault| cause_of(&fault))?;
        let record_bytes_max = outputs.iter().filter_map(|output| output.record_bytes_max).min();
        let found = StartPlan { record_bytes_max, ..found };
        postcard::to_stdvec(&found).map_err(|error| internal("encode the start offsets", &error))
    })?;
    postcard::from_bytes(&answer)
        .map_err(|error| ended(&supervisor, internal("read the start offsets", &error)))
}

/// What one process got back from the store: its own part of the store, and the rows of each worker thread.
struct Restored {
    store: Option<ProcessStore>,
    rows: Vec<HashMap<StepNumber, RestoredRows>>,
}

fn restore(
    steps: &StepTable,
    store: Option<&RecoveryStore>,
    resume: Option<&ResumeState>,
    inputs: &InputTable,
    joined: &Joined,
    job: &Job,
) -> Result<Restored, StoreError> {
    let spec = joined.spec();
    let threads = spec.workers_per_process();
    let (Some(store), Some(resume)) = (store, resume) else {
        return Ok(Restored { store: None, rows: (0..threads).map(|_| HashMap::new()).collect() });
    };
    crate::restore::restore(store, resume, steps, inputs, spec, job.settings.recovery.store_timeout)
        .map(|(store, rows)| Restored { store: Some(store), rows })
}

/// What the worker threads of this process run.
struct Work {
    name: String,
    topics: Vec<String>,
    describe: Describe,
    plan: FlowPlan,
    process: Arc<ProcessContext>,
    tracker: Arc<CommitTracker>,
    connections: Arc<Connections>,
    rows: Mutex<Vec<Option<HashMap<StepNumber, RestoredRows>>>>,
}

impl Work {
    #[expect(
        clippy::too_many_arguments,
        reason = "each is a result of the bring-up, and this is where they meet"
    )]
    fn new(
        job: &Job,
        plan: FlowPlan,
        steps: StepTable,
        clients: Clients,
        start: StartPlan,
        inputs: InputTable,
        resume: Option<ResumeState>,
        restored: Restored,
        leading: Option<Leading>,
        joined: &Joined,
        base: Instant,
    ) -> Result<Work, Cause> {
        let settings = &job.settings;
        let consumer = settings.consumer.clone().ok_or_else(|| config("the flow has no kafka.consumer"))?;
        let spec = joined.spec();
        let process_index = spec.index();
        let first = resume.as_ref().map_or(Epoch(1), |resume| resume.epoch.next());
        let schedule = EpochSchedule { first, commit_every: settings.commit_every() };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::since(base));
        let tracker = Arc::new(CommitTracker::new(TrackerSettings {
            keepalive: consumer.commit_keepalive,
            ..TrackerSettings::default()
        }));
        let own: Vec<_> = start
            .partitions
            .iter()
            .filter(|plan| {
                let id = inputs.id(&plan.partition);
                let owner = id.and_then(|id| inputs.get(id)).map(|input| input.owner.0 as usize);
                owner.is_some_and(|owner| owner / spec.workers_per_process() == process_index.0 as usize)
            })
            .map(|plan| PartitionAssignment {
                partition: plan.partition.clone(),
                resumed: plan.resumed,
                group: plan.group,
            })
            .collect();
        // The stale ones were announced by process 0, for all partitions.
        drop(tracker.begin(&own, base));
        let snapshots = match restored.store {
            None => None,
            Some(store) => {
                let threads = spec.workers_per_process();
                let publisher = leading.map(|leading| leading.publisher);
                let io = StoreThreads::start(threads, store, publisher, Arc::clone(&tracker))
                    .map_err(|error| internal("start the store's threads", &error))?;
                Some(Arc::new(io) as Arc<_>)
            }
        };
        let limits = Limits {
            in_flight_bytes: usize::try_from(consumer.in_flight_bytes).unwrap_or(usize::MAX),
            in_flight_records: usize::try_from(consumer.in_flight_records).unwrap_or(usize::MAX),
            commits_in_flight: settings.recovery.commits_in_flight,
            volatile_records_max: usize::try_from(settings.volatile_records_max).unwrap_or(usize::MAX),
            batch_records: consumer.batch_size,
            poll_backoff: consumer.poll_backoff,
            peer_timeout: settings.cluster.peer_timeout,
            ..Limits::default()
        };
        let generation = joined.generation();
        let stop = FlowStop::new();
        let asked = stop.clone();
        joined.supervisor().stop_request().on_request(move || asked.ask());
        let liveness = joined.liveness();
        let lease = resume.as_ref().zip(settings.recovery.directory.as_ref()).map(|(resume, directory)| {
            RecoveryStore::new(Arc::new(LocalDirectory::new(directory))).lease_view(resume.generation())
        });
        let standing = Arc::new(move || {
            liveness.check().map_err(|cause| fault_of(&cause))?;
            lease.as_ref().map_or(Ok(()), |lease| lease.still_mine().map_err(|error| store_fault(&error)))
        });
        let metrics = Arc::new(Metrics::new());
        metrics.generation.set(i64::try_from(generation.0).unwrap_or(i64::MAX));
        let process = Arc::new(ProcessContext {
            process: process_index,
            workers_per_process: spec.workers_per_process(),
            peers: spec.workers(),
            generation,
            delivery: job.delivery(),
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
            standing,
            metrics,
            status: StatusBoard::new(generation),
            sabotage: Default::default(),
        });
        let connections = Arc::new(Connections {
            commit_deadline: settings.cluster.startup_timeout,
            consumer,
            consumer_config: clients.consumer,
            producer_config: clients.producer,
            process: process_index,
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
            connections,
            rows,
        })
    }

    /// One worker thread, from its dataflow to its end.
    fn run(
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

/// Closes what is left and gives the exit code.
fn close(outcome: Outcome<()>) -> Result<u8, Cause> {
    let code = outcome.exit_code();
    if !outcome.stuck.is_empty() {
        tracing::error!(workers = ?outcome.stuck, "these workers did not leave in time");
    }
    let open = reaper::wait(CLOSE_DEADLINE);
    for client in &open {
        tracing::warn!(client, "a client did not close in time");
    }
    match outcome.cause {
        None => tracing::info!("done"),
        Some(cause) => say(&cause),
    }
    if !open.is_empty() {
        // The C library's exit handlers would run beside threads of the client that still work.
        signal_hook::low_level::exit(i32::from(code));
    }
    Ok(code)
}

/// How long the clients may take to close; librdkafka may wait for ever while its broker is away.
const CLOSE_DEADLINE: Duration = Duration::from_secs(3);

/// Makes `cause` the first cause, so that the peers hear of it, and the error that leaves the bring-up.
fn ended(supervisor: &Supervisor, cause: Cause) -> ClusterError {
    supervisor.report(cause.clone());
    ClusterError::Ended(cause)
}

fn config(text: impl Into<String>) -> Cause {
    Cause::new(ErrorClass::Config, "", text)
}

fn internal(what: &str, error: &dyn std::fmt::Display) -> Cause {
    Cause::new(ErrorClass::Internal, "", format!("cannot {what}: {error}"))
}

/// The cause that a fault is.
pub(crate) fn cause_of(fault: &Fault) -> Cause {
    Cause::new(fault.class, fault.code, fault.to_string())
}

/// The fault that a cause is, for whoever speaks of faults.
fn fault_of(cause: &Cause) -> Fault {
    Fault::new(cause.class, cause.text.clone())
}

/// The cause that an error of the store is.
fn store_cause(error: &StoreError) -> Cause {
    Cause::new(error.class(), error.code(), error.to_string())
}

/// The fault that an error of the store is.
pub(crate) fn store_fault(error: &StoreError) -> Fault {
    Fault::new(error.class(), error.to_string()).code(error.code())
}

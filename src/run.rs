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

use crate::causes::{cause_of, config, internal, store_cause};
use crate::clients::{self, Clients};
use crate::config::problems::{Problem, Severity, code};
use crate::config::settings::Settings;
use crate::flow::Flow;
use crate::flow::plan::FlowPlan;
use crate::http::HttpServer;
use crate::opening::{open_options, open_store};
use crate::probe::{ProcessProbe, Stage};
use crate::publication::{Initialised, start_publication, watch_output};
use crate::restore::{self, Restored};
use crate::start::{self, StartPlan, StartQuestion};
use crate::start_watch::StartWatch;
use crate::work::{Beginning, Work};
use crate::{progress, signals};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_cluster::{
    Assignment, Cause, ClusterError, ClusterSpec, HardExit, Identity, Joined, Mesh, Outcome, Present,
    Supervisor, Timeouts, new_run_id, worker_config,
};
use tidegate_operators::inputs::InputTable;
use tidegate_operators::kafka::{Advice, OutputTopic, check_outputs, check_same_cluster};
use tidegate_operators::process::DeliveryGuarantee;
use tidegate_operators::steps::FlowSteps;
use tidegate_recovery::storage::LocalDirectory;
use tidegate_recovery::{
    ClusterShape, Epoch, ErrorClass, Generation, Lease, LeaseKeeper, OpenOptions, Publisher, RecoveryStore,
    ResumeState, RunId, StopRequest,
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
    /// Input topics that begin anew if they were made again.
    pub(crate) reset_topics: Vec<String>,
}

/// What process 0 tells the others before they read the store.
#[derive(Serialize, Deserialize)]
struct StoreMessage {
    resume: Option<ResumeState>,
}

impl Job {
    /// The plan of the flow and everything that is wrong with it.
    pub(crate) fn plan(&self) -> (FlowPlan, Vec<Problem>) {
        plan(&self.name, &self.describe, &self.settings)
    }

    pub(crate) fn is_exactly_once(&self) -> bool {
        self.settings.delivery() == DeliveryGuarantee::ExactlyOnce
    }

    /// What the handshake compares besides the fingerprint and the build.
    fn in_common(&self, plan: &FlowPlan) -> BTreeMap<String, String> {
        let mut in_common = self.in_common.clone();
        in_common.insert("the definition of the flow's steps".into(), plan.definition().to_string());
        in_common.insert("--until-end".into(), self.until_end.to_string());
        in_common
    }
}

/// The plan of a flow and everything that is wrong with it, or worth a warning.
pub(crate) fn plan(name: &str, describe: &Describe, settings: &Settings) -> (FlowPlan, Vec<Problem>) {
    let topics = settings.consumer.as_ref().map(|consumer| consumer.topics.clone()).unwrap_or_default();
    let plan = Flow::plan(name, &topics, |flow| describe(flow));
    let problems = plan.guards(settings);
    (plan, problems)
}

/// Runs the job and returns the exit code. The last line of a process that fails names the first cause.
pub(crate) fn run(job: Job) -> u8 {
    let lived = live(job);
    let all_closed = clients::close();
    let code = match lived {
        Ok(None) => {
            tracing::info!("stopped before the work began");
            0
        }
        Ok(Some(outcome)) => {
            match &outcome.cause {
                None => tracing::info!("done"),
                Some(cause) => say(cause),
            }
            outcome.exit_code()
        }
        Err(cause) => {
            say(&cause);
            cause.exit_code()
        }
    };
    if !all_closed {
        // The C library's exit handlers would run beside threads of the client that still work.
        signal_hook::low_level::exit(i32::from(code));
    }
    code
}

fn say(cause: &Cause) {
    // Not every cause has a code, and an empty one says nothing.
    let code = (!cause.code.is_empty()).then_some(&*cause.code);
    tracing::error!(code, exit = cause.exit_code(), "{}", cause.text);
}

/// `None` when a stop was asked for before the work began.
fn live(job: Job) -> Result<Option<Outcome<()>>, Cause> {
    let (plan, problems) = job.plan();
    refuse(&problems)?;
    refuse_unknown_topics(&job, &plan)?;
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
    match bring_up(&job, plan, steps, clients, mesh, &supervisor, &stage, &probe) {
        Ok(outcome) => {
            if !outcome.stuck.is_empty() {
                tracing::error!(workers = ?outcome.stuck, "these workers did not leave in time");
            }
            Ok(Some(outcome))
        }
        Err(ClusterError::Stopped) => Ok(None),
        Err(error) => Err(error.into()),
    }
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

fn refuse_unknown_topics(job: &Job, plan: &FlowPlan) -> Result<(), Cause> {
    let unknown: Vec<&str> = job
        .reset_topics
        .iter()
        .filter(|topic| !plan.input_topics.contains(topic))
        .map(String::as_str)
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let text = format!("--reset-topic {}: the flow does not read it", unknown.join(", "));
    Err(Cause::new(ErrorClass::Usage, "", text))
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
pub(crate) fn build_id() -> String {
    concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned()
}

#[expect(clippy::too_many_arguments, reason = "each is made once, above, and used once, here")]
fn bring_up(
    job: &Job,
    plan: FlowPlan,
    steps: FlowSteps,
    mut clients: Clients,
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
    let watch = StartWatch::begin(supervisor, job.settings.cluster.unwind_timeout, say)
        .map_err(|error| ended(supervisor, internal("watch over the start", &error)))?;
    let mut leading = None;
    let mut joined = mesh.join(|present| {
        if job.is_exactly_once() {
            stage.set("asking Kafka whether it is one cluster");
            let within = job.settings.cluster.startup_timeout;
            check_same_cluster(&clients.consumer, &clients.outputs, within)
                .map_err(|fault| cause_of(&fault))?;
        }
        stage.set("opening the recovery store");
        lead(job, &plan, &steps, &clients, store.as_ref(), present, &mut leading)
    })?;
    let message: StoreMessage = postcard::from_bytes(joined.settings())
        .map_err(|error| ended(supervisor, internal("read what process 0 decided", &error)))?;
    let resume = message.resume;
    let keeper = keep_lease(leading.as_ref(), supervisor)?;
    if let (Some(store), Some(resume)) = (&store, &resume) {
        store.join(resume).map_err(|error| ended(supervisor, store_cause(&error)))?;
    }

    let fenced = match job.is_exactly_once() {
        true => {
            let fitted = clients.fit_to_outputs(&plan, job.settings.cluster.startup_timeout);
            fitted.map_err(|fault| ended(supervisor, cause_of(&fault)))?;
            stage.set("initialising the transactions");
            let settings = job.direct_settings(&clients, &joined);
            Some(Initialised::initialise(settings, &plan.input_topics, &mut joined)?)
        }
        false => None,
    };
    // With a store only who had the partitions before there was one is fenced.
    let direct = fenced.filter(|_| store.is_none());
    stage.set("asking Kafka where to begin");
    let start = find_start(job, &plan, &clients, resume.as_ref(), &mut joined)?;
    if let Some(leading) = &mut leading {
        leading.publisher.reads(start.topics.clone(), &start.begun_anew);
    }
    stage.set("reading the state back");
    let spec = joined.spec().clone();
    let inputs = InputTable::deal(start.partitions.iter().map(|plan| plan.partition.clone()), spec.workers());
    if inputs.len() < spec.workers() {
        tracing::warn!(
            code = code::WORKERS_EXCEED_PARTITIONS,
            workers = spec.workers(),
            partitions = inputs.len(),
            "some workers read nothing: they only help with what is keyed"
        );
    }
    let restored = match (&store, &resume) {
        (Some(store), Some(resume)) => {
            restore::restore(store, resume, &steps, &inputs, &spec, job.settings.recovery.store_timeout)
                .map_err(|error| ended(supervisor, store_cause(&error)))?
        }
        _ => Restored::nothing(spec.workers_per_process()),
    };
    let publication = match (&store, &resume) {
        (Some(store), Some(resume)) if job.is_exactly_once() => {
            stage.set("initialising the transactions");
            Some(start_publication(job, &clients, store, resume, &start, &inputs, &joined)?)
        }
        _ => None,
    };
    let output_watch = watch_output(job, &clients, &start, &joined)?;
    let lease =
        store.as_ref().zip(resume.as_ref()).map(|(store, resume)| store.lease_view(resume.generation()));
    let beginning = Beginning {
        first: resume.as_ref().map_or(Epoch(1), |resume| resume.epoch.next()),
        lease,
        publisher: leading.map(|leading| leading.publisher),
        base: joined.start_clock()?,
        start,
        inputs,
        restored,
        publication,
        direct,
    };
    stage.set("running");
    let work =
        Work::new(job, plan, steps, clients, beginning, &joined).map_err(|cause| ended(supervisor, cause))?;
    probe.serve(Arc::clone(&work.process), Arc::clone(&work.tracker));
    let process = Arc::clone(&work.process);
    let (direct, store_threads) = (work.direct.clone(), work.store.clone());
    let progress = progress::show(job.until_end, &work.process);
    drop(watch);
    let outcome = joined.execute(worker_config(), move |worker, cluster| work.run(worker, cluster));
    if outcome.cause.is_none()
        && let Some(store) = store_threads
    {
        store.settle();
    }
    drop(progress);
    drop(output_watch);
    if let Some(direct) = direct {
        if outcome.cause.is_none() {
            direct.settle();
        }
        direct.leave();
    }
    drop(keeper);
    progress::say_what_was_left_out(&process);
    if let Some(fault) = process.faults.first() {
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
    steps: &FlowSteps,
    clients: &Clients,
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
    let shape = ClusterShape { processes, workers_per_process: job.settings.cluster.workers_per_process };
    let run = present.run_ids.first().copied().unwrap_or(RunId(0));
    let options =
        OpenOptions { steps: steps.table().clone(), ..open_options(job, plan.fingerprint(), run, shape) };
    let opened = open_store(job, clients, store, &options)?;
    let settings = message(Some(opened.resume.clone()))?;
    let generation = opened.resume.generation();
    *leading = Some(Leading { lease: opened.lease, publisher: opened.publisher });
    Ok(Assignment { generation, settings })
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
            delivery: job.settings.delivery(),
            resume,
            needs_store: plan.needs_store(),
            allow_lost_state: job.allow_lost_state,
            keyed: plan.is_keyed(),
            reset_topics: &job.reset_topics,
            deadline,
        })
        .map_err(|fault| cause_of(&fault))?;
        let outputs =
            check_outputs(&clients.outputs, &outputs, deadline).map_err(|fault| cause_of(&fault))?;
        let logs = if plan.needs_store() { plan.input_topics.clone() } else { Vec::new() };
        Advice { keepalive: consumer.commit_keepalive, logs }.give(&clients.consumer.connection);
        let found = StartPlan { outputs, ..found };
        postcard::to_stdvec(&found).map_err(|error| internal("encode the start offsets", &error))
    })?;
    postcard::from_bytes(&answer)
        .map_err(|error| ended(&supervisor, internal("read the start offsets", &error)))
}

/// Makes `cause` the first cause, so that the peers hear of it, and the error that leaves the bring-up.
pub(crate) fn ended(supervisor: &Supervisor, cause: Cause) -> ClusterError {
    supervisor.report(cause.clone());
    ClusterError::Ended(cause)
}

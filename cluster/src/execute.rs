//! Running the workers of a generation, and giving them up.
//!
//! Timely's own `execute` joins its threads in order: a stuck worker 0 hides the panic of worker 3, and a
//! panic in a communication thread stays unseen until a worker steps. Here every thread is watched, the
//! caller waits for a word from any of them, and whoever does not leave in time is left behind.
//!
//! A worker's way out: its closure returns, panics, or sees [`Supervisor::leaving`]. After an orderly return
//! the worker steps until its dataflows are done. When the generation is given up the dataflows are dropped
//! first, so that nothing steps any more; sources and sinks are dropped with them, on their own thread.

use crate::cause::{Cause, Origin, PANIC};
use crate::error::ClusterError;
use crate::join::{Joined, Mesh};
use crate::liveness::Liveness;
use crate::mesh::Shared;
use crate::panics::{self, Watched, watch, watch_for_good};
use crate::supervisor::Supervisor;
use std::net::{Shutdown, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tidegate_recovery::{ErrorClass, StopRequest, WorkerIndex};
use timely::WorkerConfig;
use timely::worker::Worker;
use timely_communication::allocator::thread::ThreadBuilder;
use timely_communication::allocator::zero_copy::initialize::{
    CommsGuard, initialize_networking_from_sockets,
};
use timely_communication::allocator::{Allocator, ProcessBuilder};
use timely_communication::{AllocatorBuilder, Hooks, WorkerGuards, initialize_from};

/// Longest time for which a worker may park: a lost wake-up delays a leave by no more than this.
pub const PARK_MAX: Duration = Duration::from_millis(250);

/// A configuration for workers that does not spin before it parks: idle workers share few cores.
pub fn worker_config() -> WorkerConfig {
    WorkerConfig::default().idle_spin(Duration::ZERO)
}

/// What a worker's closure knows besides its worker.
#[derive(Clone, Debug)]
pub struct WorkerContext {
    /// The worker's place in the cluster.
    pub worker: WorkerIndex,
    /// Its place in the process.
    pub thread: usize,
    supervisor: Supervisor,
    liveness: Liveness,
}

impl WorkerContext {
    /// Whether the closure must return: the generation is given up.
    #[inline]
    pub fn leaving(&self) -> bool {
        self.supervisor.leaving()
    }

    /// The supervisor of the generation.
    pub fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Whether this process may still act; to be asked before every commit.
    pub fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    /// The request to stop.
    pub fn stop_request(&self) -> &StopRequest {
        self.supervisor.stop_request()
    }

    /// Steps once, and parks until there is work, a leave, or `limit` (at most [`PARK_MAX`]) is over.
    pub fn step_or_park(&self, worker: &mut Worker, limit: Duration) {
        let limit = if self.leaving() { Duration::ZERO } else { limit.min(PARK_MAX) };
        worker.step_or_park(Some(limit));
    }
}

/// How a generation ended in this process.
#[derive(Debug)]
pub struct Outcome<T> {
    /// What each worker of this process returned; `None` for one that panicked, failed or was left behind.
    pub results: Vec<Option<T>>,
    /// Why the generation was given up; `None` when it came to its end.
    pub cause: Option<Cause>,
    /// Workers that did not leave within `unwind_timeout`. Their threads still run: the process must exit.
    pub stuck: Vec<WorkerIndex>,
}

impl<T> Outcome<T> {
    /// What the process should exit with.
    ///
    /// A thread that is stuck cannot be saved, so the process must be started again, whatever happened to
    /// it, unless the cause is one that a new start would only meet again.
    pub fn exit_code(&self) -> u8 {
        match &self.cause {
            None => 0,
            Some(cause) => match cause.class {
                ErrorClass::Usage | ErrorClass::Data | ErrorClass::Missing | ErrorClass::Config => {
                    cause.exit_code()
                }
                _ if !self.stuck.is_empty() => ErrorClass::TryAgain.exit_code(),
                _ => cause.exit_code(),
            },
        }
    }
}

/// A word from one of the threads.
enum Word<T> {
    Finished(usize, Option<T>),
    Leaving,
}

impl Joined {
    /// Runs `work` on every worker thread of this process and returns when the work of all processes is done,
    /// or given up. The peers have been told goodbye, and why, when this returns.
    ///
    /// `work` steps its worker as it likes and must return soon when [`WorkerContext::leaving`]; an error is
    /// the first cause unless there is an earlier one. When it returns in order, whatever must be durable is:
    /// once all workers of this process have, it takes nothing back.
    pub fn execute<T, F>(self, config: WorkerConfig, work: F) -> Outcome<T>
    where
        T: Send + 'static,
        F: Fn(&mut Worker, &WorkerContext) -> Result<T, Cause> + Send + Sync + 'static,
    {
        let shared = Arc::clone(&self.mesh.shared);
        let (words, heard) = channel();
        let threads = shared.spec.workers_per_process();
        let mut run = Run {
            mesh: self.mesh,
            unwind: shared.timeouts.unwind,
            results: (0..threads).map(|_| None).collect(),
            running: vec![false; threads],
            guards: None,
            sockets: Vec::new(),
            communication: None,
        };
        {
            let words = words.clone();
            // The receiver is gone when this function has returned.
            shared.supervisor.on_leave(move || drop(words.send(Word::Leaving)));
        }
        if let Err(error) = run.start(config, Arc::new(work), &words) {
            shared.supervisor.report(error.into());
        }
        drop(words);
        run.wait(&heard)
    }
}

struct Run<T> {
    /// Dropped last: says goodbye.
    mesh: Mesh,
    unwind: Duration,
    results: Vec<Option<T>>,
    running: Vec<bool>,
    guards: Option<WorkerGuards<()>>,
    /// The data connections, to cut them at the end.
    sockets: Vec<TcpStream>,
    communication: Option<CommsGuard>,
}

impl<T: Send + 'static> Run<T> {
    fn start<F>(
        &mut self,
        config: WorkerConfig,
        work: Arc<F>,
        words: &Sender<Word<T>>,
    ) -> Result<(), ClusterError>
    where
        F: Fn(&mut Worker, &WorkerContext) -> Result<T, Cause> + Send + Sync + 'static,
    {
        let shared = Arc::clone(&self.mesh.shared);
        let builders = self.builders(&shared)?;
        let first = shared.spec.worker(0).0 as usize;
        let threads = builders.len();
        let words = words.clone();
        let at_work = AtomicUsize::new(threads);
        let guards = initialize_from(builders, Box::new(()), move |allocator| {
            let thread = allocator.index() - first;
            let context = WorkerContext {
                worker: shared.spec.worker(thread),
                thread,
                supervisor: shared.supervisor.clone(),
                liveness: shared.liveness.clone(),
            };
            let finished = || {
                if at_work.fetch_sub(1, Ordering::AcqRel) == 1 {
                    shared.finish();
                }
            };
            let result = run_worker(allocator, config.clone(), &context, &*work, finished);
            // The receiver is gone when this worker was left behind.
            let _ = words.send(Word::Finished(thread, result));
        });
        let source = std::io::Error::other;
        let guards = guards.map_err(|error| ClusterError::System {
            what: "start the worker threads",
            source: source(error),
        })?;
        self.guards = Some(guards);
        self.running = vec![true; threads];
        Ok(())
    }

    fn builders(&mut self, shared: &Arc<Shared>) -> Result<Vec<AllocatorBuilder>, ClusterError> {
        let threads = shared.spec.workers_per_process();
        let hooks = Hooks::default();
        if shared.spec.processes() == 1 {
            return Ok(if threads == 1 {
                vec![AllocatorBuilder::Thread(ThreadBuilder)]
            } else {
                ProcessBuilder::new_typed_vector(threads, hooks.refill, hooks.spill)
                    .into_iter()
                    .map(AllocatorBuilder::Process)
                    .collect()
            });
        }
        let prepared = |source| ClusterError::System { what: "prepare the data connections", source };
        let mut sockets: Vec<Option<TcpStream>> = Vec::new();
        {
            let mut state = shared.lock();
            for process in shared.spec.indexes() {
                let socket = state.peers[process.0 as usize].data.take();
                if let Some(socket) = &socket {
                    socket.set_read_timeout(None).map_err(prepared)?;
                    socket.set_write_timeout(None).map_err(prepared)?;
                    self.sockets.push(socket.try_clone().map_err(prepared)?);
                } else if process != shared.spec.index() {
                    let text = format!("{} is lost: its data connection is gone", shared.spec.named(process));
                    return Err(ClusterError::Ended(Cause::lost(process, text)));
                }
                sockets.push(socket);
            }
        }
        let watching = Arc::clone(shared);
        let hooks = Hooks {
            // Called by each communication thread, on that thread, before it does anything.
            log_fn: Arc::new(move |setup| {
                if let Some(remote) = setup.remote {
                    let peer = tidegate_recovery::ProcessIndex(remote as u32);
                    let named = {
                        let state = watching.lock();
                        watching.described(peer, state.peers[remote].run_id)
                    };
                    let grace = watching.timeouts.peer;
                    watch_for_good(watching.supervisor.clone(), Watched::Data { peer, named, grace });
                }
                None
            }),
            ..hooks
        };
        let process = ProcessBuilder::new_typed_vector(threads, hooks.refill.clone(), hooks.spill.clone());
        let (builders, guard) = initialize_networking_from_sockets(
            process,
            sockets,
            shared.spec.index().0 as usize,
            threads,
            hooks,
        )
        .map_err(|source| ClusterError::System { what: "start timely's communication threads", source })?;
        self.communication = Some(guard);
        Ok(builders.into_iter().map(AllocatorBuilder::Tcp).collect())
    }

    /// Waits until the work of all is done, or given up and unwound, or given up and the deadline is over.
    fn wait(mut self, heard: &Receiver<Word<T>>) -> Outcome<T> {
        let supervisor = self.mesh.shared.supervisor.clone();
        let mut unwound_by = None;
        loop {
            if supervisor.leaving() && unwound_by.is_none() {
                unwound_by = Some(Instant::now() + self.unwind);
            }
            if !self.running.contains(&true) {
                // The peers may still need what these workers sent last, which timely's threads write meanwhile.
                self.mesh.shared.wait_for_all();
                break;
            }
            let wait = match unwound_by {
                Some(by) => by.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(1),
            };
            match heard.recv_timeout(wait) {
                Ok(word) => self.note(word),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    self.find_vanished(heard);
                    if unwound_by.is_some_and(|by| by <= Instant::now()) {
                        break;
                    }
                }
            }
        }
        let cause = if supervisor.leaving() {
            // A suspicion ripens within its grace time.
            supervisor.wait_for_cause(Instant::now() + self.mesh.shared.timeouts.peer * 2)
        } else {
            None
        };
        // Nobody needs the data connections any more, neither after a fault nor when the work of all is done.
        for socket in &self.sockets {
            // Ends the communication threads; an error means that the connection is gone already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.end_communication();
        let workers = self.running.iter().enumerate();
        let stuck = workers
            .filter(|(_, running)| **running)
            .map(|(thread, _)| self.mesh.shared.spec.worker(thread))
            .collect();
        if let Some(guards) = self.guards.take() {
            // Dropping it joins all workers, also those that never end.
            let supervisor = self.mesh.shared.supervisor.clone();
            let joined = crate::join::spawn("workers", move || {
                // Its drop panics when a worker did outside our reach; that was found by `find_vanished`.
                let _watch = supervisor.watch_thread("the end of the workers");
                let _ = catch_unwind(AssertUnwindSafe(|| drop(guards)));
            });
            if let Err(error) = joined {
                tracing::warn!("{error}");
            }
        }
        Outcome { results: std::mem::take(&mut self.results), cause, stuck }
    }

    fn note(&mut self, word: Word<T>) {
        match word {
            Word::Finished(thread, result) => {
                self.running[thread] = false;
                self.results[thread] = result;
            }
            Word::Leaving => {}
        }
    }

    /// A worker that ended without a word panicked in timely before it was ours.
    fn find_vanished(&mut self, heard: &Receiver<Word<T>>) {
        let Some(guards) = &self.guards else { return };
        let ended: Vec<bool> = guards.guards().iter().map(|guard| guard.is_finished()).collect();
        // Whoever ended had said its word before.
        while let Ok(word) = heard.try_recv() {
            self.note(word);
        }
        for (thread, ended) in ended.into_iter().enumerate() {
            if ended && self.running[thread] {
                self.running[thread] = false;
                let worker = self.mesh.shared.spec.worker(thread);
                let cause = Cause::new(ErrorClass::Internal, PANIC, "panicked before its work began");
                self.mesh.shared.supervisor.report(cause.in_worker(worker));
            }
        }
    }

    /// Joins timely's communication threads, on a thread of its own: one may be stuck in a write.
    fn end_communication(&mut self) {
        if let Some(guard) = self.communication.take() {
            let supervisor = self.mesh.shared.supervisor.clone();
            let joining = crate::join::spawn("comms", move || {
                // Its drop panics when a thread did, which is known by then and not worth a second line.
                let _watch = supervisor.watch_thread("the end of timely's communication");
                let _ = catch_unwind(AssertUnwindSafe(|| drop(guard)));
            });
            if let Err(error) = joining {
                tracing::warn!("{error}");
            }
        }
    }
}

fn run_worker<T, F>(
    allocator: Allocator,
    config: WorkerConfig,
    context: &WorkerContext,
    work: &F,
    finished: impl Fn(),
) -> Option<T>
where
    F: Fn(&mut Worker, &WorkerContext) -> Result<T, Cause>,
{
    let supervisor = &context.supervisor;
    let _watch = watch(supervisor.clone(), Watched::Worker(context.worker));
    supervisor.wake_on_leave(std::thread::current());
    // A panic has been recorded by the hook when `caught` sees it; the report is for one without a hook.
    let caught = |panicked: &str| {
        panics::caught();
        let cause = Cause::new(ErrorClass::Internal, PANIC, panicked);
        if !supervisor.leaving() {
            supervisor.report(Cause { origin: Origin::Worker(context.worker), ..cause });
        }
    };
    let mut worker = Worker::new(config, allocator, Some(Instant::now()));
    let worked = catch_unwind(AssertUnwindSafe(|| {
        let result = work(&mut worker, context)?;
        while worker.has_dataflows() && !context.leaving() {
            worker.step_or_park(Some(PARK_MAX));
        }
        // Before the worker lets go of its connections: what happens to them from then on is no matter.
        finished();
        Ok(result)
    }));
    let result = match worked {
        Ok(Ok(result)) => Some(result),
        Ok(Err(cause)) => {
            supervisor.report(Cause { origin: Origin::Worker(context.worker), ..cause });
            None
        }
        Err(_) => {
            caught("panicked");
            None
        }
    };
    let dropped = catch_unwind(AssertUnwindSafe(|| {
        for dataflow in worker.installed_dataflows() {
            worker.drop_dataflow(dataflow);
        }
    }));
    if dropped.is_err() {
        caught("panicked while it dropped its dataflows");
    }
    // A queue that a neighbour poisoned panics when it is dropped.
    if catch_unwind(AssertUnwindSafe(move || drop(worker))).is_err() {
        caught("panicked while it ended");
    }
    result
}

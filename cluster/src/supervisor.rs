//! The first cause, and the end of a generation.
//!
//! The failure that this file survives: one thread fails, and within a millisecond its neighbours, timely's
//! communication threads and the peers fail too, each with an error that says nothing ("MergeQueue
//! poisoned"). The [`Supervisor`] keeps the cause that came first and makes every worker loop leave.
//!
//! 1. [`Supervisor::report`] records a cause, if none is recorded, and sets the flag that
//!    [`Supervisor::leaving`] reads. Parked worker threads are woken.
//! 2. A panic in a watched thread ([`Supervisor::watch_thread`]) is recorded by a panic hook, before the
//!    thread unwinds and therefore before anybody can suffer from it.
//! 3. What timely's communication says about a connection is only a *suspicion*: the peer's own last words,
//!    or the heartbeat, know better. A suspicion makes the workers leave at once, but becomes the cause only
//!    if nothing better is known after a grace time. Panics that follow a suspicion are its consequences.
//!
//! 4. When the work of this process has finished ([`Supervisor::finish`]) nothing of the above is a cause any
//!    more: only the cluster as a whole can still give the generation up ([`crate::farewell`]).
//!
//! Nothing here blocks or ends the process: what to exit with is the caller's decision.

use crate::cause::{Cause, PANIC};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tidegate_recovery::{ErrorClass, ProcessIndex, StopRequest};

/// Locks a mutex also after a thread panicked with it: a supervisor goes on when others fail.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known about why the generation ends: the decision, free of clocks and threads.
#[derive(Debug, Default)]
pub(crate) struct FirstCause {
    cause: Option<Cause>,
    suspicion: Option<(Cause, Instant)>,
    finished: bool,
}

/// What a caller of [`FirstCause::on`] learned.
#[derive(Debug)]
pub(crate) enum Sign {
    /// A cause that stands for itself.
    Report(Cause),
    /// A symptom; it becomes the cause at the given moment unless a better one is reported.
    Suspect(Cause, Instant),
    /// A panic in a thread that may itself be a consequence.
    Panic(Cause),
    /// The cluster gives the generation up.
    GiveUp(Cause),
    /// Time went by.
    Tick(Instant),
}

impl FirstCause {
    /// Takes a sign in. Returns whether it settled the first cause.
    pub(crate) fn on(&mut self, sign: Sign) -> bool {
        if self.cause.is_some() {
            return false;
        }
        match sign {
            Sign::GiveUp(cause) => self.cause = Some(cause),
            _ if self.finished => {}
            Sign::Report(cause) => self.cause = Some(cause),
            Sign::Panic(cause) if self.suspicion.is_none() => self.cause = Some(cause),
            Sign::Panic(_) => {}
            Sign::Suspect(cause, until) => {
                self.suspicion.get_or_insert((cause, until));
            }
            Sign::Tick(now) => {
                if self.suspicion.as_ref().is_some_and(|(_, until)| *until <= now) {
                    self.cause = self.suspicion.take().map(|(cause, _)| cause);
                }
            }
        }
        self.cause.is_some()
    }

    /// The work of this process has finished, unless the generation is ending: returns whether it has.
    fn finish(&mut self) -> bool {
        self.finished = !self.leaving();
        self.finished
    }

    fn leaving(&self) -> bool {
        self.cause.is_some() || self.suspicion.is_some()
    }
}

#[derive(Default)]
struct State {
    first: FirstCause,
    threads: Vec<Thread>,
    listeners: Vec<Arc<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Inner {
    leaving: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    stop: StopRequest,
}

/// Handle to the supervisor of one generation; clones are the same supervisor.
#[derive(Clone, Default)]
pub struct Supervisor(Arc<Inner>);

impl Supervisor {
    /// A supervisor of a generation in which nothing has gone wrong yet.
    pub fn new() -> Supervisor {
        Supervisor::with_stop(StopRequest::new())
    }

    /// The same, with a stop request that exists already (signals are read before the cluster comes up).
    pub fn with_stop(stop: StopRequest) -> Supervisor {
        crate::panics::install_hook();
        Supervisor(Arc::new(Inner { stop, ..Inner::default() }))
    }

    /// Records `cause` unless an earlier one is recorded or the work of this process has finished, and makes
    /// all worker loops leave. Returns whether it is the first.
    pub fn report(&self, cause: Cause) -> bool {
        self.sign(Sign::Report(cause))
    }

    /// Whether worker loops must leave. Cheap enough to ask in every round.
    #[inline]
    pub fn leaving(&self) -> bool {
        self.0.leaving.load(Ordering::Acquire)
    }

    /// The first cause, once it is known. [`Supervisor::leaving`] may be true a little earlier.
    pub fn cause(&self) -> Option<Cause> {
        lock(&self.0.state).first.cause.clone()
    }

    /// Waits for the first cause until `deadline`.
    pub fn wait_for_cause(&self, deadline: Instant) -> Option<Cause> {
        let mut state = lock(&self.0.state);
        loop {
            let now = Instant::now();
            state.first.on(Sign::Tick(now));
            if state.first.cause.is_some() || now >= deadline {
                return state.first.cause.clone();
            }
            let until = match &state.first.suspicion {
                Some((_, until)) => (*until).min(deadline),
                None => deadline,
            };
            let wait = until.saturating_duration_since(now).max(Duration::from_millis(1));
            state = self.0.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The request to stop that belongs to this generation.
    pub fn stop_request(&self) -> &StopRequest {
        &self.0.stop
    }

    /// Wakes `thread` (unparks it) when the generation ends.
    pub fn wake_on_leave(&self, thread: Thread) {
        let mut state = lock(&self.0.state);
        if state.first.leaving() {
            thread.unpark();
        }
        state.threads.push(thread);
    }

    /// Calls `listener` when the generation begins to end and again when the first cause is settled; at once
    /// if it has begun. It must not block.
    pub fn on_leave(&self, listener: impl Fn() + Send + Sync + 'static) {
        let listener: Arc<dyn Fn() + Send + Sync> = Arc::new(listener);
        let mut state = lock(&self.0.state);
        state.listeners.push(Arc::clone(&listener));
        let leaving = state.first.leaving();
        drop(state);
        if leaving {
            listener();
        }
    }

    /// From now on a panic in the calling thread is a cause, named after `what`, until the guard is dropped.
    pub fn watch_thread(&self, what: impl Into<String>) -> crate::panics::ThreadWatch {
        crate::panics::watch(self.clone(), crate::panics::Watched::Thread(what.into()))
    }

    pub(crate) fn panicked(&self, origin: crate::cause::Origin, text: String) {
        let cause = Cause { origin, ..Cause::new(ErrorClass::Internal, PANIC, text) };
        self.sign(Sign::Panic(cause));
    }

    pub(crate) fn suspect(&self, cause: Cause, grace: Duration) {
        self.sign(Sign::Suspect(cause, Instant::now() + grace));
    }

    /// Says that the data connection to `peer` broke; the heartbeat will know why.
    pub(crate) fn suspect_peer(&self, peer: ProcessIndex, text: String, grace: Duration) {
        self.suspect(Cause::lost(peer, text), grace);
    }

    /// Notes that the work of this process has finished, unless the generation is ending: returns whether it has.
    pub(crate) fn finish(&self) -> bool {
        lock(&self.0.state).first.finish()
    }

    /// Records what the cluster as a whole ends for, unless an earlier cause is recorded.
    pub(crate) fn give_up(&self, cause: Cause) {
        self.sign(Sign::GiveUp(cause));
    }

    pub(crate) fn tick(&self) {
        self.sign(Sign::Tick(Instant::now()));
    }

    fn sign(&self, sign: Sign) -> bool {
        let mut state = lock(&self.0.state);
        let had_left = state.first.leaving();
        let settled = state.first.on(sign);
        let left = state.first.leaving() && !had_left;
        if left {
            self.0.leaving.store(true, Ordering::Release);
            for thread in &state.threads {
                thread.unpark();
            }
        }
        if !(settled || left) {
            return false;
        }
        let listeners = state.listeners.clone();
        drop(state);
        self.0.changed.notify_all();
        for listener in listeners {
            listener();
        }
        settled
    }
}

impl std::fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor").field("cause", &self.cause()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::{Origin, PEER_LOST};
    use std::sync::atomic::AtomicUsize;

    fn cause(text: &str) -> Cause {
        Cause::new(ErrorClass::TryAgain, "CODE", text)
    }

    #[test]
    fn the_first_cause_stays() {
        let supervisor = Supervisor::new();
        assert!(!supervisor.leaving());
        assert!(supervisor.report(cause("first")));
        assert!(!supervisor.report(cause("second")));
        assert!(supervisor.leaving());
        assert_eq!(supervisor.cause().unwrap().text, "first");
    }

    #[test] // C1
    fn a_broken_data_connection_waits_for_a_better_cause() {
        let now = Instant::now();
        let mut first = FirstCause::default();
        let lost = Cause::lost(ProcessIndex(1), "broken".into());
        assert!(!first.on(Sign::Suspect(lost.clone(), now + Duration::from_secs(1))));
        assert!(first.leaving());
        assert!(!first.on(Sign::Panic(cause("MergeQueue poisoned."))));
        assert!(!first.on(Sign::Tick(now)));
        assert!(first.on(Sign::Report(cause("process 1 gave up: why"))));
        assert!(!first.on(Sign::Tick(now + Duration::from_secs(2))));
        assert_eq!(first.cause.unwrap().text, "process 1 gave up: why");
    }

    #[test]
    fn only_the_cluster_ends_a_process_whose_work_has_finished() {
        let now = Instant::now();
        let mut first = FirstCause::default();
        assert!(first.finish());
        for sign in [
            Sign::Report(cause("the lease is lost")),
            Sign::Suspect(Cause::lost(ProcessIndex(1), "broken".into()), now),
            Sign::Panic(cause("MergeQueue poisoned.")),
            Sign::Tick(now),
        ] {
            assert!(!first.on(sign));
            assert!(!first.leaving());
        }
        assert!(first.on(Sign::GiveUp(cause("process 1 had not finished"))));
        assert_eq!(first.cause.unwrap().text, "process 1 had not finished");
    }

    #[test]
    fn work_that_was_left_has_not_finished() {
        let supervisor = Supervisor::new();
        supervisor.suspect_peer(ProcessIndex(1), "broken".into(), Duration::from_secs(60));
        assert!(!supervisor.finish());
        supervisor.report(cause("process 1 gave up"));
        assert_eq!(supervisor.cause().unwrap().text, "process 1 gave up");
    }

    #[test]
    fn a_suspicion_becomes_the_cause_when_nothing_better_is_known() {
        let now = Instant::now();
        let mut first = FirstCause::default();
        first.on(Sign::Suspect(Cause::lost(ProcessIndex(1), "broken".into()), now));
        assert!(first.on(Sign::Tick(now)));
        assert_eq!(first.cause.unwrap().code, PEER_LOST);
    }

    #[test] // C10
    fn a_panic_is_recorded_before_its_consequences() {
        let supervisor = Supervisor::new();
        let watched = supervisor.clone();
        std::thread::spawn(move || {
            let _watch = watched.watch_thread("the reaper");
            panic!("at the worst moment");
        })
        .join()
        .unwrap_err();
        let first = supervisor.cause().unwrap();
        assert_eq!((first.class, first.origin), (ErrorClass::Internal, Origin::Here));
        assert!(
            first.text.starts_with("the reaper panicked at ") && first.text.ends_with("at the worst moment")
        );
    }

    #[test]
    fn a_panic_in_a_thread_that_is_not_watched_is_nobodys_cause() {
        let supervisor = Supervisor::new();
        let watched = supervisor.clone();
        std::thread::spawn(move || {
            drop(watched.watch_thread("watched for a while"));
            panic!("not watched any more (this line on stderr belongs to the test)");
        })
        .join()
        .unwrap_err();
        assert_eq!(supervisor.cause(), None);
    }

    #[test]
    fn the_end_wakes_parked_threads_and_listeners() {
        let supervisor = Supervisor::new();
        let called = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&called);
        supervisor.on_leave(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let worker = std::thread::spawn({
            let supervisor = supervisor.clone();
            move || {
                supervisor.wake_on_leave(std::thread::current());
                while !supervisor.leaving() {
                    std::thread::park_timeout(Duration::from_secs(60));
                }
            }
        });
        supervisor.report(cause("over"));
        worker.join().unwrap();
        assert_eq!(called.load(Ordering::SeqCst), 1);
        let far = Instant::now() + Duration::from_secs(60);
        assert_eq!(supervisor.wait_for_cause(far).unwrap().text, "over");
    }

    #[test]
    fn waiting_for_a_cause_ends_at_its_deadline() {
        let supervisor = Supervisor::new();
        assert_eq!(supervisor.wait_for_cause(Instant::now() + Duration::from_millis(10)), None);
    }
}

//! The bring-up: from a bound port to a cluster whose processes agree on everything.
//!
//! 1. [`Mesh::bind`] listens; a taken port is reported before anything else happens.
//! 2. [`Mesh::join`] connects all processes and waits until every one of them is connected with the same
//!    runs of the others (see `assembly`). A process that is missing after `startup` ends it.
//! 3. Process 0 is asked for the generation and the settings, all others receive them together with the list
//!    of runs, and all acknowledge. From the fixing of the list on a lost peer ends the generation.
//! 4. Rounds ([`Joined::exchange`]): each process gives bytes, process 0 answers all with bytes. There is no
//!    deadline here, since a restore may take long: the heartbeat watches.
//!
//! Any failure is reported to the supervisor and told to the peers before the connections are closed.

use crate::admission::Phase;
use crate::cause::{Cause, SentCause};
use crate::door;
use crate::error::ClusterError;
use crate::identity::{
    BUILD_ID_BYTES_MAX, CLUSTER_ID_BYTES_MAX, IN_COMMON_BYTES_MAX, Identity, in_common_bytes,
};
use crate::liveness::Liveness;
use crate::mesh::{PeerStatus, Shared, State};
use crate::spec::ClusterSpec;
use crate::supervisor::Supervisor;
use crate::timeouts::Timeouts;
use crate::wire::{Leave, MESSAGE_BYTES_MAX, Message};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};
use tidegate_recovery::{ErrorClass, Generation, ProcessIndex, RunId};

/// What process 0 decides when all processes are there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The generation that begins.
    pub generation: Generation,
    /// Whatever all processes must know before they go on; opaque here.
    pub settings: Vec<u8>,
}

/// What process 0 knows when it decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// The runs of all processes, by index.
    pub run_ids: Vec<RunId>,
    /// The highest generation that any process named.
    pub highest_known: Generation,
}

impl Present {
    /// The generation of a cluster without a store: one more than the highest that any process named.
    pub fn next_generation(&self) -> Generation {
        Generation(self.highest_known.0 + 1)
    }
}

/// A handle for looking at the cluster while it runs.
#[derive(Clone, Debug)]
pub struct ClusterWatch(Arc<Shared>);

impl ClusterWatch {
    /// What is known of each peer.
    pub fn peers(&self) -> Vec<PeerStatus> {
        self.0.status()
    }

    /// What this process waits for while the cluster gathers; empty when it is complete.
    pub fn waiting_for(&self) -> Vec<String> {
        let state = self.0.lock();
        if state.phase == Phase::Assembling { missing(&self.0, &state) } else { Vec::new() }
    }
}

/// A process that listens at its address. Dropping it closes everything and says goodbye.
#[derive(Debug)]
pub struct Mesh {
    pub(crate) shared: Arc<Shared>,
}

impl Mesh {
    /// Listens at this process's address (a process alone may have none) and starts to watch its own pulse.
    ///
    /// # Errors
    /// [`ClusterError::Bind`] when the port is taken or the address is not this host's.
    pub fn bind(
        spec: ClusterSpec,
        identity: Identity,
        timeouts: Timeouts,
        supervisor: &Supervisor,
    ) -> Result<Mesh, ClusterError> {
        check(&identity, &timeouts)?;
        let (shared, wakes) = Shared::new(spec, identity, timeouts, supervisor.clone());
        let listener = door::bind(&shared)?;
        // From here on the threads hold the state; the mesh, when dropped, makes them end.
        let mesh = Mesh { shared };
        let monitor = Arc::clone(&mesh.shared);
        spawn("monitor", move || {
            let _watch = monitor.supervisor.watch_thread("the monitor");
            monitor.monitor(&wakes);
        })?;
        let weak = Arc::downgrade(&mesh.shared);
        supervisor.on_leave(move || {
            if let Some(shared) = weak.upgrade() {
                shared.wake_monitor();
            }
        });
        if let Some(listener) = listener {
            let held = listener
                .try_clone()
                .map_err(|source| ClusterError::System { what: "hold the listening socket", source })?;
            mesh.shared.hold_listener(held);
            let listening = Arc::clone(&mesh.shared);
            spawn("listener", move || door::listen(&listening, &listener))?;
        }
        Ok(mesh)
    }

    /// A handle for looking at the cluster.
    pub fn watch(&self) -> ClusterWatch {
        ClusterWatch(Arc::clone(&self.shared))
    }

    /// Whether this process may still act; to be asked before every commit.
    pub fn liveness(&self) -> Liveness {
        self.shared.liveness.clone()
    }

    /// Waits for all processes and agrees with them on the generation. `assign` is called on process 0 only,
    /// when all are there; it may take long (a lease has to be waited for).
    ///
    /// # Errors
    /// Everything of [`ClusterError`] but a mistake in the spec. The supervisor has it, and so have the peers.
    pub fn join(
        self,
        assign: impl FnOnce(&Present) -> Result<Assignment, Cause>,
    ) -> Result<Joined, ClusterError> {
        let mut joined = Joined {
            mesh: self,
            generation: Generation(0),
            run_ids: Vec::new(),
            settings: Vec::new(),
            round: 0,
        };
        match joined.bring_up(assign) {
            Ok(()) => Ok(joined),
            Err(error) => {
                // Before the mesh is dropped, which tells the peers.
                joined.mesh.report(&error);
                Err(error)
            }
        }
    }

    fn report(&self, error: &ClusterError) {
        match error {
            ClusterError::Stopped | ClusterError::Ended(_) => {}
            other => {
                let cause = Cause::new(other.class(), other.code().to_string(), other.to_string());
                self.shared.supervisor.report(cause);
            }
        }
    }

    /// Waits until the list of runs is fixed.
    fn assemble(&self) -> Result<Vec<RunId>, ClusterError> {
        let shared = &self.shared;
        let deadline = Instant::now() + shared.timeouts.startup;
        let mut state = shared.lock();
        let first = state.assembly.start();
        shared.act(&mut state, first);
        loop {
            if let Some(error) = state.failure.take() {
                return Err(error);
            }
            state = self.still_wanted(state)?;
            if let Some(runs) = &state.runs {
                return Ok(runs.clone());
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(ClusterError::PeersMissing {
                    waited_seconds: shared.timeouts.startup.as_secs(),
                    missing: missing(shared, &state),
                });
            }
            state = shared.wait(state, rest);
        }
    }

    /// Errors when the generation ended or a stop was asked for; gives the lock back otherwise.
    fn still_wanted<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>, ClusterError> {
        let supervisor = &self.shared.supervisor;
        if supervisor.leaving() {
            drop(state);
            let deadline = Instant::now() + self.shared.timeouts.peer;
            let cause = supervisor.wait_for_cause(deadline).unwrap_or_else(|| {
                Cause::new(ErrorClass::Internal, "PEER_PROTOCOL", "the generation ended without a cause")
            });
            return Err(ClusterError::Ended(cause));
        }
        if supervisor.stop_request().requested() {
            return Err(ClusterError::Stopped);
        }
        Ok(state)
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        let supervisor = &self.shared.supervisor;
        // A cluster whose work is done has said goodbye.
        let leave = match supervisor.cause() {
            Some(cause) => Leave::Fault(SentCause::of(&cause)),
            None => Leave::Stopped,
        };
        self.shared.leave(&leave);
    }
}

/// A cluster that is complete, before its work begins.
#[derive(Debug)]
pub struct Joined {
    pub(crate) mesh: Mesh,
    generation: Generation,
    run_ids: Vec<RunId>,
    settings: Vec<u8>,
    round: u32,
}

impl Joined {
    /// The generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The runs of all processes, by index.
    pub fn run_ids(&self) -> &[RunId] {
        &self.run_ids
    }

    /// What process 0 decided for all.
    pub fn settings(&self) -> &[u8] {
        &self.settings
    }

    /// The shape of the cluster.
    pub fn spec(&self) -> &ClusterSpec {
        &self.mesh.shared.spec
    }

    /// Whether this process may still act; to be asked before every commit.
    pub fn liveness(&self) -> Liveness {
        self.mesh.liveness()
    }

    /// The supervisor of the generation.
    pub fn supervisor(&self) -> &Supervisor {
        &self.mesh.shared.supervisor
    }

    /// A handle for looking at the cluster.
    pub fn watch(&self) -> ClusterWatch {
        self.mesh.watch()
    }

    fn bring_up(
        &mut self,
        assign: impl FnOnce(&Present) -> Result<Assignment, Cause>,
    ) -> Result<(), ClusterError> {
        let shared = Arc::clone(&self.mesh.shared);
        for peer in shared.spec.peers().take_while(|peer| *peer < shared.spec.index()) {
            let dialing = Arc::clone(&shared);
            spawn(&format!("dial-{peer}"), move || crate::dial::dial(&dialing, peer))?;
        }
        self.run_ids = self.mesh.assemble()?;
        tracing::info!(processes = self.run_ids.len(), "all processes are connected");
        let known = shared.identity.known_generation.0.to_be_bytes().to_vec();
        let run_ids = self.run_ids.clone();
        let answer = self.exchange(known, |known| {
            let named = known.iter().filter_map(|bytes| Some(u64::from_be_bytes(bytes[..].try_into().ok()?)));
            let highest_known = Generation(named.max().unwrap_or(0));
            let assignment = assign(&Present { run_ids, highest_known })?;
            postcard::to_stdvec(&assignment)
                .map_err(|error| Cause::new(ErrorClass::Internal, "PEER_PROTOCOL", error.to_string()))
        })?;
        let assignment: Assignment =
            postcard::from_bytes(&answer).map_err(|error| ClusterError::Protocol {
                peer: shared.spec.named(ProcessIndex(0)),
                what: format!("its assignment cannot be read ({error})"),
            })?;
        self.generation = assignment.generation;
        self.settings = assignment.settings;
        shared.lock().phase = Phase::Fixed(self.generation);
        // The acknowledgement: nobody works before everybody has the list and the generation.
        self.barrier()?;
        let run = shared.identity.run_id;
        tracing::info!(generation = self.generation.0, %run, "the cluster is complete");
        Ok(())
    }

    /// A round: every process gives `payload`, process 0 gets all of them, by index, and decides the answer
    /// that every process returns. All processes must call it equally often and in the same order. An error
    /// of `decide` is the first cause everywhere.
    ///
    /// # Errors
    /// [`ClusterError::Ended`] when the generation ended, [`ClusterError::Stopped`] when a stop was asked for.
    pub fn exchange(
        &mut self,
        payload: Vec<u8>,
        decide: impl FnOnce(Vec<Vec<u8>>) -> Result<Vec<u8>, Cause>,
    ) -> Result<Vec<u8>, ClusterError> {
        let shared = Arc::clone(&self.mesh.shared);
        let result = self.exchange_once(&shared, payload, decide);
        if let Err(error) = &result {
            self.mesh.report(error);
        }
        result
    }

    fn exchange_once(
        &mut self,
        shared: &Shared,
        payload: Vec<u8>,
        decide: impl FnOnce(Vec<Vec<u8>>) -> Result<Vec<u8>, Cause>,
    ) -> Result<Vec<u8>, ClusterError> {
        let round = self.round;
        self.round += 1;
        let zero = ProcessIndex(0);
        if shared.spec.index() != zero {
            let gather = Message::Gather { round, payload: limited(shared, payload)? };
            shared.send(&shared.lock(), zero, &gather);
            return match self.take(shared, zero)? {
                Message::Answer { round: answered, payload } if answered == round => Ok(payload),
                other => Err(out_of_turn(shared, zero, round, &other)),
            };
        }
        let mut payloads = vec![payload];
        for peer in shared.spec.peers() {
            match self.take(shared, peer)? {
                Message::Gather { round: gathered, payload } if gathered == round => payloads.push(payload),
                other => return Err(out_of_turn(shared, peer, round, &other)),
            }
        }
        let answer = match decide(payloads) {
            Ok(answer) => limited(shared, answer)?,
            Err(cause) => {
                shared.supervisor.report(cause.clone());
                return Err(ClusterError::Ended(shared.supervisor.cause().unwrap_or(cause)));
            }
        };
        let state = self.mesh.still_wanted(shared.lock())?;
        for peer in shared.spec.peers() {
            shared.send(&state, peer, &Message::Answer { round, payload: answer.clone() });
        }
        Ok(answer)
    }

    /// Waits until all processes are here.
    ///
    /// # Errors
    /// As [`Joined::exchange`].
    pub fn barrier(&mut self) -> Result<(), ClusterError> {
        self.exchange(Vec::new(), |_| Ok(Vec::new())).map(drop)
    }

    /// The common base of the epoch clock: a barrier, and the moment at which this process left it. The
    /// processes differ by the time that a message travels.
    ///
    /// # Errors
    /// As [`Joined::exchange`].
    pub fn start_clock(&mut self) -> Result<Instant, ClusterError> {
        self.barrier()?;
        Ok(Instant::now())
    }

    /// The next message of a round from `peer`.
    fn take(&self, shared: &Shared, peer: ProcessIndex) -> Result<Message, ClusterError> {
        let mut state = shared.lock();
        loop {
            if let Some(message) = state.peers[peer.0 as usize].inbox.pop_front() {
                return Ok(message);
            }
            state = self.mesh.still_wanted(state)?;
            // The cause of a fault is on its way to the supervisor.
            if let Some(Leave::Done | Leave::Stopped) = state.peers[peer.0 as usize].left {
                let who = shared.described(peer, state.peers[peer.0 as usize].run_id);
                drop(state);
                let cause = Cause::lost(peer, format!("{who} left while the cluster came up"));
                shared.supervisor.report(cause.clone());
                return Err(ClusterError::Ended(shared.supervisor.cause().unwrap_or(cause)));
            }
            state = shared.wait(state, Duration::from_millis(100));
        }
    }
}

fn limited(shared: &Shared, payload: Vec<u8>) -> Result<Vec<u8>, ClusterError> {
    // A little room for the rest of the message.
    if payload.len() > MESSAGE_BYTES_MAX - 64 {
        return Err(ClusterError::Protocol {
            peer: shared.spec.named(shared.spec.index()),
            what: format!("it has {} bytes to say, the limit is {MESSAGE_BYTES_MAX}", payload.len()),
        });
    }
    Ok(payload)
}

fn out_of_turn(shared: &Shared, peer: ProcessIndex, round: u32, message: &Message) -> ClusterError {
    let said = match message {
        Message::Gather { round, .. } => format!("a contribution to round {round}"),
        Message::Answer { round, .. } => format!("an answer of round {round}"),
        other => format!("{other:?}"),
    };
    ClusterError::Protocol {
        peer: shared.spec.named(peer),
        what: format!("it sent {said} where round {round} was due"),
    }
}

/// Who is missing, and why as far as that is known.
fn missing(shared: &Shared, state: &State) -> Vec<String> {
    let told = |peer: &ProcessIndex, otherwise: &str| {
        let name = shared.spec.named(*peer);
        match &state.peers[peer.0 as usize].trouble {
            Some(trouble) => format!("{name} is missing: {trouble}"),
            None => format!("{name} {otherwise}"),
        }
    };
    let absent = state.assembly.missing();
    if !absent.is_empty() {
        let otherwise = "is missing: it has not connected to this process";
        return absent.iter().map(|peer| told(peer, otherwise)).collect();
    }
    if shared.spec.index().0 == 0 {
        let otherwise = "is here but not connected with all others";
        return state.assembly.unready().iter().map(|peer| told(peer, otherwise)).collect();
    }
    vec![format!("{} still waits for others", shared.spec.named(ProcessIndex(0)))]
}

fn check(identity: &Identity, timeouts: &Timeouts) -> Result<(), ClusterError> {
    let mut problems = Vec::new();
    for (what, text, bytes_max) in [
        ("the cluster id", &identity.cluster_id, CLUSTER_ID_BYTES_MAX),
        ("the build id", &identity.build, BUILD_ID_BYTES_MAX),
    ] {
        if text.is_empty() || text.len() > bytes_max {
            problems.push(format!("{what} has {} bytes, it must have 1 to {bytes_max}", text.len()));
        }
    }
    let in_common = in_common_bytes(&identity.in_common);
    if in_common > IN_COMMON_BYTES_MAX {
        problems.push(format!(
            "what the processes must have in common takes {in_common} bytes, it must have at most {IN_COMMON_BYTES_MAX}"
        ));
    }
    if identity.secret.as_ref().is_some_and(|secret| secret.is_empty()) {
        problems.push("the shared secret is empty, which protects nothing".into());
    }
    for (what, timeout) in [
        ("startup_timeout", timeouts.startup),
        ("peer_timeout", timeouts.peer),
        ("unwind_timeout", timeouts.unwind),
    ] {
        if timeout < Duration::from_millis(100) {
            problems.push(format!("{what} is {timeout:?}, it must be at least 100ms"));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(ClusterError::Spec { problems }) }
}

pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), ClusterError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(run)
        .map(drop)
        .map_err(|source| ClusterError::System { what: "start a thread", source })
}

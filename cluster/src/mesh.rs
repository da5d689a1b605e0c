//! The state that the threads of one process share about its peers.
//!
//! Threads per process: the monitor (this process's own pulse, silent peers, spreading the first cause), the
//! listener, one dialer per peer with a lower index while the cluster gathers, and per peer one reader and
//! one writer of the control connection. All of them act on [`Shared`] under one lock, for moments only.
//!
//! What a lost connection means depends on how far this process is: while it gathers, the peer may come
//! back; from the moment the list of runs is fixed [`Farewell`] says what it means.

mod leaving;

use crate::admission::Phase;
use crate::assembly::{Action, Assembly, Event};
use crate::cause::{Cause, SentCause};
use crate::clock::since_boot;
use crate::error::ClusterError;
use crate::farewell::{self, Farewell, Word};
use crate::handshake::{Difference, Hello, Purpose};
use crate::identity::{Identity, fill_random};
use crate::liveness::{Liveness, Silence, tick_interval};
use crate::spec::ClusterSpec;
use crate::supervisor::{Supervisor, lock};
use crate::timeouts::Timeouts;
use crate::wire::{Leave, Message};
use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_recovery::{Generation, ProcessIndex, RunId};

/// Signs of life of one control connection, written by its reader.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// When something arrived last, on the clock of [`Silence`], in nanoseconds.
    at: AtomicU64,
    /// How often something arrived.
    times: AtomicU64,
}

/// Bytes for the writer of a control connection.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) bytes: Vec<u8>,
    /// Nothing follows.
    pub(crate) last: bool,
}

/// What the threads of a control connection need of its seat.
#[derive(Debug)]
pub(crate) struct Seated {
    pub(crate) id: u64,
    pub(crate) heard: Arc<Heard>,
    pub(crate) frames: Receiver<Frame>,
}

/// The control connection to a peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: u64,
    pub(crate) run_id: RunId,
    pub(crate) remote: SocketAddr,
    /// Frames for the writer.
    pub(crate) outbox: Sender<Frame>,
    pub(crate) socket: TcpStream,
    pub(crate) heard: Arc<Heard>,
}

/// What is known of one peer.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub(crate) link: Option<Link>,
    pub(crate) data: Option<TcpStream>,
    /// Both connections are there and the assembly knows.
    up: bool,
    /// What went wrong last on the way to this peer.
    pub(crate) trouble: Option<String>,
    /// Its last words.
    pub(crate) left: Option<Leave>,
    /// Messages of rounds that nobody has taken yet. A peer is at most one round ahead.
    pub(crate) inbox: VecDeque<Message>,
    /// Its run in the fixed list, kept for messages after the link is gone.
    pub(crate) run_id: Option<RunId>,
}

/// Under the lock of [`Shared`].
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) peers: Vec<Peer>,
    pub(crate) assembly: Assembly,
    farewell: Farewell<Cause>,
    /// The list of runs, once it is fixed.
    pub(crate) runs: Option<Vec<RunId>>,
    /// What ends the bring-up.
    pub(crate) failure: Option<ClusterError>,
    announced: bool,
    links: u64,
    /// Writers that still run.
    writers: usize,
}

/// What all threads of a process share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) spec: ClusterSpec,
    pub(crate) identity: Identity,
    pub(crate) timeouts: Timeouts,
    pub(crate) supervisor: Supervisor,
    pub(crate) liveness: Liveness,
    state: Mutex<State>,
    pub(crate) changed: Condvar,
    /// How long this process ran: the clock of the silences, in nanoseconds.
    ran: AtomicU64,
    monitor: Mutex<Sender<()>>,
    listener: Mutex<Option<TcpListener>>,
}

/// A peer as `/status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The peer.
    pub process: ProcessIndex,
    /// Its place in the address list.
    pub address: Option<String>,
    /// Where its connection came from or leads to; differs from `address` behind a proxy.
    pub remote: Option<SocketAddr>,
    /// The run that is there.
    pub run_id: Option<RunId>,
    /// How long it has been silent; `None` when it is not connected.
    pub silent_for: Option<Duration>,
    /// Whether its work is done, as far as it has been heard.
    pub finished: bool,
    /// Whether it said goodbye.
    pub left: bool,
    /// What went wrong last on the way to it.
    pub trouble: Option<String>,
}

impl Shared {
    pub(crate) fn new(
        spec: ClusterSpec,
        identity: Identity,
        timeouts: Timeouts,
        supervisor: Supervisor,
    ) -> (Arc<Shared>, Receiver<()>) {
        let processes = spec.processes();
        let liveness = Liveness::new(supervisor.clone(), timeouts.peer);
        let (monitor, wakes) = std::sync::mpsc::channel();
        let state = State {
            phase: Phase::Assembling,
            peers: (0..processes).map(|_| Peer::default()).collect(),
            assembly: Assembly::new(spec.index(), identity.run_id, processes),
            farewell: Farewell::new(spec.index(), processes),
            runs: None,
            failure: None,
            announced: false,
            links: 0,
            writers: 0,
        };
        let shared = Shared {
            spec,
            identity,
            timeouts,
            supervisor,
            liveness,
            state: Mutex::new(state),
            changed: Condvar::new(),
            ran: AtomicU64::new(0),
            monitor: Mutex::new(monitor),
            listener: Mutex::new(None),
        };
        (Arc::new(shared), wakes)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits for a change for at most `limit`. Changes outside the lock (the supervisor, a stop) are found
    /// because no wait is longer than a tenth of a second.
    pub(crate) fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        let limit = limit.clamp(Duration::from_millis(1), Duration::from_millis(100));
        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// What this process says of itself to `target`.
    pub(crate) fn hello(&self, target: ProcessIndex, purpose: Purpose) -> Result<Hello, ClusterError> {
        let mut nonce = [0; 32];
        fill_random(&mut nonce)?;
        Ok(Hello {
            cluster_id: self.identity.cluster_id.clone(),
            fingerprint: self.identity.fingerprint,
            build: self.identity.build.clone(),
            in_common: self.identity.in_common.clone(),
            processes: self.spec.processes() as u32,
            workers_per_process: self.spec.workers_per_process() as u32,
            index: self.spec.index(),
            target,
            run_id: self.identity.run_id,
            generation: self.identity.known_generation,
            purpose,
            has_secret: self.identity.secret.is_some(),
            nonce,
        })
    }

    /// Ends the bring-up, unless it has ended already.
    pub(crate) fn fail(&self, error: ClusterError) {
        self.lock().failure.get_or_insert(error);
        self.changed.notify_all();
    }

    /// Ends the bring-up because of a process that disagrees; a cluster that runs only turns it away.
    pub(crate) fn differs(&self, who: String, differences: Vec<Difference>, proven: bool) {
        let mut state = self.lock();
        let error = ClusterError::Mismatch { peer: who, differences };
        if state.phase == Phase::Assembling && proven {
            state.failure.get_or_insert(error);
            drop(state);
            self.changed.notify_all();
        } else {
            tracing::warn!(code = error.code(), "turned a process away: {error}");
        }
    }

    /// "process 1 (h1:2101, run …)".
    pub(crate) fn described(&self, peer: ProcessIndex, run: Option<RunId>) -> String {
        match (self.spec.address(peer), run) {
            (Some(address), Some(run)) => format!("process {peer} ({address}, run {run})"),
            (None, Some(run)) => format!("process {peer} (run {run})"),
            (_, None) => self.spec.named(peer),
        }
    }

    /// Puts a control connection in its seat. The caller runs its threads once the handshake is complete.
    pub(crate) fn take_seat(
        &self,
        state: &mut State,
        peer: ProcessIndex,
        run_id: RunId,
        socket: TcpStream,
        remote: SocketAddr,
    ) -> Seated {
        self.vacate(state, peer, None);
        state.links += 1;
        let id = state.links;
        let (outbox, frames) = std::sync::mpsc::channel();
        let heard = Arc::new(Heard::default());
        heard.at.store(self.ran.load(Ordering::Acquire), Ordering::Release);
        let place = &mut state.peers[peer.0 as usize];
        place.left = None;
        place.run_id = Some(run_id);
        place.inbox.clear();
        place.link = Some(Link { id, run_id, remote, outbox, socket, heard: Arc::clone(&heard) });
        Seated { id, heard, frames }
    }

    /// Puts a data connection beside the control connection of the same run.
    pub(crate) fn take_data(&self, state: &mut State, peer: ProcessIndex, socket: TcpStream) {
        let place = &mut state.peers[peer.0 as usize];
        place.data = Some(socket);
        place.trouble = None;
        if !place.up
            && let Some(link) = &place.link
        {
            place.up = true;
            let run = link.run_id;
            self.assemble(state, Event::Up(peer, run));
        }
        self.changed.notify_all();
    }

    /// Closes what is in a peer's seat.
    pub(crate) fn vacate(&self, state: &mut State, peer: ProcessIndex, trouble: Option<String>) {
        let place = &mut state.peers[peer.0 as usize];
        if let Some(link) = place.link.take() {
            // Wakes its reader; an error means that the connection is gone already.
            let _ = link.socket.shutdown(Shutdown::Both);
        }
        place.data = None;
        if trouble.is_some() {
            place.trouble = trouble;
        }
        if std::mem::take(&mut place.up) {
            self.assemble(state, Event::Down(peer));
        }
        self.changed.notify_all();
    }

    pub(crate) fn assemble(&self, state: &mut State, event: Event) {
        let action = state.assembly.on(event);
        self.act(state, action);
    }

    pub(crate) fn act(&self, state: &mut State, action: Option<Action>) {
        match action {
            None => {}
            Some(Action::Ready(runs)) => self.send(state, ProcessIndex(0), &Message::Ready { runs }),
            Some(Action::Fix(runs)) => {
                for peer in self.spec.peers() {
                    self.send(state, peer, &Message::Fixed { runs: runs.clone() });
                }
                state.phase = Phase::Fixed(Generation(0));
                state.runs = Some(runs);
            }
        }
        self.changed.notify_all();
    }

    /// Hands a message to the writer of a peer. A peer that is not connected is no error: its loss is noticed
    /// and reported where it happens.
    pub(crate) fn send(&self, state: &State, peer: ProcessIndex, message: &Message) {
        if let Some(link) = &state.peers[peer.0 as usize].link {
            match message.frame() {
                Ok(bytes) => {
                    let last = matches!(message, Message::Leave(_));
                    // The receiver is gone when the connection is, which its reader reports.
                    let _ = link.outbox.send(Frame { bytes, last });
                }
                Err(error) => tracing::error!(peer = peer.0, "cannot send: {error}"),
            }
        }
    }

    /// Takes in a message that arrived on link `id`. Returns whether to go on reading.
    pub(crate) fn received(&self, peer: ProcessIndex, id: u64, message: Message) -> bool {
        let mut state = self.lock();
        let index = peer.0 as usize;
        if state.peers[index].link.as_ref().is_none_or(|link| link.id != id) {
            return false;
        }
        let mut cause = None;
        match message {
            Message::Beat => return true,
            Message::Ready { runs } => self.assemble(&mut state, Event::Ready(peer, runs)),
            Message::Fixed { runs } => {
                if state.phase == Phase::Assembling && peer.0 == 0 {
                    if state.assembly.complete().as_ref() == Some(&runs) {
                        state.phase = Phase::Fixed(Generation(0));
                        state.runs = Some(runs);
                    } else {
                        let text = "a process was lost while the cluster came up: the list of runs that \
                                    process 0 fixed is not the one that this process is connected with";
                        cause = Some(Cause::lost(peer, text.into()));
                    }
                }
            }
            message @ (Message::Gather { .. } | Message::Answer { .. }) => {
                state.peers[index].inbox.push_back(message);
            }
            Message::Finished { process } => {
                cause = self.farewell(&mut state, farewell::Event::Said(peer, Word::Finished(process)));
            }
            Message::Doubt { process } => {
                cause = self.farewell(&mut state, farewell::Event::Said(peer, Word::Doubt(process)));
            }
            Message::Leave(leave) => {
                cause = self.peer_leaves(&mut state, peer, &leave);
                state.peers[index].left = Some(leave);
            }
        }
        drop(state);
        // Not under the lock: the supervisor calls others, who may look at the cluster.
        if let Some(cause) = cause {
            self.supervisor.give_up(cause);
        }
        self.changed.notify_all();
        true
    }

    /// Notes a sign of life.
    pub(crate) fn heard(&self, heard: &Heard) {
        heard.at.store(self.ran.load(Ordering::Acquire), Ordering::Release);
        heard.times.fetch_add(1, Ordering::AcqRel);
    }

    /// How often the holder of a peer's seat was heard.
    pub(crate) fn times_heard(&self, state: &State, peer: ProcessIndex) -> u64 {
        let link = state.peers[peer.0 as usize].link.as_ref();
        link.map_or(0, |link| link.heard.times.load(Ordering::Acquire))
    }

    /// Link `id` to a peer is gone.
    pub(crate) fn lost(&self, peer: ProcessIndex, id: u64, why: &str) {
        let mut state = self.lock();
        let is_current = |state: &State| {
            let link = state.peers[peer.0 as usize].link.as_ref();
            link.is_some_and(|link| link.id == id)
        };
        if !is_current(&state) {
            return;
        }
        let place = &state.peers[peer.0 as usize];
        let text = format!("{} is lost: {why}", self.described(peer, place.run_id));
        let trouble = match (state.phase, &place.left) {
            (Phase::Leaving, _) | (_, Some(Leave::Fault(_))) | (Phase::Fixed(_), Some(_)) => None,
            (Phase::Assembling, Some(Leave::Done | Leave::Stopped) | None) => Some(text),
            (Phase::Fixed(_), None) => {
                drop(state);
                // If this process stood still, it is the one that was lost: the check records that first.
                let _ = self.liveness.check();
                let cause = Cause::lost(peer, text.clone());
                let lost = farewell::Event::Lost(peer, cause.clone());
                let given_up = self.farewell(&mut self.lock(), lost);
                // A peer that had finished is no lost one, but it explains a data connection that broke.
                if let Some(cause) = given_up.or(self.supervisor.leaving().then_some(cause)) {
                    self.supervisor.give_up(cause);
                }
                state = self.lock();
                if !is_current(&state) {
                    return;
                }
                Some(text)
            }
        };
        self.vacate(&mut state, peer, trouble);
    }

    pub(crate) fn writer_starts(&self) {
        self.lock().writers += 1;
    }

    pub(crate) fn writer_ends(&self) {
        self.lock().writers -= 1;
        self.changed.notify_all();
    }

    pub(crate) fn hold_listener(&self, listener: TcpListener) {
        *lock(&self.listener) = Some(listener);
    }

    pub(crate) fn wake_monitor(&self) {
        // The monitor is gone only when this process leaves.
        let _ = lock(&self.monitor).send(());
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.lock().phase == Phase::Leaving
    }

    /// What `/status` shows of the peers.
    pub(crate) fn status(&self) -> Vec<PeerStatus> {
        let state = self.lock();
        let ran = self.ran.load(Ordering::Acquire);
        let status = |process: ProcessIndex| {
            let peer = &state.peers[process.0 as usize];
            PeerStatus {
                process,
                address: self.spec.address(process).map(ToString::to_string),
                remote: peer.link.as_ref().map(|link| link.remote),
                run_id: peer.run_id,
                silent_for: peer.link.as_ref().map(|link| {
                    Duration::from_nanos(ran.saturating_sub(link.heard.at.load(Ordering::Acquire)))
                }),
                finished: state.farewell.knows_finished(process),
                left: peer.left.is_some(),
                trouble: peer.trouble.clone(),
            }
        };
        self.spec.peers().map(status).collect()
    }

    /// The monitor's loop: looks at this process's own pulse and at the silence of its peers, lets suspicions
    /// ripen, and tells the peers the first cause.
    pub(crate) fn monitor(&self, wakes: &Receiver<()>) {
        let tick = tick_interval(self.timeouts.peer);
        let mut silence = Silence::new(self.timeouts.peer, since_boot());
        loop {
            match wakes.recv_timeout(tick) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.liveness.tick();
            self.supervisor.tick();
            let ran = silence.tick(since_boot());
            self.ran.store(u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
            let mut lost = Vec::new();
            {
                let mut state = self.lock();
                if state.phase == Phase::Leaving {
                    return;
                }
                if let Some(cause) = self.supervisor.cause() {
                    self.say_goodbye(&mut state, &Leave::Fault(SentCause::of(&cause)));
                }
                for peer in self.spec.peers() {
                    let place = &state.peers[peer.0 as usize];
                    if let (Some(link), None) = (&place.link, &place.left) {
                        let at = Duration::from_nanos(link.heard.at.load(Ordering::Acquire));
                        if silence.is_lost(at) {
                            lost.push((peer, link.id, ran.saturating_sub(at)));
                        }
                    }
                }
            }
            for (peer, id, silent) in lost {
                let why = format!(
                    "it has been silent for {:.1} s (peer_timeout is {:.1} s); it is dead, frozen or cut off",
                    silent.as_secs_f64(),
                    self.timeouts.peer.as_secs_f64()
                );
                self.lost(peer, id, &why);
            }
        }
    }
}

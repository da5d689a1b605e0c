//! The port of a process: it listens before anything else happens, and for as long as the process lives.
//!
//! Whoever connects gets a thread and a deadline for its handshake. Strangers are dropped and logged, at
//! most one line in ten seconds with a count. When too many callers are at the door at once the oldest is
//! dropped, so that silent connections cannot keep a peer out.

use crate::admission::{Admission, Phase, Seat, admit};
use crate::error::ClusterError;
use crate::handshake::{Failure, Handshake, Hello, Purpose, Refusal};
use crate::link::LinkThreads;
use crate::mesh::{Seated, Shared};
use crate::socket::{connect_to, drive, prepare};
use crate::supervisor::lock;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_recovery::ProcessIndex;

/// Most callers whose handshake is not complete, besides two for each process of the cluster.
const CALLERS_MAX: usize = 64;
/// Least time between two lines about strangers.
const STRANGER_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// A holder of a seat is alive when it was heard this often after a second run claimed the seat: the first
/// message may have been on its way when it died.
const SIGNS_OF_LIFE: u64 = 2;
/// How long a probe of a taken port waits for an answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Says when a line about strangers may be logged, and for how many it stands. Pure.
#[derive(Debug, Default)]
pub(crate) struct StrangerLog {
    logged: Option<Instant>,
    unlogged: u64,
}

impl StrangerLog {
    /// Counts a stranger; the number of strangers to log, if a line is due.
    pub(crate) fn on_stranger(&mut self, now: Instant) -> Option<u64> {
        self.unlogged += 1;
        if self.logged.is_some_and(|logged| now.duration_since(logged) < STRANGER_LOG_INTERVAL) {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// Listens at this process's own address. `None` when it has none.
pub(crate) fn bind(shared: &Shared) -> Result<Option<TcpListener>, ClusterError> {
    let index = shared.spec.index();
    let Some(address) = shared.spec.address(index) else {
        return Ok(None);
    };
    TcpListener::bind((address.host.as_str(), address.port)).map(Some).map_err(|source| {
        let hint = match source.kind() {
            ErrorKind::AddrInUse => who_is_there(shared),
            ErrorKind::AddrNotAvailable => {
                "; the address of this process must be one of this host: write 0.0.0.0 for the host of its own \
                 entry if others reach it under another one"
                    .into()
            }
            ErrorKind::PermissionDenied => "; ports below 1024 belong to root, take a higher one".into(),
            _ => String::new(),
        };
        ClusterError::Bind { address: address.to_string(), index, source, hint }
    })
}

/// Asks whoever holds this process's port who it is. It is told in turn, so that two processes which were
/// started with the same index, or with lists in another order, both know.
fn who_is_there(shared: &Shared) -> String {
    let index = shared.spec.index();
    let unknown = "; another program listens there: end it, or take another port".to_string();
    let Some(address) = shared.spec.address(index) else {
        return unknown;
    };
    let deadline = Instant::now() + PROBE_TIMEOUT;
    let Some(remote) =
        (address.host.as_str(), address.port).to_socket_addrs().ok().and_then(|mut found| found.next())
    else {
        return unknown;
    };
    let (Ok(stream), Ok(hello)) = (connect_to(remote, deadline), shared.hello(index, Purpose::Probe)) else {
        return unknown;
    };
    let (handshake, first) = Handshake::dial(hello, shared.identity.secret.clone());
    match drive(&stream, handshake, first, deadline, &mut |_| Ok(())) {
        Err(Failure::Refused(Refusal::IndexTaken { holder })) => format!(
            "; process {index} of this cluster runs there already: it is run {holder}, this is run {}",
            shared.identity.run_id
        ),
        Err(Failure::Differs { differences, .. }) => {
            let texts: Vec<String> = differences.iter().map(ToString::to_string).collect();
            format!("; another process of tidegate listens there: {}", texts.join("; "))
        }
        Ok(_) | Err(Failure::Refused(_) | Failure::Stranger(_)) => unknown,
    }
}

/// Callers whose handshake is not complete, oldest first.
#[derive(Default)]
struct Callers {
    next: u64,
    waiting: VecDeque<(u64, TcpStream)>,
}

/// Accepts connections until this process leaves.
pub(crate) fn listen(shared: &Arc<Shared>, listener: &TcpListener) {
    let callers = Arc::new(Mutex::new(Callers::default()));
    let callers_max = CALLERS_MAX + 2 * shared.spec.processes();
    let strangers = Arc::new(Mutex::new(StrangerLog::default()));
    loop {
        let accepted = listener.accept();
        if shared.is_leaving() {
            return;
        }
        let (stream, remote) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                // Out of file handles, most likely: others must give some back before it makes sense to go on.
                std::thread::park_timeout(Duration::from_millis(100));
                continue;
            }
        };
        let number = {
            let mut callers = lock(&callers);
            callers.next += 1;
            let number = callers.next;
            if callers.waiting.len() >= callers_max
                && let Some((_, oldest)) = callers.waiting.pop_front()
            {
                // Its thread finds the connection closed and reports it.
                let _ = oldest.shutdown(Shutdown::Both);
            }
            match stream.try_clone() {
                Ok(clone) => callers.waiting.push_back((number, clone)),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    continue;
                }
            }
            number
        };
        let (shared, at_door, strangers) = (Arc::clone(shared), Arc::clone(&callers), Arc::clone(&strangers));
        let thread = std::thread::Builder::new().name("caller".into()).spawn(move || {
            let received = receive(&shared, &stream, remote);
            lock(&at_door).waiting.retain(|(waiting, _)| *waiting != number);
            match received {
                Ok(Some(link)) => link(stream),
                Ok(None) => {}
                Err(what) => {
                    let count = lock(&strangers).on_stranger(Instant::now());
                    if let Some(count) = count {
                        tracing::warn!(%remote, count, "dropped a stranger on the mesh port: it {what}");
                    }
                }
            }
        });
        if let Err(error) = thread {
            tracing::warn!(%error, "cannot start a thread for a connection");
            lock(&callers).waiting.retain(|(waiting, _)| *waiting != number);
        }
    }
}

type RunLink = Box<dyn FnOnce(TcpStream)>;

/// The handshake with a caller. Returns what to do with the connection: run its threads, or nothing. The
/// error says what a stranger did.
fn receive(shared: &Arc<Shared>, stream: &TcpStream, remote: SocketAddr) -> Result<Option<RunLink>, String> {
    let _watch = shared.supervisor.watch_thread("the thread of a caller");
    let deadline = Instant::now() + shared.timeouts.stranger;
    prepare(stream, shared.timeouts.peer).map_err(|error| format!("broke off ({error})"))?;
    let hello = shared.hello(shared.spec.index(), Purpose::Control).map_err(|error| error.to_string())?;
    let handshake = Handshake::accept(hello, shared.identity.secret.clone());
    let mut taken = None;
    let result = drive(stream, handshake, Vec::new(), deadline, &mut |hello| {
        seat(shared, stream, remote, hello, deadline).map(|seated| taken = seated)
    });
    match (result, taken) {
        (Ok(hello), Some(seated)) => {
            tracing::debug!(peer = hello.index.0, run = %hello.run_id, "a peer connected");
            let (shared, peer) = (Arc::clone(shared), hello.index);
            Ok(Some(Box::new(move |stream| LinkThreads { shared, peer, seated, stream }.run())))
        }
        (Ok(_), None) => Ok(None),
        (Err(failure), taken) => {
            if let Some(seated) = taken {
                let mut state = shared.lock();
                let has_seat = |peer: &ProcessIndex| {
                    let link = state.peers[peer.0 as usize].link.as_ref();
                    link.is_some_and(|link| link.id == seated.id)
                };
                let seat = shared.spec.peers().find(has_seat);
                if let Some(peer) = seat {
                    shared.vacate(&mut state, peer, Some("it broke off its handshake".into()));
                }
            }
            match failure {
                Failure::Stranger(what) => Err(what),
                Failure::Differs { differences, proven } => {
                    shared.differs(format!("the process that called from {remote}"), differences, proven);
                    Ok(None)
                }
                Failure::Refused(Refusal::Retry(why)) => {
                    tracing::debug!(%remote, why, "turned a peer away for now");
                    Ok(None)
                }
                Failure::Refused(refusal) => {
                    tracing::warn!(%remote, own_run = %shared.identity.run_id, ?refusal, "turned a process away");
                    Ok(None)
                }
            }
        }
    }
}

/// Decides about a caller that has proved who it is and, if it may, seats it before it is told.
fn seat(
    shared: &Shared,
    stream: &TcpStream,
    remote: SocketAddr,
    hello: &Hello,
    deadline: Instant,
) -> Result<Option<Seated>, Refusal> {
    let broken = |error: std::io::Error| Refusal::Retry(format!("the connection broke ({error})"));
    let peer = hello.index;
    // A little before the handshake's own deadline, so that the answer still arrives.
    let patience = deadline - shared.timeouts.stranger / 5;
    let mut state = shared.lock();
    let heard_before = shared.times_heard(&state, peer);
    let mut holder_before = None;
    loop {
        let place = &state.peers[peer.0 as usize];
        let holder = place.link.as_ref().map(|link| link.run_id);
        let heard_since = holder.is_some()
            && *holder_before.get_or_insert(holder) == holder
            && shared.times_heard(&state, peer) >= heard_before + SIGNS_OF_LIFE;
        let view = Seat { holder, heard_since, has_data: place.data.is_some() };
        match admit(state.phase, view, hello) {
            Admission::Refuse(refusal) => return Err(refusal),
            Admission::Take => {
                let own = stream.try_clone().map_err(broken)?;
                return Ok(match hello.purpose {
                    Purpose::Data => {
                        shared.take_data(&mut state, peer, own);
                        None
                    }
                    Purpose::Control | Purpose::Probe => {
                        Some(shared.take_seat(&mut state, peer, hello.run_id, own, remote))
                    }
                });
            }
            Admission::AwaitSign => {
                let rest = patience.saturating_duration_since(Instant::now());
                if rest.is_zero() {
                    return Err(Refusal::Retry("whether the index is taken is not known yet".into()));
                }
                state = shared.wait(state, rest);
            }
        }
    }
}

/// What a dialer does while the cluster gathers is in [`crate::dial`]; this tells it when to stop.
pub(crate) fn gathers(phase: Phase) -> bool {
    phase == Phase::Assembling
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // C8
    fn strangers_are_logged_once_and_then_counted() {
        let mut log = StrangerLog::default();
        let start = Instant::now();
        assert_eq!(log.on_stranger(start), Some(1));
        for second in 1..10 {
            assert_eq!(log.on_stranger(start + Duration::from_secs(second)), None);
        }
        assert_eq!(log.on_stranger(start + Duration::from_secs(11)), Some(10));
    }
}

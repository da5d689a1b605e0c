//! Connecting to the peers with a lower index, while the cluster gathers.
//!
//! One thread per such peer. The name is resolved anew at every attempt, since an address can change while
//! a host restarts. Attempts go on with a growing pause until the cluster is complete or gives up; only a
//! peer that disagrees ends them. When a connection is lost before the cluster is complete they begin anew.

use crate::door::gathers;
use crate::error::ClusterError;
use crate::handshake::{Failure, Handshake, Purpose, Refusal};
use crate::link::LinkThreads;
use crate::mesh::Shared;
use crate::socket::{connect, connect_to, drive, prepare};
use crate::spec::Address;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_recovery::{ProcessIndex, RunId};

/// First and longest pause between two attempts.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

enum Trouble {
    /// Try again; this is what happened.
    Again(String),
    /// The cluster cannot come up.
    Fatal(ClusterError),
}

/// Keeps the connection to `peer` up until the cluster is complete.
pub(crate) fn dial(shared: &Arc<Shared>, peer: ProcessIndex) {
    let _watch = shared.supervisor.watch_thread(format!("the dialer of process {peer}"));
    let Some(address) = shared.spec.address(peer).cloned() else {
        return;
    };
    let mut backoff = BACKOFF_FIRST;
    loop {
        match attempt(shared, peer, &address) {
            Ok(()) => {
                backoff = BACKOFF_FIRST;
                let mut state = shared.lock();
                while gathers(state.phase) && state.peers[peer.0 as usize].link.is_some() {
                    state = shared.wait(state, Duration::from_millis(100));
                }
            }
            Err(Trouble::Fatal(error)) => return shared.fail(error),
            Err(Trouble::Again(what)) => {
                tracing::debug!(peer = peer.0, what, "cannot connect yet");
                let mut state = shared.lock();
                state.peers[peer.0 as usize].trouble = Some(what);
                let until = Instant::now() + backoff;
                while gathers(state.phase) && Instant::now() < until {
                    state = shared.wait(state, until.saturating_duration_since(Instant::now()));
                }
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        }
        if !gathers(shared.lock().phase) {
            return;
        }
    }
}

/// Makes both connections to a peer and seats them.
fn attempt(shared: &Arc<Shared>, peer: ProcessIndex, address: &Address) -> Result<(), Trouble> {
    let again = |error: std::io::Error| Trouble::Again(format!("cannot be reached ({error})"));
    let deadline = Instant::now() + shared.timeouts.stranger;
    let control = connect(address, deadline).map_err(again)?;
    let remote = control.peer_addr().map_err(again)?;
    let run_id = shake(shared, peer, &control, Purpose::Control)?;
    let seated = {
        let mut state = shared.lock();
        if !gathers(state.phase) {
            return Ok(());
        }
        let own = control.try_clone().map_err(again)?;
        shared.take_seat(&mut state, peer, run_id, own, remote)
    };
    let id = seated.id;
    let link = LinkThreads { shared: Arc::clone(shared), peer, seated, stream: control };
    let reader = std::thread::Builder::new().name(format!("hear-{peer}")).spawn(move || link.run());
    let data = reader.map_err(again).and_then(|_| {
        let data = connect_to(remote, Instant::now() + shared.timeouts.stranger).map_err(again)?;
        let data_run = shake(shared, peer, &data, Purpose::Data)?;
        if data_run == run_id { Ok(data) } else { Err(Trouble::Again("was started anew".into())) }
    });
    let mut state = shared.lock();
    let current = state.peers[peer.0 as usize].link.as_ref().is_some_and(|link| link.id == id);
    match data {
        Ok(data) if current => {
            shared.take_data(&mut state, peer, data);
            Ok(())
        }
        Ok(_) => Err(Trouble::Again("broke off while the cluster gathered".into())),
        Err(trouble) => {
            if current {
                shared.vacate(&mut state, peer, None);
            }
            Err(trouble)
        }
    }
}

/// The handshake of one connection; returns the peer's run.
fn shake(
    shared: &Shared,
    peer: ProcessIndex,
    stream: &TcpStream,
    purpose: Purpose,
) -> Result<RunId, Trouble> {
    prepare(stream, shared.timeouts.peer)
        .map_err(|error| Trouble::Again(format!("cannot be reached ({error})")))?;
    let deadline = Instant::now() + shared.timeouts.stranger;
    let hello = shared.hello(peer, purpose).map_err(Trouble::Fatal)?;
    let (handshake, first) = Handshake::dial(hello, shared.identity.secret.clone());
    let named = || match shared.spec.address(peer) {
        Some(address) => format!("the process at {address}"),
        None => format!("process {peer}"),
    };
    match drive(stream, handshake, first, deadline, &mut |_| Ok(())) {
        Ok(hello) => Ok(hello.run_id),
        Err(Failure::Stranger(what)) => Err(Trouble::Again(format!("whoever is there {what}"))),
        Err(Failure::Differs { differences, .. }) => {
            Err(Trouble::Fatal(ClusterError::Mismatch { peer: named(), differences }))
        }
        Err(Failure::Refused(Refusal::Retry(why))) => Err(Trouble::Again(format!("said: {why}"))),
        Err(Failure::Refused(Refusal::IndexTaken { holder })) => {
            Err(Trouble::Fatal(ClusterError::IndexTaken {
                index: shared.spec.index(),
                holder,
                own: shared.identity.run_id,
                told_by: named(),
            }))
        }
        Err(Failure::Refused(Refusal::OldGeneration { named: old, running })) => {
            Err(Trouble::Fatal(ClusterError::Replaced {
                told_by: named(),
                text: format!("generation {running} runs, this process knows {old}"),
            }))
        }
        Err(Failure::Refused(Refusal::Differs)) => {
            Err(Trouble::Again("whoever is there sees a difference".into()))
        }
    }
}

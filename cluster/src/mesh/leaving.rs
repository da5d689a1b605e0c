//! How a process leaves: its last words, those of its peers, and the wait until all have finished.
//!
//! What is said to whom, and when a process may go, is decided by [`Farewell`](crate::farewell::Farewell); here it is
//! done.

use super::{Shared, State};
use crate::admission::Phase;
use crate::cause::{Cause, SentCause};
use crate::farewell::{self, Word};
use crate::supervisor::lock;
use crate::wire::{Leave, Message};
use std::net::Shutdown;
use std::time::{Duration, Instant};
use tidegate_recovery::{ErrorClass, ProcessIndex};

/// Longest wait for goodbyes to be written.
const GOODBYE: Duration = Duration::from_secs(1);

impl Shared {
    /// A peer says its last word. Returns what the generation ends for.
    pub(super) fn peer_leaves(&self, state: &mut State, peer: ProcessIndex, leave: &Leave) -> Option<Cause> {
        let place = &mut state.peers[peer.0 as usize];
        let from = self.described(peer, place.run_id);
        let event = match leave {
            Leave::Fault(sent) => {
                let fault = sent.clone().received(peer, &from);
                place.trouble = Some(fault.to_string());
                // While the cluster gathers, a peer that fails may come back. But a disagreement does not
                // heal, and without process 0 there is no cluster to wait for.
                if state.phase == Phase::Assembling {
                    let fatal = peer.0 == 0 || fault.class == ErrorClass::Config;
                    return fatal.then_some(fault);
                }
                farewell::Event::Said(peer, Word::Fault(fault))
            }
            Leave::Done => farewell::Event::Said(peer, Word::Done),
            Leave::Stopped => {
                tracing::info!(peer = peer.0, "a peer left before its work was done");
                let text = format!("{from} is lost: it left before its work was done");
                farewell::Event::Left(peer, Cause::lost(peer, text))
            }
        };
        match state.phase {
            Phase::Assembling => None,
            Phase::Fixed(_) | Phase::Leaving => self.farewell(state, event),
        }
    }

    /// Takes a step towards the end. Returns what the generation ends for; to be reported without the lock.
    pub(super) fn farewell(&self, state: &mut State, event: farewell::Event<Cause>) -> Option<Cause> {
        let mut given_up = None;
        for action in state.farewell.on(event) {
            match action {
                farewell::Action::GiveUp(cause) => given_up = Some(cause),
                farewell::Action::Tell(peer, word) => self.say(state, &[peer], word),
                farewell::Action::TellAll(word) => {
                    let peers: Vec<ProcessIndex> = self.spec.peers().collect();
                    self.say(state, &peers, word);
                }
            }
        }
        self.changed.notify_all();
        given_up
    }

    fn say(&self, state: &mut State, peers: &[ProcessIndex], word: Word<Cause>) {
        let message = match word {
            Word::Finished(process) => Message::Finished { process },
            Word::Doubt(process) => Message::Doubt { process },
            Word::Done => return self.say_goodbye(state, &Leave::Done),
            Word::Fault(cause) => return self.say_goodbye(state, &Leave::Fault(SentCause::of(&cause))),
        };
        for peer in peers {
            self.send(state, *peer, &message);
        }
    }

    /// The work of this process has finished, unless the generation is ending.
    pub(crate) fn finish(&self) {
        if self.supervisor.finish() {
            let given_up = self.farewell(&mut self.lock(), farewell::Event::Finished);
            if let Some(cause) = given_up {
                self.supervisor.give_up(cause);
            }
        }
    }

    /// Waits until the work of all has finished and everybody knows it, or until the generation is given up.
    pub(crate) fn wait_for_all(&self) {
        let mut state = self.lock();
        while !state.farewell.may_leave() && !self.supervisor.leaving() {
            state = self.wait(state, Duration::from_millis(100));
        }
    }

    /// Says goodbye to all peers, waits a moment until that is written, and closes everything.
    pub(crate) fn leave(&self, leave: &Leave) {
        let mut state = self.lock();
        self.say_goodbye(&mut state, leave);
        state.phase = Phase::Leaving;
        self.changed.notify_all();
        let deadline = Instant::now() + GOODBYE;
        while state.writers > 0 {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            state = self.wait(state, rest);
        }
        for peer in self.spec.peers() {
            self.vacate(&mut state, peer, None);
        }
        drop(state);
        if let Some(listener) = lock(&self.listener).take() {
            // On Linux this wakes the thread that accepts; elsewhere it ends with the process.
            let _ = socket2::SockRef::from(&listener).shutdown(Shutdown::Both);
        }
        self.wake_monitor();
    }

    pub(super) fn say_goodbye(&self, state: &mut State, leave: &Leave) {
        if !std::mem::replace(&mut state.announced, true) {
            for peer in self.spec.peers() {
                self.send(state, peer, &Message::Leave(leave.clone()));
            }
        }
    }
}

//! The end of the work: when a process that has finished may leave, and whether the others must.
//!
//! The failure that this file survives: the work of all is done, and one process is killed on its way out. Of
//! the others, one had heard that it had finished and exits with 0, another one had not and exits with 75.
//!
//! It is a vote in which everybody counts:
//!
//! 1. A process has *finished* when all its workers have returned in order: whatever they had to make durable
//!    is. It says so to all, and takes nothing back: nothing that happens in itself from then on (a standstill,
//!    a lease that is lost, a data connection that breaks) ends the generation.
//! 2. A process that has finished and knows that all others have is *done*, for good, and says so to all.
//! 3. It leaves when every peer has said the same or is lost. So nobody takes a word along that another one
//!    still needs.
//! 4. A peer that is lost after it had finished is no lost peer. One that is lost before that ends the
//!    generation at once while this process works: what it read needs the peer.
//! 5. A process that has finished *doubts* a lost peer of which it did not hear that: others may have heard it.
//!    It says whom it doubts. Whoever knows better answers, now or when it learns it. When all who are still
//!    there doubt the same peer, nobody can be done, and the generation is given up.
//!
//! Why all agree: a process is done only if all have finished, so none of them gives up for a reason of its own
//! (1). One that gives up by doubt (5) has asked everybody who is there, and had everybody been asked who is
//! done or could become so, it would have answered. And one that is done does not go before those who doubt
//! have heard it (3).
//!
//! Assumed: words of one process to another arrive in their order, and a process that is lost to one is dead,
//! hence lost to all. When a network is cut for longer than `peer_timeout` at this very moment, or a process
//! stands still for as long, it may exit with 75 though the work is done; nothing is lost by that.

#[cfg(test)]
mod search;

use std::collections::BTreeSet;
use tidegate_recovery::ProcessIndex;

/// What processes tell each other about their end. `C` is a cause.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Word<C> {
    /// This process has finished.
    Finished(ProcessIndex),
    /// The speaker has lost this process and not heard that it had finished.
    Doubt(ProcessIndex),
    /// All have finished. The last word of its speaker.
    Done,
    /// The speaker gives the generation up. Its last word.
    Fault(C),
}

/// What happens to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event<C> {
    /// All its workers have returned in order.
    Finished,
    /// A peer said something.
    Said(ProcessIndex, Word<C>),
    /// A peer left without a fault and without having finished. While this process works, its workers or the
    /// next round meet the gap; the cause is for one that has finished.
    Left(ProcessIndex, C),
    /// A peer is dead, frozen or cut off.
    Lost(ProcessIndex, C),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action<C> {
    /// Say this to all peers.
    TellAll(Word<C>),
    /// Say this to one.
    Tell(ProcessIndex, Word<C>),
    /// The generation is given up.
    GiveUp(C),
}

/// What is known of one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Known<C> {
    has_finished: bool,
    /// It has said its last word or is lost.
    is_gone: bool,
    /// Why it is gone, if it went without a last word.
    lost: Option<C>,
    /// Who doubts it.
    doubted_by: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Verdict {
    Done,
    GivenUp,
}

/// The vote as one process sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Farewell<C> {
    own: usize,
    known: Vec<Known<C>>,
    verdict: Option<Verdict>,
}

impl<C: Clone> Farewell<C> {
    /// A process at work, among `processes`.
    pub(crate) fn new(own: ProcessIndex, processes: usize) -> Farewell<C> {
        let known = Known { has_finished: false, is_gone: false, lost: None, doubted_by: BTreeSet::new() };
        Farewell { own: own.0 as usize, known: vec![known; processes], verdict: None }
    }

    /// Whether all have finished; nothing that happens from now on matters.
    fn is_done(&self) -> bool {
        self.verdict == Some(Verdict::Done)
    }

    /// Whether this process may exit with 0.
    pub(crate) fn may_leave(&self) -> bool {
        self.is_done() && self.peers().all(|peer| self.known[peer].is_gone)
    }

    /// Whether the work of `process` is known to be done.
    pub(crate) fn knows_finished(&self, process: ProcessIndex) -> bool {
        self.known.get(process.0 as usize).is_some_and(|known| known.has_finished)
    }

    /// Takes an event in. Words that name a process that does not exist mean nothing.
    pub(crate) fn on(&mut self, event: Event<C>) -> Vec<Action<C>> {
        let mut actions = Vec::new();
        match event {
            Event::Finished => {
                let finished = Word::Finished(ProcessIndex(self.own as u32));
                self.known[self.own].has_finished = true;
                actions.push(Action::TellAll(finished));
                for peer in self.peers().filter(|peer| self.is_in_doubt(*peer)) {
                    actions.push(Action::TellAll(Word::Doubt(ProcessIndex(peer as u32))));
                }
            }
            Event::Said(from, word) => self.heard(from, word, &mut actions),
            Event::Left(peer, cause) => {
                let index = peer.0 as usize;
                self.gone(index, cause);
                if self.has_finished() && self.is_in_doubt(index) {
                    actions.push(Action::TellAll(Word::Doubt(peer)));
                }
            }
            Event::Lost(peer, cause) => {
                let index = peer.0 as usize;
                self.gone(index, cause.clone());
                if self.is_in_doubt(index) {
                    if self.has_finished() {
                        actions.push(Action::TellAll(Word::Doubt(peer)));
                    } else {
                        self.give_up(cause, &mut actions);
                    }
                }
            }
        }
        self.decide(&mut actions);
        actions
    }

    fn heard(&mut self, from: ProcessIndex, word: Word<C>, actions: &mut Vec<Action<C>>) {
        match word {
            Word::Finished(process) => {
                let Some(known) = self.known.get_mut(process.0 as usize) else { return };
                if !std::mem::replace(&mut known.has_finished, true) {
                    for doubter in &known.doubted_by {
                        let doubter = ProcessIndex(*doubter as u32);
                        actions.push(Action::Tell(doubter, Word::Finished(process)));
                    }
                }
            }
            Word::Doubt(process) => {
                let Some(known) = self.known.get_mut(process.0 as usize) else { return };
                known.doubted_by.insert(from.0 as usize);
                if known.has_finished {
                    actions.push(Action::Tell(from, Word::Finished(process)));
                }
            }
            Word::Done => {
                self.known[from.0 as usize].is_gone = true;
                for peer in self.peers() {
                    self.known[peer].has_finished = true;
                }
            }
            Word::Fault(cause) => {
                self.known[from.0 as usize].is_gone = true;
                self.give_up(cause, actions);
            }
        }
    }

    fn gone(&mut self, peer: usize, cause: C) {
        let known = &mut self.known[peer];
        if !std::mem::replace(&mut known.is_gone, true) {
            known.lost = Some(cause);
        }
    }

    fn give_up(&mut self, cause: C, actions: &mut Vec<Action<C>>) {
        if self.verdict.is_none() {
            self.verdict = Some(Verdict::GivenUp);
            actions.push(Action::GiveUp(cause));
        }
    }

    fn decide(&mut self, actions: &mut Vec<Action<C>>) {
        if self.verdict.is_some() || !self.has_finished() {
            return;
        }
        if self.known.iter().all(|known| known.has_finished) {
            self.verdict = Some(Verdict::Done);
            actions.push(Action::TellAll(Word::Done));
            return;
        }
        let hopeless = self.peers().find(|peer| {
            self.is_in_doubt(*peer)
                && self
                    .peers()
                    .all(|other| self.known[other].is_gone || self.known[*peer].doubted_by.contains(&other))
        });
        if let Some(cause) = hopeless.and_then(|peer| self.known[peer].lost.clone()) {
            self.give_up(cause, actions);
        }
    }

    fn has_finished(&self) -> bool {
        self.known[self.own].has_finished
    }

    fn is_in_doubt(&self, peer: usize) -> bool {
        self.known[peer].lost.is_some() && !self.known[peer].has_finished
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<C> {
        let own = self.own;
        (0..self.known.len()).filter(move |peer| *peer != own)
    }
}

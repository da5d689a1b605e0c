//! Exactly once without a store: one input partition, its outputs and its offset, in one transaction per commit epoch.
//!
//! Guarantees: the outputs of a partition's records and the group's offset of it are committed together, in order, each once.
//! (While another input partition has a transaction open in the same output partition, a `read_committed` reader stops in front of
//! it: what is committed behind it can be read when that ends. Only the outbox keeps offsets behind what can be *read*.) The
//! identity of the producer is a function of flow, topic and **input partition**: assign-mode offsets are not checked by the
//! broker, so that nothing but the next owner's `init_transactions` keeps an old owner away, whatever the shapes.
//!
//! Only for flows without keyed state whose outputs never leave the worker that read their input. The driver keeps the outputs of an
//! epoch until [`DirectAction::Published`] says that nobody will ask for them again; those of later epochs go on gathering
//! meanwhile.
//!
//! On failure: after a request without a clear outcome the producer is replaced, and the group's offset says whether the
//! transaction had happened: there is nothing in between. A fenced producer, or an offset that somebody else moved, means that
//! another owner is in charge. There is no lease to look at here, so that such a process ends.

use super::{Answer, Identity, Stop};
use crate::protocol::{Rule, Rules};
use crate::{Epoch, NextOffset, TopicPartition};
use std::collections::VecDeque;

/// What a [`PartitionPublisher`] wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DirectAction {
    /// Drop the partition's producer if there is one, make a new one, and call `init_transactions`: [`Answer::Done`],
    /// [`Answer::Fenced`] or [`Answer::Unclear`].
    Initialise,
    /// Has this process gone on without standing still for `peer_timeout`, and does its generation still run?
    /// [`Answer::InCharge`] or [`Answer::Overtaken`].
    LookAround,
    /// Fetch the group's offset of the partition with a `read_committed` client, which waits for pending ones:
    /// [`Answer::Committed`] or [`Answer::Unclear`].
    FetchOffset,
    /// The partition is read from here; `None` when the group has no offset of it. No answer.
    Resume(Option<NextOffset>),
    /// Begin a transaction: [`Answer::Done`], [`Answer::Fenced`] or [`Answer::Unclear`].
    Begin,
    /// Produce every output of the epoch from its first, also those that still come until it is closed:
    /// [`Answer::Done`] once it is closed and all are handed to the client, [`Answer::Fenced`] or [`Answer::Unclear`].
    Send(Epoch),
    /// `send_offsets_to_transaction` for the partition: [`Answer::Done`], [`Answer::Fenced`] or [`Answer::Unclear`].
    SendOffset(NextOffset),
    /// Flush and commit: [`Answer::Done`], [`Answer::Fenced`] or [`Answer::Unclear`].
    Commit,
    /// Abort on the same instance; only the search, with a rule switched off, ever asks for it.
    #[cfg(test)]
    Abort,
    /// The epoch's outputs can be read and its offset is committed; its outputs may be forgotten. No answer.
    Published(Epoch),
    /// Drop the producer without ending its transaction, and leave with this. Last.
    Stop(Stop),
}

/// What a [`PartitionPublisher`] is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DirectEvent {
    /// Begin.
    Go,
    /// The action that was outstanding was answered.
    Answer(Answer),
    /// There is output of an epoch that was not there before. Need not be said before [`DirectEvent::Closed`].
    Output(Epoch),
    /// The commit epoch is at its end: all of its outputs are there, and the partition goes on at `next`.
    Closed {
        /// The epoch.
        epoch: Epoch,
        /// Whether it has any output; then `next` moved.
        output: bool,
        /// Where the partition goes on.
        next: NextOffset,
    },
}

/// Publishes the outputs and the offset of one input partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PartitionPublisher {
    rules: Rules,
    partition: TopicPartition,
    at: At,
    /// Epochs with output or a moved offset, oldest first; the last one may be open.
    pending: VecDeque<Pending>,
    /// What the group has; `None` until it was fetched.
    committed: Option<Option<NextOffset>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pending {
    epoch: Epoch,
    output: bool,
    /// `None` while the epoch is open.
    next: Option<NextOffset>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Begin,
    /// Is it still for us to initialise a producer?
    LookingFirst,
    Initialising,
    #[cfg(test)]
    Aborting,
    LookingAgain,
    Fetching,
    /// Only with a rule switched off.
    FetchingFirst,
    Idle,
    Beginning,
    Sending,
    SendingOffset(NextOffset),
    Committing(NextOffset),
    Stopped,
}

impl PartitionPublisher {
    /// For the owner of this input partition.
    pub fn new(partition: TopicPartition) -> PartitionPublisher {
        PartitionPublisher::with_rules(Rules::ALL, partition)
    }

    pub(crate) fn with_rules(rules: Rules, partition: TopicPartition) -> PartitionPublisher {
        PartitionPublisher { rules, partition, at: At::Begin, pending: VecDeque::new(), committed: None }
    }

    /// What the group has, as far as this process knows.
    pub fn committed(&self) -> Option<NextOffset> {
        self.committed.flatten()
    }

    /// Whether nothing is left to publish, as far as this machine was told.
    pub fn is_settled(&self) -> bool {
        self.at == At::Idle && self.pending.is_empty()
    }

    /// What to do after `event`: at most one action that wants an answer.
    pub fn on(&mut self, event: DirectEvent) -> Vec<DirectAction> {
        let mut actions = Vec::new();
        match event {
            DirectEvent::Go if self.rules.has(Rule::FetchAfterInit) => actions.push(self.initialise()),
            DirectEvent::Go => actions.push(self.go(At::FetchingFirst, DirectAction::FetchOffset)),
            DirectEvent::Answer(answer) => self.answered(answer, &mut actions),
            DirectEvent::Output(epoch) => self.of(epoch).output = true,
            DirectEvent::Closed { epoch, output, next } => {
                let before = self.pending.iter().rev().find_map(|pending| pending.next);
                let moved = before.or(self.committed()) < Some(next);
                let open = self.pending.back().is_some_and(|pending| pending.epoch == epoch);
                assert!(
                    moved || !(output || open),
                    "epoch {epoch} has output, and no input that it came from"
                );
                if moved {
                    let pending = self.of(epoch);
                    pending.output |= output;
                    pending.next = Some(next);
                }
            }
        }
        if self.at == At::Idle && !self.pending.is_empty() {
            actions.push(self.go(At::Beginning, DirectAction::Begin));
        }
        actions
    }

    fn of(&mut self, epoch: Epoch) -> &mut Pending {
        if self.pending.back().is_none_or(|pending| pending.epoch != epoch) {
            self.pending.push_back(Pending { epoch, output: false, next: None });
        }
        self.pending.back_mut().expect("it was just pushed")
    }

    fn go(&mut self, at: At, action: DirectAction) -> DirectAction {
        self.at = at;
        action
    }

    fn initialise(&mut self) -> DirectAction {
        self.go(At::Initialising, DirectAction::Initialise)
    }

    fn stop(&mut self) -> DirectAction {
        let identity = Identity::Partition(self.partition.clone());
        self.go(At::Stopped, DirectAction::Stop(Stop::ProducerFenced { identity }))
    }

    fn answered(&mut self, answer: Answer, actions: &mut Vec<DirectAction>) {
        let front = self.pending.front().cloned();
        let action = match (self.at, answer) {
            (At::Stopped, _) => return,
            (_, Answer::Fenced | Answer::Overtaken) => self.stop(),
            #[cfg(test)]
            (At::Committing(_), Answer::Unclear) if !self.rules.has(Rule::ProducerRebuilt) => {
                self.go(At::Aborting, DirectAction::Abort)
            }
            (_, Answer::Unclear) => self.go(At::LookingFirst, DirectAction::LookAround),
            (At::LookingFirst, Answer::InCharge) => self.initialise(),
            (At::Initialising, Answer::Done) => self.go(At::LookingAgain, DirectAction::LookAround),
            (At::LookingAgain, Answer::InCharge) if self.rules.has(Rule::FetchAfterInit) => {
                self.go(At::Fetching, DirectAction::FetchOffset)
            }
            (At::LookingAgain, Answer::InCharge) => {
                self.at = At::Idle;
                return;
            }
            #[cfg(test)]
            (At::Aborting, Answer::Done) => self.go(At::Fetching, DirectAction::FetchOffset),
            (At::FetchingFirst, Answer::Committed(found)) => {
                self.committed = Some(found);
                actions.push(DirectAction::Resume(found));
                self.initialise()
            }
            (At::Fetching, Answer::Committed(found)) => return self.fetched(found, actions),
            // An open epoch is sent as it comes.
            (At::Beginning, Answer::Done) => match front {
                Some(Pending { epoch, output: true, .. }) => self.go(At::Sending, DirectAction::Send(epoch)),
                Some(Pending { next: Some(next), .. }) => {
                    self.go(At::SendingOffset(next), DirectAction::SendOffset(next))
                }
                front => unreachable!("a transaction was begun for {front:?}"),
            },
            (At::Sending, Answer::Done) => {
                let next = front.and_then(|front| front.next).expect("an epoch is sent when it is closed");
                self.go(At::SendingOffset(next), DirectAction::SendOffset(next))
            }
            (At::SendingOffset(next), Answer::Done) => self.go(At::Committing(next), DirectAction::Commit),
            (At::Committing(next), Answer::Done) => {
                self.at = At::Idle;
                return self.published(next, actions);
            }
            (at, answer) => unreachable!("a publisher at {at:?} cannot be told {answer:?}"),
        };
        actions.push(action);
    }

    /// What had become of the transaction that was on its way.
    fn fetched(&mut self, found: Option<NextOffset>, actions: &mut Vec<DirectAction>) {
        self.at = At::Idle;
        let Some(known) = self.committed else {
            self.committed = Some(found);
            return actions.push(DirectAction::Resume(found));
        };
        match (found, self.pending.front().and_then(|front| front.next)) {
            (found, _) if found == known => {}
            (Some(found), Some(next)) if found == next => self.published(next, actions),
            // Somebody else moved it.
            _ => actions.push(self.stop()),
        }
    }

    fn published(&mut self, next: NextOffset, actions: &mut Vec<DirectAction>) {
        self.committed = Some(Some(next));
        if let Some(front) = self.pending.pop_front() {
            actions.push(DirectAction::Published(front.epoch));
        }
    }
}

//! One slot's publication, on the process that the slot belongs to.
//!
//! Guarantees: the outboxes of this slot are published in the order of their epochs, one transaction each, and each once;
//! the group's offset of a partition passes a record only when all of its output, of every slot, can be read; offsets never go
//! down.
//!
//! An offset of epoch `e` is carried once every slot has published `e`. That a slot's transaction of `e` is committed is
//! not enough for its rows to be *readable*: an open transaction of another slot in the same output partition hides
//! them. So the slots go in step: none begins an epoch before all have published the one before. Then, at the
//! moment when the last slot has published `e`, nobody has anything open, and everything up to `e` can be read
//! (`decisions/0002`).
//!
//! On failure: a producer whose request has no clear outcome is replaced, and the marker says what had happened. A fenced one is
//! replaced too while the lease is ours: a start that lost its race, or a time-out, may have fenced it.

use super::{Action, Answer, Event, Identity, Marker, SeenMarker, Stop, Token};
use crate::names::{Name, PartName};
use crate::protocol::{Rule, Rules};
use crate::{Epoch, Generation, NextOffset, OutboxRef, Slot, StoreId, TopicPartition};
use std::collections::{BTreeMap, VecDeque};

/// What a [`SlotPublisher`] begins with.
#[derive(Clone, Debug)]
pub struct SlotSettings {
    /// The store.
    pub store: StoreId,
    /// This generation.
    pub generation: Generation,
    /// This process's slot.
    pub slot: Slot,
    /// The slots of all processes of this generation.
    pub slots: Vec<Slot>,
    /// The epoch that the generation goes on from; everything up to it is published.
    pub resumed: Epoch,
    /// Where the partitions that this process reads go on after that epoch.
    pub offsets: Vec<(TopicPartition, NextOffset)>,
    /// The group's offsets of them, read after [`super::OutputStart`] was ready: nothing lower is carried.
    pub group: Vec<(TopicPartition, NextOffset)>,
    /// Drawn at random; tells this machine's tokens from all others.
    pub nonce: u64,
}

/// Publishes one slot's outboxes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlotPublisher {
    rules: Rules,
    store: StoreId,
    generation: Generation,
    slot: Slot,
    token: Token,
    at: At,
    /// Durable outboxes that are not known to be published, oldest first.
    pending: VecDeque<Pending>,
    /// The newest durable epoch.
    durable: Epoch,
    /// Everything of this slot up to here is published.
    published: Epoch,
    /// The same of the other slots.
    others: BTreeMap<Slot, Epoch>,
    /// Offsets at the ends of durable epochs that were not carried yet.
    marks: VecDeque<(Epoch, Vec<(TopicPartition, NextOffset)>)>,
    /// What the group has, as far as this process knows.
    carried: BTreeMap<TopicPartition, NextOffset>,
    quiet: bool,
    /// The group is to be told again what it has.
    keepalive: bool,
    /// The process may work: the marker was read once.
    ready: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pending {
    outbox: OutboxRef,
    /// The durable epoch before its own.
    after: Epoch,
}

/// A transaction on its way: an outbox or none, and offsets of this epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Transaction {
    outbox: Option<OutboxRef>,
    offsets: Vec<(TopicPartition, NextOffset)>,
    offsets_of: Epoch,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum At {
    Barrier,
    /// Is it still for us to initialise a producer?
    LookingFirst,
    Initialising,
    /// Only with a rule switched off.
    #[cfg(test)]
    Aborting,
    LookingAgain,
    Reading,
    Idle,
    Beginning(Transaction),
    SendingOutbox(Transaction),
    SendingMarker(Transaction),
    SendingOffsets(Transaction),
    Committing(Transaction),
    Stopped,
}

impl SlotPublisher {
    /// For a process that has not passed the barrier yet.
    pub fn new(settings: SlotSettings) -> SlotPublisher {
        SlotPublisher::with_rules(Rules::ALL, settings)
    }

    pub(crate) fn with_rules(rules: Rules, settings: SlotSettings) -> SlotPublisher {
        let SlotSettings { store, generation, slot, slots, resumed, offsets, group, nonce } = settings;
        let others = slots.into_iter().filter(|other| *other != slot).map(|other| (other, resumed));
        SlotPublisher {
            rules,
            store,
            generation,
            slot,
            token: Token { nonce, count: 0 },
            at: At::Barrier,
            pending: VecDeque::new(),
            durable: resumed,
            published: resumed,
            others: others.collect(),
            marks: VecDeque::from([(resumed, offsets)]),
            carried: group.into_iter().collect(),
            quiet: false,
            keepalive: false,
            ready: false,
        }
    }

    /// Everything of this slot up to this epoch is published.
    pub fn published(&self) -> Epoch {
        self.published
    }

    /// The newest epoch that all slots have published: what may count as done for `commits_in_flight`.
    pub fn published_by_all(&self) -> Epoch {
        self.published.min(self.published_by_others())
    }

    /// Whether nothing is left to publish or to carry, as far as this process was told.
    pub fn is_settled(&self) -> bool {
        self.at == At::Idle
            && self.pending.is_empty()
            && self.published_by_all() == self.durable
            && self.due(self.durable).is_empty()
    }

    /// What to do after `event`: at most one action that wants an answer.
    pub fn on(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Go => actions.push(self.initialise()),
            Event::Answer(answer) => self.answered(answer, &mut actions),
            Event::Durable { epoch, outbox, offsets } => {
                self.quiet = false;
                if !offsets.is_empty() {
                    self.marks.push_back((epoch, offsets));
                }
                if let Some(outbox) = outbox {
                    self.pending.push_back(Pending { outbox, after: self.durable });
                }
                self.durable = epoch;
                self.move_published(&mut actions);
            }
            Event::PeerPublished { slot, epoch } => {
                if let Some(known) = self.others.get_mut(&slot) {
                    *known = (*known).max(epoch);
                }
            }
            Event::Quiet => self.quiet = true,
            Event::KeepAlive => self.keepalive = true,
        }
        if self.at == At::Idle
            && let Some(transaction) = self.next()
        {
            // A slot that publishes is not idle: if no offset travels with this, it is asked for again.
            self.keepalive = false;
            self.at = At::Beginning(transaction);
            actions.push(Action::Begin(self.slot));
        }
        actions
    }

    fn answered(&mut self, answer: Answer, actions: &mut Vec<Action>) {
        let at = std::mem::replace(&mut self.at, At::Stopped);
        let slot = self.slot;
        match (at, answer) {
            (At::Stopped, _) => {}
            (At::LookingFirst, Answer::InCharge) => actions.push(self.initialise()),
            (At::LookingFirst | At::LookingAgain, Answer::Overtaken) => self.fenced(actions),
            (At::Initialising, Answer::Done) if !self.rules.has(Rule::LeaseAfterInit) => {
                actions.push(self.read_marker());
            }
            (At::Initialising, Answer::Done) => {
                self.at = At::LookingAgain;
                actions.push(Action::LookAtLease);
            }
            #[cfg(test)]
            (At::Aborting, Answer::Done) => actions.push(self.read_marker()),
            (At::LookingAgain, Answer::InCharge) if self.rules.has(Rule::MarkerAfterInit) => {
                actions.push(self.read_marker());
            }
            (At::LookingAgain, Answer::InCharge) => self.go_on(actions),
            (At::Reading, Answer::Markers(markers)) => self.read(&markers, actions),
            (_, Answer::Refused { row, what }) => {
                let outbox = self.pending.front().map(|pending| PartName::from(&pending.outbox));
                let file = outbox.map_or_else(String::new, |name| Name::Outbox(name).to_string());
                actions.push(Action::Stop(Stop::RowRefused { file, row, what }));
            }
            (at, Answer::Unclear) if !self.rules.has(Rule::ProducerRebuilt) => self.abort(at, actions),
            (_, Answer::Fenced | Answer::Unclear) => {
                self.at = At::LookingFirst;
                actions.push(Action::LookAtLease);
            }
            (At::Beginning(transaction), Answer::Done) => match transaction.outbox.clone() {
                Some(outbox) => {
                    self.at = At::SendingOutbox(transaction);
                    actions.push(Action::SendOutbox(outbox));
                }
                None => self.send_offsets(transaction, actions),
            },
            (At::SendingOutbox(transaction), Answer::Done) => {
                let epoch = transaction.outbox.as_ref().map_or(self.published, |outbox| outbox.epoch);
                let marker = Marker { generation: self.generation, epoch };
                self.at = At::SendingMarker(transaction);
                actions.push(Action::SendMarker { slot, marker });
            }
            (At::SendingMarker(transaction), Answer::Done) => self.send_offsets(transaction, actions),
            (At::SendingOffsets(transaction), Answer::Done) => {
                self.at = At::Committing(transaction);
                actions.push(Action::Commit(slot));
            }
            (At::Committing(transaction), Answer::Done) => {
                self.at = At::Idle;
                self.carried.extend(transaction.offsets);
                while self.marks.front().is_some_and(|(epoch, _)| *epoch <= transaction.offsets_of) {
                    self.marks.pop_front();
                }
                if transaction.outbox.is_some() {
                    self.pending.pop_front();
                }
                self.move_published(actions);
            }
            (at, answer) => unreachable!("a publisher at {at:?} cannot be told {answer:?}"),
        }
    }

    fn initialise(&mut self) -> Action {
        self.at = At::Initialising;
        Action::Initialise(self.slot)
    }

    /// Only with a rule switched off: what a client would do that knows nothing of late requests.
    fn abort(&mut self, at: At, actions: &mut Vec<Action>) {
        match at {
            #[cfg(test)]
            At::Committing(_) => {
                self.at = At::Aborting;
                actions.push(Action::Abort(self.slot));
            }
            _ => {
                self.at = At::LookingFirst;
                actions.push(Action::LookAtLease);
            }
        }
    }

    fn read_marker(&mut self) -> Action {
        self.at = At::Reading;
        self.token.count += 1;
        Action::ReadMarkers { slot: self.slot, token: self.token }
    }

    fn fenced(&mut self, actions: &mut Vec<Action>) {
        let identity = Identity::Slot { store: self.store, slot: self.slot };
        actions.push(Action::Stop(Stop::ProducerFenced { identity }));
    }

    /// What had become of the outboxes that were on their way.
    fn read(&mut self, markers: &[SeenMarker], actions: &mut Vec<Action>) {
        let ours = markers.iter().find(|seen| seen.store == self.store && seen.slot == self.slot);
        if let Some(SeenMarker { marker, .. }) = ours {
            if marker.generation > self.generation {
                return self.fenced(actions);
            }
            // Nobody publishes what is not durable, and this process is told of everything that is.
            if marker.epoch > self.durable && self.rules.has(Rule::BehindOutputRefused) {
                let (slot, record) = (self.slot, Some(self.durable));
                return actions.push(Action::Stop(Stop::StoreBehindOutput { slot, marker: *marker, record }));
            }
            while self.pending.front().is_some_and(|pending| pending.outbox.epoch <= marker.epoch) {
                self.pending.pop_front();
            }
        }
        self.go_on(actions);
    }

    fn go_on(&mut self, actions: &mut Vec<Action>) {
        self.at = At::Idle;
        if !std::mem::replace(&mut self.ready, true) {
            actions.push(Action::Ready);
        }
        self.move_published(actions);
    }

    fn send_offsets(&mut self, transaction: Transaction, actions: &mut Vec<Action>) {
        if transaction.offsets.is_empty() {
            self.at = At::Committing(transaction);
            return actions.push(Action::Commit(self.slot));
        }
        let offsets = transaction.offsets.clone();
        self.at = At::SendingOffsets(transaction);
        actions.push(Action::SendOffsets { slot: self.slot, offsets });
    }

    /// How far this slot is when everything before the outbox at `index` is published.
    fn published_before(&self, index: usize) -> Epoch {
        self.pending.get(index).map_or(self.durable, |pending| pending.after)
    }

    fn move_published(&mut self, actions: &mut Vec<Action>) {
        let published = self.published_before(0);
        if published > self.published {
            self.published = published;
            actions.push(Action::Announce { slot: self.slot, epoch: published });
        }
    }

    fn published_by_others(&self) -> Epoch {
        self.others.values().copied().min().unwrap_or(Epoch(u64::MAX))
    }

    /// Offsets of all epochs up to this one that the group does not have.
    fn due(&self, upto: Epoch) -> Vec<(TopicPartition, NextOffset)> {
        let mut due = BTreeMap::new();
        for (_, offsets) in self.marks.iter().take_while(|(epoch, _)| *epoch <= upto) {
            due.extend(offsets.iter().map(|(partition, next)| (partition, *next)));
        }
        let ahead = |(partition, next): &(&TopicPartition, NextOffset)| {
            self.carried.get(*partition).is_none_or(|carried| carried < next)
        };
        due.into_iter().filter(ahead).map(|(partition, next)| (partition.clone(), next)).collect()
    }

    /// The transaction to begin now. Opened lazily: one that stays open hides what others write.
    fn next(&self) -> Option<Transaction> {
        let others = self.published_by_others();
        let Some(Pending { outbox, after }) = self.pending.front() else {
            let offsets_of = self.published_by_all();
            let mut offsets = if self.quiet { self.due(offsets_of) } else { Vec::new() };
            // What is due goes first: until its transaction is known to be committed, `carried` may be below what the group has.
            if self.keepalive && offsets.is_empty() && self.due(self.durable).is_empty() {
                offsets = self.carried.iter().map(|(partition, next)| (partition.clone(), *next)).collect();
            }
            return (!offsets.is_empty()).then_some(Transaction { outbox: None, offsets, offsets_of });
        };
        if others < *after && self.rules.has(Rule::SlotsInStep) {
            return None;
        }
        // The outbox of this very transaction becomes readable together with its offsets.
        let own = self.published_before(1);
        let offsets_of = if self.rules.has(Rule::OffsetsOfAll) { own.min(others) } else { own };
        let offsets = self.due(offsets_of);
        Some(Transaction { outbox: Some(outbox.clone()), offsets, offsets_of })
    }
}

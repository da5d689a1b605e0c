//! The start of exactly-once output on process 0, from the durable lease to the barrier.
//!
//! 1. A producer is initialised for **every** slot that an older generation may use: that ends what they had open, and
//!    from then on they can publish nothing.
//! 2. The lease is looked at again: a start that froze before step 1 must not go on when it is thawed.
//! 3. The highest commit record is chosen. Older generations may have published what it names, and nothing newer. If it
//!    speaks of a slot that was not fenced, steps 1 to 3 are done again.
//! 4. The markers are read. One ahead of the record, or of another store beside an empty one, is refused.
//! 5. Outboxes that no marker covers are published, oldest first, each under its own slot and with the producer of step 1:
//!    so a newer start cuts this one off as well.
//! 6. The barrier. Nobody begins before it: a marker of a new epoch would cover what was left over.
//!
//! On failure: a producer whose request has no clear outcome is replaced, and what had happened is read from the markers.

use super::{Action, Answer, Identity, Marker, SeenMarker, Stop, Token};
use crate::names::{Name, PartName};
use crate::protocol::{Rule, Rules};
use crate::store::ResumeState;
use crate::{Epoch, Generation, OutboxRef, Slot, StoreId};
use std::collections::{BTreeSet, VecDeque};

/// What an [`OutputStart`] begins with.
#[derive(Clone, Debug)]
pub struct OutputStartSettings {
    /// The store.
    pub store: StoreId,
    /// This generation.
    pub generation: Generation,
    /// Every slot that an older generation may use: [`crate::Claim::slots`].
    pub slots: Vec<Slot>,
    /// Process 0's own slot; its producer writes the tokens.
    pub own: Slot,
    /// `--allow-lost-state`: markers of another store beside an empty one are accepted.
    pub allow_lost_state: bool,
    /// Drawn at random; tells this machine's tokens from all others.
    pub nonce: u64,
}

/// What the start needs to know of the chosen record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Chosen {
    /// Its epoch; `None` in an empty store.
    pub epoch: Option<Epoch>,
    /// The slots that it names.
    pub slots: Vec<Slot>,
    /// Outboxes whose publication it does not know.
    pub outboxes: Vec<OutboxRef>,
}

impl From<&ResumeState> for Chosen {
    fn from(resume: &ResumeState) -> Chosen {
        Chosen {
            epoch: resume.record.map(|_| resume.epoch),
            slots: resume.slots.clone(),
            outboxes: resume.outboxes.clone(),
        }
    }
}

/// Fences older generations and publishes what they left over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutputStart {
    rules: Rules,
    store: StoreId,
    generation: Generation,
    own: Slot,
    allow_lost_state: bool,
    token: Token,
    at: At,
    /// Slots to initialise, the next one last.
    to_fence: Vec<Slot>,
    fenced: BTreeSet<Slot>,
    /// The slot whose last request had no clear outcome.
    unclear: Option<Slot>,
    chosen: Option<Chosen>,
    /// What is still to be published, in this order.
    leftovers: VecDeque<OutboxRef>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum At {
    Begin,
    /// Is it still for us to initialise a producer?
    LookingFirst,
    Fencing(Slot),
    LookingAgain,
    Choosing,
    Reading,
    Beginning(OutboxRef),
    SendingOutbox(OutboxRef),
    SendingMarker(OutboxRef),
    Committing(OutboxRef),
    Ready,
    Stopped,
}

impl OutputStart {
    /// For a generation whose lease is durable.
    pub fn new(settings: OutputStartSettings) -> OutputStart {
        OutputStart::with_rules(Rules::ALL, settings)
    }

    pub(crate) fn with_rules(rules: Rules, settings: OutputStartSettings) -> OutputStart {
        let OutputStartSettings { store, generation, slots, own, allow_lost_state, nonce } = settings;
        let mut to_fence = slots;
        to_fence.push(own);
        to_fence.sort_unstable_by(|a, b| b.cmp(a));
        to_fence.dedup();
        OutputStart {
            rules,
            store,
            generation,
            own,
            allow_lost_state,
            token: Token { nonce, count: 0 },
            at: At::Begin,
            to_fence,
            fenced: BTreeSet::new(),
            unclear: None,
            chosen: None,
            leftovers: VecDeque::new(),
        }
    }

    /// The first action.
    pub fn begin(&mut self) -> Action {
        if self.rules.has(Rule::FencedFirst) { self.fence_next() } else { self.choose() }
    }

    /// What to do after the outstanding action was answered.
    pub fn on(&mut self, answer: Answer) -> Action {
        let at = std::mem::replace(&mut self.at, At::Stopped);
        let slot = match &at {
            At::Fencing(slot) => Some(*slot),
            At::Reading => Some(self.own),
            At::Beginning(outbox)
            | At::SendingOutbox(outbox)
            | At::SendingMarker(outbox)
            | At::Committing(outbox) => Some(outbox.slot),
            _ => None,
        };
        match (at, answer) {
            (At::Fencing(slot), Answer::Done) => {
                self.to_fence.pop();
                self.fenced.insert(slot);
                self.fence_next()
            }
            (At::LookingFirst, Answer::InCharge) => self.fence_next(),
            (At::LookingFirst | At::LookingAgain, Answer::Overtaken) => self.overtaken(self.own),
            (At::LookingAgain, Answer::InCharge) => self.after_fence(),
            (At::Choosing, Answer::Chosen(chosen)) => self.chosen(chosen),
            (At::Reading, Answer::Markers(markers)) => self.read(&markers),
            (At::Beginning(outbox), Answer::Done) => {
                self.go(At::SendingOutbox(outbox.clone()), Action::SendOutbox(outbox))
            }
            (At::SendingOutbox(outbox), Answer::Done) => {
                let marker = Marker { generation: self.generation, epoch: outbox.epoch };
                let slot = outbox.slot;
                self.go(At::SendingMarker(outbox), Action::SendMarker { slot, marker })
            }
            (At::SendingMarker(outbox), Answer::Done) => {
                let slot = outbox.slot;
                self.go(At::Committing(outbox), Action::Commit(slot))
            }
            (At::Committing(_), Answer::Done) => {
                self.leftovers.pop_front();
                self.publish_next()
            }
            (
                At::Beginning(outbox)
                | At::SendingOutbox(outbox)
                | At::SendingMarker(outbox)
                | At::Committing(outbox),
                Answer::Refused { row, what },
            ) => {
                let file = Name::Outbox(PartName::from(&outbox)).to_string();
                Action::Stop(Stop::RowRefused { file, row, what })
            }
            (at, answer @ (Answer::Fenced | Answer::Unclear)) => {
                let Some(slot) = slot else { unreachable!("a start at {at:?} cannot be told {answer:?}") };
                self.unclear = (answer == Answer::Unclear && matches!(at, At::Committing(_))).then_some(slot);
                if self.to_fence.last() != Some(&slot) {
                    self.to_fence.push(slot);
                }
                self.go(At::LookingFirst, Action::LookAtLease)
            }
            (at, answer) => unreachable!("a start at {at:?} cannot be told {answer:?}"),
        }
    }

    fn go(&mut self, at: At, action: Action) -> Action {
        self.at = at;
        action
    }

    fn overtaken(&self, slot: Slot) -> Action {
        Action::Stop(Stop::ProducerFenced { identity: Identity::Slot { store: self.store, slot } })
    }

    fn fence_next(&mut self) -> Action {
        match self.to_fence.last() {
            Some(slot) => {
                let slot = *slot;
                self.go(At::Fencing(slot), self.fence(slot))
            }
            None if self.rules.has(Rule::LeaseAfterInit) => self.go(At::LookingAgain, Action::LookAtLease),
            None => self.after_fence(),
        }
    }

    fn fence(&self, slot: Slot) -> Action {
        #[cfg(test)]
        if self.unclear == Some(slot) && !self.rules.has(Rule::ProducerRebuilt) {
            return Action::Abort(slot);
        }
        Action::Initialise(slot)
    }

    fn choose(&mut self) -> Action {
        self.go(At::Choosing, Action::ChooseRecord)
    }

    fn read_markers(&mut self) -> Action {
        self.token.count += 1;
        let (slot, token) = (self.own, self.token);
        self.go(At::Reading, Action::ReadMarkers { slot, token })
    }

    fn after_fence(&mut self) -> Action {
        if self.chosen.is_none() {
            return self.choose();
        }
        // With a rule switched off, what is left over stays what it was by the markers as they were read once.
        let rules = [Rule::MarkerAfterInit, Rule::FencedFirst, Rule::EverySlotFenced];
        if self.token.count > 0 && !rules.into_iter().all(|rule| self.rules.has(rule)) {
            return self.publish_next();
        }
        self.read_markers()
    }

    fn chosen(&mut self, chosen: Chosen) -> Action {
        if self.rules.has(Rule::EverySlotFenced) && self.rules.has(Rule::FencedFirst) {
            let named = chosen.slots.iter().copied().chain(chosen.outboxes.iter().map(|outbox| outbox.slot));
            let missing: BTreeSet<Slot> = named.filter(|slot| !self.fenced.contains(slot)).collect();
            if !missing.is_empty() {
                self.to_fence.extend(missing);
                return self.fence_next();
            }
        }
        self.chosen = Some(chosen);
        self.read_markers()
    }

    fn read(&mut self, markers: &[SeenMarker]) -> Action {
        let chosen = self.chosen.clone().unwrap_or_default();
        let ours = || markers.iter().filter(|seen| seen.store == self.store);
        if let Some(newer) = ours().find(|seen| seen.marker.generation > self.generation) {
            return self.overtaken(newer.slot);
        }
        if let Some(SeenMarker { slot, marker, .. }) =
            ours().find(|seen| Some(seen.marker.epoch) > chosen.epoch)
            && self.rules.has(Rule::BehindOutputRefused)
        {
            let (slot, marker, record) = (*slot, *marker, chosen.epoch);
            return Action::Stop(Stop::StoreBehindOutput { slot, marker, record });
        }
        if let Some(SeenMarker { store, slot, marker }) = markers.iter().find(|seen| seen.store != self.store)
            && chosen.epoch.is_none()
            && !self.allow_lost_state
            && self.rules.has(Rule::LostStateRefused)
        {
            let (store, slot, marker) = (*store, *slot, *marker);
            return Action::Stop(Stop::StateLost { store, slot, marker });
        }
        let covered = |outbox: &OutboxRef| {
            ours().any(|seen| seen.slot == outbox.slot && outbox.epoch <= seen.marker.epoch)
        };
        let mut leftovers: Vec<OutboxRef> =
            chosen.outboxes.into_iter().filter(|outbox| !covered(outbox)).collect();
        leftovers.sort_unstable();
        if !self.rules.has(Rule::LeftoversAscending) {
            leftovers.reverse();
        }
        self.leftovers = leftovers.into();
        if self.rules.has(Rule::FencedFirst) { self.publish_next() } else { self.fence_next() }
    }

    fn publish_next(&mut self) -> Action {
        match self.leftovers.front().cloned() {
            Some(outbox) if !self.fenced.contains(&outbox.slot) => {
                self.to_fence.push(outbox.slot);
                self.fence_next()
            }
            Some(outbox) => {
                let slot = outbox.slot;
                self.go(At::Beginning(outbox), Action::Begin(slot))
            }
            None => self.go(At::Ready, Action::Ready),
        }
    }
}

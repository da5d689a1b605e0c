//! Outboxes whose publication is not known: every commit record names them, whatever their epoch.
//!
//! A record that named only its own epoch's would not do: a slot may owe an epoch while two younger records appear, and
//! then no kept record would name its outbox.

use super::{Rule, Rules};
use crate::{Epoch, OutboxRef, Slot};
use std::collections::BTreeSet;

/// What the cluster owes its readers, as process 0 knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owed {
    rules: Rules,
    outboxes: BTreeSet<OutboxRef>,
}

impl Owed {
    /// At a start: what the chosen record names, until it is known to be published.
    pub(crate) fn new(rules: Rules, named: impl IntoIterator<Item = OutboxRef>) -> Owed {
        Owed { rules, outboxes: named.into_iter().collect() }
    }

    /// What the record of `epoch` names, whose parts have these outboxes.
    pub(crate) fn with(&self, epoch: Epoch, outboxes: impl IntoIterator<Item = OutboxRef>) -> Owed {
        let mut with = self.clone();
        if !self.rules.has(Rule::OwedNamed) {
            with.outboxes.retain(|outbox| outbox.epoch >= epoch);
        }
        with.outboxes.extend(outboxes);
        with
    }

    /// A slot has published everything up to `epoch`.
    pub(crate) fn published(&mut self, slot: Slot, epoch: Epoch) {
        self.outboxes.retain(|outbox| outbox.slot != slot || outbox.epoch > epoch);
    }

    /// Everything is published that was owed up to `epoch`.
    pub(crate) fn all_published(&mut self, epoch: Epoch) {
        self.outboxes.retain(|outbox| outbox.epoch > epoch);
    }

    /// Ascending by epoch.
    pub(crate) fn outboxes(&self) -> &BTreeSet<OutboxRef> {
        &self.outboxes
    }
}

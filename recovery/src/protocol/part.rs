//! A process's part of a commit epoch: its segment and its outbox are durable before anybody hears of them.

use super::{Action, Event, Rule, Rules};
use crate::names::Name;

/// Writes one segment, or one outbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PartMachine {
    rules: Rules,
    file: Name,
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Begin,
    Writing,
    Syncing,
    SyncingName,
}

impl PartMachine {
    pub(crate) fn new(rules: Rules, file: Name) -> PartMachine {
        PartMachine { rules, file, at: At::Begin }
    }

    pub(crate) fn on(&mut self, _event: Event) -> Action {
        let name = self.file;
        self.at = match self.at {
            At::Begin => At::Writing,
            At::Writing if self.rules.has(Rule::SegmentSynced) => At::Syncing,
            At::Writing | At::Syncing if self.rules.has(Rule::SegmentNameSynced) => At::SyncingName,
            At::Writing | At::Syncing | At::SyncingName => return Action::Report,
        };
        match self.at {
            At::Begin | At::Writing => Action::Write(name),
            At::Syncing => Action::Sync(name),
            At::SyncingName => Action::SyncFolder(name.folder()),
        }
    }
}

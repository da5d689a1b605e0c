//! A process's part of a commit epoch: its segment is durable before anybody hears of it.

use super::{Action, Event, Rule, Rules};
use crate::names::{Folder, Name, SegmentName};

/// Writes one segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PartMachine {
    rules: Rules,
    segment: SegmentName,
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
    pub(crate) fn new(rules: Rules, segment: SegmentName) -> PartMachine {
        PartMachine { rules, segment, at: At::Begin }
    }

    pub(crate) fn on(&mut self, _event: Event) -> Action {
        let name = Name::Segment(self.segment);
        self.at = match self.at {
            At::Begin => At::Writing,
            At::Writing if self.rules.has(Rule::SegmentSynced) => At::Syncing,
            At::Writing | At::Syncing if self.rules.has(Rule::SegmentNameSynced) => At::SyncingName,
            At::Writing | At::Syncing | At::SyncingName => return Action::Report,
        };
        match self.at {
            At::Begin | At::Writing => Action::Write(name),
            At::Syncing => Action::Sync(name),
            At::SyncingName => Action::SyncFolder(Folder::Segments),
        }
    }
}

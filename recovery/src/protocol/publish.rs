//! The commit point, and retention behind it.

use super::{Action, Event, Fence, RecordFacts, Rule, Rules, highest_record};
use crate::names::{Folder, Name};
use crate::{Epoch, Generation, RecordNumber};

/// Publishes the records of one generation, one at a time, and deletes what nobody can need any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PublishMachine {
    rules: Rules,
    generation: Generation,
    /// The number that the next record takes.
    next: RecordNumber,
    /// The newest record: resumed from or published by this generation.
    newest: Option<RecordFacts>,
    /// The record before that one.
    before: Option<RecordFacts>,
    /// The record on its way.
    wanted: Option<RecordFacts>,
    /// An earlier attempt to create the record may have succeeded without our hearing of it.
    unclear: bool,
    /// Files may have lost their last name since the folder was last swept.
    sweep: bool,
    at: At,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum At {
    Idle,
    Writing,
    Syncing,
    Linking,
    ReadingBack,
    SyncingFolder,
    Listing,
    /// Published; what the listing showed.
    Published(Vec<Name>),
    RemovingRecords(Vec<Name>),
    Sweeping(Folder),
    Removing(Folder, Vec<Name>),
    ListingLeases,
    RemovingLeases(Vec<Name>),
    Fenced(Fence),
}

impl PublishMachine {
    /// For a generation that goes on from `resumed`.
    pub(crate) fn new(rules: Rules, generation: Generation, resumed: Option<RecordFacts>) -> PublishMachine {
        let next = RecordNumber(resumed.as_ref().map_or(0, |facts| facts.number.0) + 1);
        PublishMachine {
            rules,
            generation,
            next,
            newest: resumed,
            before: None,
            wanted: None,
            unclear: false,
            sweep: true,
            at: At::Idle,
        }
    }

    /// The newest record that this generation knows to be durable.
    pub(crate) fn newest(&self) -> Option<&RecordFacts> {
        self.newest.as_ref()
    }

    /// A commit epoch without a change: it publishes nothing and takes no number.
    #[cfg(test)]
    pub(crate) fn skip(&mut self) {
        if !self.rules.has(Rule::DenseNumbers) {
            self.next.0 += 1;
        }
    }

    /// Begins to publish, or begins again after an attempt that failed before the record had its name.
    pub(crate) fn publish(&mut self, epoch: Epoch, mut files: Vec<Name>) -> Action {
        if let At::Fenced(fence) = self.at {
            return Action::Fenced(fence);
        }
        files.sort_unstable();
        files.dedup();
        self.wanted = Some(RecordFacts { number: self.next, epoch, generation: self.generation, files });
        let temp = self.temp();
        self.go(At::Writing, Action::Write(temp))
    }

    /// The last action failed. What can be done safely instead; `None` when the attempt is to be begun again
    /// with [`PublishMachine::publish`].
    pub(crate) fn failed(&mut self) -> Option<Action> {
        match self.at {
            At::Idle | At::Writing | At::Syncing => {
                self.at = At::Idle;
                None
            }
            At::Linking | At::ReadingBack => {
                self.unclear = true;
                self.at = At::Idle;
                None
            }
            At::SyncingFolder => Some(Action::SyncFolder(Folder::Commits)),
            At::Listing => Some(Action::List(Folder::Commits)),
            // Retention: what is not deleted now is deleted behind a later record.
            At::Published(_)
            | At::RemovingRecords(_)
            | At::Sweeping(_)
            | At::Removing(..)
            | At::ListingLeases
            | At::RemovingLeases(_) => {
                self.sweep = true;
                self.at = At::Idle;
                Some(Action::Idle)
            }
            At::Fenced(fence) => Some(Action::Fenced(fence)),
        }
    }

    fn temp(&self) -> Name {
        Name::RecordTemp(self.next, self.generation)
    }

    fn go(&mut self, at: At, action: Action) -> Action {
        self.at = at;
        action
    }

    fn fence(&mut self, fence: Fence) -> Action {
        self.go(At::Fenced(fence), Action::Fenced(fence))
    }

    pub(crate) fn on(&mut self, event: Event) -> Action {
        let at = std::mem::replace(&mut self.at, At::Idle);
        match (at, event) {
            (At::Writing, _) if self.rules.has(Rule::RecordSynced) => {
                let temp = self.temp();
                self.go(At::Syncing, Action::Sync(temp))
            }
            (At::Writing | At::Syncing, _) => {
                let (from, to) = (self.temp(), Name::Record(self.next));
                let action = if self.rules.has(Rule::CreateIfAbsent) {
                    Action::Link { from, to }
                } else {
                    Action::Rename { from, to }
                };
                self.go(At::Linking, action)
            }
            (At::Linking, Event::Exists) if self.unclear => {
                let number = self.next;
                self.go(At::ReadingBack, Action::Read(number))
            }
            (At::Linking, Event::Exists) => self.fence(Fence::Taken(self.next)),
            (At::ReadingBack, Event::Record(facts)) if Some(&facts) == self.wanted.as_ref() => {
                self.after_link()
            }
            (At::ReadingBack, _) => self.fence(Fence::Taken(self.next)),
            (At::Linking, _) => self.after_link(),
            (At::SyncingFolder, _) => self.go(At::Listing, Action::List(Folder::Commits)),
            (At::Listing, Event::Listed(names)) => {
                let higher = highest_record(&names).filter(|highest| *highest > self.next);
                match higher {
                    Some(higher) if self.rules.has(Rule::CountsOnlyIfHighest) => {
                        self.fence(Fence::Higher(higher))
                    }
                    // Retention of newer generations, or a disk that does not keep its word.
                    _ if !names.contains(&Name::Record(self.next)) => self.fence(Fence::Vanished(self.next)),
                    _ => self.published(names),
                }
            }
            (At::Published(names), _) => self.retain_records(names),
            (At::RemovingRecords(names), _) => self.remove_records(names),
            (At::Sweeping(folder), Event::Listed(names)) => self.retain_files(folder, names),
            (At::Removing(folder, names), _) => self.remove_files(folder, names),
            (At::ListingLeases, Event::Listed(names)) => self.retain_leases(names),
            (At::RemovingLeases(names), _) => self.remove_leases(names),
            (At::Fenced(fence), _) => self.fence(fence),
            (At::Idle, _) => Action::Idle,
            (at, event) => unreachable!("a publisher at {at:?} cannot be told {event:?}"),
        }
    }

    fn after_link(&mut self) -> Action {
        self.unclear = false;
        if self.rules.has(Rule::RecordDurableFirst) {
            self.go(At::SyncingFolder, Action::SyncFolder(Folder::Commits))
        } else {
            self.go(At::Listing, Action::List(Folder::Commits))
        }
    }

    fn published(&mut self, names: Vec<Name>) -> Action {
        let number = self.next;
        let fallen = std::mem::replace(&mut self.before, self.newest.take());
        self.newest = self.wanted.take();
        // A file that only the record named which is now the third newest has lost its last name.
        if let Some(fallen) = fallen {
            self.sweep |= fallen.files.iter().any(|file| !self.is_kept(*file));
        }
        self.next.0 += 1;
        self.go(At::Published(names), Action::Published(number))
    }

    fn is_kept(&self, file: Name) -> bool {
        let named =
            |facts: &Option<RecordFacts>| facts.as_ref().is_some_and(|facts| facts.files.contains(&file));
        named(&self.newest) || named(&self.before)
    }

    /// Keeps the newest two records, and whatever temporary file a newer generation may be about to link.
    fn retain_records(&mut self, mut names: Vec<Name>) -> Action {
        let newest = self.newest.as_ref().map_or(RecordNumber(0), |facts| facts.number);
        names.retain(|name| match name {
            Name::Record(number) => number.0 + 1 < newest.0,
            Name::RecordTemp(_, generation) => *generation <= self.generation,
            Name::Lease(_) | Name::LeaseTemp(..) | Name::Segment(_) => false,
            Name::Outbox(_) | Name::Decision(..) | Name::DecisionTemp(..) => false,
        });
        names.sort_unstable();
        self.remove_records(names)
    }

    fn remove_records(&mut self, mut names: Vec<Name>) -> Action {
        match names.pop() {
            Some(name) => self.go(At::RemovingRecords(names), Action::Remove(name)),
            None if self.sweep => self.go(At::Sweeping(Folder::Segments), Action::List(Folder::Segments)),
            None => self.go(At::Idle, Action::Idle),
        }
    }

    /// Keeps what the two records name, and whatever a newer record may be about to name.
    fn retain_files(&mut self, folder: Folder, mut names: Vec<Name>) -> Action {
        let newest = self.newest.as_ref().map_or(Epoch(0), |facts| facts.epoch);
        names.retain(|name| {
            let (part, file) = match name {
                Name::Segment(part) => (part, Name::Segment(*part)),
                Name::Outbox(part) | Name::Decision(part, _) | Name::DecisionTemp(part, _) => {
                    (part, Name::Outbox(*part))
                }
                Name::Lease(_) | Name::LeaseTemp(..) | Name::Record(_) | Name::RecordTemp(..) => {
                    return false;
                }
            };
            let ours = part.generation == self.generation
                && (part.epoch <= newest || !self.rules.has(Rule::RetentionSparesAbove));
            let older = part.generation < self.generation;
            let newer = part.generation > self.generation && !self.rules.has(Rule::RetentionSparesNewer);
            (ours || older || newer) && !self.is_kept(file)
        });
        self.remove_files(folder, names)
    }

    fn remove_files(&mut self, folder: Folder, mut names: Vec<Name>) -> Action {
        match (names.pop(), folder) {
            (Some(name), _) => self.go(At::Removing(folder, names), Action::Remove(name)),
            (None, Folder::Segments) => {
                self.go(At::Sweeping(Folder::Outboxes), Action::List(Folder::Outboxes))
            }
            (None, _) => self.go(At::ListingLeases, Action::List(Folder::Leases)),
        }
    }

    /// Every lease stays that is not older than the newest record's generation, and always the highest.
    fn retain_leases(&mut self, mut names: Vec<Name>) -> Action {
        names.retain(|name| match name {
            Name::Lease(generation) | Name::LeaseTemp(generation, _) => *generation < self.generation,
            Name::Segment(_) | Name::Record(_) | Name::RecordTemp(..) => false,
            Name::Outbox(_) | Name::Decision(..) | Name::DecisionTemp(..) => false,
        });
        self.remove_leases(names)
    }

    fn remove_leases(&mut self, mut names: Vec<Name>) -> Action {
        match names.pop() {
            Some(name) => self.go(At::RemovingLeases(names), Action::Remove(name)),
            None => {
                self.sweep = false;
                self.go(At::Idle, Action::Idle)
            }
        }
    }
}

//! A start: lease, fence, highest record, and everything it names made durable. It deletes nothing.

use super::{Action, Event, Fence, RecordFacts, Rule, Rules, highest_lease, highest_record};
use crate::names::{Folder, Name};
use crate::{Generation, RecordNumber};

/// A start of process 0, from nothing to a record to go on from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StartMachine {
    rules: Rules,
    /// Tells the temporary names of starts apart that run at the same time.
    tag: u32,
    generation: Generation,
    /// The record that was read last.
    record: Option<RecordNumber>,
    at: At,
    /// Only the search, with a rule switched off, ever goes back to these.
    older: Vec<RecordNumber>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum At {
    Begin,
    ListingLeases,
    TakingOver,
    WritingLease,
    SyncingLease,
    LinkingLease,
    RemovingTemp,
    SyncingLeases,
    Fencing,
    ListingRecords,
    Reading(RecordNumber),
    SyncingRecord(RecordFacts),
    SyncingRecords(RecordFacts),
    SyncingFile(RecordFacts, usize),
    /// The folders that are not synced yet.
    SyncingFolders(RecordFacts, Vec<Folder>),
    /// A file was not there: is there a higher record by now?
    LookingAgain(RecordFacts, Name),
    LookingAtLease(Option<RecordFacts>),
    /// Only with a rule switched off.
    Cleaning(Option<RecordFacts>),
    Removing(Option<RecordFacts>, Vec<Name>),
}

impl StartMachine {
    pub(crate) fn new(rules: Rules, tag: u32) -> StartMachine {
        StartMachine { rules, tag, generation: Generation(0), record: None, at: At::Begin, older: Vec::new() }
    }

    /// The lease's number, once it is created.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// The record that the start was about to use when it found a file missing.
    pub(crate) fn chosen(&self) -> Option<RecordNumber> {
        self.record
    }

    /// The record is to be chosen once more: it was damaged and moved aside, or slots had to be fenced that only it named. The
    /// next event goes on.
    pub(crate) fn again(&mut self) {
        self.at = At::RemovingTemp;
    }

    fn temp(&self) -> Name {
        Name::LeaseTemp(self.generation, self.tag)
    }

    fn go(&mut self, at: At, action: Action) -> Action {
        self.at = at;
        action
    }

    pub(crate) fn on(&mut self, event: Event) -> Action {
        let at = std::mem::replace(&mut self.at, At::Begin);
        match (at, event) {
            (At::Begin, _) => self.go(At::ListingLeases, Action::List(Folder::Leases)),
            (At::ListingLeases, Event::Listed(names)) => {
                let highest = highest_lease(&names);
                self.generation = Generation(highest.map_or(0, |generation| generation.0) + 1);
                self.go(At::TakingOver, Action::TakeOver(highest))
            }
            (At::TakingOver, _) => {
                let temp = self.temp();
                self.go(At::WritingLease, Action::Write(temp))
            }
            (At::WritingLease, _) => {
                let temp = self.temp();
                self.go(At::SyncingLease, Action::Sync(temp))
            }
            (At::SyncingLease, _) => {
                let link = Action::Link { from: self.temp(), to: Name::Lease(self.generation) };
                self.go(At::LinkingLease, link)
            }
            // Somebody took the number at the same time: look again who holds the store.
            (At::LinkingLease, Event::Exists) => self.go(At::ListingLeases, Action::List(Folder::Leases)),
            (At::LinkingLease, _) => {
                let temp = self.temp();
                self.go(At::RemovingTemp, Action::Remove(temp))
            }
            (At::RemovingTemp, _) if self.rules.has(Rule::LeaseDurable) => {
                self.go(At::SyncingLeases, Action::SyncFolder(Folder::Leases))
            }
            (At::RemovingTemp | At::SyncingLeases, _) => self.go(At::Fencing, Action::Fence),
            (At::Fencing, _) => self.go(At::ListingRecords, Action::List(Folder::Commits)),
            (At::ListingRecords, Event::Listed(names)) => self.choose(&names),
            (At::Reading(_), Event::Record(facts)) => {
                self.record = Some(facts.number);
                if self.rules.has(Rule::StartSyncs) {
                    let record = Name::Record(facts.number);
                    self.go(At::SyncingRecord(facts), Action::Sync(record))
                } else {
                    self.next_file(facts, 0)
                }
            }
            (At::Reading(_), Event::Missing) => self.begin_anew(),
            // The shell may move it aside and answer; then the highest is another one.
            (At::Reading(number), Event::Damaged) => self.go(At::RemovingTemp, Action::Unusable(number)),
            (At::SyncingRecord(_), Event::Missing) => self.begin_anew(),
            (At::SyncingRecord(facts), _) => {
                self.go(At::SyncingRecords(facts), Action::SyncFolder(Folder::Commits))
            }
            (At::SyncingRecords(facts), _) => self.next_file(facts, 0),
            (At::SyncingFile(facts, index), Event::Missing) => {
                let missing = facts.files[index];
                if !self.rules.has(Rule::OnlyHighestRead) {
                    return self.begin_anew();
                }
                self.go(At::LookingAgain(facts, missing), Action::List(Folder::Commits))
            }
            (At::SyncingFile(facts, index), _) => self.next_file(facts, index + 1),
            (At::SyncingFolders(facts, folders), _) => self.sync_folders(facts, folders),
            (At::LookingAgain(facts, missing), Event::Listed(names)) => {
                if highest_record(&names) > Some(facts.number) {
                    self.choose(&names)
                } else {
                    // The shell may move the record aside and answer, as with a damaged one.
                    self.go(At::RemovingTemp, Action::Lost(missing))
                }
            }
            (At::LookingAtLease(facts), Event::Listed(names)) => match highest_lease(&names) {
                Some(newer) if newer > self.generation => Action::Fenced(Fence::Lease(newer)),
                // A disk that does not keep its word; a later start may take the same number.
                None => Action::Fenced(Fence::Lease(self.generation)),
                _ if !self.rules.has(Rule::StartDeletesNothing) => {
                    self.go(At::Cleaning(facts), Action::List(Folder::Segments))
                }
                _ => Action::Resume(facts),
            },
            (At::Cleaning(facts), Event::Listed(names)) => {
                let named = facts.as_ref().map_or(&[][..], |facts| &facts.files);
                let mut names = names;
                names.retain(|name| {
                    matches!(name, Name::Segment(segment)
                        if segment.generation < self.generation && !named.contains(name))
                });
                self.remove(facts, names)
            }
            (At::Removing(facts, names), _) => self.remove(facts, names),
            (at, event) => {
                // A shell that answers with anything else is broken, and nothing can be said about the disk.
                unreachable!("a start at {at:?} cannot be told {event:?}")
            }
        }
    }

    fn choose(&mut self, names: &[Name]) -> Action {
        if !self.rules.has(Rule::OnlyHighestRead) {
            let records = names.iter().filter_map(|name| match name {
                Name::Record(number) => Some(*number),
                _ => None,
            });
            self.older = records.collect();
            self.older.sort_unstable();
            self.older.pop();
        }
        match highest_record(names) {
            Some(number) => self.go(At::Reading(number), Action::Read(number)),
            None => self.look_at_lease(None),
        }
    }

    fn begin_anew(&mut self) -> Action {
        if self.rules.has(Rule::OnlyHighestRead) {
            return self.go(At::ListingRecords, Action::List(Folder::Commits));
        }
        match self.older.pop() {
            Some(number) => self.go(At::Reading(number), Action::Read(number)),
            None => self.look_at_lease(None),
        }
    }

    fn next_file(&mut self, facts: RecordFacts, index: usize) -> Action {
        match facts.files.get(index) {
            Some(file) => {
                let file = *file;
                self.go(At::SyncingFile(facts, index), Action::Sync(file))
            }
            None if !self.rules.has(Rule::StartSyncs) => self.look_at_lease(Some(facts)),
            None => {
                let mut folders: Vec<Folder> = facts.files.iter().map(|file| file.folder()).collect();
                folders.dedup();
                self.sync_folders(facts, folders)
            }
        }
    }

    fn sync_folders(&mut self, facts: RecordFacts, mut folders: Vec<Folder>) -> Action {
        match folders.pop() {
            Some(folder) => self.go(At::SyncingFolders(facts, folders), Action::SyncFolder(folder)),
            None => self.look_at_lease(Some(facts)),
        }
    }

    fn look_at_lease(&mut self, facts: Option<RecordFacts>) -> Action {
        self.go(At::LookingAtLease(facts), Action::List(Folder::Leases))
    }

    fn remove(&mut self, facts: Option<RecordFacts>, mut names: Vec<Name>) -> Action {
        match names.pop() {
            Some(name) => self.go(At::Removing(facts, names), Action::Remove(name)),
            None => Action::Resume(facts),
        }
    }
}

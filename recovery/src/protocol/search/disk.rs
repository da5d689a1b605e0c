//! The disk of the search: what is visible, what is durable, and what a crash may leave of it.

use crate::Epoch;
use crate::names::{Folder, Name, PartName};
use crate::protocol::{RecordFacts, highest_record};
use std::collections::{BTreeMap, BTreeSet};

/// Records per partition.
pub(super) const RECORDS: u8 = 2;

pub(super) type Offsets = [u8; 2];
/// Value per key, for keys that changed.
pub(super) type Rows = [Option<u8>; 2];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Content {
    Lease(usize),
    Segment(Rows),
    Record(Record),
    Torn,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub(super) facts: RecordFacts,
    pub(super) offsets: Offsets,
    /// What the checksums would tell.
    pub(super) expected: BTreeMap<PartName, Rows>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct File {
    pub(super) content: Content,
    pub(super) synced: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Disk {
    pub(super) visible: BTreeMap<Name, File>,
    pub(super) durable: BTreeMap<Name, File>,
}

/// The value of a key once the partitions were read up to `offsets`: how many of its records that are.
pub(super) fn value(key: u8, offsets: Offsets) -> u8 {
    let mut count = 0;
    for partition in 0..2_u8 {
        count += (0..offsets[usize::from(partition)]).filter(|record| (partition + record) % 2 == key).count()
            as u8;
    }
    count
}

pub(super) fn rows_at(offsets: Offsets) -> [u8; 2] {
    [value(0, offsets), value(1, offsets)]
}

impl Disk {
    pub(super) fn list(&self, folder: Folder) -> Vec<Name> {
        self.visible.keys().filter(|name| name.folder() == folder).copied().collect()
    }

    /// Entries that a crash may take: names whose creation or removal is not durable, and bytes that are not.
    pub(super) fn unsynced(&self) -> Vec<(Name, bool)> {
        let mut entries = Vec::new();
        let names: BTreeSet<Name> = self.visible.keys().chain(self.durable.keys()).copied().collect();
        for name in names {
            let (seen, kept) = (self.visible.get(&name), self.durable.get(&name));
            if seen.map(|file| &file.content) != kept.map(|file| &file.content) {
                entries.push((name, false));
            }
            if seen.is_some_and(|file| !file.synced) {
                entries.push((name, true));
            }
        }
        entries
    }

    /// What a crash leaves that takes the given entries.
    pub(super) fn after_crash(&self, lost: &[(Name, bool)]) -> Disk {
        let mut left = self.visible.clone();
        for (name, bytes) in lost {
            if *bytes {
                if let Some(file) = left.get_mut(name) {
                    file.content = Content::Torn;
                }
                continue;
            }
            match self.durable.get(name) {
                Some(file) => {
                    let content = if file.synced { file.content.clone() } else { Content::Torn };
                    left.insert(*name, File { content, synced: true });
                }
                None => {
                    left.remove(name);
                }
            }
        }
        for file in left.values_mut() {
            file.synced = true;
        }
        Disk { durable: left.clone(), visible: left }
    }

    /// Every disk that a crash now could leave.
    pub(super) fn crashes(&self) -> Vec<Disk> {
        let unsynced = self.unsynced();
        if unsynced.is_empty() {
            return Vec::new();
        }
        let mut disks = vec![self.after_crash(&unsynced)];
        disks.extend(unsynced.iter().map(|entry| self.after_crash(std::slice::from_ref(entry))));
        disks
    }

    /// The offsets from which a start would go on, or why it could not.
    pub(super) fn resume(&self) -> Result<Offsets, String> {
        let names = self.list(Folder::Commits);
        match highest_record(&names) {
            None => Ok([0, 0]),
            Some(number) => match &self.visible[&Name::Record(number)].content {
                Content::Record(record) => self.usable(record),
                other => Err(format!("record {number} is {other:?}")),
            },
        }
    }

    /// Whether the files of a record are there and say what its offsets say.
    pub(super) fn usable(&self, record: &Record) -> Result<Offsets, String> {
        let mut newest: [Option<(Epoch, u8)>; 2] = [None, None];
        for (segment, rows) in &record.expected {
            let name = Name::Segment(*segment);
            let Some(file) = self.visible.get(&name) else {
                return Err(format!("record {} names {name}, which is gone", record.facts.number));
            };
            if file.content != Content::Segment(*rows) {
                return Err(format!(
                    "record {} names {name}, which is {:?}",
                    record.facts.number, file.content
                ));
            }
            for (key, row) in rows.iter().enumerate() {
                if let Some(row) = row
                    && newest[key].is_none_or(|(epoch, _)| epoch < segment.epoch)
                {
                    newest[key] = Some((segment.epoch, *row));
                }
            }
        }
        let rows = newest.map(|row| row.map_or(0, |(_, value)| value));
        if rows == rows_at(record.offsets) {
            return Ok(record.offsets);
        }
        Err(format!("record {} has rows {rows:?} at offsets {:?}", record.facts.number, record.offsets))
    }
}

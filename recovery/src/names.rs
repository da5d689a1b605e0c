//! The names of the store's files. A name that is not spelled exactly so is foreign: never read, never removed.

use crate::{Epoch, Generation, OutboxRef, ProcessIndex, RecordNumber, SegmentRef};
use std::fmt;

/// The file that says whose store it is.
pub(crate) const STORE: &str = "STORE";
/// Folder of leases.
pub(crate) const LEASES: &str = "lease";
/// Folder of segments.
pub(crate) const SEGMENTS: &str = "segments";
/// Folder of outboxes.
pub(crate) const OUTBOXES: &str = "outbox";
/// Folder of commit records.
pub(crate) const COMMITS: &str = "commits";

/// What identifies a segment or an outbox: whose part of which epoch it is; ordered by epoch first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PartName {
    pub(crate) epoch: Epoch,
    pub(crate) generation: Generation,
    pub(crate) process: ProcessIndex,
}

impl From<&SegmentRef> for PartName {
    fn from(segment: &SegmentRef) -> PartName {
        PartName { epoch: segment.epoch, generation: segment.generation, process: segment.process }
    }
}

impl From<&OutboxRef> for PartName {
    fn from(outbox: &OutboxRef) -> PartName {
        PartName { epoch: outbox.epoch, generation: outbox.generation, process: outbox.process }
    }
}

/// A file of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Name {
    Lease(Generation),
    LeaseTemp(Generation, u32),
    Segment(PartName),
    Outbox(PartName),
    /// What a person decided about one row of an outbox.
    Decision(PartName, u64),
    DecisionTemp(PartName, u64),
    Record(RecordNumber),
    RecordTemp(RecordNumber, Generation),
}

/// A folder of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Folder {
    Leases,
    Segments,
    Outboxes,
    Commits,
}

impl Folder {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Folder::Leases => LEASES,
            Folder::Segments => SEGMENTS,
            Folder::Outboxes => OUTBOXES,
            Folder::Commits => COMMITS,
        }
    }

    /// What a file of this folder is; `None` for a foreign one.
    pub(crate) fn parse(self, name: &str) -> Option<Name> {
        let parsed = match self {
            Folder::Leases => match name.strip_suffix(".tmp") {
                Some(stem) => {
                    let (generation, tag) = stem.split_once('.')?;
                    Name::LeaseTemp(Generation(number(generation)?), u32::from_str_radix(tag, 16).ok()?)
                }
                None => Name::Lease(Generation(number(name)?)),
            },
            Folder::Commits => match name.strip_suffix(".tmp") {
                Some(stem) => {
                    let (record, generation) = stem.split_once('.')?;
                    Name::RecordTemp(RecordNumber(number(record)?), Generation(number(generation)?))
                }
                None => Name::Record(RecordNumber(number(name)?)),
            },
            Folder::Segments => Name::Segment(part_name(name)?),
            Folder::Outboxes => match name.split_once('.') {
                None => Name::Outbox(part_name(name)?),
                Some((outbox, rest)) => {
                    let (row, kind) = rest.split_once('.')?;
                    let (outbox, row) = (part_name(outbox)?, number(row)?);
                    match kind {
                        "decision" => Name::Decision(outbox, row),
                        "decision.tmp" => Name::DecisionTemp(outbox, row),
                        _ => return None,
                    }
                }
            },
        };
        // One spelling only: `7` is not `0000000007`.
        (parsed.to_string().split_once('/').map(|(_, file)| file) == Some(name)).then_some(parsed)
    }
}

impl Name {
    pub(crate) fn folder(self) -> Folder {
        match self {
            Name::Lease(_) | Name::LeaseTemp(..) => Folder::Leases,
            Name::Segment(_) => Folder::Segments,
            Name::Outbox(_) | Name::Decision(..) | Name::DecisionTemp(..) => Folder::Outboxes,
            Name::Record(_) | Name::RecordTemp(..) => Folder::Commits,
        }
    }
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}-{:010}-{:05}", self.epoch.0, self.generation.0, self.process.0)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Lease(generation) => write!(f, "{LEASES}/{:010}", generation.0),
            Name::LeaseTemp(generation, tag) => write!(f, "{LEASES}/{:010}.{tag:08x}.tmp", generation.0),
            Name::Segment(name) => write!(f, "{SEGMENTS}/{name}"),
            Name::Outbox(name) => write!(f, "{OUTBOXES}/{name}"),
            Name::Decision(name, row) => write!(f, "{OUTBOXES}/{name}.{row:010}.decision"),
            Name::DecisionTemp(name, row) => write!(f, "{OUTBOXES}/{name}.{row:010}.decision.tmp"),
            Name::Record(number) => write!(f, "{COMMITS}/{:020}", number.0),
            Name::RecordTemp(number, generation) => {
                write!(f, "{COMMITS}/{:020}.{:010}.tmp", number.0, generation.0)
            }
        }
    }
}

fn part_name(name: &str) -> Option<PartName> {
    let mut parts = name.split('-');
    let (epoch, generation, process) = (parts.next()?, parts.next()?, parts.next()?);
    Some(PartName {
        epoch: Epoch(number(epoch)?),
        generation: Generation(number(generation)?),
        process: ProcessIndex(u32::try_from(number(process)?).ok()?),
    })
}

fn number(digits: &str) -> Option<u64> {
    if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_ours_only_in_its_one_spelling() {
        let segment = PartName { epoch: Epoch(12), generation: Generation(3), process: ProcessIndex(1) };
        for name in [
            Name::Lease(Generation(7)),
            Name::LeaseTemp(Generation(7), 0xab),
            Name::Segment(segment),
            Name::Outbox(segment),
            Name::Decision(segment, 17),
            Name::DecisionTemp(segment, u64::MAX),
            Name::Record(RecordNumber(9)),
            Name::RecordTemp(RecordNumber(9), Generation(u64::MAX)),
        ] {
            let text = name.to_string();
            let (_, file) = text.split_once('/').expect("every name has a folder");
            assert_eq!(name.folder().parse(file), Some(name));
        }
        for foreign in [".DS_Store", "7", "0000000007~", "+000000007", "0000000007.tmp", "lost+found", ""] {
            assert_eq!(Folder::Leases.parse(foreign), None, "{foreign}");
            assert_eq!(Folder::Segments.parse(foreign), None, "{foreign}");
            assert_eq!(Folder::Outboxes.parse(foreign), None, "{foreign}");
        }
        assert_eq!(Folder::Commits.parse("00000000000000000009 (copy)"), None);
        assert_eq!(Folder::Segments.parse("00000000000000000012-0000000003-00001-"), None);
    }
}

//! The commit record that a start chose: read for good, or moved aside.

use super::drive::read_record;
use super::open::{OpenOptions, shown};
use crate::format::record::CommitRecord;
use crate::format::segment::SegmentFile;
use crate::names::{COMMITS, Folder, LEASES, Name, SEGMENTS};
use crate::storage::Storage;
use crate::{Generation, RecordNumber, SegmentRef, Slot, StoreError, lease};
use std::collections::BTreeMap;

/// A record that can be used.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    pub(crate) record: CommitRecord,
}

/// What a start that may fall back has to say to a person.
const HINT: &str =
    ": restore the file from a copy, or start with --allow-older-snapshot to go on from the record before";

/// Reads the record that the protocol chose, and looks that its segments have the length it says. With
/// `--allow-older-snapshot` every segment is read whole, since a later complaint could not fall back any more.
pub(crate) fn check(
    storage: &dyn Storage,
    options: &OpenOptions,
    number: RecordNumber,
) -> Result<Chosen, StoreError> {
    let Some(record) = read_record(storage, number)? else {
        return Err(StoreError::damaged(Name::Record(number), 0, "it was read a moment ago and is gone"));
    };
    let entries = storage.list(SEGMENTS).map_err(StoreError::io("list", shown(storage, SEGMENTS)))?;
    let lengths: BTreeMap<Name, u64> = entries
        .iter()
        .filter_map(|entry| Some((Folder::Segments.parse(&entry.name)?, entry.length)))
        .collect();
    for segment in &record.segments {
        let name = Name::Segment(segment.into());
        match lengths.get(&name) {
            Some(length) if *length == segment.length => {}
            Some(length) => {
                let what = format!("it has {length} bytes, the record says {}", segment.length);
                return Err(StoreError::damaged(name, (*length).min(segment.length) as usize, what));
            }
            None => {
                return Err(StoreError::damaged(
                    name,
                    0,
                    "it is missing, although the newest commit record names it",
                ));
            }
        }
        if options.allow_older_snapshot {
            read_segment(storage, segment)?;
        }
    }
    Ok(Chosen { record })
}

/// Reads a segment and checks it against what a record says of it.
pub(crate) fn read_segment(storage: &dyn Storage, segment: &SegmentRef) -> Result<SegmentFile, StoreError> {
    let name = Name::Segment(segment.into());
    let bytes = storage.read(&name.to_string()).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            StoreError::damaged(name, 0, "it is missing, although the commit record names it")
        } else {
            StoreError::io("read", name)(error)
        }
    })?;
    SegmentFile::open(segment, bytes)
}

/// With `--allow-older-snapshot`, renames a damaged record so that its number can be published again; otherwise the
/// damage is the start's error.
pub(crate) fn move_aside(
    storage: &dyn Storage,
    options: &OpenOptions,
    number: RecordNumber,
    generation: Generation,
    damage: StoreError,
) -> Result<(), StoreError> {
    if !options.allow_older_snapshot {
        return Err(match damage {
            StoreError::Damaged { file, offset, what, .. } => {
                StoreError::Damaged { file, offset, what, hint: HINT }
            }
            other => other,
        });
    }
    let name = Name::Record(number).to_string();
    let aside = format!("{name}.damaged-{generation}");
    tracing::warn!(record = %number, %damage, "moving the newest commit record aside to {aside}, and going on from the one before");
    storage.rename(&name, &aside).map_err(StoreError::io("move aside", &name))?;
    storage.sync_folder(COMMITS).map_err(StoreError::io("sync", COMMITS))
}

/// The slots of all listed leases, and the leases that cannot be read.
pub(crate) fn slots(
    storage: &dyn Storage,
    own: Generation,
) -> Result<(Vec<Slot>, Vec<Generation>), StoreError> {
    let entries = storage.list(LEASES).map_err(StoreError::io("list", shown(storage, LEASES)))?;
    let (mut slots, mut unreadable) = (Vec::new(), Vec::new());
    for entry in &entries {
        let Some(Name::Lease(generation)) = Folder::Leases.parse(&entry.name) else { continue };
        if generation == own {
            continue;
        }
        match lease::read(storage, generation) {
            Ok(Some(lease)) => slots.extend(lease.body.holder.slots),
            Ok(None) => {}
            Err(damage @ (StoreError::Damaged { .. } | StoreError::NewerFormat { .. })) => {
                tracing::warn!(generation = %generation, %damage, "an old lease cannot be read");
                unreadable.push(generation);
            }
            Err(error) => return Err(error),
        }
    }
    Ok((slots, unreadable))
}

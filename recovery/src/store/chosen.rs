//! The commit record that a start chose: read for good, or moved aside.

use super::drive::read_record;
use super::open::{OpenOptions, shown};
use super::outbox::read_outbox;
use crate::format::check_length;
use crate::format::record::CommitRecord;
use crate::format::segment::SegmentFile;
use crate::names::{COMMITS, Folder, LEASES, Name};
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

/// Reads the record that the protocol chose, and looks that its files have the length it says. With
/// `--allow-older-snapshot` every one is read whole, since a later complaint could not fall back any more.
pub(crate) fn check(
    storage: &dyn Storage,
    options: &OpenOptions,
    number: RecordNumber,
) -> Result<Chosen, StoreError> {
    let Some(record) = read_record(storage, number)? else {
        return Err(StoreError::damaged(Name::Record(number), 0, "it was read a moment ago and is gone"));
    };
    let mut lengths: BTreeMap<Name, u64> = BTreeMap::new();
    for folder in [Folder::Segments, Folder::Outboxes] {
        let path = folder.path();
        let entries = storage.list(path).map_err(StoreError::io("list", shown(storage, path)))?;
        lengths.extend(entries.iter().filter_map(|entry| Some((folder.parse(&entry.name)?, entry.length))));
    }
    let segments = record.segments.iter().map(|segment| (Name::Segment(segment.into()), segment.length));
    let outboxes = record.outboxes.iter().map(|outbox| (Name::Outbox(outbox.into()), outbox.length));
    for (name, expected) in segments.chain(outboxes) {
        let missing =
            || StoreError::damaged(name, 0, "it is missing, although the newest commit record names it");
        check_length(name, *lengths.get(&name).ok_or_else(missing)?, expected)?;
    }
    if options.allow_older_snapshot {
        for segment in &record.segments {
            read_segment(storage, segment)?;
        }
        for outbox in &record.outboxes {
            read_outbox(storage, outbox, &[])?;
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

/// Says what can be done about damage.
pub(crate) fn with_hint(error: StoreError) -> StoreError {
    match error {
        StoreError::Damaged { file, offset, what, .. } => {
            StoreError::Damaged { file, offset, what, hint: HINT }
        }
        other => other,
    }
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
        return Err(with_hint(damage));
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

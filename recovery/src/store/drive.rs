//! Performs the protocol's actions on a storage: the one place where names become files.

use crate::format::record::CommitRecord;
use crate::names::{Folder, Name};
use crate::protocol::{Action, Event};
use crate::storage::Storage;
use crate::{RecordNumber, StoreError};
use std::io;

/// Performs an action that only touches files; `content` is what [`Action::Write`] writes.
///
/// Actions that end a machine or ask for a decision are the caller's.
pub(crate) fn perform(
    storage: &dyn Storage,
    action: &Action,
    content: &[&[u8]],
) -> Result<Event, StoreError> {
    match action {
        Action::List(folder) => list(storage, *folder).map(Event::Listed),
        Action::Write(name) => {
            let name = name.to_string();
            let failed = |error| StoreError::io("write", &name)(error);
            let mut file = storage.create(&name).map_err(failed)?;
            for bytes in content {
                file.write(bytes).map_err(failed)?;
            }
            Ok(Event::Done)
        }
        Action::Sync(name) => {
            let name = name.to_string();
            match storage.sync_file(&name) {
                Ok(()) => Ok(Event::Done),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Event::Missing),
                Err(error) => Err(StoreError::io("sync", name)(error)),
            }
        }
        Action::SyncFolder(folder) => {
            storage.sync_folder(folder.path()).map_err(StoreError::io("sync", folder.path()))?;
            Ok(Event::Done)
        }
        Action::Link { from, to } => {
            let linked = storage.link(&from.to_string(), &to.to_string());
            Ok(if linked.map_err(StoreError::io("create", to))? { Event::Done } else { Event::Exists })
        }
        Action::Remove(name) => {
            let name = name.to_string();
            match storage.remove(&name) {
                Ok(()) => Ok(Event::Done),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Event::Done),
                Err(error) => Err(StoreError::io("remove", name)(error)),
            }
        }
        Action::Read(number) => Ok(match read_record(storage, *number)? {
            Some(record) => Event::Record(record.facts()),
            None => Event::Missing,
        }),
        Action::Rename { .. }
        | Action::TakeOver(_)
        | Action::Fence
        | Action::Report
        | Action::Resume(_)
        | Action::Lost(_)
        | Action::Unusable(_)
        | Action::Published(_)
        | Action::Fenced(_)
        | Action::Idle => Err(StoreError::Internal(format!("{action:?} is no action on a file"))),
    }
}

/// The names of a folder that are ours.
pub(crate) fn list(storage: &dyn Storage, folder: Folder) -> Result<Vec<Name>, StoreError> {
    let entries = storage.list(folder.path()).map_err(StoreError::io("list", folder.path()))?;
    Ok(entries.iter().filter_map(|entry| folder.parse(&entry.name)).collect())
}

/// Reads a commit record; `None` when it is not there.
pub(crate) fn read_record(
    storage: &dyn Storage,
    number: RecordNumber,
) -> Result<Option<CommitRecord>, StoreError> {
    let name = Name::Record(number).to_string();
    match storage.read(&name) {
        Ok(bytes) => CommitRecord::decode(&name, number, &bytes).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("read", name)(error)),
    }
}

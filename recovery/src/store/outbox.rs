//! Outboxes of a store: read for publication, looked at, and freed of a row that can never be published.
//!
//! A file is never changed once a record may name it. What a person decides about a row is a file of its own beside the
//! outbox, created if absent and durable, which every reader of the outbox takes along and retention removes with it.

use super::drive::{self, perform};
use super::open::RecoveryStore;
use crate::format::outbox::{DecisionBody, Outbox};
use crate::lease;
use crate::names::{Folder, Name, PartName};
use crate::outbox::{Decision, InspectedOutbox};
use crate::protocol::{Action, Event};
use crate::storage::Storage;
use crate::{OutboxRef, StoreError};
use std::io;

impl RecoveryStore {
    /// Reads an outbox for its publication, or its leftovers for that of a later generation.
    ///
    /// # Errors
    ///
    /// `STORE_DAMAGED` with file and offset when it is not what the record says, or what the disk says.
    pub fn read_outbox(&self, outbox: &OutboxRef) -> Result<Outbox, StoreError> {
        let mut decisions = Vec::new();
        for name in drive::list(&**self.storage(), Folder::Outboxes)? {
            if let Name::Decision(part, row) = name
                && part == PartName::from(outbox)
            {
                decisions.push(row);
            }
        }
        read_outbox(&**self.storage(), outbox, &decisions)
    }

    /// The outboxes whose publication the newest commit record does not know, oldest first. The markers on the control topic
    /// may cover some of them.
    ///
    /// # Errors
    ///
    /// When there is no store, or what the disk says. A damaged outbox is part of the answer.
    pub fn outboxes(&self) -> Result<Vec<InspectedOutbox>, StoreError> {
        let Some(record) = self.newest()? else { return Ok(Vec::new()) };
        let mut inspected = Vec::new();
        for outbox in record.outboxes {
            let file = Name::Outbox(PartName::from(&outbox)).to_string();
            let (rows, decisions) = match self.read_outbox(&outbox) {
                Ok(read) => (Some(read.rows()?), read.decisions.into_iter().collect()),
                Err(StoreError::Damaged { .. }) => (None, Vec::new()),
                Err(error) => return Err(error),
            };
            inspected.push(InspectedOutbox { file, outbox, rows, decisions });
        }
        Ok(inspected)
    }

    /// Decides about a row that can never be published: `tidegate recovery outbox skip` and `dead-letter`. The flow must be
    /// stopped; its next start publishes the outbox by this decision. `file` is as [`InspectedOutbox::file`] and the error of the
    /// refused row give it.
    ///
    /// # Errors
    ///
    /// `CLUSTER_ALREADY_RUNNING`; when no such outbox or row waits for publication, or the row was decided about before; or what the
    /// disk says.
    pub fn decide(&self, file: &str, row: u64, decision: Decision) -> Result<(), StoreError> {
        let storage = &**self.storage();
        self.body()?;
        let _lock = self.keep_starts_away()?;
        let refused = |what: String| StoreError::NoSuchRow { file: file.to_owned(), row, what };
        let waiting = self.outboxes()?;
        let Some(InspectedOutbox { outbox, rows, .. }) = waiting.iter().find(|waiting| waiting.file == file)
        else {
            return Err(refused("no such outbox waits for publication".to_owned()));
        };
        match rows {
            Some(rows) if row < *rows => {}
            Some(rows) => return Err(refused(format!("it has {rows} rows"))),
            // Says what is wrong with it.
            None => return self.read_outbox(outbox).map(|_| ()),
        }
        let part = PartName::from(outbox);
        let PartName { epoch, generation, process } = part;
        let body = DecisionBody { epoch, generation, process, row, decision }.encode()?;
        let (temp, name) = (Name::DecisionTemp(part, row), Name::Decision(part, row));
        perform(storage, &Action::Write(temp), &[&body])?;
        perform(storage, &Action::Sync(temp), &[])?;
        let linked = perform(storage, &Action::Link { from: temp, to: name }, &[])?;
        perform(storage, &Action::Remove(temp), &[])?;
        perform(storage, &Action::SyncFolder(Folder::Outboxes), &[])?;
        if linked == Event::Exists {
            return Err(refused("it was decided about before".to_owned()));
        }
        Ok(())
    }

    /// Holds the newest lease's lock: a start waits until it is free, and a running cluster has it.
    fn keep_starts_away(&self) -> Result<Option<Box<dyn crate::storage::StorageLock>>, StoreError> {
        let storage = &**self.storage();
        let Some(newest) = lease::newest(storage)? else { return Ok(None) };
        let name = Name::Lease(newest).to_string();
        match storage.lock(&name).map_err(StoreError::io("lock", &name))? {
            Some(lock) => Ok(Some(lock)),
            None => Err(StoreError::StillRunning {
                store: storage.place(),
                holder: lease::read(storage, newest)?.map(|lease| Box::new(lease.body.holder)),
            }),
        }
    }
}

/// Reads an outbox and what was decided about these rows of it.
pub(crate) fn read_outbox(
    storage: &dyn Storage,
    outbox: &OutboxRef,
    decisions: &[u64],
) -> Result<Outbox, StoreError> {
    let part = PartName::from(outbox);
    let name = Name::Outbox(part);
    let bytes = storage.read(&name.to_string()).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            StoreError::damaged(name, 0, "it is missing, although the commit record names it")
        } else {
            StoreError::io("read", name)(error)
        }
    })?;
    let mut outbox = Outbox::open(outbox, bytes)?;
    for row in decisions {
        let name = Name::Decision(part, *row).to_string();
        let bytes = storage.read(&name).map_err(StoreError::io("read", &name))?;
        outbox.decisions.insert(*row, DecisionBody::decode(part, *row, &bytes)?);
    }
    Ok(outbox)
}

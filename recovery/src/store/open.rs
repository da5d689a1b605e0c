//! A start: whose store is it, who is in charge, what do we go on from. [`super::claim`] has the two halves of the last two.

use super::publisher::Publisher;
use super::{Claim, ResumeState, drive};
use crate::format::StoreBody;
use crate::lease::{self, Lease, LeaseView};
use crate::names::{COMMITS, Folder, LEASES, OUTBOXES, SEGMENTS, STORE};
use crate::steps::StepTable;
use crate::storage::Storage;
use crate::{ClusterShape, FlowFingerprint, Generation, RunId, Slot, StoreError, StoreId};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What process 0 says of itself and of its flow when it opens a store.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Name of the flow.
    pub flow: String,
    /// Hash of what shapes the flow's state; kept in the records for people.
    pub fingerprint: FlowFingerprint,
    /// The steps that keep rows.
    pub steps: StepTable,
    /// This start; drawn at random. The store's own id and the nonce come from it too.
    pub run: RunId,
    /// The host, for messages.
    pub host: String,
    /// The build, for messages.
    pub build: String,
    /// Processes and workers.
    pub shape: ClusterShape,
    /// Transactional identities that this generation may use.
    pub slots: Vec<Slot>,
    /// A holder whose counter stands still for twice this long is dead.
    pub peer_timeout: Duration,
    /// How long a full or failing disk is tried again.
    pub store_timeout: Duration,
    /// `--allow-dropped-state`: state of steps that the flow does not have any more is given up.
    pub allow_dropped_state: bool,
    /// `--allow-older-snapshot`: a damaged newest record is moved aside, and the one before is used.
    pub allow_older_snapshot: bool,
}

/// A store that this process 0 is in charge of.
#[derive(Debug)]
pub struct Opened {
    /// What to go on from; the other processes need it too.
    pub resume: ResumeState,
    /// The lease: keep it, renew it, look at it before every commit cycle.
    pub lease: Arc<Lease>,
    /// Publishes this generation's commit records.
    pub publisher: Publisher,
}

/// A recovery store, opened or not.
#[derive(Clone, Debug)]
pub struct RecoveryStore {
    storage: Arc<dyn Storage>,
}

impl RecoveryStore {
    /// The store on this storage.
    pub fn new(storage: Arc<dyn Storage>) -> RecoveryStore {
        RecoveryStore { storage }
    }

    /// The storage.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The start of process 0. `previous` is the lease of this process's own last generation, which a rejoin still
    /// holds. Blocks for up to two `peer_timeout`s while another holder may be dead.
    ///
    /// # Errors
    ///
    /// `STORE_MISMATCH`, `STATE_MISMATCH` and `STATE_VERSION_UNSUPPORTED` when the flow does not fit the store,
    /// `CLUSTER_ALREADY_RUNNING` when its holder lives, `LEASE_LOST` when a newer start overtook this one,
    /// `STORE_DAMAGED` with file and offset, and whatever the disk says.
    pub fn open(&self, options: &OpenOptions, previous: Option<&Lease>) -> Result<Opened, StoreError> {
        let mut claim = self.claim(options, previous)?;
        claim.choose()?;
        claim.open()
    }

    /// The first half of [`RecoveryStore::open`]: the lease is taken, durably, and no record is chosen yet. Blocks as `open` does.
    ///
    /// # Errors
    ///
    /// As [`RecoveryStore::open`]; what is wrong with the records shows when one is chosen.
    pub fn claim(&self, options: &OpenOptions, previous: Option<&Lease>) -> Result<Claim, StoreError> {
        let storage = &*self.storage;
        for folder in ["", LEASES, SEGMENTS, OUTBOXES, COMMITS] {
            storage.make_folder(folder).map_err(StoreError::io("make the folder", shown(storage, folder)))?;
        }
        let store = self.identify(options)?;
        Claim::take(self.storage.clone(), options, store, previous)
    }

    /// The start of every other process: checks that it sees the store that process 0 sees.
    ///
    /// # Errors
    ///
    /// `STORE_NOT_SHARED`, or what the disk says.
    pub fn join(&self, resume: &ResumeState) -> Result<(), StoreError> {
        let storage = &*self.storage;
        let not_shared = |what: String| StoreError::NotShared { store: storage.place(), what };
        let body = match storage.read(STORE) {
            Ok(bytes) => StoreBody::decode(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(not_shared("there is no store here".to_owned()));
            }
            Err(error) => return Err(StoreError::io("read", shown(storage, STORE))(error)),
        };
        if body.store != resume.store {
            let what = format!("it has the id {}, process 0 says {}", body.store, resume.store);
            return Err(not_shared(what));
        }
        match lease::read(storage, resume.generation())? {
            Some(found) if found.body.holder == resume.lease => Ok(()),
            Some(found) => Err(not_shared(format!(
                "lease {} was written by run {}, process 0 is run {}",
                resume.generation(),
                found.body.holder.run,
                resume.lease.run
            ))),
            None => Err(not_shared(format!("the lease {} of this start is not here", resume.generation()))),
        }
    }

    /// For a process that looks at the lease before a commit cycle.
    pub fn lease_view(&self, generation: Generation) -> LeaseView {
        LeaseView::new(self.storage.clone(), generation)
    }

    /// What store this is.
    ///
    /// # Errors
    ///
    /// When there is none, or what the disk says.
    pub(super) fn body(&self) -> Result<StoreBody, StoreError> {
        let storage = &*self.storage;
        let bytes = storage.read(STORE).map_err(StoreError::io("read", shown(storage, STORE)))?;
        StoreBody::decode(&bytes)
    }

    /// Reads `STORE`, or makes it.
    fn identify(&self, options: &OpenOptions) -> Result<StoreId, StoreError> {
        let storage = &*self.storage;
        let bytes = match storage.read(STORE) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.make(options)?,
            Err(error) => return Err(StoreError::io("read", shown(storage, STORE))(error)),
        };
        let body = StoreBody::decode(&bytes)?;
        // Visible is not yet durable.
        storage.sync_file(STORE).map_err(StoreError::io("sync", shown(storage, STORE)))?;
        storage.sync_folder("").map_err(StoreError::io("sync", shown(storage, "")))?;
        if body.flow != options.flow {
            return Err(StoreError::Mismatch {
                store: storage.place(),
                found: body.flow,
                wanted: options.flow.clone(),
            });
        }
        Ok(body.store)
    }

    fn make(&self, options: &OpenOptions) -> Result<Vec<u8>, StoreError> {
        let storage = &*self.storage;
        for folder in [Folder::Leases, Folder::Commits] {
            if let Some(name) = drive::list(storage, folder)?.first() {
                // Another first start may have been faster.
                if let Ok(bytes) = storage.read(STORE) {
                    return Ok(bytes);
                }
                return Err(StoreError::damaged(
                    STORE,
                    0,
                    format!("it is missing, although {name} is there"),
                ));
            }
        }
        let body = StoreBody { store: store_id(options.run), flow: options.flow.clone() };
        let temp = format!("{STORE}.{}.tmp", options.run);
        let failed = |operation| StoreError::io(operation, shown(storage, &temp));
        let mut file = storage.create(&temp).map_err(failed("create"))?;
        file.write(&body.encode()?).map_err(failed("write"))?;
        file.sync().map_err(failed("sync"))?;
        drop(file);
        // When another start was faster, its store is the store.
        storage.link(&temp, STORE).map_err(StoreError::io("create", shown(storage, STORE)))?;
        storage.remove(&temp).map_err(failed("remove"))?;
        storage.read(STORE).map_err(StoreError::io("read", shown(storage, STORE)))
    }
}

/// A file with the place of its store, for messages.
pub(crate) fn shown(storage: &dyn Storage, name: &str) -> String {
    let place = storage.place();
    if name.is_empty() { place } else { format!("{place}/{name}") }
}

/// A new store's id, from the start that makes it: as random as the start is.
fn store_id(run: RunId) -> StoreId {
    StoreId(xxhash_rust::xxh3::xxh3_128_with_seed(&run.0.to_le_bytes(), 0x5744))
}

//! A start: whose store is it, who is in charge, what do we go on from.
//!
//! The order of things is [`crate::protocol::start`]'s; here are the disk, the clock and the messages.

use super::ResumeState;
use super::chosen::{self, Chosen};
use super::drive::{self, perform};
use super::publisher::Publisher;
use crate::format::StoreBody;
use crate::format::lease::{LeaseBody, LeaseFile};
use crate::lease::{self, Lease, LeaseHolder, LeaseView, LeaseWatch, Sighting, TakeOver};
use crate::names::{COMMITS, Folder, LEASES, Name, SEGMENTS, STORE};
use crate::protocol::start::StartMachine;
use crate::protocol::{Action, Event, Fence, Rules};
use crate::steps::StepTable;
use crate::storage::{Storage, StorageLock};
use crate::{ClusterShape, FlowFingerprint, Generation, RunId, Slot, StoreError, StoreId};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
        let storage = &*self.storage;
        for folder in ["", LEASES, SEGMENTS, COMMITS] {
            storage.make_folder(folder).map_err(StoreError::io("make the folder", shown(storage, folder)))?;
        }
        let store = self.identify(options)?;
        let mut start = Start::new(self.storage.clone(), options, store, previous);
        let chosen = start.run()?;
        let lease = Arc::new(start.into_lease()?);
        let resume = self.resume_state(options, &lease, chosen.as_ref())?;
        let publisher = Publisher::new(
            self.storage.clone(),
            lease.clone(),
            options.fingerprint,
            options.store_timeout,
            &resume,
        );
        tracing::info!(
            generation = %resume.generation(),
            record = ?resume.record.map(|record| record.0),
            epoch = %resume.epoch,
            segments = resume.segments.len(),
            "opened the recovery store {}",
            storage.place()
        );
        Ok(Opened { resume, lease, publisher })
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

    fn resume_state(
        &self,
        options: &OpenOptions,
        lease: &Lease,
        chosen: Option<&Chosen>,
    ) -> Result<ResumeState, StoreError> {
        let storage = &*self.storage;
        let record = chosen.map(|chosen| &chosen.record);
        let epoch = record.map_or(crate::Epoch(0), |record| record.epoch);
        let stored = record.map_or(&[][..], |record| &record.steps);
        for step in stored {
            let id = &step.shape.id;
            let supported = options.steps.number(id).and_then(|number| options.steps.get(number));
            if let Some(supported) = supported
                && step.shape.version > supported.version
            {
                return Err(StoreError::StateVersion {
                    store: storage.place(),
                    step: id.to_string(),
                    found: step.shape.version,
                    supported: supported.version,
                });
            }
        }
        let (steps, differences) =
            crate::steps::compare(stored, &options.steps, epoch, options.allow_dropped_state);
        if !differences.is_empty() {
            return Err(StoreError::StepsChanged { store: storage.place(), differences });
        }
        let (mut slots, unreadable_leases) = chosen::slots(storage, lease.generation())?;
        slots.extend(record.map_or(&[][..], |record| &record.slots));
        slots.sort_unstable();
        slots.dedup();
        Ok(ResumeState {
            store: lease.store(),
            lease: lease.holder().clone(),
            record: record.map(|record| record.number),
            epoch,
            recorded_by: record.map(|record| record.generation),
            recorded_shape: record.map(|record| record.shape),
            offsets: record.map(|record| record.offsets.clone()).unwrap_or_default(),
            segments: record.map(|record| record.segments.clone()).unwrap_or_default(),
            steps,
            slots,
            unreadable_leases,
        })
    }
}

/// The shell of [`StartMachine`].
struct Start<'a> {
    storage: Arc<dyn Storage>,
    options: &'a OpenOptions,
    store: StoreId,
    previous: Option<&'a Lease>,
    machine: StartMachine,
    watch: LeaseWatch,
    lease: Option<(LeaseBody, usize, Box<dyn StorageLock>)>,
}

impl<'a> Start<'a> {
    fn new(
        storage: Arc<dyn Storage>,
        options: &'a OpenOptions,
        store: StoreId,
        previous: Option<&'a Lease>,
    ) -> Start<'a> {
        // Two starts that run at the same time write different temporary files.
        let machine = StartMachine::new(Rules::ALL, options.run.0 as u32);
        let watch = LeaseWatch::new(options.peer_timeout);
        Start { storage, options, store, previous, machine, watch, lease: None }
    }

    fn run(&mut self) -> Result<Option<Chosen>, StoreError> {
        let mut event = Event::Go;
        loop {
            let action = self.machine.on(event);
            event = match &action {
                Action::TakeOver(None) => Event::Done,
                Action::TakeOver(Some(newest)) => {
                    self.wait_for(*newest)?;
                    Event::Done
                }
                Action::Write(Name::LeaseTemp(generation, _)) => {
                    self.write_lease(&action, *generation)?;
                    Event::Done
                }
                Action::Read(number) => match drive::read_record(&*self.storage, *number) {
                    Ok(Some(record)) if record.store != self.store => {
                        let what =
                            format!("it belongs to the store {}, this is {}", record.store, self.store);
                        return Err(StoreError::damaged(Name::Record(*number), 0, what));
                    }
                    Ok(Some(record)) => Event::Record(record.facts()),
                    Ok(None) => Event::Missing,
                    Err(damage @ StoreError::Damaged { .. }) => {
                        let action = self.machine.on(Event::Damaged);
                        debug_assert!(matches!(action, Action::Unusable(_)), "{action:?}");
                        chosen::move_aside(
                            &*self.storage,
                            self.options,
                            *number,
                            self.machine.generation(),
                            damage,
                        )?;
                        Event::Done
                    }
                    Err(error) => return Err(error),
                },
                Action::Lost(name) => {
                    let damage = StoreError::damaged(
                        name,
                        0,
                        "it is missing, although the newest commit record names it",
                    );
                    let Some(number) = self.machine.chosen() else { return Err(damage) };
                    chosen::move_aside(
                        &*self.storage,
                        self.options,
                        number,
                        self.machine.generation(),
                        damage,
                    )?;
                    Event::Done
                }
                Action::Resume(None) => return Ok(None),
                Action::Resume(Some(facts)) => {
                    match chosen::check(&*self.storage, self.options, facts.number) {
                        Ok(chosen) => return Ok(Some(chosen)),
                        Err(damage @ StoreError::Damaged { .. }) => {
                            chosen::move_aside(
                                &*self.storage,
                                self.options,
                                facts.number,
                                self.machine.generation(),
                                damage,
                            )?;
                            self.machine.again();
                            Event::Done
                        }
                        Err(error) => return Err(error),
                    }
                }
                Action::Fenced(Fence::Lease(newer)) => {
                    return Err(lease::lost(&*self.storage, self.machine.generation(), *newer));
                }
                _ => perform(&*self.storage, &action, &[])?,
            };
        }
    }

    fn holder(&self, generation: Generation) -> LeaseHolder {
        LeaseHolder {
            generation,
            run: self.options.run,
            host: self.options.host.clone(),
            pid: std::process::id(),
            shape: self.options.shape,
            slots: self.options.slots.clone(),
            build: self.options.build.clone(),
        }
    }

    /// Returns once the holder of lease `newest` is known to be dead, or is ourselves.
    fn wait_for(&mut self, newest: Generation) -> Result<(), StoreError> {
        if self.previous.is_some_and(|lease| lease.generation() == newest) {
            return Ok(());
        }
        let name = Name::Lease(newest).to_string();
        let mut said = false;
        loop {
            let locked = match self.storage.lock(&name) {
                Ok(lock) => lock.is_none(),
                // Retention of a newer generation took it: the creation of ours will fail, and we look again.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(StoreError::io("lock", name)(error)),
            };
            let found = match lease::read(&*self.storage, newest) {
                Ok(found) => found,
                // Its holder cannot be named, but its lock and its silence still speak.
                Err(StoreError::Damaged { .. }) => None,
                Err(error) => return Err(error),
            };
            let counter = found.as_ref().and_then(|lease| lease.counter);
            match self.watch.on(Sighting { generation: newest, locked, counter }, Instant::now()) {
                TakeOver::Now => return Ok(()),
                TakeOver::LookAgain(wait) => {
                    if !said {
                        said = true;
                        tracing::info!(generation = %newest, "the lease is locked, waiting to see whether its holder lives");
                    }
                    std::thread::sleep(wait);
                }
                TakeOver::Refused => {
                    let own = self.holder(newest.next());
                    let holder = found.map_or_else(|| self.holder(newest), |lease| lease.body.holder);
                    return Err(StoreError::AlreadyRunning {
                        store: self.storage.place(),
                        holder: Box::new(holder),
                        own: Box::new(own),
                    });
                }
            }
        }
    }

    /// Writes the lease under its temporary name and locks it there: it is never seen without its lock.
    fn write_lease(&mut self, action: &Action, generation: Generation) -> Result<(), StoreError> {
        let body = LeaseBody { store: self.store, holder: self.holder(generation) };
        let bytes = LeaseFile { body: body.clone(), counter: Some(0) }.encode()?;
        perform(&*self.storage, action, &[&bytes])?;
        let Action::Write(name) = action else {
            return Err(StoreError::Internal(format!("{action:?} writes no lease")));
        };
        let name = name.to_string();
        let lock = self.storage.lock(&name).map_err(StoreError::io("lock", &name))?;
        let Some(lock) = lock else {
            return Err(StoreError::Internal(format!("another process locked {name}")));
        };
        self.lease = Some((body, bytes.len(), lock));
        Ok(())
    }

    fn into_lease(self) -> Result<Lease, StoreError> {
        let Some((body, length, lock)) = self.lease else {
            return Err(StoreError::Internal("a start went on without a lease".to_owned()));
        };
        Ok(Lease::new(self.storage, body, length, self.options.peer_timeout, lock))
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

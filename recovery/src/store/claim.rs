//! The lease is taken, and then the record is chosen: the two halves of a start of process 0.
//!
//! Between them the transactional identities of older generations are fenced ([`crate::exactly_once::OutputStart`]): what they
//! could publish before that, the highest record knows of; afterwards they can publish nothing.

use super::ResumeState;
use super::chosen::{self, Chosen};
use super::drive::{self, perform};
use super::open::{OpenOptions, Opened};
use super::publisher::Publisher;
use crate::format::lease::{LeaseBody, LeaseFile};
use crate::format::outbox::{DecisionBody, Outbox};
use crate::lease::{self, Lease, LeaseHolder, LeaseWatch, Sighting, TakeOver};
use crate::names::{Folder, Name};
use crate::outbox::Decision;
use crate::protocol::start::StartMachine;
use crate::protocol::{Action, Event, Fence, Rules, highest_record};
use crate::storage::{Storage, StorageLock};
use crate::{Generation, Slot, StoreError, StoreId};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// A start that holds the lease, durably. It is the shell of `StartMachine`.
#[derive(Debug)]
pub struct Claim {
    storage: Arc<dyn Storage>,
    options: OpenOptions,
    store: StoreId,
    machine: StartMachine,
    lease: Option<(LeaseBody, usize, Box<dyn StorageLock>)>,
    resume: Option<ResumeState>,
}

impl Claim {
    /// Takes the lease; `previous` is the one that a rejoin still holds.
    pub(crate) fn take(
        storage: Arc<dyn Storage>,
        options: &OpenOptions,
        store: StoreId,
        previous: Option<&Lease>,
    ) -> Result<Claim, StoreError> {
        // Two starts that run at the same time write different temporary files.
        let machine = StartMachine::new(Rules::ALL, options.run.0 as u32);
        let mut watch = LeaseWatch::new(options.peer_timeout);
        let options = options.clone();
        let mut claim = Claim { storage, options, store, machine, lease: None, resume: None };
        let mut event = Event::Go;
        loop {
            let action = claim.machine.on(event);
            event = match &action {
                Action::TakeOver(None) => Event::Done,
                Action::TakeOver(Some(newest)) => {
                    claim.wait_for(*newest, previous, &mut watch)?;
                    Event::Done
                }
                Action::Write(Name::LeaseTemp(generation, _)) => {
                    claim.write_lease(&action, *generation)?;
                    Event::Done
                }
                Action::Fence => return Ok(claim),
                _ => perform(&*claim.storage, &action, &[])?,
            };
        }
    }

    /// The store.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// This generation.
    pub fn generation(&self) -> Generation {
        self.machine.generation()
    }

    /// Every slot that an older generation may use: those of all listed leases, and those that the highest record names.
    ///
    /// # Errors
    ///
    /// `STORE_DAMAGED` when a lease cannot be read, so that its slots are not known, or what the disk says.
    pub fn slots(&self) -> Result<Vec<Slot>, StoreError> {
        let storage = &*self.storage;
        let (mut slots, unreadable) = chosen::slots(storage, self.generation())?;
        if let Some(generation) = unreadable.first() {
            let what = "it cannot be read, so that the slots of its generation are not known; remove it once all of \
                        that generation's processes are known to be gone";
            return Err(StoreError::damaged(Name::Lease(*generation), 0, what));
        }
        let highest = highest_record(&drive::list(storage, Folder::Commits)?);
        // One that is damaged is a matter for the choice.
        if let Some(Ok(Some(record))) = highest.map(|number| drive::read_record(storage, number)) {
            slots.extend(&record.slots);
            slots.extend(record.outboxes.iter().map(|outbox| outbox.slot));
        }
        slots.sort_unstable();
        slots.dedup();
        Ok(slots)
    }

    /// The topics that outboxes in the store write to, those included to which a person sent a row: a flow that was changed since
    /// need not have them.
    ///
    /// # Errors
    ///
    /// What the disk says. What cannot be read names no topic; whether that matters shows when it is published.
    pub fn output_topics(&self) -> Result<Vec<String>, StoreError> {
        let storage = &*self.storage;
        let mut topics = BTreeSet::new();
        for name in drive::list(storage, Folder::Outboxes)? {
            let read = || storage.read(&name.to_string()).map_err(StoreError::io("read", name));
            match name {
                Name::Outbox(part) => topics.extend(Outbox::topics(part, &read()?).unwrap_or_default()),
                Name::Decision(part, row) => {
                    if let Ok(Decision::DeadLetter { topic }) = DecisionBody::decode(part, row, &read()?) {
                        topics.insert(topic);
                    }
                }
                _ => {}
            }
        }
        Ok(topics.into_iter().collect())
    }

    /// Chooses the highest commit record *now*, and makes durable what it names. May be called again: the last choice counts.
    ///
    /// # Errors
    ///
    /// As [`super::RecoveryStore::open`].
    pub fn choose(&mut self) -> Result<&ResumeState, StoreError> {
        if self.resume.take().is_some() {
            self.machine.again();
        }
        let chosen = self.run()?;
        let resume = self.resume_state(chosen.as_ref())?;
        Ok(self.resume.insert(resume))
    }

    /// The store, with the record that was chosen last.
    ///
    /// # Errors
    ///
    /// When none was chosen.
    pub fn open(self) -> Result<Opened, StoreError> {
        let (Some((body, length, lock)), Some(resume)) = (self.lease, self.resume) else {
            return Err(StoreError::Internal(
                "a store was to be opened before a record was chosen".to_owned(),
            ));
        };
        let lease = Arc::new(Lease::new(self.storage.clone(), body, length, self.options.peer_timeout, lock));
        let publisher = Publisher::new(
            self.storage.clone(),
            lease.clone(),
            self.options.fingerprint,
            self.options.store_timeout,
            &resume,
        );
        tracing::info!(
            generation = %resume.generation(),
            record = ?resume.record.map(|record| record.0),
            epoch = %resume.epoch,
            segments = resume.segments.len(),
            outboxes = resume.outboxes.len(),
            "opened the recovery store {}",
            self.storage.place()
        );
        Ok(Opened { resume, lease, publisher })
    }

    /// Goes on from the fence to the record.
    fn run(&mut self) -> Result<Option<Chosen>, StoreError> {
        let mut event = Event::Done;
        loop {
            let action = self.machine.on(event);
            event = match &action {
                Action::Fence => Event::Done,
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
                            &self.options,
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
                        &self.options,
                        number,
                        self.machine.generation(),
                        damage,
                    )?;
                    Event::Done
                }
                Action::Resume(None) => return Ok(None),
                Action::Resume(Some(facts)) => {
                    match chosen::check(&*self.storage, &self.options, facts.number) {
                        Ok(chosen) => return Ok(Some(chosen)),
                        Err(damage @ StoreError::Damaged { .. }) => {
                            chosen::move_aside(
                                &*self.storage,
                                &self.options,
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
    fn wait_for(
        &self,
        newest: Generation,
        previous: Option<&Lease>,
        watch: &mut LeaseWatch,
    ) -> Result<(), StoreError> {
        if previous.is_some_and(|lease| lease.generation() == newest) {
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
            match watch.on(Sighting { generation: newest, locked, counter }, Instant::now()) {
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

    fn resume_state(&self, chosen: Option<&Chosen>) -> Result<ResumeState, StoreError> {
        let (storage, options) = (&*self.storage, &self.options);
        let record = chosen.map(|chosen| &chosen.record);
        let holder = self.holder(self.machine.generation());
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
        let (mut slots, unreadable_leases) = chosen::slots(storage, holder.generation)?;
        slots.extend(record.map_or(&[][..], |record| &record.slots));
        slots.sort_unstable();
        slots.dedup();
        Ok(ResumeState {
            store: self.store,
            lease: holder,
            record: record.map(|record| record.number),
            epoch,
            recorded_by: record.map(|record| record.generation),
            recorded_shape: record.map(|record| record.shape),
            offsets: record.map(|record| record.offsets.clone()).unwrap_or_default(),
            topics: record.map(|record| record.topics.clone()).unwrap_or_default(),
            segments: record.map(|record| record.segments.clone()).unwrap_or_default(),
            outboxes: record.map(|record| record.outboxes.clone()).unwrap_or_default(),
            steps,
            slots,
            unreadable_leases,
        })
    }
}

//! The thread that publishes this process's outboxes.
//!
//! It is told what is written, what is durable and what the other slots have published, feeds the machine, and performs
//! what the machine asks for. While an action waits for the broker, what it is told queues up; it is all taken in before
//! the next action, so that a transaction carries the newest offsets that it may.

use super::waiting::Leaving;
use super::{Performer, PerformerSettings, fault_of_stop, nonce};
use crate::snapshots::StoreThreads;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_operators::commit::{OutputIo, PublicationNews};
use tidegate_operators::fault::Fault;
use tidegate_recovery::exactly_once::{Action, Answer, Event, SlotPublisher, SlotSettings};
use tidegate_recovery::{
    Epoch, ErrorClass, NextOffset, OutboxRef, Part, RecoveryStore, ResumeState, Slot, TopicPartition,
};
use timely::scheduling::SyncActivator;

/// Where partitions go on.
type Offsets = Vec<(TopicPartition, NextOffset)>;

/// What the thread is told.
enum Told {
    /// A part of this process is written: its outbox, and where partitions go on.
    Part(Epoch, Option<OutboxRef>, Offsets),
    /// The epoch is durable.
    Durable(Epoch),
    /// Another slot has published everything up to this epoch.
    Peer(Slot, Epoch),
    /// No further commit epoch will come.
    Last,
}

/// What the dataflow sees of the thread.
#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    changed: Condvar,
    /// What the thread was told so far.
    told: AtomicU64,
    leaving: Leaving,
}

#[derive(Default)]
struct Seen {
    ready: bool,
    news: Vec<PublicationNews>,
    failure: Option<Fault>,
    /// What was taken in when the machine was settled last.
    settled_at: Option<u64>,
    wake: Option<SyncActivator>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        let mut seen = self.lock();
        change(&mut seen);
        if let Some(activator) = &seen.wake {
            // A worker that is gone needs no waking.
            let _ = activator.activate();
        }
        self.changed.notify_all();
    }
}

/// What a publication begins with.
pub(crate) struct PublicationSettings {
    pub(crate) performer: PerformerSettings,
    /// So long after its last commit an idle group is told again what it has.
    pub(crate) keepalive: Duration,
    pub(crate) store: RecoveryStore,
    pub(crate) slot: Slot,
    /// The group's offsets of the partitions that this process reads.
    pub(crate) group: Offsets,
    /// The same partitions, each where the state goes on.
    pub(crate) resumed: Offsets,
}

/// The publication of one process; dropping it ends the thread without ending a transaction.
pub(crate) struct Publication {
    shared: Arc<Shared>,
    told: Sender<Told>,
    slot: Slot,
    slots: Vec<Slot>,
}

impl Publication {
    /// Starts the thread, which initialises the slot's producer; the barrier was passed.
    pub(crate) fn start(settings: PublicationSettings, resume: &ResumeState) -> Result<Publication, Fault> {
        let PublicationSettings { performer, keepalive, store, slot, group, resumed } = settings;
        let shared = Arc::new(Shared::default());
        let lease = store.lease_view(resume.generation());
        let slots = resume.lease.slots.clone();
        let machine = SlotPublisher::new(SlotSettings {
            store: resume.store,
            generation: resume.generation(),
            slot,
            slots: slots.clone(),
            resumed: resume.epoch,
            offsets: resumed,
            group,
            nonce: nonce()?,
        });
        let (told, hears) = channel();
        let (of_thread, store_id) = (Arc::clone(&shared), resume.store);
        // The performer is made where it works: a producer never changes its thread.
        let work = move || {
            let leaving = of_thread.leaving.clone();
            let thread = Thread {
                performer: Performer::new(performer, store, store_id, lease, None, leaving),
                machine,
                shared: of_thread,
                parts: BTreeMap::new(),
                actions: VecDeque::new(),
                taken: 0,
                keepalive,
                committed_at: Instant::now(),
            };
            thread.run(&hears);
        };
        std::thread::Builder::new()
            .name("publication".into())
            .spawn(work)
            .map_err(|error| Fault::new(ErrorClass::Internal, format!("cannot start a thread: {error}")))?;
        Ok(Publication { shared, told, slot, slots })
    }

    /// Waits until the producer is initialised and the slot's marker is read.
    pub(crate) fn wait_until_ready(&self, within: Duration) -> Result<(), Fault> {
        let end = Instant::now() + within;
        let mut seen = self.shared.lock();
        loop {
            if let Some(fault) = &seen.failure {
                return Err(fault.clone());
            }
            if seen.ready {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Fault::new(
                    ErrorClass::Unavailable,
                    "the transactional producer could not be initialised in time",
                ));
            }
            seen = self.shared.changed.wait_timeout(seen, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Who tells this publication of the parts that are written.
    pub(crate) fn on_part(&self) -> crate::snapshots::OnPart {
        let (shared, told) = (Arc::clone(&self.shared), self.told.clone());
        Box::new(move |epoch, part: &Part| {
            tell(&shared, &told, Told::Part(epoch, part.outbox.clone(), part.offsets.clone()));
        })
    }

    /// What the dataflow sees of it; `records` writes the commit records.
    pub(crate) fn into_io(self, records: Arc<StoreThreads>) -> Arc<dyn OutputIo> {
        Arc::new(PublicationIo { publication: self, records })
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        self.shared.leaving.leave();
    }
}

fn tell(shared: &Shared, to: &Sender<Told>, what: Told) {
    shared.told.fetch_add(1, Ordering::SeqCst);
    // A thread that has ended has left its reason behind.
    let _ = to.send(what);
}

struct PublicationIo {
    publication: Publication,
    records: Arc<StoreThreads>,
}

impl PublicationIo {
    fn tell(&self, what: Told) {
        tell(&self.publication.shared, &self.publication.told, what);
    }
}

impl OutputIo for PublicationIo {
    fn wake_with(&self, activator: SyncActivator) {
        self.publication.shared.lock().wake = Some(activator);
    }

    fn slots(&self) -> Vec<Slot> {
        self.publication.slots.clone()
    }

    fn own(&self) -> Slot {
        self.publication.slot
    }

    fn durable(&self, epoch: Epoch) {
        self.tell(Told::Durable(epoch));
    }

    fn peer_published(&self, slot: Slot, epoch: Epoch) {
        self.tell(Told::Peer(slot, epoch));
    }

    fn last(&self) {
        self.tell(Told::Last);
    }

    fn news(&self) -> Result<Vec<PublicationNews>, Fault> {
        let mut seen = self.publication.shared.lock();
        match &seen.failure {
            Some(fault) => Err(fault.clone()),
            None => Ok(std::mem::take(&mut seen.news)),
        }
    }

    fn is_settled(&self) -> bool {
        let shared = &self.publication.shared;
        shared.lock().settled_at == Some(shared.told.load(Ordering::SeqCst))
    }

    fn forget(&self, slot: Slot, epoch: Epoch) {
        self.records.output_published(slot, epoch);
    }
}

/// The thread's own side.
struct Thread {
    performer: Performer,
    machine: SlotPublisher,
    shared: Arc<Shared>,
    /// Parts that are written and not known to be durable.
    parts: BTreeMap<Epoch, (Option<OutboxRef>, Offsets)>,
    actions: VecDeque<Action>,
    /// What was taken in so far.
    taken: u64,
    keepalive: Duration,
    /// When the group was told something last.
    committed_at: Instant,
}

impl Thread {
    fn run(mut self, hears: &Receiver<Told>) {
        if let Err(fault) = self.work(hears) {
            self.shared.change(|seen| seen.failure = Some(fault));
        }
    }

    /// Until the process lets go of the publication, or something ends it.
    fn work(&mut self, hears: &Receiver<Told>) -> Result<(), Fault> {
        self.actions.extend(self.machine.on(Event::Go));
        loop {
            loop {
                match hears.try_recv() {
                    Ok(told) => self.take_in(told),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Ok(()),
                }
            }
            match self.actions.pop_front() {
                Some(action) => self.act(action)?,
                None => {
                    let settled_at = self.machine.is_settled().then_some(self.taken);
                    self.shared.change(|seen| seen.settled_at = settled_at);
                    let left = self.keepalive.saturating_sub(self.committed_at.elapsed());
                    match hears.recv_timeout(left) {
                        Ok(told) => self.take_in(told),
                        Err(RecvTimeoutError::Disconnected) => return Ok(()),
                        Err(RecvTimeoutError::Timeout) => {
                            // When nothing comes of it, it is time again an interval later.
                            self.committed_at = Instant::now();
                            self.actions.extend(self.machine.on(Event::KeepAlive));
                        }
                    }
                }
            }
        }
    }

    fn take_in(&mut self, told: Told) {
        self.taken += 1;
        match told {
            Told::Part(epoch, outbox, offsets) => {
                self.parts.insert(epoch, (outbox, offsets));
            }
            Told::Durable(epoch) => {
                let (outbox, offsets) = self.parts.remove(&epoch).unwrap_or_default();
                // Offsets wait for company only where output is about to be published.
                let quiet = outbox.is_none();
                self.actions.extend(self.machine.on(Event::Durable { epoch, outbox, offsets }));
                if quiet {
                    self.actions.extend(self.machine.on(Event::Quiet));
                }
            }
            Told::Peer(slot, epoch) => {
                self.actions.extend(self.machine.on(Event::PeerPublished { slot, epoch }));
            }
            Told::Last => {
                // The process ends when it is settled, and no transaction may be open then.
                self.keepalive = Duration::MAX;
                self.actions.extend(self.machine.on(Event::Quiet));
            }
        }
    }

    fn act(&mut self, action: Action) -> Result<(), Fault> {
        match action {
            Action::Ready => self.shared.change(|seen| seen.ready = true),
            Action::Announce { slot, epoch } => {
                self.shared.change(|seen| seen.news.push(PublicationNews::Published(slot, epoch)));
            }
            Action::Stop(stop) => return Err(fault_of_stop(&stop)),
            action => {
                let answer = self.performer.perform(&action)?;
                if matches!((&action, &answer), (Action::Commit(_), Answer::Done)) {
                    let carried = self.performer.carried();
                    if !carried.is_empty() {
                        self.committed_at = Instant::now();
                        self.shared.change(|seen| seen.news.push(PublicationNews::Committed(carried)));
                    }
                }
                self.actions.extend(self.machine.on(Event::Answer(answer)));
            }
        }
        Ok(())
    }
}

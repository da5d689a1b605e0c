//! The lease: which generation is in charge of a store.
//!
//! A generation's number is created exclusively and durably, and never used again. Its holder locks
//! the file and renews a counter in it, in place, three times per `peer_timeout`. A start takes the next number at
//! once when the lock is free, or when the counter stood still for two `peer_timeout`s (a frozen holder keeps its lock).
//!
//! The lease is a courtesy with a good message. What protects the store from a writer that froze after it
//! looked is the exclusive creation of commit records.

use crate::format::lease::{LeaseFile, counter_bytes, counter_offset};
use crate::names::{Folder, LEASES, Name};
use crate::protocol::highest_lease;
use crate::storage::{Storage, StorageLock};
use crate::{ClusterShape, Generation, RunId, Slot, StoreError, StoreId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Who holds, or wants to hold, a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHolder {
    /// The generation.
    pub generation: Generation,
    /// The start of process 0. It is also the nonce by which other processes know the store.
    pub run: RunId,
    /// The host of process 0.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Processes and workers.
    pub shape: ClusterShape,
    /// Transactional identities that the generation may use.
    pub slots: Vec<Slot>,
    /// The build of the binary.
    pub build: String,
}

impl fmt::Display for LeaseHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "generation {} on host {}, process id {}, {}, build {}, run {}",
            self.generation, self.host, self.pid, self.shape, self.build, self.run
        )
    }
}

/// Whether a generation is still in charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No newer lease is there.
    Mine,
    /// A newer generation took over.
    Lost(Generation),
}

/// Looks at leases without holding one: what every process does before a commit cycle.
#[derive(Clone, Debug)]
pub struct LeaseView {
    storage: Arc<dyn Storage>,
    generation: Generation,
}

impl LeaseView {
    /// The view of a process of `generation`.
    pub fn new(storage: Arc<dyn Storage>, generation: Generation) -> LeaseView {
        LeaseView { storage, generation }
    }

    /// Looks now.
    pub fn standing(&self) -> Result<Standing, StoreError> {
        Ok(match newest(&*self.storage)? {
            Some(newer) if newer > self.generation => Standing::Lost(newer),
            _ => Standing::Mine,
        })
    }

    /// `LEASE_LOST` when a newer generation took over.
    pub fn still_mine(&self) -> Result<(), StoreError> {
        match self.standing()? {
            Standing::Mine => Ok(()),
            Standing::Lost(newer) => Err(lost(&*self.storage, self.generation, newer)),
        }
    }
}

/// A lease that this process holds. Dropping it frees the lock; the file stays.
#[derive(Debug)]
pub struct Lease {
    view: LeaseView,
    holder: LeaseHolder,
    store: StoreId,
    counter_offset: u64,
    counter: AtomicU64,
    peer_timeout: Duration,
    _lock: Box<dyn StorageLock>,
}

impl Lease {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        body: crate::format::lease::LeaseBody,
        length: usize,
        peer_timeout: Duration,
        lock: Box<dyn StorageLock>,
    ) -> Lease {
        Lease {
            view: LeaseView::new(storage, body.holder.generation),
            store: body.store,
            holder: body.holder,
            counter_offset: counter_offset(length),
            counter: AtomicU64::new(0),
            peer_timeout,
            _lock: lock,
        }
    }

    /// The generation that it stands for.
    pub fn generation(&self) -> Generation {
        self.holder.generation
    }

    /// Who holds it.
    pub fn holder(&self) -> &LeaseHolder {
        &self.holder
    }

    /// The store.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// How often [`Lease::renew`] is to be called.
    pub fn renew_interval(&self) -> Duration {
        self.peer_timeout / 3
    }

    /// Moves the counter on, then looks whether a newer generation took over (`LEASE_LOST`).
    pub fn renew(&self) -> Result<(), StoreError> {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed) + 1;
        let name = Name::Lease(self.generation()).to_string();
        // A newer generation may have removed the file: then the look gives the better message.
        let renewed = self.view.storage.overwrite(&name, self.counter_offset, &counter_bytes(counter));
        self.still_mine()?;
        renewed.map_err(StoreError::io("renew the lease", &name))
    }

    /// `LEASE_LOST` when a newer generation took over.
    pub fn still_mine(&self) -> Result<(), StoreError> {
        self.view.still_mine()
    }

    /// A view for other threads.
    pub fn view(&self) -> LeaseView {
        self.view.clone()
    }

    /// Renews the lease on a thread of its own until the keeper is dropped. `lost` is called once: when a newer
    /// generation took over, or when the counter could not be moved for one `peer_timeout`.
    pub fn keep(
        self: &Arc<Lease>,
        lost: impl FnOnce(StoreError) + Send + 'static,
    ) -> Result<LeaseKeeper, StoreError> {
        let lease = self.clone();
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("lease".to_owned())
            .spawn(move || {
                let mut renewed = Instant::now();
                while stopped.recv_timeout(lease.renew_interval()) == Err(RecvTimeoutError::Timeout) {
                    match lease.renew() {
                        Ok(()) => renewed = Instant::now(),
                        Err(StoreError::Io { operation, file, source })
                            if renewed.elapsed() < lease.peer_timeout =>
                        {
                            tracing::warn!(generation = %lease.generation(), file, error = %source, "cannot {operation}, trying again");
                        }
                        Err(error) => return lost(error),
                    }
                }
            })
            .map_err(StoreError::io("start a thread for", LEASES))?;
        Ok(LeaseKeeper { stop: Some(stop), thread: Mutex::new(Some(thread)) })
    }
}

/// Renews a lease until it is dropped.
#[derive(Debug)]
pub struct LeaseKeeper {
    stop: Option<mpsc::Sender<()>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread that renews the lease panicked");
        }
    }
}

/// The newest lease of a store.
pub(crate) fn newest(storage: &dyn Storage) -> Result<Option<Generation>, StoreError> {
    let entries = storage.list(LEASES).map_err(StoreError::io("list", LEASES))?;
    let names: Vec<Name> = entries.iter().filter_map(|entry| Folder::Leases.parse(&entry.name)).collect();
    Ok(highest_lease(&names))
}

/// Reads a lease; `None` when it is gone.
pub(crate) fn read(storage: &dyn Storage, generation: Generation) -> Result<Option<LeaseFile>, StoreError> {
    let name = Name::Lease(generation).to_string();
    match storage.read(&name) {
        Ok(bytes) => LeaseFile::decode(&name, &bytes).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("read", name)(error)),
    }
}

/// The error of a generation that found a newer one, with its holder named.
pub(crate) fn lost(storage: &dyn Storage, own: Generation, newer: Generation) -> StoreError {
    let found = match read(storage, newer) {
        Ok(Some(lease)) => format!("{} holds it", lease.body.holder),
        // The message only gets shorter: what counts is that the lease is there.
        Ok(None) | Err(_) => format!("generation {newer} holds it"),
    };
    StoreError::LeaseLost { store: storage.place(), own, found }
}

/// What a start sees of the newest lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) generation: Generation,
    /// Somebody holds its lock.
    pub(crate) locked: bool,
    /// Its counter, `None` while it is being written.
    pub(crate) counter: Option<u64>,
}

/// What a start makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeOver {
    /// The next number may be taken.
    Now,
    /// Look again after this long.
    LookAgain(Duration),
    /// Its holder lives.
    Refused,
}

/// Decides whether the holder of the newest lease lives: pure, time is an argument.
#[derive(Clone, Debug)]
pub(crate) struct LeaseWatch {
    peer_timeout: Duration,
    seen: Option<(Generation, Option<u64>, Instant)>,
}

impl LeaseWatch {
    pub(crate) fn new(peer_timeout: Duration) -> LeaseWatch {
        LeaseWatch { peer_timeout, seen: None }
    }

    pub(crate) fn on(&mut self, sighting: Sighting, now: Instant) -> TakeOver {
        if !sighting.locked {
            return TakeOver::Now;
        }
        let still = 2 * self.peer_timeout;
        match self.seen {
            Some((generation, counter, since))
                if generation == sighting.generation && counter == sighting.counter =>
            {
                let stood = now.saturating_duration_since(since);
                if stood >= still {
                    return TakeOver::Now;
                }
                TakeOver::LookAgain((still - stood).min(self.peer_timeout / 6))
            }
            Some((generation, ..)) if generation == sighting.generation => TakeOver::Refused,
            _ => {
                self.seen = Some((sighting.generation, sighting.counter, now));
                TakeOver::LookAgain(self.peer_timeout / 6)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER_TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn a_free_lock_is_taken_at_once_and_a_counter_that_moves_refuses() {
        let now = Instant::now();
        let mut watch = LeaseWatch::new(PEER_TIMEOUT);
        let held = Sighting { generation: Generation(3), locked: true, counter: Some(7) };
        assert_eq!(watch.on(Sighting { locked: false, ..held }, now), TakeOver::Now);
        assert!(matches!(watch.on(held, now), TakeOver::LookAgain(_)));
        assert_eq!(watch.on(Sighting { counter: Some(8), ..held }, now), TakeOver::Refused);
    }

    #[test]
    fn a_counter_that_stood_still_for_two_peer_timeouts_is_dead_although_its_lock_is_held() {
        let start = Instant::now();
        let mut watch = LeaseWatch::new(PEER_TIMEOUT);
        let held = Sighting { generation: Generation(3), locked: true, counter: Some(7) };
        assert!(matches!(watch.on(held, start), TakeOver::LookAgain(_)));
        let almost = start + 2 * PEER_TIMEOUT - Duration::from_millis(1);
        assert_eq!(watch.on(held, almost), TakeOver::LookAgain(Duration::from_millis(1)));
        assert_eq!(watch.on(held, start + 2 * PEER_TIMEOUT), TakeOver::Now);
    }

    #[test]
    fn a_newer_lease_that_appears_meanwhile_is_watched_anew() {
        let start = Instant::now();
        let mut watch = LeaseWatch::new(PEER_TIMEOUT);
        let held = Sighting { generation: Generation(3), locked: true, counter: Some(7) };
        watch.on(held, start);
        let newer = Sighting { generation: Generation(4), ..held };
        assert!(matches!(watch.on(newer, start + 2 * PEER_TIMEOUT), TakeOver::LookAgain(_)));
    }
}

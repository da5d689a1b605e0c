//! A disk in memory that forgets: for crash tests here and in the crates that build on this one.
//!
//! The disk keeps what is durable and a list of what is not yet: written bytes until their file is synced,
//! names created or removed until their folder is. [`FaultyStorage::crash`] gives the disk that a machine finds after a
//! power cut: all of the unsynced entries lost, one of them, none, or the last write torn. Operations are counted; the
//! storage can stop at the k-th, answer with errors, wait, or freeze until a test lets it go on.
//!
//! Clones share everything. [`FaultyStorage::another_process`] shares the disk, with counters, faults and locks of its own.

use super::local::poison_error;
use super::{Entry, Storage, StorageFile, StorageLock, folder_of};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperationKind {
    /// Make a folder.
    MakeFolder,
    /// List a folder.
    List,
    /// Read a file, or a part of it.
    Read,
    /// Create a file, or empty it.
    Create,
    /// Append to a file.
    Write,
    /// Sync a file.
    SyncFile,
    /// Sync a folder.
    SyncFolder,
    /// Link a file.
    Link,
    /// Remove a file.
    Remove,
    /// Rename a file.
    Rename,
    /// Overwrite bytes in place.
    Overwrite,
    /// Lock a file.
    Lock,
}

impl OperationKind {
    /// Whether it changes the disk or makes a change durable: the operations that are counted.
    pub fn changes(self) -> bool {
        !matches!(self, OperationKind::List | OperationKind::Read | OperationKind::Lock)
    }
}

/// One operation, as a hook sees it before it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What it does.
    pub kind: OperationKind,
    /// To which name.
    pub name: String,
    /// Operations that change the disk before this one, of this process.
    pub count: u64,
}

/// What a hook makes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It happens.
    Proceed,
    /// It fails with this error and has no effect. A sync that fails closes the storage for writing.
    Fail(io::ErrorKind),
}

/// What a power cut leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Everything that was visible.
    KeepAll,
    /// Only what was synced.
    LoseAll,
    /// Everything but the n-th entry that was not synced.
    LoseOne(usize),
    /// Everything, but of the last bytes written only the first half.
    TearLast,
}

type Hook = Arc<dyn Fn(&Operation) -> Verdict + Send + Sync>;
type Inode = u64;

/// A disk in memory that loses what was not synced.
#[derive(Clone)]
pub struct FaultyStorage {
    disk: Arc<Mutex<Disk>>,
    process: Arc<Mutex<Process>>,
}

#[derive(Clone, Debug, Default)]
struct Disk {
    folders: BTreeSet<String>,
    /// What is visible.
    names: BTreeMap<String, Inode>,
    contents: BTreeMap<Inode, Vec<u8>>,
    /// What survives any crash.
    durable_names: BTreeMap<String, Inode>,
    durable_contents: BTreeMap<Inode, Vec<u8>>,
    /// What is not durable yet, in order.
    pending: Vec<Pending>,
    locks: BTreeMap<Inode, u64>,
    next: u64,
}

#[derive(Clone, Debug)]
enum Pending {
    Name { name: String, inode: Option<Inode> },
    Bytes { inode: Inode, offset: usize, bytes: Vec<u8> },
    Truncate { inode: Inode },
}

struct Process {
    id: u64,
    count: u64,
    stop_at: Option<u64>,
    poisoned: bool,
    hook: Option<Hook>,
    log: Option<Vec<Operation>>,
}

impl Process {
    fn new(id: u64) -> Arc<Mutex<Process>> {
        let process = Process { id, count: 0, stop_at: None, poisoned: false, hook: None, log: None };
        Arc::new(Mutex::new(process))
    }
}

impl Default for FaultyStorage {
    fn default() -> FaultyStorage {
        FaultyStorage::new()
    }
}

impl fmt::Debug for FaultyStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disk = locked(&self.disk);
        f.debug_struct("FaultyStorage")
            .field("files", &disk.names.len())
            .field("unsynced", &disk.pending.len())
            .finish_non_exhaustive()
    }
}

impl FaultyStorage {
    /// An empty disk.
    pub fn new() -> FaultyStorage {
        FaultyStorage::on(Disk::default())
    }

    fn on(mut disk: Disk) -> FaultyStorage {
        disk.next += 1;
        let id = disk.next;
        FaultyStorage { disk: Arc::new(Mutex::new(disk)), process: Process::new(id) }
    }

    /// The same disk, seen by another process.
    pub fn another_process(&self) -> FaultyStorage {
        let id = {
            let mut disk = locked(&self.disk);
            disk.next += 1;
            disk.next
        };
        FaultyStorage { disk: self.disk.clone(), process: Process::new(id) }
    }

    /// Operations of this process that changed the disk.
    pub fn operations(&self) -> u64 {
        locked(&self.process).count
    }

    /// From the `count`-th operation on (0 is the first) this process has died: every call fails without effect.
    pub fn stop_at(&self, count: u64) {
        locked(&self.process).stop_at = Some(count);
    }

    /// Whether this process died at [`FaultyStorage::stop_at`].
    pub fn stopped(&self) -> bool {
        let process = locked(&self.process);
        process.stop_at.is_some_and(|stop| process.count >= stop)
    }

    /// Calls `hook` before every operation of this process; it may wait, which delays the operation.
    pub fn set_hook(&self, hook: impl Fn(&Operation) -> Verdict + Send + Sync + 'static) {
        locked(&self.process).hook = Some(Arc::new(hook));
    }

    /// No hook any more.
    pub fn clear_hook(&self) {
        locked(&self.process).hook = None;
    }

    /// Keeps every operation from now on for [`FaultyStorage::take_log`].
    pub fn start_log(&self) {
        locked(&self.process).log = Some(Vec::new());
    }

    /// The operations since [`FaultyStorage::start_log`].
    pub fn take_log(&self) -> Vec<Operation> {
        locked(&self.process).log.take().unwrap_or_default()
    }

    /// Freezes this process at the first operation of this kind on a name that contains `part`, until
    /// [`FreezePoint::thaw`]. It takes the place of a hook.
    pub fn freeze_at(&self, kind: OperationKind, part: &str) -> FreezePoint {
        let point = FreezePoint { state: Arc::new((Mutex::new(Freeze::Armed), Condvar::new())) };
        let (mine, part) = (point.clone(), part.to_owned());
        self.set_hook(move |operation| {
            if operation.kind == kind && operation.name.contains(&part) {
                mine.stand_still();
            }
            Verdict::Proceed
        });
        point
    }

    /// How many entries are not durable.
    pub fn unsynced(&self) -> usize {
        locked(&self.disk).pending.len()
    }

    /// The disk that a machine finds after a power cut. This storage goes on as if nothing had happened.
    pub fn crash(&self, crash: Crash) -> FaultyStorage {
        let disk = locked(&self.disk);
        let mut after = Disk {
            folders: disk.folders.clone(),
            names: disk.durable_names.clone(),
            contents: disk.durable_contents.clone(),
            next: disk.next,
            ..Disk::default()
        };
        let last = disk.pending.iter().rposition(|entry| matches!(entry, Pending::Bytes { .. }));
        for (index, entry) in disk.pending.iter().enumerate() {
            match crash {
                Crash::LoseAll => {}
                Crash::LoseOne(lost) if lost == index => {}
                Crash::TearLast if last == Some(index) => after.apply(&torn(entry)),
                Crash::KeepAll | Crash::LoseOne(_) | Crash::TearLast => after.apply(entry),
            }
        }
        after.durable_names = after.names.clone();
        after.durable_contents = after.contents.clone();
        FaultyStorage::on(after)
    }

    /// All visible files with their bytes.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let disk = locked(&self.disk);
        disk.names.iter().map(|(name, inode)| (name.clone(), disk.bytes(*inode).to_vec())).collect()
    }

    /// Puts a durable file there, as a person or a defect might.
    pub fn plant(&self, name: &str, bytes: &[u8]) {
        let mut disk = locked(&self.disk);
        disk.next += 1;
        let inode = disk.next;
        disk.folders.insert(folder_of(name).to_owned());
        disk.names.insert(name.to_owned(), inode);
        disk.durable_names.insert(name.to_owned(), inode);
        disk.contents.insert(inode, bytes.to_vec());
        disk.durable_contents.insert(inode, bytes.to_vec());
    }

    /// Takes a file away, durably.
    pub fn take_away(&self, name: &str) {
        let mut disk = locked(&self.disk);
        disk.names.remove(name);
        disk.durable_names.remove(name);
    }

    /// Begins an operation: counts it, stops or fails it.
    fn begin(&self, kind: OperationKind, name: &str) -> io::Result<()> {
        let (hook, operation) = {
            let mut process = locked(&self.process);
            if process.stop_at.is_some_and(|stop| process.count >= stop) {
                return Err(stopped());
            }
            if kind.changes() && process.poisoned {
                return Err(poison_error());
            }
            let operation = Operation { kind, name: name.to_owned(), count: process.count };
            if kind.changes() {
                process.count += 1;
            }
            if let Some(log) = &mut process.log {
                log.push(operation.clone());
            }
            (process.hook.clone(), operation)
        };
        match hook.map_or(Verdict::Proceed, |hook| hook(&operation)) {
            Verdict::Proceed => Ok(()),
            Verdict::Fail(error) => {
                if matches!(kind, OperationKind::SyncFile | OperationKind::SyncFolder) {
                    locked(&self.process).poisoned = true;
                }
                Err(io::Error::from(error))
            }
        }
    }

    fn sync_inode(&self, inode: Inode) {
        let mut disk = locked(&self.disk);
        let bytes = disk.bytes(inode).to_vec();
        disk.durable_contents.insert(inode, bytes);
        disk.pending.retain(|entry| match entry {
            Pending::Bytes { inode: other, .. } | Pending::Truncate { inode: other } => *other != inode,
            Pending::Name { .. } => true,
        });
    }
}

fn torn(entry: &Pending) -> Pending {
    match entry {
        Pending::Bytes { inode, offset, bytes } => {
            // A disk tears at a sector, a small write in its middle.
            let kept = if bytes.len() > 1024 { bytes.len() / 1024 * 512 } else { bytes.len() / 2 };
            Pending::Bytes { inode: *inode, offset: *offset, bytes: bytes[..kept].to_vec() }
        }
        other => other.clone(),
    }
}

impl Disk {
    fn bytes(&self, inode: Inode) -> &[u8] {
        self.contents.get(&inode).map_or(&[], Vec::as_slice)
    }

    /// Applies a change to what is visible.
    fn apply(&mut self, entry: &Pending) {
        match entry {
            Pending::Name { name, inode: Some(inode) } => {
                self.names.insert(name.clone(), *inode);
            }
            Pending::Name { name, inode: None } => {
                self.names.remove(name);
            }
            Pending::Bytes { inode, offset, bytes } => {
                let content = self.contents.entry(*inode).or_default();
                if content.len() < offset + bytes.len() {
                    content.resize(offset + bytes.len(), 0);
                }
                content[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Pending::Truncate { inode } => {
                self.contents.insert(*inode, Vec::new());
            }
        }
    }

    fn change(&mut self, entry: Pending) {
        self.apply(&entry);
        self.pending.push(entry);
    }

    fn find(&self, name: &str) -> io::Result<Inode> {
        self.names.get(name).copied().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn folder(&self, folder: &str) -> io::Result<()> {
        if folder.is_empty() || self.folders.contains(folder) {
            return Ok(());
        }
        Err(io::Error::from(io::ErrorKind::NotFound))
    }
}

impl Storage for FaultyStorage {
    fn place(&self) -> String {
        "memory".to_owned()
    }

    fn make_folder(&self, folder: &str) -> io::Result<()> {
        if locked(&self.disk).folder(folder).is_ok() {
            return Ok(());
        }
        self.begin(OperationKind::MakeFolder, folder)?;
        locked(&self.disk).folders.insert(folder.to_owned());
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<Entry>> {
        self.begin(OperationKind::List, folder)?;
        let disk = locked(&self.disk);
        disk.folder(folder)?;
        let here = disk.names.iter().filter(|(name, _)| folder_of(name) == folder);
        Ok(here
            .map(|(name, inode)| Entry {
                name: name.rsplit('/').next().unwrap_or(name).to_owned(),
                length: disk.bytes(*inode).len() as u64,
            })
            .collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.begin(OperationKind::Read, name)?;
        let disk = locked(&self.disk);
        Ok(disk.bytes(disk.find(name)?).to_vec())
    }

    fn read_range(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let bytes = self.read(name)?;
        let start = offset as usize;
        let range = bytes.get(start..start.saturating_add(length));
        Ok(range.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?.to_vec())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        self.begin(OperationKind::Create, name)?;
        let mut disk = locked(&self.disk);
        disk.folder(folder_of(name))?;
        let inode = match disk.names.get(name).copied() {
            Some(inode) => {
                disk.change(Pending::Truncate { inode });
                inode
            }
            None => {
                disk.next += 1;
                let inode = disk.next;
                disk.contents.insert(inode, Vec::new());
                disk.change(Pending::Name { name: name.to_owned(), inode: Some(inode) });
                inode
            }
        };
        Ok(Box::new(FaultyFile { storage: self.clone(), name: name.to_owned(), inode }))
    }

    fn sync_file(&self, name: &str) -> io::Result<()> {
        self.begin(OperationKind::SyncFile, name)?;
        let inode = locked(&self.disk).find(name)?;
        self.sync_inode(inode);
        Ok(())
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.begin(OperationKind::SyncFolder, folder)?;
        let mut disk = locked(&self.disk);
        disk.folder(folder)?;
        let names: BTreeMap<String, Inode> = disk
            .names
            .iter()
            .filter(|(name, _)| folder_of(name) == folder)
            .map(|(name, inode)| (name.clone(), *inode))
            .collect();
        disk.durable_names.retain(|name, _| folder_of(name) != folder);
        disk.durable_names.extend(names);
        disk.pending
            .retain(|entry| !matches!(entry, Pending::Name { name, .. } if folder_of(name) == folder));
        Ok(())
    }

    fn link(&self, from: &str, to: &str) -> io::Result<bool> {
        self.begin(OperationKind::Link, to)?;
        let mut disk = locked(&self.disk);
        disk.folder(folder_of(to))?;
        let inode = disk.find(from)?;
        if disk.names.contains_key(to) {
            return Ok(false);
        }
        disk.change(Pending::Name { name: to.to_owned(), inode: Some(inode) });
        Ok(true)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.begin(OperationKind::Remove, name)?;
        let mut disk = locked(&self.disk);
        disk.find(name)?;
        disk.change(Pending::Name { name: name.to_owned(), inode: None });
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.begin(OperationKind::Rename, to)?;
        let mut disk = locked(&self.disk);
        let inode = disk.find(from)?;
        disk.change(Pending::Name { name: to.to_owned(), inode: Some(inode) });
        disk.change(Pending::Name { name: from.to_owned(), inode: None });
        Ok(())
    }

    fn overwrite(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.begin(OperationKind::Overwrite, name)?;
        let mut disk = locked(&self.disk);
        let inode = disk.find(name)?;
        disk.change(Pending::Bytes { inode, offset: offset as usize, bytes: bytes.to_vec() });
        Ok(())
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn StorageLock>>> {
        self.begin(OperationKind::Lock, name)?;
        let id = locked(&self.process).id;
        let mut disk = locked(&self.disk);
        let inode = disk.find(name)?;
        if disk.locks.contains_key(&inode) {
            return Ok(None);
        }
        disk.locks.insert(inode, id);
        Ok(Some(Box::new(FaultyLock { disk: self.disk.clone(), inode })))
    }
}

struct FaultyFile {
    storage: FaultyStorage,
    name: String,
    inode: Inode,
}

impl StorageFile for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.storage.begin(OperationKind::Write, &self.name)?;
        let mut disk = locked(&self.storage.disk);
        let offset = disk.bytes(self.inode).len();
        disk.change(Pending::Bytes { inode: self.inode, offset, bytes: bytes.to_vec() });
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.storage.begin(OperationKind::SyncFile, &self.name)?;
        self.storage.sync_inode(self.inode);
        Ok(())
    }
}

struct FaultyLock {
    disk: Arc<Mutex<Disk>>,
    inode: Inode,
}

impl fmt::Debug for FaultyLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyLock").field("inode", &self.inode).finish_non_exhaustive()
    }
}

impl StorageLock for FaultyLock {}

impl Drop for FaultyLock {
    fn drop(&mut self) {
        locked(&self.disk).locks.remove(&self.inode);
    }
}

/// A place at which a process stands still: see [`FaultyStorage::freeze_at`].
#[derive(Clone, Debug)]
pub struct FreezePoint {
    state: Arc<(Mutex<Freeze>, Condvar)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freeze {
    Armed,
    Frozen,
    Thawed,
}

impl FreezePoint {
    /// Waits until the process stands still there; `false` when it does not within `deadline`.
    pub fn reached(&self, deadline: Duration) -> bool {
        let until = Instant::now() + deadline;
        let mut state = locked(&self.state.0);
        while *state == Freeze::Armed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.state.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Lets the process go on, and never stops it again.
    pub fn thaw(&self) {
        *locked(&self.state.0) = Freeze::Thawed;
        self.state.1.notify_all();
    }

    fn stand_still(&self) {
        let mut state = locked(&self.state.0);
        if *state == Freeze::Armed {
            *state = Freeze::Frozen;
            self.state.1.notify_all();
        }
        while *state == Freeze::Frozen {
            state = self.state.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn stopped() -> io::Error {
    io::Error::other("the process has stopped")
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A test that panicked elsewhere shall not hide its own message behind a second one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

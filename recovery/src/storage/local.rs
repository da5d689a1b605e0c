//! A directory of the local (or a shared) file system.
//!
//! A failed sync poisons the whole directory handle: the kernel marks the pages clean after it, so that a
//! second sync would succeed without the bytes being on the disk. From then on every write is refused.

use super::{Entry, Storage, StorageFile, StorageLock};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A [`Storage`] in a directory.
#[derive(Clone, Debug)]
pub struct LocalDirectory {
    root: PathBuf,
    poisoned: Arc<AtomicBool>,
}

impl LocalDirectory {
    /// The directory `root`; it is made when the store is opened.
    pub fn new(root: impl AsRef<Path>) -> LocalDirectory {
        LocalDirectory { root: root.as_ref().to_path_buf(), poisoned: Arc::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(name) }
    }

    fn healthy(&self) -> io::Result<()> {
        if self.poisoned.load(Ordering::SeqCst) {
            return Err(poison_error());
        }
        Ok(())
    }

    fn synced(&self, outcome: io::Result<()>) -> io::Result<()> {
        if outcome.is_err() {
            self.poisoned.store(true, Ordering::SeqCst);
        }
        outcome
    }
}

pub(super) fn poison_error() -> io::Error {
    io::Error::other("an earlier sync failed, so that nothing is known about what is on the disk")
}

impl Storage for LocalDirectory {
    fn place(&self) -> String {
        self.root.display().to_string()
    }

    fn make_folder(&self, folder: &str) -> io::Result<()> {
        self.healthy()?;
        let path = self.path(folder);
        if path.is_dir() {
            return Ok(());
        }
        fs::create_dir_all(&path)?;
        // The names of all folders that may be new, up to one that certainly was there before.
        let mut above = path.parent();
        while let Some(parent) = above {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            self.synced(File::open(parent)?.sync_all())?;
            if parent == Path::new(".") || !parent.starts_with(&self.root) {
                break;
            }
            above = parent.parent();
        }
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.path(folder))? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                // Removed between the listing and the look: it is not there.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            // A name that is not UTF-8 is none of ours.
            if let (true, Ok(name)) = (metadata.is_file(), entry.file_name().into_string()) {
                entries.push(Entry { name, length: metadata.len() });
            }
        }
        Ok(entries)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(name))
    }

    fn read_range(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        File::open(self.path(name))?.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        self.healthy()?;
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(self.path(name))?;
        Ok(Box::new(LocalFile { file, directory: self.clone() }))
    }

    fn sync_file(&self, name: &str) -> io::Result<()> {
        self.healthy()?;
        let file = File::open(self.path(name))?;
        self.synced(file.sync_all())
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.healthy()?;
        let file = File::open(self.path(folder))?;
        self.synced(file.sync_all())
    }

    fn link(&self, from: &str, to: &str) -> io::Result<bool> {
        self.healthy()?;
        match fs::hard_link(self.path(from), self.path(to)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.healthy()?;
        fs::remove_file(self.path(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.healthy()?;
        fs::rename(self.path(from), self.path(to))
    }

    fn overwrite(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.healthy()?;
        OpenOptions::new().write(true).open(self.path(name))?.write_all_at(bytes, offset)
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn StorageLock>>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path(name))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(LocalLock { _file: file }))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

struct LocalFile {
    file: File,
    directory: LocalDirectory,
}

impl StorageFile for LocalFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.directory.healthy()?;
        self.file.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.directory.healthy()?;
        let outcome = self.file.sync_data();
        self.directory.synced(outcome)
    }
}

#[derive(Debug)]
struct LocalLock {
    _file: File,
}

impl StorageLock for LocalLock {}

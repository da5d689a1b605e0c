//! What the store asks of a disk: a handful of named operations on relative names.
//!
//! A name is `folder/file` or `file`, with `/` on every system; the folder `""` is the store itself. The trait is
//! the seam for faults: [`FaultyStorage`] is a disk in memory that loses what was not synced.
//!
//! Assumed of every implementation: [`Storage::link`] creates exclusively, and a listing shows what was
//! created before it began. A file's bytes are durable after [`StorageFile::sync`] or [`Storage::sync_file`]; its
//! *name* is durable after [`Storage::sync_folder`]. After a failed sync nothing is known about the bytes, so
//! that the implementation refuses all further writes (a second sync would report success for lost pages).

mod faulty;
mod local;

pub use faulty::{Crash, FaultyStorage, FreezePoint, Operation, OperationKind, Verdict};
pub use local::LocalDirectory;

use std::fmt;
use std::io;

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The file's name, without its folder.
    pub name: String,
    /// Its length in bytes.
    pub length: u64,
}

/// A file that is being written. Dropping it without [`StorageFile::sync`] leaves bytes that may be lost.
pub trait StorageFile: Send {
    /// Appends bytes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes the bytes durable (not the name: see [`Storage::sync_folder`]).
    fn sync(&mut self) -> io::Result<()>;
}

/// A lock that is held until it is dropped or its process ends.
pub trait StorageLock: Send + Sync + fmt::Debug {}

/// A disk, or what stands for one. Calls block; they come from I/O threads.
pub trait Storage: Send + Sync + fmt::Debug {
    /// Where the storage is, for messages: a path or a URL.
    fn place(&self) -> String;

    /// Creates a folder, durably, if it is not there.
    fn make_folder(&self, folder: &str) -> io::Result<()>;

    /// The files of a folder, in no particular order; folders in it are left out.
    fn list(&self, folder: &str) -> io::Result<Vec<Entry>>;

    /// All bytes of a file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// `length` bytes from `offset`; [`io::ErrorKind::UnexpectedEof`] when the file is shorter.
    fn read_range(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>>;

    /// Creates a file, or empties the one that is there.
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>>;

    /// Makes the bytes of an existing file durable.
    fn sync_file(&self, name: &str) -> io::Result<()>;

    /// Makes creations, links, renames and removals in a folder durable.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;

    /// Gives a file a second name unless that name is taken: `false` means that it was.
    fn link(&self, from: &str, to: &str) -> io::Result<bool>;

    /// Removes a name.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Renames a file; used only to move a damaged one aside.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Overwrites bytes in the middle of a file, in place; used only for a lease's counter.
    fn overwrite(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Locks a file without waiting; `None` when another process holds it.
    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn StorageLock>>>;
}

/// The folder of a name; `""` when it has none.
pub(crate) fn folder_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(folder, _)| folder)
}

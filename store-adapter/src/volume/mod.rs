//! The volume: the directory tree that brokers share, and the only code that opens its files.
//!
//! Every method is one step that a crash can fall before or after, and one point at which the
//! simulation may run something else. The real volume does the system call when its future is
//! polled and blocks the polling thread, so these futures are awaited only in tasks started by
//! [`crate::runtime::Runtime::spawn_io`] (see there).
//!
//! What a file system must give (design: Volume): rename within it is atomic and fails without its
//! source, exclusive create is atomic, an open after a rename sees the new file, a listing after an
//! own create or rename in that directory is fresh. Listings otherwise may be stale.

mod block;
pub mod memory;
mod overlay;
pub mod owned;
mod path;
pub mod posix;
mod range;
mod space;
pub mod sum;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;

pub use block::block_on;
pub use memory::MemoryVolume;
pub use overlay::Overlay;
pub use path::VolumePath;
pub use posix::PosixVolume;
pub use range::FileRange;
pub use space::{Reserve, SpaceWatch, SyncCounters};

use crate::runtime::BoxFuture;

/// The outcome of one volume step.
pub type VolumeFuture<'a, T> = BoxFuture<'a, Result<T, VolumeError>>;

/// Why a volume step failed. A failed write, sync or rename *may have happened*.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// There is no such name.
    #[error("{path}: not found")]
    NotFound {
        /// The name.
        path: String,
    },
    /// An exclusive create found the name taken.
    #[error("{path}: exists already")]
    AlreadyExists {
        /// The name.
        path: String,
    },
    /// The file system is full (ENOSPC, EDQUOT).
    #[error("{path}: no space left")]
    NoSpace {
        /// The name.
        path: String,
    },
    /// The file system is mounted read-only, or writing is not permitted (EROFS, EACCES, EPERM).
    #[error("{path}: not writable")]
    ReadOnly {
        /// The name.
        path: String,
    },
    /// The process or the system has no file handles left (EMFILE, ENFILE).
    #[error("{path}: no file handles left")]
    TooManyOpenFiles {
        /// The name.
        path: String,
    },
    /// A whole-file read met a file over the reader's limit.
    #[error("{path}: {len} bytes, more than the {max} that are read")]
    TooLarge {
        /// The name.
        path: String,
        /// Its length in bytes.
        len: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// Anything else.
    #[error("{path}: {what}: {cause}")]
    Io {
        /// The name.
        path: String,
        /// The step, a verb.
        what: &'static str,
        /// What the system said.
        cause: String,
    },
}

impl VolumeError {
    /// Whether the name was not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

/// What a listing shows of one name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The name within its directory.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// Room on the file system of the volume, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes that can still be written.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// The shared directory tree.
pub trait Volume: Send + Sync + Debug + 'static {
    /// Creates a file exclusively (`O_EXCL`) and opens it for reading and writing.
    fn create_new<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>>;
    /// Opens an existing file for reading.
    fn open<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>>;
    /// Opens an existing file for reading and writing.
    fn open_write<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>>;
    /// Reads a whole file of at most `max` bytes, by a fresh open.
    fn read<'a>(&'a self, path: &'a VolumePath, max: u64) -> VolumeFuture<'a, Bytes>;
    /// Renames a file over `to`, atomically. Fails with `NotFound` without its source.
    fn rename<'a>(&'a self, from: &'a VolumePath, to: &'a VolumePath) -> VolumeFuture<'a, ()>;
    /// Unlinks a file.
    fn remove<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()>;
    /// Removes an empty directory.
    fn remove_dir<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()>;
    /// The names in a directory, sorted. May be stale. `NotFound` when the directory is not there.
    fn list<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, Vec<DirEntry>>;
    /// Makes a directory and those above it that are missing, and fsyncs each directory above it,
    /// also where nothing was missing: who made it may have died before its fsync.
    fn create_dir_all<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()>;
    /// fsyncs a directory: names created, renamed or removed in it are durable afterwards.
    fn sync_dir<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()>;
    /// Room left.
    fn space(&self) -> VolumeFuture<'_, Space>;
}

/// An open file. Dropping it closes it.
pub trait VolumeFile: Send + Sync + Debug {
    /// Writes `parts` one behind the other from `offset`, all of them. After an error any prefix,
    /// or nothing, may be there.
    fn write_at<'a>(&'a self, offset: u64, parts: &'a [Bytes]) -> VolumeFuture<'a, ()>;
    /// Reads up to `len` bytes from `offset`; fewer only at the end of the file.
    fn read_at(&self, offset: u64, len: usize) -> VolumeFuture<'_, Bytes>;
    /// fdatasync: what was written before is durable afterwards. After a failure nothing that was
    /// written since the last success may be believed, though it may read back from the page cache.
    fn sync_data(&self) -> VolumeFuture<'_, ()>;
    /// Reserves space for `len` bytes from the start, without changing the file's length. No error
    /// where the file system can't reserve.
    fn allocate(&self, len: u64) -> VolumeFuture<'_, ()>;
    /// The file's length in bytes.
    fn size(&self) -> VolumeFuture<'_, u64>;
    /// A part of the file that can be sent without reading it; without I/O. `None` where the system
    /// has no such thing.
    fn range(&self, offset: u64, len: usize) -> Option<FileRange>;
}

//! The `sled:` store: batches in a journal on the volume, one fdatasync stream per shard; a local
//! index that can be rebuilt from the journal at any time.
//!
//! A shard is a directory of journal files, claimed by one owner at a time, with one writer task.
//! The writer commits in *rounds*: it takes what was queued while the last round was synced,
//! writes it as one run of frames, syncs once, checks that the shard is still its own, and only
//! then publishes and answers. Byte layout: `frame.rs` and docs/journal-format.md; opening:
//! `recovery.rs`.

mod asked;
mod base;
mod copying;
mod extents;
mod failing;
mod file;
pub(crate) mod files;
mod frame;
mod garbage;
mod index;
mod join;
mod keeper;
mod newest;
mod offline;
mod opened;
#[cfg(test)]
mod opening_tests;
mod payload;
mod pieces;
pub(crate) mod queue;
mod read;
mod reader;
mod recovery;
mod rewrite;
mod roll;
mod room;
mod round;
mod scan;
mod shard;
mod sift;
#[cfg(feature = "sled")]
mod sled_index;
mod sources;
mod store;
mod table;
mod through;
mod walk;
mod writer;

pub use index::{IndexChange, IndexError, IndexStore, MemoryIndex};
#[cfg(feature = "sled")]
pub(crate) use offline::finding;
pub use offline::{Finding, OfflineFile, OfflineLog, OfflineShard, shards};
#[cfg(feature = "sled")]
pub use sled_index::SledIndex;
pub use store::JournalStore;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::ids::BrokerId;
use crate::store::{Durability, StoreError};
use crate::volume::owned::OwnedError;
use crate::volume::{Reserve, SpaceWatch, VolumeError};

/// When a commit is acknowledged (`flush.policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlushPolicy {
    /// After an fdatasync: it survives power loss.
    #[default]
    Fsync,
    /// After the write: it survives the end of the process.
    Os,
}

/// What a store has done since the process began, for metrics. Only grows.
#[derive(Debug, Default)]
pub struct JournalCounters {
    /// Syncs of journal files by commit rounds.
    pub syncs: AtomicU64,
    /// Commit rounds that were written.
    pub rounds: AtomicU64,
    /// Bytes that they wrote, frames included.
    pub bytes: AtomicU64,
    /// Bytes of journal files that were read for readers, with what lay between their batches.
    pub read_bytes: AtomicU64,
    /// Reads of journal files that failed.
    pub failed_reads: AtomicU64,
    /// Closed journal files that were written anew without what nobody needs any more.
    pub rewrites: AtomicU64,
    /// Bytes that this wrote.
    pub rewritten_bytes: AtomicU64,
    /// Closed journal files whose batches went into an earlier one.
    pub joined_files: AtomicU64,
    /// Bytes of the volume that rewriting and unlinking of journal files gave back.
    pub freed_bytes: AtomicU64,
    /// Journal files in which something was found damaged.
    damaged: Mutex<BTreeSet<String>>,
}

/// Damaged files whose names are kept.
const DAMAGED_MAX: usize = 1000;

impl JournalCounters {
    /// Journal files that were found damaged, by path; the first thousand.
    pub fn damaged_files(&self) -> Vec<String> {
        self.damaged.lock().iter().cloned().collect()
    }

    /// Whether a file is known to be damaged.
    fn is_damaged(&self, path: &str) -> bool {
        self.damaged.lock().contains(path)
    }

    /// Notes a damaged file; whether it was not known to be.
    fn damaged(&self, path: &str) -> bool {
        let mut damaged = self.damaged.lock();
        damaged.len() < DAMAGED_MAX && damaged.insert(path.to_owned())
    }
}

/// How a journal store works.
#[derive(Debug, Clone)]
pub struct JournalConfig {
    /// Who opens shards.
    pub broker: BrokerId,
    /// When a commit is acknowledged.
    pub flush: FlushPolicy,
    /// Bytes after which a journal file is closed and the next one begun
    /// (`journal.segment.bytes`). Default 128 MiB.
    pub segment_bytes: u64,
    /// How many files in a row become one, once together they need no more than a full one has; at
    /// least 2. Default 8: a batch moves once in each power of eight by which its file grows, and a
    /// shard has some eight files for each full one.
    pub join_files: usize,
    /// Largest batch in bytes. Default 64 MiB.
    pub max_append: usize,
    /// Bytes that may wait for a shard's writer before it refuses more. Default 64 MiB.
    pub queue_bytes: usize,
    /// Bytes after which a round takes no further group. Default 8 MiB.
    pub round_bytes: usize,
    /// Most groups of a round. Default 1024.
    pub round_groups: usize,
    /// What it has done.
    pub counters: Arc<JournalCounters>,
    /// Is told when there is no space for a commit.
    pub space: Option<SpaceWatch>,
    /// Room that appends leave on the volume. Default none.
    pub reserve: Reserve,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            broker: BrokerId(0),
            flush: FlushPolicy::Fsync,
            segment_bytes: 128 << 20,
            join_files: 8,
            max_append: 64 << 20,
            queue_bytes: 64 << 20,
            round_bytes: 8 << 20,
            round_groups: 1024,
            counters: Arc::default(),
            space: None,
            reserve: Reserve::None,
        }
    }
}

impl FlushPolicy {
    /// What a commit survives under this policy.
    pub fn durability(self) -> Durability {
        match self {
            Self::Fsync => Durability::Fsync,
            Self::Os => Durability::OsCache,
        }
    }
}

/// What a failed step of reading or opening means to the caller: nothing happened.
pub(crate) fn volume_error(error: &VolumeError) -> StoreError {
    match error {
        VolumeError::NoSpace { path } => StoreError::Full { path: path.clone() },
        VolumeError::TooManyOpenFiles { .. } => StoreError::Unavailable(error.to_string()),
        _ => StoreError::Offline(error.to_string()),
    }
}

/// What a failed step on an owned file means to the caller.
pub(crate) fn owned_error(error: &OwnedError) -> StoreError {
    match error {
        OwnedError::Stale => StoreError::Fenced,
        OwnedError::Damaged { path, why } => StoreError::Corrupt {
            path: path.clone(),
            why: why.clone(),
        },
        OwnedError::NotApplied(cause) | OwnedError::MaybeApplied(cause) => volume_error(cause),
    }
}

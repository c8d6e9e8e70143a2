//! The `sled:?layout=kv` store: batches in sled itself, for small installs and for comparison.
//!
//! A shard is one sled database with one tree, claimed by one owner at a time and locked by one
//! process, with one writer task that commits in rounds as the journal's does. sled 0.34 is not
//! trusted with more than it keeps:
//! - Its flush does not survive power loss, so every round ends with an fdatasync of ours.
//! - Values above a quarter of a segment go to files that it never syncs, and leaves of up to 17
//!   values may: segments have 16 MiB, and no value more than 4 KiB.
//! - It drops what it cannot read at the end of its log without a word, so a file beside it counts
//!   the rounds that were acknowledged, and each value and batch has a checksum of its own.
//! - It panics where it should fail, so every call is guarded.
//!
//! Whatever is found wrong, the whole shard is refused with its path. Layout: `keys.rs` and
//! docs/kv-format.md; opening: `recovery.rs`.

mod db;
mod keys;
mod offline;
mod reader;
mod recovery;
mod rounds;
mod shard;
mod sift;
mod state;
mod store;
mod sweep;
#[cfg(test)]
mod tests;
mod writer;

pub use offline::OfflineKv;
pub(crate) use recovery::refuse_kv;
pub(crate) use state::Replace;
pub use store::KvStore;

use crate::ids::{BrokerId, ShardId};
use crate::journal::FlushPolicy;
use crate::journal::files::shard_dir;
use crate::volume::{Reserve, SpaceWatch, VolumePath};

/// How a kv store works.
#[derive(Debug, Clone)]
pub struct KvConfig {
    /// Who opens shards.
    pub broker: BrokerId,
    /// When a commit is acknowledged.
    pub flush: FlushPolicy,
    /// Largest batch in bytes. Default 16 MiB.
    pub max_append: usize,
    /// Bytes that may wait for a shard's writer before it refuses more. Default 64 MiB.
    pub queue_bytes: usize,
    /// Bytes after which a round takes no further group. Default 8 MiB.
    pub round_bytes: usize,
    /// Most groups of a round. Default 1024.
    pub round_groups: usize,
    /// Bytes that sled may cache; it takes more. Default 64 MiB.
    pub cache_bytes: u64,
    /// Is told when there is no space for a commit.
    pub space: Option<SpaceWatch>,
    /// Room that appends leave on the volume. Default none.
    pub reserve: Reserve,
}

impl Default for KvConfig {
    fn default() -> Self {
        Self {
            broker: BrokerId(0),
            flush: FlushPolicy::Fsync,
            max_append: 16 << 20,
            queue_bytes: 64 << 20,
            round_bytes: 8 << 20,
            round_groups: 1024,
            cache_bytes: 64 << 20,
            space: None,
            reserve: Reserve::None,
        }
    }
}

/// Where a shard's database and what belongs to it lie.
fn kv_dir(shard: ShardId) -> VolumePath {
    shard_dir(shard).join("kv")
}

/// The directory that sled opens.
fn sled_dir(shard: ShardId) -> VolumePath {
    kv_dir(shard).join("sled")
}

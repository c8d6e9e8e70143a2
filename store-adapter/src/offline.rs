//! Shards of either layout as they lie on the volume, read without changing anything: for people
//! who look into a store while no broker runs.

use std::path::Path;
use std::sync::Arc;

use crate::ids::{LogId, ShardId};
use crate::journal::{OfflineShard, shards};
#[cfg(feature = "sled")]
use crate::kv::OfflineKv;
use crate::store::{StoreError, StoredBatch};
use crate::volume::Volume;

pub use crate::journal::{Finding, OfflineFile, OfflineLog};

/// In what a shard keeps its batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Journal files.
    Journal,
    /// A sled database.
    Kv,
}

/// The shards of a volume, in order.
///
/// # Errors
/// When a directory can't be read.
pub async fn layouts(volume: &Arc<dyn Volume>) -> Result<Vec<(ShardId, Layout)>, StoreError> {
    let mut found = Vec::new();
    for shard in shards(volume).await? {
        found.push((shard, layout(volume, shard).await?));
    }
    Ok(found)
}

#[cfg(feature = "sled")]
async fn layout(volume: &Arc<dyn Volume>, shard: ShardId) -> Result<Layout, StoreError> {
    let kv = OfflineKv::lies_in(volume, shard).await?;
    Ok(if kv { Layout::Kv } else { Layout::Journal })
}

#[cfg(not(feature = "sled"))]
async fn layout(_: &Arc<dyn Volume>, _: ShardId) -> Result<Layout, StoreError> {
    Ok(Layout::Journal)
}

/// A shard that was read.
#[derive(Debug)]
pub enum StoredShard {
    /// Of journal files.
    Journal(OfflineShard),
    /// Of a database.
    #[cfg(feature = "sled")]
    Kv(OfflineKv),
}

impl StoredShard {
    /// Reads what a shard holds; one of [`Layout::Kv`] by a copy in `scratch`, a local directory
    /// that nobody else uses. Blocks.
    ///
    /// # Errors
    /// Where an opening would refuse the shard.
    pub async fn read(
        volume: &Arc<dyn Volume>,
        (shard, layout): (ShardId, Layout),
        scratch: &Path,
    ) -> Result<Self, StoreError> {
        match layout {
            #[cfg(feature = "sled")]
            Layout::Kv => OfflineKv::read(volume, shard, scratch).await.map(Self::Kv),
            #[cfg(not(feature = "sled"))]
            Layout::Kv => Err(StoreError::Offline(format!(
                "nothing of layout=kv, in {} or anywhere, is read by this build",
                scratch.display()
            ))),
            Layout::Journal => {
                let shard = OfflineShard::read(Arc::clone(volume), shard).await;
                shard.map(Self::Journal)
            }
        }
    }

    /// The shard.
    pub fn id(&self) -> ShardId {
        match self {
            Self::Journal(shard) => shard.id(),
            #[cfg(feature = "sled")]
            Self::Kv(shard) => shard.id(),
        }
    }

    /// In what it keeps its batches.
    pub fn layout(&self) -> Layout {
        match self {
            Self::Journal(_) => Layout::Journal,
            #[cfg(feature = "sled")]
            Self::Kv(_) => Layout::Kv,
        }
    }

    /// Its logs, in order of their ids.
    pub fn logs(&self) -> Vec<&OfflineLog> {
        match self {
            Self::Journal(shard) => shard.logs().collect(),
            #[cfg(feature = "sled")]
            Self::Kv(shard) => shard.logs().collect(),
        }
    }

    /// Its files, in order; a database is told as if it were one.
    pub fn files(&self) -> Vec<&OfflineFile> {
        match self {
            Self::Journal(shard) => shard.files().collect(),
            #[cfg(feature = "sled")]
            Self::Kv(shard) => shard.files().iter().collect(),
        }
    }

    /// The parts of a log in journal files: path, first and last offset, bytes, largest timestamp
    /// (ms).
    pub fn segments(&self, id: LogId) -> Vec<(String, i64, i64, u64, i64)> {
        match self {
            Self::Journal(shard) => shard.segments(id),
            #[cfg(feature = "sled")]
            Self::Kv(_) => Vec::new(),
        }
    }

    /// Batches from the one that holds `from` on, about 1 MiB of them; none at the end.
    ///
    /// # Errors
    /// As of [`crate::store::LogStore::read`].
    pub async fn batches(&self, id: LogId, from: i64) -> Result<Vec<StoredBatch>, StoreError> {
        match self {
            Self::Journal(shard) => shard.batches(id, from).await,
            #[cfg(feature = "sled")]
            Self::Kv(shard) => shard.batches(id, from),
        }
    }

    /// Where the batches of a log go on behind one from `offset` on that can't be read, if any can;
    /// of a database none, which is refused as a whole.
    pub async fn behind(&self, id: LogId, offset: i64) -> Option<i64> {
        match self {
            Self::Journal(shard) => shard.behind(id, offset).await,
            #[cfg(feature = "sled")]
            Self::Kv(_) => None,
        }
    }

    /// What is not as it should be; `deep`, also in what is read for it only: every byte of journal
    /// files, every batch of a database.
    pub async fn check(&self, deep: bool) -> Vec<Finding> {
        match self {
            Self::Journal(shard) => shard.check(deep).await,
            #[cfg(feature = "sled")]
            Self::Kv(shard) => shard.check(deep),
        }
    }
}

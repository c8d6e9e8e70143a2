//! Reads of journal files that fail: said in the log, with the path.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::file::FileId;
use super::files::{Files, path};
use crate::ids::ShardId;
use crate::runtime::{Clock, Told};
use crate::store::StoreError;
use crate::volume::VolumeError;
use crate::volume::owned::Claim;

/// Files that are told apart.
const FILES_MAX: usize = 1000;

/// What is known of reads that fail.
#[derive(Debug)]
pub(crate) struct Failing {
    clock: Arc<dyn Clock>,
    /// The claims of the shards that were opened last.
    claims: Mutex<BTreeMap<ShardId, Arc<Claim>>>,
    told: Mutex<BTreeMap<FileId, Told>>,
}

impl Failing {
    /// Nothing yet.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            claims: Mutex::default(),
            told: Mutex::default(),
        }
    }

    /// A shard was opened under this claim.
    pub(crate) fn claimed(&self, shard: ShardId, claim: Arc<Claim>) {
        self.claims.lock().insert(shard, claim);
    }

    /// Whether nobody has taken the shard over since.
    async fn owns(&self, shard: ShardId) -> bool {
        let claim = self.claims.lock().get(&shard).cloned();
        match claim {
            Some(claim) => claim.check().await.is_ok(),
            None => false,
        }
    }

    /// Whether it is to be said now that a read of the file failed: once a minute.
    fn is_due(&self, file: FileId) -> bool {
        let mut told = self.told.lock();
        if told.len() >= FILES_MAX {
            told.clear();
        }
        told.entry(file).or_default().is_due(self.clock.monotonic())
    }
}

/// What a failed read of a file means. It may go better the next time, unless the file is gone that
/// has to be there: one that nothing needs is forgotten before it is removed.
pub(crate) async fn read_error(files: &Files, file: FileId, error: &VolumeError) -> StoreError {
    let unavailable = StoreError::Unavailable(error.to_string());
    let Some(failing) = &files.failing else {
        return unavailable;
    };
    let missing = error.is_not_found();
    if missing && !(files.has(file) && failing.owns(file.shard).await) {
        return unavailable;
    }
    let counters = files.counters();
    counters.failed_reads.fetch_add(1, Ordering::Relaxed);
    if failing.is_due(file) {
        tracing::error!(path = %path(file), %error, "a journal file can't be read");
    }
    if !missing {
        return unavailable;
    }
    files.damaged(file);
    StoreError::Corrupt {
        path: path(file).to_string(),
        why: "this journal file is missing".to_owned(),
    }
}

//! What is done for a shard off the path of acknowledgements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;

use super::file::FileId;
use super::files::{Files, path};
use super::index::{Changes, Checkpointer, IndexChange, IndexStore, forget_file};
use crate::ids::ShardId;
use crate::volume::{VolumeError, VolumeFile};

/// Jobs that may wait before the writer waits too.
pub(crate) const JOBS_MAX: usize = 64;

/// One job.
#[derive(Debug)]
pub(crate) enum Job {
    /// fdatasync a file whose footer was written.
    Sync(Arc<dyn VolumeFile>),
    /// Unlink a file that nothing needs, once this other one is durable.
    Remove(FileId, Option<Arc<dyn VolumeFile>>),
    /// Write a checkpoint of the local index.
    Checkpoint(Changes),
}

/// A file that nothing needs.
#[derive(Debug)]
struct Needless {
    id: FileId,
    /// Made durable before it goes.
    behind: Option<Arc<dyn VolumeFile>>,
    /// Its bytes, once it was forgotten.
    freed: Option<u64>,
}

/// Does jobs in order until the writer is gone.
pub(crate) async fn run(
    files: Arc<Files>,
    shard: ShardId,
    all: Arc<AtomicBool>,
    mut jobs: mpsc::Receiver<Job>,
) {
    let index = Arc::clone(files.local());
    let mut checkpointer = Checkpointer::new(shard);
    let mut stay = Vec::new();
    while let Some(job) = jobs.recv().await {
        match job {
            Job::Sync(file) => {
                if let Err(error) = file.sync_data().await {
                    // The data before it is durable; without a footer the file is read instead.
                    tracing::warn!(%error, "a footer may not be durable");
                }
            }
            Job::Remove(id, behind) => {
                stay.push(Needless {
                    id,
                    behind,
                    freed: None,
                });
                stay = remove_all(&files, stay).await;
            }
            Job::Checkpoint(changes) => {
                if let Err(error) = checkpointer.write(&*index, changes) {
                    tracing::warn!(%error, "the next opening reads more of the journal");
                }
                all.store(checkpointer.needs_all(), Ordering::SeqCst);
            }
        }
    }
}

/// Unlinks files that nothing needs; those that stay are tried again with the next one.
async fn remove_all(files: &Files, needless: Vec<Needless>) -> Vec<Needless> {
    let mut stay = Vec::new();
    for mut one in needless {
        if let Err(error) = one.remove(files).await {
            let path = path(one.id);
            tracing::warn!(%path, %error, "a journal file that nothing needs stays for now");
            stay.push(one);
        }
    }
    stay
}

/// Unlinks a file that nothing needs; while it is being written anew, whoever does that will.
pub(crate) async fn remove(files: &Files, id: FileId) {
    let mut needless = Needless {
        id,
        behind: None,
        freed: None,
    };
    if let Err(error) = needless.remove(files).await {
        let path = path(id);
        tracing::warn!(%path, %error, "a journal file that nothing needs stays");
    }
}

impl Needless {
    async fn remove(&mut self, files: &Files) -> Result<(), VolumeError> {
        if let Some(behind) = &self.behind {
            behind.sync_data().await?;
            self.behind = None;
        }
        let freed = match self.freed {
            Some(freed) => freed,
            None => match files.forget(self.id) {
                Some(freed) => *self.freed.insert(freed),
                None => return Ok(()),
            },
        };
        match files.volume().remove(&path(self.id)).await {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        let counters = files.counters();
        counters.freed_bytes.fetch_add(freed, Ordering::Relaxed);
        apply(&**files.local(), &[forget_file(self.id)]);
        Ok(())
    }
}

/// Changes the local index, or says what that costs.
pub(crate) fn apply(index: &dyn IndexStore, changes: &[IndexChange]) {
    if let Err(error) = index.apply(changes) {
        tracing::warn!(%error, "the next opening reads more of the journal");
    }
}

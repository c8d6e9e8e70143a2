//! What is done for a shard off the path of acknowledgements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;

use super::file::FileId;
use super::files::{Files, path};
use super::index::{Changes, Checkpointer, IndexChange, IndexStore, forget_file};
use crate::ids::ShardId;
use crate::volume::VolumeFile;

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

/// Does jobs in order until the writer is gone.
pub(crate) async fn run(
    files: Arc<Files>,
    shard: ShardId,
    all: Arc<AtomicBool>,
    mut jobs: mpsc::Receiver<Job>,
) {
    let index = Arc::clone(files.local());
    let mut checkpointer = Checkpointer::new(shard);
    while let Some(job) = jobs.recv().await {
        match job {
            Job::Sync(file) => {
                if let Err(error) = file.sync_data().await {
                    // The data before it is durable; without a footer the file is read instead.
                    tracing::warn!(%error, "a footer may not be durable");
                }
            }
            Job::Remove(id, behind) => {
                if let Some(behind) = behind
                    && let Err(error) = behind.sync_data().await
                {
                    tracing::warn!(%error, "a journal file that nothing needs stays");
                    continue;
                }
                remove(&files, id).await;
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

/// Unlinks a file that nothing needs; while it is being written anew, whoever does that will.
pub(crate) async fn remove(files: &Files, id: FileId) {
    let Some(freed) = files.forget(id) else {
        return;
    };
    match files.volume().remove(&path(id)).await {
        Err(error) if !error.is_not_found() => {
            tracing::warn!(%error, "a journal file that nothing needs stays");
        }
        _ => {
            let counters = files.counters();
            counters.freed_bytes.fetch_add(freed, Ordering::Relaxed);
        }
    }
    apply(&**files.local(), &[forget_file(id)]);
}

/// Changes the local index, or says what that costs.
pub(crate) fn apply(index: &dyn IndexStore, changes: &[IndexChange]) {
    if let Err(error) = index.apply(changes) {
        tracing::warn!(%error, "the next opening reads more of the journal");
    }
}

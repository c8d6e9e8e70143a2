//! What is done for a shard off the path of acknowledgements.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::files::{Files, path};
use super::frame::FileId;
use crate::volume::VolumeFile;

/// Jobs that may wait before the writer waits too.
pub(crate) const JOBS_MAX: usize = 64;

/// One job.
#[derive(Debug)]
pub(crate) enum Job {
    /// fdatasync a file whose footer was written.
    Sync(Arc<dyn VolumeFile>),
    /// Unlink a file that nothing needs.
    Remove(FileId),
}

/// Does jobs in order until the writer is gone.
pub(crate) async fn run(files: Arc<Files>, mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        match job {
            Job::Sync(file) => {
                if let Err(error) = file.sync_data().await {
                    // The data before it is durable; without a footer the file is read instead.
                    tracing::warn!(%error, "a footer may not be durable");
                }
            }
            Job::Remove(id) => {
                files.remove(id);
                match files.volume().remove(&path(id)).await {
                    Err(error) if !error.is_not_found() => {
                        tracing::warn!(%error, "a journal file that nothing needs stays");
                    }
                    _ => {}
                }
            }
        }
    }
}

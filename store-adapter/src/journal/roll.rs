//! How the writer goes from file to file, and ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::FlushPolicy;
use super::extents::FileIndex;
use super::file::{FileHeader, FileId};
use super::files::{Closed, journal_dir, path};
use super::keeper::Job;
use super::newest;
use super::owned_error;
use super::queue::{Reply, answer};
use super::recovery::{Current, begin_file};
use super::round::footer;
use super::writer::Writer;
use crate::store::StoreError;
use crate::volume::VolumeError;
use crate::volume::owned::OwnedError;

impl Writer {
    /// Begins the next file and closes the current one. On failure the current one stays.
    pub(super) async fn roll(&mut self) -> Result<(), VolumeError> {
        let old = self.current.id;
        let volume = Arc::clone(self.parts.files.volume());
        let id = FileId {
            seq: old.seq.saturating_add(1),
            ..old
        };
        let header = FileHeader {
            id,
            first_lsn: self.current.first_lsn.saturating_add(self.current.position),
            previous_len: self.current.position,
            rewritten: None,
            unsynced: self.parts.config.flush == FlushPolicy::Os,
        };
        if header.unsynced {
            // The new file says how long this one is, and what logs have in it: all of that must
            // outlive a power cut that leaves the new file.
            self.current.file.sync_data().await?;
        }
        let file = match volume.create_new(&path(id)).await {
            // Left by an attempt whose outcome was lost: it has no header.
            Err(VolumeError::AlreadyExists { .. }) => {
                volume.remove(&path(id)).await?;
                volume.create_new(&path(id)).await?
            }
            outcome => outcome?,
        };
        let next = match begin_file(&volume, &file, header, &self.table).await {
            Ok(next) => next,
            Err(error) => {
                self.abandon(id).await;
                return Err(error);
            }
        };
        self.witness(id).await?;
        self.parts.files.add_handle(id, file);
        let before = std::mem::replace(&mut self.current, next);
        *self.garbage.current.lock() = Arc::clone(&self.current.file);
        self.garbage.written.store(0, Ordering::Relaxed);
        let index = self.active_index();
        let mut closed = Closed {
            len: before.position,
            footer: false,
        };
        if std::mem::take(&mut self.must_leave) {
            self.unsure.insert(old);
        } else if let Some(len) = write_footer(&before, &index).await {
            closed = Closed { len, footer: true };
            self.keep(Job::Sync(before.file)).await;
        }
        let users = self.seal_logs(old, closed, index);
        if users == 0 {
            self.remove_files(vec![old]).await;
        } else {
            self.refs.insert(old, users);
            self.garbage.more.notify_one();
        }
        Ok(())
    }

    /// Begins the next file, so that the batches of this one are in a closed one.
    pub(super) async fn roll_if_used(&mut self, reply: Reply<()>) {
        let outcome = match self.current.written() {
            0 => Ok(()),
            _ => self.roll().await,
        };
        answer(reply, outcome.map_err(|error| super::volume_error(&error)));
    }

    /// Makes a new file known. Where it may or may not be known, it can be neither used nor
    /// taken back: the shard ends, and the next opening finds out.
    async fn witness(&self, id: FileId) -> Result<(), VolumeError> {
        let error = match newest::witness(&self.claim, id).await {
            Ok(()) => return Ok(()),
            Err(OwnedError::NotApplied(error)) => {
                self.abandon(id).await;
                return Err(error);
            }
            Err(error) => error,
        };
        let closed = match owned_error(&error) {
            StoreError::Fenced => StoreError::Fenced,
            other => StoreError::Offline(other.to_string()),
        };
        tracing::warn!(shard = self.shard.id.0, %error, "the shard is closed");
        self.shard.queue.close(&closed);
        Err(match error {
            OwnedError::MaybeApplied(error) => error,
            error => VolumeError::Io {
                path: path(id).to_string(),
                what: "begin",
                cause: error.to_string(),
            },
        })
    }

    /// Takes back a file that could not be begun. While it may be found, the file before it must
    /// not grow: its header says where that one ends.
    async fn abandon(&self, id: FileId) {
        let volume = self.parts.files.volume();
        let removed = async {
            volume.remove(&path(id)).await?;
            volume.sync_dir(&journal_dir(id.shard)).await
        };
        if let Err(error) = removed.await {
            let error = StoreError::Offline(error.to_string());
            tracing::error!(shard = self.shard.id.0, %error, "the shard is offline");
            self.shard.queue.close(&error);
        }
    }

    /// The index of the file that is being written.
    fn active_index(&self) -> FileIndex {
        let logs = self
            .logs
            .iter()
            .map(|(id, log)| (*id, log.index.read().active.clone()));
        FileIndex {
            logs: logs.filter(|(_, extents)| !extents.is_empty()).collect(),
        }
    }

    /// Turns the logs' extents in `file` into summaries; returns how many logs have some.
    fn seal_logs(&self, file: FileId, closed: Closed, index: FileIndex) -> usize {
        self.parts.files.add(file, closed, Some(index));
        let sealed = self.logs.values().map(|log| log.index.write().seal());
        sealed.filter(|sealed| *sealed).count()
    }

    pub(super) async fn close(mut self, reply: Reply<()>) {
        let outcome = if self.must_leave {
            Ok(())
        } else {
            let index = self.active_index();
            // Without a footer the next opening reads the file instead.
            write_footer(&self.current, &index).await;
            self.current.file.sync_data().await
        };
        self.shard
            .queue
            .close(&StoreError::Offline("the shard is closed".to_owned()));
        // Before the logs are forgotten: without them no file seems to be needed.
        self.garbage.ended.cancel();
        self.parts.registry.remove_shard(self.shard.id);
        self.logs.clear();
        answer(reply, outcome.map_err(|error| super::volume_error(&error)));
    }
}

/// Writes the footer of `current` behind its data, not synced; returns where it ends.
async fn write_footer(current: &Current, index: &FileIndex) -> Option<u64> {
    let position = current.position;
    let payload = index.encode_footer(position);
    let parts = footer(payload, current.id.seed(), position);
    let len: usize = parts.iter().map(bytes::Bytes::len).sum();
    match current.file.write_at(position, &parts).await {
        Ok(()) => Some(position.saturating_add(len as u64)),
        Err(error) => {
            tracing::warn!(%error, "a journal file stays without a footer");
            None
        }
    }
}

//! `marker_queue/*` on the volume. Entries are put by the owner of the transactional id's slot,
//! under its claim; the receiver renames them, so nobody may miss one: they have no marks.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use store_adapter::ids::{BrokerId, ProducerId};
use store_adapter::runtime::BoxFuture;
use store_adapter::volume::owned::{Claim, OwnedError};
use store_adapter::volume::sum::with_sum;
use store_adapter::volume::{DirEntry, VolumeError, VolumePath};
use tokio::sync::watch;

use super::files::Files;
use super::txn_files::VolumeSlotFiles;
use super::view::ClusterView;
use crate::service::marker_queue::{
    QueueFileError, QueueFiles, QueueName, Received, Standing, Stray,
};
use crate::slot_hash::fnv1a32;
use crate::volume::format::{self, Format, MarkerQueueFile};
use crate::volume::layout::{self, Place};

/// Entries of the own queue that are taken at a time.
const TAKE: usize = 1000;
/// How many entries that were put are remembered. Forgetting costs one more write.
const PUT_MAX: usize = 1 << 16;

/// The marker queues on the volume. Its futures are awaited in an io task only.
#[derive(Debug)]
pub struct VolumeQueueFiles {
    files: Files,
    slots: Arc<VolumeSlotFiles>,
    view: watch::Receiver<Arc<ClusterView>>,
    /// Queues whose directory is there.
    made: Mutex<BTreeSet<BrokerId>>,
    /// Entries that this process has put durably, with the numbers of their transactions.
    put: Mutex<BTreeSet<(QueueName, u64)>>,
    /// The last entry of the own queue that was looked at.
    last: Mutex<Option<VolumePath>>,
}

/// What an open of a queue file found.
enum Found {
    Nothing,
    Damaged,
    File(MarkerQueueFile),
}

impl VolumeQueueFiles {
    pub(super) fn new(
        files: Files,
        slots: Arc<VolumeSlotFiles>,
        view: watch::Receiver<Arc<ClusterView>>,
    ) -> Self {
        Self {
            files,
            slots,
            view,
            made: Mutex::default(),
            put: Mutex::default(),
            last: Mutex::default(),
        }
    }

    async fn read(&self, path: &VolumePath, pid: ProducerId) -> Result<Found, VolumeError> {
        let bytes = match self.files.volume.read(path, MarkerQueueFile::LEN_MAX).await {
            Ok(bytes) => bytes,
            Err(VolumeError::NotFound { .. }) => return Ok(Found::Nothing),
            Err(VolumeError::TooLarge { len, .. }) => {
                self.files.damaged(path, format!("{len} bytes"), None).await;
                return Ok(Found::Damaged);
            }
            Err(error) => return Err(error),
        };
        let decoded = format::decode::<MarkerQueueFile>(&bytes);
        let why = match decoded {
            Ok(file) if file.producer_id == pid.0 => return Ok(Found::File(file)),
            Ok(file) => format!("it is of producer {}", file.producer_id),
            Err(error) => error.to_string(),
        };
        self.files.damaged(path, why, Some(bytes)).await;
        Ok(Found::Damaged)
    }

    /// An entry is asked for again as long as its transaction is not complete, which may take as
    /// long as anything else of it can't be carried out.
    async fn put_entry(
        &self,
        name: QueueName,
        entry: &MarkerQueueFile,
    ) -> Result<(), QueueFileError> {
        let put = entry.txn_seq.map(|txn_seq| (name, txn_seq));
        let known = put.filter(|put| self.put.lock().contains(put));
        if let Some((_, txn_seq)) = known {
            let stands = self.stands(name, txn_seq, entry).await;
            if stands.map_err(unavailable)? {
                return Ok(());
            }
        }
        self.write_entry(name, entry).await?;
        let mut known = self.put.lock();
        if known.len() >= PUT_MAX {
            known.clear();
        }
        known.extend(put);
        Ok(())
    }

    /// Whether an entry that was put is there as it should be, or was carried out.
    async fn stands(
        &self,
        name: QueueName,
        txn_seq: u64,
        entry: &MarkerQueueFile,
    ) -> Result<bool, VolumeError> {
        match self.read(&entry_path(name), name.pid).await? {
            Found::File(file) => return Ok(waits(&file, entry)),
            Found::Damaged => return Ok(false),
            Found::Nothing => {}
        }
        let wanted = entry.asked();
        Ok(
            match self.read(&done_path(name, txn_seq), name.pid).await? {
                Found::File(done) => {
                    done.is_same_decision(entry) && done.asked().shared_with(&wanted) == wanted
                }
                Found::Damaged | Found::Nothing => false,
            },
        )
    }

    async fn write_entry(
        &self,
        name: QueueName,
        entry: &MarkerQueueFile,
    ) -> Result<(), QueueFileError> {
        let slots = self.view.borrow().assignment.txn_slots.len();
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        let slot = fnv1a32(entry.transactional_id.as_bytes()).checked_rem(slots);
        let claim = slot.and_then(|slot| self.slots.claim_of(slot));
        let claim = claim.ok_or(QueueFileError::Stale)?;
        let path = entry_path(name);
        if !self.made.lock().contains(&name.to) {
            let made = self.files.volume.create_dir_all(&path.parent()).await;
            made.map_err(unavailable)?;
            self.made.lock().insert(name.to);
        }
        let found = self.read(&path, name.pid).await.map_err(unavailable)?;
        let Found::File(file) = found else {
            return put(&claim, &path, entry).await;
        };
        if !file.is_same_decision(entry) {
            let (found, txn_seq) = (file.txn_seq, entry.txn_seq);
            tracing::error!(%path, ?found, ?txn_seq, "an entry of another transaction is there");
            return Err(QueueFileError::Taken { found, txn_seq });
        }
        let (asked, wanted) = (file.asked(), entry.asked());
        let both = asked.shared_with(&wanted);
        if both == wanted {
            return put(&claim, &path, entry).await;
        }
        if both != asked {
            put(&claim, &path, &entry.asking(&both)).await?;
        }
        Err(QueueFileError::Waits)
    }

    async fn own_entries(&self) -> Result<Vec<Received>, VolumeError> {
        let dir = layout::marker_queue_dir(self.files.broker);
        match self.files.volume.list(&dir).await {
            // Nobody ever owed this broker anything; a stale look is made up for by the next.
            Err(VolumeError::NotFound { .. }) => return Ok(Vec::new()),
            listed => drop(listed?),
        }
        let mut received = Vec::new();
        for path in self.turn(&dir, &self.files.fresh_list(&dir).await?) {
            let Some(Place::MarkerQueue(_, pid, record_epoch)) = Place::parse(&path) else {
                continue;
            };
            match self.read(&path, pid).await {
                Ok(Found::File(file)) => received.push(Received {
                    pid,
                    record_epoch,
                    file,
                }),
                Ok(Found::Nothing | Found::Damaged) => {}
                // The others are not held up.
                Err(error) => tracing::warn!(%path, %error, "a queue entry is not read"),
            }
        }
        Ok(received)
    }

    /// The entries that are looked at now: those that can't be carried out hold no others up.
    fn turn(&self, dir: &VolumePath, listed: &[DirEntry]) -> Vec<VolumePath> {
        let paths = listed.iter().map(|entry| dir.join(&entry.name));
        let is_entry =
            |path: &VolumePath| matches!(Place::parse(path), Some(Place::MarkerQueue(..)));
        let mut paths: Vec<VolumePath> = paths.filter(is_entry).collect();
        paths.sort();
        let mut last = self.last.lock();
        let seen = |path: &VolumePath| last.as_ref().is_some_and(|last| path <= last);
        let first = paths.partition_point(seen);
        paths.rotate_left(first);
        paths.truncate(TAKE);
        *last = paths.last().cloned();
        paths
    }

    async fn set_done(&self, one: &Received) -> Result<(), VolumeError> {
        let own = self.files.broker;
        let entry = Place::MarkerQueue(own, one.pid, one.record_epoch).path();
        if let Found::File(file) = self.read(&entry, one.pid).await? {
            let (asked, done) = (file.asked(), one.file.asked());
            if !file.is_same_decision(&one.file) || asked.shared_with(&done) != asked {
                return Ok(());
            }
        }
        match one.file.txn_seq {
            None => self.files.remove_if_there(&entry).await?,
            Some(txn_seq) => {
                let done = Place::MarkerDone(own, one.pid, one.record_epoch, txn_seq).path();
                match self.files.volume.rename(&entry, &done).await {
                    // Removed by its owner, or renamed by a call whose answer was lost.
                    Err(error) if !error.is_not_found() => return Err(error),
                    _ => {}
                }
            }
        }
        self.files.volume.sync_dir(&entry.parent()).await
    }

    async fn standing(
        &self,
        name: QueueName,
        txn_seq: u64,
        wanted: &MarkerQueueFile,
    ) -> Result<Standing, VolumeError> {
        // Before the done file: one that is renamed meanwhile is found there.
        let entry = self.read(&entry_path(name), name.pid).await?;
        let done = done_path(name, txn_seq);
        match self.read(&done, name.pid).await? {
            Found::File(file) if file.is_same_decision(wanted) => {
                // What is dropped on the strength of it must not come back without it.
                self.files.volume.sync_dir(&done.parent()).await?;
                return Ok(Standing::Done(Box::new(file)));
            }
            Found::File(file) => {
                let found = file.txn_seq;
                tracing::error!(path = %done, ?found, "a done file of another transaction");
                self.files.remove_if_there(&done).await?;
            }
            Found::Damaged => self.files.remove_if_there(&done).await?,
            Found::Nothing => {}
        }
        Ok(match entry {
            Found::File(file) if waits(&file, wanted) => Standing::Queued,
            Found::File(_) | Found::Damaged | Found::Nothing => Standing::Missing,
        })
    }

    async fn everything(&self) -> Result<Vec<Stray>, VolumeError> {
        let root = layout::marker_queues_dir();
        let queues = match self.files.volume.list(&root).await {
            Err(VolumeError::NotFound { .. }) => return Ok(Vec::new()),
            queues => queues?,
        };
        let mut found = Vec::new();
        for queue in queues.iter().filter(|queue| queue.is_dir) {
            let dir = root.join(&queue.name);
            for entry in self.files.volume.list(&dir).await? {
                let path = dir.join(&entry.name);
                let (to, pid, record_epoch, done) = match Place::parse(&path) {
                    Some(Place::MarkerQueue(to, pid, epoch)) => (to, pid, epoch, None),
                    Some(Place::MarkerDone(to, pid, epoch, seq)) => (to, pid, epoch, Some(seq)),
                    _ => continue,
                };
                let file = match self.read(&path, pid).await {
                    Ok(Found::Nothing) => continue,
                    Ok(Found::Damaged) => None,
                    Ok(Found::File(file)) => Some(file),
                    Err(error) => {
                        tracing::warn!(%path, %error, "a queue entry is not read");
                        continue;
                    }
                };
                let name = QueueName {
                    to,
                    pid,
                    record_epoch,
                };
                found.push(Stray { name, done, file });
            }
        }
        Ok(found)
    }

    async fn unlink(&self, path: &VolumePath) -> Result<(), QueueFileError> {
        let removed = self.files.remove_if_there(path).await;
        removed.map_err(unavailable)?;
        let synced = self.files.volume.sync_dir(&path.parent()).await;
        synced.map_err(unavailable)
    }
}

/// Whether an entry asks for what it should, in the name of no older coordinator.
fn waits(file: &MarkerQueueFile, wanted: &MarkerQueueFile) -> bool {
    file.is_same_decision(wanted)
        && file.asked() == wanted.asked()
        && file.coordinator_epoch >= wanted.coordinator_epoch
}

async fn put(
    claim: &Claim,
    path: &VolumePath,
    entry: &MarkerQueueFile,
) -> Result<(), QueueFileError> {
    let bytes =
        format::encode(entry).map_err(|error| QueueFileError::Unavailable(error.to_string()))?;
    claim.put(path, with_sum(&bytes)).await.map_err(owned_error)
}

fn entry_path(name: QueueName) -> VolumePath {
    Place::MarkerQueue(name.to, name.pid, name.record_epoch).path()
}

fn done_path(name: QueueName, txn_seq: u64) -> VolumePath {
    Place::MarkerDone(name.to, name.pid, name.record_epoch, txn_seq).path()
}

#[allow(clippy::needless_pass_by_value, reason = "maps errors")]
fn unavailable(error: VolumeError) -> QueueFileError {
    QueueFileError::Unavailable(error.to_string())
}

fn owned_error(error: OwnedError) -> QueueFileError {
    match error {
        OwnedError::Stale => QueueFileError::Stale,
        error => QueueFileError::Unavailable(error.to_string()),
    }
}

impl QueueFiles for VolumeQueueFiles {
    fn put<'a>(
        &'a self,
        name: QueueName,
        entry: &'a MarkerQueueFile,
    ) -> BoxFuture<'a, Result<(), QueueFileError>> {
        Box::pin(self.put_entry(name, entry))
    }

    fn received(&self) -> BoxFuture<'_, Result<Vec<Received>, QueueFileError>> {
        Box::pin(async move { self.own_entries().await.map_err(unavailable) })
    }

    fn done<'a>(&'a self, one: &'a Received) -> BoxFuture<'a, Result<(), QueueFileError>> {
        Box::pin(async move { self.set_done(one).await.map_err(unavailable) })
    }

    fn look<'a>(
        &'a self,
        name: QueueName,
        txn_seq: u64,
        wanted: &'a MarkerQueueFile,
    ) -> BoxFuture<'a, Result<Standing, QueueFileError>> {
        Box::pin(async move {
            let standing = self.standing(name, txn_seq, wanted).await;
            standing.map_err(unavailable)
        })
    }

    fn remove_done(
        &self,
        name: QueueName,
        txn_seq: u64,
    ) -> BoxFuture<'_, Result<(), QueueFileError>> {
        Box::pin(async move {
            self.put.lock().remove(&(name, txn_seq));
            self.unlink(&done_path(name, txn_seq)).await
        })
    }

    fn all(&self) -> BoxFuture<'_, Result<Vec<Stray>, QueueFileError>> {
        Box::pin(async move { self.everything().await.map_err(unavailable) })
    }

    fn remove<'a>(&'a self, stray: &'a Stray) -> BoxFuture<'a, Result<(), QueueFileError>> {
        Box::pin(async move {
            let path = match stray.done {
                Some(txn_seq) => done_path(stray.name, txn_seq),
                None => entry_path(stray.name),
            };
            self.unlink(&path).await
        })
    }
}

//! A shard as it lies on the volume, read without changing anything: for people who look into a
//! store while no broker runs.
//!
//! sled writes to what it opens. It is given a copy of the database, in a directory of this
//! process: that takes as much room as the database.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::db::{Db, Unopened};
use super::reader::Reader;
use super::recovery::{copy, ended, exists, look, refuse_journal};
use super::rounds::{counted, reaches, refuse_newer};
use super::shard::{Log, Registry, Shard};
use super::state::Entry;
use super::{kv_dir, sled_dir};
use crate::ids::{LogId, ShardId};
use crate::journal::{Finding, OfflineFile, OfflineLog, finding, volume_error};
use crate::store::{StoreError, StoredBatch};
use crate::volume::{PosixVolume, Volume, VolumeError};

/// Bytes that are read at once where all batches of a log are.
const READ_BYTES: usize = 1 << 20;
/// Bytes that sled may cache.
const CACHE_BYTES: u64 = 16 << 20;

/// A shard that was read.
#[derive(Debug)]
pub struct OfflineKv {
    shard: ShardId,
    /// `None` where none was begun yet.
    db: Option<Db>,
    logs: BTreeMap<LogId, (Reader, OfflineLog)>,
    files: Vec<OfflineFile>,
}

impl OfflineKv {
    /// Whether the shard lies in a database, as far as the names of its files say.
    ///
    /// # Errors
    /// When the directory can't be read.
    pub async fn lies_in(volume: &Arc<dyn Volume>, shard: ShardId) -> Result<bool, StoreError> {
        for (dir, name) in [(kv_dir(shard), "rounds"), (sled_dir(shard), "db")] {
            match exists(volume, &dir, name).await {
                Ok(true) => return Ok(true),
                Err(error) if !error.is_not_found() => return Err(volume_error(&error)),
                _ => {}
            }
        }
        Ok(false)
    }

    /// Reads what a shard holds, by a copy in `scratch`, a local directory that nobody else uses.
    /// Blocks.
    ///
    /// # Errors
    /// Where an opening would refuse the shard, and when there is no room for the copy.
    pub async fn read(
        volume: &Arc<dyn Volume>,
        shard: ShardId,
        scratch: &Path,
    ) -> Result<Self, StoreError> {
        let io = |error: VolumeError| volume_error(&error);
        refuse_newer(volume, shard).await?;
        refuse_journal(volume, shard).await?;
        let dir = sled_dir(shard);
        let is_new = match exists(volume, &dir, "db").await {
            Err(error) if error.is_not_found() => true,
            there => !there.map_err(io)?,
        };
        let acknowledged = counted(volume, shard, is_new).await?;
        if is_new {
            // Without a database no round may be missing.
            reaches(shard, 0, acknowledged)?;
            return Ok(Self {
                shard,
                db: None,
                logs: BTreeMap::new(),
                files: Vec::new(),
            });
        }
        let mut bytes = 0;
        let room = |error: VolumeError| {
            let scratch = scratch.display();
            StoreError::Offline(format!("{dir}: no copy of it in {scratch}: {error}"))
        };
        let copies = PosixVolume::existing(scratch).map_err(room)?;
        copies.create_dir_all(&dir).await.map_err(room)?;
        for entry in volume.list(&dir).await.map_err(io)? {
            if entry.is_dir {
                continue;
            }
            let path = dir.join(&entry.name);
            let from = volume.open(&path).await.map_err(io)?;
            bytes += from.size().await.map_err(io)?;
            let to = copies.create_new(&path).await.map_err(room)?;
            copy(&*from, &*to).await.map_err(room)?;
        }
        let db = Db::open(scratch.join(dir.as_str()), dir.to_string(), CACHE_BYTES);
        let db = db.map_err(|error| match error {
            Unopened::Refused(error) => error,
            Unopened::Busy => ended(shard),
        })?;
        let found = look(&db)?;
        reaches(shard, found.round, acknowledged)?;
        let closed = Arc::new(Shard::new(shard, 0));
        let logs = found.table.iter();
        let logs: BTreeMap<_, _> = logs
            .map(|(id, entry)| (*id, log(*id, entry, &closed)))
            .collect();
        let needed = logs.values().map(|(_, found)| found.bytes).sum();
        let file = OfflineFile {
            path: dir.to_string(),
            bytes,
            footer: false,
            needed,
            logs: logs.len(),
            torn_bytes: 0,
            damaged: false,
        };
        Ok(Self {
            shard,
            db: Some(db),
            logs,
            files: vec![file],
        })
    }

    /// The shard.
    pub fn id(&self) -> ShardId {
        self.shard
    }

    /// Its logs, in order of their ids.
    pub fn logs(&self) -> impl Iterator<Item = &OfflineLog> {
        self.logs.values().map(|(_, found)| found)
    }

    /// Its database, as if that were one file; nothing where none was begun.
    pub fn files(&self) -> &[OfflineFile] {
        &self.files
    }

    /// Batches from the one that holds `from` on, about 1 MiB of them; none at the end.
    ///
    /// # Errors
    /// As of [`crate::store::LogStore::read`].
    pub fn batches(&self, id: LogId, from: i64) -> Result<Vec<StoredBatch>, StoreError> {
        let known = self.logs.get(&id).zip(self.db.as_ref());
        let ((reader, log), db) = known.ok_or(StoreError::NotFound)?;
        if from >= log.bounds.end {
            return Ok(Vec::new());
        }
        let (mut taken, mut bytes) = (Vec::new(), 0_usize);
        reader.each(db, from, |base, meta| {
            bytes = bytes.saturating_add(meta.len as usize);
            let full = bytes > READ_BYTES && !taken.is_empty();
            if full || base >= log.bounds.end {
                return Ok(false);
            }
            taken.push((base, *meta));
            Ok(true)
        })?;
        let taken = taken.iter();
        let batches = taken.map(|(base, meta)| reader.batch(db, *base, meta));
        batches.collect()
    }

    /// What is not as it should be, where the shard could be read at all; `deep`, in every batch of
    /// every log.
    pub fn check(&self, deep: bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        for log in self.logs().filter(|_| deep) {
            let mut next = log.bounds.start;
            while next < log.bounds.end {
                match self.batches(log.id, next) {
                    Ok(batches) => match batches.last() {
                        Some(last) => next = last.last_offset.saturating_add(1),
                        None => break,
                    },
                    Err(error) => {
                        findings.push(finding(&log.name, log.id, &error));
                        break;
                    }
                }
            }
        }
        findings
    }
}

fn log(id: LogId, entry: &Entry, shard: &Arc<Shard>) -> (Reader, OfflineLog) {
    let log = Log::new(id, entry, shard);
    let found = OfflineLog {
        id,
        name: entry.name.to_string(),
        bounds: entry.bounds,
        epoch: entry.epoch,
        last_epoch: entry.last_epoch,
        bytes: log.size().bytes,
        damaged: None,
    };
    let registry = Arc::new(Registry::default());
    (Reader { log, registry }, found)
}

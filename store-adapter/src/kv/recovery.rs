//! Opens a shard: claim it, make durable what sled will look at, open the database, check that
//! everything acknowledged is in it.
//!
//! Order matters. The files are synced before sled sees them: it writes down where it found
//! things, durably, and would be wrong about them after a power cut. What was found is counted as
//! acknowledged before it is shown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::db::{Db, Unopened};
use super::keys::{self, Meta};
use super::rounds::{Rounds, damaged, refuse_newer, rounds_path};
use super::state::{Entry, Table};
use super::{KvConfig, kv_dir, sled_dir};
use crate::ids::{LogId, OwnerEpoch, ShardId};
use crate::journal::files::journal_dir;
use crate::journal::{FlushPolicy, owned_error, volume_error};
use crate::runtime::Env;
use crate::store::StoreError;
use crate::volume::owned::{Area, Claim, OwnedFiles, PresentOwner};
use crate::volume::{Volume, VolumeError, VolumeFile, VolumePath};

/// How long the lock of a process is waited for that is dying, or has just lost its claim: it ends
/// its round, and sled syncs when it closes.
const LOCK_WAIT: Duration = Duration::from_secs(15);
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Bytes that are copied at once.
const COPY_BYTES: usize = 8 << 20;

/// What is to be opened, and by whom.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) env: &'a Env,
    pub(super) owned: &'a OwnedFiles,
    /// The directory that the volume's root is.
    pub(super) root: &'a Path,
    pub(super) config: &'a KvConfig,
    pub(super) shard: ShardId,
    pub(super) owner: OwnerEpoch,
    /// Whether this process failed to sync the database, now or before: what the page cache has is
    /// not what the disk has.
    pub(super) unsynced: &'a AtomicBool,
}

/// An open shard.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) claim: Claim,
    pub(super) db: Arc<Db>,
    /// The file that sled writes, for syncing it.
    pub(super) file: Arc<dyn VolumeFile>,
    pub(super) rounds: Rounds,
    pub(super) found: Found,
}

/// What a database holds.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The logs.
    pub(super) table: Table,
    /// The last round.
    pub(super) round: u64,
    /// The birth of the next log.
    pub(super) next_birth: u64,
    /// Births of deleted logs of which something is left.
    pub(super) deleted: BTreeSet<u64>,
    /// Logs of which something below the start is left.
    pub(super) trimmed: BTreeSet<LogId>,
}

/// Claims and opens a shard.
pub(super) async fn open(request: &Request<'_>) -> Result<Opened, StoreError> {
    let (shard, config) = (request.shard, request.config);
    let volume = request.owned.volume();
    refuse_newer(volume, shard).await?;
    refuse_journal(volume, shard).await?;
    let owner = PresentOwner {
        epoch: request.owner,
        broker: config.broker,
        instance: request.owner.instance,
    };
    let claim = request.owned.take_over(Area::Shard(shard), owner).await;
    let claim = claim.map_err(|error| owned_error(&error))?;
    let io = |error: VolumeError| volume_error(&error);
    volume.create_dir_all(&sled_dir(shard)).await.map_err(io)?;
    let is_new = !exists(volume, &sled_dir(shard), "db").await.map_err(io)?;
    let mut rounds = Rounds::open(volume, shard, is_new).await?;
    if is_new {
        // Without a database no round may be missing.
        rounds.check(shard, 0)?;
    } else {
        if request.unsynced.load(Ordering::SeqCst) {
            rewrite(volume, shard).await.map_err(io)?;
        }
        sync_or_note(request).await?;
    }
    let db = lock_and_open(request).await?;
    sync_or_note(request).await?;
    let found = look(&db)?;
    rounds.check(shard, found.round)?;
    if config.flush == FlushPolicy::Fsync {
        rounds.count(found.round).await.map_err(io)?;
    }
    let file = volume.open(&sled_dir(shard).join("db")).await.map_err(io)?;
    claim.check().await.map_err(|error| owned_error(&error))?;
    Ok(Opened {
        claim,
        db: Arc::new(db),
        file,
        rounds,
        found,
    })
}

/// Refuses a shard whose batches lie in a journal: it would look empty.
pub(super) async fn refuse_journal(
    volume: &Arc<dyn Volume>,
    shard: ShardId,
) -> Result<(), StoreError> {
    let dir = journal_dir(shard);
    match volume.list(&dir).await {
        Ok(files)
            if files
                .iter()
                .any(|file| file.name.strip_suffix(".log").is_some()) =>
        {
            Err(StoreError::Offline(format!(
                "{dir}: the shard is a journal, and has not layout=kv"
            )))
        }
        Err(error) if !error.is_not_found() => Err(volume_error(&error)),
        _ => Ok(()),
    }
}

/// Refuses a shard whose batches lie in a database, where a journal is looked for.
pub(crate) async fn refuse_kv(volume: &Arc<dyn Volume>, shard: ShardId) -> Result<(), StoreError> {
    let path = rounds_path(shard);
    match volume.open(&path).await {
        Ok(_) => Err(StoreError::Offline(format!(
            "{}: the shard has layout=kv, and is no journal",
            kv_dir(shard)
        ))),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(volume_error(&error)),
    }
}

pub(super) async fn exists(
    volume: &Arc<dyn Volume>,
    dir: &VolumePath,
    name: &str,
) -> Result<bool, VolumeError> {
    let names = volume.list(dir).await?;
    Ok(names.iter().any(|entry| entry.name == name))
}

/// As [`sync`]; notes a failure.
async fn sync_or_note(request: &Request<'_>) -> Result<(), StoreError> {
    let synced = sync(request.owned.volume(), request.shard).await;
    request.unsynced.fetch_or(synced.is_err(), Ordering::SeqCst);
    synced.map_err(|error| volume_error(&error))
}

/// Makes durable what lies in the database's directory.
async fn sync(volume: &Arc<dyn Volume>, shard: ShardId) -> Result<(), VolumeError> {
    let dir = sled_dir(shard);
    for entry in volume.list(&dir).await? {
        if !entry.is_dir {
            match volume.open(&dir.join(&entry.name)).await {
                Ok(file) => file.sync_data().await?,
                // sled replaces its own files.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
    }
    volume.sync_dir(&dir).await?;
    volume.sync_dir(&dir.parent()).await?;
    volume.sync_dir(&dir.parent().parent()).await
}

/// Writes the database's file anew: after a failed sync the page cache may hold what the disk does
/// not, and does not write it again by itself.
async fn rewrite(volume: &Arc<dyn Volume>, shard: ShardId) -> Result<(), VolumeError> {
    let (path, draft) = (sled_dir(shard).join("db"), kv_dir(shard).join("db-draft"));
    match volume.remove(&draft).await {
        Err(error) if !error.is_not_found() => return Err(error),
        _ => {}
    }
    let from = volume.open(&path).await?;
    let to = volume.create_new(&draft).await?;
    copy(&*from, &*to).await?;
    to.sync_data().await?;
    volume.rename(&draft, &path).await?;
    volume.sync_dir(&path.parent()).await
}

/// Copies what is in a file.
pub(super) async fn copy(from: &dyn VolumeFile, to: &dyn VolumeFile) -> Result<(), VolumeError> {
    let mut position = 0;
    loop {
        let bytes: Bytes = from.read_at(position, COPY_BYTES).await?;
        if bytes.is_empty() {
            return Ok(());
        }
        let len = bytes.len() as u64;
        to.write_at(position, &[bytes]).await?;
        position += len;
    }
}

async fn lock_and_open(request: &Request<'_>) -> Result<Db, StoreError> {
    let dir = sled_dir(request.shard);
    let path = request.root.join(dir.as_str());
    let clock = &request.env.clock;
    let until = clock.monotonic() + LOCK_WAIT;
    loop {
        match Db::open(path.clone(), dir.to_string(), request.config.cache_bytes) {
            Ok(db) => return Ok(db),
            Err(Unopened::Refused(error)) => return Err(error),
            Err(Unopened::Busy) if clock.monotonic() >= until => {
                return Err(StoreError::Offline(format!(
                    "{dir}: in use by another process"
                )));
            }
            Err(Unopened::Busy) => clock.sleep(LOCK_PAUSE).await,
        }
    }
}

/// Reads what there is, but for the bytes of batches, and checks that it fits together.
pub(super) fn look(db: &Db) -> Result<Found, StoreError> {
    let mut found = Found::default();
    if let Some(value) = db.get(keys::ROUND_KEY)? {
        let round = keys::decode_round(&value);
        found.round = round.ok_or_else(|| db.damaged("the number of the last round".to_owned()))?;
    }
    db.each(
        vec![keys::DELETED]..vec![keys::DELETED + 1],
        |key, value| {
            let birth = keys::deleted_of(key).filter(|_| keys::opened(key, value).is_some());
            let birth = birth.ok_or_else(|| db.damaged("the entry of a deleted log".to_owned()))?;
            found.next_birth = found.next_birth.max(birth + 1);
            found.deleted.insert(birth);
            Ok(true)
        },
    )?;
    db.each(vec![keys::LOGS]..vec![keys::LOGS + 1], |key, value| {
        let log = keys::log_of(key).zip(keys::decode_log(key, value));
        let (log, entry) = log.ok_or_else(|| db.damaged("the entry of a log".to_owned()))?;
        found.next_birth = found.next_birth.max(entry.birth + 1);
        found.table.insert(log, entry);
        Ok(true)
    })?;
    if found.round == 0 && !(found.table.is_empty() && found.deleted.is_empty()) {
        return Err(db.damaged("the number of the last round is gone".to_owned()));
    }
    check_batches(db, &mut found)?;
    Ok(found)
}

/// A log while its batches are gone through.
struct Walk<'a> {
    log: LogId,
    entry: &'a Entry,
    /// Behind the last batch, and the bytes up to there; `None` before the first.
    next: Option<(i64, u64)>,
    /// Bytes of the batches from the start on, as they are now.
    bytes: u64,
}

/// Checks that the batches of each log lie one behind the other from its start to its end.
fn check_batches(db: &Db, found: &mut Found) -> Result<(), StoreError> {
    let mut walks: BTreeMap<u64, Walk<'_>> = BTreeMap::new();
    for (log, entry) in &found.table {
        let walk = Walk {
            log: *log,
            entry,
            next: None,
            bytes: 0,
        };
        walks.insert(entry.birth, walk);
    }
    let mut trimmed = BTreeSet::new();
    db.each(
        vec![keys::BATCHES]..vec![keys::BATCHES + 1],
        |key, value| {
            let batch = keys::batch_of(key).zip(Meta::decode(key, value));
            let ((birth, base), meta) =
                batch.ok_or_else(|| db.damaged("the entry of a batch".to_owned()))?;
            match walks.get_mut(&birth) {
                Some(walk) => {
                    if meta.last < walk.entry.bounds.start {
                        trimmed.insert(walk.log);
                    }
                    walk.step(db, base, &meta)?;
                }
                None if found.deleted.contains(&birth) => {}
                None => return Err(db.damaged("a batch of no log".to_owned())),
            }
            Ok(true)
        },
    )?;
    let gone = walks.values().map(|walk| Ok((walk.log, walk.finish(db)?)));
    for (log, gone) in gone.collect::<Result<Vec<_>, StoreError>>()? {
        if let Some(entry) = found.table.get_mut(&log) {
            entry.gone = gone;
        }
    }
    found.trimmed = trimmed;
    Ok(())
}

impl Walk<'_> {
    fn step(&mut self, db: &Db, base: i64, meta: &Meta) -> Result<(), StoreError> {
        if let Some((next, _)) = self.next
            && next != base
        {
            return Err(self.damaged(db, next));
        }
        let bounds = self.entry.bounds;
        let covers = base <= bounds.start && bounds.start <= meta.last;
        let miscounted = covers && meta.before != self.entry.before;
        let late = self.next.is_none() && base > bounds.start;
        if miscounted || late {
            return Err(self.damaged(db, bounds.start));
        }
        if meta.last >= bounds.start {
            self.bytes = self.bytes.saturating_add(u64::from(meta.len));
        }
        let behind = meta.before.saturating_add(u64::from(meta.len));
        self.next = Some((meta.last.saturating_add(1), behind));
        Ok(())
    }

    /// Bytes that compaction took away.
    fn finish(&self, db: &Db) -> Result<i64, StoreError> {
        let bounds = self.entry.bounds;
        let whole = match self.next {
            Some((next, bytes)) => next == bounds.end && bytes == self.entry.total,
            // Everything was trimmed and swept.
            None => bounds.start == bounds.end && self.entry.before == self.entry.total,
        };
        if whole {
            let appended = self.entry.total.saturating_sub(self.entry.before);
            return Ok(appended
                .cast_signed()
                .saturating_sub(self.bytes.cast_signed()));
        }
        Err(self.damaged(db, self.next.map_or(bounds.start, |(next, _)| next)))
    }

    fn damaged(&self, db: &Db, offset: i64) -> StoreError {
        db.damaged(format!("log {}: no batch at offset {offset}", self.log))
    }
}

/// An error for a database that does not answer.
pub(super) fn ended(shard: ShardId) -> StoreError {
    damaged(&kv_dir(shard), "opening it panicked")
}

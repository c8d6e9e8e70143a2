//! Opens a shard: claim it, find what its journal holds, make that durable, seal it.
//!
//! Order matters. The shard is claimed before a file of the journal is opened, so that whatever an
//! older owner still writes comes after its claim was taken and is refused by its own check. The
//! own file is created before the directory is listed, so that the listing is fresh. What was read
//! is made durable before it is sealed, and sealed before anything is published.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::extents::LogIndex;
use super::file::{FILE_HEADER_LEN, FileHeader, FileHeaderError, FileId};
use super::files::{Files, journal_dir, path, shard_dir};
use super::index::{self, Anchor, Hint};
use super::read::Read;
use super::round::checkpoint;
use super::sources::{newer, open_sources, read_source};
use super::table::{Replay, Table};
use super::{FlushPolicy, base, newest, owned_error, volume_error};
use crate::fault::{Fault, planted};
use crate::ids::{BrokerId, LogId, OwnerEpoch, ShardId};
use crate::store::{ShardInfo, StoreError};
use crate::volume::owned::{Area, Claim, OwnedFiles, PresentOwner};
use crate::volume::sum::{check_sum, with_sum};
use crate::volume::{Volume, VolumeError, VolumeFile};

/// Largest `seals.json` that is written or read, bytes: some million files.
pub(crate) const SEALS_MAX: u64 = 64 << 20;
/// How many names are tried for the own file.
const CREATE_TRIES: u64 = 1000;

/// What is to be opened, and by whom.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// The files of the store.
    pub(crate) files: &'a Arc<Files>,
    /// The owned-file primitive.
    pub(crate) owned: &'a OwnedFiles,
    /// Who opens.
    pub(crate) broker: BrokerId,
    /// The shard.
    pub(crate) shard: ShardId,
    /// Under which epoch.
    pub(crate) owner: OwnerEpoch,
    /// Data lengths of files of this process whose sync failed.
    pub(crate) known: &'a BTreeMap<FileId, u64>,
    /// When commits to the own file will be acknowledged.
    pub(crate) flush: FlushPolicy,
}

/// The file that is being written.
#[derive(Debug)]
pub(crate) struct Current {
    /// Which.
    pub(crate) id: FileId,
    /// Open for writing.
    pub(crate) file: Arc<dyn VolumeFile>,
    /// Behind the checkpoint that it begins with.
    pub(crate) began: u64,
    /// Where the next round goes.
    pub(crate) position: u64,
    /// Lsn of position 0.
    pub(crate) first_lsn: u64,
    /// Bytes of space that are reserved.
    pub(crate) allocated: u64,
    /// The commit frame of the last round.
    pub(crate) anchor: Anchor,
}

impl Current {
    /// Bytes of its rounds.
    pub(crate) fn written(&self) -> u64 {
        self.position.saturating_sub(self.began)
    }
}

/// An open shard.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The claim.
    pub(crate) claim: Arc<Claim>,
    /// The catalogue.
    pub(crate) table: Table,
    /// Where the logs' batches lie.
    pub(crate) indexes: BTreeMap<LogId, LogIndex>,
    /// The own file.
    pub(crate) current: Current,
    /// How many logs need each closed file.
    pub(crate) refs: BTreeMap<FileId, usize>,
    /// Files that nothing needs.
    pub(crate) dead: Vec<FileId>,
    /// Own files of before whose length only the next file's header tells: seals are of those of
    /// earlier owners.
    pub(crate) unsure: BTreeSet<FileId>,
    /// What to report.
    pub(crate) info: ShardInfo,
}

/// Claims and opens a shard.
pub(crate) async fn open(request: &Request<'_>) -> Result<Opened, StoreError> {
    let volume = request.files.volume();
    refuse_newer(volume, request.shard).await?;
    #[cfg(feature = "sled")]
    crate::kv::refuse_kv(volume, request.shard).await?;
    let owner = PresentOwner {
        epoch: request.owner,
        broker: request.broker,
        instance: request.owner.instance,
    };
    let area = Area::Shard(request.shard);
    let claim = request.owned.take_over(area, owner).await;
    let claim = claim.map_err(|error| owned_error(&error))?;
    let dir = journal_dir(request.shard);
    let made = volume.create_dir_all(&dir).await;
    made.map_err(|error| volume_error(&error))?;
    let (id, file) = create_own(volume, request.shard, request.owner).await?;
    match recover(request, claim, id, &file).await {
        Ok(opened) => {
            // From here on the file stays, whatever becomes of this: it may be known.
            let witnessed = newest::witness(&opened.claim, id).await;
            witnessed.map_err(|error| owned_error(&error))?;
            Ok(opened)
        }
        Err(error) => {
            request.files.remove_shard(request.shard);
            if let Err(error) = volume.remove(&path(id)).await {
                tracing::debug!(%error, "an unused journal file stays");
            }
            Err(error)
        }
    }
}

/// Refuses a shard whose newest file was written by a newer version, before anything is claimed.
async fn refuse_newer(volume: &Arc<dyn Volume>, shard: ShardId) -> Result<(), StoreError> {
    let Some(id) = list(volume, shard).await?.pop() else {
        return Ok(());
    };
    let read = async {
        let file = volume.open(&path(id)).await?;
        file.read_at(0, FILE_HEADER_LEN).await
    };
    let bytes = match read.await {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(volume_error(&error)),
    };
    match FileHeader::decode(id, &bytes) {
        Err(FileHeaderError::Newer(version)) => Err(newer(id, version)),
        _ => Ok(()),
    }
}

/// The journal files of a shard, in order.
pub(crate) async fn list(
    volume: &Arc<dyn Volume>,
    shard: ShardId,
) -> Result<Vec<FileId>, StoreError> {
    let names = match volume.list(&journal_dir(shard)).await {
        Ok(names) => names,
        Err(error) if error.is_not_found() => Vec::new(),
        Err(error) => return Err(volume_error(&error)),
    };
    let ids = names.iter().filter(|entry| !entry.is_dir);
    let mut ids: Vec<FileId> = ids
        .filter_map(|entry| FileId::from_name(shard, &entry.name))
        .collect();
    ids.sort_unstable();
    Ok(ids)
}

async fn create_own(
    volume: &Arc<dyn Volume>,
    shard: ShardId,
    epoch: OwnerEpoch,
) -> Result<(FileId, Arc<dyn VolumeFile>), StoreError> {
    let own = list(volume, shard).await?;
    let own = own.iter().rev().find(|id| id.epoch == epoch);
    let first = own.map_or(0, |id| id.seq.saturating_add(1));
    for seq in first..first.saturating_add(CREATE_TRIES) {
        let id = FileId { shard, epoch, seq };
        match volume.create_new(&path(id)).await {
            Ok(file) => return Ok((id, file)),
            Err(VolumeError::AlreadyExists { .. }) => {}
            Err(error) => return Err(volume_error(&error)),
        }
    }
    Err(StoreError::Unavailable(
        "no free name for a journal file".to_owned(),
    ))
}

async fn recover(
    request: &Request<'_>,
    claim: Claim,
    own: FileId,
    file: &Arc<dyn VolumeFile>,
) -> Result<Opened, StoreError> {
    let volume = request.files.volume();
    let ids = list(volume, request.shard).await?;
    if ids.iter().any(|id| id.epoch > own.epoch) {
        return Err(StoreError::Fenced);
    }
    let ids: Vec<FileId> = ids.into_iter().filter(|id| *id != own).collect();
    let seals = read_seals(&claim, request.shard).await?;
    let sources = open_sources(volume, &ids, &seals, request.known).await?;
    let base = base::find(&sources, load_hint(request)).await?;
    let witness = newest::refuse_missing(&claim, request.shard, &sources, base.file).await?;
    base::refuse_rewritten(&sources, &base, witness)?;
    let mut replay = Replay::new();
    let mut reads = Vec::new();
    let mut indexes = BTreeMap::new();
    let mut dead = Vec::new();
    for source in &sources {
        let orphan = base.outdates(source);
        if source.is_unused() || (orphan && source.seal.is_none()) {
            if !orphan && !source.has_vanished().await {
                source.refuse_damaged_header().await?;
            }
            // Made by an owner that never used it, or that was fenced before it did.
            dead.push(source.id);
            continue;
        }
        let replay = base.replays(source).then_some(&mut replay);
        match read_source(source, replay, base.hint(source), request.files.local()).await {
            Ok(mut read) => {
                if base.mends(source) {
                    read.found_damaged("the checkpoint");
                }
                read.keep_index(&**request.files.local());
                read.settle(request.files, &mut indexes);
                reads.push(read);
            }
            Err(_) if source.has_vanished().await => {}
            Err(error) => return Err(error),
        }
    }
    drop(sources);
    make_durable(volume, request.shard, &reads).await?;
    write_seals(&claim, request.shard, &reads, own.epoch, &seals).await?;
    let mut table = replay.finish();
    let refs = index_logs(request.shard, &mut table, &reads, &mut indexes);
    let current = begin_own(request, own, file, &table, &reads).await?;
    claim.check().await.map_err(|error| owned_error(&error))?;
    let info = report(request, &table, &reads);
    let untold = |read: &&Read| read.id.epoch == own.epoch && !read.closed.footer;
    let unsure = reads.iter().filter(untold).map(|read| read.id).collect();
    for read in reads {
        if !read.damaged && !refs.contains_key(&read.id) {
            request.files.forget(read.id);
            dead.push(read.id);
        }
    }
    request.files.add_handle(own, Arc::clone(file));
    Ok(Opened {
        claim: Arc::new(claim),
        table,
        indexes,
        current,
        refs,
        dead,
        unsure,
        info,
    })
}

/// What is to be said of what was found.
fn report(request: &Request<'_>, table: &Table, reads: &[Read]) -> ShardInfo {
    for read in reads.iter().filter(|read| read.damaged) {
        request.files.damaged(read.id);
    }
    let damaged = table.iter();
    let damaged = damaged.filter_map(|(log, entry)| Some((*log, entry.damaged.clone()?)));
    ShardInfo {
        shard: request.shard,
        damaged: damaged.collect(),
        dropped_tail_bytes: reads.iter().map(|read| read.torn_bytes).sum(),
    }
}

/// Where the lengths of files of lower epochs are.
pub(crate) fn seals_path(shard: ShardId) -> crate::volume::VolumePath {
    shard_dir(shard).join("seals.json")
}

async fn read_seals(claim: &Claim, shard: ShardId) -> Result<BTreeMap<String, u64>, StoreError> {
    let target = seals_path(shard);
    let bytes = claim.read(&target, SEALS_MAX).await;
    let Some(bytes) = bytes.map_err(|error| owned_error(&error))? else {
        return Ok(BTreeMap::new());
    };
    decode_seals(shard, &bytes)
}

/// The content of `seals.json`.
pub(crate) fn decode_seals(
    shard: ShardId,
    bytes: &[u8],
) -> Result<BTreeMap<String, u64>, StoreError> {
    let corrupt = |why: String| StoreError::Corrupt {
        path: seals_path(shard).to_string(),
        why,
    };
    check_sum(bytes).map_err(|error| corrupt(error.to_string()))?;
    serde_json::from_slice(bytes).map_err(|error| corrupt(error.to_string()))
}

async fn write_seals(
    claim: &Claim,
    shard: ShardId,
    reads: &[Read],
    own: OwnerEpoch,
    before: &BTreeMap<String, u64>,
) -> Result<(), StoreError> {
    let lower = reads.iter().filter(|read| read.id.epoch < own);
    let seals: BTreeMap<String, u64> = lower
        .map(|read| (read.id.name(), read.closed.len))
        .collect();
    if seals == *before {
        return Ok(());
    }
    let json = serde_json::to_vec(&seals).map_err(|error| StoreError::Corrupt {
        path: seals_path(shard).to_string(),
        why: error.to_string(),
    })?;
    let json = with_sum(&json);
    if json.len() as u64 > SEALS_MAX {
        let files = seals.len();
        return Err(StoreError::Offline(format!(
            "{}: {files} journal files are more than it can list; nothing was changed",
            seals_path(shard)
        )));
    }
    let replaced = claim.replace(&seals_path(shard), json).await;
    replaced.map_err(|error| owned_error(&error))
}

/// The local checkpoint.
fn load_hint(request: &Request<'_>) -> Option<Hint> {
    let hint = index::load(&**request.files.local(), request.shard);
    hint.unwrap_or_else(|error| {
        tracing::warn!(%error, "the journal is read instead");
        None
    })
}

/// Makes durable what was read of files that nobody sealed.
///
/// The last round is written again, the same bytes: if its fdatasync failed, the page cache holds
/// it as clean, and an fdatasync alone would not write it. The rounds before it were synced, or
/// the file would have been left.
async fn make_durable(
    volume: &Arc<dyn Volume>,
    shard: ShardId,
    reads: &[Read],
) -> Result<(), StoreError> {
    let work = async {
        for read in reads {
            let Some((start, end)) = read.unsynced else {
                continue;
            };
            if planted(Fault::TailNotSynced) {
                continue;
            }
            let file = match volume.open_write(&path(read.id)).await {
                Err(error) if error.is_not_found() => continue,
                file => file?,
            };
            let len = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
            let bytes = file.read_at(start, len).await?;
            file.write_at(start, &[bytes]).await?;
            file.sync_data().await?;
        }
        if planted(Fault::TailNotSynced) || planted(Fault::DirectoryNotSynced) {
            return Ok(());
        }
        volume.sync_dir(&journal_dir(shard)).await
    };
    work.await.map_err(|error| volume_error(&error))
}

/// Leaves every log its places of those that were found, and marks the logs damaged of which
/// something is missing. Says how many logs need each file.
pub(crate) fn index_logs(
    shard: ShardId,
    table: &mut Table,
    reads: &[Read],
    indexes: &mut BTreeMap<LogId, LogIndex>,
) -> BTreeMap<FileId, usize> {
    let ends: BTreeMap<FileId, u64> = reads.iter().map(|read| (read.id, read.end_lsn)).collect();
    indexes.retain(|log, index| {
        let Some(entry) = table.get(log) else {
            return false;
        };
        index.sealed.retain(|segment| {
            let born = ends
                .get(&segment.file)
                .is_some_and(|end| *end > entry.birth);
            born && segment.last >= entry.bounds.start
        });
        index.forget_joined();
        true
    });
    let mut refs: BTreeMap<FileId, usize> = BTreeMap::new();
    for (log, entry) in table.iter_mut() {
        let index = indexes.entry(*log).or_default();
        for segment in &index.sealed {
            *refs.entry(segment.file).or_default() += 1;
        }
        let bounds = entry.bounds;
        if let Some(offset) = index.gap(bounds.start, bounds.end) {
            let near = index.sealed.iter().rev().find(|s| s.base <= offset);
            // Behind a file that is there, or in none that is.
            let path = near
                .map_or_else(|| journal_dir(shard), |s| path(s.file))
                .to_string();
            entry.damaged.get_or_insert(StoreError::Corrupt {
                path,
                why: format!("batches from offset {offset} on are missing"),
            });
        }
    }
    refs
}

/// Writes header and checkpoint of the own file and makes it findable.
async fn begin_own(
    request: &Request<'_>,
    own: FileId,
    file: &Arc<dyn VolumeFile>,
    table: &Table,
    reads: &[Read],
) -> Result<Current, StoreError> {
    let ends = reads.iter().map(|read| read.end_lsn);
    let before = reads.iter().rev().find(|read| read.id.epoch == own.epoch);
    let header = FileHeader {
        id: own,
        first_lsn: ends.max().unwrap_or(0),
        previous_len: before.map_or(0, |read| read.data_end),
        rewritten: None,
        unsynced: request.flush == FlushPolicy::Os,
    };
    let begun = begin_file(request.files.volume(), file, header, table).await;
    begun.map_err(|error| volume_error(&error))
}

/// Writes the header and the checkpoint rounds of a new file; durable, with its name, when it
/// returns.
///
/// Two rounds, as one flipped bit may not take the catalogue away: files before this one that were
/// written anew have none. The first is synced before the second is written, so one that is not
/// right before a second that is was once durable.
pub(crate) async fn begin_file(
    volume: &Arc<dyn Volume>,
    file: &Arc<dyn VolumeFile>,
    header: FileHeader,
    table: &Table,
) -> Result<Current, VolumeError> {
    let start = FILE_HEADER_LEN as u64;
    let first = checkpoint(table, header.id.seed(), start);
    let behind = start + first.len;
    let mut parts = vec![header.encode()];
    parts.extend(first.parts);
    file.write_at(0, &parts).await?;
    file.sync_data().await?;
    let second = checkpoint(table, header.id.seed(), behind);
    file.write_at(behind, &second.parts).await?;
    file.sync_data().await?;
    if !planted(Fault::DirectoryNotSynced) {
        volume.sync_dir(&journal_dir(header.id.shard)).await?;
    }
    Ok(Current {
        id: header.id,
        file: Arc::clone(file),
        began: behind + second.len,
        position: behind + second.len,
        first_lsn: header.first_lsn,
        allocated: 0,
        anchor: second.anchor,
    })
}

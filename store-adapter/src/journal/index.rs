//! The local index: what lets a shard open without reading its whole journal.
//!
//! It is a hint and never the only copy of anything: each value carries its own checksum, a
//! checkpoint is believed only when the journal has the very round that it names, and whatever is
//! missing, stale or garbage costs reading the journal instead. It is written by the keeper, off
//! the path of acknowledgements.
//!
//! Keys, all starting with a letter and the shard (4 bytes, big endian):
//! - `k`: the checkpoint: file, position behind a committed round, that round's commit frame,
//!   sums over the entries below.
//! - `p` log: the catalogue entry of a log as of the checkpoint.
//! - `i` file log: the extents of a log in the checkpoint's file.
//! - `s` file: the index of a closed file without a footer, with the commit frame it ends with.
//!
//! A file in a key is its epoch (4 and 8 bytes) and sequence (8 bytes).

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;

use super::extents::{Extent, FileIndex};
use super::file::FileId;
use super::frame::{FRAME_HEADER_LEN, Frame, Kind};
use super::payload::CatalogueEntry;
use super::table::{Table, from_catalogue};
use crate::ids::{LogId, ShardId};
use crate::runtime::BoxFuture;
use crate::volume::{VolumeError, VolumeFile};

/// An index that can't be used. What it held is lost; nothing else is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the index can't be used: {0}")]
pub struct IndexError(pub String);

/// One change of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexChange {
    /// Sets the value of a key.
    Put(Vec<u8>, Vec<u8>),
    /// Removes a key; one that is not there is as good.
    Remove(Vec<u8>),
}

/// A small ordered map on this machine. Calls block and come from io tasks only, except
/// [`IndexStore::open`].
pub trait IndexStore: Send + Sync + Debug + 'static {
    /// Makes it ready, before anything else and again whenever a shard is opened. Does not poll
    /// the volume.
    ///
    /// # Errors
    /// When it may not be used at all: another process has it.
    fn open(&self) -> BoxFuture<'_, Result<(), IndexError>>;

    /// The entries whose keys start with `prefix`, in order of their keys.
    ///
    /// # Errors
    /// When it does not answer; what it held may be gone.
    fn scan(&self, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, IndexError>;

    /// Makes `changes`, all or none; not necessarily durable.
    ///
    /// # Errors
    /// When it does not answer; what it held may be gone.
    fn apply(&self, changes: &[IndexChange]) -> Result<(), IndexError>;
}

/// An index in memory: for tests and the simulation.
#[derive(Debug, Default)]
pub struct MemoryIndex {
    entries: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl MemoryIndex {
    /// An empty index.
    pub fn new() -> Self {
        Self::default()
    }
}

impl IndexStore for MemoryIndex {
    fn open(&self) -> BoxFuture<'_, Result<(), IndexError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn scan(&self, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, IndexError> {
        let entries = self.entries.lock();
        let found = entries.range(prefix.to_vec()..);
        Ok(found
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (Bytes::from(key.clone()), Bytes::from(value.clone())))
            .collect())
    }

    fn apply(&self, changes: &[IndexChange]) -> Result<(), IndexError> {
        let mut entries = self.entries.lock();
        for change in changes {
            match change {
                IndexChange::Put(key, value) => drop(entries.insert(key.clone(), value.clone())),
                IndexChange::Remove(key) => drop(entries.remove(key)),
            }
        }
        Ok(())
    }
}

/// The commit frame by which a hint is tied to the journal's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Anchor {
    /// Where the frame starts.
    pub(crate) position: u64,
    /// Where it ends.
    pub(crate) end: u64,
    /// Its checksum.
    pub(crate) crc: u32,
}

impl Anchor {
    /// Whether `file` has that frame.
    pub(crate) async fn holds(&self, file: &dyn VolumeFile) -> Result<bool, VolumeError> {
        let bytes = file.read_at(self.position, FRAME_HEADER_LEN).await?;
        let Some((frame, crc)) = Frame::decode(&bytes) else {
            return Ok(false);
        };
        let end = self.position.checked_add(frame.len());
        Ok(frame.kind == Kind::Commit && crc == self.crc && end == Some(self.end))
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64(self.position);
        out.put_u64(self.end);
        out.put_u32(self.crc);
    }

    fn get(bytes: &mut &[u8]) -> Option<Self> {
        Some(Self {
            position: bytes.try_get_u64().ok()?,
            end: bytes.try_get_u64().ok()?,
            crc: bytes.try_get_u32().ok()?,
        })
    }
}

/// A catalogue and the index of one file as of a committed round.
#[derive(Debug)]
pub(crate) struct Hint {
    /// The file.
    pub(crate) file: FileId,
    /// The round's end.
    pub(crate) anchor: Anchor,
    /// The catalogue there.
    pub(crate) table: Table,
    /// The file's index up to there.
    pub(crate) index: FileIndex,
}

fn shard_key(letter: u8, shard: ShardId) -> Vec<u8> {
    let mut key = vec![letter];
    key.extend(shard.0.to_be_bytes());
    key
}

fn file_key(letter: u8, file: FileId) -> Vec<u8> {
    let mut key = shard_key(letter, file.shard);
    key.extend(file.epoch.assignment.to_be_bytes());
    key.extend(file.epoch.instance.to_be_bytes());
    key.extend(file.seq.to_be_bytes());
    key
}

fn with_log(mut key: Vec<u8>, log: LogId) -> Vec<u8> {
    key.extend(log.topic.as_bytes());
    key.extend(log.partition.to_be_bytes());
    key
}

/// Ends a value with its checksum, which the key is part of.
fn sealed(key: &[u8], mut value: BytesMut) -> Vec<u8> {
    let crc = crc32c::crc32c_append(crc32c::crc32c(key), &value);
    value.put_u32(crc);
    value.to_vec()
}

/// The value without its checksum, if that is right, and the checksum.
fn opened<'a>(key: &[u8], value: &'a [u8]) -> Option<(&'a [u8], u32)> {
    let (body, crc) = value.split_last_chunk::<4>()?;
    let crc = u32::from_be_bytes(*crc);
    (crc32c::crc32c_append(crc32c::crc32c(key), body) == crc).then_some((body, crc))
}

/// What the checkpoint's sums add up: entries in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sum {
    count: u64,
    crcs: u64,
}

impl Sum {
    fn add(&mut self, crc: u32) {
        self.count = self.count.wrapping_add(1);
        self.crcs = self.crcs.wrapping_add(u64::from(crc));
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64(self.count);
        out.put_u64(self.crcs);
    }

    fn get(bytes: &mut &[u8]) -> Option<Self> {
        Some(Self {
            count: bytes.try_get_u64().ok()?,
            crcs: bytes.try_get_u64().ok()?,
        })
    }
}

/// What changed since the last checkpoint.
#[derive(Debug)]
pub(crate) struct Changes {
    /// The file.
    pub(crate) file: FileId,
    /// The last committed round.
    pub(crate) anchor: Anchor,
    /// Logs that changed, with their extents in the file; `None` for one that is gone.
    pub(crate) logs: BTreeMap<LogId, Option<(CatalogueEntry, Vec<Extent>)>>,
    /// Whether these are all logs there are.
    pub(crate) all: bool,
}

/// Writes checkpoints of one shard; remembers the checksums of what it wrote.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    shard: ShardId,
    file: Option<FileId>,
    entries: BTreeMap<LogId, u32>,
    extents: BTreeMap<LogId, u32>,
    /// Whether what is written does not add up: everything is needed again.
    broken: bool,
}

impl Checkpointer {
    /// A checkpointer that has written nothing.
    pub(crate) fn new(shard: ShardId) -> Self {
        Self {
            shard,
            file: None,
            entries: BTreeMap::new(),
            extents: BTreeMap::new(),
            broken: true,
        }
    }

    /// Whether the next checkpoint must hold all logs.
    pub(crate) fn needs_all(&self) -> bool {
        self.broken
    }

    /// Writes a checkpoint. After an error the next one must hold all logs.
    pub(crate) fn write(
        &mut self,
        store: &dyn IndexStore,
        changes: Changes,
    ) -> Result<(), IndexError> {
        if self.broken && !changes.all {
            return Ok(());
        }
        self.broken = true;
        let mut batch = Vec::new();
        if changes.all {
            self.entries.clear();
            forget(store, &shard_key(b'p', self.shard), &mut batch)?;
            forget(store, &shard_key(b'i', self.shard), &mut batch)?;
            self.file = None;
        }
        if self.file != Some(changes.file) {
            self.extents.clear();
            if let Some(before) = self.file {
                forget(store, &file_key(b'i', before), &mut batch)?;
            }
            self.file = Some(changes.file);
        }
        for (log, change) in changes.logs {
            self.log(changes.file, log, change, &mut batch);
        }
        let key = shard_key(b'k', self.shard);
        let mut value = BytesMut::new();
        value.put_u32(changes.file.epoch.assignment);
        value.put_u64(changes.file.epoch.instance);
        value.put_u64(changes.file.seq);
        changes.anchor.put(&mut value);
        sum(&self.entries).put(&mut value);
        sum(&self.extents).put(&mut value);
        let value = sealed(&key, value);
        batch.push(IndexChange::Put(key, value));
        store.apply(&batch)?;
        self.broken = false;
        Ok(())
    }

    fn log(
        &mut self,
        file: FileId,
        log: LogId,
        change: Option<(CatalogueEntry, Vec<Extent>)>,
        batch: &mut Vec<IndexChange>,
    ) {
        let entry_key = with_log(shard_key(b'p', self.shard), log);
        let extents_key = with_log(file_key(b'i', file), log);
        let (entry, extents) = match change {
            None => (None, Vec::new()),
            Some((entry, extents)) => (Some(entry), extents),
        };
        let mut set = |held: &mut BTreeMap<LogId, u32>, key: Vec<u8>, value: Option<BytesMut>| {
            let Some(value) = value else {
                held.remove(&log);
                batch.push(IndexChange::Remove(key));
                return;
            };
            let value = sealed(&key, value);
            if let Some((_, crc)) = opened(&key, &value) {
                held.insert(log, crc);
            }
            batch.push(IndexChange::Put(key, value));
        };
        let entry = entry.map(|entry| {
            let mut value = BytesMut::new();
            entry.encode(&mut value);
            value
        });
        set(&mut self.entries, entry_key, entry);
        let extents = (!extents.is_empty()).then(|| {
            let mut value = BytesMut::new();
            let logs = BTreeMap::from([(log, extents)]);
            FileIndex { logs }.encode(&mut value);
            value
        });
        set(&mut self.extents, extents_key, extents);
    }
}

/// Adds the removal of every key that starts with `prefix`.
fn forget(
    store: &dyn IndexStore,
    prefix: &[u8],
    batch: &mut Vec<IndexChange>,
) -> Result<(), IndexError> {
    let keys = store.scan(prefix)?.into_iter().map(|(key, _)| key.to_vec());
    batch.extend(keys.map(IndexChange::Remove));
    Ok(())
}

fn sum(crcs: &BTreeMap<LogId, u32>) -> Sum {
    let mut sum = Sum::default();
    for crc in crcs.values() {
        sum.add(*crc);
    }
    sum
}

/// Loads the checkpoint of a shard; `None` when there is none that adds up.
pub(crate) fn load(store: &dyn IndexStore, shard: ShardId) -> Result<Option<Hint>, IndexError> {
    let key = shard_key(b'k', shard);
    let found = store.scan(&key)?;
    let Some((file, anchor, sums)) = found
        .first()
        .and_then(|(_, value)| opened(&key, value))
        .and_then(|(body, _)| checkpoint(shard, body))
    else {
        return Ok(None);
    };
    let mut table = Table::new();
    let mut entries = Sum::default();
    for (key, value) in store.scan(&shard_key(b'p', shard))? {
        let Some((mut body, crc)) = opened(&key, &value) else {
            return Ok(None);
        };
        let Some(entry) = CatalogueEntry::decode(&mut body) else {
            return Ok(None);
        };
        entries.add(crc);
        table.insert(entry.log, from_catalogue(entry));
    }
    let mut index = FileIndex::default();
    let mut extents = Sum::default();
    for (key, value) in store.scan(&file_key(b'i', file))? {
        let Some((body, crc)) = opened(&key, &value) else {
            return Ok(None);
        };
        let Some(part) = FileIndex::decode(body) else {
            return Ok(None);
        };
        extents.add(crc);
        index.logs.extend(part.logs);
    }
    Ok(((entries, extents) == sums).then_some(Hint {
        file,
        anchor,
        table,
        index,
    }))
}

fn checkpoint(shard: ShardId, mut body: &[u8]) -> Option<(FileId, Anchor, (Sum, Sum))> {
    let epoch = crate::ids::OwnerEpoch {
        assignment: body.try_get_u32().ok()?,
        instance: body.try_get_u64().ok()?,
    };
    let seq = body.try_get_u64().ok()?;
    let anchor = Anchor::get(&mut body)?;
    let sums = (Sum::get(&mut body)?, Sum::get(&mut body)?);
    Some((FileId { shard, epoch, seq }, anchor, sums))
}

/// The change that keeps the index of a closed file without a footer.
pub(crate) fn keep_file(file: FileId, anchor: Anchor, index: &FileIndex) -> IndexChange {
    let key = file_key(b's', file);
    let mut value = BytesMut::new();
    anchor.put(&mut value);
    index.encode(&mut value);
    let value = sealed(&key, value);
    IndexChange::Put(key, value)
}

/// The change that forgets a file that was removed.
pub(crate) fn forget_file(file: FileId) -> IndexChange {
    IndexChange::Remove(file_key(b's', file))
}

/// The index of a closed file without a footer, if one is kept.
pub(crate) fn load_file(
    store: &dyn IndexStore,
    file: FileId,
) -> Result<Option<(Anchor, FileIndex)>, IndexError> {
    let key = file_key(b's', file);
    let found = store.scan(&key)?;
    Ok(found.first().and_then(|(_, value)| {
        let (mut body, _) = opened(&key, value)?;
        let anchor = Anchor::get(&mut body)?;
        Some((anchor, FileIndex::decode(body)?))
    }))
}

/// The index of a file without a footer, whose data ends at `len`, if the local index has it.
pub(crate) async fn kept_index(
    index: &Arc<dyn IndexStore>,
    file: &dyn VolumeFile,
    id: FileId,
    len: u64,
) -> Result<Option<(FileIndex, Anchor)>, VolumeError> {
    let kept = load_file(&**index, id).unwrap_or_else(|error| {
        tracing::warn!(%error, "a journal file is read instead");
        None
    });
    match kept {
        Some((anchor, index)) if anchor.end == len && anchor.holds(file).await? => {
            Ok(Some((index, anchor)))
        }
        _ => Ok(None),
    }
}

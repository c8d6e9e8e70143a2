//! The journal's closed files, as readers use them: open handles and indexes, both bounded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::JournalCounters;
use super::extents::{FileIndex, TRAILER_LEN, footer_position};
use super::failing::Failing;
use super::file::FileId;
use super::frame::{self, Check, FRAME_HEADER_LEN, Frame, Kind};
use super::index::{IndexStore, kept_index};
use super::opened::{Mark, Opened};
use super::scan::{Scanner, Step};
use crate::ids::ShardId;
use crate::volume::{Volume, VolumeError, VolumeFile, VolumePath};

/// Handles that are kept open.
const OPEN_MAX: usize = 64;
/// Extents of all indexes that are kept, 40 bytes each; one index is kept whatever its size.
const EXTENTS_MAX: usize = 400_000;
/// Largest footer that is read, bytes.
const FOOTER_MAX: u64 = 128 << 20;

/// The directory of a shard.
pub(crate) fn shard_dir(shard: ShardId) -> VolumePath {
    VolumePath::root()
        .join("__store")
        .join(&format!("shard-{}", shard.0))
}

/// The directory of a shard's journal files.
pub(crate) fn journal_dir(shard: ShardId) -> VolumePath {
    shard_dir(shard).join("journal")
}

/// Where a journal file is.
pub(crate) fn path(id: FileId) -> VolumePath {
    journal_dir(id.shard).join(&id.name())
}

/// What is known of a closed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed {
    /// Where its data ends, or its footer if it has one. Nothing behind is read.
    pub(crate) len: u64,
    /// Whether it ends with a footer.
    pub(crate) footer: bool,
}

/// Which content of a file is meant: how often it was written anew while it was known.
pub(crate) type Version = (FileId, u32);

/// Whether another content is about to take a file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It is not.
    Settled,
    /// It is.
    Taken,
    /// It is, and nobody needs the file any more.
    Doomed,
}

/// A closed file.
#[derive(Debug)]
struct Known {
    closed: Closed,
    /// How often it was written anew.
    version: u32,
    /// While it takes another content's place: a handle of the one that is known.
    held: Option<Arc<Opened>>,
    /// Whether another content may have the name already: then the handle stays until one has it
    /// for certain.
    unsure: bool,
    /// Whether its bytes were counted as given back before it is unlinked.
    counted: bool,
    place: Place,
}

impl Known {
    /// The name is free again; whether the file is to go.
    fn settle(&mut self) -> bool {
        std::mem::replace(&mut self.place, Place::Settled) == Place::Doomed
    }
}

/// A bounded map that forgets what was used longest ago.
#[derive(Debug)]
struct Recent<T> {
    clock: u64,
    held: BTreeMap<Version, (u64, T)>,
}

impl<T: Clone> Recent<T> {
    fn new() -> Self {
        Self {
            clock: 0,
            held: BTreeMap::new(),
        }
    }

    fn get(&mut self, id: Version) -> Option<T> {
        self.clock += 1;
        let (used, value) = self.held.get_mut(&id)?;
        *used = self.clock;
        Some(value.clone())
    }

    fn put(&mut self, id: Version, value: T) {
        self.clock += 1;
        self.held.insert(id, (self.clock, value));
    }

    /// Forgets the one that was used longest ago, but not `keep`.
    fn forget_one(&mut self, keep: Version) -> bool {
        let oldest = self
            .held
            .iter()
            .filter(|(id, _)| **id != keep)
            .min_by_key(|(_, (used, _))| *used)
            .map(|(id, _)| *id);
        oldest.is_some_and(|id| self.held.remove(&id).is_some())
    }

    /// Forgets every content of a file.
    fn remove(&mut self, id: FileId) {
        self.held.retain(|(held, _), _| *held != id);
    }
}

/// The files of all open shards.
#[derive(Debug)]
pub(crate) struct Files {
    volume: Arc<dyn Volume>,
    index: Arc<dyn IndexStore>,
    counters: Arc<JournalCounters>,
    closed: Mutex<BTreeMap<FileId, Known>>,
    open: Mutex<Recent<Arc<Opened>>>,
    indexes: Mutex<Recent<Arc<FileIndex>>>,
    /// What to say of reads that fail; nothing where whoever asks says it.
    pub(crate) failing: Option<Failing>,
}

impl Files {
    /// No files yet.
    pub(crate) fn new(
        volume: Arc<dyn Volume>,
        index: Arc<dyn IndexStore>,
        counters: Arc<JournalCounters>,
    ) -> Self {
        Self {
            volume,
            index,
            counters,
            closed: Mutex::default(),
            open: Mutex::new(Recent::new()),
            indexes: Mutex::new(Recent::new()),
            failing: None,
        }
    }

    /// The volume.
    pub(crate) fn volume(&self) -> &Arc<dyn Volume> {
        &self.volume
    }

    /// Notes that a file is damaged; whether that was not known.
    pub(crate) fn damaged(&self, id: FileId) -> bool {
        self.counters.damaged(&path(id).to_string())
    }

    /// What the store counts into.
    pub(crate) fn counters(&self) -> &JournalCounters {
        &self.counters
    }

    /// The local index.
    pub(crate) fn local(&self) -> &Arc<dyn IndexStore> {
        &self.index
    }

    /// Makes a closed file known, with its index if that is at hand.
    pub(crate) fn add(&self, id: FileId, closed: Closed, index: Option<FileIndex>) {
        let known = Known {
            closed,
            version: 0,
            held: None,
            unsure: false,
            counted: false,
            place: Place::Settled,
        };
        self.closed.lock().insert(id, known);
        if let Some(index) = index {
            self.keep_index((id, 0), Arc::new(index));
        }
    }

    /// Whether a file's name may have another content than the one that readers use: they hold
    /// that one, so what is not found in it is not there.
    pub(crate) fn is_unsure(&self, id: FileId) -> bool {
        let closed = self.closed.lock();
        closed.get(&id).is_some_and(|known| known.unsure)
    }

    /// Which content of a file readers use now; and whether another is taking its place.
    pub(crate) fn version(&self, id: FileId) -> (u32, bool) {
        let closed = self.closed.lock();
        let known = closed.get(&id);
        known.map_or((0, false), |known| (known.version, known.held.is_some()))
    }

    /// The closed files of a shard, with what is known of them, in order.
    pub(crate) fn closed(&self, shard: ShardId) -> Vec<(FileId, Closed)> {
        let closed = self.closed.lock();
        let of_shard = closed.iter().filter(|(id, _)| id.shard == shard);
        of_shard.map(|(id, known)| (*id, known.closed)).collect()
    }

    /// What is known of a closed file.
    pub(crate) fn closed_file(&self, id: FileId) -> Option<Closed> {
        self.closed.lock().get(&id).map(|known| known.closed)
    }

    /// Bytes of a closed file; 0 when it is not known.
    pub(crate) fn closed_len(&self, id: FileId) -> u64 {
        let closed = self.closed.lock();
        closed.get(&id).map_or(0, |known| known.closed.len)
    }

    /// Another content is about to take this file's name: until [`Files::swapped`],
    /// [`Files::unsure`] or [`Files::kept`], readers use a handle of what is there, and whoever
    /// wants to remove the file leaves that to the caller.
    pub(crate) async fn hold(&self, id: FileId) -> Result<(), VolumeError> {
        let opened = self.opened(id).await?;
        if let Some(known) = self.closed.lock().get_mut(&id) {
            known.held = Some(opened);
            known.place = Place::Taken;
            return Ok(());
        }
        let path = path(id).to_string();
        Err(VolumeError::NotFound { path })
    }

    /// The other content is in place; whether the file is to be removed now.
    pub(crate) fn swapped(&self, id: FileId, closed: Closed, index: FileIndex) -> bool {
        let (version, doomed) = {
            let mut all = self.closed.lock();
            let Some(known) = all.get_mut(&id) else {
                return false;
            };
            known.closed = closed;
            known.version = known.version.saturating_add(1);
            known.held = None;
            known.unsure = false;
            (known.version, known.settle())
        };
        self.open.lock().remove(id);
        self.indexes.lock().remove(id);
        self.keep_index((id, version), Arc::new(index));
        doomed
    }

    /// The other content is in place or not: readers go on with a handle of the one that is known,
    /// until a later one is in place. Whether the file is to be removed now.
    pub(crate) fn unsure(&self, id: FileId) -> bool {
        let mut closed = self.closed.lock();
        closed.get_mut(&id).is_some_and(|known| {
            known.unsure = true;
            known.settle()
        })
    }

    /// The other content is not in place, and will not be; whether the file is to be removed now.
    pub(crate) fn kept(&self, id: FileId) -> bool {
        let mut closed = self.closed.lock();
        closed.get_mut(&id).is_some_and(|known| {
            // One of before may be.
            if !known.unsure {
                known.held = None;
            }
            known.settle()
        })
    }

    /// Whether something in the file was found damaged.
    pub(crate) fn is_damaged(&self, id: FileId) -> bool {
        self.counters.is_damaged(&path(id).to_string())
    }

    /// Keeps the handle of a file that is being written or was opened already.
    pub(crate) fn add_handle(&self, id: FileId, file: Arc<dyn VolumeFile>) {
        self.keep_handle((id, self.version(id).0), Arc::new(Opened::new(file)));
    }

    fn keep_handle(&self, version: Version, opened: Arc<Opened>) {
        let mut open = self.open.lock();
        open.put(version, opened);
        if open.held.len() > OPEN_MAX {
            open.forget_one(version);
        }
    }

    /// Whether `id` is a closed file that is there.
    pub(crate) fn has(&self, id: FileId) -> bool {
        self.closed.lock().contains_key(&id)
    }

    /// The bytes of a file count as given back: it is about to be unlinked.
    pub(crate) fn count(&self, id: FileId) {
        if let Some(known) = self.closed.lock().get_mut(&id) {
            known.counted = true;
        }
    }

    /// Forgets a file that is about to be unlinked; how many bytes that gives back. `None` while
    /// another content takes its name, which would bring it back: who puts that there removes it.
    pub(crate) fn forget(&self, id: FileId) -> Option<u64> {
        let len = {
            let mut closed = self.closed.lock();
            match closed.get_mut(&id) {
                Some(known) if known.place != Place::Settled => {
                    known.place = Place::Doomed;
                    return None;
                }
                _ => {
                    let known = closed.remove(&id).filter(|known| !known.counted);
                    known.map_or(0, |known| known.closed.len)
                }
            }
        };
        self.open.lock().remove(id);
        self.indexes.lock().remove(id);
        Some(len)
    }

    /// Forgets the files of a shard that was closed.
    pub(crate) fn remove_shard(&self, shard: ShardId) {
        self.closed.lock().retain(|id, _| id.shard != shard);
        let other = |id: &Version| id.0.shard != shard;
        self.open.lock().held.retain(|id, _| other(id));
        self.indexes.lock().held.retain(|id, _| other(id));
    }

    /// A handle for reading.
    pub(crate) async fn handle(&self, id: FileId) -> Result<Arc<dyn VolumeFile>, VolumeError> {
        Ok(Arc::clone(&self.opened(id).await?.file))
    }

    /// The same, with what was found right in the file lately.
    pub(crate) async fn opened(&self, id: FileId) -> Result<Arc<Opened>, VolumeError> {
        let version = match self.open_already(id) {
            Ok(opened) => return Ok(opened),
            Err(version) => version,
        };
        let opened = Arc::new(Opened::new(self.volume.open(&path(id)).await?));
        self.keep_handle(version, Arc::clone(&opened));
        Ok(opened)
    }

    /// The handle that is open already, or which content of the file one is to be opened of.
    pub(crate) fn open_already(&self, id: FileId) -> Result<Arc<Opened>, Version> {
        let version = {
            let closed = self.closed.lock();
            let known = closed.get(&id);
            if let Some(held) = known.and_then(|known| known.held.clone()) {
                return Ok(held);
            }
            (id, known.map_or(0, |known| known.version))
        };
        self.open.lock().get(version).ok_or(version)
    }

    /// Frames of the file that is being written are in it, and durable.
    pub(crate) fn written(&self, id: FileId, frames: &[(Frame, u64)], now: Duration) {
        let version = (id, self.version(id).0);
        let opened = self.open.lock().get(version);
        if let Some(opened) = opened {
            let marks = frames.iter();
            let marks = marks.filter_map(|(frame, at)| Some((*at, Mark::of(frame, now)?)));
            opened.mark(marks);
        }
    }

    /// A write or a sync of the file that is being written failed.
    pub(crate) fn distrust(&self, id: FileId) {
        let version = (id, self.version(id).0);
        let opened = self.open.lock().get(version);
        if let Some(opened) = opened {
            opened.distrust();
        }
    }

    /// The index of a closed file: kept, from its footer, or by reading the whole file.
    pub(crate) async fn index(&self, id: FileId) -> Result<Arc<FileIndex>, VolumeError> {
        if let Some(index) = self.index_already(id) {
            return Ok(index);
        }
        let known = self.closed.lock().get(&id).map(|k| (k.closed, k.version));
        let Some((closed, version)) = known else {
            let path = path(id).to_string();
            return Err(VolumeError::NotFound { path });
        };
        let file = self.handle(id).await?;
        let footer = if closed.footer {
            read_footer(&*file, id, closed.len).await?
        } else {
            None
        };
        let index = match footer {
            Some(footer) => footer.index,
            None => match kept_index(&self.index, &*file, id, closed.len).await? {
                Some((index, _)) => index,
                None => scan_index(&*file, id, closed.len).await?,
            },
        };
        let index = Arc::new(index);
        self.keep_index((id, version), Arc::clone(&index));
        Ok(index)
    }

    /// The index of a closed file, if it is kept.
    pub(crate) fn index_already(&self, id: FileId) -> Option<Arc<FileIndex>> {
        let version = (id, self.version(id).0);
        self.indexes.lock().get(version)
    }

    fn keep_index(&self, id: Version, index: Arc<FileIndex>) {
        let mut indexes = self.indexes.lock();
        indexes.put(id, index);
        let extents = |indexes: &Recent<Arc<FileIndex>>| {
            let held = indexes.held.values();
            held.map(|(_, index)| index.extent_count()).sum::<usize>()
        };
        let mut total = extents(&indexes);
        while total > EXTENTS_MAX && indexes.forget_one(id) {
            total = extents(&indexes);
        }
    }
}

/// A footer that was read.
#[derive(Debug)]
pub(crate) struct Footer {
    /// Where it starts: where the file's data ends.
    pub(crate) position: u64,
    /// The index.
    pub(crate) index: FileIndex,
}

/// The footer of a file whose footer, if it has one, ends at `len`. `None` if there is none, or
/// it is not right.
pub(crate) async fn read_footer(
    file: &dyn VolumeFile,
    id: FileId,
    len: u64,
) -> Result<Option<Footer>, VolumeError> {
    let Some(at) = len.checked_sub(TRAILER_LEN as u64) else {
        return Ok(None);
    };
    let trailer = file.read_at(at, TRAILER_LEN).await?;
    let Some(position) = footer_position(&trailer) else {
        return Ok(None);
    };
    let Some(footer_len) = len.checked_sub(position).filter(|len| *len <= FOOTER_MAX) else {
        return Ok(None);
    };
    let wanted = usize::try_from(footer_len).unwrap_or(usize::MAX);
    let bytes = file.read_at(position, wanted).await?;
    match frame::check(id.seed(), position, &bytes) {
        Check::Good(frame, _) if frame.kind == Kind::Footer && frame.len() == footer_len => {
            let index = FileIndex::decode_footer(&bytes[FRAME_HEADER_LEN..]);
            Ok(index.map(|index| Footer { position, index }))
        }
        _ => Ok(None),
    }
}

/// The index of a file without a footer, whose data ends at `len`.
async fn scan_index(file: &dyn VolumeFile, id: FileId, len: u64) -> Result<FileIndex, VolumeError> {
    let mut scanner = Scanner::new(file, id.seed(), len, true);
    let mut index = FileIndex::default();
    while let Step::Round(round) = scanner.next().await? {
        index.add_round(&round);
    }
    Ok(index)
}

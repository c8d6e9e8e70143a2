//! What of a shard's files is garbage, and what is worth to be done about it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::extents::from_offset;
use super::file::FileId;
use super::files::Closed;
use super::rewrite::Rewriter;
use crate::volume::VolumeFile;

/// A file is left alone while less than this part of a full one would be given back.
const LEAST_PART: u64 = 16;

/// What the writer tells whoever gives space back.
#[derive(Debug)]
pub(crate) struct Garbage {
    /// Something is not needed any more.
    pub(super) more: Notify,
    /// The file that is being written: what was published is in it, or in its checkpoint.
    pub(super) current: Mutex<Arc<dyn VolumeFile>>,
    /// Bytes of its rounds.
    pub(super) written: AtomicU64,
    /// The writer has ended.
    pub(super) ended: CancellationToken,
}

impl Garbage {
    /// Beside a writer of `current`, which has just begun. Files that were found are looked at
    /// first.
    pub(crate) fn new(current: Arc<dyn VolumeFile>) -> Self {
        let garbage = Self {
            more: Notify::new(),
            current: Mutex::new(current),
            written: AtomicU64::new(0),
            ended: CancellationToken::new(),
        };
        garbage.more.notify_one();
        garbage
    }
}

impl Rewriter {
    /// Whether most of the file that is being written is not needed any more, and enough of it. It
    /// would be closed only when it is full: never where appends are refused for want of space.
    pub(super) fn is_current_garbage(&self) -> bool {
        let written = self.garbage.written.load(Ordering::Relaxed);
        let least = self.config.segment_bytes / LEAST_PART;
        if written < least {
            return false;
        }
        let logs = self.registry.all().into_iter();
        let here = logs.filter(|log| log.shard.id == self.shard.id);
        let needed = here.map(|log| {
            let start = log.bounds.borrow().start;
            let index = log.index.read();
            let active = from_offset(&index.active, start).iter();
            active.map(|extent| u64::from(extent.bytes)).sum::<u64>()
        });
        let needed: u64 = needed.sum();
        needed < written / 2 && written - needed >= least
    }

    /// The file of which most is given back, if that is worth it.
    pub(super) fn pick(
        &self,
        left_alone: &[FileId],
        passed: &[FileId],
    ) -> Option<(FileId, Closed)> {
        let least = self.config.segment_bytes / LEAST_PART;
        let files = self.wanted(left_alone).into_iter();
        let freed = files.filter_map(|(id, closed, needed)| {
            let needed = needed?;
            let freed = closed.len.checked_sub(needed)?;
            let worth = needed < closed.len / 2 && freed >= least;
            (worth && !passed.contains(&id)).then_some((freed, id, closed))
        });
        freed
            .max_by_key(|(freed, id, _)| (*freed, *id))
            .map(|(_, id, closed)| (id, closed))
    }

    /// The closed files that somebody needs, in order, with about how many bytes of each; `None` of
    /// one that has to stay as it is. One that nobody needs is about to be unlinked.
    fn wanted(&self, left_alone: &[FileId]) -> Vec<(FileId, Closed, Option<u64>)> {
        let mut needed = BTreeMap::new();
        let mut pinned = BTreeSet::new();
        for log in self.registry.all() {
            if log.shard.id != self.shard.id {
                continue;
            }
            let start = log.bounds.borrow().start;
            for segment in &log.index.read().sealed {
                *needed.entry(segment.file).or_insert(0_u64) += segment.bytes_from(start);
                if log.damaged.is_some() {
                    pinned.insert(segment.file);
                }
            }
        }
        let files = self.files.closed(self.shard.id).into_iter();
        let files = files.filter_map(|(id, closed)| {
            let needed = *needed.get(&id)?;
            let free = !left_alone.contains(&id) && !pinned.contains(&id);
            let free = free && !self.files.is_damaged(id);
            Some((id, closed, free.then_some(needed)))
        });
        files.collect()
    }

    /// The run of so many small files with the fewest bytes.
    pub(super) fn small_files(&self, left_alone: &[FileId]) -> Option<Vec<FileId>> {
        let count = self.config.join_files.max(2);
        let mut run: VecDeque<(FileId, u64)> = VecDeque::new();
        let mut best: Option<(u64, Vec<FileId>)> = None;
        for (id, _, needed) in self.wanted(left_alone) {
            let Some(needed) = needed.filter(|_| !self.files.is_unsure(id)) else {
                run.clear();
                continue;
            };
            if run.len() == count {
                run.pop_front();
            }
            run.push_back((id, needed));
            let bytes = run.iter().map(|(_, needed)| needed).sum();
            let fewer = best.as_ref().is_none_or(|(least, _)| bytes < *least);
            if run.len() == count && bytes <= self.config.segment_bytes && fewer {
                best = Some((bytes, run.iter().map(|(id, _)| *id).collect()));
            }
        }
        best.map(|(_, files)| files)
    }
}

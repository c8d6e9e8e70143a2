//! What an opening reads of one journal file, and what of that it keeps.

use std::collections::BTreeMap;

use super::extents::{FileIndex, LogIndex, Segment};
use super::file::FileId;
use super::files::{Closed, Files, path};
use super::index::{Anchor, IndexStore, keep_file};
use super::keeper::apply;
use crate::ids::LogId;

/// What one file gave.
#[derive(Debug)]
pub(crate) struct Read {
    /// Which.
    pub(crate) id: FileId,
    /// As readers know it.
    pub(crate) closed: Closed,
    /// Where its data ends.
    pub(crate) data_end: u64,
    /// Lsn behind it.
    pub(crate) end_lsn: u64,
    /// Lsn of position 0.
    pub(super) first_lsn: u64,
    /// Start and end of what is not known to be durable: the last round, or the footer.
    pub(crate) unsynced: Option<(u64, u64)>,
    /// Where its batches lie, until [`Read::settle`].
    pub(super) index: FileIndex,
    /// Bytes of a torn tail.
    pub(crate) torn_bytes: u64,
    /// The last commit frame, when the index should be kept locally: there is no footer.
    pub(super) keep: Option<Anchor>,
    /// Whether something in it is not right: it is kept whatever happens.
    pub(crate) damaged: bool,
}

impl Read {
    /// Notes damage that takes nothing of what the file holds.
    pub(crate) fn found_damaged(&mut self, what: &str) {
        tracing::error!(path = %path(self.id), "{what} of a journal file is damaged");
        self.damaged = true;
        self.keep = None;
    }

    /// Makes the file known to `files`, with its index, and what each log has in it to `logs`.
    /// There may be any number of files, and of batches in each: only the latter is kept for
    /// certain.
    pub(crate) fn settle(&mut self, files: &Files, logs: &mut BTreeMap<LogId, LogIndex>) {
        let index = std::mem::take(&mut self.index);
        for (log, extents) in &index.logs {
            if let Some(segment) = Segment::of(self.id, extents) {
                logs.entry(*log).or_default().sealed.push_back(segment);
            }
        }
        files.add(self.id, self.closed, Some(index));
    }

    /// Keeps its index locally, if it has no footer, before [`Read::settle`].
    pub(crate) fn keep_index(&self, local: &dyn IndexStore) {
        if let Some(anchor) = self.keep {
            apply(local, &[keep_file(self.id, anchor, &self.index)]);
        }
    }
}

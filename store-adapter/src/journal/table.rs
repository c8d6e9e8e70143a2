//! The catalogue of a shard as values: which logs there are, where they start and end, who holds
//! them. Pure: the writer stages changes here and takes them over once they are durable, and
//! recovery replays rounds into it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::sync::Arc;

use super::frame::{Frame, Kind};
use super::payload::CatalogueEntry;
use super::scan::FoundRound;
use crate::ids::{LeaderEpoch, LogId};
use crate::store::{Append, Bounds, StoreError};

/// One log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The topic's name.
    pub(crate) name: Arc<str>,
    /// Lsn of the frame that created it.
    pub(crate) birth: u64,
    /// Start and end.
    pub(crate) bounds: Bounds,
    /// The epoch that holds it.
    pub(crate) epoch: Option<LeaderEpoch>,
    /// The epoch of its last batch.
    pub(crate) last_epoch: Option<LeaderEpoch>,
    /// Why it can't be served.
    pub(crate) damaged: Option<StoreError>,
}

impl Entry {
    /// A log that begins.
    pub(crate) fn new(name: Arc<str>, birth: u64) -> Self {
        Self {
            name,
            birth,
            bounds: Bounds::default(),
            epoch: None,
            last_epoch: None,
            damaged: None,
        }
    }

    /// Whether `epoch` may write.
    pub(crate) fn check_epoch(&self, epoch: LeaderEpoch) -> Result<(), StoreError> {
        if let Some(error) = &self.damaged {
            return Err(error.clone());
        }
        if self.epoch == Some(epoch) {
            Ok(())
        } else {
            Err(StoreError::Fenced)
        }
    }

    /// Takes an append in, or refuses it and changes nothing.
    pub(crate) fn append(&mut self, append: &Append, max: usize) -> Result<(), StoreError> {
        self.check_epoch(append.epoch)?;
        if append.batch.total_len() > max {
            return Err(StoreError::TooLarge { max });
        }
        let end = self.bounds.end;
        if append.expect_end != end {
            return Err(StoreError::EndMismatch { end });
        }
        let header = append.batch.header();
        if header.base_offset != end || header.last_offset_delta < 0 {
            return Err(StoreError::Unsupported(
                "a batch that is not stamped with the end of its log",
            ));
        }
        self.bounds.end = header.last_offset().saturating_add(1);
        self.last_epoch = Some(append.epoch);
        Ok(())
    }

    /// Moves the start, or refuses that and changes nothing.
    pub(crate) fn trim(&mut self, epoch: LeaderEpoch, start: i64) -> Result<(), StoreError> {
        self.check_epoch(epoch)?;
        let bounds = self.bounds;
        if start > bounds.end {
            return Err(StoreError::OutOfRange {
                start: bounds.start,
                end: bounds.end,
            });
        }
        self.bounds.start = bounds.start.max(start);
        Ok(())
    }
}

/// The logs of a shard.
pub(crate) type Table = BTreeMap<LogId, Entry>;

/// What the changes held for a log.
#[derive(Debug)]
enum Before {
    /// Nothing: the table counted.
    Unchanged,
    /// An entry with these; a group changes nothing else of one. Each append of a round comes by
    /// here, so nothing is cloned.
    Held(Bounds, Option<LeaderEpoch>, Option<LeaderEpoch>),
    /// This, or a deletion.
    Changed(Option<Entry>),
}

/// Changes that are not durable yet, over a table.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    changed: BTreeMap<LogId, Option<Entry>>,
    /// What `changed` held before the group that is being staged touched it.
    undo: Vec<(LogId, Before)>,
}

impl Staged {
    /// The log as the staged changes leave it.
    pub(crate) fn get<'a>(&'a self, table: &'a Table, log: LogId) -> Option<&'a Entry> {
        match self.changed.get(&log) {
            Some(changed) => changed.as_ref(),
            None => table.get(&log),
        }
    }

    /// Bounds and epochs of the log, to be changed; [`Staged::undo_group`] takes the change back.
    pub(crate) fn change(&mut self, table: &Table, log: LogId) -> Result<&mut Entry, StoreError> {
        let (changed, before) = match self.changed.entry(log) {
            MapEntry::Occupied(held) => {
                let held = held.into_mut();
                let entry = held.as_ref().ok_or(StoreError::NotFound)?;
                let before = Before::Held(entry.bounds, entry.epoch, entry.last_epoch);
                (held, before)
            }
            MapEntry::Vacant(place) => {
                let entry = table.get(&log).cloned().ok_or(StoreError::NotFound)?;
                (place.insert(Some(entry)), Before::Unchanged)
            }
        };
        self.undo.push((log, before));
        changed.as_mut().ok_or(StoreError::NotFound)
    }

    /// Creates (`Some`) or deletes (`None`) a log.
    pub(crate) fn set(&mut self, log: LogId, entry: Option<Entry>) {
        let before = self.changed.insert(log, entry);
        let before = before.map_or(Before::Unchanged, Before::Changed);
        self.undo.push((log, before));
    }

    /// The group that was staged last is whole.
    pub(crate) fn keep_group(&mut self) {
        self.undo.clear();
    }

    /// The group that was staged last is refused: as if it had not been.
    pub(crate) fn undo_group(&mut self) {
        while let Some((log, before)) = self.undo.pop() {
            match before {
                Before::Unchanged => {
                    self.changed.remove(&log);
                }
                Before::Held(bounds, epoch, last_epoch) => {
                    if let Some(Some(entry)) = self.changed.get_mut(&log) {
                        (entry.bounds, entry.epoch) = (bounds, epoch);
                        entry.last_epoch = last_epoch;
                    }
                }
                Before::Changed(entry) => {
                    self.changed.insert(log, entry);
                }
            }
        }
    }

    /// Sets the birth of a staged log, known once its frame has a place.
    pub(crate) fn set_birth(&mut self, log: LogId, lsn: u64) {
        if let Some(Some(entry)) = self.changed.get_mut(&log) {
            entry.birth = lsn;
        }
    }

    /// The logs that changed, with their end: what a commit frame lists.
    pub(crate) fn ends(&self) -> Vec<(LogId, i64)> {
        let ends = self.changed.iter();
        ends.filter_map(|(log, entry)| Some((*log, entry.as_ref()?.bounds.end)))
            .collect()
    }

    /// The logs that changed.
    pub(crate) fn logs(&self) -> impl Iterator<Item = &LogId> {
        self.changed.keys()
    }

    /// The changes, in order of the logs; `None` where a log was deleted.
    pub(crate) fn into_changes(self) -> BTreeMap<LogId, Option<Entry>> {
        self.changed
    }
}

/// Replays rounds. What does not fit together damages the logs concerned, and only those.
#[derive(Debug)]
pub(crate) struct Replay {
    /// The catalogue so far.
    pub(crate) table: Table,
    /// Logs of which the last batches may be lost, with where.
    suspects: BTreeMap<LogId, StoreError>,
    /// Parts of a checkpoint that is not whole yet.
    parts: Vec<CatalogueEntry>,
    parts_seen: i64,
}

impl Replay {
    /// Nothing replayed yet.
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new(),
            suspects: BTreeMap::new(),
            parts: Vec::new(),
            parts_seen: 0,
        }
    }

    /// Takes `round` of the file at `path` in; `lsn` is that of the file's position 0.
    pub(crate) fn round(&mut self, round: &FoundRound, path: &str, lsn: u64) {
        for found in &round.frames {
            let at = lsn.saturating_add(found.position);
            self.frame(&found.frame, &found.payload, path, at);
        }
        for frame in &round.bad_batches {
            let what = format!("the batch at offset {} is damaged", frame.base);
            self.damage(frame.log, frame.last().saturating_add(1), path, &what);
        }
        match (&round.ends, round.damaged_at) {
            (Some(ends), _) => {
                for (log, end) in ends {
                    let held = self.table.get(log).map(|entry| entry.bounds.end);
                    if held != Some(*end) {
                        self.damage(*log, *end, path, "a batch is missing");
                    }
                    self.suspects.remove(log);
                }
            }
            (None, Some(at)) => {
                let why = format!("batches may be lost at byte {at}");
                for log in self.table.keys() {
                    self.suspects.insert(*log, corrupt(path, &why));
                }
            }
            (None, None) => {}
        }
    }

    /// The catalogue, with the logs that may have lost something marked as damaged.
    pub(crate) fn finish(mut self) -> Table {
        for (log, error) in self.suspects {
            if let Some(entry) = self.table.get_mut(&log) {
                entry.damaged.get_or_insert(error);
            }
        }
        self.table
    }

    fn frame(&mut self, frame: &Frame, payload: &[u8], path: &str, lsn: u64) {
        let log = frame.log;
        match frame.kind {
            Kind::Create => {
                let name = String::from_utf8_lossy(payload);
                let entry = Entry::new(Arc::from(name), lsn);
                self.table.entry(log).or_insert(entry);
            }
            Kind::Delete => {
                self.table.remove(&log);
                self.suspects.remove(&log);
            }
            Kind::Append => self.append(frame, path),
            Kind::Fence => {
                if let Some(entry) = self.table.get_mut(&log) {
                    entry.epoch = entry.epoch.max(Some(frame.epoch));
                }
            }
            Kind::Trim => {
                if let Some(entry) = self.table.get_mut(&log) {
                    entry.bounds.start = entry.bounds.start.max(frame.base);
                }
            }
            Kind::Checkpoint => self.checkpoint(frame, payload),
            Kind::Commit | Kind::Footer => {}
        }
    }

    fn append(&mut self, frame: &Frame, path: &str) {
        let end = frame.last().saturating_add(1);
        match self.table.get_mut(&frame.log) {
            Some(entry) if entry.bounds.end == frame.base => {
                entry.bounds.end = end;
                entry.last_epoch = Some(frame.epoch);
                self.suspects.remove(&frame.log);
            }
            _ => {
                let what = format!("no batch leads to offset {}", frame.base);
                self.damage(frame.log, end, path, &what);
            }
        }
    }

    fn checkpoint(&mut self, frame: &Frame, mut payload: &[u8]) {
        if frame.base == 0 {
            self.parts.clear();
            self.parts_seen = 0;
        } else if frame.base != self.parts_seen {
            // A part before it is lost: a catalogue without it would lack logs.
            self.parts_seen = 0;
            return;
        }
        while let Some(entry) = CatalogueEntry::decode(&mut payload) {
            self.parts.push(entry);
        }
        self.parts_seen += 1;
        if frame.last_delta != 0 {
            return;
        }
        self.parts_seen = 0;
        self.table = std::mem::take(&mut self.parts)
            .into_iter()
            .map(|part| (part.log, from_catalogue(part)))
            .collect();
        self.suspects.clear();
    }

    fn damage(&mut self, log: LogId, end: i64, path: &str, what: &str) {
        let entry = self
            .table
            .entry(log)
            .or_insert_with(|| Entry::new(Arc::from(""), 0));
        entry.bounds.end = entry.bounds.end.max(end);
        entry.damaged.get_or_insert_with(|| corrupt(path, what));
    }
}

fn corrupt(path: &str, why: &str) -> StoreError {
    StoreError::Corrupt {
        path: path.to_owned(),
        why: why.to_owned(),
    }
}

/// The entry that a catalogue has.
pub(crate) fn from_catalogue(part: CatalogueEntry) -> Entry {
    Entry {
        name: Arc::from(part.name),
        birth: part.birth,
        bounds: Bounds {
            start: part.start,
            end: part.end,
        },
        epoch: part.epoch,
        last_epoch: part.last_epoch,
        damaged: part
            .damaged
            .then(|| corrupt("the shard's journal", "it was found damaged before")),
    }
}

/// The catalogue's form of `entry`.
pub(crate) fn to_catalogue(log: LogId, entry: &Entry) -> CatalogueEntry {
    CatalogueEntry {
        log,
        birth: entry.birth,
        start: entry.bounds.start,
        end: entry.bounds.end,
        epoch: entry.epoch,
        last_epoch: entry.last_epoch,
        damaged: entry.damaged.is_some(),
        name: entry.name.to_string(),
    }
}

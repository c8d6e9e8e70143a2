//! A shard as values, and what a round makes of it. Pure, but for looking up a batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

use super::db::Changes;
use super::keys::{self, Meta, PIECE_BYTES};
use crate::ids::{LeaderEpoch, LogId};
use crate::journal::queue::{Command, Queued, Reply, answer};
use crate::store::{Append, Bounds, LogState, Op, StoreError};

/// One log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The topic's name.
    pub(super) name: Arc<str>,
    /// The number of its creation.
    pub(super) birth: u64,
    /// Start and end.
    pub(super) bounds: Bounds,
    /// The epoch that holds it.
    pub(super) epoch: Option<LeaderEpoch>,
    /// The epoch of its last batch.
    pub(super) last_epoch: Option<LeaderEpoch>,
    /// Bytes of the batches before its start, from its creation on.
    pub(super) before: u64,
    /// Bytes of all its batches, from its creation on; as they were appended.
    pub(super) total: u64,
    /// Bytes that compaction took away of those from its start on. Not written: an opening counts.
    pub(super) gone: i64,
}

/// Batches of a log that take the place of others.
#[derive(Debug)]
pub(crate) struct Replace {
    /// The log.
    pub(super) log: LogId,
    /// The epoch that must hold it.
    pub(super) epoch: LeaderEpoch,
    /// The number of its creation.
    pub(super) birth: u64,
    /// What [`super::shard::Log::replaced`] was when they were read.
    pub(super) seen: u64,
    /// Last offset of the first batch that was read.
    pub(super) first_last: i64,
    /// First offset and bytes of those that go.
    pub(super) gone: Vec<(i64, u32)>,
    /// First offset that they answer for, what is kept of them, and the bytes of those that come.
    pub(super) put: Vec<(i64, Meta, Bytes)>,
}

impl Replace {
    /// Bytes of those that come.
    pub(crate) fn bytes(&self) -> usize {
        self.put.iter().map(|(_, _, bytes)| bytes.len()).sum()
    }
}

/// The logs of a shard.
pub(super) type Table = BTreeMap<LogId, Entry>;

/// An outcome that waits for the round to be durable.
#[derive(Debug)]
pub(super) enum Pending {
    /// Of a group, a creation, a deletion.
    Done(Reply<()>),
    /// Of an acquisition.
    Acquired(LogId, Reply<LogState>),
}

impl Pending {
    /// Answers with a failure.
    pub(super) fn fail(self, error: StoreError) {
        match self {
            Self::Done(reply) => answer(reply, Err(error)),
            Self::Acquired(_, reply) => answer(reply, Err(error)),
        }
    }
}

/// Changes of logs; `None` where one is deleted.
type Changed = BTreeMap<LogId, Option<Entry>>;

/// A planned round.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    table: &'a Table,
    max_append: usize,
    next_birth: u64,
    changed: Changed,
    /// Batches of this round by log, in order: birth, base and what is kept of them.
    appended: BTreeMap<LogId, Vec<(i64, Meta)>>,
    deleted: Vec<u64>,
    replaced: Option<LogId>,
    changes: Changes,
    pending: Vec<Pending>,
}

/// A round that is to be made durable.
#[derive(Debug)]
pub(super) struct Round {
    /// What becomes of the logs.
    pub(super) changed: Changed,
    /// Births of logs that are deleted.
    pub(super) deleted: Vec<u64>,
    /// The log of which batches are replaced.
    pub(super) replaced: Option<LogId>,
    /// What becomes of the tree.
    pub(super) changes: Changes,
    /// Whom to tell.
    pub(super) pending: Vec<Pending>,
    /// The next log's birth.
    pub(super) next_birth: u64,
}

/// Finds the batch of a log that holds an offset.
pub(super) trait Floor {
    /// Its base and what is kept of it.
    fn floor(&self, birth: u64, offset: i64) -> Result<Option<(i64, Meta)>, StoreError>;

    /// Bytes of the batches whose entries begin in `from..upto`.
    fn bytes(&self, birth: u64, from: i64, upto: i64) -> Result<u64, StoreError>;
}

impl<'a> Plan<'a> {
    /// Nothing planned yet.
    pub(super) fn new(table: &'a Table, max_append: usize, next_birth: u64) -> Self {
        Self {
            table,
            max_append,
            next_birth,
            changed: Changed::new(),
            appended: BTreeMap::new(),
            deleted: Vec::new(),
            replaced: None,
            changes: Changes::default(),
            pending: Vec::new(),
        }
    }

    /// The log as the round leaves it so far.
    fn get(&self, log: LogId) -> Option<&Entry> {
        match self.changed.get(&log) {
            Some(changed) => changed.as_ref(),
            None => self.table.get(&log),
        }
    }

    /// Plans a command, or refuses it. An error is the store's, and ends the round.
    pub(super) fn add(&mut self, queued: Queued, floor: &impl Floor) -> Result<(), StoreError> {
        match queued.command {
            Command::Group(ops, reply) => match self.group(&ops, floor) {
                Ok(()) => self.pending.push(Pending::Done(reply)),
                Err(error @ (StoreError::Corrupt { .. } | StoreError::Offline(_))) => {
                    answer(reply, Err(error.clone()));
                    return Err(error);
                }
                Err(error) => answer(reply, Err(error)),
            },
            Command::Create(log, name, reply) => {
                self.create(log, &name);
                self.pending.push(Pending::Done(reply));
            }
            Command::Delete(topic, reply) => {
                self.delete(topic);
                self.pending.push(Pending::Done(reply));
            }
            Command::Acquire(log, epoch, reply) => match self.acquire(log, epoch) {
                Ok(()) => self.pending.push(Pending::Acquired(log, reply)),
                Err(error) => answer(reply, Err(error)),
            },
            Command::Replace(replace, reply) => match self.replace(&replace) {
                Ok(()) => self.pending.push(Pending::Done(reply)),
                Err(error) => answer(reply, Err(error)),
            },
            Command::Close(reply)
            | Command::Roll(reply)
            | Command::Keep(_, reply)
            | Command::Join(_, reply) => answer(reply, Ok(())),
        }
        Ok(())
    }

    fn create(&mut self, log: LogId, name: &str) {
        if self.get(log).is_some() {
            return;
        }
        let entry = Entry {
            name: Arc::from(name),
            birth: self.next_birth,
            bounds: Bounds::default(),
            epoch: None,
            last_epoch: None,
            before: 0,
            total: 0,
            gone: 0,
        };
        self.next_birth += 1;
        self.changed.insert(log, Some(entry));
    }

    fn delete(&mut self, topic: Uuid) {
        let of = |partition| LogId { topic, partition };
        let known = self.table.range(of(0)..=of(u32::MAX)).map(|(log, _)| *log);
        let new = self
            .changed
            .range(of(0)..=of(u32::MAX))
            .map(|(log, _)| *log);
        let logs: Vec<LogId> = known.chain(new).collect();
        for log in logs {
            if let Some(birth) = self.get(log).map(|entry| entry.birth) {
                let key = keys::deleted_key(birth);
                let value = keys::sealed(&key, Vec::new());
                self.changes.put(key, value);
                self.deleted.push(birth);
                self.changed.insert(log, None);
                self.appended.remove(&log);
            }
        }
    }

    fn acquire(&mut self, log: LogId, epoch: LeaderEpoch) -> Result<(), StoreError> {
        let entry = self.get(log).ok_or(StoreError::NotFound)?;
        if entry.epoch > Some(epoch) {
            return Err(StoreError::Fenced);
        }
        if entry.epoch < Some(epoch) {
            let mut entry = entry.clone();
            entry.epoch = Some(epoch);
            self.changed.insert(log, Some(entry));
        }
        Ok(())
    }

    /// Takes a group in, or refuses it and changes nothing.
    fn group(&mut self, ops: &[Op], floor: &impl Floor) -> Result<(), StoreError> {
        let mut staged: BTreeMap<LogId, Entry> = BTreeMap::new();
        let mut metas = Vec::new();
        for op in ops {
            let log = op.log();
            let entry = match staged.remove(&log) {
                Some(entry) => entry,
                None => self.get(log).cloned().ok_or(StoreError::NotFound)?,
            };
            let entry = match op {
                Op::Append(append) => {
                    let (entry, meta) = appended(entry, append, self.max_append)?;
                    metas.push((log, append.expect_end, meta));
                    entry
                }
                Op::Trim { epoch, start, .. } => {
                    let found = |birth, offset| {
                        let mut own = metas.iter().filter(|(of, ..)| *of == log);
                        let own = own.rfind(|(_, base, _)| *base <= offset);
                        if let Some((_, base, meta)) = own {
                            return Ok(Some((*base, *meta)));
                        }
                        self.floor(log, birth, offset, floor)
                    };
                    let known = self.table.get(&log);
                    let known = known.filter(|known| known.birth == entry.birth);
                    let bytes = |birth, from, upto| floor.bytes(birth, from, upto);
                    let stored = (known.map_or(0, |known| known.bounds.end), bytes);
                    trimmed(entry, *epoch, *start, found, stored)?
                }
            };
            staged.insert(log, entry);
        }
        for (op, (log, base, meta)) in ops.iter().filter_map(append_of).zip(metas) {
            let birth = staged.get(&log).map_or(0, |entry| entry.birth);
            self.write(birth, base, &meta, &op.batch.to_bytes());
            self.appended.entry(log).or_default().push((base, meta));
        }
        let staged = staged.into_iter().map(|(log, entry)| (log, Some(entry)));
        self.changed.extend(staged);
        Ok(())
    }

    fn floor(
        &self,
        log: LogId,
        birth: u64,
        offset: i64,
        floor: &impl Floor,
    ) -> Result<Option<(i64, Meta)>, StoreError> {
        let own = self.appended.get(&log).and_then(|own| {
            let behind = own.partition_point(|(base, _)| *base <= offset);
            own.get(behind.checked_sub(1)?).copied()
        });
        match own {
            Some(own) => Ok(Some(own)),
            None => floor.floor(birth, offset),
        }
    }

    /// Takes replaced batches in, or refuses that and changes nothing.
    fn replace(&mut self, replace: &Replace) -> Result<(), StoreError> {
        let entry = self.get(replace.log).cloned();
        let mut entry = entry.ok_or(StoreError::NotFound)?;
        check_epoch(&entry, replace.epoch)?;
        let Bounds { start, end } = entry.bounds;
        if entry.birth != replace.birth {
            return Err(StoreError::NotFound);
        }
        if replace.first_last < start {
            // What lies before the start may be removed already.
            return Err(StoreError::OutOfRange { start, end });
        }
        for (base, len) in &replace.gone {
            entry.gone = entry.gone.saturating_add(i64::from(*len));
            self.changes.remove(keys::batch_key(entry.birth, *base));
            for piece in 0..keys::pieces(*len) {
                let key = keys::piece_key(entry.birth, *base, piece);
                self.changes.remove(key);
            }
        }
        for (base, meta, bytes) in &replace.put {
            entry.gone = entry.gone.saturating_sub(i64::from(meta.len));
            self.write(entry.birth, *base, meta, bytes);
        }
        self.replaced = Some(replace.log);
        self.changed.insert(replace.log, Some(entry));
        Ok(())
    }

    fn write(&mut self, birth: u64, base: i64, meta: &Meta, bytes: &[u8]) {
        let key = keys::batch_key(birth, base);
        let value = meta.encode(&key);
        self.changes.put(key, value);
        for (piece, bytes) in (0..).zip(bytes.chunks(PIECE_BYTES)) {
            self.changes
                .put(keys::piece_key(birth, base, piece), bytes.to_vec());
        }
    }

    /// The round, numbered, if there is anything to write; whom to tell either way.
    pub(super) fn finish(mut self, number: u64) -> Round {
        for (log, entry) in &self.changed {
            let key = keys::log_key(*log);
            match entry {
                Some(entry) => {
                    let value = keys::encode_log(&key, entry);
                    self.changes.put(key, value);
                }
                None => self.changes.remove(key),
            }
        }
        if !self.changed.is_empty() {
            let round = keys::encode_round(number);
            self.changes.put(keys::ROUND_KEY.to_vec(), round);
        }
        Round {
            changed: self.changed,
            deleted: self.deleted,
            replaced: self.replaced,
            changes: self.changes,
            pending: self.pending,
            next_birth: self.next_birth,
        }
    }
}

fn append_of(op: &Op) -> Option<&Append> {
    match op {
        Op::Append(append) => Some(append),
        Op::Trim { .. } => None,
    }
}

fn check_epoch(entry: &Entry, epoch: LeaderEpoch) -> Result<(), StoreError> {
    if entry.epoch == Some(epoch) {
        Ok(())
    } else {
        Err(StoreError::Fenced)
    }
}

fn appended(mut entry: Entry, append: &Append, max: usize) -> Result<(Entry, Meta), StoreError> {
    check_epoch(&entry, append.epoch)?;
    let len = append.batch.total_len();
    let Some(len) = u32::try_from(len).ok().filter(|_| len <= max) else {
        return Err(StoreError::TooLarge { max });
    };
    let end = entry.bounds.end;
    if append.expect_end != end {
        return Err(StoreError::EndMismatch { end });
    }
    let header = append.batch.header();
    if header.base_offset != end || header.last_offset_delta < 0 {
        return Err(StoreError::Unsupported(
            "a batch that is not stamped with the end of its log",
        ));
    }
    let crc = crc32c::crc32c(append.batch.head());
    let meta = Meta {
        last: header.last_offset(),
        append_ms: append.append_ms,
        max_timestamp: header.max_timestamp,
        len,
        before: entry.total,
        crc: crc32c::crc32c_append(crc, append.batch.records()),
    };
    entry.bounds.end = header.last_offset().saturating_add(1);
    entry.last_epoch = Some(append.epoch);
    entry.total += u64::from(len);
    Ok((entry, meta))
}

/// `stored_end`: batches from there on are not in the store yet; `bytes`: [`Floor::bytes`].
fn trimmed(
    mut entry: Entry,
    epoch: LeaderEpoch,
    start: i64,
    floor: impl Fn(u64, i64) -> Result<Option<(i64, Meta)>, StoreError>,
    (stored_end, bytes): (i64, impl Fn(u64, i64, i64) -> Result<u64, StoreError>),
) -> Result<Entry, StoreError> {
    check_epoch(&entry, epoch)?;
    let bounds = entry.bounds;
    if start > bounds.end {
        return Err(StoreError::OutOfRange {
            start: bounds.start,
            end: bounds.end,
        });
    }
    if start > bounds.start {
        let found = if start == bounds.end {
            None
        } else {
            floor(entry.birth, start)?
        };
        let before = match found {
            Some((_, meta)) => meta.before,
            None if start == bounds.end => entry.total,
            None => entry.before,
        };
        if start >= stored_end {
            // Compaction was there only where it is trimmed now.
            entry.gone = 0;
        } else if entry.gone != 0 {
            let first = floor(entry.birth, bounds.start)?;
            let first = first.map_or(bounds.start, |(base, _)| base);
            let upto = found.map_or(start, |(base, _)| base);
            let left = bytes(entry.birth, first, upto)?;
            let appended = before.saturating_sub(entry.before);
            entry.gone -= appended.cast_signed().saturating_sub(left.cast_signed());
        }
        entry.before = before;
        entry.bounds.start = start;
    }
    Ok(entry)
}

#[cfg(test)]
mod tests;

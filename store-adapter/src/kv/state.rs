//! A shard as values, and what a round makes of it. Pure, but for looking up a batch.

use std::collections::BTreeMap;
use std::sync::Arc;

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
    /// Bytes of all its batches, from its creation on.
    pub(super) total: u64,
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
            Command::Close(reply) | Command::Roll(reply) => answer(reply, Ok(())),
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
                    trimmed(entry, *epoch, *start, found)?
                }
            };
            staged.insert(log, entry);
        }
        for (op, (log, base, meta)) in ops.iter().filter_map(append_of).zip(metas) {
            let birth = staged.get(&log).map_or(0, |entry| entry.birth);
            self.write(birth, base, &meta, op);
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

    fn write(&mut self, birth: u64, base: i64, meta: &Meta, append: &Append) {
        let key = keys::batch_key(birth, base);
        let value = meta.encode(&key);
        self.changes.put(key, value);
        let bytes = append.batch.to_bytes();
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

fn trimmed(
    mut entry: Entry,
    epoch: LeaderEpoch,
    start: i64,
    floor: impl Fn(u64, i64) -> Result<Option<(i64, Meta)>, StoreError>,
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
        entry.before = if start == bounds.end {
            entry.total
        } else {
            let found = floor(entry.birth, start)?;
            found.map_or(entry.before, |(_, meta)| meta.before)
        };
        entry.bounds.start = start;
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::batch_of;
    use tokio::sync::oneshot;

    struct Nothing;
    impl Floor for Nothing {
        fn floor(&self, _: u64, _: i64) -> Result<Option<(i64, Meta)>, StoreError> {
            Ok(None)
        }
    }

    const EPOCH: LeaderEpoch = LeaderEpoch(1);

    fn log() -> LogId {
        LogId {
            topic: Uuid::from_u128(1),
            partition: 0,
        }
    }

    fn append(end: i64) -> Op {
        Op::Append(Append {
            log: log(),
            epoch: EPOCH,
            expect_end: end,
            append_ms: 0,
            batch: batch_of(2, 100, 0, 1).stamp(end, EPOCH),
        })
    }

    fn trim(start: i64) -> Op {
        Op::Trim {
            log: log(),
            epoch: EPOCH,
            start,
        }
    }

    #[test]
    fn a_group_is_taken_whole_or_not_at_all() {
        let table = Table::new();
        let mut plan = Plan::new(&table, 1 << 20, 7);
        plan.create(log(), "orders");
        plan.acquire(log(), EPOCH).unwrap();
        let wrong = plan.group(&[append(0), append(3)], &Nothing);
        assert_eq!(wrong, Err(StoreError::EndMismatch { end: 2 }));
        assert_eq!(plan.get(log()).unwrap().bounds, Bounds::default());
        plan.group(&[append(0), append(2), trim(3), append(4)], &Nothing)
            .unwrap();
        let entry = plan.get(log()).unwrap();
        assert_eq!(entry.bounds, Bounds { start: 3, end: 6 });
        assert_eq!((entry.before, entry.total, entry.birth), (100, 300, 7));
        plan.group(&[trim(6)], &Nothing).unwrap();
        assert_eq!(plan.get(log()).unwrap().before, 300);
        let round = plan.finish(1);
        assert_eq!(round.next_birth, 8);
        // Three batches of an entry and a piece each, the log, the round.
        assert_eq!(round.changes.len(), 8);
    }

    #[test]
    fn a_log_made_again_has_a_birth_of_its_own() {
        let table = Table::new();
        let mut plan = Plan::new(&table, 1 << 20, 1);
        plan.create(log(), "orders");
        plan.delete(log().topic);
        assert_eq!(plan.get(log()), None);
        plan.create(log(), "orders");
        assert_eq!(plan.get(log()).unwrap().birth, 2);
        let (reply, _outcome) = oneshot::channel();
        Pending::Done(reply).fail(StoreError::NotFound);
    }
}

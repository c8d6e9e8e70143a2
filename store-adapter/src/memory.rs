//! The `memory:` store: the reference that every other adapter is compared with.
//!
//! A group is decided while `submit` runs, so nothing is ever queued. Several handles may share one
//! store ([`MemoryStore::another_handle`]): they stand for several brokers and fence one another as
//! the brokers of a journal do. What it keeps ends with the last handle.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

use crate::batch::BatchHeader;
use crate::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};
use crate::rebuild::filler;
use crate::store::{
    Append, AtomicScope, Bounds, Caps, Commit, Durability, Left, LogInfo, LogState, LogStore, Op,
    Passed, Piece, Rewrite, Rewritten, ShardInfo, Size, StoreError, StoreFuture, StoredBatch,
    Wanted, read_and_pass,
};

/// Largest batch that [`MemoryStore::new`] takes, bytes.
const MAX_APPEND: usize = 64 << 20;

/// A handle on a store in memory.
#[derive(Debug)]
pub struct MemoryStore {
    shared: Arc<Mutex<Shared>>,
    max_append: usize,
    /// The owner under which this handle opened each shard.
    open: Mutex<BTreeMap<ShardId, OwnerEpoch>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The highest owner that opened each shard.
    owners: BTreeMap<ShardId, OwnerEpoch>,
    logs: BTreeMap<LogId, Log>,
}

#[derive(Debug)]
struct Log {
    name: String,
    shard: ShardId,
    epoch: Option<LeaderEpoch>,
    bounds: watch::Sender<Bounds>,
    last_epoch: Option<LeaderEpoch>,
    batches: VecDeque<StoredBatch>,
}

/// What a group would make of one log.
#[derive(Debug, Clone, Copy)]
struct Staged {
    epoch: Option<LeaderEpoch>,
    bounds: Bounds,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::with_max_append(MAX_APPEND)
    }

    /// An empty store that takes batches of at most `max_append` bytes.
    pub fn with_max_append(max_append: usize) -> Self {
        Self {
            shared: Arc::default(),
            max_append,
            open: Mutex::default(),
        }
    }

    /// A second handle on the same store, with no shard open yet: another broker.
    pub fn another_handle(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            max_append: self.max_append,
            open: Mutex::default(),
        }
    }

    /// Whether this handle may touch `shard`.
    fn check_owner(&self, shared: &Shared, shard: ShardId) -> Result<(), StoreError> {
        let Some(own) = self.open.lock().get(&shard).copied() else {
            return Err(StoreError::Offline(format!(
                "shard {} is not open",
                shard.0
            )));
        };
        match shared.owners.get(&shard) {
            Some(owner) if *owner == own => Ok(()),
            _ => Err(StoreError::Fenced),
        }
    }

    fn log<'a>(&self, shared: &'a Shared, id: LogId) -> Result<&'a Log, StoreError> {
        let log = shared.logs.get(&id).ok_or(StoreError::NotFound)?;
        self.check_owner(shared, log.shard)?;
        Ok(log)
    }

    fn commit(&self, ops: &[Op]) -> Result<(), StoreError> {
        let mut shared = self.shared.lock();
        let mut staged: BTreeMap<LogId, Staged> = BTreeMap::new();
        for op in ops {
            let log = self.log(&shared, op.log())?;
            let state = staged.entry(op.log()).or_insert_with(|| Staged {
                epoch: log.epoch,
                bounds: *log.bounds.borrow(),
            });
            self.stage(op, state)?;
        }
        for op in ops {
            if let (Some(log), Op::Append(append)) = (shared.logs.get_mut(&op.log()), op) {
                log.push(append);
            }
        }
        for (id, state) in staged {
            if let Some(log) = shared.logs.get_mut(&id) {
                log.drop_below(state.bounds.start);
                log.bounds.send_replace(state.bounds);
            }
        }
        Ok(())
    }

    fn stage(&self, op: &Op, state: &mut Staged) -> Result<(), StoreError> {
        match op {
            Op::Append(append) => {
                if state.epoch != Some(append.epoch) {
                    return Err(StoreError::Fenced);
                }
                if append.batch.total_len() > self.max_append {
                    return Err(StoreError::TooLarge {
                        max: self.max_append,
                    });
                }
                let header = append.batch.header();
                if append.expect_end != state.bounds.end {
                    return Err(StoreError::EndMismatch {
                        end: state.bounds.end,
                    });
                }
                if header.base_offset != append.expect_end || header.last_offset_delta < 0 {
                    return Err(StoreError::Unsupported(
                        "a batch that is not stamped with the end of its log",
                    ));
                }
                state.bounds.end = header.last_offset().saturating_add(1);
            }
            Op::Trim { epoch, start, .. } => {
                if state.epoch != Some(*epoch) {
                    return Err(StoreError::Fenced);
                }
                if *start > state.bounds.end {
                    return Err(StoreError::OutOfRange {
                        start: state.bounds.start,
                        end: state.bounds.end,
                    });
                }
                state.bounds.start = state.bounds.start.max(*start);
            }
        }
        Ok(())
    }

    fn create_log(&self, id: LogId, name: &str, shard: ShardId) -> Result<(), StoreError> {
        let mut shared = self.shared.lock();
        self.check_owner(&shared, shard)?;
        shared.logs.entry(id).or_insert_with(|| Log {
            name: name.to_owned(),
            shard,
            epoch: None,
            bounds: watch::Sender::new(Bounds::default()),
            last_epoch: None,
            batches: VecDeque::new(),
        });
        Ok(())
    }

    fn delete_topic(&self, topic: Uuid) -> Result<(), StoreError> {
        let mut shared = self.shared.lock();
        let ids: Vec<LogId> = shared
            .logs
            .keys()
            .filter(|id| id.topic == topic)
            .copied()
            .collect();
        let open = self.open.lock().clone();
        for id in ids {
            let Some(shard) = shared.logs.get(&id).map(|log| log.shard) else {
                continue;
            };
            if open.contains_key(&shard) {
                self.check_owner(&shared, shard)?;
                shared.logs.remove(&id);
            }
        }
        Ok(())
    }

    fn acquire_log(&self, id: LogId, epoch: LeaderEpoch) -> Result<LogState, StoreError> {
        let mut shared = self.shared.lock();
        self.log(&shared, id)?;
        let log = shared.logs.get_mut(&id).ok_or(StoreError::NotFound)?;
        if log.epoch.is_some_and(|held| held > epoch) {
            return Err(StoreError::Fenced);
        }
        log.epoch = Some(epoch);
        Ok(LogState {
            bounds: *log.bounds.borrow(),
            last_epoch: log.last_epoch,
        })
    }

    fn read_log(
        &self,
        id: LogId,
        from: i64,
        max_bytes: usize,
        upto: i64,
        within: bool,
    ) -> Result<Vec<StoredBatch>, StoreError> {
        let shared = self.shared.lock();
        let log = self.log(&shared, id)?;
        let Bounds { start, end } = *log.bounds.borrow();
        if from < start || from > end {
            return Err(StoreError::OutOfRange { start, end });
        }
        let first = log.batches.partition_point(|b| b.last_offset < from);
        let mut taken = Vec::new();
        let mut bytes = 0;
        for batch in log.batches.range(first..) {
            if batch.base_offset >= upto || from >= upto {
                break;
            }
            bytes += batch.bytes.len();
            if bytes > max_bytes && (within || !taken.is_empty()) {
                break;
            }
            taken.push(batch.clone());
        }
        Ok(taken)
    }

    fn find(
        &self,
        id: LogId,
        from: i64,
        timestamp_ms: i64,
    ) -> Result<Option<StoredBatch>, StoreError> {
        let shared = self.shared.lock();
        let log = self.log(&shared, id)?;
        let first = log.batches.partition_point(|b| b.last_offset < from);
        let found = log.batches.range(first..).find(|batch| {
            BatchHeader::read(&batch.bytes).is_ok_and(|header| header.reaches(timestamp_ms))
        });
        Ok(found.cloned())
    }

    fn pieces_of(&self, id: LogId, from: i64, min_bytes: u64) -> Result<Vec<Piece>, StoreError> {
        let batches = self.read_log(id, from, usize::MAX, i64::MAX, false)?;
        let mut pieces = Vec::new();
        let (mut next, mut bytes) = (from, 0_u64);
        for batch in batches {
            if !pieces.is_empty() && bytes >= min_bytes {
                break;
            }
            let time = BatchHeader::read(&batch.bytes).map(|h| h.max_timestamp);
            let base = std::mem::replace(&mut next, batch.last_offset.saturating_add(1));
            pieces.push(Piece {
                base,
                last: batch.last_offset,
                bytes: batch.bytes.len() as u64,
                max_timestamp: time.ok().filter(|t| *t >= 0).unwrap_or(batch.append_ms),
            });
            bytes += batch.bytes.len() as u64;
        }
        Ok(pieces)
    }

    fn sift(&self, rewrite: &Rewrite) -> Result<Rewritten, StoreError> {
        let mut shared = self.shared.lock();
        let id = rewrite.log;
        self.log(&shared, id)?;
        let log = shared.logs.get_mut(&id).ok_or(StoreError::NotFound)?;
        if log.epoch != Some(rewrite.epoch) {
            return Err(StoreError::Fenced);
        }
        let bytes_before = log.bytes_below(rewrite.upto);
        let mut gone = None;
        for mut batch in std::mem::take(&mut log.batches) {
            if batch.last_offset >= rewrite.upto {
                log.batches.extend(gone.take());
                log.batches.push_back(batch);
                continue;
            }
            match rewrite.sieve.sift(&batch) {
                Left::Whole => {}
                Left::Batch(bytes) => batch.bytes = bytes,
                Left::Nothing => {
                    // Something has to answer for the last offset.
                    if let Ok(header) = BatchHeader::read(&batch.bytes) {
                        batch.bytes = filler(&header);
                    }
                    gone = Some(batch);
                    continue;
                }
            }
            gone = None;
            log.batches.push_back(batch);
        }
        log.batches.extend(gone);
        Ok(Rewritten {
            upto: rewrite.upto.min(log.bounds.borrow().end),
            bytes_before,
            bytes_after: log.bytes_below(rewrite.upto),
        })
    }

    fn open(&self, shard: ShardId, owner: OwnerEpoch) -> Result<ShardInfo, StoreError> {
        let mut shared = self.shared.lock();
        let highest = shared.owners.entry(shard).or_insert(owner);
        if *highest > owner {
            return Err(StoreError::Fenced);
        }
        *highest = owner;
        self.open.lock().insert(shard, owner);
        Ok(ShardInfo {
            shard,
            damaged: Vec::new(),
            dropped_tail_bytes: 0,
        })
    }

    fn list_logs(&self) -> Vec<LogInfo> {
        let shared = self.shared.lock();
        let mut infos = Vec::new();
        for (id, log) in &shared.logs {
            if self.check_owner(&shared, log.shard).is_ok() {
                infos.push(LogInfo {
                    id: *id,
                    name: log.name.clone(),
                    shard: log.shard,
                    bounds: *log.bounds.borrow(),
                });
            }
        }
        infos
    }
}

impl Log {
    fn push(&mut self, append: &Append) {
        let header = append.batch.header();
        self.last_epoch = Some(append.epoch);
        self.batches.push_back(StoredBatch {
            bytes: append.batch.to_bytes(),
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            append_ms: append.append_ms,
        });
    }

    /// Bytes of the batches that end before `upto`.
    fn bytes_below(&self, upto: i64) -> u64 {
        let below = self.batches.iter().take_while(|b| b.last_offset < upto);
        below.map(|batch| batch.bytes.len() as u64).sum()
    }

    fn drop_below(&mut self, start: i64) {
        let below = self.batches.partition_point(|b| b.last_offset < start);
        self.batches.drain(..below);
    }
}

fn ready<T: Send + 'static>(outcome: Result<T, StoreError>) -> StoreFuture<'static, T> {
    Box::pin(std::future::ready(outcome))
}

impl LogStore for MemoryStore {
    fn caps(&self) -> Caps {
        Caps {
            atomic: AtomicScope::Store,
            max_append: self.max_append,
            durability: Durability::Memory,
            shared: true,
            reads_lag: false,
        }
    }

    fn open_shard(&self, shard: ShardId, owner: OwnerEpoch) -> StoreFuture<'_, ShardInfo> {
        ready(self.open(shard, owner))
    }

    fn check_shard(&self, shard: ShardId) -> Result<(), StoreError> {
        self.check_owner(&self.shared.lock(), shard)
    }

    fn create<'a>(&'a self, id: LogId, name: &'a str, shard: ShardId) -> StoreFuture<'a, ()> {
        ready(self.create_log(id, name, shard))
    }

    fn delete(&self, topic: Uuid) -> StoreFuture<'_, ()> {
        ready(self.delete_topic(topic))
    }

    fn list(&self) -> StoreFuture<'_, Vec<LogInfo>> {
        ready(Ok(self.list_logs()))
    }

    fn acquire(&self, id: LogId, epoch: LeaderEpoch) -> StoreFuture<'_, LogState> {
        ready(self.acquire_log(id, epoch))
    }

    fn submit(&self, ops: Vec<Op>) -> Commit {
        Commit::ready(self.commit(&ops))
    }

    fn read(
        &self,
        id: LogId,
        from: i64,
        max_bytes: usize,
        upto: i64,
    ) -> StoreFuture<'_, Vec<StoredBatch>> {
        ready(self.read_log(id, from, max_bytes, upto, false))
    }

    fn read_within(
        &self,
        id: LogId,
        from: i64,
        max_bytes: usize,
        upto: i64,
    ) -> StoreFuture<'_, Vec<StoredBatch>> {
        ready(self.read_log(id, from, max_bytes, upto, true))
    }

    fn pass_on(&self, id: LogId, wanted: Wanted) -> StoreFuture<'_, Vec<Passed>> {
        read_and_pass(self, id, wanted)
    }

    fn find_time(
        &self,
        id: LogId,
        from: i64,
        timestamp_ms: i64,
    ) -> StoreFuture<'_, Option<StoredBatch>> {
        ready(self.find(id, from, timestamp_ms))
    }

    fn pieces(&self, id: LogId, from: i64, min_bytes: u64) -> StoreFuture<'_, Vec<Piece>> {
        ready(self.pieces_of(id, from, min_bytes))
    }

    fn parts(&self, id: LogId, from: i64) -> Option<Vec<Piece>> {
        self.pieces_of(id, from, u64::MAX).ok()
    }

    fn size(&self, id: LogId) -> Option<Size> {
        let shared = self.shared.lock();
        let log = self.log(&shared, id).ok()?;
        let (bytes, from) = (log.bytes_below(i64::MAX), log.bounds.borrow().start);
        Some(Size { bytes, from })
    }

    fn settled(&self, id: LogId) -> Option<i64> {
        self.bounds(id).map(|bounds| bounds.end)
    }

    fn rewrite(&self, rewrite: Rewrite) -> StoreFuture<'_, Rewritten> {
        ready(self.sift(&rewrite))
    }

    fn bounds(&self, id: LogId) -> Option<Bounds> {
        let shared = self.shared.lock();
        let log = self.log(&shared, id).ok()?;
        let bounds = *log.bounds.borrow();
        Some(bounds)
    }

    fn watch(&self, id: LogId) -> Option<watch::Receiver<Bounds>> {
        let shared = self.shared.lock();
        let log = self.log(&shared, id).ok()?;
        Some(log.bounds.subscribe())
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.open.lock().clear();
        ready(Ok(()))
    }
}

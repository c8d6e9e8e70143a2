//! The log store: one write primitive, a fenced, ordered, all-or-nothing *group*.
//!
//! Guarantees every adapter gives; each sentence is a test of the conformance suite:
//! 1. A [`Commit`] resolves to `Ok` only when its group survives power loss (or what
//!    [`Caps::durability`] names).
//! 2. A group is all-or-nothing within [`Caps::atomic`]; one that crosses it is refused with
//!    [`StoreError::Unsupported`], never split.
//! 3. Per log, groups commit in the order of `submit`; when one fails, those of that log queued
//!    behind it fail too: no holes.
//! 4. Nothing is visible to [`LogStore::read`], [`LogStore::bounds`] or [`LogStore::watch`] before
//!    it is committed.
//! 5. An append below the acquired epoch, or whose `expect_end` is not the end, changes nothing.
//! 6. A trim is durable before `Ok`; reads below it are [`StoreError::OutOfRange`] at once.
//! 7. Bytes read are exactly the bytes appended.
//! 8. Dropping a [`Commit`] does not cancel its group.

mod commit;

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use crate::batch::StampedBatch;
use crate::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};
use crate::runtime::BoxFuture;
use crate::volume::FileRange;

pub use commit::Commit;

/// The outcome of a store call.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Why the store did not do it, and whether it may have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A higher leader epoch, or another owner of the shard, holds the log. It did not happen.
    #[error("fenced")]
    Fenced,
    /// `expect_end` was not the end. It did not happen.
    #[error("the log ends at {end}")]
    EndMismatch {
        /// The log's end offset, queued groups included.
        end: i64,
    },
    /// No such log.
    #[error("no such log")]
    NotFound,
    /// The offset lies outside the log.
    #[error("offset outside {start}..={end}")]
    OutOfRange {
        /// First offset of the log.
        start: i64,
        /// Durable end offset.
        end: i64,
    },
    /// The batch is larger than the store takes. It did not happen.
    #[error("larger than {max} bytes")]
    TooLarge {
        /// [`Caps::max_append`].
        max: usize,
    },
    /// The store cannot be reached or is at its limit; it did not happen and may be tried again.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// It may have happened. Acquire the log again and compare its end before answering.
    #[error("the outcome is not known{}", if *.fenced { ": another owner" } else { "" })]
    Uncertain {
        /// Whether another owner's claim was the reason.
        fenced: bool,
    },
    /// The disk is full. It did not happen.
    #[error("{path}: no space left")]
    Full {
        /// What there was no space for.
        path: String,
    },
    /// The log cannot be served: its bytes are damaged. Others are not affected.
    #[error("{path}: {why}")]
    Corrupt {
        /// Where.
        path: String,
        /// What was found.
        why: String,
    },
    /// The shard is offline until it is opened again.
    #[error("offline: {0}")]
    Offline(String),
    /// The store cannot do this at all.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
}

/// Within what a group is all-or-nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicScope {
    /// One log.
    Log,
    /// The logs of one topic.
    Topic,
    /// The logs of one shard.
    Shard,
    /// All logs.
    Store,
}

/// What `Ok` of a commit survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Nothing: the store is in memory.
    Memory,
    /// The end of the process (`flush.policy=os`).
    OsCache,
    /// Power loss (`flush.policy=fsync`).
    Fsync,
    /// What the engine's replication gives.
    Replicated,
}

/// What a store can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Atomicity of a group.
    pub atomic: AtomicScope,
    /// Largest batch in bytes.
    pub max_append: usize,
    /// What a commit survives.
    pub durability: Durability,
    /// Whether several brokers may open the store.
    pub shared: bool,
    /// Whether [`LogStore::read`] and [`LogStore::read_within`] may be answered by a replica that
    /// is behind: with fewer batches than are committed, or none, and never with others. Asked
    /// again, it has caught up with what was committed when it was asked before.
    pub reads_lag: bool,
}

/// One append. Its base offset must be `expect_end`.
#[derive(Debug, Clone)]
pub struct Append {
    /// The log.
    pub log: LogId,
    /// The epoch under which the appender acquired the log.
    pub epoch: LeaderEpoch,
    /// Where the appender believes the log to end, its own queued groups included.
    pub expect_end: i64,
    /// Time of the append, ms since the Unix epoch; kept beside the batch.
    pub append_ms: i64,
    /// The batch, stamped with `expect_end`.
    pub batch: StampedBatch,
}

/// One operation of a group.
#[derive(Debug, Clone)]
pub enum Op {
    /// Appends a batch.
    Append(Append),
    /// Moves the log's start forward; never back. The start may not pass the end.
    Trim {
        /// The log.
        log: LogId,
        /// The epoch under which the caller acquired the log.
        epoch: LeaderEpoch,
        /// New first offset.
        start: i64,
    },
}

impl Op {
    /// The log that the operation is about.
    pub fn log(&self) -> LogId {
        match self {
            Self::Append(append) => append.log,
            Self::Trim { log, .. } => *log,
        }
    }
}

/// Start and durable end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// First offset.
    pub start: i64,
    /// Offset behind the last durable record.
    pub end: i64,
}

/// A log as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogInfo {
    /// The log.
    pub id: LogId,
    /// The topic's name at creation, for people.
    pub name: String,
    /// Its shard.
    pub shard: ShardId,
    /// Start and durable end.
    pub bounds: Bounds,
}

/// What `acquire` returns: durable state, after every group of older epochs was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogState {
    /// Start and durable end.
    pub bounds: Bounds,
    /// Leader epoch of the last batch, `None` for an empty log.
    pub last_epoch: Option<LeaderEpoch>,
}

/// A stored batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBatch {
    /// The bytes, exactly as appended.
    pub bytes: Bytes,
    /// First offset.
    pub base_offset: i64,
    /// Last offset.
    pub last_offset: i64,
    /// Time of the append, ms.
    pub append_ms: i64,
}

/// Some batches of several logs, in order of each log.
pub type LogBatches = Vec<(LogId, StoredBatch)>;

/// A batch that is only passed on, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Passed {
    /// What was read and found right.
    Read(StoredBatch),
    /// Where it lies: it was written, or read and found right, a moment ago.
    File {
        /// The bytes of the batch.
        range: FileRange,
        /// Last offset.
        last_offset: i64,
    },
}

impl Passed {
    /// Last offset.
    pub fn last_offset(&self) -> i64 {
        match self {
            Self::Read(batch) => batch.last_offset,
            Self::File { last_offset, .. } => *last_offset,
        }
    }

    /// The batch, if it was read.
    pub fn read(self) -> Option<StoredBatch> {
        match self {
            Self::Read(batch) => Some(batch),
            Self::File { .. } => None,
        }
    }
}

/// What is wanted of a log; see [`LogStore::read`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// First offset.
    pub from: i64,
    /// Bytes.
    pub max_bytes: usize,
    /// The offset behind.
    pub upto: i64,
    /// Whether the limit of bytes holds for the first batch too.
    pub within: bool,
}

/// [`LogStore::pass_on`] of a store that reads all that it passes on.
pub fn read_and_pass(
    store: &dyn LogStore,
    id: LogId,
    wanted: Wanted,
) -> StoreFuture<'_, Vec<Passed>> {
    let read = if wanted.within {
        store.read_within(id, wanted.from, wanted.max_bytes, wanted.upto)
    } else {
        store.read(id, wanted.from, wanted.max_bytes, wanted.upto)
    };
    Box::pin(async move { Ok(read.await?.into_iter().map(Passed::Read).collect()) })
}

/// Bytes of a log, counted without I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Bytes of the batches at and behind [`Size::from`].
    pub bytes: u64,
    /// The start of the log, or behind a first part that [`LogStore::pieces`] tells the bytes of.
    pub from: i64,
}

/// A stretch of a log, as large as the store keeps account of: one batch or many, and the gaps that
/// compaction left before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// First offset.
    pub base: i64,
    /// Last offset; the last one of a batch.
    pub last: i64,
    /// Bytes that it takes in the store.
    pub bytes: u64,
    /// Largest timestamp, ms; of batches without one, the time of their append.
    pub max_timestamp: i64,
}

/// What compaction leaves of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// All of it.
    Whole,
    /// Nothing: the next batch that is left answers for its offsets.
    Nothing,
    /// This batch in its place, of the same base and last offset.
    Batch(Bytes),
}

/// Decides what is left of the batches of one log. The answer depends on nothing but the batch: a
/// store may ask twice, and in any order.
pub trait Sieve: Send + Sync + Debug + 'static {
    /// What is left of `batch`.
    fn sift(&self, batch: &StoredBatch) -> Left;
}

/// A log whose settled batches are to be sifted.
#[derive(Debug, Clone)]
pub struct Rewrite {
    /// The log.
    pub log: LogId,
    /// The epoch under which the caller acquired the log.
    pub epoch: LeaderEpoch,
    /// Batches that end at or behind it stay as they are.
    pub upto: i64,
    /// Whether what is being written is closed first, so that all below `upto` is settled.
    pub seal: bool,
    /// What is left of a batch.
    pub sieve: Arc<dyn Sieve>,
}

/// How far sifting came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rewritten {
    /// All below it was sifted.
    pub upto: i64,
    /// Bytes of the sifted batches before.
    pub bytes_before: u64,
    /// Bytes of what is left of them.
    pub bytes_after: u64,
}

/// A shard that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardInfo {
    /// The shard.
    pub shard: ShardId,
    /// Logs that cannot be served, with the reason; the rest serve.
    pub damaged: Vec<(LogId, StoreError)>,
    /// Bytes of a torn tail that were never acknowledged and were dropped.
    pub dropped_tail_bytes: u64,
}

/// A store of logs. Object safe: adapters are chosen by URL at run time. No default bodies: a
/// store answers everything itself.
pub trait LogStore: Send + Sync + Debug + 'static {
    /// What this store can do.
    fn caps(&self) -> Caps;

    /// Claims a shard under `owner` and recovers it; returns when what it holds is durable.
    /// A claim by a higher owner is [`StoreError::Fenced`].
    fn open_shard(&self, shard: ShardId, owner: OwnerEpoch) -> StoreFuture<'_, ShardInfo>;

    /// Why an opened shard serves nothing, if it does not; without I/O.
    ///
    /// # Errors
    /// What every call on the shard would answer.
    fn check_shard(&self, shard: ShardId) -> Result<(), StoreError>;

    /// Creates a log on an open shard. Idempotent; durable.
    fn create<'a>(&'a self, id: LogId, name: &'a str, shard: ShardId) -> StoreFuture<'a, ()>;

    /// Deletes the logs of a topic. Idempotent; durable; space may follow later.
    fn delete(&self, topic: Uuid) -> StoreFuture<'_, ()>;

    /// The logs of the open shards, in order of their ids.
    fn list(&self) -> StoreFuture<'_, Vec<LogInfo>>;

    /// Takes the right to append under `epoch`, durably: a lower epoch is refused afterwards,
    /// an equal one is idempotent. Waits until every group queued for this log is decided.
    fn acquire(&self, id: LogId, epoch: LeaderEpoch) -> StoreFuture<'_, LogState>;

    /// Queues a group. The order of calls is the order in the log. Never blocks.
    fn submit(&self, ops: Vec<Op>) -> Commit;

    /// As [`LogStore::read`], but nothing when the first batch has more than `max_bytes`: such a
    /// batch is not read either.
    fn read_within(
        &self,
        id: LogId,
        from: i64,
        max_bytes: usize,
        upto: i64,
    ) -> StoreFuture<'_, Vec<StoredBatch>>;

    /// Whole batches from the one that holds `from`, below `upto`, until `max_bytes` are reached;
    /// the first one even when it is larger. Empty when `from` is at or behind `upto` or the end;
    /// see [`Caps::reads_lag`]. `from` beyond the durable end, or below the start, is
    /// [`StoreError::OutOfRange`].
    fn read(
        &self,
        id: LogId,
        from: i64,
        max_bytes: usize,
        upto: i64,
    ) -> StoreFuture<'_, Vec<StoredBatch>>;

    /// Batches of many logs, each from an offset on, in one pass through what holds them: for who
    /// needs all of it. Of a log they come in order and without a hole; where they end before the
    /// log does, or there are none, [`LogStore::read`] goes on, or says why not. `None` where
    /// asking log by log costs no more.
    fn read_through(&self, logs: &[(LogId, i64)]) -> Option<mpsc::Receiver<LogBatches>> {
        let _ = logs;
        None
    }

    /// As [`LogStore::read`] or [`LogStore::read_within`], for who only passes the batches on: of
    /// some it may be told where they lie.
    fn pass_on(&self, id: LogId, wanted: Wanted) -> StoreFuture<'_, Vec<Passed>>;

    /// The first batch, in offset order, that does not end before `from` and whose largest
    /// timestamp is at least `timestamp_ms`; `None` when there is none below the durable end.
    /// `from` may lie outside the log.
    fn find_time(
        &self,
        id: LogId,
        from: i64,
        timestamp_ms: i64,
    ) -> StoreFuture<'_, Option<StoredBatch>>;

    /// How the log lies: the pieces from the one that holds `from` on, in order, until they have
    /// `min_bytes` bytes or the log ends. Empty when `from` is the end.
    ///
    /// # Errors
    /// As of [`LogStore::read`].
    fn pieces(&self, id: LogId, from: i64, min_bytes: u64) -> StoreFuture<'_, Vec<Piece>>;

    /// How the log lies from the offset `from` on, as far as that is known without I/O: parts, in
    /// order, each of one piece or of many. A part that begins before `from` is told whole. `None`
    /// when the log is not open here, or the store keeps no such account.
    fn parts(&self, id: LogId, from: i64) -> Option<Vec<Piece>>;

    /// What is known without I/O of the bytes that the log takes. `None` when the log is not open
    /// here.
    fn size(&self, id: LogId) -> Option<Size>;

    /// Behind the last batch that [`LogStore::rewrite`] may change without closing something first,
    /// without I/O. `None` when the log is not open here, or the store rewrites nothing.
    fn settled(&self, id: LogId) -> Option<i64>;

    /// Replaces batches by what a sieve leaves of them, in order of offset, part by part. A part is
    /// replaced as a whole and durably, under readers and under a crash: what is read is the old
    /// one or the new one, and offsets stay what they were. A read from an offset that is gone
    /// finds the next batch that is left; the last batch of a part, and the last one below
    /// [`Rewrite::upto`], stay without records if none is left of them. Where something failed in
    /// the middle, the answer says how far it came.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] when the log is another's; nothing was changed then or later.
    /// [`StoreError::Unsupported`] where [`LogStore::settled`] is always `None`.
    fn rewrite(&self, rewrite: Rewrite) -> StoreFuture<'_, Rewritten>;

    /// Start and durable end, without I/O. `None` when the log is not open here.
    fn bounds(&self, id: LogId) -> Option<Bounds>;

    /// Follows [`LogStore::bounds`].
    fn watch(&self, id: LogId) -> Option<watch::Receiver<Bounds>>;

    /// Commits what is queued, then closes every shard in order.
    fn close(&self) -> StoreFuture<'_, ()>;
}

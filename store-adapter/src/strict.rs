//! The `strict:` store: [`MemoryStore`] within the limits of the worst store there may be, so that
//! nothing above relies on more.
//!
//! A group is of one log, a batch has at most 1 MiB, a commit takes 5 ms, a read may not show yet
//! what was committed, and the outcome of a group may stay unknown: every n-th one's, or when a
//! test asks for it. What happens it keeps no longer than the process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use uuid::Uuid;

use crate::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};
use crate::journal::queue::{Command, Queue, Queued, Reply, answer};
use crate::memory::MemoryStore;
use crate::runtime::Env;
use crate::store::{
    AtomicScope, Bounds, Caps, Commit, LogInfo, LogState, LogStore, Op, Passed, Piece, Rewrite,
    Rewritten, ShardInfo, Size, StoreError, StoreFuture, StoredBatch, Wanted, read_and_pass,
};

/// Most commands of one commit.
const ROUND_COMMANDS: usize = 1024;
/// Bytes after which a commit takes no further command.
const ROUND_BYTES: usize = 8 << 20;
/// Bytes that may wait.
const QUEUE_BYTES: usize = 64 << 20;

/// The limits of a strict store.
#[derive(Debug, Clone)]
pub struct StrictConfig {
    /// How long a commit takes. Default 5 ms.
    pub commit: Duration,
    /// Largest batch in bytes. Default 1 MiB.
    pub max_append: usize,
    /// The outcome of every so-manieth group that changes a log stays unknown; in turn it happened
    /// and did not. 0, the default: of none.
    pub uncertain_every: u64,
}

impl Default for StrictConfig {
    fn default() -> Self {
        Self {
            commit: Duration::from_millis(5),
            max_append: 1 << 20,
            uncertain_every: 0,
        }
    }
}

/// A handle on a strict store.
#[derive(Debug)]
pub struct StrictStore {
    env: Env,
    config: StrictConfig,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    memory: MemoryStore,
    queue: Queue,
    /// Up to where reads of each log see.
    seen: Mutex<BTreeMap<LogId, i64>>,
    /// Whether the next groups, whose outcome stays unknown, happen.
    demands: Mutex<VecDeque<bool>>,
    commits: AtomicU64,
}

impl StrictStore {
    /// An empty store.
    pub fn new(env: Env, config: StrictConfig) -> Self {
        let memory = MemoryStore::with_max_append(config.max_append);
        Self::on(env, config, memory)
    }

    /// A second handle on what this one keeps, with no shard open yet: another broker.
    pub fn another_handle(&self) -> Self {
        let memory = self.shared.memory.another_handle();
        Self::on(self.env.clone(), self.config.clone(), memory)
    }

    /// The outcome of the next group that changes a log stays unknown; `happens` says what it is.
    /// Asked several times, of so many groups.
    pub fn leave_uncertain(&self, happens: bool) {
        self.shared.demands.lock().push_back(happens);
    }

    /// Commits of this handle so far.
    pub fn commits(&self) -> u64 {
        self.shared.commits.load(Ordering::Relaxed)
    }

    fn on(env: Env, config: StrictConfig, memory: MemoryStore) -> Self {
        let shared = Arc::new(Shared {
            memory,
            queue: Queue::new(QUEUE_BYTES),
            seen: Mutex::default(),
            demands: Mutex::default(),
            commits: AtomicU64::new(0),
        });
        let writer = Writer {
            env: env.clone(),
            config: config.clone(),
            shared: Arc::clone(&shared),
            failed: BTreeMap::new(),
            groups: 0,
        };
        // Ends with the handle.
        drop(env.runtime.spawn("strict-store", Box::pin(writer.run())));
        Self {
            env,
            config,
            shared,
        }
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, StoreError> {
        let (reply, outcome) = oneshot::channel();
        self.shared.queue.push(command(reply));
        outcome
            .await
            .unwrap_or(Err(StoreError::Uncertain { fenced: false }))
    }

    async fn create_log(&self, id: LogId, name: &str, shard: ShardId) -> Result<(), StoreError> {
        self.check_shard(shard)?;
        // The queue has no word for the shard, and nothing waits for a log that is not there.
        self.env.clock.sleep(self.config.commit).await;
        self.shared.memory.create(id, name, shard).await
    }

    /// Up to where a read sees: a replica answers it that is as far as the read before asked it to
    /// be.
    fn lagging(&self, id: LogId, upto: i64) -> i64 {
        let mut seen = self.shared.seen.lock();
        let caught_up = self.shared.memory.bounds(id).map(|bounds| bounds.end);
        let lagging = caught_up.and_then(|end| seen.insert(id, end));
        upto.min(lagging.unwrap_or(0))
    }
}

impl Drop for StrictStore {
    fn drop(&mut self) {
        let gone = StoreError::Offline("the store is closed".to_owned());
        self.shared.queue.close(&gone);
    }
}

/// Decides what is queued, one commit after the other.
#[derive(Debug)]
struct Writer {
    env: Env,
    config: StrictConfig,
    shared: Arc<Shared>,
    /// Up to which command those of a log fail, because one before them did.
    failed: BTreeMap<LogId, u64>,
    /// Groups so far that changed a log.
    groups: u64,
}

/// What becomes of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Told,
    Unknown { happens: bool },
}

impl Writer {
    async fn run(mut self) {
        loop {
            let taken = self.shared.queue.take(ROUND_COMMANDS, ROUND_BYTES).await;
            let Some(last) = taken.last().map(|queued| queued.number) else {
                return;
            };
            self.env.clock.sleep(self.config.commit).await;
            self.shared.commits.fetch_add(1, Ordering::Relaxed);
            for queued in taken {
                self.decide(queued).await;
            }
            self.failed.retain(|_, number| *number > last);
        }
    }

    async fn decide(&mut self, queued: Queued) {
        let memory = &self.shared.memory;
        match queued.command {
            Command::Group(ops, reply) => {
                let outcome = self.group(queued.number, ops).await;
                answer(reply, outcome);
            }
            Command::Acquire(id, epoch, reply) => answer(reply, memory.acquire(id, epoch).await),
            // Nothing asks this queue for them.
            Command::Create(.., reply)
            | Command::Roll(reply)
            | Command::Keep(_, reply)
            | Command::Join(_, reply) => {
                answer(reply, Err(StoreError::NotFound));
            }
            Command::Delete(topic, reply) => {
                let outcome = memory.delete(topic).await;
                let mut seen = self.shared.seen.lock();
                seen.retain(|id, _| id.topic != topic);
                drop(seen);
                answer(reply, outcome);
            }
            #[cfg(feature = "sled")]
            Command::Replace(_, reply) => answer(reply, Err(StoreError::NotFound)),
            Command::Close(reply) => answer(reply, memory.close().await),
        }
    }

    async fn group(&mut self, number: u64, ops: Vec<Op>) -> Result<(), StoreError> {
        let Some(log) = ops.first().map(Op::log) else {
            return Ok(());
        };
        if self.failed.get(&log).is_some_and(|last| *last >= number) {
            return Err(self.behind_a_failure(&ops));
        }
        match self.fate() {
            Fate::Told => self.shared.memory.submit(ops).await,
            Fate::Unknown { happens } => {
                if happens {
                    // What is refused did not happen, and that is known.
                    self.shared.memory.submit(ops).await?;
                }
                self.failed.insert(log, self.shared.queue.last_number());
                Err(StoreError::Uncertain { fenced: false })
            }
        }
    }

    fn fate(&mut self) -> Fate {
        self.groups += 1;
        if let Some(happens) = self.shared.demands.lock().pop_front() {
            return Fate::Unknown { happens };
        }
        match self.groups.checked_rem(self.config.uncertain_every) {
            Some(0) => Fate::Unknown {
                happens: (self.groups / self.config.uncertain_every) % 2 == 1,
            },
            _ => Fate::Told,
        }
    }

    /// Why a group fails that was queued behind one of unknown outcome.
    fn behind_a_failure(&self, ops: &[Op]) -> StoreError {
        for op in ops {
            if let Op::Append(append) = op
                && let Some(Bounds { end, .. }) = self.shared.memory.bounds(append.log)
                && end != append.expect_end
            {
                return StoreError::EndMismatch { end };
            }
        }
        StoreError::Unavailable("a group of this log that was queued before failed".to_owned())
    }
}

impl LogStore for StrictStore {
    fn caps(&self) -> Caps {
        Caps {
            atomic: AtomicScope::Log,
            reads_lag: true,
            ..self.shared.memory.caps()
        }
    }

    fn open_shard(&self, shard: ShardId, owner: OwnerEpoch) -> StoreFuture<'_, ShardInfo> {
        self.shared.memory.open_shard(shard, owner)
    }

    fn check_shard(&self, shard: ShardId) -> Result<(), StoreError> {
        self.shared.memory.check_shard(shard)
    }

    fn create<'a>(&'a self, id: LogId, name: &'a str, shard: ShardId) -> StoreFuture<'a, ()> {
        Box::pin(self.create_log(id, name, shard))
    }

    fn delete(&self, topic: Uuid) -> StoreFuture<'_, ()> {
        Box::pin(self.ask(move |reply| Command::Delete(topic, reply)))
    }

    fn list(&self) -> StoreFuture<'_, Vec<LogInfo>> {
        self.shared.memory.list()
    }

    fn acquire(&self, id: LogId, epoch: LeaderEpoch) -> StoreFuture<'_, LogState> {
        Box::pin(self.ask(move |reply| Command::Acquire(id, epoch, reply)))
    }

    fn submit(&self, ops: Vec<Op>) -> Commit {
        let first = ops.first().map(Op::log);
        if ops.iter().any(|op| Some(op.log()) != first) {
            return Commit::ready(Err(StoreError::Unsupported("a group over several logs")));
        }
        let (reply, commit) = Commit::pair();
        self.shared.queue.push(Command::Group(ops, reply));
        commit
    }

    fn read_within(
        &self,
        id: LogId,
        from: i64,
        max_bytes: usize,
        upto: i64,
    ) -> StoreFuture<'_, Vec<StoredBatch>> {
        let upto = self.lagging(id, upto);
        self.shared.memory.read_within(id, from, max_bytes, upto)
    }

    fn read(
        &self,
        id: LogId,
        from: i64,
        max_bytes: usize,
        upto: i64,
    ) -> StoreFuture<'_, Vec<StoredBatch>> {
        let upto = self.lagging(id, upto);
        self.shared.memory.read(id, from, max_bytes, upto)
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
        self.shared.memory.find_time(id, from, timestamp_ms)
    }

    fn pieces(&self, id: LogId, from: i64, min_bytes: u64) -> StoreFuture<'_, Vec<Piece>> {
        self.shared.memory.pieces(id, from, min_bytes)
    }

    fn parts(&self, id: LogId, from: i64) -> Option<Vec<Piece>> {
        self.shared.memory.parts(id, from)
    }

    fn size(&self, id: LogId) -> Option<Size> {
        self.shared.memory.size(id)
    }

    fn settled(&self, id: LogId) -> Option<i64> {
        self.shared.memory.settled(id)
    }

    fn rewrite(&self, rewrite: Rewrite) -> StoreFuture<'_, Rewritten> {
        self.shared.memory.rewrite(rewrite)
    }

    fn bounds(&self, id: LogId) -> Option<Bounds> {
        self.shared.memory.bounds(id)
    }

    fn watch(&self, id: LogId) -> Option<watch::Receiver<Bounds>> {
        self.shared.memory.watch(id)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.ask(Command::Close))
    }
}

//! The in-memory log store with the timing of a real one: groups wait, commit in rounds, and now
//! and then nobody learns whether they did. What is read is told later: the log may be another by
//! then.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use store_adapter::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};
use store_adapter::memory::MemoryStore;
use store_adapter::runtime::Env;
use store_adapter::store::{
    Bounds, Caps, Commit, LogInfo, LogState, LogStore, Op, Passed, Piece, Rewrite, Rewritten,
    ShardInfo, Size, StoreError, StoreFuture, StoredBatch, Wanted, read_and_pass,
};
use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

use super::disk::Disk;

/// Groups of one round.
const ROUND_MAX: usize = 64;
/// How late the answer of a read may come, µs.
const READ_US_MAX: u64 = 20_000;

enum Job {
    Group(Vec<Op>, oneshot::Sender<Result<(), StoreError>>),
    Acquire(
        LogId,
        LeaderEpoch,
        oneshot::Sender<Result<LogState, StoreError>>,
    ),
}

/// A handle with its own queue; its groups end with the process.
pub(crate) struct SlowStore {
    env: Env,
    inner: Arc<MemoryStore>,
    /// Its length is bounded by what the clients have in flight.
    jobs: mpsc::UnboundedSender<(u64, Job)>,
    queued: Arc<Mutex<u64>>,
    disk: Arc<Disk>,
}

impl fmt::Debug for SlowStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlowStore").finish_non_exhaustive()
    }
}

impl SlowStore {
    /// A handle whose writer runs in `env`.
    pub(crate) fn start(env: &Env, inner: MemoryStore, disk: Arc<Disk>) -> Self {
        let inner = Arc::new(inner);
        let (jobs, queue) = mpsc::unbounded_channel();
        let queued = Arc::new(Mutex::new(0));
        let writer = Writer {
            inner: inner.clone(),
            disk: disk.clone(),
            queued: queued.clone(),
            failed: BTreeMap::new(),
        };
        drop(env.runtime.spawn_io("store", Box::pin(writer.run(queue))));
        Self {
            env: env.clone(),
            inner,
            jobs,
            queued,
            disk,
        }
    }

    /// An answer that was found now and comes later.
    fn late<'a, T: Send + 'a>(&'a self, answer: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let answer = answer.await;
            let us = self.env.random.next_u64() % READ_US_MAX;
            self.env.clock.sleep(Duration::from_micros(us)).await;
            answer
        })
    }

    fn push(&self, job: Job) {
        let mut queued = self.queued.lock();
        *queued += 1;
        // A writer that is gone drops the sender inside: the outcome is then uncertain.
        self.jobs.send((*queued, job)).unwrap_or_default();
    }
}

struct Writer {
    inner: Arc<MemoryStore>,
    disk: Arc<Disk>,
    queued: Arc<Mutex<u64>>,
    /// Up to which job those of a log fail, because one before them did.
    failed: BTreeMap<LogId, u64>,
}

impl Writer {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<(u64, Job)>) {
        let mut jobs = Vec::new();
        while queue.recv_many(&mut jobs, ROUND_MAX).await > 0 {
            self.disk.point("store round", true).await;
            let mut outcomes = Vec::new();
            for (number, job) in jobs.drain(..) {
                match job {
                    Job::Group(ops, reply) => {
                        outcomes.push((self.group(number, ops).await, reply));
                    }
                    Job::Acquire(log, epoch, reply) => {
                        let state = self.inner.acquire(log, epoch).await;
                        reply.send(state).unwrap_or_default();
                    }
                }
            }
            self.disk.point("store answers", false).await;
            for (outcome, reply) in outcomes {
                reply.send(outcome).unwrap_or_default();
            }
        }
    }

    async fn group(&mut self, number: u64, ops: Vec<Op>) -> Result<(), StoreError> {
        let logs: Vec<LogId> = ops.iter().map(Op::log).collect();
        let behind = |log: &LogId| self.failed.get(log).is_some_and(|last| number <= *last);
        if logs.iter().any(behind) {
            return Err(StoreError::Uncertain { fenced: false });
        }
        let rate = self.disk.rates().fail_sync;
        let (lost, unknown) = (self.disk.unlucky(rate), self.disk.unlucky(rate));
        let outcome = if lost {
            Err(StoreError::Uncertain { fenced: false })
        } else {
            self.inner.submit(ops).await
        };
        let outcome = if unknown && outcome.is_ok() {
            Err(StoreError::Uncertain { fenced: false })
        } else {
            outcome
        };
        if outcome.is_err() {
            let last = *self.queued.lock();
            self.failed.extend(logs.into_iter().map(|log| (log, last)));
        }
        outcome
    }
}

impl LogStore for SlowStore {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn open_shard(&self, shard: ShardId, owner: OwnerEpoch) -> StoreFuture<'_, ShardInfo> {
        self.inner.open_shard(shard, owner)
    }

    fn check_shard(&self, shard: ShardId) -> Result<(), StoreError> {
        self.inner.check_shard(shard)
    }

    fn create<'a>(&'a self, id: LogId, name: &'a str, shard: ShardId) -> StoreFuture<'a, ()> {
        self.inner.create(id, name, shard)
    }

    fn delete(&self, topic: Uuid) -> StoreFuture<'_, ()> {
        self.inner.delete(topic)
    }

    fn list(&self) -> StoreFuture<'_, Vec<LogInfo>> {
        self.inner.list()
    }

    fn acquire(&self, id: LogId, epoch: LeaderEpoch) -> StoreFuture<'_, LogState> {
        Box::pin(async move {
            let (reply, state) = oneshot::channel();
            self.push(Job::Acquire(id, epoch, reply));
            state
                .await
                .unwrap_or(Err(StoreError::Uncertain { fenced: false }))
        })
    }

    fn submit(&self, ops: Vec<Op>) -> Commit {
        let (reply, commit) = Commit::pair();
        self.push(Job::Group(ops, reply));
        commit
    }

    fn read(
        &self,
        id: LogId,
        from: i64,
        max_bytes: usize,
        upto: i64,
    ) -> StoreFuture<'_, Vec<StoredBatch>> {
        self.late(self.inner.read(id, from, max_bytes, upto))
    }

    fn read_within(
        &self,
        id: LogId,
        from: i64,
        max_bytes: usize,
        upto: i64,
    ) -> StoreFuture<'_, Vec<StoredBatch>> {
        self.late(self.inner.read_within(id, from, max_bytes, upto))
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
        self.late(self.inner.find_time(id, from, timestamp_ms))
    }

    fn pieces(&self, id: LogId, from: i64, min_bytes: u64) -> StoreFuture<'_, Vec<Piece>> {
        self.inner.pieces(id, from, min_bytes)
    }

    fn parts(&self, id: LogId, from: i64) -> Option<Vec<Piece>> {
        self.inner.parts(id, from)
    }

    fn size(&self, id: LogId) -> Option<Size> {
        self.inner.size(id)
    }

    fn settled(&self, id: LogId) -> Option<i64> {
        self.inner.settled(id)
    }

    fn rewrite(&self, rewrite: Rewrite) -> StoreFuture<'_, Rewritten> {
        Box::pin(async move {
            self.disk.point("store rewrites", true).await;
            self.inner.rewrite(rewrite).await
        })
    }

    fn bounds(&self, id: LogId) -> Option<Bounds> {
        self.inner.bounds(id)
    }

    fn watch(&self, id: LogId) -> Option<watch::Receiver<Bounds>> {
        self.inner.watch(id)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.inner.close()
    }
}

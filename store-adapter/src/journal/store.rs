//! [`LogStore`] over the journals of a volume.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

use super::asked::Rewrites;
use super::failing::Failing;
use super::file::FileId;
use super::files::{Files, shard_dir};
use super::index::IndexStore;
use super::queue::{Command, Queue, Reply};
use super::reader::{self, Range};
use super::recovery::{self, Request};
use super::shard::{Log, Registry, Shard};
use super::through;
use super::writer::{Parts, Writer};
use super::{JournalConfig, keeper};
use crate::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};
use crate::runtime::{BoxFuture, Env};
use crate::store::{
    AtomicScope, Bounds, Caps, Commit, LogBatches, LogInfo, LogState, LogStore, Op, Passed, Piece,
    Rewrite, Rewritten, ShardInfo, Size, StoreError, StoreFuture, StoredBatch, Wanted,
};
use crate::volume::Volume;
use crate::volume::owned::OwnedFiles;

/// Reading tasks.
const READERS: usize = 2;
/// Most operations of one group.
const OPS_MAX: usize = 16_384;
/// Longest topic name that a journal keeps, bytes.
const NAME_MAX: usize = 4096;

/// The store of journals on one volume.
#[derive(Debug)]
pub struct JournalStore {
    env: Env,
    config: JournalConfig,
    owned: OwnedFiles,
    files: Arc<Files>,
    registry: Arc<Registry>,
    shards: RwLock<BTreeMap<ShardId, Arc<Shard>>>,
    /// Writers that run or ran, one per shard; the lock makes opening and closing take turns.
    tasks: tokio::sync::Mutex<BTreeMap<ShardId, Task>>,
    known: Arc<Mutex<BTreeMap<FileId, u64>>>,
    readers: Vec<mpsc::Sender<reader::Job>>,
    next_reader: AtomicUsize,
}

/// A writer's end can be awaited.
struct Task(BoxFuture<'static, ()>);

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task")
    }
}

impl JournalStore {
    /// A store on `volume` with no shard open. `index` is local to this broker; it may be empty.
    pub fn new(
        env: Env,
        volume: Arc<dyn Volume>,
        index: Arc<dyn IndexStore>,
        config: JournalConfig,
    ) -> Self {
        let counters = Arc::clone(&config.counters);
        let mut files = Files::new(Arc::clone(&volume), index, counters);
        files.failing = Some(Failing::new(Arc::clone(&env.clock)));
        let files = Arc::new(files);
        let readers = (0..READERS).map(|n| {
            let (jobs, queue) = mpsc::channel(reader::JOBS_MAX);
            let task = Box::pin(reader::run(Arc::clone(&files), queue));
            // Ends with the last sender.
            drop(env.runtime.spawn_io(&format!("journal-read-{n}"), task));
            jobs
        });
        let readers = readers.collect();
        Self {
            owned: OwnedFiles::new(volume, Arc::clone(&env.random)),
            env,
            config,
            files,
            registry: Arc::default(),
            shards: RwLock::default(),
            tasks: tokio::sync::Mutex::default(),
            known: Arc::default(),
            readers,
            next_reader: AtomicUsize::new(0),
        }
    }

    fn reader(&self) -> Result<&mpsc::Sender<reader::Job>, StoreError> {
        let turn = self.next_reader.fetch_add(1, Ordering::Relaxed);
        self.readers
            .get(turn % READERS)
            .ok_or_else(|| StoreError::Offline("no reader".to_owned()))
    }

    async fn read_range(&self, id: LogId, range: Range) -> Result<Vec<Passed>, StoreError> {
        let log = self.log(id)?;
        let bounds = reader::bounds_for(&log, range.from)?;
        if range.from >= range.upto.min(bounds.end) {
            return Ok(Vec::new());
        }
        if let Some(passed) = reader::pass(&self.files, &log, range) {
            return Ok(passed);
        }
        reader::ask(self.reader()?, |reply| reader::Job::Read(log, range, reply)).await
    }

    async fn read_all(&self, id: LogId, range: Range) -> Result<Vec<StoredBatch>, StoreError> {
        let read = self.read_range(id, range).await?;
        Ok(read.into_iter().filter_map(Passed::read).collect())
    }

    fn log(&self, id: LogId) -> Result<Arc<Log>, StoreError> {
        self.registry.get(id).ok_or_else(|| {
            // A shard that is not open may have it.
            let shards = self.shards.read();
            let closed = shards.values().find_map(|shard| shard.check().err());
            closed.unwrap_or(StoreError::NotFound)
        })
    }

    /// The one shard of all `ops`.
    fn shard_of(&self, ops: &[Op]) -> Result<Option<Arc<Shard>>, StoreError> {
        if ops.len() > OPS_MAX {
            return Err(StoreError::Unsupported("a group of so many operations"));
        }
        let mut shard: Option<Arc<Shard>> = None;
        for op in ops {
            let log = self.log(op.log())?;
            match &shard {
                Some(shard) if shard.id != log.shard.id => {
                    return Err(StoreError::Unsupported("a group over several shards"));
                }
                Some(_) => {}
                None => shard = Some(Arc::clone(&log.shard)),
            }
        }
        Ok(shard)
    }

    /// Queues a command on `shard` and waits for its outcome.
    async fn ask<T>(
        shard: &Shard,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, StoreError> {
        let (reply, outcome) = oneshot::channel();
        shard.queue.push(command(reply));
        outcome
            .await
            .unwrap_or(Err(StoreError::Uncertain { fenced: false }))
    }

    async fn open(&self, id: ShardId, owner: OwnerEpoch) -> Result<ShardInfo, StoreError> {
        let mut tasks = self.tasks.lock().await;
        let ready = self.files.local().open().await;
        ready.map_err(|error| StoreError::Offline(error.to_string()))?;
        // Until the logs are known again, nobody may take them for gone.
        let before = self.shards.write().insert(id, Shard::being_opened(id));
        if let Some(task) = tasks.remove(&id) {
            self.end(id, before, task).await;
        }
        let shard = Arc::new(Shard {
            id,
            queue: Queue::new(self.config.queue_bytes),
            rewrites: Rewrites::new(),
        });
        let (jobs, queue) = mpsc::channel(keeper::JOBS_MAX);
        let all = Arc::new(AtomicBool::new(true));
        let files = Arc::clone(&self.files);
        let keeper = Box::pin(keeper::run(files, id, Arc::clone(&all), queue));
        let name = format!("journal-keep-{}", id.0);
        // Ends with the writer.
        drop(self.env.runtime.spawn_io(&name, keeper));
        let parts = Parts {
            env: self.env.clone(),
            config: self.config.clone(),
            files: Arc::clone(&self.files),
            registry: Arc::clone(&self.registry),
            known: Arc::clone(&self.known),
            keeper: jobs,
            all,
        };
        let (opened, outcome) = oneshot::channel();
        let owned = self.owned.clone();
        let task = run_shard(parts, owned, Arc::clone(&shard), owner, opened);
        let name = format!("journal-{}", id.0);
        let task = self.env.runtime.spawn_io(&name, Box::pin(task));
        tasks.insert(id, Task(task));
        let outcome = outcome.await;
        // Also after a failure: its queue says why.
        self.shards.write().insert(id, shard);
        outcome.unwrap_or_else(|_| Err(StoreError::Offline("the writer has ended".to_owned())))
    }

    /// Closes a shard and waits for the end of its writer.
    async fn end(&self, id: ShardId, shard: Option<Arc<Shard>>, task: Task) {
        if let Some(shard) = shard
            && let Err(error) = Self::ask(&shard, Command::Close).await
        {
            tracing::debug!(shard = id.0, %error, "the shard was closed already");
        }
        task.0.await;
        self.registry.remove_shard(id);
        self.files.remove_shard(id);
    }

    async fn close_all(&self) -> Result<(), StoreError> {
        let mut tasks = self.tasks.lock().await;
        while let Some((id, task)) = tasks.pop_first() {
            let shard = self.shards.write().remove(&id);
            self.end(id, shard, task).await;
        }
        Ok(())
    }

    async fn delete_topic(&self, topic: Uuid) -> Result<(), StoreError> {
        let shards: Vec<Arc<Shard>> = self.shards.read().values().cloned().collect();
        for shard in shards {
            Self::ask(&shard, |reply| Command::Delete(topic, reply)).await?;
        }
        Ok(())
    }

    async fn rewrite_log(&self, rewrite: Rewrite) -> Result<Rewritten, StoreError> {
        let log = self.log(rewrite.log)?;
        log.check()?;
        let (reply, outcome) = oneshot::channel();
        log.shard.rewrites.push(rewrite, reply);
        drop(log);
        let ended = || StoreError::Offline("the shard is closed".to_owned());
        outcome.await.map_err(|_| ended())?
    }

    async fn create_log(&self, id: LogId, name: &str, shard: ShardId) -> Result<(), StoreError> {
        if name.len() > NAME_MAX {
            return Err(StoreError::Unsupported("so long a name"));
        }
        let open = self.shards.read().get(&shard).cloned();
        let shard = open.ok_or_else(|| not_open(shard))?;
        let name = name.to_owned();
        Self::ask(&shard, |reply| Command::Create(id, name, reply)).await
    }
}

fn not_open(shard: ShardId) -> StoreError {
    StoreError::Offline(format!("{}: the shard is not open", shard_dir(shard)))
}

/// Opens a shard, says how that went, and writes it until it is closed.
async fn run_shard(
    parts: Parts,
    owned: OwnedFiles,
    shard: Arc<Shard>,
    owner: OwnerEpoch,
    opened: Reply<ShardInfo>,
) {
    let known = parts.known.lock().clone();
    let (runtime, rewriter_of) = (Arc::clone(&parts.env.runtime), shard.id);
    let request = Request {
        files: &parts.files,
        owned: &owned,
        broker: parts.config.broker,
        shard: shard.id,
        owner,
        known: &known,
        flush: parts.config.flush,
    };
    match recovery::open(&request).await {
        Ok(mut state) => {
            let dead = std::mem::take(&mut state.dead);
            let info = state.info.clone();
            // Those of files that are gone are of no more use.
            let there = |id: &FileId| id.shard != shard.id || parts.files.has(*id);
            parts.known.lock().retain(|id, _| there(id));
            let writer = Writer::new(parts, shard, state);
            super::queue::answer(opened, Ok(info));
            let garbage = Arc::clone(&writer.garbage);
            let rewriter = Box::pin(writer.rewriter().run());
            let name = format!("journal-space-{}", rewriter_of.0);
            let rewriting = runtime.spawn_io(&name, rewriter);
            writer.run(dead).await;
            // Whoever opens the shard next finds nothing of it under way.
            garbage.ended.cancel();
            rewriting.await;
        }
        Err(error) => {
            shard.queue.close(&error);
            super::queue::answer(opened, Err(error));
        }
    }
}

impl Drop for JournalStore {
    fn drop(&mut self) {
        for shard in self.shards.get_mut().values() {
            let (reply, _) = oneshot::channel();
            shard.queue.push(Command::Close(reply));
        }
    }
}

impl LogStore for JournalStore {
    fn caps(&self) -> Caps {
        Caps {
            atomic: AtomicScope::Shard,
            max_append: self.config.max_append,
            durability: self.config.flush.durability(),
            shared: true,
            reads_lag: false,
        }
    }

    fn open_shard(&self, shard: ShardId, owner: OwnerEpoch) -> StoreFuture<'_, ShardInfo> {
        Box::pin(self.open(shard, owner))
    }

    fn check_shard(&self, shard: ShardId) -> Result<(), StoreError> {
        match self.shards.read().get(&shard) {
            Some(shard) => shard.check(),
            None => Err(not_open(shard)),
        }
    }

    fn create<'a>(&'a self, id: LogId, name: &'a str, shard: ShardId) -> StoreFuture<'a, ()> {
        Box::pin(self.create_log(id, name, shard))
    }

    fn delete(&self, topic: Uuid) -> StoreFuture<'_, ()> {
        Box::pin(self.delete_topic(topic))
    }

    fn list(&self) -> StoreFuture<'_, Vec<LogInfo>> {
        let logs = self.registry.all().into_iter();
        let open = logs.filter(|log| log.shard.check().is_ok());
        let infos = open.map(|log| LogInfo {
            id: log.id,
            name: log.name.to_string(),
            shard: log.shard.id,
            bounds: *log.bounds.borrow(),
        });
        Box::pin(std::future::ready(Ok(infos.collect())))
    }

    fn acquire(&self, id: LogId, epoch: LeaderEpoch) -> StoreFuture<'_, LogState> {
        Box::pin(async move {
            let log = self.log(id)?;
            Self::ask(&log.shard, |reply| Command::Acquire(id, epoch, reply)).await
        })
    }

    fn submit(&self, ops: Vec<Op>) -> Commit {
        match self.shard_of(&ops) {
            Ok(Some(shard)) => {
                let (reply, commit) = Commit::pair();
                shard.queue.push(Command::Group(ops, reply));
                commit
            }
            Ok(None) => Commit::ready(Ok(())),
            Err(error) => Commit::ready(Err(error)),
        }
    }

    fn read(
        &self,
        id: LogId,
        from: i64,
        max_bytes: usize,
        upto: i64,
    ) -> StoreFuture<'_, Vec<StoredBatch>> {
        let range = Range {
            from,
            max_bytes,
            upto,
            within: false,
            passes: None,
        };
        Box::pin(self.read_all(id, range))
    }

    fn read_within(
        &self,
        id: LogId,
        from: i64,
        max_bytes: usize,
        upto: i64,
    ) -> StoreFuture<'_, Vec<StoredBatch>> {
        let range = Range {
            from,
            max_bytes,
            upto,
            within: true,
            passes: None,
        };
        Box::pin(self.read_all(id, range))
    }

    fn read_through(&self, logs: &[(LogId, i64)]) -> Option<mpsc::Receiver<LogBatches>> {
        let known = |(id, from): &(LogId, i64)| Some((self.registry.get(*id)?, *from));
        through::start(&self.env, &self.files, logs.iter().filter_map(known))
    }

    fn pass_on(&self, id: LogId, wanted: Wanted) -> StoreFuture<'_, Vec<Passed>> {
        let range = Range {
            from: wanted.from,
            max_bytes: wanted.max_bytes,
            upto: wanted.upto,
            within: wanted.within,
            passes: Some(self.env.clock.monotonic()),
        };
        Box::pin(self.read_range(id, range))
    }

    fn find_time(
        &self,
        id: LogId,
        from: i64,
        timestamp_ms: i64,
    ) -> StoreFuture<'_, Option<StoredBatch>> {
        Box::pin(async move {
            let log = self.log(id)?;
            log.check()?;
            let job = |reply| reader::Job::Find(log, from, timestamp_ms, reply);
            reader::ask(self.reader()?, job).await
        })
    }

    fn pieces(&self, id: LogId, from: i64, min_bytes: u64) -> StoreFuture<'_, Vec<Piece>> {
        Box::pin(async move {
            let log = self.log(id)?;
            reader::bounds_for(&log, from)?;
            let job = |reply| reader::Job::Pieces(log, from, min_bytes, reply);
            reader::ask(self.reader()?, job).await
        })
    }

    fn parts(&self, id: LogId, from: i64) -> Option<Vec<Piece>> {
        let log = self.registry.get(id)?;
        log.check().ok()?;
        let parts = log.index.read().parts(from);
        Some(parts)
    }

    fn size(&self, id: LogId) -> Option<Size> {
        let log = self.registry.get(id)?;
        log.check().ok()?;
        let start = log.bounds.borrow().start;
        let size = log.index.read().size_from(start);
        Some(size)
    }

    fn settled(&self, id: LogId) -> Option<i64> {
        let log = self.registry.get(id)?;
        log.check().ok()?;
        let start = log.bounds.borrow().start;
        let index = log.index.read();
        let last = index.sealed.back().map(|segment| segment.last);
        Some(last.map_or(start, |last| last.saturating_add(1)))
    }

    fn rewrite(&self, rewrite: Rewrite) -> StoreFuture<'_, Rewritten> {
        Box::pin(self.rewrite_log(rewrite))
    }

    fn bounds(&self, id: LogId) -> Option<Bounds> {
        let log = self.registry.get(id)?;
        log.check().ok()?;
        let bounds = *log.bounds.borrow();
        Some(bounds)
    }

    fn watch(&self, id: LogId) -> Option<watch::Receiver<Bounds>> {
        let log = self.registry.get(id)?;
        log.check().ok()?;
        Some(log.bounds.subscribe())
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.close_all())
    }
}

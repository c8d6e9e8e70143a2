//! [`LogStore`] over the databases of a volume.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

use super::reader::{self, Job, Range, Reader};
use super::recovery::{self, Request};
use super::shard::{Log, Registry, Shard};
use super::writer::{Parts, Writer};
use super::{KvConfig, kv_dir};
use crate::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};
use crate::journal::queue::{Command, Reply, answer};
use crate::runtime::{BoxFuture, Env};
use crate::store::{
    AtomicScope, Bounds, Caps, Commit, LogInfo, LogState, LogStore, Op, Passed, Piece, Rewrite,
    Rewritten, ShardInfo, Size, StoreError, StoreFuture, StoredBatch, Wanted, read_and_pass,
};
use crate::volume::Volume;
use crate::volume::owned::OwnedFiles;

/// Reading tasks.
const READERS: usize = 2;
/// Most operations of one group.
const OPS_MAX: usize = 16_384;
/// Longest topic name that is kept, bytes.
const NAME_MAX: usize = 4096;

/// The store of databases on one volume, which is a directory of this machine.
#[derive(Debug)]
pub struct KvStore {
    pub(super) env: Env,
    config: KvConfig,
    owned: OwnedFiles,
    root: PathBuf,
    registry: Arc<Registry>,
    shards: RwLock<BTreeMap<ShardId, Arc<Shard>>>,
    /// Writers that run or ran, one per shard; the lock makes opening and closing take turns.
    tasks: tokio::sync::Mutex<BTreeMap<ShardId, Task>>,
    /// Shards of which a sync failed.
    unsynced: Arc<Mutex<BTreeSet<ShardId>>>,
    readers: Vec<mpsc::Sender<Job>>,
    next_reader: AtomicUsize,
}

/// A writer's end can be awaited.
struct Task(BoxFuture<'static, ()>);

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task")
    }
}

impl KvStore {
    /// A store on `volume` with no shard open. `root` is the directory that the volume's root is:
    /// sled opens its files itself.
    pub fn new(
        env: Env,
        volume: Arc<dyn Volume>,
        root: impl Into<PathBuf>,
        config: KvConfig,
    ) -> Self {
        let readers = (0..READERS).map(|n| {
            let (jobs, queue) = mpsc::channel(reader::JOBS_MAX);
            // Ends with the last sender.
            let name = format!("kv-read-{n}");
            drop(env.runtime.spawn_io(&name, Box::pin(reader::run(queue))));
            jobs
        });
        let readers = readers.collect();
        Self {
            owned: OwnedFiles::new(volume, Arc::clone(&env.random)),
            env,
            config,
            root: root.into(),
            registry: Arc::default(),
            shards: RwLock::default(),
            tasks: tokio::sync::Mutex::default(),
            unsynced: Arc::default(),
            readers,
            next_reader: AtomicUsize::new(0),
        }
    }

    pub(super) fn log(&self, id: LogId) -> Result<Arc<Log>, StoreError> {
        self.registry.get(id).ok_or_else(|| {
            // A shard that is not open may have it.
            let shards = self.shards.read();
            let closed = shards.values().find_map(|shard| shard.check().err());
            closed.unwrap_or(StoreError::NotFound)
        })
    }

    /// A log that is served.
    fn open_log(&self, id: LogId) -> Option<Arc<Log>> {
        let log = self.registry.get(id)?;
        log.shard.check().ok()?;
        Some(log)
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

    /// Has `read` done by a reading task.
    pub(super) async fn read_with<T: Send + 'static>(
        &self,
        id: LogId,
        read: impl FnOnce(Reader) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let log = self.log(id)?;
        let turn = self.next_reader.fetch_add(1, Ordering::Relaxed);
        let task = self.readers.get(turn % READERS);
        let task = task.ok_or_else(|| StoreError::Offline("no reader".to_owned()))?;
        let registry = Arc::clone(&self.registry);
        reader::ask(task, move || read(Reader { log, registry })).await
    }

    /// Queues a command on `shard` and waits for its outcome.
    pub(super) async fn ask<T>(
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
        // Until the logs are known again, nobody may take them for gone.
        let before = self.shards.write().insert(id, being_opened(id));
        if let Some(task) = tasks.remove(&id) {
            self.end(id, before, task).await;
        }
        let shard = Arc::new(Shard::new(id, self.config.queue_bytes));
        let opening = Opening {
            env: self.env.clone(),
            config: self.config.clone(),
            owned: self.owned.clone(),
            root: self.root.clone(),
            registry: Arc::clone(&self.registry),
            unsynced: Arc::clone(&self.unsynced),
            shard: Arc::clone(&shard),
            owner,
        };
        let (opened, outcome) = oneshot::channel();
        let name = format!("kv-{}", id.0);
        let task = Box::pin(opening.run(opened));
        tasks.insert(id, Task(self.env.runtime.spawn_io(&name, task)));
        let outcome = outcome.await;
        // Also after a failure: its queue says why.
        self.shards.write().insert(id, Arc::clone(&shard));
        outcome.unwrap_or_else(|_| {
            let error = recovery::ended(id);
            shard.queue.close(&error);
            Err(error)
        })
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
    StoreError::Offline(format!("{}: the shard is not open", kv_dir(shard)))
}

/// Stands for a shard while it is opened: refuses everything, for now.
fn being_opened(id: ShardId) -> Arc<Shard> {
    let shard = Shard::new(id, 0);
    shard.queue.close(&StoreError::Offline(format!(
        "{}: the shard is being opened",
        kv_dir(id)
    )));
    Arc::new(shard)
}

/// What a shard's task is made of.
struct Opening {
    env: Env,
    config: KvConfig,
    owned: OwnedFiles,
    root: PathBuf,
    registry: Arc<Registry>,
    unsynced: Arc<Mutex<BTreeSet<ShardId>>>,
    shard: Arc<Shard>,
    owner: OwnerEpoch,
}

impl Opening {
    /// Opens the shard, says how that went, and writes it until it is closed.
    async fn run(self, opened: Reply<ShardInfo>) {
        let id = self.shard.id;
        let unsynced = AtomicBool::new(self.unsynced.lock().contains(&id));
        let request = Request {
            env: &self.env,
            owned: &self.owned,
            root: &self.root,
            config: &self.config,
            shard: id,
            owner: self.owner,
            unsynced: &unsynced,
        };
        let found = match recovery::open(&request).await {
            Ok(found) => found,
            Err(error) => {
                if unsynced.load(Ordering::SeqCst) {
                    self.unsynced.lock().insert(id);
                }
                self.shard.queue.close(&error);
                answer(opened, Err(error));
                return;
            }
        };
        self.unsynced.lock().remove(&id);
        let parts = Parts {
            env: self.env,
            config: self.config,
            volume: Arc::clone(self.owned.volume()),
            registry: self.registry,
            shard: self.shard,
        };
        let writer = Writer::new(parts, found);
        let info = ShardInfo {
            shard: id,
            damaged: Vec::new(),
            dropped_tail_bytes: 0,
        };
        answer(opened, Ok(info));
        if writer.run().await {
            self.unsynced.lock().insert(id);
        }
    }
}

impl Drop for KvStore {
    fn drop(&mut self) {
        for shard in self.shards.get_mut().values() {
            let (reply, _) = oneshot::channel();
            shard.queue.push(Command::Close(reply));
        }
    }
}

impl LogStore for KvStore {
    fn caps(&self) -> Caps {
        Caps {
            atomic: AtomicScope::Shard,
            max_append: self.config.max_append,
            durability: self.config.flush.durability(),
            shared: false,
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
        };
        Box::pin(self.read_with(id, move |reader| reader.read(range)))
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
        };
        Box::pin(self.read_with(id, move |reader| reader.read(range)))
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
        Box::pin(self.read_with(id, move |reader| reader.find(from, timestamp_ms)))
    }

    fn pieces(&self, id: LogId, from: i64, min_bytes: u64) -> StoreFuture<'_, Vec<Piece>> {
        Box::pin(self.read_with(id, move |reader| reader.pieces(from, min_bytes)))
    }

    fn parts(&self, _: LogId, _: i64) -> Option<Vec<Piece>> {
        // Keys are walked where they are needed.
        None
    }

    fn size(&self, id: LogId) -> Option<Size> {
        Some(self.open_log(id)?.size())
    }

    fn settled(&self, id: LogId) -> Option<i64> {
        Some(self.open_log(id)?.bounds.borrow().end)
    }

    fn rewrite(&self, rewrite: Rewrite) -> StoreFuture<'_, Rewritten> {
        Box::pin(self.sift(rewrite))
    }

    fn bounds(&self, id: LogId) -> Option<Bounds> {
        Some(*self.open_log(id)?.bounds.borrow())
    }

    fn watch(&self, id: LogId) -> Option<watch::Receiver<Bounds>> {
        Some(self.open_log(id)?.bounds.subscribe())
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.close_all())
    }
}

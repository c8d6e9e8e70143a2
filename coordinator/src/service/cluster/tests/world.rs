//! One thread, virtual time, seeded numbers: runs brokers on a memory volume.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use store_adapter::ids::BrokerId;
use store_adapter::local::{FixedHost, MemoryIdentity};
use store_adapter::runtime::{BoxFuture, Clock, Env, Random, Runtime};
use store_adapter::volume::memory::{Step, StepHook, StepOutcome};
use store_adapter::volume::{MemoryVolume, Volume, VolumePath};
use tokio::sync::{oneshot, watch};

use super::super::{ClusterNode, Levels, NodeConfig, StartError};
use crate::volume::format::Listener;

/// Tasks of one process, ended together.
pub(super) type Group = u32;

#[derive(Default)]
struct Inner {
    now: Duration,
    tasks: BTreeMap<u64, (Group, BoxFuture<'static, ()>)>,
    next_task: u64,
    /// Names of the tasks that were given to the workers, which must not be kept busy.
    on_workers: BTreeSet<String>,
    timers: BTreeMap<(Duration, u64), oneshot::Sender<()>>,
    next_timer: u64,
    random: u64,
}

/// The world in which the brokers of a test run. Clones are the same world.
#[derive(Clone)]
pub(super) struct World {
    inner: Arc<Mutex<Inner>>,
    ready: Arc<Mutex<VecDeque<u64>>>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

struct WakeTask {
    id: u64,
    ready: Arc<Mutex<VecDeque<u64>>>,
}

impl Wake for WakeTask {
    fn wake(self: Arc<Self>) {
        self.ready.lock().push_back(self.id);
    }
}

#[derive(Debug)]
struct Process {
    world: World,
    group: Group,
}

impl Runtime for Process {
    fn spawn(&self, name: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.world.inner.lock().on_workers.insert(name.to_owned());
        self.spawn_io(name, task)
    }

    fn spawn_io(&self, _name: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let (ended, wait) = oneshot::channel::<()>();
        self.world.add(
            self.group,
            Box::pin(async move {
                task.await;
                drop(ended);
            }),
        );
        Box::pin(async move { wait.await.unwrap_or_default() })
    }
}

impl Clock for Process {
    fn wall_ms(&self) -> i64 {
        1_790_000_000_000 + i64::try_from(self.monotonic().as_millis()).unwrap()
    }

    fn monotonic(&self) -> Duration {
        self.world.inner.lock().now
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let (fire, wait) = oneshot::channel();
        let mut inner = self.world.inner.lock();
        let key = (inner.now + duration, inner.next_timer);
        inner.next_timer += 1;
        inner.timers.insert(key, fire);
        Box::pin(async move { wait.await.unwrap_or_default() })
    }
}

impl Random for Process {
    /// SplitMix64.
    fn next_u64(&self) -> u64 {
        let mut inner = self.world.inner.lock();
        inner.random = inner.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = inner.random;
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let inner = Inner {
            random: seed,
            ..Inner::default()
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            ready: Arc::default(),
        }
    }

    pub(super) fn env(&self, group: Group) -> Env {
        let process = Arc::new(Process {
            world: self.clone(),
            group,
        });
        Env {
            clock: process.clone(),
            runtime: process.clone(),
            random: process,
        }
    }

    fn add(&self, group: Group, task: BoxFuture<'static, ()>) {
        let mut inner = self.inner.lock();
        let id = inner.next_task;
        inner.next_task += 1;
        inner.tasks.insert(id, (group, task));
        drop(inner);
        self.ready.lock().push_back(id);
    }

    /// Ends the tasks of a process where they stand.
    pub(super) fn kill(&self, group: Group) {
        let mut inner = self.inner.lock();
        let kept = std::mem::take(&mut inner.tasks);
        let (ended, kept) = kept.into_iter().partition(|(_, (g, _))| *g == group);
        inner.tasks = kept;
        drop(inner);
        drop::<BTreeMap<_, _>>(ended);
    }

    /// Polls one ready task, or lets time pass to the next timer. `false`: nothing can happen.
    fn turn(&self) -> bool {
        let id = self.ready.lock().pop_front();
        let Some(id) = id else {
            let mut inner = self.inner.lock();
            let Some(((at, _), fire)) = inner.timers.pop_first() else {
                return false;
            };
            inner.now = inner.now.max(at);
            drop(inner);
            // A timer that nobody waits for is nothing.
            fire.send(()).unwrap_or_default();
            return true;
        };
        let task = self.inner.lock().tasks.remove(&id);
        if let Some((group, mut task)) = task {
            let waker = Waker::from(Arc::new(WakeTask {
                id,
                ready: self.ready.clone(),
            }));
            if task
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
            {
                self.inner.lock().tasks.insert(id, (group, task));
            }
        }
        true
    }

    /// Runs everything until `future` is done; `None` when it can't be done any more or five
    /// minutes have passed.
    pub(super) fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (done, mut wait) = oneshot::channel();
        let end = self.inner.lock().now + Duration::from_mins(5);
        self.add(
            Group::MAX,
            Box::pin(async move {
                drop(done.send(future.await));
            }),
        );
        loop {
            match wait.try_recv() {
                Ok(value) => return Some(value),
                Err(oneshot::error::TryRecvError::Closed) => return None,
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            if !self.turn() || self.inner.lock().now > end {
                self.kill(Group::MAX);
                return None;
            }
        }
    }

    /// Names of the tasks that workers were given.
    pub(super) fn on_workers(&self) -> BTreeSet<String> {
        self.inner.lock().on_workers.clone()
    }

    /// Lets time pass.
    pub(super) fn pass(&self, time: Duration) {
        let sleep = self.env(Group::MAX).clock.sleep(time);
        self.run(sleep).unwrap();
    }

    pub(super) fn now(&self) -> Duration {
        self.inner.lock().now
    }
}

/// Stops, fails or holds a process at one of its volume steps. Steps that only read don't count.
#[derive(Debug)]
pub(super) struct Interrupt {
    steps: AtomicU64,
    at: u64,
    how: How,
    released: watch::Sender<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// From this step on nothing happens and nothing answers.
    Stop,
    /// Only this step answers like this.
    Once(StepOutcome),
    /// Every step from this one on waits until it is released.
    Hold,
}

impl Interrupt {
    pub(super) fn new(at: u64, how: How) -> Arc<Self> {
        Arc::new(Self {
            steps: AtomicU64::new(0),
            at,
            how,
            released: watch::channel(false).0,
        })
    }

    pub(super) fn none() -> Arc<Self> {
        Self::new(u64::MAX, How::Hold)
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    pub(super) fn release(&self) {
        self.released.send_replace(true);
    }
}

impl StepHook for Interrupt {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let step = if step.op.changes() {
            self.steps.fetch_add(1, Ordering::Relaxed)
        } else {
            let next = self.steps();
            if next <= self.at {
                return Box::pin(std::future::ready(StepOutcome::Proceed));
            }
            next
        };
        let outcome = match self.how {
            How::Once(outcome) if step == self.at => outcome,
            How::Stop if step >= self.at => StepOutcome::Stop,
            How::Hold if step >= self.at => {
                let mut released = self.released.subscribe();
                return Box::pin(async move {
                    released.wait_for(|released| *released).await.unwrap();
                    StepOutcome::Proceed
                });
            }
            _ => StepOutcome::Proceed,
        };
        Box::pin(std::future::ready(outcome))
    }
}

/// A host with a volume and a data directory.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) world: World,
    pub(super) volume: MemoryVolume,
    pub(super) host: FixedHost,
    pub(super) identity: Arc<MemoryIdentity>,
    pub(super) config: NodeConfig,
}

impl Site {
    pub(super) fn new(world: &World) -> Self {
        Self {
            world: world.clone(),
            volume: MemoryVolume::new(),
            host: host("a", 1),
            identity: Arc::default(),
            config: config(0),
        }
    }

    /// Starts a broker as the process `group`; `None` if it hangs.
    pub(super) fn try_start(
        &self,
        group: Group,
        hook: Arc<dyn StepHook>,
    ) -> Option<Result<ClusterNode, StartError>> {
        self.world.run(ClusterNode::start(
            self.world.env(group),
            Arc::new(self.volume.mount(hook, None)),
            Arc::new(self.host.clone()),
            self.identity.clone(),
            self.config.clone(),
        ))
    }

    pub(super) fn start(&self, group: Group) -> ClusterNode {
        self.try_start(group, Interrupt::none()).unwrap().unwrap()
    }

    pub(super) fn refused(&self, group: Group) -> StartError {
        let outcome = self.try_start(group, Interrupt::none()).unwrap();
        outcome.expect_err("it should be refused")
    }

    /// Every file that means something, with its bytes: tickets, probes and claims left out.
    pub(super) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let volume = self.volume.clone();
        self.world
            .run(async move {
                let mut files = BTreeMap::new();
                let mut dirs = vec![VolumePath::root()];
                while let Some(dir) = dirs.pop() {
                    for entry in volume.list(&dir).await.unwrap() {
                        let path = dir.join(&entry.name);
                        if entry.is_dir {
                            dirs.push(path);
                        } else if !is_scratch(&path) {
                            let bytes = volume.read(&path, u64::MAX).await.unwrap();
                            files.insert(path.to_string(), bytes.to_vec());
                        }
                    }
                }
                files
            })
            .unwrap()
    }

    pub(super) fn put(&self, path: &VolumePath, bytes: &[u8]) {
        let (volume, path) = (self.volume.clone(), path.clone());
        let bytes = bytes::Bytes::copy_from_slice(bytes);
        self.world
            .run(async move {
                volume.create_dir_all(&path.parent()).await.unwrap();
                if volume.open(&path).await.is_ok() {
                    volume.remove(&path).await.unwrap();
                }
                let file = volume.create_new(&path).await.unwrap();
                file.write_at(0, &[bytes]).await.unwrap();
                file.sync_data().await.unwrap();
                volume.sync_dir(&path.parent()).await.unwrap();
            })
            .unwrap();
    }
}

fn is_scratch(path: &VolumePath) -> bool {
    let name = path.file_name();
    name.starts_with("t-") || name.starts_with('~') || name.starts_with("own-")
}

pub(super) fn host(name: &str, pid: u32) -> FixedHost {
    FixedHost {
        name: name.into(),
        boot_id: format!("boot-of-{name}"),
        pid,
        start_time: u64::from(pid) * 100,
        running: Vec::new(),
    }
}

pub(super) fn config(broker: i32) -> NodeConfig {
    NodeConfig {
        assigned: false,
        broker_id: BrokerId(broker),
        listeners: vec![Listener {
            name: "PLAINTEXT".into(),
            host: "localhost".into(),
            port: 9092,
        }],
        version: "0.1.0".into(),
        shards: 1,
        features: Levels::new(),
    }
}

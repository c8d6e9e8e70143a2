//! One thread, virtual time, seeded order: the executor of the simulation.
//!
//! Tasks belong to *nodes*: a node is one process (a broker instance, or the clients). Killing a
//! node drops its tasks wherever they wait; pausing one leaves them unscheduled while time goes
//! on. Nothing here reads a real clock, and nothing depends on hash order or addresses, so the
//! same seed gives the same run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use store_adapter::runtime::{BoxFuture, Clock, Env, Random, Runtime};
use tokio::sync::oneshot;

/// A process of the simulated world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

type TaskId = u64;

/// Wall-clock time at the start of every world, ms since the Unix epoch.
const START_WALL_MS: i64 = 1_790_000_000_000;

struct Task {
    node: NodeId,
    name: String,
    /// Out of its place while it is polled.
    future: Option<BoxFuture<'static, ()>>,
}

struct Node {
    name: String,
    alive: bool,
    paused: bool,
    /// Added to the world's wall clock: brokers disagree about the time.
    skew_ms: i64,
}

struct State {
    now: Duration,
    random: fastrand::Rng,
    next_task: TaskId,
    next_timer: u64,
    tasks: BTreeMap<TaskId, Task>,
    timers: BTreeMap<(Duration, u64), Waker>,
    nodes: BTreeMap<NodeId, Node>,
    steps: u64,
    log: Vec<String>,
}

/// Tasks that may run. Apart from the state, because wakers fire while it is locked.
#[derive(Default)]
struct Ready(Mutex<BTreeSet<TaskId>>);

struct TaskWaker {
    id: TaskId,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.0.lock().insert(self.id);
    }
}

/// The simulated world. A clone is the same world.
#[derive(Clone)]
pub struct World {
    state: Arc<Mutex<State>>,
    ready: Arc<Ready>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        write!(
            f,
            "World {{ now: {:?}, steps: {} }}",
            state.now, state.steps
        )
    }
}

impl World {
    /// An empty world whose every choice follows from `seed`.
    pub fn new(seed: u64) -> Self {
        let state = State {
            now: Duration::ZERO,
            random: fastrand::Rng::with_seed(seed),
            next_task: 0,
            next_timer: 0,
            tasks: BTreeMap::new(),
            timers: BTreeMap::new(),
            nodes: BTreeMap::new(),
            steps: 0,
            log: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            ready: Arc::default(),
        }
    }

    /// A new process.
    pub fn node(&self, name: &str) -> NodeId {
        let mut state = self.state.lock();
        let id = NodeId(u32::try_from(state.nodes.len()).unwrap_or(u32::MAX));
        let skew_ms = state.random.i64(-2_000..=2_000);
        let node = Node {
            name: name.to_owned(),
            alive: true,
            paused: false,
            skew_ms,
        };
        state.nodes.insert(id, node);
        id
    }

    /// The environment of a process: its clock, tasks and randomness.
    pub fn env(&self, node: NodeId) -> Env {
        let handle = Arc::new(NodeHandle {
            world: self.clone(),
            node,
        });
        Env {
            clock: handle.clone(),
            runtime: handle.clone(),
            random: handle,
        }
    }

    /// Drops every task of a process, as kill -9 does.
    pub fn kill(&self, node: NodeId) {
        let dropped: Vec<Task> = {
            let mut state = self.state.lock();
            if let Some(node) = state.nodes.get_mut(&node) {
                node.alive = false;
            }
            let ids: Vec<TaskId> = state
                .tasks
                .iter()
                .filter(|(_, task)| task.node == node)
                .map(|(id, _)| *id)
                .collect();
            ids.iter().filter_map(|id| state.tasks.remove(id)).collect()
        };
        self.note(&format!("kill {}", self.name(node)));
        // Outside the lock: dropping a task may wake others.
        drop(dropped);
    }

    /// Stops scheduling a process; time goes on.
    pub fn pause(&self, node: NodeId) {
        self.set_paused(node, true);
    }

    /// Schedules a paused process again.
    pub fn resume(&self, node: NodeId) {
        self.set_paused(node, false);
    }

    fn set_paused(&self, node: NodeId, paused: bool) {
        if let Some(node) = self.state.lock().nodes.get_mut(&node) {
            node.paused = paused;
        }
        self.note(&format!(
            "{} {}",
            if paused { "pause" } else { "resume" },
            self.name(node)
        ));
    }

    /// Whether a process was not killed.
    pub fn is_alive(&self, node: NodeId) -> bool {
        self.state
            .lock()
            .nodes
            .get(&node)
            .is_some_and(|node| node.alive)
    }

    fn name(&self, node: NodeId) -> String {
        self.state
            .lock()
            .nodes
            .get(&node)
            .map(|node| node.name.clone())
            .unwrap_or_default()
    }

    /// Adds a line to the event log.
    pub fn note(&self, line: &str) {
        let mut state = self.state.lock();
        let line = format!("{:>12?} {line}", state.now);
        state.log.push(line);
    }

    /// The event log so far.
    pub fn log(&self) -> Vec<String> {
        self.state.lock().log.clone()
    }

    /// Virtual time since the start.
    pub fn now(&self) -> Duration {
        self.state.lock().now
    }

    /// Scheduling steps taken.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// A random number below `bound`; 0 for a bound of 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 {
            0
        } else {
            self.state.lock().random.u64(0..bound)
        }
    }

    /// A random index of something of `len` elements; 0 for an empty one.
    pub fn index(&self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// A random number from 0 to `bound` - 1, which is positive.
    pub fn small(&self, bound: i32) -> i32 {
        i32::try_from(self.below(u64::from(bound.unsigned_abs()))).unwrap_or(0)
    }

    /// Whether an event of probability `percent` in a hundred happens.
    pub fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Runs `future` as a task of `node` and returns what it yields, running everything else too.
    ///
    /// # Errors
    /// When nothing can run any more, or `step_limit` scheduling steps were taken.
    pub fn run<T: Send + 'static>(
        &self,
        node: NodeId,
        step_limit: u64,
        future: impl Future<Output = T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let (send, mut receive) = oneshot::channel();
        self.spawn(
            node,
            "main",
            Box::pin(async move {
                let outcome = future.await;
                // The receiver is held below until the end of the run.
                drop(send.send(outcome));
            }),
        );
        let limit = self.steps() + step_limit;
        loop {
            match receive.try_recv() {
                Ok(outcome) => return Ok(outcome),
                Err(oneshot::error::TryRecvError::Closed) => anyhow::bail!("the task was dropped"),
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            anyhow::ensure!(
                self.steps() < limit,
                "no end after {step_limit} steps: {}",
                self.stuck()
            );
            anyhow::ensure!(self.step(), "nothing can run: {}", self.stuck());
        }
    }

    fn stuck(&self) -> String {
        let state = self.state.lock();
        let names: Vec<String> = state
            .tasks
            .values()
            .map(|task| format!("{}/{}", task.node.0, task.name))
            .take(40)
            .collect();
        format!("at {:?}, tasks: {}", state.now, names.join(" "))
    }

    /// Takes every remaining task down, so that what they hold is released.
    pub fn shut_down(&self) {
        let tasks = std::mem::take(&mut self.state.lock().tasks);
        drop(tasks);
    }

    fn spawn(&self, node: NodeId, name: &str, future: BoxFuture<'static, ()>) {
        let id = {
            let mut state = self.state.lock();
            if !state.nodes.get(&node).is_some_and(|node| node.alive) {
                return;
            }
            let id = state.next_task;
            state.next_task += 1;
            let task = Task {
                node,
                name: name.to_owned(),
                future: Some(future),
            };
            state.tasks.insert(id, task);
            id
        };
        self.ready.0.lock().insert(id);
    }

    /// Polls one ready task, chosen by the seed, or moves time to the next timer.
    /// `false` when there is neither.
    fn step(&self) -> bool {
        let Some((id, mut future)) = self.choose() else {
            return self.advance();
        };
        let waker = Waker::from(Arc::new(TaskWaker {
            id,
            ready: self.ready.clone(),
        }));
        let done = future
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready();
        let mut state = self.state.lock();
        state.steps += 1;
        let finished = if done {
            state.tasks.remove(&id);
            Some(future)
        } else if let Some(task) = state.tasks.get_mut(&id) {
            task.future = Some(future);
            None
        } else {
            // Killed from within.
            Some(future)
        };
        drop(state);
        drop(finished);
        true
    }

    fn choose(&self) -> Option<(TaskId, BoxFuture<'static, ()>)> {
        let mut state = self.state.lock();
        let mut ready = self.ready.0.lock();
        ready.retain(|id| state.tasks.contains_key(id));
        let able: Vec<TaskId> = ready
            .iter()
            .copied()
            .filter(|id| {
                let node = state
                    .tasks
                    .get(id)
                    .and_then(|task| state.nodes.get(&task.node));
                node.is_some_and(|node| !node.paused)
            })
            .collect();
        if able.is_empty() {
            return None;
        }
        let chosen = able[state.random.usize(0..able.len())];
        ready.remove(&chosen);
        let future = state
            .tasks
            .get_mut(&chosen)
            .and_then(|task| task.future.take());
        future.map(|future| (chosen, future))
    }

    fn advance(&self) -> bool {
        let mut state = self.state.lock();
        let Some((&(at, _), _)) = state.timers.first_key_value() else {
            return false;
        };
        state.now = state.now.max(at);
        let mut due = Vec::new();
        while let Some(entry) = state.timers.first_entry() {
            if entry.key().0 > at {
                break;
            }
            due.push(entry.remove());
        }
        drop(state);
        for waker in due {
            waker.wake();
        }
        true
    }
}

/// A process's view of the world.
struct NodeHandle {
    world: World,
    node: NodeId,
}

impl fmt::Debug for NodeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeHandle({})", self.node.0)
    }
}

impl Clock for NodeHandle {
    fn wall_ms(&self) -> i64 {
        let state = self.world.state.lock();
        let skew = state.nodes.get(&self.node).map_or(0, |node| node.skew_ms);
        let elapsed = i64::try_from(state.now.as_millis()).unwrap_or(i64::MAX);
        START_WALL_MS + skew + elapsed
    }

    fn monotonic(&self) -> Duration {
        self.world.now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Sleep {
            world: self.world.clone(),
            at: self.world.now() + duration,
            key: None,
        })
    }
}

impl Runtime for NodeHandle {
    fn spawn(&self, name: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let (ended, wait) = oneshot::channel::<()>();
        self.world.spawn(
            self.node,
            name,
            Box::pin(async move {
                let _ended = ended;
                task.await;
            }),
        );
        Box::pin(async move { wait.await.unwrap_or_default() })
    }

    fn spawn_io(&self, name: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.spawn(name, task)
    }
}

impl Random for NodeHandle {
    fn next_u64(&self) -> u64 {
        self.world.state.lock().random.u64(..)
    }
}

struct Sleep {
    world: World,
    at: Duration,
    key: Option<(Duration, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let world = self.world.clone();
        let mut state = world.state.lock();
        if let Some(key) = self.key.take() {
            state.timers.remove(&key);
        }
        if state.now >= self.at {
            return Poll::Ready(());
        }
        let key = (self.at, state.next_timer);
        state.next_timer += 1;
        state.timers.insert(key, cx.waker().clone());
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            // `try_lock`: dropped while the world is locked, it leaves a timer that wakes nobody.
            if let Some(mut state) = self.world.state.try_lock() {
                state.timers.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn race(seed: u64) -> Vec<String> {
        let world = World::new(seed);
        let node = world.node("a");
        let env = world.env(node);
        for task in 0..4_u64 {
            let (env, world) = (env.clone(), world.clone());
            let inner = env.clone();
            drop(env.runtime.spawn(
                "racer",
                Box::pin(async move {
                    for round in 0..3 {
                        let ms = inner.random.next_u64() % 3;
                        inner.clock.sleep(Duration::from_millis(ms)).await;
                        world.note(&format!("task {task} round {round}"));
                    }
                }),
            ));
        }
        let env = world.env(node);
        world
            .run(node, 10_000, async move {
                env.clock.sleep(Duration::from_secs(1)).await;
            })
            .unwrap();
        world.log()
    }

    #[test]
    fn the_same_seed_gives_the_same_log() {
        assert_eq!(race(7), race(7));
        assert_ne!(race(7), race(8));
    }

    #[test]
    fn a_killed_node_runs_nothing_more_and_a_paused_one_waits() {
        let world = World::new(1);
        let (brokers, clients) = (world.node("broker"), world.node("client"));
        let env = world.env(brokers);
        let (ticker, noter) = (env.clone(), world.clone());
        drop(env.runtime.spawn(
            "ticker",
            Box::pin(async move {
                loop {
                    ticker.clock.sleep(Duration::from_millis(10)).await;
                    noter.note("tick");
                }
            }),
        ));
        let (env, driver) = (world.env(clients), world.clone());
        let ticks = |world: &World| {
            world
                .log()
                .iter()
                .filter(|line| line.contains("tick"))
                .count()
        };
        let counts = world
            .run(clients, 10_000, async move {
                let after = |ms| env.clock.sleep(Duration::from_millis(ms));
                after(35).await;
                let running = ticks(&driver);
                driver.pause(brokers);
                after(100).await;
                let paused = ticks(&driver);
                driver.resume(brokers);
                after(25).await;
                let resumed = ticks(&driver);
                driver.kill(brokers);
                after(100).await;
                (running, paused, resumed, ticks(&driver))
            })
            .unwrap();
        assert_eq!(counts.0, 3);
        assert_eq!(counts.1, counts.0);
        assert!(counts.2 > counts.1);
        assert_eq!(counts.3, counts.2);
        assert!(!world.is_alive(brokers));
    }
}

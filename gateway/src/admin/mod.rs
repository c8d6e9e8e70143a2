//! What the admin surface sees of this process, and the thread that serves it.
//!
//! It has a thread of its own: a process whose workers are wedged must still be able to say so.

mod transactions;

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use admin_api::{Check, Parts, Token, Views};
use coordinator::service::cluster::{ClusterNode, NodeStatus};
use store_adapter::journal::JournalCounters;
use store_adapter::runtime::{BoxFuture, Env};
use store_adapter::volume::SpaceWatch;
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, Condition};
use crate::metrics::Metrics;
use crate::request_budget::ByteBudget;

pub(crate) use transactions::Transactions;

const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Without a beat for so long, the workers make no progress.
const BEAT_LATE: Duration = Duration::from_secs(5);

/// What health looks at.
#[derive(Debug)]
pub(crate) struct HealthParts {
    pub(crate) env: Env,
    pub(crate) node: ClusterNode,
    pub(crate) broker: Arc<Broker>,
    pub(crate) journal: Arc<JournalCounters>,
    pub(crate) space: SpaceWatch,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) requests: ByteBudget,
}

/// The state that health is made of.
#[derive(Debug)]
pub(crate) struct Health {
    parts: HealthParts,
    /// Milliseconds of the monotonic clock at which a worker last ran.
    beat_ms: AtomicU64,
    draining: AtomicBool,
}

impl Health {
    pub(crate) fn new(parts: HealthParts) -> Arc<Self> {
        let health = Arc::new(Self {
            parts,
            beat_ms: AtomicU64::new(0),
            draining: AtomicBool::new(false),
        });
        health.beat();
        health
    }

    /// From now on the process is not ready.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.parts.env.clock.monotonic().as_millis()).unwrap_or(u64::MAX)
    }

    fn beat(&self) {
        self.beat_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// Beats on the workers until `stop`.
    pub(crate) async fn beat_until(self: Arc<Self>, stop: CancellationToken) {
        loop {
            self.beat();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.parts.env.clock.sleep(BEAT_INTERVAL) => {}
            }
        }
    }

    fn workers(&self) -> Result<(), String> {
        let silent = self
            .now_ms()
            .saturating_sub(self.beat_ms.load(Ordering::Relaxed));
        if u128::from(silent) > BEAT_LATE.as_millis() {
            return Err(format!("no worker has run for {silent} ms"));
        }
        Ok(())
    }

    fn accepting(&self) -> Result<(), String> {
        if self.draining.load(Ordering::Relaxed) {
            return Err("the process is stopping".to_owned());
        }
        Ok(())
    }

    fn owner(&self) -> Result<(), String> {
        match *self.parts.node.status().borrow() {
            NodeStatus::Running => Ok(()),
            NodeStatus::Fenced => Err("another process of this broker has taken over".to_owned()),
            NodeStatus::Stopped => Err("the broker has given up what it owned".to_owned()),
        }
    }
}

/// The checks of what serves: partly down is degraded, wholly down is not ready.
fn serving(condition: &Condition) -> [Check; 2] {
    let shards = match condition.closed.first() {
        Some(first) if condition.closed.len() == condition.shards => {
            Check::new("shards", Err(format!("all are offline; {first}")))
        }
        first => Check::degraded("shards", first.map(|_| condition.closed.join("; "))),
    };
    let Condition {
        partitions,
        offline,
        example,
        cut,
        cut_example,
        ..
    } = condition;
    let example = example.as_ref();
    let away = example.map(|example| format!("{offline} of {partitions} are offline; {example}"));
    let lost = cut_example.as_ref().map(|example| {
        format!("{cut} of {partitions} have lost acknowledged records at their end; {example}")
    });
    let why: Vec<String> = away.into_iter().chain(lost).collect();
    let why = (!why.is_empty()).then(|| why.join("; "));
    [shards, Check::degraded("partitions", why)]
}

/// What coordinators can't answer for yet, in slots.
fn loading(txns: usize, groups: usize) -> Option<String> {
    (txns + groups > 0).then(|| {
        format!("being taken over: {txns} slots of transactional ids, {groups} slots of groups")
    })
}

/// What coordinators can't do while the volume takes nothing.
fn unwritten() -> String {
    "commits and transactions are answered with retriable codes: nothing is written".to_owned()
}

impl Health {
    /// Damaged files, by path.
    fn damaged(&self) -> BTreeSet<String> {
        let volume = self.parts.node.damage().into_iter();
        let paths = volume.map(|damage| damage.path);
        let paths = paths.chain(self.parts.journal.damaged_files());
        paths.collect()
    }
}

impl Views for Health {
    fn live(&self) -> Result<(), String> {
        self.workers()
    }

    fn checks(&self) -> Vec<Check> {
        let full = self.parts.space.is_full();
        let full = full.then(|| "it is full: writes are refused until space is free".to_owned());
        let refused = self.parts.node.refused();
        let damaged = self.damaged();
        let count = damaged.len();
        let damaged = damaged.first();
        let damaged = damaged.map(|first| format!("{count} damaged, such as {first}"));
        let condition = self.parts.broker.condition();
        let [shards, partitions] = serving(&condition);
        let (txns, groups) = (self.parts.broker.txns(), self.parts.broker.offsets());
        let coordinators = loading(txns.slots_loading(), groups.slots_loading());
        let coordinators = coordinators.or_else(|| refused.is_some().then(unwritten));
        let disk = full.or_else(|| refused.map(|why| format!("it is not written: {why}")));
        vec![
            Check::new("workers", self.workers()),
            Check::new("listeners", self.accepting()),
            Check::new("owner", self.owner()),
            shards,
            partitions,
            Check::degraded("configs", condition.refused),
            Check::degraded("coordinators", coordinators),
            Check::degraded("files", damaged),
            Check::degraded("disk", disk),
        ]
    }

    fn metrics(&self) -> Result<String, String> {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let metrics = &self.parts.metrics;
        let taken = self.parts.requests.taken();
        metrics.inflight_bytes.set(gauge(taken));
        let taken = self.parts.broker.answers().taken();
        metrics.answer_bytes.set(gauge(taken));
        let condition = self.parts.broker.condition();
        let shown = &metrics.condition;
        shown.partitions.set(gauge(condition.partitions));
        shown.partitions_offline.set(gauge(condition.offline));
        shown.shards_offline.set(gauge(condition.closed.len()));
        shown.damaged_files.set(gauge(self.damaged().len()));
        shown.disk_full.set(i64::from(self.parts.space.is_full()));
        metrics.encode().map_err(|error| error.to_string())
    }
}

/// Binds the admin address. Port 0 takes a free one.
pub(crate) fn bind(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

/// Serves on a thread of its own until `stop`; the future completes when it has ended.
pub(crate) fn serve(
    env: &Env,
    listener: TcpListener,
    parts: Parts,
    stop: CancellationToken,
) -> BoxFuture<'static, ()> {
    on_thread(
        env,
        admin_api::serve(listener, parts, stop.cancelled_owned()),
    )
}

/// The same while there is no broker yet: `why` is told by `/readyz`.
pub(crate) fn serve_starting(
    env: &Env,
    listener: TcpListener,
    why: String,
    token: Option<Token>,
    stop: CancellationToken,
) -> BoxFuture<'static, ()> {
    let clock = Arc::clone(&env.clock);
    let sleep: admin_api::Sleep = Arc::new(move |time| clock.sleep(time));
    let views = Arc::new(NotStarted(why));
    let stop = stop.cancelled_owned();
    on_thread(
        env,
        admin_api::serve_starting(listener, views, token, sleep, stop),
    )
}

fn on_thread(
    env: &Env,
    serving: impl Future<Output = io::Result<()>> + Send + 'static,
) -> BoxFuture<'static, ()> {
    let task = async move {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        if let Err(error) = runtime.and_then(|runtime| runtime.block_on(serving)) {
            tracing::error!(%error, "the admin port is not served");
        }
    };
    env.runtime.spawn_io("admin", Box::pin(task))
}

/// A process that waits for what its broker needs to start.
struct NotStarted(String);

impl Views for NotStarted {
    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    fn checks(&self) -> Vec<Check> {
        vec![Check::new("start", Err(self.0.clone()))]
    }

    fn metrics(&self) -> Result<String, String> {
        Err(self.0.clone())
    }
}

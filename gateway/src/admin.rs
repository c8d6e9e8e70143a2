//! What the admin surface sees of this process, and the thread that serves it.
//!
//! It has a thread of its own: a process whose workers are wedged must still be able to say so.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use admin_api::{Check, Views};
use coordinator::service::cluster::NodeStatus;
use store_adapter::runtime::{BoxFuture, Env};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::answer_budget::AnswerBudget;
use crate::frame::ByteBudget;
use crate::metrics::Metrics;

const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Without a beat for so long, the workers make no progress.
const BEAT_LATE: Duration = Duration::from_secs(5);

/// The state that health is made of.
#[derive(Debug)]
pub(crate) struct Health {
    env: Env,
    /// Milliseconds of the monotonic clock at which a worker last ran.
    beat_ms: AtomicU64,
    draining: AtomicBool,
    node: watch::Receiver<NodeStatus>,
    metrics: Arc<Metrics>,
    budgets: (ByteBudget, AnswerBudget),
}

impl Health {
    pub(crate) fn new(
        env: Env,
        node: watch::Receiver<NodeStatus>,
        metrics: Arc<Metrics>,
        budgets: (ByteBudget, AnswerBudget),
    ) -> Arc<Self> {
        let health = Arc::new(Self {
            beat_ms: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            env,
            node,
            metrics,
            budgets,
        });
        health.beat();
        health
    }

    /// From now on the process is not ready.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.env.clock.monotonic().as_millis()).unwrap_or(u64::MAX)
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
                () = self.env.clock.sleep(BEAT_INTERVAL) => {}
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
        match *self.node.borrow() {
            NodeStatus::Running => Ok(()),
            NodeStatus::Fenced => Err("another process of this broker has taken over".to_owned()),
            NodeStatus::Stopped => Err("the broker has given up what it owned".to_owned()),
        }
    }
}

impl Views for Health {
    fn live(&self) -> Result<(), String> {
        self.workers()
    }

    fn checks(&self) -> Vec<Check> {
        vec![
            Check::new("workers", self.workers()),
            Check::new("listeners", self.accepting()),
            Check::new("owner", self.owner()),
        ]
    }

    fn metrics(&self) -> Result<String, String> {
        let (requests, answers) = &self.budgets;
        let gauge = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.metrics.inflight_bytes.set(gauge(requests.taken()));
        self.metrics.answer_bytes.set(gauge(answers.taken()));
        self.metrics.encode().map_err(|error| error.to_string())
    }
}

/// Binds the admin address, which is on loopback. Port 0 takes a free one.
pub(crate) fn bind(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

/// Serves on a thread of its own until `stop`; the future completes when it has ended.
pub(crate) fn serve(
    env: &Env,
    listener: TcpListener,
    health: Arc<Health>,
    stop: CancellationToken,
) -> BoxFuture<'static, ()> {
    let task = async move {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let served = runtime.and_then(|runtime| {
            runtime.block_on(admin_api::serve(listener, health, stop.cancelled_owned()))
        });
        if let Err(error) = served {
            tracing::error!(%error, "the admin port is not served");
        }
    };
    env.runtime.spawn_io("admin", Box::pin(task))
}

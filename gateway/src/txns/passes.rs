//! What is done of transactions without a client, by the clock: timing out, finishing what is
//! decided, forgetting, writing what could be derived, reading the fences and queues of other
//! brokers.
//!
//! Every pass may run at any moment and beside every request: what it does is decided by the
//! coordinator again. The first look at what was left decided comes as soon as a slot is read.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use coordinator::service::txns::Txns;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use store_adapter::runtime::BoxFuture;

use super::QueuePasses;
use crate::broker::Broker;

/// Ids that one pass works on at a time.
const AT_ONCE: usize = 64;
/// How long a pass waits for the ids that it works on.
const PATIENCE: Duration = Duration::from_secs(2);
/// Half of the first wait for what could not be finished: each is twice as long as the one before.
const AGAIN: Duration = Duration::from_millis(25);
/// The longest between two looks at slots that are still being read.
const LOADING_MAX: Duration = Duration::from_millis(400);

/// Ids that a pass works on, some of them since an earlier turn.
type Busy = Arc<Mutex<BTreeSet<Arc<str>>>>;

/// Starts the passes of a broker; they end when it stops. Each waits for what is its own only.
pub fn start_passes(broker: &Arc<Broker>, queues: QueuePasses) {
    let config = broker.config();
    let busy = Busy::default();
    every(
        broker,
        "txn-reaper",
        config.txn_reap_interval,
        move |broker| reap(broker, busy.clone()),
    );
    let busy = Busy::default();
    every(
        broker,
        "txn-expiry",
        config.txn_expire_interval,
        move |broker| expire(broker, busy.clone()),
    );
    let poll = config.txn_poll_interval;
    every(broker, "txn-fences", poll, fences);
    let (polled, busy) = (queues.clone(), Busy::default());
    every(broker, "txn-settle", poll, move |broker| {
        settle(broker, polled.clone(), busy.clone())
    });
    let polled = queues.clone();
    every(broker, "txn-receive", poll, move |broker| {
        receive(broker, polled.clone())
    });
    let interval = config.txn_reconcile_interval;
    let work = reconciles(Arc::downgrade(broker), interval, queues);
    drop(spawn(broker, "txn-reconcile", work));
}

/// Finishes what is decided: at once when the broker starts, since nobody else goes on with it, and
/// then again soon as long as something could not be finished.
async fn reconciles(broker: Weak<Broker>, interval: Duration, queues: QueuePasses) {
    let (mut loading, mut pause) = (true, AGAIN);
    let (mut next_sweep, busy) = (None, Busy::default());
    while let Some(broker) = broker.upgrade() {
        let clock = broker.env().clock.clone();
        // Looked at before: a slot that is read meanwhile has another look.
        loading = loading && is_loading(&broker);
        reconcile(&broker, &busy).await;
        let now = clock.monotonic();
        // Not with the first look: what was confirmed before the start is taken first.
        if !loading && now >= *next_sweep.get_or_insert(now + interval) {
            next_sweep = Some(now + interval);
            if let Err(error) = queues.queues.sweep(broker.txns()).await {
                tracing::warn!(%error, "marker queues are not swept");
            }
        }
        let left = !broker.txns().unfinished().is_empty();
        pause = match (loading, left) {
            (true, _) => (pause * 2).min(LOADING_MAX).min(interval),
            (false, true) => (pause * 2).min(interval),
            (false, false) => AGAIN,
        };
        let wait = if loading || left { pause } else { interval };
        let reread = broker.txns().reread();
        drop(broker);
        tokio::select! {
            biased;
            () = reread => {}
            () = clock.sleep(wait) => {}
        }
    }
}

/// Whether a transactional id or a group can't be answered for yet.
fn is_loading(broker: &Broker) -> bool {
    broker.txns().slots_loading() > 0 || broker.offsets().slots_loading() > 0
}

/// Runs a task until it ends or the broker stops; what is returned is that it has.
fn spawn(
    broker: &Arc<Broker>,
    name: &str,
    work: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, ()> {
    let stopped = broker.when_stopping();
    let task: BoxFuture<'static, ()> = Box::pin(async move {
        tokio::select! {
            biased;
            () = stopped => {}
            () = work => {}
        }
    });
    broker.env().runtime.spawn(name, task)
}

fn every<F>(
    broker: &Arc<Broker>,
    name: &str,
    interval: Duration,
    pass: impl Fn(Arc<Broker>) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let weak: Weak<Broker> = Arc::downgrade(broker);
    let clock = broker.env().clock.clone();
    let turns = spawn(broker, name, async move {
        loop {
            clock.sleep(interval).await;
            let Some(broker) = weak.upgrade() else {
                return;
            };
            pass(broker).await;
        }
    });
    drop(turns);
}

/// Aborts what is open for longer than its timeout.
async fn reap(broker: Arc<Broker>, busy: Busy) {
    let overdue = broker.txns().overdue(broker.env().clock.wall_ms());
    each(&broker, &busy, overdue, |txns, id| async move {
        match txns.reap(&id).await {
            Ok(true) => tracing::info!(%id, "a transaction has timed out and is aborted"),
            // Its client has ended it.
            Ok(false) => {}
            Err(error) => tracing::warn!(%id, %error, "a timed-out transaction is not aborted yet"),
        }
    })
    .await;
}

/// Finishes what is decided, and writes what is complete.
async fn reconcile(broker: &Arc<Broker>, busy: &Busy) {
    let txns = broker.txns();
    each(broker, busy, txns.unfinished(), |txns, id| async move {
        if let Err(error) = txns.reconcile(&id).await {
            tracing::debug!(%id, %error, "a decided transaction is not finished yet");
        }
    })
    .await;
    txns.flush();
}

/// Forgets ids that nobody uses.
async fn expire(broker: Arc<Broker>, busy: Busy) {
    let expired = broker.txns().expired(broker.env().clock.wall_ms());
    each(&broker, &busy, expired, |txns, id| async move {
        if let Err(error) = txns.expire(&id).await {
            tracing::debug!(%id, %error, "an expired transactional id is kept for now");
        }
    })
    .await;
}

/// Looks at what other brokers have fenced.
async fn fences(broker: Arc<Broker>) {
    let uses = Arc::new(broker.txns().clone());
    if let Err(error) = broker.fences().poll(uses).await {
        tracing::warn!(%error, "the fences of this broker are not up to date");
    }
}

/// Looks at what other brokers have done of what they were given.
async fn settle(broker: Arc<Broker>, queues: QueuePasses, busy: Busy) {
    each(&broker, &busy, broker.txns().owed(), |txns, id| {
        let (queues, homes) = (queues.queues.clone(), queues.homes.clone());
        async move {
            let own = homes.broker();
            let settled = queues.settle(&txns, &id, own, |topic| homes.is_deleted(topic));
            settled.await;
        }
    })
    .await;
}

/// Looks at what other brokers have given to this one. Each producer's is carried out by a task of
/// its own: a partition that does not answer holds nobody else's up.
async fn receive(broker: Arc<Broker>, queues: QueuePasses) {
    match queues.receive().await {
        Ok(received) => {
            for work in received {
                drop(spawn(&broker, "txn-received", work));
            }
        }
        Err(error) => tracing::warn!(%error, "the markers that other brokers queued are not read"),
    }
}

/// Works on many ids, some at a time. One that takes long goes on by itself: it holds no other up,
/// and is left out until it is done.
async fn each<F>(
    broker: &Arc<Broker>,
    busy: &Busy,
    ids: Vec<Arc<str>>,
    work: impl Fn(Txns, Arc<str>) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let clock = broker.env().clock.clone();
    let mut ids = ids.into_iter();
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < AT_ONCE
            && let Some(id) = ids.next()
        {
            if !busy.lock().insert(id.clone()) {
                continue;
            }
            let (work, busy) = (work(broker.txns().clone(), id.clone()), busy.clone());
            running.push(spawn(broker, "txn-pass", async move {
                work.await;
                busy.lock().remove(&id);
            }));
        }
        tokio::select! {
            biased;
            one = running.next() => {
                if one.is_none() {
                    return;
                }
            }
            () = clock.sleep(PATIENCE) => running.clear(),
        }
    }
}

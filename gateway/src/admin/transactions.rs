//! What the admin surface sees of transactions, and does about them.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use admin_api::TxnViews;
use admin_api::views::{
    Bounds, BoxFuture, HistoryView, HoldView, IdPattern, Job, KafkaCode, Look, NoPartition,
    PartitionView, Pass,
};
use coordinator::machine::group::GroupError;
use coordinator::machine::group::offsets::OffsetTable;
use coordinator::machine::txn::{Session, TxnEntry, TxnError};
use coordinator::service::cluster::{Found, QueuedMarkers, SharedFiles};
use coordinator::service::txns::{SlotGap, Txns};
use coordinator::volume::format::{FencesFile, IdBlockFile};
use futures_util::StreamExt;
use futures_util::stream;
use kafka_protocol::protocol::StrBytes;
use store_adapter::ids::{ProducerEpoch, ProducerId};
use store_adapter::runtime::Env;
use store_adapter::volume::Volume;
use tokio::sync::{mpsc, oneshot};

use crate::broker::{Broker, NoTopic};
use crate::error_code;
use crate::handlers::list_transactions;
use crate::metrics::error_name;
use crate::partition::Partition;
use crate::txns::history::History;
use crate::txns::hold::{Hold, Holds};

/// Ids that one pass takes care of.
const PASS_MAX: usize = 10_000;
/// Of them, at one time.
const AT_ONCE: usize = 64;
/// Jobs that wait for the io task, or for the worker.
const JOBS_MAX: usize = 64;

/// The transactions of a broker.
#[derive(Debug)]
pub(crate) struct Transactions {
    env: Env,
    broker: Arc<Broker>,
    history: Arc<History>,
    holds: Arc<Holds>,
    files: IoTask,
    /// What takes long, for a thread of its own.
    jobs: mpsc::Sender<Job>,
}

impl Transactions {
    pub(crate) fn new(
        env: &Env,
        broker: &Arc<Broker>,
        volume: Arc<dyn Volume>,
        history: &Arc<History>,
        holds: &Arc<Holds>,
    ) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            broker: Arc::clone(broker),
            history: Arc::clone(history),
            holds: Arc::clone(holds),
            files: IoTask::start(env, volume),
            jobs: start_worker(env),
        })
    }

    fn found(&self, topic: &str, partition: i32) -> Result<Arc<Partition>, NoPartition> {
        if !self.broker.valid_topic_name(topic) {
            return Err(NoPartition::UnknownTopic);
        }
        let name = StrBytes::from_string(topic.to_owned());
        let hosted = self
            .broker
            .find_topic(&name)
            .map_err(|reason| match reason {
                NoTopic::Unknown => NoPartition::UnknownTopic,
                NoTopic::Damaged => NoPartition::Damaged,
            })?;
        let partition = hosted.partition(partition);
        let partition = partition.ok_or(NoPartition::UnknownPartition)?;
        partition.map_err(|error| NoPartition::Unavailable(error.to_string()))
    }
}

impl TxnViews for Transactions {
    fn now_ms(&self) -> i64 {
        self.env.clock.wall_ms()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.env.clock.sleep(duration)
    }

    fn work(&self, job: Job) -> bool {
        self.jobs.try_send(job).is_ok()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        drop(self.env.runtime.spawn("admin-request", task));
    }

    fn broker(&self) -> i32 {
        self.broker.id().0
    }

    fn kafka_address(&self) -> String {
        let (host, port) = self.broker.address(0);
        if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        }
    }

    fn kafka_code(&self, error: TxnError) -> KafkaCode {
        let error = error_code::txn(error);
        KafkaCode {
            code: error.code(),
            name: error_name(error.code()),
            retriable: error.is_retriable(),
        }
    }

    fn id_pattern(&self, pattern: &str) -> Result<IdPattern, String> {
        let wrong = |_| "it must be a regular expression, of a size that can be served".to_owned();
        let compiled = list_transactions::pattern(pattern).map_err(wrong)?;
        Ok(Box::new(move |id| {
            let compiled = compiled.as_ref();
            compiled.is_none_or(|compiled| compiled.is_match(id))
        }))
    }

    fn slot_of(&self, id: &str) -> u32 {
        self.broker.txns().slot_of(id)
    }

    fn visit(&self, look: &mut dyn FnMut(&Arc<str>, &TxnEntry)) -> Vec<SlotGap> {
        self.broker.txns().visit(look)
    }

    fn transaction(&self, id: &str) -> Result<Option<TxnEntry>, TxnError> {
        self.broker.txns().describe(id)
    }

    fn why_stuck(&self, id: &str) -> Option<Arc<str>> {
        self.broker.txns().why_stuck(id)
    }

    fn history<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<HistoryView, String>> {
        Box::pin(async move {
            let read = self.history.read(self.slot_of(id), id).await?;
            let counters = self.history.counters();
            let lost = [&counters.dropped, &counters.failed];
            Ok(HistoryView {
                lines: read.lines,
                unreadable: read.unreadable,
                lost: lost.map(|count| count.load(Ordering::Relaxed)).iter().sum(),
            })
        })
    }

    fn partition(
        &self,
        topic: &str,
        partition: i32,
        look: Look<'_>,
    ) -> Result<PartitionView, NoPartition> {
        let partition = self.found(topic, partition)?;
        let (visible, ()) = partition.look(look);
        Ok(PartitionView {
            topic_id: partition.id().topic.to_string(),
            leader_epoch: partition.epoch().0,
            log_start: visible.log_start,
            high_watermark: visible.high_watermark,
            last_stable: visible.last_stable,
            expiration_ms: self.broker.config().producer_id_expiration_ms,
        })
    }

    fn bounds(&self, topic: &str, partition: i32) -> Option<Bounds> {
        let visible = self.found(topic, partition).ok()?.visible();
        Some(Bounds {
            high_watermark: visible.high_watermark,
            last_stable: visible.last_stable,
        })
    }

    fn held_back(&self, max: usize) -> (Vec<(String, i32)>, usize) {
        let mut found = Vec::new();
        let mut count = 0;
        for topic in self.broker.topics() {
            for (index, partition) in (0..).zip(&topic.partitions) {
                let visible = partition.visible();
                if visible.last_stable < visible.high_watermark {
                    count += 1;
                    if found.len() < max {
                        found.push((topic.name.to_string(), index));
                    }
                }
            }
        }
        (found, count)
    }

    fn group(&self, group: &str) -> Result<Option<Arc<OffsetTable>>, GroupError> {
        self.broker.offsets().table(group)
    }

    fn fences(&self) -> BoxFuture<'_, Result<Vec<Found<FencesFile>>, String>> {
        Box::pin(self.files.ask(|files| async move {
            let found = files.fences().await;
            found.map_err(|error| error.to_string())
        }))
    }

    fn marker_queue(&self) -> BoxFuture<'_, Result<(Vec<QueuedMarkers>, usize), String>> {
        Box::pin(self.files.ask(|files| async move {
            let found = files.queues().await;
            found.map_err(|error| error.to_string())
        }))
    }

    fn id_blocks(&self) -> BoxFuture<'_, Result<Vec<Found<IdBlockFile>>, String>> {
        Box::pin(self.files.ask(|files| async move {
            let found = files.id_blocks().await;
            found.map_err(|error| error.to_string())
        }))
    }

    fn abort<'a>(
        &'a self,
        id: &'a str,
        (pid, epoch): (i64, i16),
        txn_seq: u64,
    ) -> BoxFuture<'a, Result<(), TxnError>> {
        let session = Session {
            pid: ProducerId(pid),
            epoch: ProducerEpoch(epoch),
        };
        let txns = self.broker.txns();
        Box::pin(txns.abort(id, Some(session), Some(txn_seq)))
    }

    fn reap(&self) -> BoxFuture<'_, Pass> {
        let txns = self.broker.txns();
        let due = txns.overdue(self.env.clock.wall_ms());
        let reap = move |id: Arc<str>| async move {
            let reaped = txns.reap(&id).await;
            reaped.map_err(|error| error.to_string())
        };
        Box::pin(pass(due, reap))
    }

    fn reconcile(&self) -> BoxFuture<'_, Pass> {
        Box::pin(finish(self.broker.txns().clone()))
    }

    fn hold(&self, transactional_id: Option<&str>) -> Option<HoldView> {
        let known = transactional_id.and_then(|id| self.transaction(id).ok().flatten());
        let pid = known.map(|entry| entry.pid);
        self.holds.add(transactional_id, pid).map(hold_view)
    }

    fn release(&self, number: u64) -> bool {
        let found = self.holds.release(number);
        if found {
            let txns = self.broker.txns().clone();
            self.spawn(Box::pin(async move {
                finish(txns).await;
            }));
        }
        found
    }

    fn holds(&self) -> Vec<HoldView> {
        self.holds.list().into_iter().map(hold_view).collect()
    }
}

fn hold_view(hold: Hold) -> HoldView {
    HoldView {
        number: hold.number,
        transactional_id: hold.transactional_id.map(|id| id.to_string()),
        since_ms: hold.since_ms,
        orders: hold.orders,
    }
}

/// Carries out what is decided, and has written what was only derived.
async fn finish(txns: Txns) -> Pass {
    let due = txns.unfinished();
    let one = txns.clone();
    let reconcile = move |id: Arc<str>| {
        let txns = one.clone();
        async move {
            match txns.reconcile(&id).await {
                Ok(true) => Ok(true),
                Ok(false) => Err(match txns.why_stuck(&id) {
                    Some(why) => why.to_string(),
                    None => "it is being carried out".to_owned(),
                }),
                Err(error) => Err(error.to_string()),
            }
        }
    };
    let pass = pass(due, reconcile).await;
    txns.flush();
    pass
}

/// Has `one` take care of each; whether there was anything to do.
async fn pass<F: Future<Output = Result<bool, String>> + Send>(
    due: Vec<Arc<str>>,
    one: impl Fn(Arc<str>) -> F + Send,
) -> Pass {
    let remaining = due.len().saturating_sub(PASS_MAX);
    let due = due.into_iter().take(PASS_MAX);
    let jobs = due.map(|id| {
        let job = one(Arc::clone(&id));
        async move { (id.to_string(), job.await) }
    });
    let jobs: Vec<_> = jobs.collect();
    let mut outcomes = stream::iter(jobs).buffer_unordered(AT_ONCE);
    let mut pass = Pass {
        remaining,
        ..Pass::default()
    };
    while let Some((id, outcome)) = outcomes.next().await {
        match outcome {
            Ok(true) => pass.done.push(id),
            // What ended in between was ended by somebody else.
            Ok(false) => {}
            Err(error) => pass.failed.push((id, error)),
        }
    }
    pass.done.sort_unstable();
    pass.failed.sort_unstable();
    pass
}

type Read = Box<dyn FnOnce(SharedFiles) -> BoxFuture<'static, ()> + Send>;

/// Does jobs one after the other, where nobody else waits for the thread. When the sender is
/// dropped its task ends.
fn start_worker(env: &Env) -> mpsc::Sender<Job> {
    let (jobs, mut queue) = mpsc::channel::<Job>(JOBS_MAX);
    let task = async move {
        while let Some(job) = queue.recv().await {
            // A defect in one answer is none of the others.
            if std::panic::catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("a request of the admin surface could not be answered");
            }
        }
    };
    drop(env.runtime.spawn_io("admin-work", Box::pin(task)));
    jobs
}

/// Reads files of the volume, one job at a time. When it is dropped its task ends.
#[derive(Debug)]
struct IoTask(mpsc::Sender<Read>);

impl IoTask {
    fn start(env: &Env, volume: Arc<dyn Volume>) -> Self {
        let (jobs, mut queue) = mpsc::channel::<Read>(JOBS_MAX);
        let task = async move {
            while let Some(job) = queue.recv().await {
                job(SharedFiles(Arc::clone(&volume))).await;
            }
        };
        drop(env.runtime.spawn_io("admin-files", Box::pin(task)));
        Self(jobs)
    }

    async fn ask<T: Send + 'static, F: Future<Output = Result<T, String>> + Send + 'static>(
        &self,
        read: impl FnOnce(SharedFiles) -> F + Send + 'static,
    ) -> Result<T, String> {
        let (done, wait) = oneshot::channel();
        let job: Read = Box::new(move |files| {
            Box::pin(async move {
                if done.send(read(files).await).is_err() {
                    tracing::debug!("nobody waits for these files any more");
                }
            })
        });
        let stopped = || "the broker stops".to_owned();
        self.0.send(job).await.map_err(|_| stopped())?;
        wait.await.unwrap_or_else(|_| Err(stopped()))
    }
}

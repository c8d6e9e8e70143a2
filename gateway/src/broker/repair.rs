//! Opens again what its storage closed: shards, and the partitions in them.
//!
//! A full disk, a failed read, a volume that was away: such reasons pass by themselves, and nobody
//! should have to restart a broker for them. Damage does not pass, and what another broker took
//! over is not ours to open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use store_adapter::ids::ShardId;
use store_adapter::runtime::{BoxFuture, Told};
use store_adapter::store::{ShardInfo, StoreError};

use super::Broker;
use super::alter::BROKER_KEPT;
use super::hosted::KEPT;
use crate::partition::AppendError;

/// How often shards are looked at when nothing is known to be closed.
const LOOK: Duration = Duration::from_secs(5);
/// Between two tries: at first, and at most.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// What of the broker serves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Condition {
    /// Partitions.
    pub partitions: usize,
    /// Partitions that their storage does not serve.
    pub offline: usize,
    /// One of these, with the reason.
    pub example: Option<String>,
    /// Partitions at whose end records are gone that had been durable.
    pub cut: usize,
    /// One of these.
    pub cut_example: Option<String>,
    /// A topic with configs that are not in force, and why.
    pub refused: Option<String>,
    /// Shards that this broker owns.
    pub shards: usize,
    /// Shards that are not open, with the reasons.
    pub closed: Vec<String>,
}

/// Logs what is to be known of a shard that was opened.
pub fn report_opened(opened: &ShardInfo) {
    for (log, error) in &opened.damaged {
        tracing::error!(%log, %error, "log is damaged and offline");
    }
    if opened.dropped_tail_bytes > 0 {
        let (shard, bytes) = (opened.shard.0, opened.dropped_tail_bytes);
        tracing::info!(shard, bytes, "dropped a torn tail");
    }
}

impl Broker {
    /// What is stored and not in force: of the broker, else of the first topic that has such.
    fn refused_configs(&self) -> Option<String> {
        let defaults = self.topic_defaults();
        if !defaults.refused.is_empty() {
            return Some(format!("{}; {BROKER_KEPT}", defaults.refused.join("; ")));
        }
        let topics = self.topics();
        let mut refused = topics.iter().filter(|topic| !topic.refused.is_empty());
        let first = refused.next()?;
        let why = first.refused.join("; ");
        let others = match refused.count() {
            0 => String::new(),
            others => format!("; and of {others} other topics"),
        };
        Some(format!("{}: {why}; {KEPT}{others}", first.name))
    }

    /// What of it serves; without I/O.
    pub fn condition(&self) -> Condition {
        let mut condition = Condition::default();
        for (shard, _) in self.catalogue.shards() {
            condition.shards += 1;
            if let Err(error) = self.store.check_shard(shard) {
                condition.closed.push(format!("shard {}: {error}", shard.0));
            }
        }
        condition.refused = self.refused_configs();
        for partition in self.hosted.partitions() {
            condition.partitions += 1;
            let number = partition.id().partition;
            let missing = partition.missing();
            if missing > 0 {
                condition.cut += 1;
                let lacks = || format!("{missing} of {}-{number}", partition.topic());
                condition.cut_example.get_or_insert_with(lacks);
            }
            if let Some(reason) = partition.unavailable() {
                condition.offline += 1;
                let name = || format!("{}-{number}: {reason}", partition.topic());
                condition.example.get_or_insert_with(name);
            }
        }
        condition
    }

    pub(super) fn start_repair(self: &Arc<Self>) {
        let broker = Arc::downgrade(self);
        let (repair, stopping) = (self.repair.clone(), self.stopping.clone());
        let clock = self.env.clock.clone();
        let task: BoxFuture<'static, ()> = Box::pin(async move {
            let mut failing: Option<Duration> = None;
            let mut told = BTreeMap::new();
            loop {
                let wait = failing.unwrap_or(LOOK);
                tokio::select! {
                    biased;
                    () = stopping.cancelled() => return,
                    () = clock.sleep(wait) => {}
                    () = repair.notified(), if failing.is_none() => {}
                }
                let Some(broker) = broker.upgrade() else {
                    return;
                };
                failing = match broker.repair(&mut told).await {
                    Ok(()) => None,
                    Err(error) => {
                        tracing::debug!(%error, "not opened again yet");
                        let next = failing.map_or(RETRY_MIN, |last| last * 2);
                        Some(next.min(RETRY_MAX))
                    }
                };
            }
        });
        drop(self.env.runtime.spawn("repair", task));
    }

    /// Tries once to open what is closed and may be opened again.
    async fn repair(&self, told: &mut BTreeMap<ShardId, Told>) -> Result<(), StoreError> {
        // A topic that is being deleted must not get its logs back.
        let _one_at_a_time = self.hosted.changing.lock().await;
        let mut outcome = self.repair_shards(told).await;
        for topic in self.topics() {
            for (partition, shard) in topic.partitions.iter().zip(&topic.shards) {
                let closed = partition.unavailable();
                if !closed.as_ref().is_some_and(AppendError::may_pass) {
                    continue;
                }
                let opened = match self.store.check_shard(*shard) {
                    Ok(()) => self.open_partition(partition, *shard).await,
                    Err(error) => Err(error),
                };
                let number = partition.id().partition;
                match opened {
                    Ok(()) => {
                        let topic = &*topic.name;
                        tracing::info!(topic, partition = number, "partition open again");
                    }
                    // No other one fares better.
                    Err(error @ StoreError::Full { .. }) => return Err(error),
                    Err(error) => outcome = outcome.and(Err(error)),
                }
            }
        }
        outcome
    }

    async fn repair_shards(&self, told: &mut BTreeMap<ShardId, Told>) -> Result<(), StoreError> {
        let mut outcome = Ok(());
        for (shard, owner) in self.catalogue.shards() {
            let Err(error) = self.store.check_shard(shard) else {
                continue;
            };
            if !AppendError::from(error).may_pass() {
                continue;
            }
            match self.store.open_shard(shard, owner).await {
                Ok(opened) => {
                    tracing::info!(shard = shard.0, "shard open again");
                    told.remove(&shard);
                    report_opened(&opened);
                }
                Err(error) => {
                    let now = self.env.clock.monotonic();
                    log_not_opened(shard, &error, || told.entry(shard).or_default().is_due(now));
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }
}

fn log_not_opened(shard: ShardId, error: &StoreError, due: impl FnOnce() -> bool) {
    // Of a full disk it is said once where it began.
    if !matches!(error, StoreError::Full { .. }) && due() {
        tracing::warn!(shard = shard.0, %error, "shard not opened again yet; it is tried again");
    } else {
        tracing::debug!(shard = shard.0, %error, "shard not opened again yet");
    }
}

//! Looks at the partitions of compacted topics now and then, and compacts those that need it.

use std::collections::BTreeMap;
use std::sync::Arc;

use store_adapter::ids::ShardId;
use store_adapter::runtime::BoxFuture;

use super::Broker;
use crate::partition::{Compacted, CompactionPass, Partition, TrimError, compact_together};

/// Looks between two files that are closed for the sake of compaction: every file costs a handle
/// and a place in memory.
const SEAL_EVERY: u32 = 4;

/// `log.cleaner.*`.
#[derive(Debug, Clone, Copy)]
pub struct CleanerConfig {
    /// `log.cleaner.enable`.
    pub enable: bool,
    /// `log.cleaner.backoff.ms`.
    pub backoff: std::time::Duration,
    /// `log.cleaner.dedupe.buffer.size`.
    pub dedupe_bytes: usize,
}

impl Broker {
    /// Looks every `log.cleaner.backoff.ms`. One partition after the other, on a thread of its own:
    /// records are unpacked. Those of one shard are rewritten together.
    pub(super) fn start_compaction(self: &Arc<Self>) {
        let config = self.config.cleaner;
        if !config.enable {
            return;
        }
        let broker = Arc::downgrade(self);
        let clock = self.env.clock.clone();
        let stopping = self.stopping.clone();
        let task: BoxFuture<'static, ()> = Box::pin(async move {
            let (mut looks, mut told) = (SEAL_EVERY, false);
            loop {
                tokio::select! {
                    biased;
                    () = stopping.cancelled() => return,
                    () = clock.sleep(config.backoff) => {}
                }
                let Some(broker) = broker.upgrade() else {
                    return;
                };
                looks = looks.saturating_add(1);
                told = told || broker.tells_that_nothing_is_compacted();
                let mut sealed = false;
                let may_seal = looks >= SEAL_EVERY;
                for partitions in broker.compacted().into_values() {
                    let pass = |partition: &Partition| broker.pass_of(partition, may_seal);
                    let mut tell = |partition: &Partition, done| {
                        sealed |= matches!(&done, Ok(Some(Compacted { sealed: true, .. })));
                        broker.note(partition, done);
                    };
                    tokio::select! {
                        biased;
                        () = stopping.cancelled() => return,
                        () = compact_together(partitions, &pass, &mut tell) => {}
                    }
                }
                if sealed {
                    looks = 0;
                }
            }
        });
        drop(self.env.runtime.spawn_io("compaction", task));
    }

    /// Says that the store does not compact, if it does not and somebody wants it to.
    fn tells_that_nothing_is_compacted(&self) -> bool {
        let topics = self.topics();
        let compacted = topics.iter().filter(|topic| topic.rules.compact);
        let mut partitions = compacted.flat_map(|topic| &topic.partitions);
        let kept = partitions.find(|partition| {
            let log = partition.id();
            let unsettled = || self.store.settled(log).is_none();
            // Asked again: its shard may have been opened between the two questions.
            unsettled() && self.store.bounds(log).is_some() && unsettled()
        });
        if let Some(partition) = kept {
            let topic = partition.topic();
            tracing::warn!(%topic, "the store does not compact: compacted topics keep everything");
        }
        kept.is_some()
    }

    /// The partitions of compacted topics, by the shard whose files they share.
    fn compacted(&self) -> BTreeMap<ShardId, Vec<Arc<Partition>>> {
        let mut shards: BTreeMap<ShardId, Vec<_>> = BTreeMap::new();
        let topics = self.topics();
        let compacted = topics.iter().filter(|topic| topic.rules.compact);
        for topic in compacted.filter(|topic| topic.reclaims()) {
            for (partition, shard) in topic.partitions.iter().zip(&topic.shards) {
                shards
                    .entry(*shard)
                    .or_default()
                    .push(Arc::clone(partition));
            }
        }
        shards
    }

    /// How a partition is to be compacted as its topic is now; `None`: not at all.
    fn pass_of(&self, partition: &Partition, may_seal: bool) -> Option<CompactionPass> {
        let topic = self.topic_by_id(partition.id().topic)?;
        let compacted = topic.rules.compact && topic.reclaims();
        compacted.then_some(CompactionPass {
            rules: topic.rules.compaction,
            retention: topic.rules.retention,
            budget: self.config.cleaner.dedupe_bytes,
            may_seal,
        })
    }

    fn note(&self, partition: &Partition, done: Result<Option<Compacted>, TrimError>) {
        let log = partition.id();
        match done {
            Ok(Some(done)) => {
                self.compactions.count(&done);
                let upto = done.rewritten.upto;
                tracing::debug!(topic = %partition.topic(), %log, upto, "a partition is compacted");
            }
            // Its storage or its leadership is gone, which is said elsewhere, or it was trimmed.
            Ok(None)
            | Err(TrimError::NotLeader | TrimError::Storage(_) | TrimError::OffsetOutOfRange) => {}
            Err(error) => {
                tracing::warn!(%log, %error, "compaction is tried again at the next look");
            }
        }
    }
}

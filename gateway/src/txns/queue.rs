//! What other brokers have queued for this one. A lone broker has nothing in its queue.

use std::collections::BTreeSet;
use std::sync::Arc;

use coordinator::machine::group::offsets::{TxnEnd, TxnNumber};
use coordinator::machine::txn::{Groups, Home, TopicIds, TopicPartitions};
use coordinator::service::groups::Offsets;
use coordinator::service::marker_queue::{MarkerQueues, QueueFileError, Received};
use coordinator::service::txns::{GroupDecisions, Homes, PortError};
use parking_lot::Mutex;
use store_adapter::ids::{ProducerEpoch, ProducerId};
use store_adapter::runtime::BoxFuture;

use super::{LocalMarkers, NodeHomes};
use crate::partition::Marker;

/// Producers whose entries are carried out at a time.
const RECEIVED_MAX: usize = 4096;

/// What the passes over queues work with.
#[derive(Debug, Clone)]
pub struct QueuePasses {
    /// The files.
    pub queues: MarkerQueues,
    /// Who leads what.
    pub homes: Arc<NodeHomes>,
    /// Partitions of this broker.
    pub markers: Arc<LocalMarkers>,
    /// Groups of this broker.
    pub offsets: Offsets,
    /// Producers whose entries are being carried out.
    pub busy: Arc<Mutex<BTreeSet<ProducerId>>>,
}

/// What of an entry is for this broker.
#[derive(Debug, Default)]
struct Share {
    partitions: TopicPartitions,
    ids: TopicIds,
    groups: Groups,
    /// Some of it is for another broker, or has no home now.
    rest: bool,
}

impl QueuePasses {
    /// What carries out what is in the own queue: what this broker leads of it, of each producer
    /// one entry after the other. An entry of which nothing is left is said to be done; of others
    /// its owner makes new ones. Producers whose entries are still being carried out since an
    /// earlier look are left out.
    ///
    /// # Errors
    /// If the queue can't be read.
    pub async fn receive(&self) -> Result<Vec<BoxFuture<'static, ()>>, QueueFileError> {
        let received = self.queues.received().await?;
        let mut works: Vec<BoxFuture<'static, ()>> = Vec::new();
        for of_one in received.chunk_by(|one, next| one.pid == next.pid) {
            let Some(pid) = of_one.first().map(|one| one.pid) else {
                continue;
            };
            let mut busy = self.busy.lock();
            if busy.len() < RECEIVED_MAX && busy.insert(pid) {
                let work = self.clone().carry_out_all(pid, of_one.to_vec());
                works.push(Box::pin(work));
            }
        }
        Ok(works)
    }

    async fn carry_out_all(self, pid: ProducerId, entries: Vec<Received>) {
        for one in entries {
            let (pid, txn_seq) = (one.pid.0, one.file.txn_seq);
            match self.carry_out(&one).await {
                Ok(true) => {
                    if let Err(error) = self.queues.done(&one).await {
                        tracing::warn!(pid, txn_seq, %error, "queued markers are not confirmed");
                    }
                }
                Ok(false) => tracing::debug!(pid, txn_seq, "queued markers are not all for here"),
                Err(error) => tracing::warn!(pid, txn_seq, %error, "queued markers wait"),
            }
        }
        self.busy.lock().remove(&pid);
    }

    async fn carry_out(&self, one: &Received) -> Result<bool, PortError> {
        let share = self.share(one);
        let file = &one.file;
        let marker = Marker {
            producer_id: one.pid,
            producer_epoch: ProducerEpoch(file.producer_epoch),
            commit: file.commit,
            coordinator_epoch: file.coordinator_epoch,
            txn_seq: file.txn_seq,
        };
        self.markers
            .write_to(&share.partitions, &share.ids, marker)
            .await?;
        if let Some(txn_seq) = file.txn_seq
            && !share.groups.is_empty()
        {
            // Behind the markers: offsets show when the records do.
            let end = TxnEnd {
                producer_id: one.pid,
                number: TxnNumber {
                    epoch: one.record_epoch,
                    txn_seq,
                },
                commit: file.commit,
            };
            GroupDecisions::decide(&self.offsets, share.groups, end).await?;
        }
        Ok(!share.rest)
    }

    fn share(&self, one: &Received) -> Share {
        let mut share = Share::default();
        for entry in &one.file.partitions {
            let topic: Arc<str> = entry.topic.as_str().into();
            let id = one.file.topic_ids.get(&entry.topic).copied();
            for partition in &entry.partitions {
                match self.homes.partition(&topic, id, *partition) {
                    Home::Here => {
                        let known = share.partitions.entry(topic.clone()).or_default();
                        known.insert(*partition);
                        share.ids.extend(id.map(|id| (topic.clone(), id)));
                    }
                    // The tombstone is the proof.
                    Home::Deleted => {}
                    Home::Broker(_) | Home::Unknown => share.rest = true,
                }
            }
        }
        for group in &one.file.groups {
            match self.homes.group(group) {
                Home::Here => drop(share.groups.insert(group.as_str().into())),
                Home::Broker(_) | Home::Deleted | Home::Unknown => share.rest = true,
            }
        }
        share
    }
}

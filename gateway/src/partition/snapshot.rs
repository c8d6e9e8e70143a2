//! Snapshots of producer state: when they are taken, and the port by which they are kept.
//!
//! A snapshot describes durable state only. It makes opening short and is never needed for being
//! right: without one the whole log is replayed.

use std::fmt::Debug;
use std::sync::Arc;

use coordinator::machine::producer::Image;
use coordinator::volume::format::Restored;
use store_adapter::ids::{LeaderEpoch, LogId};
use store_adapter::runtime::BoxFuture;

use super::{Partition, State, Visible};

/// Bytes of a partition that became durable between two snapshots.
const SNAPSHOT_BYTES: u64 = 64 << 20;

/// Durable state of a partition at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionSnapshot {
    /// The log.
    pub log: LogId,
    /// Leader epoch.
    pub epoch: LeaderEpoch,
    /// Bounds.
    pub visible: Visible,
    /// Producers and transactions.
    pub image: Image,
}

/// Where snapshots are kept.
pub trait SnapshotFiles: Send + Sync + Debug + 'static {
    /// The snapshot of a log; `None` when there is none, or it is damaged (and was reported).
    fn read(&self, log: LogId) -> BoxFuture<'_, Option<Restored>>;
    /// Replaces the snapshot, durably. An error leaves the old one, or the new one.
    fn write(&self, snapshot: PartitionSnapshot) -> BoxFuture<'_, Result<(), String>>;
}

impl State {
    /// Whether enough became durable since the last snapshot; if so, starts counting anew.
    pub(super) fn snapshot_due(&mut self) -> bool {
        let due = self.bytes_since_snapshot >= SNAPSHOT_BYTES;
        if due {
            self.bytes_since_snapshot = 0;
        }
        due
    }
}

impl Partition {
    /// The durable state now.
    pub fn snapshot(&self) -> PartitionSnapshot {
        let state = self.state.lock();
        PartitionSnapshot {
            log: self.id,
            epoch: self.epoch,
            visible: *self.visible.borrow(),
            image: state.producers.image(),
        }
    }

    /// Writes a snapshot in the background.
    pub(super) fn write_snapshot_later(self: &Arc<Self>) {
        let partition = self.clone();
        let task = Box::pin(async move {
            if let Err(error) = partition.write_snapshot().await {
                tracing::warn!(log = %partition.id, %error, "producer snapshot not written");
            }
        });
        drop(self.deps.env.runtime.spawn("snapshot", task));
    }

    /// Writes a snapshot; done when it is durable.
    pub async fn write_snapshot(&self) -> Result<(), String> {
        let _one_at_a_time = self.snapshotting.lock().await;
        self.deps.snapshots.write(self.snapshot()).await
    }

    /// At the end of leadership: a snapshot, if anything became durable since the last one.
    pub async fn relinquish(&self) {
        let changed = {
            let mut state = self.state.lock();
            std::mem::take(&mut state.bytes_since_snapshot) > 0
        };
        if !changed {
            return;
        }
        if let Err(error) = self.write_snapshot().await {
            tracing::warn!(log = %self.id, %error, "producer snapshot not written");
        }
    }
}

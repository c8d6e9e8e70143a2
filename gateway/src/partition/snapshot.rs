//! Snapshots of producer state: when they are taken, and the port by which they are kept.
//!
//! A snapshot describes durable state only. It makes opening short and is never needed for being
//! right: without one the whole log is replayed.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use coordinator::machine::producer::Image;
use coordinator::volume::format::Restored;
use store_adapter::ids::{LeaderEpoch, LogId};
use store_adapter::runtime::BoxFuture;
use tokio::sync::Semaphore;

use super::{Partition, State, Visible};

/// Bytes of a partition that became durable between two snapshots, at most.
const SNAPSHOT_BYTES: u64 = 64 << 20;
/// Bytes of all partitions that are in no snapshot, beyond which one is taken of each that has
/// [`WORTH_BYTES`] of them: whoever starts after a kill replays them all. At 1 GB a second that is
/// two seconds.
const ALL_BYTES: u64 = 2 << 30;
/// Bytes that are worth a snapshot, which costs some six syncs.
const WORTH_BYTES: u64 = 2 << 20;
/// Snapshots that are written at a time in the background.
const WRITING_MAX: usize = 4;

/// What the partitions of a broker share, so that snapshots are taken when they are due and not all
/// at once.
#[derive(Debug)]
pub struct SnapshotPace {
    /// Durable bytes that are in no snapshot.
    unsaved: AtomicU64,
    writing: Semaphore,
}

impl Default for SnapshotPace {
    fn default() -> Self {
        Self {
            unsaved: AtomicU64::new(0),
            writing: Semaphore::new(WRITING_MAX),
        }
    }
}

/// Durable bytes of one partition that are in no snapshot; those of all know of them.
#[derive(Debug)]
pub(super) struct Unsaved {
    own: u64,
    pace: Arc<SnapshotPace>,
}

impl Unsaved {
    pub(super) fn new(pace: Arc<SnapshotPace>) -> Self {
        Self { own: 0, pace }
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.own += bytes;
        self.pace.unsaved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A snapshot has them; whether there were some.
    pub(super) fn clear(&mut self) -> bool {
        let own = std::mem::take(&mut self.own);
        self.pace.unsaved.fetch_sub(own, Ordering::Relaxed);
        own > 0
    }

    /// Whether they are enough for a snapshot.
    fn are_due(&self) -> bool {
        let crowded = || self.pace.unsaved.load(Ordering::Relaxed) >= ALL_BYTES;
        self.own >= SNAPSHOT_BYTES || (self.own >= WORTH_BYTES && crowded())
    }
}

impl Drop for Unsaved {
    fn drop(&mut self) {
        self.clear();
    }
}

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
        self.unsaved.are_due() && self.unsaved.clear()
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
            // The semaphore is never closed.
            let _turn = partition.deps.snapshot_pace.writing.acquire().await;
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

    /// Durable bytes that are in no snapshot.
    pub fn unsaved(&self) -> u64 {
        self.state.lock().unsaved.own
    }

    /// At the end of leadership: a snapshot, if anything became durable since the last one.
    pub async fn relinquish(&self) {
        let changed = self.state.lock().unsaved.clear();
        if !changed {
            return;
        }
        if let Err(error) = self.write_snapshot().await {
            tracing::warn!(log = %self.id, %error, "producer snapshot not written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_due_by_what_is_in_none() {
        let pace: Arc<SnapshotPace> = Arc::default();
        let new = || Unsaved::new(Arc::clone(&pace));
        let (mut large, mut small) = (new(), new());
        large.add((64 << 20) - 1);
        small.add(2 << 20);
        assert!(!large.are_due() && !small.are_due());
        large.add(1);
        assert!(large.are_due());
        assert!(large.clear() && !large.clear());
        // Many others have little, and all together much.
        let others = std::iter::repeat_with(|| {
            let mut other = new();
            other.add(2 << 20);
            other
        });
        let others: Vec<_> = others.take(1024).collect();
        assert!(small.are_due() && !large.are_due());
        large.add((2 << 20) - 1);
        assert!(!large.are_due(), "it is not worth it");
        // Partitions that are gone leave nothing.
        drop(others);
        assert!(!small.are_due());
    }
}

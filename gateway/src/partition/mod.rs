//! One partition that this broker leads: producer state, bounds, the append path and reads.
//!
//! Invariants, cited by asserts, tests and checkers:
//! - `INV-P1` a batch is classified and queued under the partition lock; the lock is never held
//!   across a write, an fsync or an await.
//! - `INV-P2` the durable window, the high watermark and the last stable offset move when the
//!   commit is known, never at append.
//! - `INV-P3` a failed or uncertain commit fails every batch queued behind it, drops the tail, and
//!   the log's end is read again before the next batch is classified.
//!
//! Lock order: the partition lock is taken alone, except that the store's queue is entered, and the
//! table of fences is read, under it.

mod append;
mod caught_up;
mod compaction;
mod epochs;
mod error;
mod guard;
mod judge;
mod lane;
#[cfg(test)]
mod looks_tests;
mod marker;
mod open;
#[cfg(test)]
mod overtaken_tests;
mod read;
mod retention;
mod snapshot;
#[cfg(test)]
mod testing;
mod trim;
#[cfg(test)]
mod txn_tests;
pub mod validate;
mod visible;

use std::sync::Arc;

use coordinator::machine::producer::ProducerStates;
use coordinator::service::fences::FenceTable;
use parking_lot::Mutex;
use store_adapter::ids::{LeaderEpoch, LogId};
use store_adapter::runtime::Env;
use store_adapter::store::LogStore;
use store_adapter::volume::SpaceWatch;
use tokio::sync::{Notify, Semaphore, watch};

use crate::metrics::{ProduceClassified, StoreRefusals};
use visible::UNCOUNTED;

pub use append::{Appended, Ticket};
pub use compaction::{
    Aborted, Compacted, CompactionPass, CompactionRules, LastWritten, Look, NewestOffsets, Plan,
    Planner, Scan, Survivors, WHOLE, compact_together, last_written,
};
pub use epochs::EpochEnd;
pub use error::{AppendError, ReadError};
pub use guard::{Guard, Opening};
pub use judge::UNPACKED_ON_WORKER_MAX;
pub use lane::Lane;
pub use marker::Marker;
pub use open::Reopening;
pub use read::{Isolation, ListedOffset, ReadOutcome};
pub use retention::{Held, Judge, RetentionRules, keeps_all};
pub use snapshot::{PartitionSnapshot, SnapshotFiles, SnapshotPace};
pub use trim::TrimError;
pub use visible::Visible;

/// Whether the partition appends.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Status {
    /// It does.
    Open,
    /// A commit failed; the log's end is being read again.
    Settling,
    /// It does not until it is opened anew.
    Closed(AppendError),
}

impl Status {
    /// Whether the partition is closed because of its storage.
    fn is_of_storage(&self) -> bool {
        matches!(self, Self::Closed(reason) if reason.is_of_storage())
    }
}

/// What the partition lock guards.
#[derive(Debug)]
struct State {
    status: Status,
    producers: ProducerStates,
    /// First batches whose coordinator is being asked.
    guards: guard::Guards,
    /// Where the next batch goes: behind everything queued.
    next_offset: i64,
    /// Grows when the tail is dropped; a queued batch of an older generation has failed.
    generation: u64,
    /// What became durable since the last snapshot was taken.
    unsaved: snapshot::Unsaved,
    /// Grows when aborted transactions are forgotten of which nothing is left.
    aborted_forgotten: u64,
    /// Offsets at the end of the log that had been durable, and were gone when it was opened.
    missing: i64,
}

/// What a partition needs from around it.
#[derive(Debug, Clone)]
pub struct PartitionDeps {
    /// Clock and tasks.
    pub env: Env,
    /// The records.
    pub store: Arc<dyn LogStore>,
    /// The lane of the partition's shard: applies commits in order.
    pub lane: Lane,
    /// Snapshot files on the volume.
    pub snapshots: Arc<dyn SnapshotFiles>,
    /// When they are due, of all partitions.
    pub snapshot_pace: Arc<SnapshotPace>,
    /// Producers whose older sessions append nowhere any more.
    pub fences: Arc<FenceTable>,
    /// Counts batches by their class.
    pub classified: Arc<ProduceClassified>,
    /// Counts what the store refuses.
    pub refusals: Arc<StoreRefusals>,
    /// Told when a partition closed that may be opened again.
    pub repair: Arc<Notify>,
    /// Makes way for deletions on a full volume.
    pub space: Option<SpaceWatch>,
    /// One for each batch that may be unpacked at a time, of all partitions.
    pub unpacking: Arc<Semaphore>,
}

/// Batches that are unpacked at a time, to find a record or to be judged: each may take 64 MiB.
pub const UNPACKING_MAX: usize = 2;

/// A partition that this broker leads.
#[derive(Debug)]
pub struct Partition {
    id: LogId,
    topic: Arc<str>,
    epoch: LeaderEpoch,
    expiration_ms: i64,
    deps: PartitionDeps,
    state: Mutex<State>,
    visible: watch::Sender<Visible>,
    /// Held while a snapshot is written, so that none takes the place of a newer one.
    snapshotting: tokio::sync::Mutex<()>,
    /// What compaction remembers. Taken alone.
    cleaned: Mutex<compaction::Cleaned>,
    /// What retention remembers. Taken alone.
    oldest: retention::Oldest,
}

impl Partition {
    /// The log.
    pub fn id(&self) -> LogId {
        self.id
    }

    /// The topic's name.
    pub fn topic(&self) -> &Arc<str> {
        &self.topic
    }

    /// The leader epoch under which the log was acquired.
    pub fn epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    /// What readers may see now.
    pub fn visible(&self) -> Visible {
        *self.visible.borrow()
    }

    /// Shows the durable producers, with the bounds of the same moment, under the partition lock:
    /// `look` must be short.
    pub fn look<R>(&self, look: impl FnOnce(&ProducerStates) -> R) -> (Visible, R) {
        let state = self.state.lock();
        (*self.visible.borrow(), look(&state.producers))
    }

    /// Follows what readers may see.
    pub fn watch(&self) -> watch::Receiver<Visible> {
        self.visible.subscribe()
    }

    /// Drops producers whose last append is older than `producer.id.expiration.ms`.
    pub fn expire_producers(&self, now_ms: i64) {
        self.state.lock().producers.expire(now_ms);
    }

    /// Why its storage does not serve it, if it does not.
    pub fn unavailable(&self) -> Option<AppendError> {
        match &self.state.lock().status {
            Status::Closed(reason) if reason.is_of_storage() => Some(reason.clone()),
            Status::Open | Status::Settling | Status::Closed(_) => None,
        }
    }

    /// How many offsets at its end were durable once, and were gone when it was opened.
    pub fn missing(&self) -> i64 {
        self.state.lock().missing
    }

    /// Why nothing of it can be read here, where it was never led by this process.
    pub fn elsewhere(&self) -> Option<AppendError> {
        let state = self.state.lock();
        let never = state.generation == 0 && state.status == Status::Closed(AppendError::NotLeader);
        never.then_some(AppendError::NotLeader)
    }

    /// Whether it appends no more, until it is opened anew.
    pub fn is_closed(&self) -> bool {
        matches!(self.state.lock().status, Status::Closed(_))
    }

    /// Ends appending: the topic is deleted or the broker stops. Whoever waits for records looks
    /// again.
    pub fn close(&self, reason: AppendError) {
        self.state.lock().status = Status::Closed(reason);
        self.visible.send_modify(|_| ());
    }
}

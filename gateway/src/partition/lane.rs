//! The lane of a shard: one task that applies commits in the order in which they were queued.
//!
//! A shard commits whole rounds, so the task wakes once per round and finds the rest of the round
//! ready. It never touches the volume and never waits for anything but the next commit.

use std::sync::Arc;

use store_adapter::runtime::{BoxFuture, Env};
use store_adapter::store::{Commit, StoreError};
use tokio::sync::{mpsc, oneshot};

use super::{AppendError, Appended, Partition, Status, Visible};
use crate::admitted::Admitted;

/// What a lane entry waits for.
#[derive(Debug)]
pub(super) enum Work {
    /// A queued batch.
    Append {
        commit: Commit,
        base_offset: i64,
        last_offset: i64,
        bytes: u64,
        /// Held until the commit is known, whether anybody still waits for it or not.
        _admitted: Admitted,
    },
    /// A batch or marker that one queued before it makes needless.
    Duplicate {
        original: Appended,
        /// As of an append.
        _admitted: Admitted,
    },
}

/// One entry, in the order of the partition lock.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) partition: Arc<Partition>,
    pub(super) generation: u64,
    pub(super) work: Work,
    pub(super) answer: oneshot::Sender<Result<Appended, AppendError>>,
}

/// The sending side of a lane. Its length is bounded by the bytes in flight that the connections
/// admit: every entry belongs to an admitted request, or is a marker of a decided transaction.
#[derive(Debug, Clone)]
pub struct Lane {
    entries: mpsc::UnboundedSender<Entry>,
}

/// Entries taken per wake-up.
const TAKE: usize = 256;

impl Lane {
    /// Starts a lane. The join future completes when every partition of the lane is gone.
    pub fn start(env: &Env, name: &str) -> (Self, BoxFuture<'static, ()>) {
        let (entries, mut queue) = mpsc::unbounded_channel();
        let task = Box::pin(async move {
            let mut taken = Vec::with_capacity(TAKE);
            while queue.recv_many(&mut taken, TAKE).await > 0 {
                for entry in taken.drain(..) {
                    apply(entry).await;
                }
            }
        });
        (Self { entries }, env.runtime.spawn(name, task))
    }

    pub(super) fn send(&self, entry: Entry) -> Result<(), mpsc::error::SendError<Entry>> {
        self.entries.send(entry)
    }
}

async fn apply(entry: Entry) {
    let Entry {
        partition,
        generation,
        work,
        answer,
    } = entry;
    let outcome = match work {
        Work::Append {
            commit,
            base_offset,
            last_offset,
            bytes,
            _admitted,
        } => {
            let committed = commit.await;
            partition.committed(
                generation,
                committed,
                Durable {
                    base_offset,
                    last_offset,
                    bytes,
                },
            )
        }
        Work::Duplicate {
            original,
            _admitted,
        } => {
            if partition.state.lock().generation == generation {
                Ok(original)
            } else {
                Err(AppendError::Uncertain)
            }
        }
    };
    // A client that went away is not waiting; what was ordered stays.
    answer.send(outcome).unwrap_or_default();
}

/// A batch whose commit is known.
#[derive(Debug, Clone, Copy)]
struct Durable {
    base_offset: i64,
    last_offset: i64,
    bytes: u64,
}

impl Partition {
    fn committed(
        self: &Arc<Self>,
        generation: u64,
        outcome: Result<(), StoreError>,
        batch: Durable,
    ) -> Result<Appended, AppendError> {
        if let Err(error) = &outcome {
            self.deps.refusals.count(error);
        }
        let mut state = self.state.lock();
        if state.generation != generation {
            // A batch before this one failed; the log's end decides about this one too.
            return Err(outcome
                .err()
                .map_or(AppendError::Uncertain, AppendError::from));
        }
        if let Err(error) = outcome {
            state.generation += 1;
            state.producers.drop_tail();
            state.status = Status::Settling;
            drop(state);
            self.start_settling();
            return Err(error.into());
        }
        state.producers.commit_through(batch.last_offset);
        state.unsaved.add(batch.bytes);
        let high_watermark = batch.last_offset + 1;
        let last_stable = state.producers.last_stable_offset(high_watermark);
        let snapshot_due = state.snapshot_due();
        // Under the lock, so that two commits are never shown in the wrong order.
        self.visible.send_modify(|visible| {
            *visible = Visible {
                high_watermark,
                last_stable,
                bytes: visible.bytes.wrapping_add(batch.bytes),
                ..*visible
            };
        });
        drop(state);
        if snapshot_due {
            self.write_snapshot_later();
        }
        Ok(Appended {
            base_offset: batch.base_offset,
            log_start: self.visible.borrow().log_start,
            duplicate_of: None,
        })
    }
}

//! Reopening a partition, and finding out where its log ends after a failed commit.
//!
//! The log is the truth: a snapshot is used only if the last batch it covers is in the log with
//! that CRC; what lies behind it is replayed.

use std::sync::Arc;
use std::time::Duration;

use coordinator::machine::producer::{BatchMeta, Image, MarkerInfo, ProducerStates};
use coordinator::volume::format::Restored;
use parking_lot::Mutex;
use store_adapter::batch::BatchHeader;
use store_adapter::control::EndTxnMarker;
use store_adapter::fault::{Fault, planted};
use store_adapter::ids::{LeaderEpoch, LogId};
use store_adapter::store::{Bounds, LogStore, StoreError, StoredBatch};
use tokio::sync::watch;

use super::guard::Guards;
use super::retention::Oldest;
use super::snapshot::Unsaved;
use super::{AppendError, Partition, PartitionDeps, State, Status, UNCOUNTED, Visible, caught_up};

/// Bytes read at a time while replaying.
const REPLAY_BYTES: usize = 1 << 20;
/// Between two tries to find out where a log ends.
const SETTLE_RETRY: Duration = Duration::from_millis(50);

/// A partition on its way to be opened: what its snapshot says, and what was replayed behind it.
#[derive(Debug)]
pub struct Reopening {
    producers: ProducerStates,
    bounds: Bounds,
    /// Where replaying goes on.
    next: i64,
    /// Bytes that were replayed.
    replayed: u64,
}

impl Reopening {
    /// Where replaying goes on; `None` when nothing is left to be replayed.
    pub fn next(&self) -> Option<i64> {
        (self.next < self.bounds.end).then_some(self.next)
    }

    /// Takes the next batch of `log`, whose partition it is.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a batch that is none; then it can't go on.
    pub fn replay(&mut self, log: LogId, batch: &StoredBatch) -> Result<(), StoreError> {
        self.producers.replay(&meta(log, batch)?);
        self.next = batch.last_offset + 1;
        self.replayed += batch.bytes.len() as u64;
        Ok(())
    }
}

impl Partition {
    /// Acquires the log under `epoch` and rebuilds producer state from snapshot and log.
    pub async fn open(
        id: LogId,
        topic: Arc<str>,
        epoch: LeaderEpoch,
        expiration_ms: i64,
        deps: PartitionDeps,
    ) -> Result<Arc<Self>, StoreError> {
        let partition = Self::unopened(id, topic, epoch, expiration_ms, deps);
        partition.reopen().await?;
        Ok(partition)
    }

    /// A partition that is still to be opened by [`Partition::reopen`].
    pub fn unopened(
        id: LogId,
        topic: Arc<str>,
        epoch: LeaderEpoch,
        expiration_ms: i64,
        deps: PartitionDeps,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            topic,
            epoch,
            expiration_ms,
            state: Mutex::new(State {
                status: Status::Closed(AppendError::Settling),
                producers: ProducerStates::new(expiration_ms),
                guards: Guards::default(),
                next_offset: 0,
                generation: 0,
                missing: 0,
                unsaved: Unsaved::new(Arc::clone(&deps.snapshot_pace)),
                aborted_forgotten: 0,
            }),
            deps,
            visible: watch::Sender::new(Visible::default()),
            snapshotting: tokio::sync::Mutex::default(),
            cleaned: Mutex::default(),
            oldest: Oldest::default(),
        })
    }

    /// Opens a partition that its storage closed, or that was not opened yet: acquires the log and
    /// rebuilds producer state from snapshot and log. After an error it says why it is closed.
    pub async fn reopen(&self) -> Result<(), StoreError> {
        let opening = self.begin_opening().await?;
        self.finish_opening(opening).await
    }

    /// The first half of [`Partition::reopen`]: acquires the log and takes what the snapshot says.
    pub async fn begin_opening(&self) -> Result<Reopening, StoreError> {
        let begun = self.restored().await;
        begun.inspect_err(|error| self.not_opened(error))
    }

    /// The second half: replays what is left to be replayed, and serves.
    pub async fn finish_opening(&self, mut opening: Reopening) -> Result<(), StoreError> {
        let (from, end) = (opening.next, opening.bounds.end);
        let replayed = each_batch(&*self.deps.store, self.id, from, end, |batch| {
            opening.replay(self.id, batch)
        });
        if let Err(error) = replayed.await {
            self.not_opened(&error);
            return Err(error);
        }
        self.install(opening);
        Ok(())
    }

    /// Notes why it could not be opened.
    pub fn not_opened(&self, error: &StoreError) {
        self.deps.refusals.count(error);
        let mut state = self.state.lock();
        if state.status.is_of_storage() {
            state.status = Status::Closed(AppendError::from(error.clone()));
        }
    }

    async fn restored(&self) -> Result<Reopening, StoreError> {
        let (id, store) = (self.id, &*self.deps.store);
        let log = store.acquire(id, self.epoch).await?;
        let image = match self.deps.snapshots.read(id).await {
            Some(restored) if covers(store, id, &restored, log.bounds).await? => restored.image,
            Some(restored) => {
                self.look_for_loss(restored.image.log_end_offset, log.bounds.end);
                Image::default()
            }
            None => Image::default(),
        };
        let mut producers = ProducerStates::restore(image, self.expiration_ms);
        producers.trim(log.bounds.start);
        let next = if planted(Fault::WindowNotReplayed) {
            log.bounds.end
        } else {
            producers.log_end_offset().max(log.bounds.start)
        };
        Ok(Reopening {
            producers,
            bounds: log.bounds,
            next,
            replayed: 0,
        })
    }

    /// A snapshot describes what was durable: where it goes further than the log, the log's end is
    /// lost. (With `flush.policy=os` a power cut may do that.)
    fn look_for_loss(&self, covered: i64, end: i64) {
        let log = self.id;
        if covered <= end {
            tracing::warn!(%log, "snapshot does not belong to the log: replaying it all");
            return;
        }
        let missing = covered - end;
        let (topic, partition) = (&self.topic, log.partition);
        tracing::error!(%log, %topic, partition, end, missing, "acknowledged records are lost");
        self.state.lock().missing = missing;
    }

    fn install(&self, opening: Reopening) {
        let Reopening {
            mut producers,
            bounds,
            replayed,
            ..
        } = opening;
        let mut state = self.state.lock();
        if !state.status.is_of_storage() {
            // Meanwhile the topic was deleted, or another broker took over.
            return;
        }
        // Batches that the closed partition refused still come first.
        producers.remember_refusals(&mut state.producers);
        // The log may have been trimmed since it was read.
        producers.trim(self.visible.borrow().log_start);
        self.visible.send_modify(|visible| {
            *visible = Visible {
                log_start: visible.log_start.max(bounds.start),
                high_watermark: bounds.end,
                last_stable: producers.last_stable_offset(bounds.end),
                bytes: visible.bytes.wrapping_add(UNCOUNTED),
            };
        });
        state.producers = producers;
        state.unsaved.clear();
        state.unsaved.add(replayed);
        state.next_offset = bounds.end;
        state.generation += 1;
        state.status = Status::Open;
    }

    /// Starts reading the log's end again after a failed commit.
    pub(super) fn start_settling(self: &Arc<Self>) {
        let partition = self.clone();
        let task = Box::pin(async move { partition.settle().await });
        drop(self.deps.env.runtime.spawn("settle", task));
    }

    async fn settle(&self) {
        loop {
            match self.settle_once().await {
                Ok(()) => return,
                Err(
                    StoreError::Unavailable(_)
                    | StoreError::Full { .. }
                    | StoreError::Uncertain { fenced: false },
                ) => {
                    self.deps.env.clock.sleep(SETTLE_RETRY).await;
                }
                Err(error) => {
                    tracing::error!(log = %self.id, %error, "partition closed");
                    self.close(AppendError::from(error));
                    self.deps.repair.notify_one();
                    return;
                }
            }
        }
    }

    /// What the log holds decides: batches of the dropped tail that are there become durable state.
    async fn settle_once(&self) -> Result<(), StoreError> {
        let log = self.deps.store.acquire(self.id, self.epoch).await?;
        let known = self.visible().high_watermark;
        // Collected first: the lock is not held while the log is read.
        let mut found = Vec::new();
        let end = log.bounds.end;
        each_batch(&*self.deps.store, self.id, known, end, |batch| {
            found.push(meta(self.id, batch)?);
            Ok(())
        })
        .await?;
        let mut state = self.state.lock();
        for meta in &found {
            state.producers.replay(meta);
        }
        state.next_offset = log.bounds.end;
        let last_stable = state.producers.last_stable_offset(log.bounds.end);
        self.visible.send_modify(|visible| {
            *visible = Visible {
                high_watermark: log.bounds.end,
                last_stable,
                log_start: visible.log_start.max(log.bounds.start),
                bytes: visible.bytes.wrapping_add(UNCOUNTED),
            };
        });
        if state.status == Status::Settling {
            state.status = Status::Open;
        }
        Ok(())
    }
}

/// Whether what a snapshot covers is in the log: the batches that it names, with their CRCs. One
/// below the log's start can't be looked up; the trim that removed it wrote a snapshot first.
async fn covers(
    store: &dyn LogStore,
    id: LogId,
    restored: &Restored,
    bounds: Bounds,
) -> Result<bool, StoreError> {
    if planted(Fault::SnapshotUnchecked) {
        return Ok(true);
    }
    let covered = restored.image.log_end_offset;
    if covered > bounds.end || (restored.proofs.is_empty() && covered > 0) {
        return Ok(false);
    }
    for proof in &restored.proofs {
        if proof.base_offset < bounds.start {
            continue;
        }
        if proof.base_offset >= bounds.end {
            return Ok(false);
        }
        let batches = caught_up::read(store, id, proof.base_offset, 1, bounds.end).await?;
        let same = batches.first().is_some_and(|batch| {
            batch.base_offset == proof.base_offset
                && BatchHeader::read(&batch.bytes).is_ok_and(|header| header.crc == proof.crc)
        });
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads every batch in `from..end`, in order.
async fn each_batch(
    store: &dyn LogStore,
    id: LogId,
    from: i64,
    end: i64,
    mut take: impl FnMut(&StoredBatch) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut next = from;
    while next < end {
        let batches = caught_up::read(store, id, next, REPLAY_BYTES, end).await?;
        let Some(last) = batches.last() else { break };
        next = last.last_offset + 1;
        batches.iter().try_for_each(&mut take)?;
    }
    Ok(())
}

fn meta(id: LogId, batch: &StoredBatch) -> Result<BatchMeta, StoreError> {
    let header = BatchHeader::read(&batch.bytes).map_err(|error| StoreError::Corrupt {
        path: format!("log {id}"),
        why: format!("the batch at offset {}: {error}", batch.base_offset),
    })?;
    let marker = if header.is_control() {
        EndTxnMarker::read(&batch.bytes).map(|marker| MarkerInfo {
            commit: marker.commit,
            coordinator_epoch: marker.coordinator_epoch,
            txn_seq: marker.txn_seq,
        })
    } else {
        None
    };
    Ok(BatchMeta::from_header(&header, batch.append_ms, marker))
}

//! Reads: what is durable, clamped to the high watermark or the last stable offset.

use std::sync::Arc;

use bytes::Bytes;
use store_adapter::batch::BatchHeader;
use store_adapter::records::{first_at_or_after, first_of_largest};
use store_adapter::store::{Passed, StoreError, StoredBatch, Wanted};
use tokio::sync::oneshot;

use super::{Partition, ReadError, State, Visible, caught_up};

/// Largest batch that is walked on a worker.
const WALKED_MAX: usize = 64 * 1024;

/// Which records a reader sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Everything below the high watermark.
    ReadUncommitted,
    /// Everything below the last stable offset; the answer lists aborted transactions.
    ReadCommitted,
}

impl Isolation {
    /// From the wire: 0 or 1; anything else reads as 0, as Kafka's `IsolationLevel.forId` would
    /// refuse it and no client sends it.
    pub fn from_wire(level: i8) -> Self {
        if level == 1 {
            Self::ReadCommitted
        } else {
            Self::ReadUncommitted
        }
    }
}

/// What a read found.
#[derive(Debug, Clone)]
pub struct ReadOutcome {
    /// Bounds at the time of the read.
    pub visible: Visible,
    /// Whole batches; the first may begin below the offset asked for.
    pub batches: Vec<Passed>,
    /// Aborted transactions that touch what was read: producer id and first offset.
    pub aborted: Option<Vec<(i64, i64)>>,
}

/// A place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedOffset {
    /// Offset, -1 when there is none.
    pub offset: i64,
    /// Timestamp of its record in ms, -1 when not asked for.
    pub timestamp: i64,
    /// Leader epoch, -1 when there is none.
    pub leader_epoch: i32,
}

impl ListedOffset {
    /// No such offset.
    pub const NONE: Self = Self {
        offset: -1,
        timestamp: -1,
        leader_epoch: -1,
    };
}

impl Partition {
    /// Compares a client's idea of the leader epoch with ours; -1 skips the check.
    pub fn check_leader_epoch(&self, current: i32) -> Result<(), ReadError> {
        match i64::from(current) {
            -1 => Ok(()),
            epoch if epoch < i64::from(self.epoch.0) => Err(ReadError::FencedLeaderEpoch),
            epoch if epoch > i64::from(self.epoch.0) => Err(ReadError::UnknownLeaderEpoch),
            _ => Ok(()),
        }
    }

    /// Behind what a reader of this isolation may see.
    pub fn readable_end(&self, isolation: Isolation) -> i64 {
        let visible = self.visible();
        match isolation {
            Isolation::ReadUncommitted => visible.high_watermark,
            Isolation::ReadCommitted => visible.last_stable,
        }
    }

    /// What readers may see, if `from` lies in the log.
    pub fn visible_from(&self, from: i64) -> Result<Visible, ReadError> {
        let visible = self.visible();
        if from < visible.log_start || from > self.state.lock().next_offset {
            return Err(ReadError::OffsetOutOfRange);
        }
        Ok(visible)
    }

    /// Whole batches from the one that holds `from`, up to `max_bytes` but at least one.
    pub async fn read(
        &self,
        from: i64,
        max_bytes: usize,
        isolation: Isolation,
    ) -> Result<ReadOutcome, ReadError> {
        self.read_limited(from, max_bytes, isolation, false).await
    }

    /// As [`Partition::read`], but none if the first has more than `max_bytes`.
    pub async fn read_within(
        &self,
        from: i64,
        max_bytes: usize,
        isolation: Isolation,
    ) -> Result<ReadOutcome, ReadError> {
        self.read_limited(from, max_bytes, isolation, true).await
    }

    async fn read_limited(
        &self,
        from: i64,
        max_bytes: usize,
        isolation: Isolation,
        within: bool,
    ) -> Result<ReadOutcome, ReadError> {
        let visible = self.visible_from(from)?;
        let upto = match isolation {
            Isolation::ReadUncommitted => visible.high_watermark,
            Isolation::ReadCommitted => visible.last_stable,
        };
        if isolation == Isolation::ReadUncommitted {
            return Ok(ReadOutcome {
                visible,
                batches: self.batches(from, max_bytes, upto, within).await?,
                aborted: None,
            });
        }
        loop {
            let forgotten = self.state.lock().aborted_forgotten;
            let batches = self.batches(from, max_bytes, upto, within).await?;
            let end = batches.last().map_or(from, |batch| batch.last_offset() + 1);
            let state = self.state.lock();
            if state.aborted_forgotten != forgotten {
                // What was read may be of a transaction that compaction has taken meanwhile.
                continue;
            }
            return Ok(ReadOutcome {
                visible,
                batches,
                aborted: Some(self.aborted_of(&state, from, end)?),
            });
        }
    }

    /// Whole batches below `upto`.
    async fn batches(
        &self,
        from: i64,
        max_bytes: usize,
        upto: i64,
        within: bool,
    ) -> Result<Vec<Passed>, ReadError> {
        if from >= upto {
            return Ok(Vec::new());
        }
        let wanted = Wanted {
            from,
            max_bytes,
            upto,
            within,
        };
        let read = caught_up::pass_on(&*self.deps.store, self.id, wanted);
        let seen = |error: &StoreError| {
            self.deps.refusals.count(error);
            if matches!(error, StoreError::OutOfRange { .. }) {
                // Who is told so asks next where the log begins.
                self.follow_log_start();
            }
        };
        Ok(read.await.inspect_err(seen)?)
    }

    /// What a reader must know of the transactions in `from..end`, which it has read: producer id
    /// and first offset of those that were aborted.
    ///
    /// What is forgotten of them is what the log has lost. A trim may have overtaken the read, and
    /// then nobody can say any more which of its records were aborted.
    fn aborted_of(&self, state: &State, from: i64, end: i64) -> Result<Vec<(i64, i64)>, ReadError> {
        // Moves under the lock of the state only, together with what is forgotten.
        let log_start = self.visible.borrow().log_start;
        if from < log_start {
            return Err(ReadError::OffsetOutOfRange);
        }
        let aborted = state.producers.aborted(from, end);
        let known = aborted.iter();
        Ok(known
            .map(|txn| (txn.producer_id.0, txn.first_offset))
            .collect())
    }

    /// Behind the last record that a reader of this isolation sees.
    pub fn latest(&self, isolation: Isolation) -> ListedOffset {
        ListedOffset {
            offset: self.readable_end(isolation),
            timestamp: -1,
            leader_epoch: self.epoch_for_clients(),
        }
    }

    /// The first record of the log whose timestamp is at least `timestamp_ms`, below the readable
    /// end.
    pub async fn at_time(
        &self,
        timestamp_ms: i64,
        isolation: Isolation,
    ) -> Result<ListedOffset, ReadError> {
        loop {
            let before = self.visible().log_start;
            let listed = self.time_from(before, timestamp_ms, isolation).await?;
            if self.still_holds(listed, before) {
                return Ok(listed);
            }
        }
    }

    /// The first record from `log_start` on that is not older than `timestamp_ms`.
    async fn time_from(
        &self,
        log_start: i64,
        timestamp_ms: i64,
        isolation: Isolation,
    ) -> Result<ListedOffset, ReadError> {
        let search = move |batch: &Bytes| first_at_or_after(batch, timestamp_ms, log_start);
        let mut from = log_start;
        let (store, id) = (&self.deps.store, self.id);
        while let Some(batch) = store.find_time(id, from, timestamp_ms).await? {
            if batch.base_offset >= self.readable_end(isolation) {
                break;
            }
            if let Some(found) = self.look_into(&batch, search).await {
                return Ok(self.readable(found, isolation));
            }
            // What reaches the time lies before the log's start, or the header says too much.
            from = batch.last_offset.saturating_add(1);
        }
        Ok(ListedOffset::NONE)
    }

    /// The first record that has the largest timestamp of the log.
    pub async fn max_timestamp(&self, isolation: Isolation) -> Result<ListedOffset, ReadError> {
        loop {
            let before = self.visible().log_start;
            let listed = self.max_timestamp_from(before, isolation).await?;
            if self.still_holds(listed, before) {
                return Ok(listed);
            }
        }
    }

    /// The first record from `log_start` on that has the largest timestamp.
    async fn max_timestamp_from(
        &self,
        log_start: i64,
        isolation: Isolation,
    ) -> Result<ListedOffset, ReadError> {
        let search = move |batch: &Bytes| first_of_largest(batch, log_start);
        let mut from = log_start;
        let mut best = ListedOffset::NONE;
        while let Some((batch, largest)) = self.latest_batch(from).await? {
            from = batch.last_offset.saturating_add(1);
            let found = self.look_into(&batch, search).await;
            let Some(found) = found.filter(|found| found.timestamp > best.timestamp) else {
                continue;
            };
            best = found;
            if best.timestamp >= largest {
                break;
            }
        }
        Ok(self.readable(best, isolation))
    }

    /// The first batch from `from` on that reaches the largest timestamp, and that.
    async fn latest_batch(&self, from: i64) -> Result<Option<(StoredBatch, i64)>, ReadError> {
        // The largest t for which some batch reaches t, found by halving: the store answers
        // "which batch reaches t" from its time index.
        let (store, id) = (&self.deps.store, self.id);
        let (mut low, mut high) = (0_i64, i64::MAX);
        let Some(mut found) = store.find_time(id, from, low).await? else {
            return Ok(None);
        };
        while low < high {
            let middle = low + (high - low) / 2 + (high - low) % 2;
            match store.find_time(id, from, middle).await? {
                Some(batch) => {
                    low = middle;
                    found = batch;
                }
                None => high = middle - 1,
            }
        }
        Ok(Some((found, low)))
    }

    /// Whether a record that was looked for when the log began at `before` is there still: a trim
    /// may have overtaken the look, and then another record is the first.
    fn still_holds(&self, listed: ListedOffset, before: i64) -> bool {
        let log_start = self.visible().log_start;
        log_start == before || (listed != ListedOffset::NONE && listed.offset >= log_start)
    }

    async fn look_into(
        &self,
        batch: &StoredBatch,
        search: impl Fn(&Bytes) -> Option<(i64, i64)> + Send + 'static,
    ) -> Option<ListedOffset> {
        let header = BatchHeader::read(&batch.bytes).ok()?;
        let is_short = header.compression() == 0 && batch.bytes.len() <= WALKED_MAX;
        let (offset, timestamp) = if is_short || header.is_log_append_time() {
            search(&batch.bytes)
        } else {
            self.apart(batch.bytes.clone(), search).await
        }?;
        Some(ListedOffset {
            offset,
            timestamp,
            leader_epoch: header.leader_epoch,
        })
    }

    /// Not on a worker, and few at a time: the batch may have to be unpacked.
    async fn apart(
        &self,
        batch: Bytes,
        search: impl Fn(&Bytes) -> Option<(i64, i64)> + Send + 'static,
    ) -> Option<(i64, i64)> {
        let unpacking = Arc::clone(&self.deps.unpacking);
        let permit = unpacking.acquire_owned().await.ok()?;
        let (answer, found) = oneshot::channel();
        let search = Box::pin(async move {
            let found = search(&batch);
            drop(permit);
            // The asker may have gone.
            answer.send(found).unwrap_or_default();
        });
        drop(self.deps.env.runtime.spawn_io("find-time", search));
        found.await.ok().flatten()
    }

    /// What was found, if a reader of this isolation sees it.
    fn readable(&self, found: ListedOffset, isolation: Isolation) -> ListedOffset {
        if found.offset < self.readable_end(isolation) {
            found
        } else {
            ListedOffset::NONE
        }
    }

    /// The epoch of this leader, as the wire has it.
    pub(super) fn epoch_for_clients(&self) -> i32 {
        i32::try_from(self.epoch.0).unwrap_or(i32::MAX)
    }
}

#[cfg(test)]
mod tests;

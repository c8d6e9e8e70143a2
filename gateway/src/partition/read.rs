//! Reads: what is durable, clamped to the high watermark or the last stable offset.

use store_adapter::batch::BatchHeader;
use store_adapter::fault::{Fault, planted};
use store_adapter::records::first_at_or_after;
use store_adapter::store::{StoreError, StoredBatch};
use tokio::sync::oneshot;

use super::{Partition, ReadError, State, Visible, caught_up};

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
    pub batches: Vec<StoredBatch>,
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
            let end = batches.last().map_or(from, |batch| batch.last_offset + 1);
            let state = self.state.lock();
            if state.aborted_forgotten != forgotten {
                // What was read may be of a transaction that compaction has taken meanwhile.
                continue;
            }
            let aborted = self.aborted_of(&state, from, end)?;
            return Ok(ReadOutcome {
                visible,
                batches,
                aborted: Some(aborted),
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
    ) -> Result<Vec<StoredBatch>, ReadError> {
        if from >= upto {
            return Ok(Vec::new());
        }
        let range = caught_up::Range {
            id: self.id,
            from,
            max_bytes,
            upto,
            within,
        };
        let read = caught_up::read(&*self.deps.store, range);
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
        // Moves under this lock only, together with what is forgotten.
        let log_start = self.visible.borrow().log_start;
        if from < log_start && !planted(Fault::AbortedTrimmed) {
            return Err(ReadError::OffsetOutOfRange);
        }
        let aborted = state.producers.aborted(from, end);
        let known = aborted.iter();
        Ok(known
            .map(|txn| (txn.producer_id.0, txn.first_offset))
            .collect())
    }

    /// The first offset of the log.
    pub fn earliest(&self) -> ListedOffset {
        ListedOffset {
            offset: self.visible().log_start,
            timestamp: -1,
            leader_epoch: self.epoch_for_clients(),
        }
    }

    /// Behind the last record that a reader of this isolation sees.
    pub fn latest(&self, isolation: Isolation) -> ListedOffset {
        ListedOffset {
            offset: self.readable_end(isolation),
            timestamp: -1,
            leader_epoch: self.epoch_for_clients(),
        }
    }

    /// The first record whose timestamp is at least `timestamp_ms`, below the readable end.
    pub async fn at_time(
        &self,
        timestamp_ms: i64,
        isolation: Isolation,
    ) -> Result<ListedOffset, ReadError> {
        loop {
            let before = self.visible().log_start;
            let Some(batch) = self.deps.store.find_time(self.id, timestamp_ms).await? else {
                return Ok(ListedOffset::NONE);
            };
            let listed = self.record_at_time(batch, timestamp_ms, isolation).await;
            if self.still_holds(listed, before) {
                return Ok(listed);
            }
        }
    }

    /// The first record that has the largest timestamp of the log.
    pub async fn max_timestamp(&self, isolation: Isolation) -> Result<ListedOffset, ReadError> {
        loop {
            let before = self.visible().log_start;
            let Some((batch, timestamp_ms)) = self.batch_of_max_timestamp().await? else {
                return Ok(ListedOffset::NONE);
            };
            let listed = self.record_at_time(batch, timestamp_ms, isolation).await;
            if self.still_holds(listed, before) {
                return Ok(listed);
            }
        }
    }

    /// The first batch that reaches the largest timestamp of the log, and that timestamp.
    async fn batch_of_max_timestamp(&self) -> Result<Option<(StoredBatch, i64)>, ReadError> {
        // The largest t for which some batch reaches t, found by halving: the store answers
        // "which batch reaches t" from its time index.
        let (mut low, mut high) = (0_i64, i64::MAX);
        let Some(mut found) = self.deps.store.find_time(self.id, low).await? else {
            return Ok(None);
        };
        while low < high {
            let middle = low + (high - low) / 2 + (high - low) % 2;
            match self.deps.store.find_time(self.id, middle).await? {
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

    async fn record_at_time(
        &self,
        batch: StoredBatch,
        timestamp_ms: i64,
        isolation: Isolation,
    ) -> ListedOffset {
        let (answer, found) = oneshot::channel();
        let bytes = batch.bytes.clone();
        // Not on a worker: the batch may have to be unpacked.
        let search = Box::pin(async move {
            let found = first_at_or_after(&bytes, timestamp_ms);
            // The asker may have gone.
            answer.send(found).unwrap_or_default();
        });
        drop(self.deps.env.runtime.spawn_io("find-time", search));
        let Some((offset, timestamp)) = found.await.ok().flatten() else {
            return ListedOffset::NONE;
        };
        if offset >= self.readable_end(isolation) {
            return ListedOffset::NONE;
        }
        let header = BatchHeader::read(&batch.bytes);
        let leader_epoch = header.map_or(-1, |header| header.leader_epoch);
        ListedOffset {
            offset,
            timestamp,
            leader_epoch,
        }
    }

    fn epoch_for_clients(&self) -> i32 {
        i32::try_from(self.epoch.0).unwrap_or(i32::MAX)
    }
}

//! What the points share: batches, logs, one line per operation.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use uuid::Uuid;

use super::Harness;
use crate::batch::{Batch, HEADER_LEN};
use crate::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};
use crate::store::{Append, Bounds, Commit, LogStore, Op, StoreError, StoredBatch};

/// A batch of `records` records in `bytes` bytes, all of it.
///
/// # Panics
/// Below 61 bytes.
pub fn batch_of(records: u16, bytes: usize, timestamp_ms: i64, fill: u8) -> Batch {
    let body = bytes.checked_sub(HEADER_LEN).expect("a whole header");
    let mut out = BytesMut::with_capacity(bytes);
    out.put_i64(0);
    out.put_i32(i32::try_from(bytes - 12).unwrap());
    out.put_i32(-1);
    out.put_i8(2);
    out.put_u32(0);
    out.put_i16(0);
    out.put_i32(i32::from(records) - 1);
    out.put_i64(timestamp_ms);
    out.put_i64(timestamp_ms);
    out.put_i64(-1);
    out.put_i16(-1);
    out.put_i32(-1);
    out.put_i32(i32::from(records));
    // Never alike, so that a swapped or shifted byte shows.
    let mut state = u32::from(fill).wrapping_mul(0x9e37_79b9) | 1;
    for _ in 0..body {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        out.put_u8(state.to_be_bytes()[1]);
    }
    let crc = crc32c::crc32c(&out[21..]);
    out[17..21].copy_from_slice(&crc.to_be_bytes());
    Batch::parse(out.freeze()).unwrap()
}

/// A batch of one record in 100 bytes.
pub fn batch(fill: u8) -> Batch {
    batch_of(1, 100, i64::from(fill), fill)
}

/// One broker with shard 0 open, and shortcuts.
#[derive(Debug)]
pub struct World<'a> {
    /// The harness.
    pub harness: &'a dyn Harness,
    /// The broker's store.
    pub store: Arc<dyn LogStore>,
    /// The owner under which shard 0 is open.
    pub owner: OwnerEpoch,
}

/// The shard that most points use.
pub(super) const SHARD: ShardId = ShardId(0);

/// A log of a topic with this number.
pub(super) fn log(topic: u128, partition: u32) -> LogId {
    LogId {
        topic: Uuid::from_u128(topic),
        partition,
    }
}

/// The log that most points use.
pub(super) fn first() -> LogId {
    log(1, 0)
}

/// The first epoch of most points.
pub(super) const EPOCH: LeaderEpoch = LeaderEpoch(1);

impl<'a> World<'a> {
    /// A new broker that opened shard 0 as instance `instance`.
    pub async fn open(harness: &'a dyn Harness, instance: u64) -> Self {
        let store = harness.broker();
        let owner = OwnerEpoch {
            assignment: 1,
            instance,
        };
        let info = store.open_shard(SHARD, owner).await.unwrap();
        assert_eq!(info.damaged, []);
        Self {
            harness,
            store,
            owner,
        }
    }

    /// The same with one log, created and acquired.
    pub async fn with_log(harness: &'a dyn Harness) -> Self {
        let world = Self::open(harness, 1).await;
        world.add(first()).await;
        world
    }

    /// Creates and acquires a log.
    pub async fn add(&self, id: LogId) {
        self.store.create(id, "orders", SHARD).await.unwrap();
        self.store.acquire(id, EPOCH).await.unwrap();
    }

    /// Ends this broker and opens the shard as the next instance. `None` if it can't be killed.
    pub async fn killed(self) -> Option<Self> {
        if !self.harness.kill(&self.store) {
            return None;
        }
        Some(Self::open(self.harness, self.owner.instance + 1).await)
    }

    /// Closes this broker and opens the shard as the next instance.
    pub async fn reopened(self) -> Self {
        self.store.close().await.unwrap();
        Self::open(self.harness, self.owner.instance + 1).await
    }

    /// Queues one append under [`EPOCH`].
    pub fn submit(&self, id: LogId, end: i64, batch: &Batch) -> Commit {
        self.store.submit(vec![append(id, EPOCH, end, batch)])
    }

    /// Appends one batch; returns the new end.
    pub async fn append(&self, id: LogId, batch: &Batch) -> i64 {
        let end = self.end(id);
        self.submit(id, end, batch).await.unwrap();
        self.end(id)
    }

    /// Appends one batch of one record for each byte of `fills`.
    pub async fn fill(&self, id: LogId, fills: std::ops::Range<u8>) {
        let base = self.end(id);
        let commits: Vec<Commit> = (base..)
            .zip(fills)
            .map(|(end, fill)| self.submit(id, end, &batch(fill)))
            .collect();
        for commit in commits {
            commit.await.unwrap();
        }
    }

    /// Moves the start.
    pub async fn trim(&self, id: LogId, start: i64) -> Result<(), StoreError> {
        let epoch = EPOCH;
        let op = Op::Trim {
            log: id,
            epoch,
            start,
        };
        self.store.submit(vec![op]).await
    }

    /// The bounds of an open log.
    pub fn bounds(&self, id: LogId) -> Bounds {
        self.store.bounds(id).unwrap()
    }

    /// The end of an open log.
    pub fn end(&self, id: LogId) -> i64 {
        self.bounds(id).end
    }

    /// A read; where reads lag, one that has caught up.
    pub async fn read(
        &self,
        id: LogId,
        from: i64,
        max_bytes: usize,
        upto: i64,
    ) -> Result<Vec<StoredBatch>, StoreError> {
        if self.store.caps().reads_lag {
            // What it tells is checked by the second one.
            drop(self.store.read(id, from, max_bytes, upto).await);
        }
        self.store.read(id, from, max_bytes, upto).await
    }

    /// Everything from `from` on, in as many reads as it takes.
    pub async fn read_all(&self, id: LogId, from: i64) -> Vec<StoredBatch> {
        let mut all = Vec::new();
        let mut next = from;
        loop {
            let batches = self.read(id, next, 1 << 20, i64::MAX).await.unwrap();
            let Some(last) = batches.last() else {
                return all;
            };
            next = last.last_offset + 1;
            all.extend(batches);
        }
    }

    /// Asserts that the log holds exactly the batches of `fills`, one record each, from `base`.
    pub async fn assert_fills(&self, id: LogId, base: i64, fills: std::ops::Range<u8>) {
        let found = self.read_all(id, base).await;
        assert_eq!(found.len(), fills.len());
        for ((offset, fill), stored) in (base..).zip(fills).zip(&found) {
            assert_eq!(stored.base_offset, offset);
            assert_eq!(stored.bytes, batch(fill).stamp(offset, EPOCH).to_bytes());
        }
    }
}

/// The operation that appends `batch` at `end`.
pub(super) fn append(id: LogId, epoch: LeaderEpoch, end: i64, batch: &Batch) -> Op {
    Op::Append(Append {
        log: id,
        epoch,
        expect_end: end,
        append_ms: 1_000_000 + end,
        batch: batch.stamp(end, epoch),
    })
}

/// The bytes of all of `batches`.
pub(super) fn bytes_of(batches: &[StoredBatch]) -> Vec<Bytes> {
    batches.iter().map(|batch| batch.bytes.clone()).collect()
}

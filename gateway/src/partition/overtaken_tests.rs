//! Reads that a trim overtakes: the log begins elsewhere when the store's answer is used.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex as SyncMutex;
use store_adapter::batch::{Batch, BatchHeader};
use store_adapter::ids::{OwnerEpoch, ProducerEpoch, ProducerId, ShardId};
use store_adapter::memory::MemoryStore;
use store_adapter::runtime::Env;
use store_adapter::store::{
    Bounds, Caps, Commit, LogInfo, LogState, Op, Passed, Piece, Rewrite, Rewritten, ShardInfo,
    Size, StoreError, StoreFuture, StoredBatch, Wanted, read_and_pass,
};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::testing::{LOG, NOBODY, SHARD, header, lead_on};
use super::*;
use crate::admitted::Admitted;

/// Where an answer of the store waits: it is told, and then let go.
#[derive(Debug)]
struct Gate {
    reached: oneshot::Sender<()>,
    go_on: oneshot::Receiver<()>,
}

/// A store whose next answer to a question about records is held, when it is made already.
#[derive(Debug)]
pub(super) struct HeldStore {
    inner: MemoryStore,
    gate: SyncMutex<Option<Gate>>,
    /// Only what finds a record of that time or later is held.
    from_ms: SyncMutex<i64>,
    /// How many pieces it told.
    pub(super) told: AtomicUsize,
}

impl HeldStore {
    fn held<'a, T: Send + 'a>(
        &'a self,
        answer: StoreFuture<'a, T>,
        before: bool,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            if !before {
                let answer = answer.await;
                self.pass().await;
                return answer;
            }
            self.pass().await;
            answer.await
        })
    }

    async fn pass(&self) {
        let gate = self.gate.lock().take();
        if let Some(Gate { reached, go_on }) = gate {
            reached.send(()).unwrap();
            go_on.await.unwrap();
        }
    }

    /// Runs `asks`, and while the store's next answer is held, `meanwhile`.
    async fn overtaken<T>(
        &self,
        asks: impl Future<Output = T>,
        meanwhile: impl Future<Output = ()>,
    ) -> T {
        let (reached, is_reached) = oneshot::channel();
        let (let_go, go_on) = oneshot::channel();
        *self.gate.lock() = Some(Gate { reached, go_on });
        let other = async move {
            is_reached.await.unwrap();
            meanwhile.await;
            let_go.send(()).unwrap();
        };
        tokio::join!(asks, other).0
    }
}

impl LogStore for HeldStore {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn open_shard(&self, shard: ShardId, owner: OwnerEpoch) -> StoreFuture<'_, ShardInfo> {
        self.inner.open_shard(shard, owner)
    }

    fn check_shard(&self, shard: ShardId) -> Result<(), StoreError> {
        self.inner.check_shard(shard)
    }

    fn create<'a>(&'a self, id: LogId, name: &'a str, shard: ShardId) -> StoreFuture<'a, ()> {
        self.inner.create(id, name, shard)
    }

    fn delete(&self, topic: Uuid) -> StoreFuture<'_, ()> {
        self.inner.delete(topic)
    }

    fn list(&self) -> StoreFuture<'_, Vec<LogInfo>> {
        self.inner.list()
    }

    fn acquire(&self, id: LogId, epoch: LeaderEpoch) -> StoreFuture<'_, LogState> {
        self.inner.acquire(id, epoch)
    }

    fn submit(&self, ops: Vec<Op>) -> Commit {
        self.inner.submit(ops)
    }

    fn read_within(
        &self,
        id: LogId,
        from: i64,
        max_bytes: usize,
        upto: i64,
    ) -> StoreFuture<'_, Vec<StoredBatch>> {
        self.held(self.inner.read_within(id, from, max_bytes, upto), false)
    }

    fn read(
        &self,
        id: LogId,
        from: i64,
        max_bytes: usize,
        upto: i64,
    ) -> StoreFuture<'_, Vec<StoredBatch>> {
        // Of one byte: a look at one batch, which the trim makes fail.
        let late: StoreFuture<'_, _> =
            Box::pin(async move { self.inner.read(id, from, max_bytes, upto).await });
        self.held(late, max_bytes == 1)
    }

    fn pass_on(&self, id: LogId, wanted: Wanted) -> StoreFuture<'_, Vec<Passed>> {
        read_and_pass(self, id, wanted)
    }

    fn find_time(
        &self,
        id: LogId,
        from: i64,
        timestamp_ms: i64,
    ) -> StoreFuture<'_, Option<StoredBatch>> {
        Box::pin(async move {
            let found = self.inner.find_time(id, from, timestamp_ms).await?;
            let holds = found.is_some() && timestamp_ms >= *self.from_ms.lock();
            if holds {
                self.pass().await;
            }
            Ok(found)
        })
    }

    fn pieces(&self, id: LogId, from: i64, min_bytes: u64) -> StoreFuture<'_, Vec<Piece>> {
        Box::pin(async move {
            let pieces = self.inner.pieces(id, from, min_bytes).await?;
            self.told.fetch_add(pieces.len(), Ordering::Relaxed);
            Ok(pieces)
        })
    }

    fn parts(&self, id: LogId, from: i64) -> Option<Vec<Piece>> {
        self.inner.parts(id, from)
    }

    fn size(&self, id: LogId) -> Option<Size> {
        self.inner.size(id)
    }

    fn settled(&self, id: LogId) -> Option<i64> {
        self.inner.settled(id)
    }

    fn rewrite(&self, rewrite: Rewrite) -> StoreFuture<'_, Rewritten> {
        self.inner.rewrite(rewrite)
    }

    fn bounds(&self, id: LogId) -> Option<Bounds> {
        self.inner.bounds(id)
    }

    fn watch(&self, id: LogId) -> Option<watch::Receiver<Bounds>> {
        self.inner.watch(id)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.inner.close()
    }
}

pub(super) async fn store() -> Arc<HeldStore> {
    let inner = MemoryStore::new();
    let owner = OwnerEpoch {
        assignment: 1,
        instance: 1,
    };
    inner.open_shard(SHARD, owner).await.unwrap();
    inner.create(LOG, "t", SHARD).await.unwrap();
    Arc::new(HeldStore {
        inner,
        gate: SyncMutex::default(),
        from_ms: SyncMutex::default(),
        told: AtomicUsize::default(),
    })
}

pub(super) async fn lead(store: &Arc<HeldStore>, epoch: u32) -> Arc<Partition> {
    lead_on(store.clone(), Env::real(), epoch, Arc::default()).await
}

/// Appends one record, of a transaction of producer 7 or of none.
pub(super) async fn append(led: &Arc<Partition>, transactional: Option<i32>, timestamp: i64) {
    let header = BatchHeader {
        base_timestamp: timestamp,
        max_timestamp: timestamp,
        ..match transactional {
            Some(sequence) => header(0x10, (7, 0, sequence)),
            None => header(0, NOBODY),
        }
    };
    let batch = Batch::assemble(header, &[12, 0, 0, 0, 1, 0, 0]);
    let ticket = led.append_opening(&batch, Opening::Unverified, Admitted::default());
    ticket.outcome().await.unwrap();
}

async fn abort(led: &Arc<Partition>, txn_seq: u64) {
    let marker = Marker {
        producer_id: ProducerId(7),
        producer_epoch: ProducerEpoch(0),
        commit: false,
        coordinator_epoch: 1,
        txn_seq: Some(txn_seq),
    };
    led.append_marker(marker).outcome().await.unwrap();
}

#[tokio::test]
async fn a_read_that_a_trim_overtook_shows_no_aborted_record() {
    let store = store().await;
    let led = lead(&store, 1).await;
    append(&led, Some(0), 1).await;
    append(&led, Some(1), 1).await;
    abort(&led, 1).await;
    append(&led, None, 1).await;
    let trimmed = |upto: i64| {
        let led = led.clone();
        async move { led.delete_records(upto).await.map(|_| ()).unwrap() }
    };
    // Up to behind the marker: the transaction is forgotten.
    let read = led.read(0, 1 << 20, Isolation::ReadCommitted);
    let read = store.overtaken(read, trimmed(3)).await;
    assert_eq!(read.unwrap_err(), ReadError::OffsetOutOfRange);
    let read = led.read_within(3, 1 << 20, Isolation::ReadCommitted).await;
    assert_eq!(read.unwrap().aborted.unwrap(), []);
    // Not so far: what was read is answered, with what is known of it.
    append(&led, Some(2), 1).await;
    abort(&led, 2).await;
    let read = led.read(4, 1 << 20, Isolation::ReadCommitted);
    let read = store.overtaken(read, trimmed(4)).await.unwrap();
    assert_eq!(read.aborted.unwrap(), [(7, 4)]);
    // Who sees everything needs no list.
    let read = led.read(4, 1 << 20, Isolation::ReadUncommitted);
    let read = store.overtaken(read, trimmed(6)).await.unwrap();
    assert_eq!((read.batches.len(), read.aborted), (2, None));
}

#[tokio::test]
async fn an_offset_that_a_trim_overtook_is_looked_for_again() {
    let store = store().await;
    let led = lead(&store, 1).await;
    for timestamp in [50, 90, 70, 60] {
        append(&led, None, timestamp).await;
    }
    let trim = |upto: i64| {
        let led = led.clone();
        async move { led.delete_records(upto).await.map(|_| ()).unwrap() }
    };
    let isolation = Isolation::ReadUncommitted;
    let found = store.overtaken(led.at_time(45, isolation), trim(1)).await;
    assert_eq!(found.unwrap().offset, 1);
    // When it is known that some record is of 71 or later, and before it is known which is last.
    *store.from_ms.lock() = 71;
    let found = store.overtaken(led.max_timestamp(isolation), trim(2)).await;
    *store.from_ms.lock() = 0;
    let found = found.unwrap();
    assert_eq!((found.offset, found.timestamp), (2, 70));
    // What is there still is answered as it was found; what is nowhere any more, as nowhere.
    let found = store.overtaken(led.at_time(65, isolation), trim(2)).await;
    assert_eq!(found.unwrap().offset, 2);
    let found = store.overtaken(led.at_time(65, isolation), trim(3)).await;
    assert_eq!(found.unwrap(), ListedOffset::NONE);
}

#[tokio::test]
async fn the_end_of_an_epoch_is_found_while_the_log_loses_its_beginning() {
    let store = store().await;
    for epoch in [1, 3, 5] {
        let led = lead(&store, epoch).await;
        for _ in 0..4 {
            append(&led, None, 1).await;
        }
    }
    let led = lead(&store, 6).await;
    // The first look is at the middle of the log, of twelve records.
    let trim = async { led.delete_records(8).await.map(|_| ()).unwrap() };
    let end = store.overtaken(led.end_of_epoch(3), trim).await.unwrap();
    assert_eq!((end.epoch, end.end_offset), (3, 8));
}

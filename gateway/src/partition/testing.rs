//! What tests of partitions have in common: one log in one shard of a store in memory.

use std::future::ready;
use std::sync::Arc;

use coordinator::service::fences::FenceTable;
use coordinator::volume::format::Restored;
use parking_lot::Mutex;
use store_adapter::batch::BatchHeader;
use store_adapter::ids::{
    LeaderEpoch, LogId, OwnerEpoch, ProducerEpoch, ProducerId, Sequence, ShardId,
};
use store_adapter::memory::MemoryStore;
use store_adapter::runtime::{BoxFuture, Env, Runtime};
use store_adapter::store::LogStore;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::{Lane, Partition, PartitionDeps, PartitionSnapshot, SnapshotFiles, UNPACKING_MAX};

pub(super) const SHARD: ShardId = ShardId(0);
pub(super) const LOG: LogId = LogId {
    topic: Uuid::from_u128(1),
    partition: 0,
};

/// Id, epoch and first sequence of no producer.
pub(super) const NOBODY: (i64, i16, i32) = (-1, -1, -1);

/// The header of a batch of one record without a time.
pub(super) fn header(attributes: i16, (id, epoch, sequence): (i64, i16, i32)) -> BatchHeader {
    BatchHeader {
        base_offset: 0,
        batch_length: 0,
        leader_epoch: 0,
        magic: 2,
        crc: 0,
        attributes,
        last_offset_delta: 0,
        base_timestamp: 0,
        max_timestamp: 0,
        producer_id: ProducerId(id),
        producer_epoch: ProducerEpoch(epoch),
        base_sequence: Sequence(sequence),
        records_count: 1,
    }
}

/// Keeps no snapshots: opening replays the whole log.
#[derive(Debug)]
struct NoSnapshots;

impl SnapshotFiles for NoSnapshots {
    fn read(&self, _log: LogId) -> BoxFuture<'_, Option<Restored>> {
        Box::pin(ready(None))
    }

    fn write(&self, _snapshot: PartitionSnapshot) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }
}

/// A store with [`LOG`], which nobody leads.
pub(super) async fn created() -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new());
    create_log(&store).await;
    store
}

async fn create_log(store: &MemoryStore) {
    let owner = OwnerEpoch {
        assignment: 1,
        instance: 1,
    };
    store.open_shard(SHARD, owner).await.unwrap();
    store.create(LOG, "t", SHARD).await.unwrap();
}

/// Leads [`LOG`] under an epoch.
pub(super) async fn lead(store: &Arc<MemoryStore>, epoch: u32) -> Arc<Partition> {
    lead_fenced(store, epoch, Arc::default()).await
}

/// The same, where fences are in force.
pub(super) async fn lead_fenced(
    store: &Arc<MemoryStore>,
    epoch: u32,
    fences: Arc<FenceTable>,
) -> Arc<Partition> {
    lead_on(store.clone(), Env::real(), epoch, fences).await
}

/// The same on any store, and with any clock.
pub(super) async fn lead_on(
    store: Arc<dyn LogStore>,
    env: Env,
    epoch: u32,
    fences: Arc<FenceTable>,
) -> Arc<Partition> {
    let deps = PartitionDeps {
        lane: Lane::start(&env, "lane").0,
        env,
        store,
        snapshots: Arc::new(NoSnapshots),
        snapshot_pace: Arc::default(),
        fences,
        classified: Arc::default(),
        refusals: Arc::default(),
        repair: Arc::default(),
        space: None,
        unpacking: Arc::new(Semaphore::new(UNPACKING_MAX)),
    };
    let opened = Partition::open(LOG, "t".into(), LeaderEpoch(epoch), i64::MAX, deps).await;
    opened.unwrap()
}

/// Keeps io tasks instead of running them.
#[derive(Debug)]
pub(super) struct Kept {
    real: Arc<dyn Runtime>,
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks(Vec<BoxFuture<'static, ()>>);

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tasks").field(&self.0.len()).finish()
    }
}

impl Kept {
    /// What it has.
    pub(super) fn take(&self) -> Vec<BoxFuture<'static, ()>> {
        std::mem::take(&mut self.tasks.lock().0)
    }
}

impl Runtime for Kept {
    fn spawn(&self, name: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.real.spawn(name, task)
    }

    fn spawn_io(&self, _: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.tasks.lock().0.push(task);
        Box::pin(ready(()))
    }
}

/// Leads [`LOG`], which it creates, with what keeps the io tasks.
pub(super) async fn lead_keeping(store: Arc<MemoryStore>) -> (Arc<Partition>, Arc<Kept>) {
    create_log(&store).await;
    let real = Env::real();
    let kept = Arc::new(Kept {
        real: real.runtime.clone(),
        tasks: Mutex::default(),
    });
    let runtime: Arc<dyn Runtime> = kept.clone();
    let led = lead_on(store, Env { runtime, ..real }, 1, Arc::default()).await;
    (led, kept)
}

/// Numbers that look random, the same for the same seed.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    /// One of `0..below`.
    pub(super) fn below(&mut self, below: i64) -> i64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        i64::try_from((self.0 >> 33) % u64::try_from(below).unwrap()).unwrap()
    }
}

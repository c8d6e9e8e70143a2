//! What tests of partitions have in common: one log in one shard of a store in memory.

use std::future::ready;
use std::sync::Arc;

use coordinator::service::fences::FenceTable;
use coordinator::volume::format::Restored;
use store_adapter::ids::{LeaderEpoch, LogId, ShardId};
use store_adapter::memory::MemoryStore;
use store_adapter::runtime::{BoxFuture, Env};
use store_adapter::store::LogStore;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::{Lane, Partition, PartitionDeps, PartitionSnapshot, SnapshotFiles, UNPACKING_MAX};

pub(super) const SHARD: ShardId = ShardId(0);
pub(super) const LOG: LogId = LogId {
    topic: Uuid::from_u128(1),
    partition: 0,
};

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
        fences,
        classified: Arc::default(),
        refusals: Arc::default(),
        repair: Arc::default(),
        unpacking: Arc::new(Semaphore::new(UNPACKING_MAX)),
    };
    let opened = Partition::open(LOG, "t".into(), LeaderEpoch(epoch), i64::MAX, deps).await;
    opened.unwrap()
}

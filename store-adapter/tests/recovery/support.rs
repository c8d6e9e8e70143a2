//! Journal stores on volumes in memory, and trees of files to damage.

use std::future::Future;
use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use store_adapter::conformance::batch_of;
use store_adapter::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};
use store_adapter::journal::{IndexStore, JournalConfig, JournalStore};
use store_adapter::runtime::Env;
use store_adapter::store::{Append, Commit, LogStore, Op, ShardInfo, StoreError, StoredBatch};
use store_adapter::volume::memory::MemoryVolume;
use store_adapter::volume::{Volume, VolumePath, block_on};
use uuid::Uuid;

pub(crate) const SHARD: ShardId = ShardId(0);
pub(crate) const EPOCH: LeaderEpoch = LeaderEpoch(1);

/// Prints a line of a test that is seen when it passes, too: what the macros print is kept then.
pub(crate) fn tell(line: &str) {
    // Whole, so that nothing comes between.
    let line = format!("{line}\n");
    drop(std::io::stderr().write_all(line.as_bytes()));
}

pub(crate) fn log(partition: u32) -> LogId {
    LogId {
        topic: Uuid::from_u128(1),
        partition,
    }
}

pub(crate) fn config() -> JournalConfig {
    JournalConfig {
        segment_bytes: 256 << 10,
        ..JournalConfig::default()
    }
}

pub(crate) fn store_on(volume: &MemoryVolume, index: &Arc<impl IndexStore>) -> JournalStore {
    let index = Arc::clone(index) as Arc<dyn IndexStore>;
    JournalStore::new(Env::real(), Arc::new(volume.clone()), index, config())
}

pub(crate) async fn open(store: &JournalStore, instance: u64) -> Result<ShardInfo, StoreError> {
    let assignment = 1;
    let owner = OwnerEpoch {
        assignment,
        instance,
    };
    store.open_shard(SHARD, owner).await
}

pub(crate) async fn add(store: &JournalStore, partition: u32) {
    store.create(log(partition), "orders", SHARD).await.unwrap();
    store.acquire(log(partition), EPOCH).await.unwrap();
}

pub(crate) fn submit(store: &JournalStore, partition: u32, end: i64, fill: u8) -> Commit {
    submit_sized(store, partition, end, fill, 100)
}

pub(crate) fn submit_sized(
    store: &JournalStore,
    partition: u32,
    end: i64,
    fill: u8,
    bytes: usize,
) -> Commit {
    let op = Op::Append(Append {
        log: log(partition),
        epoch: EPOCH,
        expect_end: end,
        append_ms: 7,
        batch: batch_of(1, bytes, 3, fill).stamp(end, EPOCH),
    });
    store.submit(vec![op])
}

/// Opens a store, and gives it two logs with three rounds each.
pub(crate) async fn add_two_with_rounds(store: &JournalStore) {
    open(store, 1).await.unwrap();
    add(store, 0).await;
    add(store, 1).await;
    for end in 0..3 {
        submit(store, 0, end, 1).await.unwrap();
        submit(store, 1, end, 2).await.unwrap();
    }
}

pub(crate) async fn read_all(
    store: &JournalStore,
    partition: u32,
) -> Result<Vec<StoredBatch>, StoreError> {
    let mut all = Vec::new();
    let mut next = store
        .bounds(log(partition))
        .map_or(0, |bounds| bounds.start);
    loop {
        let found = store.read(log(partition), next, 50_000, i64::MAX).await?;
        let Some(last) = found.last() else {
            return Ok(all);
        };
        next = last.last_offset + 1;
        all.extend(found);
    }
}

/// Polls volume futures off the tokio workers.
pub(crate) async fn io<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    tokio::task::spawn_blocking(|| {
        std::thread::scope(|scope| scope.spawn(|| block_on(work)).join().unwrap())
    })
    .await
    .unwrap()
}

/// Every file of a tree with its bytes, in order of names.
pub(crate) async fn files(volume: &MemoryVolume) -> Vec<(VolumePath, Vec<u8>)> {
    let volume = volume.clone();
    io(async move {
        let mut found = Vec::new();
        let mut dirs = vec![VolumePath::root()];
        while let Some(dir) = dirs.pop() {
            for entry in volume.list(&dir).await.unwrap() {
                let path = dir.join(&entry.name);
                if entry.is_dir {
                    dirs.push(path);
                } else {
                    // A store that runs may remove a dead file meanwhile.
                    match volume.read(&path, u64::MAX).await {
                        Err(error) if error.is_not_found() => {}
                        bytes => found.push((path, bytes.unwrap().to_vec())),
                    }
                }
            }
        }
        found.sort();
        found
    })
    .await
}

pub(crate) async fn tree(files: &[(VolumePath, Vec<u8>)]) -> MemoryVolume {
    let files = files.to_vec();
    io(async move {
        let volume = MemoryVolume::new();
        for (path, bytes) in files {
            volume.create_dir_all(&path.parent()).await.unwrap();
            let file = volume.create_new(&path).await.unwrap();
            file.write_at(0, &[Bytes::from(bytes)]).await.unwrap();
            file.sync_data().await.unwrap();
            volume.sync_dir(&path.parent()).await.unwrap();
        }
        volume
    })
    .await
}

/// The one journal file that holds something.
pub(crate) fn journal(files: &[(VolumePath, Vec<u8>)]) -> usize {
    let logs = files.iter().enumerate();
    let logs = logs.filter(|(_, (path, _))| path.as_str().ends_with(".log"));
    logs.max_by_key(|(_, (_, bytes))| bytes.len()).unwrap().0
}

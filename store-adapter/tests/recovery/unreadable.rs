//! What can't be read: reads that fail, a file that is gone, and what is left of a damaged log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use store_adapter::conformance::batch_of;
use store_adapter::journal::{
    JournalConfig, JournalCounters, JournalStore, MemoryIndex, OfflineShard,
};
use store_adapter::runtime::{BoxFuture, Env};
use store_adapter::store::{LogStore, StoreError};
use store_adapter::volume::memory::{MemoryVolume, Step, StepFault, StepHook, StepOp, StepOutcome};
use store_adapter::volume::{Volume, VolumePath};

use crate::support::{
    EPOCH, SHARD, add, config, files, io, journal, log, open, store_on, submit, submit_sized, tree,
};

const BATCHES: i64 = 30;

fn store(volume: &MemoryVolume) -> (JournalStore, Arc<JournalCounters>) {
    let counters = Arc::new(JournalCounters::default());
    let config = JournalConfig {
        counters: Arc::clone(&counters),
        ..config()
    };
    let (index, volume) = (Arc::new(MemoryIndex::new()), Arc::new(volume.clone()));
    let store = JournalStore::new(Env::real(), volume, index, config);
    (store, counters)
}

/// A log in several files, the first of which is returned.
async fn written() -> (MemoryVolume, VolumePath) {
    let volume = MemoryVolume::new();
    let store = store_on(&volume, &Arc::new(MemoryIndex::new()));
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    for end in 0..BATCHES {
        submit_sized(&store, 0, end, 1, 20_000).await.unwrap();
    }
    store.close().await.unwrap();
    let mut logs = files(&volume).await;
    logs.retain(|(path, _)| path.as_str().ends_with(".log"));
    assert!(logs.len() > 1);
    let first = logs.swap_remove(0).0;
    (volume, first)
}

/// While it is set, no journal file can be read.
#[derive(Debug, Default)]
struct Unreadable(AtomicBool);

impl StepHook for Unreadable {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let of_journal = step.op == StepOp::ReadAt && step.path.as_str().ends_with(".log");
        let fails = of_journal && self.0.load(Ordering::SeqCst);
        let outcome = if fails {
            StepOutcome::Fail(StepFault::Io)
        } else {
            StepOutcome::Proceed
        };
        Box::pin(std::future::ready(outcome))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_fails_is_counted_and_may_go_better_later() {
    let (volume, first) = written().await;
    let unreadable = Arc::new(Unreadable::default());
    let mount = volume.mount(Arc::clone(&unreadable) as Arc<dyn StepHook>, None);
    let (store, counters) = store(&mount);
    open(&store, 2).await.unwrap();
    assert_eq!(counters.failed_reads.load(Ordering::Relaxed), 0);
    unreadable.0.store(true, Ordering::SeqCst);
    for tried in 1..4 {
        let failed = store.read(log(0), 0, 1, i64::MAX).await;
        let Err(StoreError::Unavailable(why)) = failed else {
            panic!("{failed:?}");
        };
        assert!(why.contains(first.as_str()), "{why}");
        assert_eq!(counters.failed_reads.load(Ordering::Relaxed), tried);
    }
    unreadable.0.store(false, Ordering::SeqCst);
    let found = store.read(log(0), 0, 1, i64::MAX).await.unwrap();
    assert_eq!(found.len(), 1);
    assert!(counters.damaged_files().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_gone_is_damage_with_its_path() {
    let (volume, first) = written().await;
    let (store, counters) = store(&volume);
    open(&store, 2).await.unwrap();
    let (remover, path) = (volume.clone(), first.clone());
    io(async move { remover.remove(&path).await })
        .await
        .unwrap();
    let missing = store.read(log(0), 0, 1, i64::MAX).await;
    let Err(StoreError::Corrupt { path, .. }) = missing else {
        panic!("{missing:?}");
    };
    assert_eq!(path, first.as_str());
    assert_eq!(counters.damaged_files(), [first.as_str()]);
    let last = store.read(log(0), BATCHES - 1, 1, i64::MAX).await.unwrap();
    assert_eq!(last.len(), 1);
    submit(&store, 0, BATCHES, 1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_another_owner_removed_is_no_damage() {
    let (volume, first) = written().await;
    let (store, counters) = store(&volume);
    open(&store, 2).await.unwrap();
    let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
    open(&taker, 3).await.unwrap();
    io(async move { volume.remove(&first).await })
        .await
        .unwrap();
    let missing = store.read(log(0), 0, 1, i64::MAX).await;
    assert!(
        matches!(missing, Err(StoreError::Unavailable(_))),
        "{missing:?}"
    );
    assert!(counters.damaged_files().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_damaged_log_is_read_offline() {
    let volume = MemoryVolume::new();
    let store = store_on(&volume, &Arc::new(MemoryIndex::new()));
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    for end in 0..5 {
        submit(&store, 0, end, 1).await.unwrap();
    }
    let mut files = files(&volume).await;
    let at = journal(&files);
    let needle = batch_of(1, 100, 3, 1).stamp(2, EPOCH).to_bytes();
    let mut places = files[at].1.windows(needle.len());
    let found = places.position(|window| window == needle).unwrap();
    // In the records, in the batch's header, in the frame's header.
    for byte in [found + 80, found + 3, found - 10] {
        files[at].1[byte] ^= 0x10;
        let volume = Arc::new(tree(&files).await);
        let (before, error, behind, after) = io(async move {
            let shard = OfflineShard::read(volume, SHARD).await.unwrap();
            assert!(shard.logs().all(|log| log.damaged.is_some()));
            let before = shard.batches(log(0), 0).await.unwrap();
            let error = shard.batches(log(0), 2).await;
            let behind = shard.behind(log(0), 2).await;
            let after = shard.batches(log(0), 3).await.unwrap();
            assert_eq!(shard.behind(log(0), 4).await, None);
            (before, error, behind, after)
        })
        .await;
        let offsets = |batches: &[store_adapter::store::StoredBatch]| {
            let offsets = batches.iter().map(|batch| batch.base_offset);
            offsets.collect::<Vec<_>>()
        };
        assert_eq!(offsets(&before), [0, 1]);
        assert!(
            matches!(error, Err(StoreError::Corrupt { .. })),
            "{error:?}"
        );
        assert_eq!(behind, Some(3));
        assert_eq!(offsets(&after), [3, 4]);
        files[at].1[byte] ^= 0x10;
    }
}

//! The local index: lost, stale, garbage, in sled.

use std::sync::Arc;

use store_adapter::journal::{IndexChange, IndexError, IndexStore, MemoryIndex, SledIndex};
use store_adapter::runtime::Env;
use store_adapter::store::{LogStore, StoredBatch};
use store_adapter::volume::memory::MemoryVolume;

use crate::support::{add, log, open, read_all, store_on, submit_sized};

/// Writes enough for several files and checkpoints, closes nothing, and gives what is there.
async fn write(volume: &MemoryVolume, index: &Arc<impl IndexStore>) -> Vec<Vec<StoredBatch>> {
    let store = store_on(volume, index);
    open(&store, 1).await.unwrap();
    for partition in 0..3 {
        add(&store, partition).await;
    }
    fill(&store, 0..50).await
}

async fn fill(
    store: &store_adapter::journal::JournalStore,
    ends: std::ops::Range<i64>,
) -> Vec<Vec<StoredBatch>> {
    for end in ends {
        for partition in 0..3 {
            submit_sized(store, partition, end, 1, 9_000).await.unwrap();
        }
    }
    let mut all = Vec::new();
    for partition in 0..3 {
        all.push(read_all(store, partition).await.unwrap());
    }
    all
}

async fn assert_holds(
    volume: &MemoryVolume,
    index: &Arc<impl IndexStore>,
    instance: u64,
    expected: &[Vec<StoredBatch>],
) {
    let store = store_on(volume, index);
    let info = open(&store, instance).await.unwrap();
    assert_eq!(info.damaged, []);
    for (partition, expected) in (0..).zip(expected) {
        let bounds = store.bounds(log(partition)).unwrap();
        assert_eq!(usize::try_from(bounds.end).unwrap(), expected.len());
        assert_eq!(&read_all(&store, partition).await.unwrap(), expected);
    }
}

/// Waits until the index has what the store's keeper still writes: closing does.
async fn settled(index: &MemoryIndex) -> Vec<(bytes::Bytes, bytes::Bytes)> {
    loop {
        let found = index.scan(b"").unwrap();
        if found.iter().any(|(key, _)| key.starts_with(b"k")) {
            return found;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_stale_or_garbage_index_gives_the_same_reads() {
    let volume = MemoryVolume::new();
    let index = Arc::new(MemoryIndex::new());
    let yesterday = Arc::new(MemoryIndex::new());
    let store = store_on(&volume, &index);
    open(&store, 1).await.unwrap();
    for partition in 0..3 {
        add(&store, partition).await;
    }
    fill(&store, 0..20).await;
    let old = settled(&index).await;
    let put = |(key, value): &(bytes::Bytes, bytes::Bytes)| {
        IndexChange::Put(key.to_vec(), value.to_vec())
    };
    yesterday
        .apply(&old.iter().map(put).collect::<Vec<_>>())
        .unwrap();
    let expected = fill(&store, 20..50).await;
    let now = index.scan(b"").unwrap();
    assert_ne!(now, old);
    assert_holds(&volume, &index, 2, &expected).await;
    assert_holds(&volume, &yesterday, 3, &expected).await;
    assert_holds(&volume, &Arc::new(MemoryIndex::new()), 4, &expected).await;
    // Every value in turn: garbage, empty, gone; and values under each other's keys.
    for at in 0..now.len() {
        let garbage = Arc::new(MemoryIndex::new());
        let mut changes: Vec<IndexChange> = now.iter().map(put).collect();
        let (key, value) = (now[at].0.to_vec(), now[at].1.to_vec());
        changes[at] = match at % 4 {
            0 => IndexChange::Put(key, vec![0xa5; value.len()]),
            1 => IndexChange::Put(key, Vec::new()),
            2 => IndexChange::Remove(key),
            _ => IndexChange::Put(key, now[(at + 1) % now.len()].1.to_vec()),
        };
        garbage.apply(&changes).unwrap();
        assert_holds(&volume, &garbage, 5 + at as u64, &expected).await;
    }
}

/// An index that never answers.
#[derive(Debug)]
struct Broken;

impl IndexStore for Broken {
    fn scan(&self, _prefix: &[u8]) -> Result<Vec<(bytes::Bytes, bytes::Bytes)>, IndexError> {
        Err(IndexError("broken".to_owned()))
    }
    fn apply(&self, _changes: &[IndexChange]) -> Result<(), IndexError> {
        Err(IndexError("broken".to_owned()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_index_everything_works() {
    let volume = MemoryVolume::new();
    let expected = write(&volume, &Arc::new(Broken)).await;
    assert_holds(&volume, &Arc::new(Broken), 2, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sled_keeps_the_index_and_is_set_aside_when_it_is_garbage() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::real();
    let volume = MemoryVolume::new();
    let index = Arc::new(SledIndex::open(&env, dir.path()).await.unwrap());
    let expected = write(&volume, &index).await;
    assert_holds(&volume, &index, 2, &expected).await;
    let held = SledIndex::open(&env, dir.path()).await;
    let refused = held.map(drop).unwrap_err().to_string();
    assert!(refused.contains("in use by another process"), "{refused}");
    drop(index);
    // The stores that still hold it end by themselves; then the lock is free.
    let index = Arc::new(SledIndex::open(&env, dir.path()).await.unwrap());
    assert_holds(&volume, &index, 3, &expected).await;
    drop(index);
    let index = SledIndex::open(&env, dir.path()).await;
    drop(index.unwrap());
    for name in ["conf", "db"] {
        std::fs::File::create(dir.path().join("index").join(name))
            .and_then(|mut file| std::io::Write::write_all(&mut file, &[0xee; 5000]))
            .unwrap();
    }
    let index = Arc::new(SledIndex::open(&env, dir.path()).await.unwrap());
    assert!(dir.path().join("index.bad-1").exists());
    assert_holds(&volume, &index, 4, &expected).await;
}

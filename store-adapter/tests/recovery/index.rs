//! The local index: lost, stale, garbage, in sled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use store_adapter::journal::{
    IndexChange, IndexError, IndexStore, JournalConfig, JournalCounters, JournalStore, MemoryIndex,
    OfflineShard, SledIndex,
};
use store_adapter::runtime::{BoxFuture, Env};
use store_adapter::store::{LogStore, Op, StoreError, StoredBatch};
use store_adapter::volume::VolumePath;
use store_adapter::volume::memory::{MemoryVolume, Step, StepHook, StepOp, StepOutcome};

use crate::checkpoint::{checkpoints, newest};
use crate::sift::{BATCHES, every};
use crate::support::{
    EPOCH, SHARD, add, config, files, io, log, open, read_all, store_on, submit_sized, tree,
};

/// Writes enough for several files and checkpoints, closes nothing, and gives what is there.
async fn write(volume: &MemoryVolume, index: &Arc<impl IndexStore>) -> Vec<Vec<StoredBatch>> {
    let store = store_on(volume, index);
    open(&store, 1).await.unwrap();
    for partition in 0..3 {
        add(&store, partition).await;
    }
    fill(&store, 0..50).await
}

async fn fill(store: &JournalStore, ends: std::ops::Range<i64>) -> Vec<Vec<StoredBatch>> {
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

fn copy_of(index: &MemoryIndex) -> Arc<MemoryIndex> {
    let copy = MemoryIndex::new();
    let all = index.scan(b"").unwrap();
    let put =
        |(key, value): (bytes::Bytes, bytes::Bytes)| IndexChange::Put(key.to_vec(), value.to_vec());
    copy.apply(&all.into_iter().map(put).collect::<Vec<_>>())
        .unwrap();
    Arc::new(copy)
}

fn logs(files: &[(VolumePath, Vec<u8>)]) -> Vec<usize> {
    let logs = files.iter().enumerate();
    let logs = logs.filter(|(_, (path, _))| path.as_str().ends_with(".log"));
    logs.map(|(at, _)| at).collect()
}

/// A header that is made up knows no lsns: those in the index do not fit to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_younger_than_a_damaged_header_is_found_again() {
    let volume = MemoryVolume::new();
    let index = Arc::new(MemoryIndex::new());
    let store = store_on(&volume, &index);
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    for end in 0..30 {
        submit_sized(&store, 0, end, 1, 20_000).await.unwrap();
    }
    // All of the closed files, and little of the one that is written: it must not be left.
    let trim = Op::Trim {
        log: log(0),
        epoch: EPOCH,
        start: 26,
    };
    store.submit(vec![trim]).await.unwrap();
    while logs(&files(&volume).await).len() > 1 {
        tokio::task::yield_now().await;
    }
    add(&store, 1).await;
    // A checkpoint's worth, and not a file's.
    for end in 30..35 {
        submit_sized(&store, 0, end, 1, 20_000).await.unwrap();
    }
    while index.scan(b"p").unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    let sent = read_all(&store, 0).await.unwrap();
    let mut damaged = files(&volume).await;
    let only = logs(&damaged);
    assert_eq!(only.len(), 1);
    damaged[only[0]].1[20] ^= 1;
    let volume = tree(&damaged).await;
    let store = store_on(&volume, &copy_of(&index));
    assert_eq!(open(&store, 2).await.unwrap().damaged, []);
    submit_sized(&store, 1, 0, 2, 100).await.unwrap();
    assert_eq!(read_all(&store, 1).await.unwrap().len(), 1);
    assert_eq!(read_all(&store, 0).await.unwrap(), sent);
    let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
    assert_eq!(open(&taker, 3).await.unwrap().damaged, []);
    assert_eq!(read_all(&taker, 1).await.unwrap().len(), 1);
    assert_eq!(read_all(&taker, 0).await.unwrap(), sent);
}

/// The files before the newest one were written anew, so the catalogue is in its two checkpoints
/// alone, and in the local index.
#[tokio::test(flavor = "multi_thread")]
async fn the_index_stands_for_a_damaged_checkpoint() {
    let volume = MemoryVolume::new();
    let index = Arc::new(MemoryIndex::new());
    let store = store_on(&volume, &index);
    crate::sift::fill(&store).await;
    store.rewrite(every(4, EPOCH, true)).await.unwrap();
    for end in BATCHES..BATCHES + 6 {
        submit_sized(&store, 0, end, 1, 20_000).await.unwrap();
    }
    let found = files(&volume).await;
    let (newest, seq) = newest(&found);
    // The checkpoint of that file: its number stands behind the epoch.
    let seq = seq.to_be_bytes();
    while index
        .scan(b"k")
        .unwrap()
        .first()
        .map(|(_, value)| value[12..20].to_vec())
        != Some(seq.to_vec())
    {
        tokio::task::yield_now().await;
    }
    let expected = [
        read_all(&store, 0).await.unwrap(),
        read_all(&store, 1).await.unwrap(),
    ];
    let [first, second] = checkpoints(&found[newest].1);
    assert!(
        first.len() > 200 && first.len() == second.len(),
        "{first:?}"
    );
    for (at, other) in first.zip(second) {
        let mut damaged = found.clone();
        damaged[newest].1[at] ^= 1;
        damaged[newest].1[other] ^= 1;
        let path = damaged[newest].0.to_string();
        let volume = tree(&damaged).await;
        let counters = Arc::new(JournalCounters::default());
        let config = JournalConfig {
            counters: Arc::clone(&counters),
            ..config()
        };
        let (env, on) = (Env::real(), Arc::new(volume.clone()));
        let opened = JournalStore::new(env, on, copy_of(&index), config);
        assert_eq!(open(&opened, 2).await.unwrap().damaged, [], "byte {at}");
        for (partition, expected) in (0..).zip(&expected) {
            let all = read_all(&opened, partition).await.unwrap();
            assert_eq!(&all, expected, "byte {at}");
        }
        assert_eq!(counters.damaged_files(), [path.as_str()], "byte {at}");
        // Nobody else knows the catalogue, and it is clear which file is damaged.
        let volume = tree(&damaged).await;
        let read = io(async move { OfflineShard::read(Arc::new(volume), SHARD).await });
        match read.await {
            Err(StoreError::Corrupt { path: told, .. }) => assert_eq!(told, path, "byte {at}"),
            other => panic!("byte {at}: {other:?}"),
        }
    }
}

/// Counts the bytes that are read of journal files.
#[derive(Debug, Default)]
struct Counting(AtomicU64);

impl StepHook for Counting {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        if step.op == StepOp::ReadAt && step.path.as_str().ends_with(".log") {
            self.0.fetch_add(step.len, Ordering::SeqCst);
        }
        Box::pin(std::future::ready(StepOutcome::Proceed))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_saves_reading_the_journal() {
    let volume = MemoryVolume::new();
    let index = Arc::new(MemoryIndex::new());
    let store = store_on(&volume, &index);
    open(&store, 1).await.unwrap();
    for partition in 0..3 {
        add(&store, partition).await;
    }
    // Within the first file, behind two checkpoints.
    let expected = fill(&store, 0..8).await;
    settled(&index).await;
    let mut read = Vec::new();
    for (instance, index) in [(2, &index), (3, &Arc::new(MemoryIndex::new()))] {
        let files = files(&volume).await;
        let copy = tree(&files).await;
        let counting = Arc::new(Counting::default());
        let mount = copy.mount(Arc::clone(&counting) as Arc<dyn StepHook>, None);
        let opened = store_on(&mount, index);
        assert_eq!(open(&opened, instance).await.unwrap().damaged, []);
        read.push(counting.0.load(Ordering::SeqCst));
        for (partition, expected) in (0..).zip(&expected) {
            assert_eq!(&read_all(&opened, partition).await.unwrap(), expected);
        }
    }
    // The checksum of the file's first round, the footer that is not there and the tail remain.
    assert!(read[0] + 60_000 < read[1], "{read:?}");
}

/// An index that never answers.
#[derive(Debug)]
struct Broken;

impl IndexStore for Broken {
    fn open(&self) -> BoxFuture<'_, Result<(), IndexError>> {
        Box::pin(std::future::ready(Ok(())))
    }
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
    let index = || Arc::new(SledIndex::new(env.clone(), dir.path()));
    let first = index();
    let expected = write(&volume, &first).await;
    assert_holds(&volume, &first, 2, &expected).await;
    // Another process on the same directory is refused, and takes no shard from anybody.
    let refused = open(&store_on(&volume, &index()), 3).await;
    let Err(StoreError::Offline(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("in use by another process"), "{why}");
    drop(first);
    // The stores that still hold it end by themselves; then the lock is free.
    assert_holds(&volume, &index(), 3, &expected).await;
    let garbage = index();
    garbage.open().await.unwrap();
    drop(garbage);
    for name in ["conf", "db"] {
        std::fs::File::create(dir.path().join("index").join(name))
            .and_then(|mut file| std::io::Write::write_all(&mut file, &[0xee; 5000]))
            .unwrap();
    }
    assert_holds(&volume, &index(), 4, &expected).await;
    assert!(dir.path().join("index.bad-1").exists());
}

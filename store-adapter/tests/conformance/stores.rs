//! Stores in a directory, as a broker has them: what the points open, fill and look into that need
//! processes, damage or figures.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use store_adapter::batch::{Batch, BatchHeader};
use store_adapter::conformance::batch_of;
use store_adapter::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};
use store_adapter::journal::{JournalConfig, JournalCounters, JournalStore, SledIndex};
use store_adapter::kv::{KvConfig, KvStore};
use store_adapter::runtime::Env;
use store_adapter::store::{
    Append, Bounds, Commit, Left, LogStore, Op, Rewrite, ShardInfo, Sieve, StoreError, StoredBatch,
};
use store_adapter::volume::{PosixVolume, Volume};
use uuid::Uuid;

pub(crate) const SHARD: ShardId = ShardId(0);
pub(crate) const EPOCH: LeaderEpoch = LeaderEpoch(1);

/// What lies in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Journal,
    Kv,
}

impl Layout {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Kv => "kv",
        }
    }

    pub(crate) fn of(name: &str) -> Self {
        [Self::Journal, Self::Kv]
            .into_iter()
            .find(|layout| layout.name() == name)
            .unwrap()
    }
}

/// A store on `volume`, whose root is `dir`.
pub(crate) fn store_on(
    layout: Layout,
    volume: Arc<dyn Volume>,
    dir: &Path,
    counters: &Arc<JournalCounters>,
) -> Arc<dyn LogStore> {
    let env = Env::real();
    match layout {
        Layout::Journal => {
            let config = JournalConfig {
                segment_bytes: SEGMENT_BYTES,
                counters: Arc::clone(counters),
                ..JournalConfig::default()
            };
            let index = SledIndex::new(env.clone(), dir.join("index"));
            Arc::new(JournalStore::new(env, volume, Arc::new(index), config))
        }
        Layout::Kv => Arc::new(KvStore::new(env, volume, dir, KvConfig::default())),
    }
}

/// Bytes of a journal file.
pub(crate) const SEGMENT_BYTES: u64 = 4 << 20;

/// A store in `dir`.
pub(crate) fn store(layout: Layout, dir: &Path) -> Arc<dyn LogStore> {
    let volume = Arc::new(PosixVolume::open(dir).unwrap());
    store_on(layout, volume, dir, &Arc::default())
}

pub(crate) async fn try_open(
    store: &Arc<dyn LogStore>,
    instance: u64,
) -> Result<ShardInfo, StoreError> {
    let owner = OwnerEpoch {
        assignment: 1,
        instance,
    };
    store.open_shard(SHARD, owner).await
}

/// A store in `dir`, with the shard open.
pub(crate) async fn open(layout: Layout, dir: &Path, instance: u64) -> Arc<dyn LogStore> {
    for _ in 0..20 {
        let store = store(layout, dir);
        match try_open(&store, instance).await {
            Ok(info) => {
                assert_eq!(info.damaged, []);
                return store;
            }
            // The store before may take long to let its locks go on a machine that is busy.
            Err(StoreError::Offline(why)) if why.contains("in use by another process") => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{}: its locks are never let go", dir.display());
}

/// Closes a store and lets its index go.
pub(crate) async fn close(store: Arc<dyn LogStore>) {
    store.close().await.unwrap();
}

pub(crate) fn log(partition: u32) -> LogId {
    LogId {
        topic: Uuid::from_u128(7),
        partition,
    }
}

pub(crate) async fn add(store: &Arc<dyn LogStore>, partition: u32) {
    store.create(log(partition), "orders", SHARD).await.unwrap();
    store.acquire(log(partition), EPOCH).await.unwrap();
}

/// The batch that every run writes at an offset of a log: one record.
pub(crate) fn batch_at(partition: u32, offset: i64) -> Batch {
    let both = (u64::from(partition) << 40) | offset.cast_unsigned();
    let mixed = both.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let size = match mixed >> 60 {
        0 => 200_000,
        1..=3 => 17_000,
        _ => 300,
    };
    let [.., fill, more] = (mixed >> 40).to_be_bytes();
    batch_of(1, size + usize::from(more), offset, fill)
}

pub(crate) fn append(partition: u32, offset: i64) -> Op {
    sized(partition, offset, &batch_at(partition, offset))
}

pub(crate) fn sized(partition: u32, offset: i64, batch: &Batch) -> Op {
    Op::Append(Append {
        log: log(partition),
        epoch: EPOCH,
        expect_end: offset,
        append_ms: 5,
        batch: batch.stamp(offset, EPOCH),
    })
}

pub(crate) fn trim(partition: u32, start: i64) -> Op {
    Op::Trim {
        log: log(partition),
        epoch: EPOCH,
        start,
    }
}

pub(crate) async fn done(commits: Vec<Commit>) {
    for commit in commits {
        commit.await.unwrap();
    }
}

pub(crate) async fn read_all(
    store: &Arc<dyn LogStore>,
    partition: u32,
) -> Result<Vec<StoredBatch>, StoreError> {
    let bounds = store.bounds(log(partition)).ok_or(StoreError::NotFound)?;
    let mut all: Vec<StoredBatch> = Vec::new();
    let mut next = bounds.start;
    while next < bounds.end {
        let found = store.read(log(partition), next, 1 << 20, i64::MAX).await?;
        assert!(!found.is_empty(), "nothing at {next} of {bounds:?}");
        next = found.last().unwrap().last_offset + 1;
        all.extend(found);
    }
    Ok(all)
}

/// Whether the log holds what runs write, from its start to its end.
pub(crate) async fn check(store: &Arc<dyn LogStore>, partition: u32) -> Result<Bounds, StoreError> {
    let bounds = store.bounds(log(partition)).ok_or(StoreError::NotFound)?;
    let found = read_all(store, partition).await?;
    let offsets = bounds.start..bounds.end;
    assert_eq!(
        found.len(),
        usize::try_from(bounds.end - bounds.start).unwrap()
    );
    for (offset, stored) in offsets.zip(found) {
        assert_eq!(stored.base_offset, offset);
        let sent = batch_at(partition, offset).stamp(offset, EPOCH).to_bytes();
        assert!(
            stored.bytes == sent,
            "another batch at {offset} of log {partition}"
        );
    }
    Ok(bounds)
}

/// Keeps every third batch.
#[derive(Debug)]
struct Thirds;

impl Thirds {
    fn keeps(offset: i64) -> bool {
        offset % 3 == 0
    }
}

impl Sieve for Thirds {
    fn sift(&self, batch: &StoredBatch) -> Left {
        if Self::keeps(batch.base_offset) {
            Left::Whole
        } else {
            Left::Nothing
        }
    }
}

/// Compaction of a log up to an offset that leaves every third batch.
pub(crate) fn thirds(partition: u32, upto: i64) -> Rewrite {
    Rewrite {
        log: log(partition),
        epoch: EPOCH,
        upto,
        seal: true,
        sieve: Arc::new(Thirds),
    }
}

/// As [`check`], of a log of which [`thirds`] may have got anywhere: what it keeps is there, the
/// others are as they were sent or gone, and every offset has a batch that answers for it. Also how
/// many are gone.
pub(crate) async fn check_thirds(
    store: &Arc<dyn LogStore>,
    partition: u32,
) -> Result<(Bounds, usize), StoreError> {
    let bounds = store.bounds(log(partition)).ok_or(StoreError::NotFound)?;
    let (mut next, mut there) = (bounds.start, BTreeSet::new());
    for stored in read_all(store, partition).await? {
        assert!(stored.last_offset >= next, "{next} of log {partition}");
        next = stored.last_offset + 1;
        let header = BatchHeader::read(&stored.bytes).unwrap();
        if header.records_count == 0 {
            continue;
        }
        let offset = header.base_offset;
        let sent = batch_at(partition, offset).stamp(offset, EPOCH).to_bytes();
        assert!(
            stored.bytes == sent,
            "another batch at {offset} of log {partition}"
        );
        there.insert(offset);
    }
    assert_eq!(next, bounds.end);
    let gone: Vec<i64> = (bounds.start..bounds.end)
        .filter(|offset| !there.contains(offset))
        .collect();
    // The last batch of a log stays, whatever is asked.
    let wrong = gone
        .iter()
        .find(|offset| Thirds::keeps(**offset) || **offset == bounds.end - 1);
    assert_eq!(wrong, None, "gone from log {partition}, {bounds:?}");
    Ok((bounds, gone.len()))
}

/// Every file below `dir`, in order.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                _ => found.push(entry.path()),
            }
        }
    }
    found.sort();
    found
}

/// Bytes that the files below `dir` take on the disk.
pub(crate) fn disk_bytes(dir: &Path) -> u64 {
    let blocks = files(dir).into_iter().map(|path| {
        // One may go while they are counted.
        fs::metadata(path).map_or(0, |found| found.blocks() * 512)
    });
    blocks.sum()
}

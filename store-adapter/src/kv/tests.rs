//! Databases as earlier versions wrote them, and logs that pass a sieve.

#![allow(clippy::disallowed_methods, reason = "tests have tasks of their own")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::db::{Changes, Db};
use super::{KvConfig, KvStore, keys, sled_dir};
use crate::batch::BatchHeader;
use crate::conformance::batch_of;
use crate::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};
use crate::runtime::{BoxFuture, Clock, Env};
use crate::store::{Append, Left, LogStore, Op, Rewrite, Sieve, Size, StoreError, StoredBatch};
use crate::volume::{DirEntry, PosixVolume, Space, Volume, VolumeFile, VolumeFuture, VolumePath};

const SHARD: ShardId = ShardId(0);
const EPOCH: LeaderEpoch = LeaderEpoch(1);
const LOG: LogId = LogId {
    topic: Uuid::from_u128(1),
    partition: 0,
};
/// Bytes of a batch.
const BATCH: usize = 150_000;
/// Bytes of a piece of earlier versions.
const OLD_PIECE: usize = 64 << 10;

async fn open(dir: &Path, instance: u64) -> KvStore {
    let volume = Arc::new(PosixVolume::open(dir).unwrap());
    let store = KvStore::new(Env::real(), volume, dir, KvConfig::default());
    let owner = OwnerEpoch {
        assignment: 1,
        instance,
    };
    store.open_shard(SHARD, owner).await.unwrap();
    store
}

fn append(end: i64) -> Op {
    sized(end, BATCH)
}

fn sized(end: i64, bytes: usize) -> Op {
    Op::Append(Append {
        log: LOG,
        epoch: EPOCH,
        expect_end: end,
        append_ms: 7,
        batch: batch_of(1, bytes, 3, 5).stamp(end, EPOCH),
    })
}

fn trim(start: i64) -> Op {
    Op::Trim {
        log: LOG,
        epoch: EPOCH,
        start,
    }
}

/// Does something to the database of a store that is closed.
async fn alone<T: Send + 'static>(dir: &Path, work: impl FnOnce(&Db) -> T + Send + 'static) -> T {
    let path = dir.join(sled_dir(SHARD).as_str());
    let work = move || work(&Db::open(path, "the test's".to_owned(), 1 << 20).unwrap());
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// The pieces of all batches, by their keys.
fn pieces(db: &Db) -> BTreeMap<Vec<u8>, Bytes> {
    let mut found = BTreeMap::new();
    db.each(vec![b'd']..vec![b'e'], |key, piece| {
        found.insert(key.to_vec(), Bytes::copy_from_slice(piece));
        Ok(true)
    })
    .unwrap();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_in_larger_pieces_are_read_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 1).await;
    store.create(LOG, "orders", SHARD).await.unwrap();
    store.acquire(LOG, EPOCH).await.unwrap();
    for end in 0..2 {
        store.submit(vec![append(end)]).await.unwrap();
    }
    let sent = store.read(LOG, 0, usize::MAX, i64::MAX).await.unwrap();
    assert_eq!(sent.len(), 2);
    store.close().await.unwrap();
    let counts = alone(dir.path(), |db| {
        let now = pieces(db);
        let mut batches: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut changes = Changes::default();
        for (key, piece) in &now {
            let batch = batches.entry(key[..17].to_vec()).or_default();
            batch.extend_from_slice(piece);
            changes.remove(key.clone());
        }
        // Birth and base offset are those of the keys.
        for (batch, bytes) in &batches {
            let birth = u64::from_be_bytes(batch[1..9].try_into().unwrap());
            let base = i64::from_be_bytes(batch[9..].try_into().unwrap());
            for (number, piece) in (0..).zip(bytes.chunks(OLD_PIECE)) {
                changes.put(keys::piece_key(birth, base, number), piece.to_vec());
            }
        }
        db.apply(changes).unwrap();
        db.flush().unwrap();
        (now.len(), pieces(db).len())
    });
    assert_eq!(counts.await, (2 * BATCH.div_ceil(keys::PIECE_BYTES), 6));
    let store = open(dir.path(), 2).await;
    let read = store.read(LOG, 0, usize::MAX, i64::MAX).await.unwrap();
    assert_eq!(read, sent);
    store.submit(vec![trim(2)]).await.unwrap();
    // What a trim leaves is removed between rounds.
    store.submit(vec![append(2)]).await.unwrap();
    store.submit(vec![append(3)]).await.unwrap();
    store.close().await.unwrap();
    let left = alone(dir.path(), |db| pieces(db).len()).await;
    assert_eq!(left, 2 * BATCH.div_ceil(keys::PIECE_BYTES));
}

/// Keeps every so many.
#[derive(Debug)]
struct Every(i64);

impl Sieve for Every {
    fn sift(&self, batch: &StoredBatch) -> Left {
        if batch.base_offset % self.0 == 0 {
            Left::Whole
        } else {
            Left::Nothing
        }
    }
}

fn every(each: i64, upto: i64) -> Rewrite {
    Rewrite {
        log: LOG,
        epoch: EPOCH,
        upto,
        seal: false,
        sieve: Arc::new(Every(each)),
    }
}

/// A store with so many batches of so many bytes, of one record each.
async fn filled(dir: &Path, batches: i64, bytes: usize) -> KvStore {
    let store = open(dir, 1).await;
    store.create(LOG, "orders", SHARD).await.unwrap();
    store.acquire(LOG, EPOCH).await.unwrap();
    for end in 0..batches {
        store.submit(vec![sized(end, bytes)]).await.unwrap();
    }
    store
}

fn is_full(batch: &StoredBatch) -> bool {
    BatchHeader::read(&batch.bytes).unwrap().records_count > 0
}

/// All batches from the start on; each offset has one that answers for it, and the store knows how
/// many bytes they are.
async fn all(store: &KvStore) -> Vec<StoredBatch> {
    let bounds = store.bounds(LOG).unwrap();
    let (mut found, mut next): (Vec<StoredBatch>, _) = (Vec::new(), bounds.start);
    while next < bounds.end {
        let read = store.read(LOG, next, 100_000, i64::MAX).await.unwrap();
        for batch in read {
            assert!(batch.last_offset >= next, "{next}");
            next = batch.last_offset + 1;
            found.push(batch);
        }
    }
    let sum: usize = found.iter().map(|batch| batch.bytes.len()).sum();
    let size = Size {
        bytes: sum as u64,
        from: bounds.start,
    };
    assert_eq!(store.size(LOG), Some(size));
    let pieces = store.pieces(LOG, bounds.start, u64::MAX).await.unwrap();
    let mut next = bounds.start;
    for piece in &pieces {
        assert_eq!(piece.base, next);
        next = piece.last + 1;
    }
    assert_eq!(next, bounds.end);
    let bytes: u64 = pieces.iter().map(|piece| piece.bytes).sum();
    assert_eq!(bytes, sum as u64);
    found
}

/// The batches of `found` that have records.
fn full(found: &[StoredBatch]) -> Vec<StoredBatch> {
    found
        .iter()
        .filter(|batch| is_full(batch))
        .cloned()
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_a_sieve_stays_and_the_rest_goes() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), 40, 50_000).await;
    let sent = all(&store).await;
    assert_eq!(store.settled(LOG), Some(40));
    let done = store.rewrite(every(4, 30)).await.unwrap();
    assert_eq!(done.upto, 30);
    assert!(done.bytes_after < done.bytes_before / 2, "{done:?}");
    let kept = |upto: i64| {
        let keep =
            move |batch: &&StoredBatch| batch.base_offset % 4 == 0 || batch.base_offset >= upto;
        sent.iter().filter(keep).cloned().collect::<Vec<_>>()
    };
    assert_eq!(full(&all(&store).await), kept(30));
    // The last one stays, whatever is asked.
    let done = store.rewrite(every(4, 40)).await.unwrap();
    assert_eq!(done.upto, 40);
    let left = all(&store).await;
    assert_eq!(full(&left), kept(39));
    let first = store.find_time(LOG, 0, 3).await.unwrap();
    assert_eq!(first.as_ref(), sent.first());
    store.close().await.unwrap();
    let store = open(dir.path(), 2).await;
    assert_eq!(all(&store).await, left);
    // A start in a gap, and one behind it.
    for start in [9, 12, 39] {
        store.submit(vec![trim(start)]).await.unwrap();
        let now = all(&store).await;
        let there = left.iter().filter(|batch| batch.last_offset >= start);
        assert_eq!(now, there.cloned().collect::<Vec<_>>(), "{start}");
    }
    assert_eq!(
        store.acquire(LOG, LeaderEpoch(2)).await.unwrap().bounds.end,
        40
    );
    let fenced = store.rewrite(every(8, 40)).await;
    assert_eq!(fenced, Err(StoreError::Fenced));
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sieves_trims_and_openings_in_any_order_leave_what_a_model_has() {
    for seed in 0..8 {
        let mut random = fastrand::Rng::with_seed(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut store = filled(dir.path(), 3, 500).await;
        let mut instance = 1;
        // Whether a batch was sifted out.
        let mut gone = vec![false; 3];
        let mut sent = all(&store).await;
        for step in 0..40 {
            let what = format!("seed {seed}, step {step}");
            let bounds = store.bounds(LOG).unwrap();
            match random.u32(0..10) {
                0 | 1 => {
                    let start = random.i64(bounds.start..=bounds.end);
                    store.submit(vec![trim(start)]).await.unwrap();
                }
                2..=4 => {
                    let (each, upto) = (random.i64(1..6), random.i64(bounds.start..=bounds.end));
                    store.rewrite(every(each, upto)).await.unwrap();
                    let sifted = bounds.start..upto.min(bounds.end - 1);
                    for at in sifted.filter(|at| at % each != 0) {
                        gone[usize::try_from(at).unwrap()] = true;
                    }
                }
                5 => {
                    store.close().await.unwrap();
                    instance += 1;
                    store = open(dir.path(), instance).await;
                }
                _ => {
                    let bytes = random.usize(100..60_000);
                    let op = sized(bounds.end, bytes);
                    store.submit(vec![op]).await.unwrap();
                    let read = store.read(LOG, bounds.end, 1, i64::MAX).await;
                    sent.extend(read.unwrap());
                    gone.push(false);
                }
            }
            let start = store.bounds(LOG).unwrap().start;
            let there = sent
                .iter()
                .zip(&gone)
                .filter(|(batch, gone)| batch.base_offset >= start && !**gone);
            let there: Vec<StoredBatch> = there.map(|(batch, _)| batch.clone()).collect();
            let mut found = full(&all(&store).await);
            // One that also answers for the start may lie before it.
            found.retain(|batch| batch.base_offset >= start);
            assert_eq!(found, there, "{what}");
        }
        store.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_in_the_middle_see_whole_batches_and_go_forward() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(filled(dir.path(), 64, 20_000).await);
    let sent = all(&store).await;
    let done = Arc::new(AtomicBool::new(false));
    let readers = (0..2).map(|_| {
        let (store, done, sent) = (Arc::clone(&store), Arc::clone(&done), sent.clone());
        tokio::spawn(async move {
            while !done.load(Ordering::SeqCst) {
                let (mut next, mut seen) = (0, Vec::new());
                while next < 64 {
                    let found = store.read(LOG, next, 60_000, i64::MAX).await.unwrap();
                    for batch in found {
                        assert!(batch.last_offset >= next, "{next}");
                        next = batch.last_offset + 1;
                        if is_full(&batch) {
                            assert!(sent.contains(&batch), "{}", batch.base_offset);
                            seen.push(batch.base_offset);
                        }
                    }
                }
                assert!((0..64).step_by(16).all(|kept| seen.contains(&kept)));
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    for each in [2, 4, 8, 16] {
        store.rewrite(every(each, 64)).await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    store.close().await.unwrap();
}

/// A volume that counts how often it is looked who owns something.
#[derive(Debug)]
struct Watched {
    inner: PosixVolume,
    looks: AtomicU64,
}

impl Volume for Watched {
    fn create_new<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        self.inner.create_new(path)
    }

    fn open<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        self.inner.open(path)
    }

    fn open_write<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        self.inner.open_write(path)
    }

    fn read<'a>(&'a self, path: &'a VolumePath, max: u64) -> VolumeFuture<'a, Bytes> {
        let look = path.file_name() == "current.json";
        self.looks.fetch_add(u64::from(look), Ordering::SeqCst);
        self.inner.read(path, max)
    }

    fn rename<'a>(&'a self, from: &'a VolumePath, to: &'a VolumePath) -> VolumeFuture<'a, ()> {
        self.inner.rename(from, to)
    }

    fn remove<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()> {
        self.inner.remove(path)
    }

    fn remove_dir<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()> {
        self.inner.remove_dir(path)
    }

    fn list<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, Vec<DirEntry>> {
        self.inner.list(dir)
    }

    fn create_dir_all<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()> {
        self.inner.create_dir_all(dir)
    }

    fn sync_dir<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()> {
        self.inner.sync_dir(dir)
    }

    fn space(&self) -> VolumeFuture<'_, Space> {
        self.inner.space()
    }
}

/// A clock by which every look is an hour later, and nobody who sleeps wakes up.
#[derive(Debug, Default)]
struct Hours(AtomicU64);

impl Clock for Hours {
    fn wall_ms(&self) -> i64 {
        0
    }

    fn monotonic(&self) -> Duration {
        Duration::from_secs(3600 * self.0.fetch_add(1, Ordering::SeqCst))
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sweeps_looks_whether_the_shard_is_still_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Arc::new(Watched {
        inner: PosixVolume::open(dir.path()).unwrap(),
        looks: AtomicU64::new(0),
    });
    let env = Env {
        clock: Arc::new(Hours::default()),
        ..Env::real()
    };
    let on: Arc<dyn Volume> = volume.clone();
    let store = KvStore::new(env, on, dir.path(), KvConfig::default());
    let owner = OwnerEpoch::single(1);
    store.open_shard(SHARD, owner).await.unwrap();
    store.create(LOG, "orders", SHARD).await.unwrap();
    store.acquire(LOG, EPOCH).await.unwrap();
    // More keys than one step removes, and than a few do.
    for group in 0..8 {
        let ops = (0..500).map(|n| sized(group * 500 + n, 80)).collect();
        store.submit(ops).await.unwrap();
    }
    let looks = || volume.looks.load(Ordering::SeqCst);
    let before = looks();
    store.acquire(LOG, LeaderEpoch(2)).await.unwrap();
    let of_a_round = looks() - before;
    assert!(of_a_round > 0);
    let before = looks();
    store.delete(LOG.topic).await.unwrap();
    let until = std::time::Instant::now() + Duration::from_mins(1);
    while looks() <= before + of_a_round {
        assert!(std::time::Instant::now() < until, "{} looks", looks());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    store.close().await.unwrap();
}

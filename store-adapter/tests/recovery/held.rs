//! What happens to journal files while they are sifted: the shard ends, a log is lost, a file goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use store_adapter::ids::LeaderEpoch;
use store_adapter::journal::{JournalStore, MemoryIndex};
use store_adapter::runtime::BoxFuture;
use store_adapter::store::{LogStore, Op, Rewrite, Rewritten, StoreError, StoredBatch};
use store_adapter::volume::VolumePath;
use store_adapter::volume::memory::{MemoryVolume, Step, StepHook, StepOp, StepOutcome};
use tokio::sync::{Notify, Semaphore};

use crate::sift::{BATCHES, both, every, fill, is_empty};
use crate::support::{EPOCH, files, log, open, read_all, store_on, submit_sized};

/// Holds reads of some journal files back, once it is armed.
#[derive(Debug)]
struct HoldReads {
    /// How the names of the files end; closed, a semaphore lets its reads go on.
    of: Vec<(&'static str, Arc<Semaphore>)>,
    armed: AtomicBool,
    waits: Notify,
}

impl HoldReads {
    fn new(of: &[&'static str]) -> Arc<Self> {
        let of = of.iter().map(|of| (*of, Arc::new(Semaphore::new(0))));
        Arc::new(Self {
            of: of.collect(),
            armed: AtomicBool::new(false),
            waits: Notify::new(),
        })
    }

    /// Lets the reads of the files go on that were named first, second, …
    fn release(&self, number: usize) {
        self.of[number].1.close();
    }
}

impl StepHook for HoldReads {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let path = step.path.as_str();
        let held = self.of.iter().find(|(of, _)| path.ends_with(of));
        let armed = step.op == StepOp::ReadAt && self.armed.load(Ordering::SeqCst);
        let Some((_, go_on)) = held.filter(|(_, go_on)| armed && !go_on.is_closed()) else {
            return Box::pin(std::future::ready(StepOutcome::Proceed));
        };
        self.waits.notify_one();
        let go_on = Arc::clone(go_on);
        Box::pin(async move {
            drop(go_on.acquire().await);
            StepOutcome::Proceed
        })
    }
}

/// A store of which reads will be held, and what was sent to it.
async fn held(
    volume: &MemoryVolume,
    of: &[&'static str],
) -> (Arc<HoldReads>, Arc<JournalStore>, [Vec<StoredBatch>; 2]) {
    let hook = HoldReads::new(of);
    let mount = volume.mount(Arc::clone(&hook) as Arc<dyn StepHook>, None);
    let store = Arc::new(store_on(&mount, &Arc::new(MemoryIndex::new())));
    fill(&store).await;
    let sent = both(&store).await;
    hook.armed.store(true, Ordering::SeqCst);
    (hook, store, sent)
}

fn sifting(
    store: &Arc<JournalStore>,
    rewrite: Rewrite,
) -> tokio::task::JoinHandle<Result<Rewritten, StoreError>> {
    let store = Arc::clone(store);
    tokio::spawn(async move { store.rewrite(rewrite).await })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_ends_does_not_wait_for_its_sieves() {
    let volume = MemoryVolume::new();
    let (hook, store, _) = held(&volume, &[".log"]).await;
    let sifted = sifting(&store, every(4, EPOCH, true));
    hook.waits.notified().await;
    let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
    open(&taker, 2).await.unwrap();
    // By this it learns that the shard is another's.
    assert!(submit_sized(&store, 1, BATCHES, 2, 300).await.is_err());
    // No read ever comes back.
    let closed = tokio::time::timeout(Duration::from_mins(2), store.close());
    closed.await.expect("it waits for the sieves").unwrap();
    assert!(sifted.await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_log_that_is_lost_does_not_stop_the_others() {
    let volume = MemoryVolume::new();
    let (hook, store, sent) = held(&volume, &[".log"]).await;
    let lost = sifting(&store, every(4, EPOCH, false));
    let other = Rewrite {
        log: log(1),
        ..every(4, EPOCH, false)
    };
    let other = sifting(&store, other);
    hook.waits.notified().await;
    store.acquire(log(0), LeaderEpoch(2)).await.unwrap();
    hook.release(0);
    assert_eq!(lost.await.unwrap(), Err(StoreError::Fenced));
    let done = other.await.unwrap().unwrap();
    assert_eq!(Some(done.upto), store.settled(log(1)));
    assert!(done.bytes_after < done.bytes_before, "{done:?}");
    assert_eq!(read_all(&store, 0).await.unwrap(), sent[0]);
    let left = read_all(&store, 1).await.unwrap();
    assert!(left.len() < sent[1].len(), "{}", left.len());
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_nobody_needs_any_more_stops_nobody() {
    let volume = MemoryVolume::new();
    let (hook, store, _) = held(&volume, &["-1.log"]).await;
    let sifted = sifting(&store, every(4, EPOCH, true));
    hook.waits.notified().await;
    let start = 30;
    for partition in 0..2 {
        let trim = Op::Trim {
            log: log(partition),
            epoch: EPOCH,
            start,
        };
        store.submit(vec![trim]).await.unwrap();
    }
    let gone = |files: Vec<(VolumePath, Vec<u8>)>| {
        let mut names = files.iter().map(|(path, _)| path.as_str());
        !names.any(|path| path.ends_with("-1.log"))
    };
    while !gone(files(&volume).await) {
        tokio::task::yield_now().await;
    }
    hook.release(0);
    let done = sifted.await.unwrap().unwrap();
    assert_eq!(done.upto, BATCHES - 1);
    let left = read_all(&store, 0).await.unwrap();
    let full = left.iter().filter(|batch| !is_empty(batch));
    let full: Vec<i64> = full.map(|batch| batch.base_offset).collect();
    assert_eq!(full, [32, 36, 40, 43]);
    store.close().await.unwrap();
}

/// As many files are sifted as a shard has: what others give up meanwhile does not wait for that.
#[tokio::test(flavor = "multi_thread")]
async fn space_is_given_back_between_two_files_that_are_sifted() {
    let volume = MemoryVolume::new();
    let (hook, store, sent) = held(&volume, &["-1.log", "-3.log"]).await;
    let sifted = sifting(
        &store,
        Rewrite {
            log: log(1),
            ..every(4, EPOCH, true)
        },
    );
    // The first file is done with, and holds all of the large log.
    hook.waits.notified().await;
    let bytes = |found: Vec<(VolumePath, Vec<u8>)>| {
        let first = |(path, _): &&(VolumePath, _)| path.as_str().ends_with("-0.log");
        found.iter().find(first).map_or(0, |(_, bytes)| bytes.len())
    };
    assert!(bytes(files(&volume).await) > 250_000);
    // Where the last file begins.
    let start = 39;
    let trim = Op::Trim {
        log: log(0),
        epoch: EPOCH,
        start,
    };
    store.submit(vec![trim]).await.unwrap();
    hook.release(0);
    let given = async {
        while bytes(files(&volume).await) > 50_000 {
            tokio::task::yield_now().await;
        }
    };
    let given = tokio::time::timeout(Duration::from_mins(2), given).await;
    given.expect("it waits for all that is sifted");
    assert!(!sifted.is_finished());
    hook.release(1);
    let done = sifted.await.unwrap().unwrap();
    assert_eq!(done.upto, BATCHES - 1);
    let left = both(&store).await;
    assert_eq!(left[0], sent[0][usize::try_from(start).unwrap()..]);
    assert!(left[1].len() < sent[1].len(), "{}", left[1].len());
    store.close().await.unwrap();
}

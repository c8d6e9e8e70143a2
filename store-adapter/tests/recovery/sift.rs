//! Journal files that pass a sieve while they are written anew: at every crash point, under
//! readers, under another owner, and beside what looks at a store offline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use store_adapter::batch::BatchHeader;
use store_adapter::ids::LeaderEpoch;
use store_adapter::journal::{JournalStore, MemoryIndex, OfflineShard};
use store_adapter::runtime::BoxFuture;
use store_adapter::store::{Left, LogStore, Rewrite, Rewritten, Sieve, StoreError, StoredBatch};
use store_adapter::volume::memory::{MemoryVolume, Step, StepFault, StepHook, StepOp, StepOutcome};
use tokio::sync::Notify;

use crate::support::{
    EPOCH, SHARD, add, files, io, log, open, read_all, store_on, submit_sized, tell,
};

/// Batches of a log; a file holds thirteen.
pub(crate) const BATCHES: i64 = 44;
/// What is left where every fourth is kept: they, and the last one.
const KEPT: usize = 12;

/// Keeps every so many.
#[derive(Debug)]
struct Every(i64);

impl Every {
    fn keeps(&self, offset: i64) -> bool {
        offset % self.0 == 0
    }
}

impl Sieve for Every {
    fn sift(&self, batch: &StoredBatch) -> Left {
        if self.keeps(batch.base_offset) {
            Left::Whole
        } else {
            Left::Nothing
        }
    }
}

pub(crate) async fn fill(store: &JournalStore) {
    open(store, 1).await.unwrap();
    add(store, 0).await;
    add(store, 1).await;
    for end in 0..BATCHES {
        submit_sized(store, 0, end, 1, 20_000).await.unwrap();
        submit_sized(store, 1, end, 2, 300).await.unwrap();
    }
}

pub(crate) fn every(each: i64, epoch: LeaderEpoch, seal: bool) -> Rewrite {
    Rewrite {
        log: log(0),
        epoch,
        upto: BATCHES - 1,
        seal,
        sieve: Arc::new(Every(each)),
    }
}

async fn sift(store: &JournalStore, epoch: LeaderEpoch) -> Result<Rewritten, StoreError> {
    store.rewrite(every(4, epoch, true)).await
}

pub(crate) fn is_empty(batch: &StoredBatch) -> bool {
    BatchHeader::read(&batch.bytes).unwrap().records_count == 0
}

/// What is read is what was sent: all that is kept, and of the rest what is not gone yet.
async fn check(store: &JournalStore, sent: &[Vec<StoredBatch>; 2], what: &str) -> usize {
    let found = read_all(store, 0).await.unwrap();
    let full: Vec<_> = found.iter().filter(|batch| !is_empty(batch)).collect();
    for batch in &full {
        assert!(sent[0].contains(batch), "{what}: {}", batch.base_offset);
    }
    for kept in sent[0]
        .iter()
        .filter(|batch| Every(4).keeps(batch.base_offset))
    {
        assert!(full.contains(&kept), "{what}: {} is gone", kept.base_offset);
    }
    assert_eq!(found.last(), sent[0].last(), "{what}");
    for offset in 0..BATCHES {
        let next = store.read(log(0), offset, 1, i64::MAX).await.unwrap();
        let next = next
            .first()
            .unwrap_or_else(|| panic!("{what}: nothing from {offset} on"));
        assert!(next.last_offset >= offset, "{what}");
    }
    assert_eq!(read_all(store, 1).await.unwrap(), sent[1], "{what}");
    full.len()
}

pub(crate) async fn both(store: &JournalStore) -> [Vec<StoredBatch>; 2] {
    [
        read_all(store, 0).await.unwrap(),
        read_all(store, 1).await.unwrap(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_stays_and_the_rest_gives_its_space_back() {
    let volume = MemoryVolume::new();
    let store = store_on(&volume, &Arc::new(MemoryIndex::new()));
    fill(&store).await;
    let sent = both(&store).await;
    let settled = store.settled(log(0)).unwrap();
    assert!(settled > 0 && settled < BATCHES, "{settled}");
    // What is being written stays as it is.
    let some = store.rewrite(every(4, EPOCH, false)).await.unwrap();
    assert_eq!(some.upto, settled);
    assert!(some.bytes_after < some.bytes_before / 2, "{some:?}");
    let left = check(&store, &sent, "open").await;
    let all = sift(&store, EPOCH).await.unwrap();
    assert_eq!(all.upto, BATCHES - 1);
    assert_eq!(store.settled(log(0)), Some(BATCHES));
    assert!(left > KEPT);
    assert_eq!(check(&store, &sent, "sealed").await, KEPT);
    let bytes: usize = files(&volume)
        .await
        .iter()
        .map(|(_, bytes)| bytes.len())
        .sum();
    assert!(bytes < 400_000, "{bytes}");
    // Again is no work.
    let before = files(&volume).await;
    let again = sift(&store, EPOCH).await.unwrap();
    assert_eq!(again.bytes_before, again.bytes_after);
    assert_eq!(files(&volume).await, before);
    // The log goes on, also from a start in a gap.
    submit_sized(&store, 0, BATCHES, 1, 100).await.unwrap();
    let found = store.find_time(log(0), 0, 3).await.unwrap();
    assert_eq!(found.as_ref(), sent[0].first());
    let pieces = store.pieces(log(0), 0, u64::MAX).await.unwrap();
    let mut next = 0;
    for piece in pieces {
        assert_eq!(piece.base, next);
        next = piece.last + 1;
    }
    assert_eq!(next, BATCHES + 1);
    store.close().await.unwrap();
    let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
    assert_eq!(open(&taker, 2).await.unwrap().damaged, []);
    assert_eq!(read_all(&taker, 1).await.unwrap(), sent[1]);
    taker.close().await.unwrap();
    let findings = io(async move {
        let shard = OfflineShard::read(Arc::new(volume), SHARD).await.unwrap();
        shard.check(true).await
    });
    assert_eq!(findings.await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_holds_the_log_may() {
    let volume = MemoryVolume::new();
    let store = store_on(&volume, &Arc::new(MemoryIndex::new()));
    fill(&store).await;
    let sent = both(&store).await;
    store.acquire(log(0), LeaderEpoch(2)).await.unwrap();
    assert_eq!(sift(&store, EPOCH).await, Err(StoreError::Fenced));
    assert_eq!(both(&store).await, sent);
    assert!(sift(&store, LeaderEpoch(2)).await.is_ok());
    let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
    open(&taker, 2).await.unwrap();
    let before = both(&taker).await;
    assert!(store.rewrite(every(8, LeaderEpoch(2), true)).await.is_err());
    assert_eq!(both(&taker).await, before);
}

/// Stops the process at one step of a file that is written anew.
#[derive(Debug, Default)]
struct StopAt {
    armed: AtomicBool,
    behind: bool,
    /// Steps until then.
    left: AtomicU64,
    stopped: AtomicBool,
    stops: Notify,
}

impl StepHook for StopAt {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let counts = self.armed.load(Ordering::SeqCst) && step.op.changes();
        let mut outcome = StepOutcome::Proceed;
        if self.stopped.load(Ordering::SeqCst) {
            outcome = StepOutcome::Stop;
        } else if counts && self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            self.stopped.store(true, Ordering::SeqCst);
            self.stops.notify_one();
            outcome = if self.behind {
                StepOutcome::StopAfter
            } else {
                StepOutcome::Stop
            };
        }
        Box::pin(std::future::ready(outcome))
    }
}

/// Whether the crash came; it does not once all is done before it.
async fn crash_at(steps: u64, behind: bool, cut: bool) -> bool {
    let what = format!("step {steps}, behind {behind}, cut {cut}");
    let volume = MemoryVolume::new();
    let hook = Arc::new(StopAt {
        behind,
        left: AtomicU64::new(steps),
        ..StopAt::default()
    });
    let mount = volume.mount(Arc::clone(&hook) as Arc<dyn StepHook>, None);
    let store = store_on(&mount, &Arc::new(MemoryIndex::new()));
    fill(&store).await;
    let sent = both(&store).await;
    hook.armed.store(true, Ordering::SeqCst);
    let crashed = tokio::select! {
        done = sift(&store, EPOCH) => {
            done.unwrap();
            false
        }
        () = hook.stops.notified() => true,
    };
    hook.stopped.store(true, Ordering::SeqCst);
    if cut {
        volume.power_cut(steps);
    }
    let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
    let info = open(&taker, 2).await.unwrap();
    assert_eq!(info.damaged, [], "{what}");
    check(&taker, &sent, &what).await;
    let epoch = LeaderEpoch(2);
    taker.acquire(log(0), epoch).await.unwrap();
    // Whoever comes next goes on with it.
    let all = sift(&taker, epoch).await.unwrap();
    assert_eq!(all.upto, BATCHES - 1, "{what}");
    assert_eq!(check(&taker, &sent, &what).await, KEPT, "{what}");
    taker.close().await.unwrap();
    crashed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_every_step_leaves_the_old_or_the_new() {
    let mut crashes = 0;
    // Some steps at once: most of the time is spent waiting for what gathers.
    for first in (0..).step_by(4) {
        let steps = (first..first + 4).flat_map(|steps| [(steps, true), (steps, false)]);
        let runs =
            steps.flat_map(|(steps, behind)| [(steps, behind, true), (steps, behind, false)]);
        let runs = runs.map(|(steps, behind, cut)| tokio::spawn(crash_at(steps, behind, cut)));
        let mut came = false;
        for run in runs.collect::<Vec<_>>() {
            let crashed = run.await.unwrap();
            crashes += u32::from(crashed);
            came |= crashed;
        }
        if !came {
            break;
        }
    }
    tell(&format!("{crashes} crashes while files were sifted"));
    assert!(crashes > 40, "{crashes}");
}

/// Answers the first rename over a journal file as it is told.
#[derive(Debug)]
struct FirstRename(StepOutcome, AtomicBool);

impl StepHook for FirstRename {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let to = step.to.as_ref();
        let over = to.is_some_and(|to| to.as_str().ends_with(".log"));
        let first = step.op == StepOp::Rename && over && !self.1.swap(true, Ordering::SeqCst);
        let outcome = if first { self.0 } else { StepOutcome::Proceed };
        Box::pin(std::future::ready(outcome))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rename_of_unknown_outcome_is_settled_by_the_next_one() {
    for outcome in [
        StepOutcome::FailAfter(StepFault::Io),
        StepOutcome::Late(StepFault::Io),
    ] {
        let volume = MemoryVolume::new();
        let hook = Arc::new(FirstRename(outcome, AtomicBool::new(false)));
        let mount = volume.mount(Arc::clone(&hook) as Arc<dyn StepHook>, None);
        let store = store_on(&mount, &Arc::new(MemoryIndex::new()));
        fill(&store).await;
        let sent = both(&store).await;
        let some = sift(&store, EPOCH).await.unwrap();
        assert!(hook.1.load(Ordering::SeqCst));
        assert_eq!(some.upto, 0, "{outcome:?}");
        check(&store, &sent, "unknown").await;
        let all = sift(&store, EPOCH).await.unwrap();
        assert_eq!(all.upto, BATCHES - 1, "{outcome:?}");
        assert_eq!(check(&store, &sent, "settled").await, KEPT, "{outcome:?}");
        for _ in 0..volume.late().len() {
            // One whose ticket is gone is not executed.
            volume.run_late(0).ok();
        }
        assert_eq!(check(&store, &sent, "late").await, KEPT, "{outcome:?}");
        store.close().await.unwrap();
        let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
        assert_eq!(open(&taker, 2).await.unwrap().damaged, [], "{outcome:?}");
        assert_eq!(check(&taker, &sent, "reopened").await, KEPT, "{outcome:?}");
    }
}

/// Lets readers in between the steps by which a file takes another's place.
#[derive(Debug)]
struct Slow(Arc<Notify>);

impl StepHook for Slow {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let over = step.op == StepOp::Rename;
        let reads = Arc::clone(&self.0);
        Box::pin(async move {
            if over {
                reads.notified().await;
            }
            StepOutcome::Proceed
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_in_the_middle_go_forward_and_miss_nothing_that_stays() {
    let volume = MemoryVolume::new();
    let reads = Arc::new(Notify::new());
    let quiet = store_on(&volume, &Arc::new(MemoryIndex::new()));
    fill(&quiet).await;
    quiet.close().await.unwrap();
    reads.notify_one();
    let mount = volume.mount(Arc::new(Slow(Arc::clone(&reads))), None);
    let store = Arc::new(store_on(&mount, &Arc::new(MemoryIndex::new())));
    let done = Arc::new(AtomicBool::new(false));
    let waker = Arc::clone(&reads);
    let opened = async {
        open(&store, 2).await.unwrap();
        store.acquire(log(0), LeaderEpoch(2)).await.unwrap();
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let waking = tokio::spawn(async move {
        while !stopped.load(Ordering::SeqCst) {
            waker.notify_one();
            tokio::task::yield_now().await;
        }
    });
    opened.await;
    let sent = both(&store).await;
    let readers = (0..2).map(|_| {
        let (store, done, sent) = (Arc::clone(&store), Arc::clone(&done), sent[0].clone());
        tokio::spawn(async move {
            while !done.load(Ordering::SeqCst) {
                let (mut next, mut seen) = (0, Vec::new());
                while next < BATCHES {
                    let found = store.read(log(0), next, 30_000, i64::MAX).await.unwrap();
                    for batch in found {
                        assert!(batch.last_offset >= next, "{next}");
                        next = batch.last_offset + 1;
                        if !is_empty(&batch) {
                            assert!(sent.contains(&batch), "{}", batch.base_offset);
                            seen.push(batch.base_offset);
                        }
                    }
                }
                for kept in (0..BATCHES).filter(|offset| Every(4).keeps(*offset)) {
                    assert!(seen.contains(&kept), "{kept} was missed");
                }
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    for each in [2, 4] {
        store
            .rewrite(every(each, LeaderEpoch(2), true))
            .await
            .unwrap();
    }
    done.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    waking.await.unwrap();
    assert_eq!(check(&store, &sent, "in the end").await, KEPT);
}

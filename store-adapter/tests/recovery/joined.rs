//! Small journal files that become one: at every crash point, under readers and trims, and where
//! nobody knows whether they did.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use store_adapter::journal::{
    FlushPolicy, JournalConfig, JournalCounters, JournalStore, MemoryIndex,
};
use store_adapter::runtime::{BoxFuture, Env};
use store_adapter::store::{Left, LogStore, Op, Rewrite, Sieve, StoredBatch};
use store_adapter::volume::memory::{MemoryVolume, Step, StepFault, StepHook, StepOp, StepOutcome};

use crate::rewrite::{HoldFirst, StopAt};
use crate::sift::{both, is_empty};
use crate::support::{
    EPOCH, add, config, files, log, open, read_all, store_on, submit_sized, tell,
};

/// Closed files before they are joined.
const FILES: i64 = 12;
/// How many become one.
const JOIN: usize = 3;
/// Files that go until fewer than that are left in a row.
const GONE: u64 = 10;
/// The round in which the last log is created: in the middle of what becomes one file.
const BORN: i64 = 5;

/// Leaves all of a batch, or nothing.
#[derive(Debug)]
struct All(bool);

impl Sieve for All {
    fn sift(&self, _batch: &StoredBatch) -> Left {
        if self.0 { Left::Whole } else { Left::Nothing }
    }
}

fn joining(
    volume: &MemoryVolume,
    join_files: usize,
    segment_bytes: u64,
) -> (Arc<JournalStore>, Arc<JournalCounters>) {
    let counters = Arc::new(JournalCounters::default());
    let config = JournalConfig {
        counters: Arc::clone(&counters),
        join_files,
        segment_bytes,
        ..config()
    };
    let index = Arc::new(MemoryIndex::new());
    let store = JournalStore::new(Env::real(), Arc::new(volume.clone()), index, config);
    (Arc::new(store), counters)
}

fn rewrite(upto: i64, left: bool) -> Rewrite {
    Rewrite {
        log: log(0),
        epoch: EPOCH,
        upto,
        seal: true,
        sieve: Arc::new(All(left)),
    }
}

async fn all(store: &JournalStore) -> [Vec<StoredBatch>; 3] {
    [
        read_all(store, 0).await.unwrap(),
        read_all(store, 1).await.unwrap(),
        read_all(store, 2).await.unwrap(),
    ]
}

async fn logs(volume: &MemoryVolume) -> Vec<String> {
    let files = files(volume).await.into_iter();
    let names = files.map(|(path, _)| path.as_str().to_owned());
    names.filter(|name| name.ends_with(".log")).collect()
}

async fn joined(counters: &JournalCounters, count: u64) {
    while counters.joined_files.load(Ordering::SeqCst) < count {
        tokio::task::yield_now().await;
    }
}

/// A store of small closed files, which its owner has left as they are, and what is in it.
async fn filled() -> (MemoryVolume, [Vec<StoredBatch>; 3]) {
    let volume = MemoryVolume::new();
    // A round is larger than a file may become.
    let (store, _) = joining(&volume, JOIN, 1);
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    add(&store, 1).await;
    for end in 0..FILES {
        if end == BORN {
            add(&store, 2).await;
        }
        submit_sized(&store, 0, end, 1, 300).await.unwrap();
        if end % 2 == 0 {
            submit_sized(&store, 1, end / 2, 2, 200).await.unwrap();
        }
        if end >= BORN {
            submit_sized(&store, 2, end - BORN, 3, 100).await.unwrap();
        }
    }
    let sent = all(&store).await;
    store.close().await.unwrap();
    assert!(logs(&volume).await.len() as u64 > GONE);
    (volume, sent)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_compacted_for_ever_has_a_few_files() {
    let volume = MemoryVolume::new();
    let (store, counters) = joining(&volume, JournalConfig::default().join_files, 16 << 10);
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    add(&store, 1).await;
    for end in 0..200 {
        submit_sized(&store, 0, end, 1, 9_000).await.unwrap();
        if end % 50 == 0 {
            submit_sized(&store, 1, end / 50, 2, 300).await.unwrap();
        }
    }
    let sent = both(&store).await;
    let before = logs(&volume).await.len();
    assert!(before > 80, "{before}");
    let done = store.rewrite(rewrite(199, false)).await.unwrap();
    assert_eq!(done.upto, 199);
    // Only what is written now, and fewer in a row than become one.
    while logs(&volume).await.len() > 8 {
        tokio::task::yield_now().await;
    }
    let bytes = counters.rewritten_bytes.load(Ordering::SeqCst);
    assert!(counters.freed_bytes.load(Ordering::SeqCst) > 1_500_000);
    assert!(bytes < 60_000, "{bytes} written for it");
    for instance in 2..4 {
        let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
        assert_eq!(open(&taker, instance).await.unwrap().damaged, []);
        let found = both(&taker).await;
        let full: Vec<_> = found[0].iter().filter(|batch| !is_empty(batch)).collect();
        assert_eq!(full, [sent[0].last().unwrap()]);
        assert_eq!(found[1], sent[1]);
        for offset in 0..200 {
            let next = taker.read(log(0), offset, 1, i64::MAX).await.unwrap();
            assert!(next.first().unwrap().last_offset >= offset);
        }
        // What stands for the rest is one batch in each file, not one for each file there was.
        assert!(found[0].len() < 10, "{}", found[0].len());
        taker.close().await.unwrap();
    }
}

/// Whether the crash came; it does not once all is joined before it.
async fn crash_at(steps: u64, behind: bool, seed: u64) -> bool {
    let (volume, expected) = filled().await;
    let hook = Arc::new(StopAt::new(steps, behind));
    let mount = volume.mount(Arc::clone(&hook) as Arc<dyn StepHook>, None);
    let (store, counters) = joining(&mount, JOIN, 256 << 10);
    open(&store, 2).await.unwrap();
    hook.arm();
    let is_done = || counters.joined_files.load(Ordering::SeqCst) >= GONE;
    while !hook.has_stopped() && !is_done() {
        tokio::task::yield_now().await;
    }
    let crashed = !is_done();
    hook.stop();
    for instance in 3..5 {
        if seed > 0 {
            volume.power_cut(seed + instance);
        }
        let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
        let info = open(&taker, instance).await.unwrap();
        let what = format!("step {steps}, behind {behind}, seed {seed}");
        assert_eq!(info.damaged, [], "{what}");
        assert_eq!(all(&taker).await, expected, "{what}");
        taker.close().await.unwrap();
    }
    crashed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_while_files_become_one_loses_nothing() {
    let mut crashes = 0;
    for steps in 0.. {
        let runs = (0..3).flat_map(|seed| [true, false].map(|behind| (seed, behind)));
        let runs = runs.map(|(seed, behind)| tokio::spawn(crash_at(steps, behind, seed)));
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
    tell(&format!("{crashes} crashes while files were joined"));
    assert!(crashes > 40, "{crashes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_see_nothing_of_files_that_become_one() {
    let (volume, expected) = filled().await;
    let (store, counters) = joining(&volume, JOIN, 256 << 10);
    open(&store, 2).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let readers = (0..3).map(|_| {
        let (store, done, expected) = (Arc::clone(&store), Arc::clone(&done), expected.clone());
        tokio::spawn(async move {
            let mut reads = 0;
            while !done.load(Ordering::SeqCst) || reads == 0 {
                for (offset, sent) in (0..).zip(&expected[0]) {
                    let found = store.read(log(0), offset, 1, i64::MAX).await.unwrap();
                    assert_eq!(found.first(), Some(sent));
                }
                assert_eq!(all(&store).await, expected);
                let found = store.find_time(log(1), 0, 3).await.unwrap();
                assert_eq!(found.as_ref(), expected[1].first());
                let pieces = store.pieces(log(2), 0, u64::MAX).await.unwrap();
                assert_eq!(pieces.last().unwrap().last, FILES - BORN - 1);
                reads += 1;
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    joined(&counters, GONE).await;
    done.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(counters.damaged_files(), Vec::<String>::new());
    assert_eq!(counters.failed_reads.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_nobody_needs_any_more_stays_while_others_come_to_it() {
    let (volume, mut expected) = filled().await;
    let hook = Arc::new(HoldFirst::default());
    let mount = volume.mount(Arc::clone(&hook) as Arc<dyn StepHook>, None);
    let (store, counters) = joining(&mount, JOIN, 256 << 10);
    open(&store, 2).await.unwrap();
    hook.waits.notified().await;
    // The file that is held has the second batch of this log alone.
    let trim = Op::Trim {
        log: log(0),
        epoch: EPOCH,
        start: 2,
    };
    store.submit(vec![trim]).await.unwrap();
    expected[0].drain(..2);
    for _ in 0..2_000 {
        // Whoever removes it at once has done so by now.
        tokio::task::yield_now().await;
    }
    hook.go_on.notify_one();
    while logs(&volume).await.len() > 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(all(&store).await, expected);
    assert_eq!(counters.damaged_files(), Vec::<String>::new());
    std::mem::forget(store);
    let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
    assert_eq!(open(&taker, 3).await.unwrap().damaged, []);
    assert_eq!(all(&taker).await, expected);
}

/// Executes the first rename over a journal file, and answers that it failed.
#[derive(Debug)]
struct Unknown {
    outcome: StepOutcome,
    renames: AtomicU64,
}

impl StepHook for Unknown {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let to = step.to.as_ref();
        let over = to.is_some_and(|to| to.as_str().ends_with(".log"));
        let first =
            step.op == StepOp::Rename && over && self.renames.fetch_add(1, Ordering::SeqCst) == 0;
        let outcome = if first {
            self.outcome
        } else {
            StepOutcome::Proceed
        };
        Box::pin(std::future::ready(outcome))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_compacted_behind_a_rename_of_unknown_outcome_does_not_come_back() {
    for outcome in [
        StepOutcome::Fail(StepFault::Io),
        StepOutcome::FailAfter(StepFault::Io),
        StepOutcome::Late(StepFault::Io),
    ] {
        let (volume, expected) = filled().await;
        let hook = Arc::new(Unknown {
            outcome,
            renames: AtomicU64::new(0),
        });
        let mount = volume.mount(Arc::clone(&hook) as Arc<dyn StepHook>, None);
        let (store, _) = joining(&mount, JOIN, 256 << 10);
        open(&store, 2).await.unwrap();
        while hook.renames.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(all(&store).await, expected);
        let done = store.rewrite(rewrite(FILES - 1, false)).await.unwrap();
        assert_eq!(done.upto, FILES - 1);
        // The process is gone.
        std::mem::forget(store);
        for _ in 0..volume.late().len() {
            // One whose ticket is gone is not executed.
            volume.run_late(0).ok();
        }
        let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
        assert_eq!(open(&taker, 3).await.unwrap().damaged, []);
        let found = all(&taker).await;
        let full: Vec<_> = found[0].iter().filter(|batch| !is_empty(batch)).collect();
        assert_eq!(full, [expected[0].last().unwrap()], "{outcome:?}");
        assert_eq!(found[1..], expected[1..]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_whose_rounds_were_not_synced_are_joined_too() {
    let (volume, expected) = filled().await;
    let counters = Arc::new(JournalCounters::default());
    let config = JournalConfig {
        counters: Arc::clone(&counters),
        join_files: JOIN,
        flush: FlushPolicy::Os,
        ..config()
    };
    let index = Arc::new(MemoryIndex::new());
    let store = JournalStore::new(Env::real(), Arc::new(volume.clone()), index, config);
    open(&store, 2).await.unwrap();
    joined(&counters, GONE).await;
    assert_eq!(all(&store).await, expected);
    volume.power_cut(1);
    let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
    assert_eq!(open(&taker, 3).await.unwrap().damaged, []);
    assert_eq!(all(&taker).await, expected);
}

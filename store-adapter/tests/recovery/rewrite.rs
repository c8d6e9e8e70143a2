//! Journal files that are written anew: at every crash point, under readers, under another owner.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use store_adapter::ids::LeaderEpoch;
use store_adapter::journal::{
    FlushPolicy, JournalConfig, JournalCounters, JournalStore, MemoryIndex,
};
use store_adapter::runtime::{BoxFuture, Env};
use store_adapter::store::{LogStore, Op, StoredBatch};
use store_adapter::volume::memory::{MemoryVolume, Step, StepFault, StepHook, StepOp, StepOutcome};
use store_adapter::volume::{Reserve, Volume, VolumePath};
use tokio::sync::{Notify, Semaphore};

use crate::support::{
    EPOCH, add, config, files, io, log, open, read_all, store_on, submit_sized, tell,
};

/// Batches of the log that is trimmed; a file holds about a dozen.
const FAST: i64 = 40;
/// A batch of the slow log comes with every so many.
const EACH: i64 = 4;

/// A store that counts, on a mount.
fn counting(
    volume: &MemoryVolume,
    flush: FlushPolicy,
) -> (Arc<JournalStore>, Arc<JournalCounters>) {
    let counters = Arc::new(JournalCounters::default());
    let config = JournalConfig {
        counters: Arc::clone(&counters),
        flush,
        ..config()
    };
    let index = Arc::new(MemoryIndex::new());
    let store = JournalStore::new(Env::real(), Arc::new(volume.clone()), index, config);
    (Arc::new(store), counters)
}

/// Two logs side by side: one large, one that few bytes of each file are of.
async fn fill(store: &JournalStore) {
    open(store, 1).await.unwrap();
    add(store, 0).await;
    add(store, 1).await;
    for end in 0..FAST {
        submit_sized(store, 0, end, 1, 20_000).await.unwrap();
        if end % EACH == 0 {
            submit_sized(store, 1, end / EACH, 2, 300).await.unwrap();
        }
    }
}

/// Nothing but the last batch of the large log is needed any more.
async fn trim(store: &JournalStore) {
    let trim = Op::Trim {
        log: log(0),
        epoch: EPOCH,
        start: FAST - 1,
    };
    store.submit(vec![trim]).await.unwrap();
}

async fn both(store: &JournalStore) -> [Vec<StoredBatch>; 2] {
    [
        read_all(store, 0).await.unwrap(),
        read_all(store, 1).await.unwrap(),
    ]
}

async fn journal_bytes(volume: &MemoryVolume) -> usize {
    let files = files(volume).await;
    let logs = files
        .iter()
        .filter(|(path, _)| path.as_str().ends_with(".log"));
    logs.map(|(_, bytes)| bytes.len()).sum()
}

async fn rewritten(counters: &JournalCounters, count: u64) {
    while counters.rewrites.load(Ordering::SeqCst) < count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_log_does_not_keep_the_space_of_others() {
    for flush in [FlushPolicy::Fsync, FlushPolicy::Os] {
        let volume = MemoryVolume::new();
        let (store, counters) = counting(&volume, flush);
        fill(&store).await;
        let before = both(&store).await;
        trim(&store).await;
        // All closed files but the last hold nothing but the slow log.
        rewritten(&counters, 2).await;
        let bound = (256 << 10) + (64 << 10);
        while journal_bytes(&volume).await > bound {
            tokio::task::yield_now().await;
        }
        let after = both(&store).await;
        assert_eq!(after[0], before[0][before[0].len() - 1..]);
        assert_eq!(after[1], before[1]);
        let found = store.find_time(log(1), 0, 3).await.unwrap();
        assert_eq!(found.as_ref(), before[1].first());
        submit_sized(&store, 1, FAST / EACH, 2, 300).await.unwrap();
        if flush == FlushPolicy::Os {
            continue;
        }
        let after = both(&store).await;
        for seed in 0..4 {
            volume.power_cut(seed);
            let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
            assert_eq!(open(&taker, 2 + seed).await.unwrap().damaged, []);
            assert_eq!(both(&taker).await, after);
            taker.acquire(log(1), LeaderEpoch(2)).await.unwrap();
        }
    }
}

/// With less free than half of what is reserved: appends may go on into it, and so may others.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_volume_gets_space_back_from_files_of_which_little_is_needed() {
    let volume = MemoryVolume::new();
    let counters = Arc::new(JournalCounters::default());
    let config = JournalConfig {
        counters: Arc::clone(&counters),
        reserve: Reserve::Bytes(1 << 20),
        ..config()
    };
    let index = Arc::new(MemoryIndex::new());
    let store = JournalStore::new(Env::real(), Arc::new(volume.clone()), index, config);
    fill(&store).await;
    let before = (both(&store).await, journal_bytes(&volume).await);
    let space = {
        let volume = volume.clone();
        io(async move { volume.space().await.unwrap() }).await
    };
    volume.set_total(space.total - space.free + (60 << 10));
    trim(&store).await;
    rewritten(&counters, 2).await;
    while journal_bytes(&volume).await > before.1 / 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(both(&store).await[1], before.0[1]);
}

/// Stops the process at one step of a file that is written anew.
#[derive(Debug, Default)]
pub(crate) struct StopAt {
    armed: AtomicBool,
    behind: bool,
    /// Steps until then.
    left: AtomicU64,
    stopped: AtomicBool,
}

impl StopAt {
    pub(crate) fn new(steps: u64, behind: bool) -> Self {
        Self {
            behind,
            left: AtomicU64::new(steps),
            ..Self::default()
        }
    }

    /// From now on steps count.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// The process is gone.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}

fn of_rewriting(step: &Step) -> bool {
    let ticket = step.path.file_name().starts_with("t-");
    let dir = step.op == StepOp::SyncDir && step.path.file_name() == "journal";
    let removed = step.op == StepOp::Remove;
    (ticket || dir || removed) && step.op.changes()
}

impl StepHook for StopAt {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let counts = self.armed.load(Ordering::SeqCst) && of_rewriting(step);
        let mut outcome = StepOutcome::Proceed;
        if self.stopped.load(Ordering::SeqCst) {
            outcome = StepOutcome::Stop;
        } else if counts && self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            self.stopped.store(true, Ordering::SeqCst);
            outcome = if self.behind {
                StepOutcome::StopAfter
            } else {
                StepOutcome::Stop
            };
        }
        Box::pin(std::future::ready(outcome))
    }
}

/// Whether the crash came; it does not once all files are written anew before it.
async fn crash_at(steps: u64, behind: bool, seed: u64) -> bool {
    let volume = MemoryVolume::new();
    let hook = Arc::new(StopAt::new(steps, behind));
    let mount = volume.mount(Arc::clone(&hook) as Arc<dyn StepHook>, None);
    let (store, counters) = counting(&mount, FlushPolicy::Fsync);
    fill(&store).await;
    let mut expected = both(&store).await;
    trim(&store).await;
    hook.arm();
    expected[0].drain(..expected[0].len() - 1);
    while !hook.has_stopped() && counters.rewrites.load(Ordering::SeqCst) < 3 {
        tokio::task::yield_now().await;
    }
    // The process is gone; then, by seed, the power too.
    hook.stop();
    for instance in 2..4 {
        if seed > 0 {
            volume.power_cut(seed + instance);
        }
        let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
        let info = open(&taker, instance).await.unwrap();
        assert_eq!(
            info.damaged,
            [],
            "step {steps}, behind {behind}, seed {seed}"
        );
        let found = both(&taker).await;
        assert_eq!(
            found, expected,
            "step {steps}, behind {behind}, seed {seed}"
        );
        taker.close().await.unwrap();
    }
    counters.rewrites.load(Ordering::SeqCst) < 3
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_every_step_loses_nothing() {
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
    tell(&format!("{crashes} crashes while files were written anew"));
    assert!(crashes > 40, "{crashes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_in_the_middle_see_nothing_of_it() {
    let volume = MemoryVolume::new();
    let (store, counters) = counting(&volume, FlushPolicy::Fsync);
    fill(&store).await;
    let expected = read_all(&store, 1).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let readers = (0..3).map(|_| {
        let (store, done, expected) = (Arc::clone(&store), Arc::clone(&done), expected.clone());
        tokio::spawn(async move {
            let mut reads = 0;
            while !done.load(Ordering::SeqCst) || reads == 0 {
                for (offset, sent) in (0..).zip(&expected) {
                    let found = store.read(log(1), offset, 1, i64::MAX).await.unwrap();
                    assert_eq!(found.first(), Some(sent));
                }
                let found = store.find_time(log(1), 0, 3).await.unwrap();
                assert_eq!(found.as_ref(), expected.first());
                reads += 1;
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    trim(&store).await;
    rewritten(&counters, 3).await;
    done.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(counters.damaged_files(), Vec::<String>::new());
}

/// Holds renames over journal files back, and then answers as it is told.
#[derive(Debug)]
struct HoldRename {
    waits: Notify,
    /// One for each that goes on; all of them once it is closed.
    go_on: Arc<Semaphore>,
    outcome: StepOutcome,
}

impl StepHook for HoldRename {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let over = step
            .to
            .as_ref()
            .is_some_and(|to| to.as_str().ends_with(".log"));
        if step.op != StepOp::Rename || !over {
            return Box::pin(std::future::ready(StepOutcome::Proceed));
        }
        self.waits.notify_one();
        let (go_on, outcome) = (Arc::clone(&self.go_on), self.outcome);
        Box::pin(async move {
            if let Ok(one) = go_on.acquire().await {
                one.forget();
            }
            outcome
        })
    }
}

fn holding(volume: &MemoryVolume, outcome: StepOutcome) -> (Arc<HoldRename>, MemoryVolume) {
    let hook = Arc::new(HoldRename {
        waits: Notify::new(),
        go_on: Arc::new(Semaphore::new(0)),
        outcome,
    });
    let mount = volume.mount(Arc::clone(&hook) as Arc<dyn StepHook>, None);
    (hook, mount)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_owner_changes_no_file_any_more() {
    let volume = MemoryVolume::new();
    let (hook, mount) = holding(&volume, StepOutcome::Proceed);
    let (old, counters) = counting(&mount, FlushPolicy::Fsync);
    fill(&old).await;
    trim(&old).await;
    hook.waits.notified().await;
    let new = store_on(&volume, &Arc::new(MemoryIndex::new()));
    open(&new, 2).await.unwrap();
    let expected = both(&new).await;
    hook.go_on.add_permits(1);
    // A fenced store is closed already.
    old.close().await.ok();
    assert_eq!(counters.rewrites.load(Ordering::SeqCst), 0);
    // The new owner may have written some anew by now; what it reads is the same.
    assert_eq!(both(&new).await, expected);
    let third = store_on(&volume, &Arc::new(MemoryIndex::new()));
    assert_eq!(open(&third, 3).await.unwrap().damaged, []);
    assert_eq!(both(&third).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rename_of_unknown_outcome_is_read_around() {
    for outcome in [
        StepOutcome::Fail(StepFault::Io),
        StepOutcome::FailAfter(StepFault::Io),
        StepOutcome::Late(StepFault::Io),
    ] {
        let volume = MemoryVolume::new();
        let (hook, mount) = holding(&volume, outcome);
        let (store, _) = counting(&mount, FlushPolicy::Fsync);
        fill(&store).await;
        let mut expected = both(&store).await;
        trim(&store).await;
        expected[0].drain(..expected[0].len() - 1);
        hook.waits.notified().await;
        hook.go_on.add_permits(1);
        // The next file, or this one again: whichever, what is read stays the same.
        for _ in 0..20 {
            assert_eq!(both(&store).await, expected);
        }
        hook.go_on.close();
        store.close().await.unwrap();
        for _ in 0..volume.late().len() {
            // One whose ticket is gone is not executed.
            volume.run_late(0).ok();
        }
        let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
        assert_eq!(open(&taker, 2).await.unwrap().damaged, [], "{outcome:?}");
        assert_eq!(both(&taker).await, expected, "{outcome:?}");
    }
}

/// Holds the first rename over a journal file back, and notes when a file is unlinked.
#[derive(Debug, Default)]
pub(crate) struct HoldFirst {
    /// The file that is held.
    held: OnceLock<VolumePath>,
    removed: AtomicBool,
    pub(crate) waits: Notify,
    pub(crate) go_on: Arc<Notify>,
}

impl StepHook for HoldFirst {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        if step.op == StepOp::Remove && self.held.get() == Some(&step.path) {
            self.removed.store(true, Ordering::SeqCst);
        }
        let over = step
            .to
            .clone()
            .filter(|to| step.op == StepOp::Rename && to.as_str().ends_with(".log"));
        if over.is_none_or(|over| self.held.set(over).is_err()) {
            return Box::pin(std::future::ready(StepOutcome::Proceed));
        }
        self.waits.notify_one();
        let go_on = Arc::clone(&self.go_on);
        Box::pin(async move {
            go_on.notified().await;
            StepOutcome::Proceed
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_goes_while_it_is_written_anew_does_not_come_back() {
    let volume = MemoryVolume::new();
    let hook = Arc::new(HoldFirst::default());
    let mount = volume.mount(Arc::clone(&hook) as Arc<dyn StepHook>, None);
    let (store, counters) = counting(&mount, FlushPolicy::Fsync);
    fill(&store).await;
    trim(&store).await;
    hook.waits.notified().await;
    let held = hook.held.get().unwrap();
    // Now nothing of any closed file is needed.
    let trim = Op::Trim {
        log: log(1),
        epoch: EPOCH,
        start: FAST / EACH,
    };
    store.submit(vec![trim]).await.unwrap();
    for _ in 0..2_000 {
        // Whoever removes it at once has done so by now.
        tokio::task::yield_now().await;
    }
    assert!(!hook.removed.load(Ordering::SeqCst), "under the rename");
    hook.go_on.notify_one();
    rewritten(&counters, 1).await;
    while files(&volume).await.iter().any(|(path, _)| path == held) {
        tokio::task::yield_now().await;
    }
    store.close().await.unwrap();
    let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
    assert_eq!(open(&taker, 2).await.unwrap().damaged, []);
    assert!(!files(&volume).await.iter().any(|(path, _)| path == held));
}

//! Failing writes and syncs, a full disk, a take-over at the worst moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use store_adapter::ids::{LeaderEpoch, ShardId};
use store_adapter::journal::{JournalConfig, JournalStore, MemoryIndex};
use store_adapter::runtime::{BoxFuture, Env};
use store_adapter::store::{LogStore, Op, StoreError};
use store_adapter::volume::memory::{MemoryVolume, Step, StepFault, StepHook, StepOp, StepOutcome};
use store_adapter::volume::{Reserve, SpaceWatch, Volume};
use tokio::sync::Notify;

use crate::support::{
    EPOCH, SHARD, add, files, log, open, read_all, store_on, submit, submit_sized,
};

/// Does to journal files what it is told to.
#[derive(Debug, Default)]
struct Faults {
    /// What the next step of this kind on a journal file answers.
    next: Mutex<Vec<(StepOp, StepOutcome)>>,
    /// Whether the claim checks wait.
    hold_checks: AtomicBool,
    /// Whether the next sync of a journal file waits, and then fails.
    hold_sync: AtomicBool,
    /// A claim check waits.
    waits: Notify,
    go_on: Arc<Notify>,
}

impl Faults {
    fn next(&self, op: StepOp, outcome: StepOutcome) {
        self.next.lock().push((op, outcome));
    }
}

impl StepHook for Faults {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let current = step.path.file_name() == "current.json" && step.op == StepOp::Read;
        if current && self.hold_checks.swap(false, Ordering::SeqCst) {
            self.waits.notify_one();
            let go_on = Arc::clone(&self.go_on);
            return Box::pin(async move {
                go_on.notified().await;
                StepOutcome::Proceed
            });
        }
        if step.op == StepOp::SyncData && self.hold_sync.swap(false, Ordering::SeqCst) {
            self.waits.notify_one();
            let go_on = Arc::clone(&self.go_on);
            return Box::pin(async move {
                go_on.notified().await;
                StepOutcome::Fail(StepFault::Io)
            });
        }
        let mut outcome = StepOutcome::Proceed;
        if step.path.as_str().ends_with(".log") {
            let mut next = self.next.lock();
            if let Some(at) = next.iter().position(|(op, _)| *op == step.op) {
                outcome = next.remove(at).1;
            }
        }
        Box::pin(std::future::ready(outcome))
    }
}

fn empty() -> Arc<MemoryIndex> {
    Arc::default()
}

/// An open store with a log, on a mount of a volume whose steps can be made to fail.
async fn faulty() -> (MemoryVolume, Arc<Faults>, JournalStore) {
    let volume = MemoryVolume::new();
    let faults = Arc::new(Faults::default());
    let mount = volume.mount(Arc::clone(&faults) as Arc<dyn StepHook>, None);
    let store = store_on(&mount, &empty());
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    (volume, faults, store)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_is_uncertain_and_the_journal_goes_on_in_a_new_file() {
    let (volume, faults, store) = faulty().await;
    submit(&store, 0, 0, 1).await.unwrap();
    let steps = [
        (StepOp::SyncData, StepOutcome::Fail(StepFault::Io)),
        (StepOp::SyncData, StepOutcome::FailAfter(StepFault::Io)),
        (StepOp::WriteAt, StepOutcome::Fail(StepFault::Io)),
        (StepOp::WriteAt, StepOutcome::FailAfter(StepFault::Io)),
        (
            StepOp::WriteAt,
            StepOutcome::FailPartly {
                bytes: 90,
                fault: StepFault::NoSpace,
            },
        ),
    ];
    for (end, (op, outcome)) in (1..).zip(steps) {
        faults.next(op, outcome);
        let failed = submit(&store, 0, end, 77).await;
        assert_eq!(failed, Err(StoreError::Uncertain { fenced: false }));
        let state = store.acquire(log(0), EPOCH).await.unwrap();
        assert_eq!(state.bounds.end, end);
        submit(&store, 0, end, 1).await.unwrap();
    }
    let expected = read_all(&store, 0).await.unwrap();
    assert_eq!(expected.len(), 6);
    assert!(
        expected
            .iter()
            .all(|stored| stored.bytes[80] == expected[0].bytes[80])
    );
    // Neither a restart nor a power cut brings a failed round back.
    for seed in 0..5 {
        let taker = store_on(&volume, &empty());
        let info = open(&taker, 2 + seed).await.unwrap();
        assert_eq!(info.damaged, []);
        assert_eq!(read_all(&taker, 0).await.unwrap(), expected);
        volume.power_cut(seed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_queued_behind_a_failed_round_fail_too() {
    let (_, faults, store) = faulty().await;
    add(&store, 1).await;
    // Held at its claim check, the first round lets the others queue up behind it.
    faults.hold_checks.store(true, Ordering::SeqCst);
    let first = submit(&store, 0, 0, 1);
    faults.waits.notified().await;
    faults.next(StepOp::SyncData, StepOutcome::Fail(StepFault::Io));
    let behind: Vec<_> = (1..4).map(|end| submit(&store, 0, end, 1)).collect();
    faults.go_on.notify_one();
    first.await.unwrap();
    for commit in behind {
        commit.await.unwrap_err();
    }
    assert_eq!(store.bounds(log(0)).unwrap().end, 1);
    submit(&store, 0, 1, 1).await.unwrap();
    submit(&store, 1, 0, 1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_whose_file_cannot_be_left_is_offline_until_it_is_opened_again() {
    let (volume, faults, store) = faulty().await;
    submit(&store, 0, 0, 1).await.unwrap();
    faults.next(StepOp::SyncData, StepOutcome::Fail(StepFault::Io));
    faults.next(StepOp::CreateNew, StepOutcome::Fail(StepFault::ReadOnly));
    let failed = submit(&store, 0, 1, 77).await;
    assert_eq!(failed, Err(StoreError::Uncertain { fenced: false }));
    let offline = submit(&store, 0, 1, 1).await;
    assert!(matches!(offline, Err(StoreError::Offline(_))));
    assert_eq!(store.bounds(log(0)), None);
    // The same owner opens again: what the page cache holds of the failed round is not believed.
    open(&store, 1).await.unwrap();
    assert_eq!(store.bounds(log(0)).unwrap().end, 1);
    submit(&store, 0, 1, 2).await.unwrap();
    let expected = read_all(&store, 0).await.unwrap();
    volume.power_cut(3);
    let taker = store_on(&volume, &empty());
    open(&taker, 2).await.unwrap();
    assert_eq!(read_all(&taker, 0).await.unwrap(), expected);
}

/// The file behind the one with the failed round says where that one ends, also when nothing else
/// needs it any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_opened_again_by_its_process_keeps_what_tells_how_long_a_file_is() {
    let (volume, faults, store) = faulty().await;
    add(&store, 1).await;
    // Nearly all of the file is needed, so that it is not written anew.
    submit_sized(&store, 0, 0, 1, 100_000).await.unwrap();
    faults.next(StepOp::SyncData, StepOutcome::Fail(StepFault::Io));
    faults.next(StepOp::CreateNew, StepOutcome::Fail(StepFault::ReadOnly));
    let failed = submit(&store, 0, 1, 77).await;
    assert_eq!(failed, Err(StoreError::Uncertain { fenced: false }));
    let offline = submit(&store, 0, 1, 1).await;
    assert!(matches!(offline, Err(StoreError::Offline(_))));
    open(&store, 1).await.unwrap();
    // Only the other log is in the file behind it, and goes with the next one.
    for end in 0..3 {
        submit_sized(&store, 1, end, 1, 200_000).await.unwrap();
    }
    submit(&store, 0, 1, 2).await.unwrap();
    let trim = Op::Trim {
        log: log(1),
        epoch: EPOCH,
        start: 3,
    };
    store.submit(vec![trim]).await.unwrap();
    let expected = read_all(&store, 0).await.unwrap();
    assert_eq!(expected.len(), 2);
    // What is to be removed is removed by then.
    store.close().await.unwrap();
    for instance in 2..5 {
        let taker = store_on(&volume, &empty());
        let info = open(&taker, instance).await.unwrap();
        assert_eq!(info.damaged, []);
        assert_eq!(taker.bounds(log(0)).unwrap().end, 2);
        assert_eq!(read_all(&taker, 0).await.unwrap(), expected);
        volume.power_cut(instance);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_answers_full_and_recovers_when_space_returns() {
    let volume = MemoryVolume::new();
    let store = store_on(&volume, &empty());
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    submit(&store, 0, 0, 1).await.unwrap();
    volume.set_total(1 << 20);
    let mut end = 1;
    let refused = loop {
        match submit_sized(&store, 0, end, 1, 50_000).await {
            Ok(()) => end += 1,
            Err(error) => break error,
        }
        assert!(end < 100);
    };
    let full = |error: &StoreError| matches!(error, StoreError::Full { path } if !path.is_empty());
    assert!(full(&refused), "{refused}");
    let again = submit_sized(&store, 0, end, 1, 50_000).await;
    assert!(again.is_err_and(|error| full(&error)));
    assert_eq!(store.bounds(log(0)).unwrap().end, end);
    volume.set_total(1 << 30);
    submit_sized(&store, 0, end, 1, 50_000).await.unwrap();
    let expected = read_all(&store, 0).await.unwrap();
    let taker = store_on(&volume, &empty());
    open(&taker, 2).await.unwrap();
    assert_eq!(read_all(&taker, 0).await.unwrap(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_could_not_be_unlinked_goes_with_a_later_one() {
    let (volume, faults, store) = faulty().await;
    let logs = async || {
        let found = files(&volume).await.into_iter().map(|(path, _)| path);
        found
            .filter(|path| path.as_str().ends_with(".log"))
            .collect::<Vec<_>>()
    };
    let oldest = logs().await;
    assert_eq!(oldest.len(), 1);
    faults.next(StepOp::Remove, StepOutcome::Fail(StepFault::Io));
    let mut end = 0;
    // Files are removed behind the answers.
    while logs().await.contains(&oldest[0]) {
        submit_sized(&store, 0, end, 1, 20_000).await.unwrap();
        end += 1;
        let trim = Op::Trim {
            log: log(0),
            epoch: EPOCH,
            start: end,
        };
        store.submit(vec![trim]).await.unwrap();
        assert!(end < 5_000, "{oldest:?} stays");
    }
    assert!(faults.next.lock().is_empty(), "nothing failed");
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fenced_between_sync_and_answer_reports_no_success() {
    let (volume, faults, old) = faulty().await;
    add(&old, 1).await;
    submit(&old, 0, 0, 1).await.unwrap();
    let mut watch = old.watch(log(0)).unwrap();
    watch.mark_unchanged();
    faults.hold_checks.store(true, Ordering::SeqCst);
    let group = [0, 1].map(|partition| {
        Op::Append(store_adapter::store::Append {
            log: log(partition),
            epoch: EPOCH,
            expect_end: i64::from(partition == 0),
            append_ms: 0,
            batch: store_adapter::conformance::batch(4).stamp(i64::from(partition == 0), EPOCH),
        })
    });
    let late = old.submit(group.to_vec());
    // Synced, and not yet checked.
    faults.waits.notified().await;
    let new = store_on(&volume, &empty());
    open(&new, 2).await.unwrap();
    faults.go_on.notify_one();
    assert_eq!(late.await, Err(StoreError::Uncertain { fenced: true }));
    assert!(!watch.has_changed().unwrap());
    assert_eq!(old.bounds(log(0)), None);
    // The group is in the sealed log as a whole.
    let ends = [0, 1].map(|n| new.bounds(log(n)).unwrap().end);
    assert_eq!(ends, [2, 1]);
    new.acquire(log(0), LeaderEpoch(2)).await.unwrap();
    // What the old one queues now reaches no file.
    assert_eq!(submit(&old, 0, 2, 9).await, Err(StoreError::Fenced));
    new.open_shard(
        ShardId(SHARD.0 + 1),
        store_adapter::ids::OwnerEpoch::single(9),
    )
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_writer_that_leaves_its_file_changes_no_seal() {
    let (volume, faults, old) = faulty().await;
    submit(&old, 0, 0, 1).await.unwrap();
    faults.hold_sync.store(true, Ordering::SeqCst);
    let late = submit(&old, 0, 1, 2);
    // Written, and not yet synced, so that the taker finds it and makes it durable.
    faults.waits.notified().await;
    let new = store_on(&volume, &empty());
    open(&new, 2).await.unwrap();
    assert_eq!(new.bounds(log(0)).unwrap().end, 2);
    new.acquire(log(0), LeaderEpoch(2)).await.unwrap();
    faults.go_on.notify_one();
    // The next file of the old one says that the file before it ends earlier.
    assert_eq!(late.await, Err(StoreError::Uncertain { fenced: false }));
    // It could not make that file known, which would have been another owner's.
    let next = submit(&old, 0, 1, 3).await;
    assert_eq!(next, Err(StoreError::Fenced));
    let expected = read_all(&new, 0).await.unwrap();
    assert_eq!(expected.len(), 2);
    for seed in 0..4 {
        volume.power_cut(seed);
        let third = store_on(&volume, &empty());
        let info = open(&third, 3 + seed).await.unwrap();
        assert_eq!(info.damaged, []);
        assert_eq!(read_all(&third, 0).await.unwrap(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_whose_sync_failed_is_durable_once_the_next_owner_shows_it() {
    let (volume, faults, old) = faulty().await;
    submit(&old, 0, 0, 1).await.unwrap();
    // The sync fails, and the process is killed before it can leave the file.
    faults.next(StepOp::CreateNew, StepOutcome::Stop);
    faults.hold_sync.store(true, Ordering::SeqCst);
    let late = submit(&old, 0, 1, 2);
    faults.waits.notified().await;
    faults.go_on.notify_one();
    while !faults.next.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    let new = store_on(&volume, &empty());
    open(&new, 2).await.unwrap();
    let shown = read_all(&new, 0).await.unwrap();
    assert_eq!(shown.len(), 2);
    for seed in 0..6 {
        volume.power_cut(seed);
        let next = store_on(&volume, &empty());
        assert_eq!(open(&next, 3 + seed).await.unwrap().damaged, []);
        assert_eq!(read_all(&next, 0).await.unwrap(), shown);
    }
    drop(late);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_shard_is_opened_again_its_logs_are_not_taken_for_gone() {
    let (_, faults, store) = faulty().await;
    let store = Arc::new(store);
    submit(&store, 0, 0, 1).await.unwrap();
    faults.hold_checks.store(true, Ordering::SeqCst);
    let again = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { open(&store, 2).await })
    };
    faults.waits.notified().await;
    let refused = store.acquire(log(0), EPOCH).await.unwrap_err();
    assert!(matches!(refused, StoreError::Offline(_)), "{refused:?}");
    let refused = submit(&store, 0, 1, 1).await.unwrap_err();
    assert!(matches!(refused, StoreError::Offline(_)), "{refused:?}");
    assert!(store.check_shard(SHARD).is_err());
    faults.go_on.notify_one();
    again.await.unwrap().unwrap();
    store.acquire(log(0), EPOCH).await.unwrap();
    submit(&store, 0, 1, 1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_leave_a_reserve_in_which_records_can_be_deleted() {
    let volume = MemoryVolume::new();
    let space = SpaceWatch::with_reserve(
        &Env::real(),
        Arc::new(volume.clone()),
        Reserve::Bytes(1 << 20),
    );
    let config = JournalConfig {
        space: Some(space.clone()),
        reserve: Reserve::Bytes(1 << 20),
        ..crate::support::config()
    };
    let store = JournalStore::new(Env::real(), Arc::new(volume.clone()), empty(), config);
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    volume.set_total(4 << 20);
    let mut end = 0;
    let refused = loop {
        match submit_sized(&store, 0, end, 1, 50_000).await {
            Ok(()) => end += 1,
            Err(error) => break error,
        }
        assert!(end < 100);
    };
    assert!(matches!(refused, StoreError::Full { .. }), "{refused}");
    assert!(space.is_full());
    let left = || {
        let volume = volume.clone();
        crate::support::io(async move { volume.space().await.unwrap().free })
    };
    // Not yet full: what was reserved ahead may have been used, and no more.
    let free = left().await;
    assert!((512 << 10..1 << 20).contains(&free), "{free}");
    assert_eq!(store.bounds(log(0)).unwrap().end, end);
    let all = read_all(&store, 0).await.unwrap();
    assert_eq!(i64::try_from(all.len()).unwrap(), end);
    // What frees space goes on, and what was refused goes on by it.
    let trim = Op::Trim {
        log: log(0),
        epoch: EPOCH,
        start: end,
    };
    store.submit(vec![trim]).await.unwrap();
    add(&store, 1).await;
    while let Err(error) = submit_sized(&store, 0, end, 1, 50_000).await {
        assert!(matches!(error, StoreError::Full { .. }), "{error}");
        tokio::task::yield_now().await;
    }
    let mut full = space.changes();
    full.wait_for(|full| !*full).await.unwrap();
}

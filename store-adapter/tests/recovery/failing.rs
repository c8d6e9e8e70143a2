//! Every step of the store fails once, in every way: nothing that was acknowledged is lost, and
//! the store goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use store_adapter::ids::{LeaderEpoch, LogId};
use store_adapter::journal::{JournalConfig, JournalCounters, JournalStore, MemoryIndex};
use store_adapter::runtime::{BoxFuture, Env};
use store_adapter::store::{LogStore, Op, StoreError};
use store_adapter::volume::memory::{MemoryVolume, Step, StepFault, StepHook, StepOutcome};

use crate::support::{EPOCH, SHARD, config, log, open, read_all, store_on, submit_sized, tell};

const FAULTS: [StepFault; 4] = [
    StepFault::Io,
    StepFault::NoSpace,
    StepFault::ReadOnly,
    StepFault::TooManyOpenFiles,
];
/// Batches; six of them fill a file.
const BATCHES: i64 = 16;

/// Lets one step fail.
#[derive(Debug)]
struct Once {
    left: AtomicU64,
    outcome: StepOutcome,
    failed: Mutex<Option<Step>>,
}

impl StepHook for Once {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let mut outcome = StepOutcome::Proceed;
        if self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            *self.failed.lock() = Some(step.clone());
            outcome = self.outcome;
        }
        Box::pin(std::future::ready(outcome))
    }
}

/// A broker that does again what failed, as one does.
struct Broker {
    store: JournalStore,
    instance: u64,
    tries: u32,
}

impl Broker {
    fn tried(&mut self, error: &StoreError) {
        self.tries += 1;
        assert!(self.tries < 50, "it does not go on: {error:?}");
    }

    async fn open(&mut self) {
        while let Err(error) = open(&self.store, self.instance).await {
            self.tried(&error);
            self.instance += 1;
        }
    }

    /// Does `work` until it is done; opens the shard again where it went offline.
    async fn until<T>(&mut self, work: impl AsyncFn(&JournalStore) -> Result<T, StoreError>) -> T {
        loop {
            let error = match work(&self.store).await {
                Ok(done) => return done,
                Err(error) => error,
            };
            self.tried(&error);
            match error {
                StoreError::Offline(_) | StoreError::Corrupt { .. } | StoreError::Fenced => {
                    self.instance += 1;
                    self.open().await;
                }
                _ => tokio::task::yield_now().await,
            }
        }
    }

    /// Appends one batch, once: after an unknown outcome the log's end tells.
    async fn append(&mut self, partition: u32, end: i64) {
        loop {
            let sent = submit_sized(&self.store, partition, end, 1, 5_000).await;
            if sent.is_ok() {
                return;
            }
            let state = loop {
                match self.store.acquire(log(partition), EPOCH).await {
                    Ok(state) => break state,
                    Err(error) => {
                        self.tried(&error);
                        if matches!(error, StoreError::Offline(_)) {
                            self.instance += 1;
                            self.open().await;
                        }
                    }
                }
            };
            if state.bounds.end == end + 1 {
                return;
            }
            assert_eq!(state.bounds.end, end);
            self.tried(&sent.unwrap_err());
        }
    }
}

/// The log of a topic that is deleted.
const OTHER: LogId = LogId {
    topic: uuid::Uuid::from_u128(2),
    partition: 0,
};

/// Batches of the log that is trimmed.
const FAST: i64 = 12;
/// A batch of the slow log comes with every so many.
const EACH: i64 = 3;

/// Space is given back while the step of number `steps` fails: a trim, the deletion of a topic,
/// files that are unlinked and files that are written anew. Whether the fault came.
#[allow(clippy::too_many_lines, reason = "one story")]
async fn give_back(steps: u64, outcome: StepOutcome) -> bool {
    let volume = MemoryVolume::new();
    let hook = Arc::new(Once {
        // Not before the space is given back.
        left: AtomicU64::new(u64::MAX),
        outcome,
        failed: Mutex::default(),
    });
    let mount = volume.mount(Arc::clone(&hook) as Arc<dyn StepHook>, None);
    let counters = Arc::new(JournalCounters::default());
    let config = JournalConfig {
        segment_bytes: 32 << 10,
        counters: Arc::clone(&counters),
        ..config()
    };
    let index = Arc::new(MemoryIndex::new());
    let mut broker = Broker {
        store: JournalStore::new(Env::real(), Arc::new(mount), index, config),
        instance: 1,
        tries: 0,
    };
    broker.open().await;
    for id in [log(0), log(1), OTHER] {
        broker.store.create(id, "orders", SHARD).await.unwrap();
        broker.store.acquire(id, EPOCH).await.unwrap();
    }
    for end in 0..FAST {
        broker.append(0, end).await;
        if end % EACH == 0 {
            let slow = submit_sized(&broker.store, 1, end / EACH, 2, 300);
            slow.await.unwrap();
        }
    }
    hook.left.store(steps, Ordering::SeqCst);
    broker
        .until(async |store| {
            let trim = Op::Trim {
                log: log(0),
                epoch: EPOCH,
                start: FAST - 1,
            };
            store.submit(vec![trim]).await
        })
        .await;
    broker
        .until(async |store| store.delete(OTHER.topic).await)
        .await;
    // The closed files but the last hold nothing but the slow log; one that failed may be left.
    let failed = || hook.failed.lock().is_some();
    while counters.rewrites.load(Ordering::SeqCst) < 1 && !failed() {
        tokio::task::yield_now().await;
    }
    broker.append(0, FAST).await;
    broker.store.close().await.ok();
    let (failed, end) = (hook.failed.lock().clone(), FAST + 1);
    for instance in [100, 101] {
        let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
        let info = open(&taker, instance).await.unwrap();
        assert_eq!(info.damaged, [], "{failed:?} {outcome:?}");
        assert_eq!(taker.bounds(OTHER), None, "{failed:?} {outcome:?}");
        let bounds = taker.bounds(log(0)).unwrap();
        assert_eq!(
            (bounds.start, bounds.end),
            (FAST - 1, end),
            "{failed:?} {outcome:?}"
        );
        for (partition, count) in [(0, 2), (1, usize::try_from(FAST / EACH).unwrap())] {
            let all = read_all(&taker, partition).await.unwrap();
            assert_eq!(all.len(), count, "{failed:?} {outcome:?}");
        }
        taker.close().await.unwrap();
        volume.power_cut(steps);
    }
    failed.is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_of_giving_space_back_fails_once_and_nothing_is_lost() {
    let mut failures = 0_usize;
    for steps in 0.. {
        let outcomes = FAULTS
            .into_iter()
            .flat_map(|fault| [StepOutcome::Fail(fault), StepOutcome::FailAfter(fault)]);
        let late = [StepOutcome::Late(StepFault::Io)];
        let runs = outcomes.chain(late);
        let runs = runs.map(|outcome| give_back(steps, outcome));
        let failed = futures_util::future::join_all(runs).await;
        failures += failed.iter().filter(|failed| **failed).count();
        if !failed.contains(&true) {
            break;
        }
    }
    tell(&format!("{failures} steps of a journal failed"));
    assert!(failures > 150, "{failures}");
}

/// Whether the fault came.
async fn run(steps: u64, outcome: StepOutcome) -> bool {
    let volume = MemoryVolume::new();
    let hook = Arc::new(Once {
        left: AtomicU64::new(steps),
        outcome,
        failed: Mutex::default(),
    });
    let mount = volume.mount(Arc::clone(&hook) as Arc<dyn StepHook>, None);
    let config = JournalConfig {
        segment_bytes: 32 << 10,
        counters: Arc::new(JournalCounters::default()),
        ..config()
    };
    let index = Arc::new(MemoryIndex::new());
    let store = JournalStore::new(Env::real(), Arc::new(mount), index, config);
    let mut broker = Broker {
        store,
        instance: 1,
        tries: 0,
    };
    broker.open().await;
    for partition in 0..2 {
        broker
            .until(async |store| store.create(log(partition), "orders", SHARD).await)
            .await;
        broker
            .until(async |store| store.acquire(log(partition), EPOCH).await)
            .await;
    }
    for end in 0..BATCHES {
        broker.append(0, end).await;
        if end % 4 == 0 {
            broker.append(1, end / 4).await;
        }
    }
    broker
        .until(async |store| {
            let trim = Op::Trim {
                log: log(0),
                epoch: EPOCH,
                start: BATCHES - 2,
            };
            store.submit(vec![trim]).await
        })
        .await;
    let read = [2, 4];
    for (partition, count) in (0..).zip(read) {
        let all = broker
            .until(async |store| read_all(store, partition).await)
            .await;
        assert_eq!(all.len(), count, "step {steps}, {outcome:?}");
    }
    // A failed close is a kill.
    broker.store.close().await.ok();
    for instance in [100, 101] {
        let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
        let info = open(&taker, instance).await.unwrap();
        let failed = hook.failed.lock().clone();
        assert_eq!(info.damaged, [], "{failed:?} {outcome:?}");
        for (partition, count) in (0..).zip(read) {
            let all = read_all(&taker, partition).await.unwrap();
            assert_eq!(all.len(), count, "{failed:?} {outcome:?}");
        }
        taker.acquire(log(0), LeaderEpoch(2)).await.unwrap();
        volume.power_cut(steps);
    }
    hook.failed.lock().is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_fails_once_and_nothing_acknowledged_is_lost() {
    let mut failures = 0_usize;
    for steps in 0.. {
        let outcomes = FAULTS
            .into_iter()
            .flat_map(|fault| [StepOutcome::Fail(fault), StepOutcome::FailAfter(fault)]);
        let runs = outcomes.map(|outcome| run(steps, outcome));
        let failed = futures_util::future::join_all(runs).await;
        let came = failed.contains(&true);
        failures += failed.iter().filter(|failed| **failed).count();
        if !came {
            break;
        }
    }
    tell(&format!("{failures} steps of a journal failed"));
    assert!(failures > 500, "{failures}");
}

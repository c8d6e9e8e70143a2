//! Point 17: every step that a store asks of its volume fails once, while logs are made, appended
//! to, compacted, trimmed, deleted and opened again. sled's own calls are not among them: it opens
//! its files itself.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use store_adapter::conformance::full;
use store_adapter::conformance::gate::GateVolume;
use store_adapter::ids::LogId;
use store_adapter::runtime::Env;
use store_adapter::store::{LogStore, StoreError};
use store_adapter::volume::memory::StepFault;
use store_adapter::volume::{PosixVolume, Volume};
use uuid::Uuid;

use crate::counts;
use crate::stores::{self, EPOCH, Layout, SHARD};

const FAULTS: [StepFault; 4] = [
    StepFault::Io,
    StepFault::NoSpace,
    StepFault::ReadOnly,
    StepFault::TooManyOpenFiles,
];
/// Steps that fail side by side, each in a store of its own.
const AT_ONCE: usize = 4;
/// Between two tries.
const PACE: Duration = Duration::from_millis(20);
/// Batches of the log that is compacted.
const BATCHES: i64 = 8;
/// Where it begins in the end.
const START: i64 = 2;
/// The log of a topic that is deleted.
const OTHER: LogId = LogId {
    topic: Uuid::from_u128(8),
    partition: 0,
};

/// How a step fails: with what, and whether it is done all the same.
type How = (StepFault, bool);

/// A broker that does again what failed, as one does.
struct Broker {
    store: Arc<dyn LogStore>,
    instance: u64,
    tries: u32,
}

impl Broker {
    /// Soon it leaves the store some time: what failed may be being put right behind its answers.
    async fn tried(&mut self, error: &StoreError) {
        self.tries += 1;
        assert!(self.tries < 1_000, "it does not go on: {error:?}");
        if self.tries > 10 {
            Env::real().clock.sleep(PACE).await;
        }
    }

    async fn open(&mut self) {
        while let Err(error) = stores::try_open(&self.store, self.instance).await {
            self.tried(&error).await;
            self.instance += 1;
        }
    }

    /// Opens the shard again where it went offline.
    async fn failed(&mut self, error: &StoreError) {
        self.tried(error).await;
        match error {
            StoreError::Offline(_) | StoreError::Corrupt { .. } | StoreError::Fenced => {
                self.instance += 1;
                self.open().await;
            }
            _ => tokio::task::yield_now().await,
        }
    }

    /// Does `work` until it is done.
    async fn until<T>(
        &mut self,
        work: impl AsyncFn(&Arc<dyn LogStore>) -> Result<T, StoreError>,
    ) -> T {
        loop {
            match work(&self.store).await {
                Ok(done) => return done,
                Err(error) => self.failed(&error).await,
            }
        }
    }

    /// Appends one batch, once: after an unknown outcome the log's end tells.
    async fn append(&mut self, partition: u32, end: i64) {
        loop {
            let sent = self
                .store
                .submit(vec![stores::append(partition, end)])
                .await;
            let Err(error) = sent else {
                return;
            };
            self.failed(&error).await;
            let acquire = async |store: &Arc<dyn LogStore>| {
                store.acquire(stores::log(partition), EPOCH).await
            };
            let found = self.until(acquire).await.bounds.end;
            if found == end + 1 {
                return;
            }
            assert_eq!(found, end);
        }
    }

    async fn compact(&mut self, upto: i64) {
        loop {
            let rewrite =
                async |store: &Arc<dyn LogStore>| store.rewrite(stores::thirds(0, upto)).await;
            let done = self.until(rewrite).await;
            if done.upto >= upto {
                return;
            }
            let less = StoreError::Unavailable(format!("{done:?}"));
            self.tried(&less).await;
        }
    }
}

/// The life of a store in which one step fails; whether that step came.
async fn live(layout: Layout, step: u64, (fault, behind): How) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let gate = GateVolume::new(
        Arc::new(PosixVolume::open(dir.path()).unwrap()),
        Arc::default(),
    );
    gate.fail_at(step, fault, behind);
    let volume: Arc<dyn Volume> = Arc::new(gate.clone());
    let mut broker = Broker {
        store: stores::store_on(layout, volume, dir.path(), &Arc::default()),
        instance: 1,
        tries: 0,
    };
    broker.open().await;
    for id in [stores::log(0), stores::log(1), OTHER] {
        broker
            .until(async |store| store.create(id, "orders", SHARD).await)
            .await;
        broker
            .until(async |store| store.acquire(id, EPOCH).await)
            .await;
    }
    for end in 0..BATCHES {
        broker.append(0, end).await;
    }
    broker.append(1, 0).await;
    broker.compact(BATCHES - 1).await;
    broker
        .until(async |store| store.submit(vec![stores::trim(0, START)]).await)
        .await;
    broker
        .until(async |store| store.delete(OTHER.topic).await)
        .await;
    // Opened again where it is open.
    broker.instance += 1;
    broker.open().await;
    broker.append(1, 1).await;
    for partition in [0, 1] {
        broker
            .until(async |store| stores::read_all(store, partition).await)
            .await;
    }
    let what = format!("step {step}, {fault:?}, behind {behind}");
    if gate.has_come() {
        holds(&broker.store, &what).await;
    }
    // A failed close is a kill.
    broker.store.close().await.ok();
    let came = gate.has_come();
    drop(broker);
    after(layout, dir.path(), &what).await;
    came
}

/// What was acknowledged is there, what was to go is gone.
async fn holds(store: &Arc<dyn LogStore>, what: &str) {
    let (bounds, gone) = stores::check_thirds(store, 0).await.unwrap();
    assert_eq!((bounds.start, bounds.end), (START, BATCHES), "{what}");
    // Of 2 to 7 are left 3, 6 and the last one.
    assert_eq!(gone, 3, "{what}");
    let bounds = stores::check(store, 1).await.unwrap();
    assert_eq!((bounds.start, bounds.end), (0, 2), "{what}");
    assert_eq!(store.bounds(OTHER), None, "{what}");
}

async fn after(layout: Layout, dir: &Path, what: &str) {
    let store = stores::open(layout, dir, 1000).await;
    holds(&store, what).await;
    stores::close(store).await;
}

/// How a step is to fail, one after the other.
fn hows(step: usize) -> Vec<How> {
    let fault = |n: usize| FAULTS[n % FAULTS.len()];
    if full() {
        let all = FAULTS.into_iter();
        all.flat_map(|fault| [(fault, false), (fault, true)])
            .collect()
    } else {
        vec![(fault(step), false), (fault(step + 1), true)]
    }
}

/// Nothing that was acknowledged is lost, and the store goes on, whichever step fails, and how.
pub(crate) async fn every_step_fails_once(layout: Layout) {
    let mut failures = 0;
    for first in (0..).step_by(AT_ONCE) {
        let steps = first..first + AT_ONCE;
        let lives = steps.flat_map(|step| {
            let how = hows(step).into_iter();
            how.map(move |how| live(layout, step as u64, how))
        });
        let failed = join_all(lives).await;
        let came = failed.into_iter().filter(|failed| *failed).count();
        failures += came;
        if came == 0 {
            break;
        }
    }
    counts::FAULTS.add(failures as u64);
    println!(
        "17 {}: {failures} steps failed, one at a time",
        layout.name()
    );
    assert!(failures > 200, "{failures}");
}

use std::collections::BTreeSet;

use store_adapter::runtime::{Clock, Random, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::*;

/// `(0 + 1) * 2^40`.
const FIRST: i64 = 1_099_511_627_776;

/// Tasks on this thread, time that passes at once where it is waited for, no randomness.
#[derive(Debug)]
struct Inline {
    handle: tokio::runtime::Handle,
    late: bool,
}

impl Runtime for Inline {
    fn spawn(&self, _name: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let join = self.handle.spawn(task);
        Box::pin(async move { join.await.unwrap() })
    }
    fn spawn_io(&self, name: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.spawn(name, task)
    }
}

impl Clock for Inline {
    fn wall_ms(&self) -> i64 {
        0
    }
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
    fn sleep(&self, _duration: Duration) -> BoxFuture<'static, ()> {
        if self.late {
            Box::pin(std::future::ready(()))
        } else {
            Box::pin(std::future::pending())
        }
    }
}

impl Random for Inline {
    fn next_u64(&self) -> u64 {
        0
    }
}

fn env(late: bool) -> Env {
    let inline = Arc::new(Inline {
        handle: tokio::runtime::Handle::current(),
        late,
    });
    Env {
        clock: inline.clone(),
        runtime: inline.clone(),
        random: inline,
    }
}

/// What the step that fails leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaves {
    Nothing,
    Everything,
}

#[derive(Debug)]
struct Disk {
    durable: i64,
    steps: usize,
    reserves: usize,
    /// From this step on everything fails; the step itself leaves this.
    fails_at: Option<(usize, Leaves)>,
    /// Only that step fails.
    once: bool,
}

/// A file in memory. Every reservation needs a permit.
#[derive(Debug)]
struct TestFile {
    disk: Mutex<Disk>,
    permits: Semaphore,
    started: watch::Sender<usize>,
}

impl TestFile {
    fn new(durable: i64, permits: usize) -> Arc<Self> {
        Arc::new(Self {
            disk: Mutex::new(Disk {
                durable,
                steps: 0,
                reserves: 0,
                fails_at: None,
                once: false,
            }),
            permits: Semaphore::new(permits),
            started: watch::channel(0).0,
        })
    }

    fn fail_at(&self, fails_at: Option<(usize, Leaves)>, once: bool) {
        let mut disk = self.disk.lock();
        disk.steps = 0;
        disk.fails_at = fails_at;
        disk.once = once;
    }

    fn step(&self, next_block: Option<i64>) -> Result<i64, BlockFileError> {
        let mut disk = self.disk.lock();
        let step = disk.steps;
        disk.steps += 1;
        let failed = match disk.fails_at {
            Some((at, leaves)) if at == step => Some(leaves),
            Some((at, _)) if at < step && !disk.once => Some(Leaves::Nothing),
            _ => None,
        };
        if let Some(next_block) = next_block {
            disk.reserves += 1;
            if failed != Some(Leaves::Nothing) {
                disk.durable = next_block;
            }
        }
        match failed {
            Some(_) => Err(BlockFileError::Unavailable(format!("step {step}"))),
            None => Ok(disk.durable),
        }
    }

    fn durable(&self) -> i64 {
        self.disk.lock().durable
    }

    fn reserves(&self) -> usize {
        self.disk.lock().reserves
    }
}

impl BlockFile for TestFile {
    fn read(&self) -> BoxFuture<'_, Result<i64, BlockFileError>> {
        Box::pin(async { self.step(None) })
    }
    fn reserve(&self, next_block: i64) -> BoxFuture<'_, Result<(), BlockFileError>> {
        Box::pin(async move {
            self.started.send_modify(|started| *started += 1);
            self.permits.acquire().await.unwrap().forget();
            self.step(Some(next_block)).map(|_| ())
        })
    }
}

fn start(file: &Arc<TestFile>) -> ProducerIds {
    ProducerIds::start(&env(false), BrokerId(0), file.clone())
}

#[tokio::test]
async fn ids_begin_at_the_first_local_value_that_is_not_reserved() {
    let file = TestFile::new(3000, 10);
    let ids = start(&file);
    assert_eq!(ids.next_id().await, Ok(ProducerId(FIRST + 3000)));
    assert_eq!(ids.next_id().await, Ok(ProducerId(FIRST + 3001)));
    assert_eq!(file.durable(), 4000);
    let other = ProducerIds::start(&env(false), BrokerId(1), TestFile::new(0, 1));
    assert_eq!(other.next_id().await, Ok(ProducerId(2_199_023_255_552)));
}

#[tokio::test]
async fn nothing_is_written_before_an_id_is_asked_for() {
    let file = TestFile::new(0, 1);
    let ids = start(&file);
    tokio::task::yield_now().await;
    assert_eq!(file.disk.lock().steps, 0);
    ids.next_id().await.unwrap();
}

#[tokio::test]
async fn concurrent_callers_share_one_reservation() {
    let file = TestFile::new(0, 0);
    let ids = Arc::new(start(&file));
    let mut callers = JoinSet::new();
    for _ in 0..50 {
        let ids = ids.clone();
        callers.spawn(async move { ids.next_id().await.unwrap() });
    }
    file.started
        .subscribe()
        .wait_for(|started| *started == 1)
        .await
        .unwrap();
    assert!(callers.try_join_next().is_none());
    file.permits.add_permits(1);
    let got: BTreeSet<ProducerId> = callers.join_all().await.into_iter().collect();
    assert_eq!(got.len(), 50);
    assert_eq!(file.reserves(), 1);
}

#[tokio::test]
async fn more_callers_than_a_block_has_ids_all_get_one() {
    let file = TestFile::new(0, 10);
    let ids = Arc::new(start(&file));
    let mut callers = JoinSet::new();
    for _ in 0..2500 {
        let ids = ids.clone();
        callers.spawn(async move { ids.next_id().await.unwrap() });
    }
    let got: BTreeSet<ProducerId> = callers.join_all().await.into_iter().collect();
    assert_eq!(got.len(), 2500);
    assert_eq!(file.durable(), 3000);
}

#[tokio::test]
async fn the_next_block_is_fetched_at_ninety_percent_and_blocks_nobody() {
    let file = TestFile::new(0, 1);
    let ids = start(&file);
    for local in 0..899 {
        assert_eq!(ids.next_id().await, Ok(ProducerId(FIRST + local)));
    }
    assert_eq!(*file.started.borrow(), 1);
    assert_eq!(ids.next_id().await, Ok(ProducerId(FIRST + 899)));
    file.started
        .subscribe()
        .wait_for(|started| *started == 2)
        .await
        .unwrap();
    for local in 900..1000 {
        assert_eq!(ids.next_id().await, Ok(ProducerId(FIRST + local)));
    }
    let mut waits = Box::pin(ids.next_id());
    tokio::select! {
        biased;
        id = &mut waits => panic!("{id:?} of a block that is not durable"),
        () = tokio::task::yield_now() => {}
    }
    file.permits.add_permits(1);
    assert_eq!(waits.await, Ok(ProducerId(FIRST + 1000)));
    assert_eq!(file.reserves(), 2);
}

#[tokio::test]
async fn a_failed_file_is_an_error_and_the_next_try_goes_on() {
    for step in [0, 1] {
        for leaves in [Leaves::Nothing, Leaves::Everything] {
            let file = TestFile::new(0, 10);
            file.fail_at(Some((step, leaves)), true);
            let ids = start(&file);
            let failed = BlockFileError::Unavailable(format!("step {step}"));
            assert_eq!(ids.next_id().await, Err(ProducerIdError::File(failed)));
            let skipped = if step == 1 && leaves == Leaves::Everything {
                1000
            } else {
                0
            };
            assert_eq!(ids.next_id().await, Ok(ProducerId(FIRST + skipped)));
        }
    }
}

#[tokio::test]
async fn a_failed_prefetch_costs_no_id_that_is_there() {
    let file = TestFile::new(0, 1000);
    let ids = start(&file);
    ids.next_id().await.unwrap();
    file.fail_at(Some((0, Leaves::Nothing)), false);
    for local in 1..1000 {
        assert_eq!(ids.next_id().await, Ok(ProducerId(FIRST + local)));
        tokio::task::yield_now().await;
    }
    assert!(matches!(ids.next_id().await, Err(ProducerIdError::File(_))));
    file.fail_at(None, false);
    assert_eq!(ids.next_id().await, Ok(ProducerId(FIRST + 1000)));
}

#[tokio::test]
async fn a_stalled_file_is_waited_for_only_so_long() {
    let file = TestFile::new(0, 0);
    let ids = ProducerIds::start(&env(true), BrokerId(0), file.clone());
    assert_eq!(ids.next_id().await, Err(ProducerIdError::NotReady));
    // What nobody waited for is used later.
    file.started
        .subscribe()
        .wait_for(|started| *started == 1)
        .await
        .unwrap();
    file.permits.add_permits(1);
    ids.rounds
        .clone()
        .wait_for(|round| round.number == 1)
        .await
        .unwrap();
    assert_eq!(ids.next_id().await, Ok(ProducerId(FIRST)));
}

#[tokio::test]
async fn used_up_ids_and_a_stopped_service_say_so() {
    let file = TestFile::new((1 << 40) - 999, 10);
    let ids = start(&file);
    let exhausted = IdBlockError::Exhausted((1 << 40) - 999);
    assert_eq!(
        ids.next_id().await,
        Err(ProducerIdError::Exhausted(exhausted))
    );
    assert_eq!(file.reserves(), 0);
    let (ask, asked) = mpsc::channel(1);
    drop(asked);
    let stopped = ProducerIds {
        ask,
        ..start(&file)
    };
    assert_eq!(stopped.next_id().await, Err(ProducerIdError::Stopped));
}

/// Takes up to 1950 ids in one life of the broker; true when every one was durable when it came.
async fn live(file: &Arc<TestFile>, seen: &mut BTreeSet<ProducerId>) -> bool {
    let ids = start(file);
    let mut durable = true;
    for _ in 0..1950 {
        let Ok(id) = ids.next_id().await else { break };
        durable &= id.0 - FIRST < file.durable();
        assert!(seen.insert(id), "{id:?} came twice");
    }
    durable
}

#[tokio::test]
async fn no_crash_makes_an_id_come_twice() {
    // A life of 1950 ids reads once and reserves three times.
    for first in 0..5 {
        for second in 0..5 {
            for leaves in [Leaves::Nothing, Leaves::Everything] {
                let file = TestFile::new(0, 1000);
                let mut seen = BTreeSet::new();
                for fails_at in [Some((first, leaves)), Some((second, leaves)), None] {
                    file.fail_at(fails_at, false);
                    assert!(live(&file, &mut seen).await, "{first} {second} {leaves:?}");
                }
                assert!(seen.len() >= 1950);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn threads_never_share_an_id() {
    let ids = Arc::new(ProducerIds::start(
        &Env::real(),
        BrokerId(0),
        TestFile::new(0, 100),
    ));
    let mut callers = JoinSet::new();
    for _ in 0..8 {
        let ids = ids.clone();
        callers.spawn(async move {
            let mut got = Vec::new();
            for _ in 0..600 {
                got.push(ids.next_id().await.unwrap());
            }
            got
        });
    }
    let got: Vec<ProducerId> = callers.join_all().await.concat();
    assert_eq!(got.len(), 4800);
    assert_eq!(got.into_iter().collect::<BTreeSet<_>>().len(), 4800);
}

#[cfg(feature = "planted-faults")]
#[tokio::test]
async fn the_planted_fault_hands_out_what_is_not_durable() {
    store_adapter::fault::plant(Some(Fault::BlockBeforeDurable));
    let file = TestFile::new(0, 0);
    let id = start(&file).next_id().await;
    store_adapter::fault::plant(None);
    assert_eq!(id, Ok(ProducerId(FIRST)));
    assert_eq!(file.durable(), 0);
}

//! Fences over files that fail as they are told to.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use store_adapter::ids::{ProducerEpoch, ProducerId};
use tokio::sync::Notify;

use super::*;

#[derive(Debug, Default)]
struct Fake {
    own: Mutex<FencesFile>,
    others: Mutex<Vec<(BrokerId, Arc<FencesFile>)>>,
    writes: Mutex<Vec<usize>>,
    /// How the next replaces fail: whether they happened all the same.
    failures: Mutex<Vec<bool>>,
    /// Replaces wait until they are let go.
    hold: Mutex<Option<Arc<Notify>>>,
}

impl FenceFiles for Fake {
    fn own(&self) -> BoxFuture<'_, Result<FencesFile, FenceFileError>> {
        let own = self.own.lock().clone();
        Box::pin(std::future::ready(Ok(own)))
    }

    fn replace<'a>(&'a self, file: &'a FencesFile) -> BoxFuture<'a, Result<(), FenceFileError>> {
        Box::pin(async move {
            let hold = self.hold.lock().take();
            if let Some(hold) = hold {
                hold.notified().await;
            }
            let failure = self.failures.lock().pop();
            if failure != Some(false) {
                *self.own.lock() = file.clone();
            }
            self.writes.lock().push(file.fences.len());
            match failure {
                Some(_) => Err(FenceFileError::Unavailable("told to".to_owned())),
                None => Ok(()),
            }
        })
    }

    fn others(&self) -> BoxFuture<'_, Vec<(BrokerId, Arc<FencesFile>)>> {
        let others = self.others.lock().clone();
        Box::pin(std::future::ready(others))
    }
}

fn fence(pid: i64, epoch: i16) -> Fence {
    Fence {
        pid: ProducerId(pid),
        epoch: ProducerEpoch(epoch),
    }
}

fn stale(fences: &Fences, pid: i64, epoch: i16) -> bool {
    let table = fences.table();
    table.is_stale(ProducerId(pid), ProducerEpoch(epoch))
}

const DAY_MS: i64 = 86_400_000;

fn start(files: &Arc<Fake>) -> Fences {
    Fences::start(&Env::real(), files.clone(), DAY_MS)
}

#[tokio::test]
async fn a_fence_is_in_force_when_it_is_published() {
    let files = Arc::new(Fake::default());
    let fences = start(&files);
    assert!(!stale(&fences, 7, 0));
    fences.publish(vec![fence(7, 3)]).await.unwrap();
    assert!(stale(&fences, 7, 2) && !stale(&fences, 7, 3) && !stale(&fences, 8, 0));
    assert!(!stale(&fences, -1, -1));
    // A lower one changes nothing, and nothing is written for it.
    fences.publish(vec![fence(7, 2)]).await.unwrap();
    assert!(stale(&fences, 7, 2));
    assert_eq!(*files.writes.lock(), [1]);
    // It outlives the process, and those of other brokers count as much.
    let later = FencesFile {
        fences: BTreeMap::from([(7, 5), (9, 1)]),
        ..FencesFile::default()
    };
    files.others.lock().push((BrokerId(1), Arc::new(later)));
    let again = start(&files);
    assert!(!stale(&again, 7, 2));
    again.load().await.unwrap();
    assert!(stale(&again, 7, 4) && !stale(&again, 7, 5) && stale(&again, 9, 0));
    let listed = again.table().list();
    assert_eq!(listed, [fence(7, 5), fence(9, 1)]);
}

#[tokio::test]
async fn a_fence_whose_write_failed_is_written_again_and_not_reported_as_published() {
    for happened in [false, true] {
        let files = Arc::new(Fake::default());
        let fences = start(&files);
        files.failures.lock().push(happened);
        fences.publish(vec![fence(7, 3)]).await.unwrap_err();
        assert!(!stale(&fences, 7, 2));
        // Also where the file says it already: the sync may be what failed.
        fences.publish(vec![fence(7, 3)]).await.unwrap();
        assert!(stale(&fences, 7, 2));
        assert_eq!(*files.writes.lock(), [1, 1]);
    }
}

#[tokio::test]
async fn who_could_not_publish_says_so_until_it_can() {
    let files = Arc::new(Fake::default());
    let fences = start(&files);
    FenceSink::ready(&fences).await.unwrap();
    *files.failures.lock() = vec![false, false];
    fences.publish(vec![fence(7, 3)]).await.unwrap_err();
    // It is tried, and fails once more.
    FenceSink::ready(&fences).await.unwrap_err();
    FenceSink::ready(&fences).await.unwrap();
    fences.publish(vec![fence(7, 3)]).await.unwrap();
    assert!(stale(&fences, 7, 2));
}

#[tokio::test]
async fn the_file_never_grows_beyond_what_is_read() {
    let files = Arc::new(Fake::default());
    let fences = Fences::start_bounded(&Env::real(), files.clone(), DAY_MS, 16);
    for pid in 0..100 {
        fences.publish(vec![fence(pid, 1)]).await.unwrap();
        assert!(stale(&fences, pid, 0));
    }
    let most = files.writes.lock().iter().copied().max();
    assert_eq!(most, Some(16));
    fences.load().await.unwrap();
    assert_eq!(fences.table().list().len(), files.own.lock().fences.len());
    assert!(stale(&fences, 99, 0) && !stale(&fences, 0, 0));
}

#[tokio::test]
async fn publications_share_a_write() {
    let files = Arc::new(Fake::default());
    let fences = start(&files);
    let hold = Arc::new(Notify::new());
    *files.hold.lock() = Some(hold.clone());
    let mut waiting = Vec::new();
    for pid in 0..50 {
        let (sink, published) = (fences.clone(), oneshot::channel());
        let (tell, told) = published;
        let task = async move { drop(tell.send(sink.publish(vec![fence(pid, 1)]).await)) };
        drop(Env::real().runtime.spawn("publish", Box::pin(task)));
        waiting.push(told);
        // Every ask is in the queue before the write that is held is let go.
        tokio::task::yield_now().await;
    }
    hold.notify_one();
    for told in waiting {
        told.await.unwrap().unwrap();
    }
    let writes = files.writes.lock().len();
    assert!(writes <= 3, "{writes} writes");
    assert!((0..50).all(|pid| stale(&fences, pid, 0)));
}

#[tokio::test]
async fn fences_expire_with_their_producer_ids() {
    let files = Arc::new(Fake::default());
    {
        let mut own = files.own.lock();
        own.raise(7, 3, 1_000);
        let now_ms = Env::real().clock.wall_ms();
        own.raise(8, 3, now_ms);
    }
    let fences = start(&files);
    fences.poll(uses([])).await.unwrap();
    assert!(!stale(&fences, 7, 2) && stale(&fences, 8, 2));
    assert!(!files.own.lock().fences.contains_key(&7));
}

/// What is known of transactional ids.
#[derive(Debug)]
struct Uses(Option<BTreeMap<ProducerId, i64>>);

impl LastUse for Uses {
    fn last_use(&self, producers: &BTreeSet<ProducerId>) -> Option<BTreeMap<ProducerId, i64>> {
        let mut known = self.0.clone()?;
        known.retain(|pid, _| producers.contains(pid));
        Some(known)
    }
}

fn uses<const N: usize>(known: [(i64, i64); N]) -> Arc<Uses> {
    let known = known.map(|(pid, at_ms)| (ProducerId(pid), at_ms));
    Arc::new(Uses(Some(known.into())))
}

#[tokio::test]
async fn a_fence_counts_from_the_last_use_of_its_producer() {
    let files = Arc::new(Fake::default());
    let now_ms = Env::real().clock.wall_ms();
    for pid in 7..=9 {
        files.own.lock().raise(pid, 3, now_ms - 3 * DAY_MS);
    }
    let fences = start(&files);
    // Nothing goes while nobody can say.
    fences.load().await.unwrap();
    fences.poll(Arc::new(Uses(None))).await.unwrap();
    assert!((7..=9).all(|pid| stale(&fences, pid, 2)));
    // The session of 7 goes on, that of 8 has not done anything for long, 9 is nobody's.
    let known = uses([(7, now_ms), (8, now_ms - 2 * DAY_MS)]);
    fences.poll(known).await.unwrap();
    assert!(stale(&fences, 7, 2) && !stale(&fences, 8, 2) && !stale(&fences, 9, 2));
    let left: Vec<i64> = files.own.lock().fences.keys().copied().collect();
    assert_eq!(left, [7]);
    // It is known from then on.
    fences.poll(uses([])).await.unwrap();
    assert!(stale(&fences, 7, 2));
}

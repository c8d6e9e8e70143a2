//! Points 17 and 31, of kv: syncs that fail, a disk that is full, a take-over between the sync and
//! the answer. The journal's are in `tests/recovery`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use store_adapter::conformance::gate::GateVolume;
use store_adapter::ids::{BrokerId, OwnerEpoch};
use store_adapter::runtime::Random;
use store_adapter::store::{LogStore, StoreError};
use store_adapter::volume::owned::{Area, OwnedFiles, PresentOwner};
use store_adapter::volume::{PosixVolume, Volume};

use crate::stores::{self, Layout, SHARD};

async fn gated(layout: Layout, dir: &Path) -> (GateVolume, Arc<dyn LogStore>) {
    let gate = GateVolume::new(Arc::new(PosixVolume::open(dir).unwrap()), Arc::default());
    let volume: Arc<dyn Volume> = Arc::new(gate.clone());
    let store = stores::store_on(layout, volume, dir, &Arc::default());
    stores::try_open(&store, 1).await.unwrap();
    stores::add(&store, 0).await;
    for end in 0..5 {
        store.submit(vec![stores::append(0, end)]).await.unwrap();
    }
    (gate, store)
}

/// A failed sync is no success, and ends the shard; opened again, it has what was acknowledged. A
/// full disk refuses appends, not trims, and is over when there is room.
pub(crate) async fn failing_syncs_and_a_full_disk(layout: Layout) {
    let dir = tempfile::tempdir().unwrap();
    let (gate, store) = gated(layout, dir.path()).await;
    gate.fail_syncs(true);
    let queued = [5, 6].map(|end| store.submit(vec![stores::append(0, end)]));
    for commit in queued {
        let failed = commit.await.unwrap_err();
        let told = matches!(
            failed,
            StoreError::Uncertain { fenced: false } | StoreError::Offline(_)
        );
        assert!(told, "{failed:?}");
    }
    let offline = store.check_shard(SHARD);
    assert!(
        matches!(offline, Err(StoreError::Offline(_))),
        "{offline:?}"
    );
    assert_eq!(store.bounds(stores::log(0)), None);
    let still = stores::try_open(&store, 1).await;
    assert!(matches!(still, Err(StoreError::Offline(_))), "{still:?}");
    gate.fail_syncs(false);
    stores::try_open(&store, 1).await.unwrap();
    let bounds = stores::check(&store, 0).await.unwrap();
    assert!((5..=7).contains(&bounds.end), "{bounds:?}");
    let end = bounds.end;
    gate.fill(true);
    let full = store.submit(vec![stores::append(0, end)]).await;
    assert!(matches!(full, Err(StoreError::Full { .. })), "{full:?}");
    store.submit(vec![stores::trim(0, 3)]).await.unwrap();
    gate.fill(false);
    store.submit(vec![stores::append(0, end)]).await.unwrap();
    stores::close(store).await;
    let store = stores::open(layout, dir.path(), 2).await;
    let bounds = stores::check(&store, 0).await.unwrap();
    assert_eq!((bounds.start, bounds.end), (3, end + 1));
    stores::close(store).await;
    // A process that could not sync what it found does not believe what the page cache has.
    let gate = GateVolume::new(
        Arc::new(PosixVolume::open(dir.path()).unwrap()),
        Arc::default(),
    );
    let store = stores::store_on(layout, Arc::new(gate.clone()), dir.path(), &Arc::default());
    gate.fail_syncs(true);
    let failed = stores::try_open(&store, 3).await;
    assert!(matches!(failed, Err(StoreError::Offline(_))), "{failed:?}");
    gate.fail_syncs(false);
    let database = dir.path().join("__store/shard-0/kv/sled/db");
    let inode = || fs::metadata(&database).unwrap().ino();
    let before = inode();
    stores::try_open(&store, 4).await.unwrap();
    assert_ne!(inode(), before, "the database was not written anew");
    assert_eq!(stores::check(&store, 0).await.unwrap(), bounds);
    stores::close(store).await;
}

#[derive(Debug)]
struct Seeded(u64);

impl Random for Seeded {
    fn next_u64(&self) -> u64 {
        self.0
    }
}

/// Another owner claims the shard when a round is durable and not answered: no success is told,
/// and the next owner finds the group or not, never half.
pub(crate) async fn fenced_between_sync_and_answer(layout: Layout) {
    let dir = tempfile::tempdir().unwrap();
    let (gate, store) = gated(layout, dir.path()).await;
    for partition in [1, 2] {
        stores::add(&store, partition).await;
    }
    let volume: Arc<dyn Volume> = Arc::new(PosixVolume::open(dir.path()).unwrap());
    gate.after_sync(Box::pin(async move {
        let owner = PresentOwner {
            epoch: OwnerEpoch {
                assignment: 1,
                instance: 7,
            },
            broker: BrokerId(1),
            instance: 7,
        };
        let owned = OwnedFiles::new(volume, Arc::new(Seeded(0x31)));
        owned.take_over(Area::Shard(SHARD), owner).await.unwrap();
    }));
    let ops = vec![
        stores::append(0, 5),
        stores::append(1, 0),
        stores::append(2, 0),
    ];
    let told = store.submit(ops).await;
    assert_eq!(told, Err(StoreError::Uncertain { fenced: true }));
    let behind = store.submit(vec![stores::append(0, 6)]).await;
    assert_eq!(behind, Err(StoreError::Fenced));
    if layout == Layout::Journal {
        // Another machine's index.
        let index = dir.path().join("index");
        fs::rename(index, dir.path().join("elsewhere")).unwrap();
    }
    let next = stores::open(layout, dir.path(), 8).await;
    let mut ends = Vec::new();
    for partition in 0..3 {
        ends.push(stores::check(&next, partition).await.unwrap().end);
    }
    assert!(ends == [6, 1, 1] || ends == [5, 0, 0], "{ends:?}");
    stores::close(next).await;
    stores::close(store).await;
}

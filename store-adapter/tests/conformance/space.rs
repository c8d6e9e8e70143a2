//! Point 19: space that trims and deletions give back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use store_adapter::conformance::{batch_of, full_or};
use store_adapter::journal::JournalCounters;
use store_adapter::store::LogStore;
use store_adapter::volume::PosixVolume;

use crate::process::eventually;
use crate::stores::{self, Layout, SEGMENT_BYTES};

const BATCH: usize = 256 << 10;

/// Eight times of what is live is written, with trims; in the end the disk has at most so many
/// times what is live and two segments. Deleted, next to nothing of it.
pub(crate) async fn space(layout: Layout) {
    let dir = tempfile::tempdir().unwrap();
    let counters: Arc<JournalCounters> = Arc::default();
    let volume = Arc::new(PosixVolume::open(dir.path()).unwrap());
    let store = stores::store_on(layout, volume, dir.path(), &counters);
    stores::try_open(&store, 1).await.unwrap();
    stores::add(&store, 0).await;
    stores::add(&store, 1).await;
    store.submit(vec![stores::append(1, 0)]).await.unwrap();
    let live_mib = full_or(256, 48);
    let live = live_mib << 20;
    let batches = i64::try_from(live / BATCH as u64).unwrap();
    let batch = batch_of(1, BATCH, 0, 9);
    let mut end = 0;
    // Writes an eighth of what is live, and trims to that.
    let mut write = async || {
        for _ in 0..batches / 64 {
            let commits = (end..end + 8).map(|base| {
                let op = stores::sized(0, base, &batch);
                store.submit(vec![op])
            });
            stores::done(commits.collect()).await;
            end += 8;
            let start = (end - batches).max(0);
            store.submit(vec![stores::trim(0, start)]).await.unwrap();
        }
        stores::disk_bytes(dir.path())
    };
    let mut most = 0;
    for _ in 0..64 {
        most = most.max(write().await);
    }
    let (segment, times_10) = match layout {
        Layout::Journal => (SEGMENT_BYTES, 20),
        Layout::Kv => (16 << 20, 35),
    };
    let allowed = live * times_10 / 10 + 2 * segment;
    // The journal gives space back by itself, sled when more is written.
    for _ in 0..16 {
        if layout == Layout::Kv && stores::disk_bytes(dir.path()) > allowed {
            write().await;
        }
    }
    eventually("the space of what was trimmed", || {
        stores::disk_bytes(dir.path()) <= allowed
    })
    .await;
    let left = stores::disk_bytes(dir.path());
    println!(
        "19 {}: {live_mib} MiB live of 8 times that: at most {} MiB on the disk, in the end {} of \
         {} allowed",
        layout.name(),
        most >> 20,
        left >> 20,
        allowed >> 20
    );
    let found = stores::read_all(&store, 0).await.unwrap();
    assert_eq!(found.len(), usize::try_from(batches).unwrap());
    stores::check(&store, 1).await.unwrap();
    assert_eq!(counters.damaged_files(), Vec::<String>::new());
    assert!(counters.rounds.load(Ordering::Relaxed) > 0 || layout == Layout::Kv);
    delete(layout, dir.path(), store).await;
}

/// What was deleted is gone, also behind a close; the journal gives its space back.
async fn delete(layout: Layout, dir: &Path, store: Arc<dyn LogStore>) {
    store.delete(stores::log(0).topic).await.unwrap();
    assert_eq!(store.bounds(stores::log(0)), None);
    if layout == Layout::Journal {
        // sled uses what it has again, and shortens its file only at its end.
        let most = 4 * SEGMENT_BYTES;
        eventually("the space of what was deleted", || {
            stores::disk_bytes(&dir.join("__store")) <= most
        })
        .await;
    }
    stores::close(store).await;
    let store = stores::open(layout, dir, 2).await;
    assert_eq!(store.list().await.unwrap(), []);
    stores::close(store).await;
}

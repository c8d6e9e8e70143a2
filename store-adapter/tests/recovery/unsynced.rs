//! What a power cut leaves of rounds that nobody synced.

use std::sync::Arc;

use store_adapter::conformance::batch_of;
use store_adapter::journal::{FlushPolicy, IndexStore, JournalConfig, JournalStore, MemoryIndex};
use store_adapter::runtime::Env;
use store_adapter::store::LogStore;
use store_adapter::volume::VolumePath;
use store_adapter::volume::memory::MemoryVolume;

use crate::support::{
    EPOCH, add, add_two_with_rounds, config, files, journal, log, open, read_all, submit,
    submit_sized, tree,
};

/// Rounds of one file, at most: see [`unsynced`].
const ROUNDS_A_FILE: i64 = 4;
const BYTES: usize = 20_000;

fn unsynced(volume: &MemoryVolume, index: &Arc<MemoryIndex>) -> JournalStore {
    let config = JournalConfig {
        flush: FlushPolicy::Os,
        segment_bytes: 64 << 10,
        ..config()
    };
    let index = Arc::clone(index) as Arc<dyn IndexStore>;
    JournalStore::new(Env::real(), Arc::new(volume.clone()), index, config)
}

/// A power cut takes the end of what was acknowledged, and no more: no log is damaged, and what
/// lies in closed files stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_takes_the_end_and_no_more() {
    let mut lost = 0;
    for seed in 0..24 {
        let volume = MemoryVolume::new();
        // Kept, or lost with the machine's own disk.
        let kept: Arc<MemoryIndex> = Arc::default();
        let mut ends = [0, 0];
        let store = unsynced(&volume, &kept);
        open(&store, 1).await.unwrap();
        add(&store, 0).await;
        add(&store, 1).await;
        store.close().await.unwrap();
        for instance in 2..6 {
            let what = format!("seed {seed}, instance {instance}");
            let index = if seed % 2 == 0 {
                Arc::clone(&kept)
            } else {
                Arc::default()
            };
            let store = unsynced(&volume, &index);
            let info = open(&store, instance).await.unwrap();
            assert_eq!(info.damaged, [], "{what}");
            let mut gone = 0;
            for (partition, end) in (0..).zip(&mut ends) {
                let found = read_all(&store, partition).await.unwrap();
                let left = i64::try_from(found.len()).unwrap();
                assert!(left <= *end, "{what}");
                for (offset, stored) in (0..).zip(&found) {
                    let fill = u8::try_from(offset).unwrap();
                    let sent = batch_of(1, BYTES, 3, fill).stamp(offset, EPOCH);
                    assert_eq!(stored.bytes, sent.to_bytes(), "{what}");
                }
                gone += *end - left;
                *end = left;
                store.acquire(log(partition), EPOCH).await.unwrap();
            }
            assert!(gone <= ROUNDS_A_FILE, "{what}: {gone}");
            lost += gone;
            for round in 0..8 + seed % 5 {
                let partition = u32::try_from(round % 2).unwrap();
                let end = &mut ends[usize::try_from(partition).unwrap()];
                let fill = u8::try_from(*end).unwrap();
                submit_sized(&store, partition, *end, fill, BYTES)
                    .await
                    .unwrap();
                *end += 1;
            }
            volume.power_cut(seed + instance);
        }
    }
    assert!(lost > 0);
}

/// Two logs with three rounds each, of a process that was killed.
async fn killed() -> Vec<(VolumePath, Vec<u8>)> {
    let volume = MemoryVolume::new();
    let store = unsynced(&volume, &Arc::default());
    add_two_with_rounds(&store).await;
    files(&volume).await
}

async fn ends(store: &JournalStore) -> [i64; 2] {
    let mut ends = [0, 0];
    for (partition, end) in (0..).zip(&mut ends) {
        let found = read_all(store, partition).await.unwrap();
        *end = store.bounds(log(partition)).unwrap().end;
        assert_eq!(i64::try_from(found.len()).unwrap(), *end);
    }
    ends
}

/// A round that is not right is where the power cut began to take, though later ones are there.
#[tokio::test(flavor = "multi_thread")]
async fn a_round_that_is_not_right_is_the_end() {
    let mut files = killed().await;
    let at = journal(&files);
    let needle = batch_of(1, 100, 3, 1).stamp(1, EPOCH).to_bytes();
    let mut places = files[at].1.windows(needle.len());
    let found = places.position(|window| window == needle).unwrap();
    files[at].1[found + 80] ^= 1;
    let volume = tree(&files).await;
    let store = unsynced(&volume, &Arc::default());
    let info = open(&store, 2).await.unwrap();
    assert_eq!(info.damaged, []);
    assert!(info.dropped_tail_bytes > 0);
    assert_eq!(ends(&store).await, [1, 1]);
    store.acquire(log(0), EPOCH).await.unwrap();
    submit(&store, 0, 1, 3).await.unwrap();
    let next = unsynced(&volume, &Arc::default());
    open(&next, 3).await.unwrap();
    assert_eq!(ends(&next).await, [2, 1]);
}

/// The checkpoints were synced: what is not right in them is damage, and takes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_is_not_right_is_not_the_end() {
    let whole = killed().await;
    let at = journal(&whole);
    let first = 64;
    // An empty catalogue: a frame and a commit frame.
    let second = first + 64 + 68;
    for byte in [first + 8, second + 8] {
        let mut files = whole.clone();
        files[at].1[byte] ^= 1;
        let store = unsynced(&tree(&files).await, &Arc::default());
        let info = open(&store, 2).await.unwrap();
        assert_eq!((info.damaged, info.dropped_tail_bytes), (vec![], 0));
        assert_eq!(ends(&store).await, [3, 3]);
    }
}

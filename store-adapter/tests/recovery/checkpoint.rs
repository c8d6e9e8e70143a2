//! The catalogue with which a file begins: one copy of it is damaged, or a part of both.

use std::ops::Range;
use std::sync::Arc;

use store_adapter::journal::{
    JournalConfig, JournalCounters, JournalStore, MemoryIndex, OfflineShard,
};
use store_adapter::runtime::Env;
use store_adapter::store::LogStore;
use store_adapter::volume::VolumePath;
use store_adapter::volume::memory::MemoryVolume;

use crate::sift::{BATCHES, every, fill};
use crate::support::{
    EPOCH, SHARD, add, config, files, io, log, open, read_all, store_on, submit_sized, tree,
};

/// Where the header of a file ends.
const HEADER: usize = 64;
/// Logs whose names fill more than one part of a checkpoint.
const LOGS: u32 = 300;

/// The newest file of a shard with one owner, and its number.
pub(crate) fn newest(files: &[(VolumePath, Vec<u8>)]) -> (usize, u64) {
    let numbers = files.iter().enumerate().filter_map(|(at, (path, _))| {
        let name = path.file_name().strip_suffix(".log")?;
        let (_, seq) = name.rsplit_once('-')?;
        Some((at, seq.parse().ok()?))
    });
    numbers.max_by_key(|(_, seq)| *seq).unwrap()
}

/// Where the frames of the round at `at` begin, and where it ends.
fn round(file: &[u8], mut at: usize) -> (Vec<usize>, usize) {
    let mut frames = Vec::new();
    loop {
        frames.push(at);
        let len = file[at + 4..at + 8].try_into().unwrap();
        let kind = file[at + 8];
        at += usize::try_from(u32::from_be_bytes(len)).unwrap();
        if kind == 7 {
            return (frames, at);
        }
    }
}

/// Where the two checkpoints of a file lie.
pub(crate) fn checkpoints(file: &[u8]) -> [Range<usize>; 2] {
    let (_, first) = round(file, HEADER);
    let (_, second) = round(file, first);
    [HEADER..first, first..second]
}

/// Files before the newest one that were written anew have no catalogue, so the newest one has it
/// twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_a_checkpoint_takes_nothing() {
    let volume = MemoryVolume::new();
    let store = store_on(&volume, &Arc::new(MemoryIndex::new()));
    fill(&store).await;
    store.rewrite(every(4, EPOCH, true)).await.unwrap();
    for end in BATCHES..BATCHES + 3 {
        submit_sized(&store, 0, end, 1, 300).await.unwrap();
    }
    let expected = [
        read_all(&store, 0).await.unwrap(),
        read_all(&store, 1).await.unwrap(),
    ];
    let found = files(&volume).await;
    let (newest, _) = newest(&found);
    let [first, second] = checkpoints(&found[newest].1);
    assert!(first.len() > 200, "{first:?}");
    for at in first.chain(second) {
        let mut damaged = found.clone();
        damaged[newest].1[at] ^= 1 << (at % 8);
        let path = damaged[newest].0.to_string();
        let volume = tree(&damaged).await;
        let counters = Arc::new(JournalCounters::default());
        let config = JournalConfig {
            counters: Arc::clone(&counters),
            ..config()
        };
        let (on, index) = (Arc::new(volume.clone()), Arc::new(MemoryIndex::new()));
        let read = io(async move { OfflineShard::read(on, SHARD).await });
        let read = read.await.unwrap();
        let named: Vec<_> = read.files().filter(|file| file.damaged).collect();
        assert_eq!(named.len(), 1, "byte {at}");
        assert_eq!(named[0].path, path, "byte {at}");
        let opened = JournalStore::new(Env::real(), Arc::new(volume.clone()), index, config);
        assert_eq!(open(&opened, 2).await.unwrap().damaged, [], "byte {at}");
        for (partition, expected) in (0..).zip(&expected) {
            let all = read_all(&opened, partition).await.unwrap();
            assert_eq!(&all, expected, "byte {at}");
        }
        assert_eq!(counters.damaged_files(), [path.as_str()], "byte {at}");
    }
}

/// A catalogue of several parts of which one is lost is none: the logs of that part would be
/// missing, as if they had been deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_catalogue_without_one_of_its_parts_is_replayed_from_before() {
    let volume = MemoryVolume::new();
    let large = || {
        let config = JournalConfig {
            segment_bytes: 16 << 20,
            ..config()
        };
        let on = Arc::new(volume.clone());
        JournalStore::new(Env::real(), on, Arc::new(MemoryIndex::new()), config)
    };
    let store = large();
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    // What keeps the file in which all this stands.
    submit_sized(&store, 0, 0, 1, 300).await.unwrap();
    for partition in 1..LOGS {
        let name = format!("{partition:04000}");
        store.create(log(partition), &name, SHARD).await.unwrap();
    }
    std::mem::forget(store);
    let store = large();
    open(&store, 2).await.unwrap();
    store.acquire(log(0), EPOCH).await.unwrap();
    submit_sized(&store, 0, 1, 1, 300).await.unwrap();
    std::mem::forget(store);
    let found = files(&volume).await;
    let second_owner = |(path, _): &(VolumePath, _)| path.as_str().ends_with("/1.2-0.log");
    let at = found.iter().position(second_owner).unwrap();
    let file = &found[at].1;
    let (first, behind) = round(file, HEADER);
    let (second, _) = round(file, behind);
    // Two parts and the commit frame.
    assert_eq!((first.len(), second.len()), (3, 3));
    let all = usize::try_from(LOGS).unwrap();
    for frame in 0..3 {
        let mut damaged = found.clone();
        for copy in [&first, &second] {
            damaged[at].1[copy[frame] + 20] ^= 1;
        }
        let opened = store_on(&tree(&damaged).await, &Arc::new(MemoryIndex::new()));
        let info = open(&opened, 3).await.unwrap();
        assert_eq!(opened.list().await.unwrap().len(), all, "frame {frame}");
        // Where the commit frames are lost it is not known what else was there.
        assert!(info.damaged.is_empty() || frame == 2, "{:?}", info.damaged);
        let batches = read_all(&opened, 0).await.unwrap();
        assert_eq!(batches.len(), 2, "frame {frame}");
    }
}

//! Every bit of every file flipped, every file cut at every byte: what is served is what was sent,
//! or it is refused with a path.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use store_adapter::conformance::batch_of;
use store_adapter::journal::{
    JournalConfig, JournalCounters, JournalStore, MemoryIndex, OfflineShard,
};
use store_adapter::runtime::Env;
use store_adapter::store::{LogStore, Op, StoreError};
use store_adapter::volume::memory::MemoryVolume;
use store_adapter::volume::{Volume, VolumePath};

use crate::support::{EPOCH, SHARD, add, config, files, io, log, open, read_all, store_on};
use crate::support::{submit_sized, tell, tree};

/// Batches of each log.
const ENDS: [i64; 2] = [40, 5];
/// Where they start by then.
const STARTS: [i64; 2] = [39, 0];

/// A small store with a file that was written anew, closed files, and one being written; killed.
async fn written() -> Vec<(VolumePath, Vec<u8>)> {
    let volume = MemoryVolume::new();
    let counters = Arc::new(JournalCounters::default());
    let config = JournalConfig {
        segment_bytes: 2048,
        counters: Arc::clone(&counters),
        ..config()
    };
    let index = Arc::new(MemoryIndex::new());
    let store = JournalStore::new(Env::real(), Arc::new(volume.clone()), index, config);
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    add(&store, 1).await;
    for end in 0..ENDS[0] {
        submit_sized(&store, 0, end, 1, 100).await.unwrap();
        if end % 8 == 0 {
            submit_sized(&store, 1, end / 8, 2, 70).await.unwrap();
        }
    }
    let trim = Op::Trim {
        log: log(0),
        epoch: EPOCH,
        start: STARTS[0],
    };
    store.submit(vec![trim]).await.unwrap();
    while counters.rewrites.load(Ordering::SeqCst) < 3 {
        tokio::task::yield_now().await;
    }
    let mut found = files(&volume).await;
    found.retain(|(path, _)| path.as_str().starts_with("__store"));
    found
}

/// The same, taken over by another owner: the files of the first one are sealed.
async fn taken_over() -> Vec<(VolumePath, Vec<u8>)> {
    let volume = tree(&written().await).await;
    let store = store_on(&volume, &Arc::new(MemoryIndex::new()));
    assert_eq!(open(&store, 2).await.unwrap().damaged, []);
    std::mem::forget(store);
    let mut found = files(&volume).await;
    found.retain(|(path, _)| path.as_str().starts_with("__store"));
    found
}

/// The same, with some of the sealed files joined since: they are longer than their seals.
async fn joined() -> Vec<(VolumePath, Vec<u8>)> {
    let volume = tree(&written().await).await;
    let counters = Arc::new(JournalCounters::default());
    let config = JournalConfig {
        join_files: 2,
        counters: Arc::clone(&counters),
        ..config()
    };
    let index = Arc::new(MemoryIndex::new());
    let store = JournalStore::new(Env::real(), Arc::new(volume.clone()), index, config);
    assert_eq!(open(&store, 2).await.unwrap().damaged, []);
    // What was closed is one file.
    while journal_files(&files(&volume).await).count() > 2 {
        tokio::task::yield_now().await;
    }
    assert!(counters.joined_files.load(Ordering::SeqCst) > 0);
    store.close().await.unwrap();
    let mut found = files(&volume).await;
    found.retain(|(path, _)| path.as_str().starts_with("__store"));
    found
}

/// What a damaged store may be found to be. `last`: only the end of the newest file is damaged.
#[derive(Debug, Default)]
struct Seen {
    whole: u32,
    shorter: u32,
    offline: u32,
    refused: u32,
}

impl Seen {
    fn refusal(&mut self, error: &StoreError) {
        match error {
            StoreError::Corrupt { path, .. } => assert!(!path.is_empty()),
            StoreError::Offline(why) => assert!(why.contains("__store"), "{why}"),
            other => panic!("{other:?}"),
        }
        self.refused += 1;
    }
}

async fn judge(volume: MemoryVolume, newest: bool, seen: &mut Seen) {
    let shard = match OfflineShard::read(Arc::new(volume), SHARD).await {
        Ok(shard) => shard,
        Err(error) => return seen.refusal(&error),
    };
    let mut shorter = false;
    let mut offline = false;
    for (partition, (start, end)) in (0..).zip(STARTS.into_iter().zip(ENDS)) {
        let Some(found) = shard.logs().find(|found| found.id == log(partition)) else {
            assert!(newest, "a log is gone");
            shorter = true;
            continue;
        };
        if let Some(error) = &found.damaged {
            assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
            offline = true;
            continue;
        }
        let bounds = found.bounds;
        assert!(bounds.start <= start && bounds.end <= end, "{bounds:?}");
        let whole = (bounds.start, bounds.end) == (start, end);
        assert!(whole || newest, "{bounds:?}");
        shorter |= !whole;
        let mut next = bounds.start;
        while next < bounds.end {
            let batches = match shard.batches(found.id, next).await {
                Ok(batches) => batches,
                Err(StoreError::Corrupt { path, .. }) => {
                    assert!(!path.is_empty());
                    offline = true;
                    break;
                }
                Err(error) => panic!("{error:?}"),
            };
            for stored in &batches {
                let (bytes, fill) = if partition == 0 { (100, 1) } else { (70, 2) };
                let sent = batch_of(1, bytes, 3, fill).stamp(next, EPOCH);
                assert_eq!(stored.bytes, sent.to_bytes());
                next += 1;
            }
            assert!(!batches.is_empty());
        }
    }
    match (offline, shorter) {
        (true, _) => seen.offline += 1,
        (false, true) => seen.shorter += 1,
        (false, false) => seen.whole += 1,
    }
}

/// A tree in which `bytes` are those of the file at `at`.
async fn changed(files: &[(VolumePath, Vec<u8>)], at: usize, bytes: Vec<u8>) -> MemoryVolume {
    let volume = MemoryVolume::new();
    for (n, (path, content)) in files.iter().enumerate() {
        let content = if n == at { &bytes } else { content };
        volume.create_dir_all(&path.parent()).await.unwrap();
        let file = volume.create_new(path).await.unwrap();
        let content = bytes::Bytes::from(content.clone());
        file.write_at(0, &[content]).await.unwrap();
    }
    volume
}

fn journal_files(files: &[(VolumePath, Vec<u8>)]) -> impl Iterator<Item = &VolumePath> {
    let paths = files.iter().map(|(path, _)| path);
    paths.filter(|path| path.as_str().ends_with(".log"))
}

fn newest_file(files: &[(VolumePath, Vec<u8>)]) -> usize {
    let logs = files.iter().enumerate();
    let logs = logs.filter(|(_, (path, _))| path.as_str().ends_with(".log"));
    let number = |path: &VolumePath| {
        let name = path.file_name().strip_suffix(".log").unwrap();
        let (epoch, number) = name.rsplit_once('-').unwrap();
        (epoch.to_owned(), number.parse::<u64>().unwrap())
    };
    logs.max_by_key(|(_, (path, _))| number(path)).unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn every_flipped_bit_is_refused_or_changes_nothing() {
    let files = Arc::new(written().await);
    let newest = newest_file(&files);
    let kinds = |end: &str| {
        files
            .iter()
            .filter(|(p, _)| p.as_str().ends_with(end))
            .count()
    };
    assert!(kinds(".log") > 3 && kinds(".json") > 0, "{files:?}");
    let mut flips = 0;
    let work = files.iter().enumerate().map(|(at, (_, content))| {
        let (files, len) = (Arc::clone(&files), content.len());
        flips += len * 8;
        io(async move {
            let mut seen = Seen::default();
            for bit in 0..len * 8 {
                let mut bytes = files[at].1.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let volume = changed(&files, at, bytes).await;
                judge(volume, at == newest, &mut seen).await;
            }
            seen
        })
    });
    let mut shorter = 0;
    for (seen, (path, _)) in futures_util::future::join_all(work)
        .await
        .iter()
        .zip(&*files)
    {
        println!("{path}: {seen:?}");
        shorter += seen.shorter;
        assert!(seen.whole + seen.offline + seen.refused > 0);
    }
    // Only the last round, behind which nothing proves that it was once durable.
    tell(&format!(
        "{flips} flips in a journal, {shorter} taken for a torn tail"
    ));
    assert!(flips > 10_000, "{flips}");
}

/// The header of a closed file only says what the files around it know too.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_file_with_a_damaged_header_is_served_whole_and_named() {
    for (files, closed) in [(taken_over().await, 4), (joined().await, 1)] {
        damage_headers(Arc::new(files), closed).await;
    }
}

async fn damage_headers(files: Arc<Vec<(VolumePath, Vec<u8>)>>, closed: usize) {
    let newest = newest_file(&files);
    let logs = files.iter().enumerate();
    let logs = logs.filter(|(at, (path, _))| *at != newest && path.as_str().ends_with(".log"));
    let work = logs.map(|(at, _)| {
        let files = Arc::clone(&files);
        io(async move {
            for bit in 0..64 * 8 {
                let mut bytes = files[at].1.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let volume = changed(&files, at, bytes.clone()).await;
                let mut seen = Seen::default();
                judge(volume.clone(), false, &mut seen).await;
                assert_eq!(seen.whole, 1, "{}, bit {bit}: {seen:?}", files[at].0);
                let shard = OfflineShard::read(Arc::new(volume), SHARD).await.unwrap();
                let named = shard.files().filter(|file| file.damaged);
                let named: Vec<_> = named.map(|file| file.path.clone()).collect();
                assert_eq!(named, [files[at].0.as_str()]);
                // Without its footer the frames are looked for.
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                let mut seen = Seen::default();
                judge(changed(&files, at, bytes).await, false, &mut seen).await;
                assert_eq!(seen.refused, 0, "{}, bit {bit}: {seen:?}", files[at].0);
            }
        })
    });
    let work: Vec<_> = work.collect();
    assert!(work.len() >= closed, "{}", work.len());
    futures_util::future::join_all(work).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seals_and_witness_are_believed_only_as_they_were_written() {
    let files = Arc::new(taken_over().await);
    let jsons = files.iter().enumerate();
    let jsons = jsons.filter(|(_, (path, _))| path.as_str().ends_with(".json"));
    let work = jsons.map(|(at, (path, content))| {
        let content = std::str::from_utf8(content).unwrap().trim_end().to_owned();
        println!("{path}: {content}");
        let files = Arc::clone(&files);
        io(async move {
            let (mut seen, mut flips) = (Seen::default(), 0);
            for bit in 0..files[at].1.len() * 8 {
                let mut bytes = files[at].1.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                judge(changed(&files, at, bytes).await, false, &mut seen).await;
                flips += u32::from(bit / 8 < content.len());
            }
            // All in the content, and those in the checksum that leave a checksum.
            assert!(seen.refused >= flips, "{seen:?}, {flips} in {content}");
            assert_eq!((seen.shorter, seen.offline), (0, 0));
            let mut seen = Seen::default();
            for len in 0..content.len() {
                judge(
                    changed(&files, at, files[at].1[..len].to_vec()).await,
                    false,
                    &mut seen,
                )
                .await;
            }
            let cuts = u32::try_from(content.len()).unwrap();
            assert_eq!(seen.refused, cuts, "{seen:?} of {content}");
            let mut seen = Seen::default();
            for len in content.len()..files[at].1.len() {
                judge(
                    changed(&files, at, files[at].1[..len].to_vec()).await,
                    false,
                    &mut seen,
                )
                .await;
            }
            // What is left of the checksum is none.
            assert!(seen.whole > 0 && seen.refused == 0, "{seen:?} of {content}");
            // An older version wrote none.
            let plain = changed(&files, at, content.into_bytes()).await;
            let mut seen = Seen::default();
            judge(plain, false, &mut seen).await;
            assert_eq!(seen.whole, 1);
        })
    });
    let work: Vec<_> = work.collect();
    assert_eq!(work.len(), 2, "seals.json and newest.json");
    futures_util::future::join_all(work).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_cut_is_refused_or_takes_the_end_of_the_newest_file_alone() {
    let files = Arc::new(written().await);
    let newest = newest_file(&files);
    let work = files.iter().enumerate().map(|(at, (_, content))| {
        let (files, len) = (Arc::clone(&files), content.len());
        io(async move {
            let mut seen = Seen::default();
            for len in 0..len {
                let volume = changed(&files, at, files[at].1[..len].to_vec()).await;
                judge(volume, at == newest, &mut seen).await;
            }
            seen
        })
    });
    let mut cuts = 0;
    for (seen, (path, content)) in futures_util::future::join_all(work)
        .await
        .iter()
        .zip(&*files)
    {
        println!("{path}: {seen:?}");
        cuts += content.len();
    }
    tell(&format!("{cuts} cuts of the files of a journal"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_judges_damage_as_who_only_reads_does() {
    let files = written().await;
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..300 {
        let at = random.usize(..files.len());
        let mut damaged = files.clone();
        let bit = random.usize(..files[at].1.len() * 8);
        damaged[at].1[bit / 8] ^= 1 << (bit % 8);
        let volume = tree(&damaged).await;
        let read = {
            let volume = volume.clone();
            io(async move { OfflineShard::read(Arc::new(volume), SHARD).await }).await
        };
        let store = store_on(&volume, &Arc::new(MemoryIndex::new()));
        let opened = open(&store, 2).await;
        match (read, opened) {
            (Err(_), Err(_)) => {}
            (Ok(read), Ok(info)) => {
                let damaged: Vec<_> = read
                    .logs()
                    .filter_map(|log| Some((log.id, log.damaged.clone()?)))
                    .collect();
                assert_eq!(info.damaged, damaged, "seed 5, round {round}");
                for found in read.logs().filter(|log| log.damaged.is_none()) {
                    let bounds = store.bounds(found.id);
                    assert_eq!(bounds, Some(found.bounds), "seed 5, round {round}");
                    if let Ok(all) = read_all(&store, found.id.partition).await {
                        assert_eq!(
                            i64::try_from(all.len()).unwrap(),
                            found.bounds.end - found.bounds.start
                        );
                    }
                }
            }
            (read, opened) => panic!("round {round}: {read:?} and {opened:?}"),
        }
    }
}

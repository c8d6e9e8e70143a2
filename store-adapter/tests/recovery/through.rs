//! Many logs read in one pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use store_adapter::ids::LogId;
use store_adapter::journal::{JournalConfig, JournalStore, MemoryIndex};
use store_adapter::runtime::Env;
use store_adapter::store::{LogStore, StoredBatch};
use store_adapter::volume::memory::MemoryVolume;

use crate::support::{add, config, files, log, open, read_all, submit_sized, tree};

const LOGS: u32 = 24;
const ROUNDS: i64 = 30;

fn store(volume: &MemoryVolume) -> JournalStore {
    let config = JournalConfig {
        segment_bytes: 32 << 10,
        ..config()
    };
    let index = Arc::new(MemoryIndex::new());
    JournalStore::new(Env::real(), Arc::new(volume.clone()), index, config)
}

/// Logs whose batches lie among one another in many files, and one that had a batch long ago.
async fn filled(volume: &MemoryVolume) -> JournalStore {
    let store = store(volume);
    open(&store, 1).await.unwrap();
    for number in 0..=LOGS {
        add(&store, number).await;
    }
    submit_sized(&store, LOGS, 0, 7, 300).await.unwrap();
    for end in 0..ROUNDS {
        for number in 0..LOGS {
            let fill = u8::try_from(number).unwrap();
            submit_sized(&store, number, end, fill, 600).await.unwrap();
        }
    }
    store
}

/// What one pass finds.
async fn through(store: &JournalStore, from: &[(LogId, i64)]) -> BTreeMap<LogId, Vec<StoredBatch>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut batches = store.read_through(from).unwrap();
    while let Some(some) = batches.recv().await {
        for (log, batch) in some {
            found.entry(log).or_default().push(batch);
        }
    }
    found
}

#[tokio::test]
async fn one_pass_finds_of_each_log_what_reads_of_it_find() {
    let volume = MemoryVolume::new();
    let before = filled(&volume).await;
    before.close().await.unwrap();
    let store = store(&volume);
    open(&store, 2).await.unwrap();
    // Files of both, and the one that is being written.
    for number in 0..LOGS {
        add(&store, number).await;
        let fill = u8::try_from(number).unwrap();
        submit_sized(&store, number, ROUNDS, fill, 600)
            .await
            .unwrap();
    }
    for first in [0, 1, 17] {
        let from: Vec<_> = (0..LOGS).map(|number| (log(number), first)).collect();
        let found = through(&store, &from).await;
        // Those that begin in a file of few of them are left out; the first file has all.
        let all = found.len() == from.len();
        assert!(all || (first > 0 && found.len() >= 8), "{}", found.len());
        for (log, batches) in found {
            // But for a file of few of them, which is the last one if it is any.
            assert!(
                i64::try_from(batches.len()).unwrap() > ROUNDS - 2 - first,
                "{log}"
            );
            let read = store.read(log, first, usize::MAX, i64::MAX).await.unwrap();
            assert_eq!(batches, read[..batches.len()], "{log} from {first}");
        }
    }
    // One log is read by itself, and so is what has hardly anything in common with others.
    assert!(store.read_through(&[(log(0), 0)]).is_none());
    let from: Vec<_> = (0..LOGS).map(|number| (log(number), 17)).collect();
    let with_old: Vec<_> = from.iter().copied().chain([(log(LOGS), 0)]).collect();
    assert!(!through(&store, &with_old).await.contains_key(&log(LOGS)));
    // Nothing is left behind by who does not take it.
    drop(store.read_through(&from));
    store.close().await.unwrap();
}

#[tokio::test]
async fn behind_damage_one_pass_finds_nothing_more() {
    let volume = MemoryVolume::new();
    let before = filled(&volume).await;
    let mut whole = BTreeMap::new();
    for number in 0..LOGS {
        whole.insert(log(number), read_all(&before, number).await.unwrap());
    }
    before.close().await.unwrap();
    let mut files = files(&volume).await;
    let journals = files
        .iter_mut()
        .filter(|(path, _)| path.to_string().ends_with(".log"));
    let (_, bytes) = journals.into_iter().nth(4).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let store = store(&tree(&files).await);
    open(&store, 2).await.unwrap();
    let from: Vec<_> = (0..LOGS).map(|number| (log(number), 0)).collect();
    let found = through(&store, &from).await;
    let mut short = 0;
    for (log, all) in &whole {
        let found = found.get(log).map_or(&[][..], Vec::as_slice);
        assert_eq!(found, &all[..found.len()], "{log}");
        short += usize::from(found.len() < all.len());
    }
    assert!(short > 0);
}

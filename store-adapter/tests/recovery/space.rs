//! Space given back, and many logs.

use std::sync::Arc;

use store_adapter::journal::MemoryIndex;
use store_adapter::store::{LogStore, Op};
use store_adapter::volume::memory::MemoryVolume;

use crate::support::{EPOCH, SHARD, add, files, log, open, read_all, store_on, submit_sized};

async fn journal_bytes(volume: &MemoryVolume) -> usize {
    let files = files(volume).await;
    let logs = files
        .iter()
        .filter(|(path, _)| path.as_str().ends_with(".log"));
    logs.map(|(_, bytes)| bytes.len()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn trimmed_and_deleted_logs_give_their_files_back() {
    let volume = MemoryVolume::new();
    let store = store_on(&volume, &Arc::new(MemoryIndex::new()));
    open(&store, 1).await.unwrap();
    add(&store, 0).await;
    let (live, bytes) = (20, 20_000);
    for end in 0..8 * live {
        submit_sized(&store, 0, end, 1, bytes).await.unwrap();
        let trim = Op::Trim {
            log: log(0),
            epoch: EPOCH,
            start: (end - live).max(0),
        };
        store.submit(vec![trim]).await.unwrap();
    }
    // Twice what is live and two files of 256 KiB. Files are removed behind the answers.
    let bound = 2 * usize::try_from(live).unwrap() * bytes + 2 * (256 << 10);
    while journal_bytes(&volume).await > bound {
        tokio::task::yield_now().await;
    }
    assert_eq!(read_all(&store, 0).await.unwrap().len(), 21);
    store.delete(log(0).topic).await.unwrap();
    while journal_bytes(&volume).await > 2 * (256 << 10) {
        tokio::task::yield_now().await;
    }
    // The catalogue outlives the files that it was written to.
    add(&store, 1).await;
    let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
    assert_eq!(open(&taker, 2).await.unwrap().damaged, []);
    let list = taker.list().await.unwrap();
    assert_eq!(
        list.iter().map(|info| info.id).collect::<Vec<_>>(),
        [log(1)]
    );
}

/// Where no more is appended, because there is no room or nobody to append, it is never full.
#[tokio::test(flavor = "multi_thread")]
async fn the_file_that_is_being_written_gives_its_space_back() {
    for delete in [true, false] {
        let volume = MemoryVolume::new();
        let store = store_on(&volume, &Arc::new(MemoryIndex::new()));
        open(&store, 1).await.unwrap();
        for n in [0, 1] {
            add(&store, n).await;
        }
        submit_sized(&store, 1, 0, 1, 100).await.unwrap();
        let bytes = 20_000;
        for end in 0..6 {
            submit_sized(&store, 0, end, 1, bytes).await.unwrap();
        }
        let before = journal_bytes(&volume).await;
        assert!(before > 6 * bytes, "{before}");
        if delete {
            store.delete(log(0).topic).await.unwrap();
        } else {
            let trim = Op::Trim {
                log: log(0),
                epoch: EPOCH,
                start: 6,
            };
            store.submit(vec![trim]).await.unwrap();
        }
        while journal_bytes(&volume).await > bytes {
            tokio::task::yield_now().await;
        }
        // Both are logs of the topic.
        let left = read_all(&store, 1).await.map(|batches| batches.len());
        assert_eq!(left.ok(), (!delete).then_some(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_logs_are_found_again() {
    let volume = MemoryVolume::new();
    let store = store_on(&volume, &Arc::new(MemoryIndex::new()));
    open(&store, 1).await.unwrap();
    let create = |partition| store.create(log(partition), "orders", SHARD);
    let created = futures_util::future::join_all((0..1000).map(create)).await;
    assert!(created.iter().all(Result::is_ok));
    let acquire = |partition| store.acquire(log(partition), EPOCH);
    let acquired = futures_util::future::join_all((0..1000).map(acquire)).await;
    assert!(acquired.iter().all(Result::is_ok));
    for end in 0..3 {
        let commits = (0..1000).map(|partition| submit_sized(&store, partition, end, 1, 200));
        let outcomes = futures_util::future::join_all(commits).await;
        assert!(outcomes.iter().all(Result::is_ok));
    }
    for (instance, close) in [(2, false), (3, true)] {
        if close {
            store.close().await.unwrap();
        }
        let taker = store_on(&volume, &Arc::new(MemoryIndex::new()));
        assert_eq!(open(&taker, instance).await.unwrap().damaged, []);
        let list = taker.list().await.unwrap();
        assert_eq!(list.len(), 1000);
        assert!(list.iter().all(|info| info.bounds.end == 3));
        for partition in [0, 17, 999] {
            assert_eq!(read_all(&taker, partition).await.unwrap().len(), 3);
        }
    }
}

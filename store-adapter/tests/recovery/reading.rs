//! What reading costs: of the files no more is read than what is answered, and a little.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use store_adapter::journal::{JournalConfig, JournalCounters, JournalStore, MemoryIndex};
use store_adapter::runtime::Env;
use store_adapter::store::LogStore;
use store_adapter::volume::memory::MemoryVolume;

use crate::support::{add, log, open, submit_sized};

async fn store(logs: u32) -> (JournalStore, Arc<JournalCounters>) {
    let counters = Arc::new(JournalCounters::default());
    let config = JournalConfig {
        counters: Arc::clone(&counters),
        ..JournalConfig::default()
    };
    let index = Arc::new(MemoryIndex::new());
    let volume = Arc::new(MemoryVolume::new());
    let store = JournalStore::new(Env::real(), volume, index, config);
    open(&store, 1).await.unwrap();
    for partition in 0..logs {
        add(&store, partition).await;
    }
    (store, counters)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_read_in_vain() {
    // Bytes of a batch, logs that take turns, and the limit of one read.
    for (bytes, logs, limit) in [
        (200_000, 16, 1 << 20),
        (1_000_000, 1, 1 << 20),
        (1_000_000, 4, 1 << 20),
        (300_000, 1, 1 << 20),
        (1_000, 1, 1 << 20),
    ] {
        let batches = i64::try_from(4_000_000 / bytes).unwrap();
        let (store, counters) = store(logs).await;
        for end in 0..batches {
            for partition in 0..logs {
                submit_sized(&store, partition, end, 1, bytes)
                    .await
                    .unwrap();
            }
        }
        let mut answered = 0;
        for partition in 0..logs {
            let mut next = 0;
            while next < batches {
                let found = store.read(log(partition), next, limit, i64::MAX).await;
                let found = found.unwrap();
                answered += found.iter().map(|batch| batch.bytes.len()).sum::<usize>();
                next = found.last().unwrap().last_offset + 1;
            }
        }
        let read = counters.read_bytes.load(Ordering::Relaxed);
        let most = answered as u64 * 13 / 10;
        assert!(
            read <= most,
            "{bytes} x {logs}, {limit}: {read} for {answered}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_that_is_not_wanted_is_not_read() {
    let (store, counters) = store(1).await;
    submit_sized(&store, 0, 0, 1, 500_000).await.unwrap();
    let found = store.read_within(log(0), 0, 499_999, i64::MAX).await;
    assert_eq!(found, Ok(Vec::new()));
    assert_eq!(counters.read_bytes.load(Ordering::Relaxed), 0);
}

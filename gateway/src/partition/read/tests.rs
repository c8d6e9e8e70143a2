//! Records by their time.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::join_all;
use parking_lot::Mutex;
use store_adapter::batch::{Batch, BatchHeader};
use store_adapter::ids::{OwnerEpoch, ProducerEpoch, ProducerId, Sequence};
use store_adapter::memory::MemoryStore;
use store_adapter::runtime::{BoxFuture, Env, Runtime};
use store_adapter::store::LogStore;

use super::super::testing::{LOG, SHARD, lead_on};
use super::*;
use crate::admitted::Admitted;

/// Keeps io tasks instead of running them.
#[derive(Debug)]
struct Kept {
    real: Arc<dyn Runtime>,
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks(Vec<BoxFuture<'static, ()>>);

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tasks").field(&self.0.len()).finish()
    }
}

impl Runtime for Kept {
    fn spawn(&self, name: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.real.spawn(name, task)
    }

    fn spawn_io(&self, _: &str, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.tasks.lock().0.push(task);
        Box::pin(std::future::ready(()))
    }
}

fn batch(attributes: i16, timestamps: (i64, i64), body: &[u8]) -> Batch {
    let header = BatchHeader {
        base_offset: 0,
        batch_length: 0,
        leader_epoch: 0,
        magic: 2,
        crc: 0,
        attributes,
        last_offset_delta: 0,
        base_timestamp: timestamps.0,
        max_timestamp: timestamps.1,
        producer_id: ProducerId(-1),
        producer_epoch: ProducerEpoch(-1),
        base_sequence: Sequence(-1),
        records_count: 1,
    };
    Batch::assemble(header, body)
}

/// A log with a batch each, and what keeps its io tasks.
async fn log(batches: &[Batch]) -> (Arc<Partition>, Arc<Kept>) {
    let store = Arc::new(MemoryStore::new());
    let owner = OwnerEpoch {
        assignment: 1,
        instance: 1,
    };
    store.open_shard(SHARD, owner).await.unwrap();
    store.create(LOG, "t", SHARD).await.unwrap();
    let real = Env::real();
    let kept = Arc::new(Kept {
        real: real.runtime.clone(),
        tasks: Mutex::default(),
    });
    let runtime: Arc<dyn Runtime> = kept.clone();
    let led = lead_on(store.clone(), Env { runtime, ..real }, 1, Arc::default()).await;
    for batch in batches {
        let appended = led.append(batch, Admitted::default());
        appended.outcome().await.unwrap();
    }
    (led, kept)
}

const RECORD: &[u8] = &[12, 0, 0, 0, 1, 0, 0];

#[tokio::test]
async fn few_batches_are_unpacked_at_a_time() {
    let (led, kept) = log(&[batch(1, (100, 200), b"opaque")]).await;
    let lookups = (0..10).map(|_| led.at_time(150, Isolation::ReadUncommitted));
    let mut all = Box::pin(join_all(lookups));
    let mut unpacked = 0;
    let found = loop {
        if let Some(found) = all.as_mut().now_or_never() {
            break found;
        }
        let tasks = std::mem::take(&mut kept.tasks.lock().0);
        assert!((1..=2).contains(&tasks.len()), "{}", tasks.len());
        unpacked += tasks.len();
        for task in tasks {
            task.now_or_never().unwrap();
        }
    };
    assert_eq!(unpacked, 10);
    assert!(found.into_iter().all(|found| found.unwrap().offset == 0));
}

#[tokio::test]
async fn a_header_that_says_too_much_does_not_hide_what_follows() {
    let isolation = Isolation::ReadUncommitted;
    let says_900 = batch(0, (100, 900), RECORD);
    let has_500 = batch(0, (500, 500), RECORD);
    let (led, kept) = log(&[says_900, has_500, batch(0, (300, 300), RECORD)]).await;
    for (asked, offset, timestamp) in [(50, 0, 100), (400, 1, 500), (900, -1, -1)] {
        let found = led.at_time(asked, isolation).await.unwrap();
        assert_eq!((found.offset, found.timestamp), (offset, timestamp));
    }
    let found = led.max_timestamp(isolation).await.unwrap();
    assert_eq!((found.offset, found.timestamp), (1, 500));
    assert!(kept.tasks.lock().0.is_empty(), "short ones need no thread");
}

//! Records by their time.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::join_all;
use store_adapter::batch::{Batch, BatchHeader};
use store_adapter::memory::MemoryStore;

use super::super::testing::{Kept, NOBODY, header, lead_keeping};
use super::*;
use crate::admitted::Admitted;

fn batch(attributes: i16, timestamps: (i64, i64), body: &[u8]) -> Batch {
    let header = BatchHeader {
        base_timestamp: timestamps.0,
        max_timestamp: timestamps.1,
        ..header(attributes, NOBODY)
    };
    Batch::assemble(header, body)
}

/// A log with a batch each, and what keeps its io tasks.
async fn log(batches: &[Batch]) -> (Arc<Partition>, Arc<Kept>) {
    let (led, kept) = lead_keeping(Arc::new(MemoryStore::new())).await;
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
        let tasks = kept.take();
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
    assert!(kept.take().is_empty(), "short ones need no thread");
}

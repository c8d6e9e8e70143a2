//! Reading: floor, limits, times, what readers see beside a writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Harness;
use super::fixture::{EPOCH, World, append, batch, batch_of, first, log};
use crate::store::{Bounds, StoreError, Wanted};

/// An offset within a batch gives that batch; the end gives nothing, beyond it an error.
pub async fn floor(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    for fill in 0..10 {
        world.append(first(), &batch_of(10, 200, 0, fill)).await;
    }
    for from in [0, 1, 9, 10, 15, 55, 99] {
        let found = world.read(first(), from, 1, i64::MAX).await.unwrap();
        assert_eq!(found.len(), 1);
        let (base, last) = (from / 10 * 10, from / 10 * 10 + 9);
        assert_eq!((found[0].base_offset, found[0].last_offset), (base, last));
    }
    let at_end = world.read(first(), 100, 1000, i64::MAX).await;
    assert_eq!(at_end, Ok(Vec::new()));
    let out = Err(StoreError::OutOfRange { start: 0, end: 100 });
    assert_eq!(world.read(first(), 101, 1, i64::MAX).await, out);
    assert_eq!(world.read(first(), -1, 1, i64::MAX).await, out);
    let unknown = world.read(log(9, 9), 0, 1, i64::MAX).await;
    assert_eq!(unknown, Err(StoreError::NotFound));
}

/// A limit below a batch's size returns that batch whole; otherwise the limit holds.
pub async fn small_limit_returns_one_batch(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    for fill in 0..20 {
        world.append(first(), &batch_of(1, 10_000, 0, fill)).await;
    }
    for (limit, count) in [
        (0, 1),
        (1, 1),
        (9_999, 1),
        (10_000, 1),
        (25_000, 2),
        (200_000, 20),
    ] {
        let found = world.read(first(), 0, limit, i64::MAX).await.unwrap();
        assert_eq!(found.len(), count, "{limit}");
    }
}

/// A limit that holds even for the first batch.
pub async fn limit_within(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    for fill in 0..4 {
        world.append(first(), &batch_of(1, 10_000, 0, fill)).await;
    }
    world.append(first(), &batch_of(1, 200_000, 0, 9)).await;
    world.append(first(), &batch_of(1, 10_000, 0, 10)).await;
    let (small, large) = (10_000, 200_000);
    for (from, limit, count) in [
        (0, 0, 0),
        (0, small - 1, 0),
        (0, small, 1),
        (0, 3 * small, 3),
        (0, 4 * small + large - 1, 4),
        (0, 4 * small + large, 5),
        (4, large - 1, 0),
        (4, large, 1),
        (4, large + small, 2),
        (5, small, 1),
    ] {
        let store = &world.store;
        if store.caps().reads_lag {
            drop(store.read_within(first(), from, limit, i64::MAX).await);
        }
        let found = store.read_within(first(), from, limit, i64::MAX).await;
        assert_eq!(found.unwrap().len(), count, "{from} {limit}");
        // The same to who only passes it on, whether it was read lately or not.
        for (within, least) in [(true, 0), (false, 1), (true, 0), (false, 1)] {
            let wanted = Wanted {
                from,
                max_bytes: limit,
                upto: i64::MAX,
                within,
            };
            let passed = store.pass_on(first(), wanted).await.unwrap();
            assert_eq!(passed.len(), count.max(least), "{from} {limit} {within}");
            let last = passed.last().map_or(from, |last| last.last_offset() + 1);
            assert_eq!(last - from, i64::try_from(passed.len()).unwrap());
        }
    }
    let out = Err(StoreError::OutOfRange { start: 0, end: 6 });
    assert_eq!(world.store.read_within(first(), 7, 1, i64::MAX).await, out);
}

/// Nothing at or behind `upto` is returned.
pub async fn upto_hides(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    world.fill(first(), 0..10).await;
    for upto in 0..=10_i64 {
        let found = world.read(first(), 0, 1 << 20, upto).await.unwrap();
        assert_eq!(found.len(), usize::try_from(upto).unwrap());
    }
    let behind = world.read(first(), 5, 1 << 20, 5).await;
    assert_eq!(behind, Ok(Vec::new()));
}

/// The first batch in offset order with a timestamp at or behind the asked one.
pub async fn times(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    let none = world.store.find_time(first(), 0, 0).await;
    assert_eq!(none, Ok(None));
    let stamps = [50, 10, 70, 20, 70, 90, 30, 60];
    for (fill, stamp) in (0..).zip(stamps) {
        // Large enough for the batches to be spread over several places.
        world
            .append(first(), &batch_of(1, 40_000, stamp, fill))
            .await;
    }
    for (from, asked) in (0..10).flat_map(|from| (0..100).map(move |asked| (from, asked))) {
        let rest = stamps.iter().enumerate().skip(from);
        let expected = rest.clone().find(|(_, stamp)| **stamp >= asked);
        let offset = i64::try_from(from).unwrap();
        let found = world.store.find_time(first(), offset, asked).await.unwrap();
        let found = found.map(|batch| usize::try_from(batch.base_offset).unwrap());
        assert_eq!(found, expected.map(|(at, _)| at), "{asked} from {from}");
    }
    world.trim(first(), 3).await.unwrap();
    for asked in 0..100 {
        let expected = stamps[3..].iter().position(|stamp| *stamp >= asked);
        let found = world.store.find_time(first(), 0, asked).await.unwrap();
        let found = found.map(|batch| usize::try_from(batch.base_offset).unwrap() - 3);
        assert_eq!(found, expected, "{asked}");
    }
}

/// The time of an append is kept beside the batch.
pub async fn append_time(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    world.fill(first(), 0..5).await;
    let times = |batches: Vec<crate::store::StoredBatch>| -> Vec<i64> {
        batches.iter().map(|batch| batch.append_ms).collect()
    };
    let expected: Vec<i64> = (0..5).map(|end| 1_000_000 + end).collect();
    assert_eq!(times(world.read_all(first(), 0).await), expected);
    let world = world.reopened().await;
    assert_eq!(times(world.read_all(first(), 0).await), expected);
}

/// Readers beside appends, trims and a deletion see whole, committed, contiguous batches only.
pub async fn readers_see_committed_prefixes(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    let done = Arc::new(AtomicBool::new(false));
    let seen = Arc::new(AtomicU64::new(0));
    let store = Arc::clone(&world.store);
    let (stop, saw) = (Arc::clone(&done), Arc::clone(&seen));
    let reader = tokio::spawn(async move {
        let mut next = 0;
        while !stop.load(Ordering::SeqCst) {
            match store.read(first(), next, 30_000, i64::MAX).await {
                Ok(batches) => {
                    let end = store.bounds(first()).map_or(i64::MAX, |bounds| bounds.end);
                    for stored in batches {
                        assert_eq!(stored.base_offset, next);
                        let fill = u8::try_from(next % 251).unwrap();
                        let sent = batch_of(1, 5000, 0, fill).stamp(next, EPOCH);
                        assert_eq!(stored.bytes, sent.to_bytes());
                        assert!(stored.last_offset < end);
                        next += 1;
                        saw.fetch_add(1, Ordering::SeqCst);
                    }
                }
                Err(StoreError::OutOfRange { start, .. }) => next = next.max(start),
                // The deletion at the end.
                Err(StoreError::NotFound) => break,
                Err(error) => panic!("{error}"),
            }
            tokio::task::yield_now().await;
        }
    });
    for end in 0..600_i64 {
        let fill = u8::try_from(end % 251).unwrap();
        let sent = batch_of(1, 5000, 0, fill);
        world.submit(first(), end, &sent).await.unwrap();
        if end % 100 == 99 {
            world.trim(first(), end - 40).await.unwrap();
        }
    }
    while seen.load(Ordering::SeqCst) == 0 && !reader.is_finished() {
        tokio::task::yield_now().await;
    }
    world.store.delete(first().topic).await.unwrap();
    done.store(true, Ordering::SeqCst);
    reader.await.unwrap();
    assert!(seen.load(Ordering::SeqCst) > 0);
}

/// A watcher that looks and then waits never misses an end.
pub async fn watch_loses_no_wakeup(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    let mut watch = world.store.watch(first()).unwrap();
    let last = i64::from(super::full_or(100_000, 2000));
    let watcher = tokio::spawn(async move {
        loop {
            let Bounds { end, .. } = *watch.borrow_and_update();
            if end == last {
                return;
            }
            watch.changed().await.unwrap();
        }
    });
    let mut commits = Vec::new();
    for end in 0..last {
        let op = append(first(), EPOCH, end, &batch(1));
        commits.push(world.store.submit(vec![op]));
        if end % 7 == 0 {
            for commit in commits.drain(..) {
                commit.await.unwrap();
            }
        }
    }
    watcher.await.unwrap();
}

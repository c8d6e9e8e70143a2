//! Trimming, deleting, shards.

use super::Harness;
use super::fixture::{EPOCH, SHARD, World, append, batch, batch_of, first, log};
use crate::ids::ShardId;
use crate::store::{Bounds, Piece, StoreError};

/// Reads below the new start are out of range at once; a trim never goes back; one to the end
/// keeps the end. All of it outlives a reopening.
pub async fn trim(harness: &dyn Harness) {
    let mut world = World::with_log(harness).await;
    world.fill(first(), 0..10).await;
    world.trim(first(), 4).await.unwrap();
    let out = Err(StoreError::OutOfRange { start: 4, end: 10 });
    assert_eq!(world.read(first(), 3, 1, i64::MAX).await, out);
    world.trim(first(), 2).await.unwrap();
    assert_eq!(world.bounds(first()), Bounds { start: 4, end: 10 });
    world.assert_fills(first(), 4, 4..10).await;
    world = world.reopened().await;
    assert_eq!(world.bounds(first()), Bounds { start: 4, end: 10 });
    world.assert_fills(first(), 4, 4..10).await;
    world.trim(first(), 10).await.unwrap();
    for _ in 0..2 {
        assert_eq!(world.bounds(first()), Bounds { start: 10, end: 10 });
        let empty = world.read(first(), 10, 1, i64::MAX).await;
        assert_eq!(empty, Ok(Vec::new()));
        assert_eq!(world.store.find_time(first(), 0, 0).await, Ok(None));
        world = world.reopened().await;
    }
    let state = world.store.acquire(first(), EPOCH).await.unwrap();
    assert_eq!(state.last_epoch, Some(EPOCH));
    world.fill(first(), 10..12).await;
    world.assert_fills(first(), 10, 10..12).await;
}

/// A deleted log is gone with all it held; a topic of the same name is another one.
pub async fn delete_and_create_again(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    let kept = log(2, 0);
    world.add(log(1, 1)).await;
    world.add(kept).await;
    world.fill(first(), 0..5).await;
    world.fill(kept, 0..5).await;
    let watch = world.store.watch(first()).unwrap();
    world.store.delete(first().topic).await.unwrap();
    world.store.delete(first().topic).await.unwrap();
    drop(watch);
    let gone = async |world: &World<'_>| {
        let late = world.submit(first(), 5, &batch(1)).await;
        assert_eq!(late, Err(StoreError::NotFound));
        let read = world.read(first(), 0, 1, i64::MAX).await;
        assert_eq!(read, Err(StoreError::NotFound));
        assert_eq!(world.store.bounds(log(1, 1)), None);
        assert_eq!(world.store.list().await.unwrap().len(), 1);
    };
    gone(&world).await;
    let world = world.reopened().await;
    gone(&world).await;
    world.assert_fills(kept, 0, 0..5).await;
    // The same id again: nothing of the older log shows, now or after a reopening.
    world.add(first()).await;
    assert_eq!(world.bounds(first()), Bounds::default());
    world.fill(first(), 20..23).await;
    world.assert_fills(first(), 0, 20..23).await;
    let world = world.reopened().await;
    world.assert_fills(first(), 0, 20..23).await;
}

/// Shards open, close and fence apart from one another.
pub async fn shards_are_apart(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    let other = log(2, 0);
    world
        .store
        .open_shard(ShardId(1), world.owner)
        .await
        .unwrap();
    world.store.create(other, "b", ShardId(1)).await.unwrap();
    world.store.acquire(other, EPOCH).await.unwrap();
    world.fill(first(), 0..4).await;
    world.fill(other, 0..6).await;
    let taker = World::open(harness, 2).await;
    taker.assert_fills(first(), 0, 0..4).await;
    assert_eq!(taker.store.bounds(other), None);
    let late = world.submit(first(), 4, &batch(1)).await;
    assert!(late.is_err());
    world.fill(other, 6..8).await;
    world.assert_fills(other, 0, 0..8).await;
    assert_eq!(world.store.list().await.unwrap().len(), 1);
    let list = taker.store.list().await.unwrap();
    assert_eq!((list.len(), list[0].shard), (1, SHARD));
}

/// Pieces cover the log from where they are asked for, in order, with their bytes and times; the
/// size falls with a trim.
pub async fn pieces_and_sizes(harness: &dyn Harness) {
    let mut world = World::with_log(harness).await;
    assert_eq!(world.store.pieces(first(), 0, 1).await, Ok(Vec::new()));
    assert_eq!(size_of(&world).await, 0);
    for n in 0..30_i64 {
        let batch = batch_of(2, 30_000, 1000 + n, 1);
        world.submit(first(), 2 * n, &batch).await.unwrap();
    }
    for round in 0..2 {
        let size = size_of(&world).await;
        assert!((900_000..920_000).contains(&size), "{size}");
        for from in [0, 1, 31, 59] {
            let all = world.store.pieces(first(), from, u64::MAX).await.unwrap();
            let mut next = from;
            for piece in &all {
                assert!(piece.base == next && piece.last >= piece.base, "{piece:?}");
                assert_eq!(piece.last % 2, 1, "{piece:?}");
                assert_eq!(piece.max_timestamp, 1000 + piece.last / 2);
                next = piece.last + 1;
            }
            assert_eq!(next, 60);
            let bytes: u64 = all.iter().map(|piece| piece.bytes).sum();
            assert!(from > 0 || bytes == size, "{bytes}");
            let some = world.store.pieces(first(), from, 100_000).await.unwrap();
            assert!(all.starts_with(&some) && !some.is_empty());
            if let Some(parts) = world.store.parts(first(), from) {
                assert_parts(&parts, &all);
            }
        }
        let end = world.store.pieces(first(), 60, 1).await;
        assert_eq!(end, Ok(Vec::new()));
        assert!(world.store.pieces(first(), 61, 1).await.is_err());
        if round == 0 {
            world = world.reopened().await;
        }
    }
    world.trim(first(), 30).await.unwrap();
    let size = size_of(&world).await;
    assert!((440_000..520_000).contains(&size), "{size}");
    let out = world.store.pieces(first(), 29, 1).await;
    assert_eq!(out, Err(StoreError::OutOfRange { start: 30, end: 60 }));
}

/// They cover what the pieces do, and have as many bytes or more: the first may begin before.
fn assert_parts(parts: &[Piece], pieces: &[Piece]) {
    let ends = |all: &[Piece]| (all[0].base, all[all.len() - 1].last);
    assert!(ends(parts).0 <= ends(pieces).0, "{parts:?}");
    assert_eq!(ends(parts).1, ends(pieces).1);
    let follow = |two: &[Piece]| two[0].last + 1 == two[1].base;
    assert!(parts.windows(2).all(follow), "{parts:?}");
    for part in parts {
        assert_eq!(part.max_timestamp, 1000 + part.last / 2);
    }
    let bytes = |all: &[Piece]| all.iter().map(|piece| piece.bytes).sum::<u64>();
    assert!(bytes(parts) >= bytes(pieces), "{parts:?}");
}

/// Much is written and trimmed; what is live stays readable, also from closed files.
pub async fn space_is_given_back(harness: &dyn Harness) {
    let mut world = World::with_log(harness).await;
    let slow = log(3, 0);
    world.add(slow).await;
    world.fill(slow, 0..3).await;
    for round in 0..8_i64 {
        let mut commits = Vec::new();
        for n in 0..40 {
            let end = round * 40 + n;
            let fill = u8::try_from(end % 251).unwrap();
            let op = append(first(), EPOCH, end, &batch_of(1, 30_000, 0, fill));
            commits.push(world.store.submit(vec![op]));
        }
        for commit in commits {
            commit.await.unwrap();
        }
        world.trim(first(), (round * 40).max(1)).await.unwrap();
        if round % 3 == 2 {
            world = world.reopened().await;
        }
        let start = (round * 40).max(1);
        let found = world.read_all(first(), start).await;
        assert_eq!(
            found.len(),
            usize::try_from(round * 40 + 40 - start).unwrap()
        );
        for (offset, stored) in (start..).zip(&found) {
            let fill = u8::try_from(offset % 251).unwrap();
            let sent = batch_of(1, 30_000, 0, fill).stamp(offset, EPOCH);
            assert_eq!(stored.bytes, sent.to_bytes());
        }
        world.assert_fills(slow, 0, 0..3).await;
    }
}

/// What is known at once, and the part before that by its pieces.
async fn size_of(world: &World<'_>) -> u64 {
    let size = world.store.size(first()).unwrap();
    let start = world.store.bounds(first()).unwrap().start;
    let pieces = world.store.pieces(first(), start, u64::MAX).await.unwrap();
    let before = pieces.iter().filter(|piece| piece.base < size.from);
    size.bytes + before.map(|piece| piece.bytes).sum::<u64>()
}

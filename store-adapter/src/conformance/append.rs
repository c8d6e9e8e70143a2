//! Appending: identity, order, atomicity, group commit.

use super::Harness;
use super::fixture::{EPOCH, SHARD, World, append, batch, batch_of, first, log};
use crate::store::{AtomicScope, Commit, Op, StoreError};

/// Batches of every size come back as they were; a larger one than the store takes is refused.
pub async fn sizes(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    let max = world.store.caps().max_append;
    let mut sent = Vec::new();
    for (fill, size) in (1_u8..).zip([62, 100, 1 << 10, 128 << 10, 1 << 20, max]) {
        let sized = batch_of(3, size, 5, fill);
        let end = world.end(first());
        world.append(first(), &sized).await;
        sent.push(sized.stamp(end, EPOCH).to_bytes());
    }
    let end = world.end(first());
    assert_eq!(end, 18);
    let over = batch_of(1, max + 1, 5, 9);
    let refused = world.submit(first(), end, &over).await;
    assert_eq!(refused, Err(StoreError::TooLarge { max }));
    let found = world.read_all(first(), 0).await;
    assert_eq!(super::fixture::bytes_of(&found), sent);
    assert_eq!(world.end(first()), end);
}

/// An append whose `expect_end` is one off, either way, changes nothing.
pub async fn wrong_end_changes_nothing(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    world.fill(first(), 0..3).await;
    for wrong in [2, 4] {
        let refused = world.submit(first(), wrong, &batch(9)).await;
        assert_eq!(refused, Err(StoreError::EndMismatch { end: 3 }));
    }
    // Stamped with another offset than it names.
    let mut op = append(first(), EPOCH, 3, &batch(9));
    if let Op::Append(append) = &mut op {
        append.batch = batch(9).stamp(7, EPOCH);
    }
    let refused = world.store.submit(vec![op]).await;
    assert!(matches!(refused, Err(StoreError::Unsupported(_))));
    world.assert_fills(first(), 0, 0..3).await;
}

/// Two appenders under the same epoch: exactly one wins each offset.
pub async fn racing_handles(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    let race = |fill: u8| {
        let store = std::sync::Arc::clone(&world.store);
        tokio::spawn(async move {
            let mut won = Vec::new();
            while won.len() < 50 {
                let end = store.bounds(first()).unwrap().end;
                let op = append(first(), EPOCH, end, &batch(fill));
                match store.submit(vec![op]).await {
                    Ok(()) => won.push(end),
                    Err(StoreError::EndMismatch { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            won
        })
    };
    let (a, b) = (race(1), race(2));
    let (a, b) = (a.await.unwrap(), b.await.unwrap());
    let found = world.read_all(first(), 0).await;
    assert_eq!(found.len(), 100);
    for stored in found {
        let fill = if a.contains(&stored.base_offset) {
            1
        } else {
            2
        };
        assert_eq!(fill == 2, b.contains(&stored.base_offset));
        let expected = batch(fill).stamp(stored.base_offset, EPOCH).to_bytes();
        assert_eq!(stored.bytes, expected);
    }
}

/// A group over three logs with one bad operation changes none of them; a good one all.
pub async fn groups_are_atomic(harness: &dyn Harness) {
    let world = World::open(harness, 1).await;
    let logs = [log(1, 0), log(1, 1), log(1, 2)];
    for id in logs {
        world.add(id).await;
    }
    if world.store.caps().atomic == AtomicScope::Log {
        let ops = logs.map(|id| append(id, EPOCH, 0, &batch(1)));
        let refused = world.store.submit(ops.to_vec()).await;
        assert!(matches!(refused, Err(StoreError::Unsupported(_))));
        assert_eq!(logs.map(|id| world.end(id)), [0, 0, 0]);
        return;
    }
    for bad in 0..3 {
        let ops = (0..3).map(|n| append(logs[n], EPOCH, i64::from(n == bad), &batch(1)));
        let refused = world.store.submit(ops.collect()).await;
        assert_eq!(refused, Err(StoreError::EndMismatch { end: 0 }));
    }
    assert_eq!(logs.map(|id| world.end(id)), [0, 0, 0]);
    let ops = logs.map(|id| append(id, EPOCH, 0, &batch(1)));
    world.store.submit(ops.to_vec()).await.unwrap();
    assert_eq!(logs.map(|id| world.end(id)), [1, 1, 1]);
    // Twice the same log in one group, one behind the other.
    let ops = vec![
        append(logs[0], EPOCH, 1, &batch(2)),
        append(logs[0], EPOCH, 2, &batch(3)),
    ];
    world.store.submit(ops).await.unwrap();
    world.assert_fills(logs[0], 0, 1..4).await;
    if world.store.caps().atomic == AtomicScope::Shard {
        refuses_a_group_over_shards(&world).await;
    }
}

async fn refuses_a_group_over_shards(world: &World<'_>) {
    let other = crate::ids::ShardId(1);
    world.store.open_shard(other, world.owner).await.unwrap();
    world.store.create(log(2, 0), "b", other).await.unwrap();
    world.store.acquire(log(2, 0), EPOCH).await.unwrap();
    let ops = vec![
        append(log(1, 0), EPOCH, 3, &batch(1)),
        append(log(2, 0), EPOCH, 0, &batch(1)),
    ];
    let refused = world.store.submit(ops).await;
    assert!(matches!(refused, Err(StoreError::Unsupported(_))));
    assert_eq!((world.end(log(1, 0)), world.end(log(2, 0))), (3, 0));
}

/// Groups that are submitted without waiting commit in order.
pub async fn pipelined_order(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    let other = log(1, 1);
    world.add(other).await;
    let mut commits: Vec<Commit> = Vec::new();
    for (end, fill) in (0..).zip(0..200_u8) {
        commits.push(world.submit(first(), end, &batch(fill)));
        commits.push(world.submit(other, end, &batch(fill)));
    }
    for commit in commits {
        commit.await.unwrap();
    }
    world.assert_fills(first(), 0, 0..200).await;
    world.assert_fills(other, 0, 0..200).await;
}

/// When the third of five fails, the fourth and fifth fail too, and other logs do not.
pub async fn failure_fails_what_is_behind(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    let other = log(1, 1);
    world.add(other).await;
    let over = batch_of(1, world.store.caps().max_append + 1, 0, 0);
    let mut commits = Vec::new();
    for end in 0..5 {
        let sent = if end == 2 { over.clone() } else { batch(1) };
        commits.push(world.submit(first(), end, &sent));
        commits.push(world.submit(other, end, &batch(1)));
    }
    let mut outcomes = Vec::new();
    for commit in commits {
        outcomes.push(commit.await.is_ok());
    }
    let expected = [
        true, true, true, true, false, true, false, true, false, true,
    ];
    assert_eq!(outcomes, expected);
    assert_eq!((world.end(first()), world.end(other)), (2, 5));
    world.submit(first(), 2, &batch(7)).await.unwrap();
}

/// Dropping a commit does not cancel its group.
pub async fn dropped_commit_commits(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    for end in 0..20 {
        drop(world.submit(first(), end, &batch(3)));
    }
    world.submit(first(), 20, &batch(3)).await.unwrap();
    assert_eq!(world.end(first()), 21);
    assert_eq!(world.read_all(first(), 0).await.len(), 21);
}

/// 256 appenders need less than a twentieth as many syncs as appends.
pub async fn group_commit(harness: &dyn Harness) {
    let world = World::open(harness, 1).await;
    for partition in 0..256 {
        world
            .store
            .create(log(1, partition), "orders", SHARD)
            .await
            .unwrap();
        world.store.acquire(log(1, partition), EPOCH).await.unwrap();
    }
    let Some(before) = harness.syncs() else {
        return;
    };
    for end in 0..8 {
        let commits: Vec<Commit> = (0..256)
            .map(|partition| world.submit(log(1, partition), end, &batch(1)))
            .collect();
        for commit in commits {
            commit.await.unwrap();
        }
    }
    let syncs = harness.syncs().unwrap() - before;
    assert!(syncs < 8 * 256 / 20, "{syncs} syncs");
}

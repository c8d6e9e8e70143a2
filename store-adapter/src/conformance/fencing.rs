//! Who may write: leader epochs and owners.

use super::Harness;
use super::fixture::{EPOCH, SHARD, World, append, batch, first, log};
use crate::ids::{LeaderEpoch, OwnerEpoch};
use crate::store::{Bounds, LogState, Op, StoreError};

/// After an acquisition under a higher epoch everything of the older one is refused, also after
/// the shard was opened again.
pub async fn zombie_is_fenced(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    world.fill(first(), 0..3).await;
    let higher = LeaderEpoch(EPOCH.0 + 1);
    let state = world.store.acquire(first(), higher).await.unwrap();
    let bounds = Bounds { start: 0, end: 3 };
    let last_epoch = Some(EPOCH);
    assert_eq!(state, LogState { bounds, last_epoch });
    let refuse = async |world: &World<'_>| {
        let old = world.submit(first(), 3, &batch(9)).await;
        assert_eq!(old, Err(StoreError::Fenced));
        assert_eq!(world.trim(first(), 1).await, Err(StoreError::Fenced));
        let again = world.store.acquire(first(), EPOCH).await;
        assert_eq!(again, Err(StoreError::Fenced));
        assert_eq!(world.bounds(first()), bounds);
    };
    refuse(&world).await;
    let world = world.reopened().await;
    refuse(&world).await;
    let op = append(first(), higher, 3, &batch(4));
    world.store.submit(vec![op]).await.unwrap();
    assert_eq!(world.end(first()), 4);
}

/// A lower epoch is refused, an equal one may be acquired again, one that was not acquired may not
/// write.
pub async fn epochs_only_grow(harness: &dyn Harness) {
    let world = World::open(harness, 1).await;
    world.store.create(first(), "orders", SHARD).await.unwrap();
    let unheld = world.submit(first(), 0, &batch(1)).await;
    assert_eq!(unheld, Err(StoreError::Fenced));
    let state = world.store.acquire(first(), LeaderEpoch(5)).await.unwrap();
    assert_eq!((state.bounds, state.last_epoch), (Bounds::default(), None));
    let lower = world.store.acquire(first(), LeaderEpoch(4)).await;
    assert_eq!(lower, Err(StoreError::Fenced));
    let op = |end| append(first(), LeaderEpoch(5), end, &batch(1));
    world.store.submit(vec![op(0)]).await.unwrap();
    // Queued before, so decided before the answer.
    let queued = world.store.submit(vec![op(1)]);
    let state = world.store.acquire(first(), LeaderEpoch(5)).await.unwrap();
    assert_eq!(state.bounds.end, 2);
    assert_eq!(state.last_epoch, Some(LeaderEpoch(5)));
    queued.await.unwrap();
    let unheld = append(first(), LeaderEpoch(6), 2, &batch(1));
    assert_eq!(
        world.store.submit(vec![unheld]).await,
        Err(StoreError::Fenced)
    );
    let unknown = world.store.acquire(log(9, 9), EPOCH).await;
    assert_eq!(unknown, Err(StoreError::NotFound));
}

/// Another owner takes the shard while the first one is alive: what the first one had acknowledged
/// is there, and nothing of it succeeds any more.
pub async fn other_owner_fences(harness: &dyn Harness) {
    let old = World::with_log(harness).await;
    old.fill(first(), 0..5).await;
    let new = World::open(harness, 2).await;
    new.assert_fills(first(), 0, 0..5).await;
    new.store.acquire(first(), LeaderEpoch(2)).await.unwrap();
    let late = old.submit(first(), 5, &batch(99)).await;
    let fenced = [StoreError::Fenced, StoreError::Uncertain { fenced: true }];
    assert!(fenced.contains(&late.clone().unwrap_err()), "{late:?}");
    let again = old.submit(first(), 5, &batch(99)).await;
    assert_eq!(again, Err(StoreError::Fenced));
    assert_eq!(old.store.bounds(first()), None);
    let created = old.store.create(log(1, 1), "orders", SHARD).await;
    assert_eq!(created, Err(StoreError::Fenced));
    let op = append(first(), LeaderEpoch(2), 5, &batch(5));
    new.store.submit(vec![op]).await.unwrap();
    assert_eq!(new.end(first()), 6);
    assert_eq!(new.read_all(first(), 5).await.len(), 1);
    // The third finds what the second wrote, and nothing of the first one's late batch.
    let third = World::open(harness, 3).await;
    assert_eq!(third.end(first()), 6);
    let found = third.read_all(first(), 5).await;
    assert_eq!(found[0].bytes, batch(5).stamp(5, LeaderEpoch(2)).to_bytes());
}

/// An owner below one that was there is refused.
pub async fn lower_owner_is_refused(harness: &dyn Harness) {
    let world = World::open(harness, 5).await;
    let late = harness.broker();
    let owner = |assignment, instance| OwnerEpoch {
        assignment,
        instance,
    };
    let refused = late.open_shard(SHARD, owner(1, 4)).await;
    assert_eq!(refused, Err(StoreError::Fenced));
    let refused = late.open_shard(SHARD, owner(0, 9)).await;
    assert_eq!(refused, Err(StoreError::Fenced));
    world.add(first()).await;
    world.fill(first(), 0..2).await;
    assert_eq!(world.end(first()), 2);
    let info = late.open_shard(SHARD, owner(2, 1)).await.unwrap();
    assert_eq!(info.shard, SHARD);
}

/// What is not there is said to be not there; creation is idempotent.
pub async fn names_of_errors(harness: &dyn Harness) {
    let world = World::open(harness, 1).await;
    let missing = world.submit(first(), 0, &batch(1)).await;
    assert_eq!(missing, Err(StoreError::NotFound));
    assert_eq!(world.store.bounds(first()), None);
    assert!(world.store.watch(first()).is_none());
    let closed = crate::ids::ShardId(7);
    let created = world.store.create(first(), "orders", closed).await;
    assert!(matches!(created, Err(StoreError::Offline(_))));
    world.add(first()).await;
    world.fill(first(), 0..2).await;
    world.store.create(first(), "orders", SHARD).await.unwrap();
    assert_eq!(world.end(first()), 2);
    let list = world.store.list().await.unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!((list[0].id, list[0].name.as_str()), (first(), "orders"));
    assert_eq!((list[0].shard, list[0].bounds.end), (SHARD, 2));
    assert_eq!(world.store.submit(Vec::new()).await, Ok(()));
    let beyond = Op::Trim {
        log: first(),
        epoch: EPOCH,
        start: 3,
    };
    let refused = world.store.submit(vec![beyond]).await;
    assert_eq!(refused, Err(StoreError::OutOfRange { start: 0, end: 2 }));
}

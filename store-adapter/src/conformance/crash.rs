//! What outlives a closing, a kill, a power cut.

use super::Harness;
use super::fixture::{World, batch, first, log};
use crate::store::{Bounds, Durability};

/// A closed store has everything when it is opened again.
pub async fn reopen_after_close(harness: &dyn Harness) {
    let mut world = World::with_log(harness).await;
    let other = log(2, 3);
    world.add(other).await;
    for round in 0..4_u8 {
        world.fill(first(), round * 10..round * 10 + 10).await;
        world.fill(other, round * 5..round * 5 + 5).await;
        world = world.reopened().await;
        world.assert_fills(first(), 0, 0..round * 10 + 10).await;
        world.assert_fills(other, 0, 0..round * 5 + 5).await;
        assert_eq!(world.store.list().await.unwrap().len(), 2);
    }
}

/// Everything acknowledged is there after kill -9 with more on its way.
pub async fn acked_survives_kill(harness: &dyn Harness) {
    let mut world = World::with_log(harness).await;
    for round in 0..20_u8 {
        world.fill(first(), round * 5..round * 5 + 5).await;
        let end = world.end(first());
        for n in 0..5 {
            drop(world.submit(first(), end + n, &batch(200)));
        }
        let Some(next) = world.killed().await else {
            return;
        };
        world = next;
        let Bounds { start, end: found } = world.bounds(first());
        assert_eq!(start, 0);
        assert!((end..=end + 5).contains(&found), "{end} became {found}");
        // Whole batches, in order; what was not acknowledged is there or not.
        let all = world.read_all(first(), 0).await;
        assert_eq!(i64::try_from(all.len()).unwrap(), found);
        drop_unacked(&world, end).await;
        world.assert_fills(first(), 0, 0..round * 5 + 5).await;
    }
}

/// Starts over with exactly the acknowledged batches: the log is made again without the rest.
async fn drop_unacked(world: &World<'_>, acked: i64) {
    let all = world.read_all(first(), 0).await;
    let keep = usize::try_from(acked).unwrap();
    for (fill, stored) in (0..).zip(&all[..keep]) {
        let sent = batch(fill).stamp(stored.base_offset, super::fixture::EPOCH);
        assert_eq!(stored.bytes, sent.to_bytes());
    }
    if all.len() > keep {
        world.store.delete(first().topic).await.unwrap();
        world.add(first()).await;
        world.fill(first(), 0..u8::try_from(acked).unwrap()).await;
    }
}

/// Everything acknowledged is there after a power cut, for every seed of what else survives.
pub async fn acked_survives_power_cut(harness: &dyn Harness) {
    let mut world = World::with_log(harness).await;
    if world.store.caps().durability != Durability::Fsync {
        return;
    }
    for round in 0..20_u8 {
        world.fill(first(), round * 5..round * 5 + 5).await;
        let end = world.end(first());
        for n in 0..5 {
            drop(world.submit(first(), end + n, &batch(200)));
        }
        if !harness.power_cut(u64::from(round)) {
            return;
        }
        world = World::open(harness, world.owner.instance + 1).await;
        assert!(world.end(first()) >= end);
        drop_unacked(&world, end).await;
        world.assert_fills(first(), 0, 0..round * 5 + 5).await;
    }
}

/// Kill, restart, work, then power cut: what was acknowledged or shown after the restart is there.
pub async fn kill_restart_work_power_cut(harness: &dyn Harness) {
    let mut world = World::with_log(harness).await;
    if world.store.caps().durability != Durability::Fsync {
        return;
    }
    for seed in 0..20 {
        let end = world.end(first());
        for n in 0..20 {
            drop(world.submit(first(), end + n, &batch(1)));
        }
        let Some(next) = world.killed().await else {
            return;
        };
        let shown = next.end(first());
        let before = next.read_all(first(), 0).await;
        if seed % 2 == 0 {
            next.submit(first(), shown, &batch(2)).await.unwrap();
        }
        let acked = next.end(first());
        let instance = next.owner.instance;
        if !harness.power_cut(seed) {
            return;
        }
        world = World::open(harness, instance + 1).await;
        assert!(world.end(first()) >= acked, "seed {seed}");
        let after = world.read_all(first(), 0).await;
        assert_eq!(after[..before.len()], before, "seed {seed}");
    }
}

/// A trim that was answered holds after a kill.
pub async fn trim_survives_kill(harness: &dyn Harness) {
    let world = World::with_log(harness).await;
    world.fill(first(), 0..10).await;
    world.trim(first(), 6).await.unwrap();
    let Some(world) = world.killed().await else {
        return;
    };
    assert_eq!(world.bounds(first()), Bounds { start: 6, end: 10 });
    world.assert_fills(first(), 6, 6..10).await;
}

//! Fences of brokers on a volume in memory.

use std::sync::Arc;

use store_adapter::ids::{BrokerId, ProducerEpoch, ProducerId};
use store_adapter::local::MemoryIdentity;

use super::world::{Group, How, Interrupt, Site, World, config, host};
use crate::machine::txn::Fence;
use crate::service::fences::{FenceFileError, Fences};
use crate::volume::layout::Place;

const DAY_MS: i64 = 86_400_000;

fn fence(pid: i64, epoch: i16) -> Fence {
    Fence {
        pid: ProducerId(pid),
        epoch: ProducerEpoch(epoch),
    }
}

fn start(site: &Site, process: Group) -> Fences {
    try_start(site, process, Interrupt::none()).unwrap()
}

fn try_start(site: &Site, process: Group, hook: Arc<Interrupt>) -> Option<Fences> {
    let node = site.try_start(process, hook)?.ok()?;
    let env = site.world.env(process);
    Some(Fences::start(&env, node.fence_files(), DAY_MS))
}

fn publish(site: &Site, fences: &Fences, one: Fence) -> Option<Result<(), FenceFileError>> {
    let fences = fences.clone();
    site.world
        .run(async move { fences.publish(vec![one]).await })
}

fn poll(site: &Site, fences: &Fences) -> Result<(), FenceFileError> {
    let fences = fences.clone();
    site.world.run(async move { fences.load().await }).unwrap()
}

fn other(site: &Site, broker: i32, process: Group) -> Site {
    let mut other = site.clone();
    other.host = host("b", process);
    other.identity = Arc::<MemoryIdentity>::default();
    other.config = config(broker);
    other
}

#[test]
fn a_broker_knows_the_fences_of_every_other() {
    let site = Site::new(&World::new(1));
    let zero = start(&site, 1);
    poll(&site, &zero).unwrap();
    publish(&site, &zero, fence(7, 3)).unwrap().unwrap();
    let one = start(&other(&site, 1, 2), 2);
    poll(&site, &one).unwrap();
    assert_eq!(one.table().list(), [fence(7, 3)]);
    publish(&site, &one, fence(7, 5)).unwrap().unwrap();
    publish(&site, &one, fence(9, 1)).unwrap().unwrap();
    assert_eq!(zero.table().list(), [fence(7, 3)]);
    poll(&site, &zero).unwrap();
    assert_eq!(zero.table().list(), [fence(7, 5), fence(9, 1)]);
    // Each in a file of its own.
    let own = Place::ProducerFences(BrokerId(0)).path().to_string();
    let own = String::from_utf8(site.files()[&own].clone()).unwrap();
    assert!(own.contains(r#""7":3"#) && !own.contains(r#""9""#), "{own}");
}

#[test]
fn damage_of_another_brokers_file_is_reported_and_changes_nothing() {
    let site = Site::new(&World::new(2));
    let zero = site.start(1);
    let fences = Fences::start(&site.world.env(1), zero.fence_files(), DAY_MS);
    let path = Place::ProducerFences(BrokerId(4)).path();
    site.put(&path, br#"{"7":3}"#);
    poll(&site, &fences).unwrap();
    assert_eq!(fences.table().list(), [fence(7, 3)]);
    site.put(&path, br#"{"7":"#);
    for _ in 0..2 {
        poll(&site, &fences).unwrap();
    }
    assert_eq!(fences.table().list(), [fence(7, 3)]);
    let damage = zero.damage();
    assert_eq!(damage.len(), 1);
    assert_eq!(damage[0].path, path.to_string());
    assert!(damage[0].copy.is_some());
    site.put(&path, br#"{"7":4}"#);
    poll(&site, &fences).unwrap();
    assert_eq!(fences.table().list(), [fence(7, 4)]);
}

#[test]
fn a_damaged_own_file_publishes_nothing_and_is_not_overwritten() {
    let site = Site::new(&World::new(3));
    let first = start(&site, 1);
    publish(&site, &first, fence(7, 3)).unwrap().unwrap();
    site.world.kill(1);
    let path = Place::ProducerFences(BrokerId(0)).path();
    site.put(&path, b"{");
    let second = start(&site, 2);
    let refused = publish(&site, &second, fence(8, 1)).unwrap();
    assert!(
        matches!(refused, Err(FenceFileError::Damaged(_))),
        "{refused:?}"
    );
    assert!(poll(&site, &second).is_err());
    assert_eq!(site.files()[&path.to_string()], b"{");
    assert_eq!(second.table().list(), []);
    // Repaired, it serves again by itself.
    site.put(&path, br#"{"7":3}"#);
    publish(&site, &second, fence(8, 1)).unwrap().unwrap();
    poll(&site, &second).unwrap();
    assert_eq!(second.table().list(), [fence(7, 3), fence(8, 1)]);
}

#[test]
fn a_published_fence_outlives_a_crash_at_any_step() {
    let counted = Interrupt::none();
    let started = try_start(&Site::new(&World::new(0)), 1, counted.clone());
    drop(started.unwrap());
    let mut crashes = 0;
    for at in counted.steps().. {
        let site = Site::new(&World::new(at));
        let hook = Interrupt::new(at, How::Stop);
        let fences = try_start(&site, 1, hook.clone()).unwrap();
        let mut told = Vec::new();
        for epoch in 1..=3 {
            match publish(&site, &fences, fence(7, epoch)) {
                Some(Ok(())) => told.push(epoch),
                Some(Err(error)) => panic!("step {at}: {error}"),
                None => break,
            }
        }
        crashes += 1;
        site.world.kill(1);
        site.volume.power_cut(at);
        let again = start(&site, 2);
        poll(&site, &again).unwrap();
        let found = again.table().list();
        let is = found.first().map_or(0, |fence| fence.epoch.0);
        let last = told.last().copied().unwrap_or(0);
        assert!(
            is == last || is == last + 1,
            "step {at}: {found:?}, told {told:?}"
        );
        if told.len() == 3 {
            assert!(crashes > 10, "only {crashes} crashes");
            return;
        }
    }
}

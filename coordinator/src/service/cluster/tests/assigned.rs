//! A broker that another controller assigns its work: it keeps the assignment, takes what that
//! gives it, and follows it, never back.

use std::sync::Arc;
use std::time::Duration;

use store_adapter::ids::{BrokerId, OwnerEpoch, ShardId};
use store_adapter::local::MemoryIdentity;

use super::super::{ClusterNode, TopicError};
use super::world::{Site, World, config, host};
use super::{groups, new_topic};
use crate::machine::group::GroupError;
use crate::service::groups::{GroupConfig, Route};
use crate::slot_hash::fnv1a32;
use crate::volume::format::{AssignmentFile, decode, encode};
use crate::volume::layout::Place;

fn assignment(site: &Site) -> AssignmentFile {
    let files = site.files();
    decode(&files[&Place::Assignment.path().to_string()]).unwrap()
}

fn write(site: &Site, file: &AssignmentFile) {
    site.put(&Place::Assignment.path(), &encode(file).unwrap());
}

/// A lone broker has been here; then all went to broker 1 but one slot.
fn site() -> Site {
    let world = World::new(3);
    let mut site = Site::new(&world);
    let lone = site.start(0);
    let (node, new) = (lone.clone(), new_topic("a", 1));
    let created = world.run(async move { node.create_topic(new).await });
    created.unwrap().unwrap();
    world.kill(0);
    let mut file = assignment(&site);
    file.controller_epoch += 1;
    file.shards[0].broker = BrokerId(1);
    file.shards[0].epoch = 7;
    file.partitions[0].broker = BrokerId(1);
    file.partitions[0].epoch = 5;
    file.txn_slots[9].broker = BrokerId(1);
    file.txn_slots[9].epoch = 3;
    write(&site, &file);
    site.host = host("a", 1);
    site.identity = Arc::<MemoryIdentity>::default();
    site.config = config(1);
    site.config.assigned = true;
    site
}

fn after_a_heartbeat(site: &Site) {
    let sleep = site.world.env(9).clock.sleep(Duration::from_secs(2));
    site.world.run(sleep).unwrap();
}

fn owner(node: &ClusterNode, assignment: u32) -> OwnerEpoch {
    OwnerEpoch {
        assignment,
        instance: node.instance(),
    }
}

#[test]
fn it_owns_what_it_is_given_and_changes_nothing() {
    let site = site();
    let before = assignment(&site);
    let node = site.start(1);
    assert_eq!(assignment(&site), before);
    assert_eq!(node.shards(), [(ShardId(0), owner(&node, 7))]);
    assert_eq!(node.txn_slots(), [(9, owner(&node, 3))]);
    assert_eq!(node.group_slots(), []);
    let (asker, new) = (node.clone(), new_topic("b", 1));
    let refused = site.world.run(async move { asker.create_topic(new).await });
    assert!(matches!(refused, Some(Err(TopicError::Unavailable(_)))));
    let id = node.view().topics.get("a").unwrap().id;
    let asker = node.clone();
    let refused = site.world.run(async move { asker.delete_topic(id).await });
    assert!(matches!(refused, Some(Err(TopicError::Unavailable(_)))));
    after_a_heartbeat(&site);
    assert_eq!(assignment(&site), before);
}

#[test]
fn it_follows_what_is_newer() {
    let site = site();
    let node = site.start(1);
    let first = assignment(&site);
    let mut moved = first.clone();
    moved.assignment_version += 1;
    moved.shards[0].broker = BrokerId(0);
    moved.group_slots[4].broker = BrokerId(1);
    moved.group_slots[4].epoch = 2;
    write(&site, &moved);
    after_a_heartbeat(&site);
    assert_eq!(node.shards(), []);
    assert_eq!(node.group_slots(), [(4, owner(&node, 2))]);
    // One that is older, or can't be understood, is not.
    write(&site, &first);
    after_a_heartbeat(&site);
    assert_eq!(node.shards(), []);
    site.put(&Place::Assignment.path(), b"{");
    after_a_heartbeat(&site);
    assert_eq!(node.group_slots(), [(4, owner(&node, 2))]);
    assert!(!node.damage().is_empty());
}

#[test]
fn a_group_slot_that_it_is_given_while_it_runs_is_not_answered_for_before_it_is_taken_over() {
    let site = site();
    let node = site.start(1);
    let running = groups::serve_with(&site.world, node, 1, GroupConfig::default());
    assert_eq!(running.groups.route("g"), Route::Broker(BrokerId(0)));
    let mut file = assignment(&site);
    file.assignment_version += 1;
    let slot = usize::try_from(fnv1a32(b"g") % 50).unwrap();
    file.group_slots[slot].broker = BrokerId(1);
    file.group_slots[slot].epoch += 1;
    write(&site, &file);
    after_a_heartbeat(&site);
    assert!(matches!(running.groups.route("g"), Route::Here { .. }));
    let admitted = running.groups.admit("g");
    assert_eq!(admitted, Err(GroupError::NotCoordinator));
}

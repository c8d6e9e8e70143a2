use std::time::Duration;

use store_adapter::ids::{BrokerId, OwnerEpoch, ShardId};
use store_adapter::local::LocalIdentity;
use store_adapter::volume::VolumePath;

use super::super::{NodeStatus, StartError};
use super::world::{How, Interrupt, Site, World, host};
use super::{create, new_topic};
use crate::volume::format::{Health, Registration, decode};
use crate::volume::layout::Place;

fn registration(site: &Site) -> Registration {
    let bytes = &site.files()[Place::Broker(BrokerId(0)).path().as_str()];
    decode(bytes).unwrap()
}

#[test]
fn a_first_start_makes_a_cluster_that_owns_everything() {
    let site = Site::new(&World::new(1));
    let node = site.start(0);
    let view = node.view();
    assert_eq!(view.cluster_id.len(), 22);
    assert_eq!(
        site.identity.read().unwrap().as_deref(),
        Some(&*view.cluster_id)
    );
    assert_eq!(node.instance(), 1);
    let first = OwnerEpoch {
        assignment: 1,
        instance: 1,
    };
    assert_eq!(node.shards(), [(ShardId(0), first)]);
    let assignment = &view.assignment;
    assert_eq!((assignment.controller_epoch, assignment.version), (1, 1));
    assert_eq!(assignment.txn_slots.len(), 50);
    assert_eq!(assignment.group_slots.len(), 50);
    assert_eq!(assignment.brokers[0].health, Health::Alive);
    assert_eq!(assignment.brokers[0].listeners, site.config.listeners);
    assert!(node.damage().is_empty());
}

#[test]
fn a_clean_stop_and_a_kill_on_the_same_host_start_again_at_once() {
    let world = World::new(2);
    let mut site = Site::new(&world);
    let node = site.start(0);
    let topic = create(&world, &node, "orders").unwrap();
    let cluster = node.view().cluster_id.clone();
    world
        .run(async move { node.stop().await })
        .unwrap()
        .unwrap();
    assert!(registration(&site).stopped);
    site.host.pid = 2;
    let (before, node) = (world.now(), site.start(1));
    assert_eq!(world.now(), before);
    assert_eq!(node.instance(), 2);
    assert_eq!(node.view().cluster_id, cluster);
    assert_eq!(node.view().topics.get("orders"), Some(&topic));
    assert_eq!(node.view().assignment.controller_epoch, 2);

    world.kill(1);
    site.host.pid = 3;
    let (before, node) = (world.now(), site.start(2));
    assert_eq!(world.now(), before);
    assert_eq!(node.instance(), 3);
    assert_eq!(node.view().topics.by_id(topic.id), Some(&topic));
}

#[test]
fn the_heartbeat_moves_without_growing_the_file() {
    let world = World::new(3);
    let site = Site::new(&world);
    let _node = site.start(0);
    world.pass(Duration::from_millis(1500));
    let path = Place::Broker(BrokerId(0)).path();
    let len = site.files()[path.as_str()].len();
    let before = registration(&site).counter;
    world.pass(Duration::from_secs(20));
    assert_eq!(registration(&site).counter, before + 20);
    assert_eq!(site.files()[path.as_str()].len(), len);
}

#[test]
fn a_double_start_on_the_same_host_is_refused() {
    let world = World::new(4);
    let mut site = Site::new(&world);
    let node = site.start(0);
    site.host.running = vec![(1, 100)];
    site.host.pid = 2;
    let before = site.files();
    let refusal = StartError::RunsAlready {
        broker: BrokerId(0),
        host: "a".into(),
        pid: 1,
    };
    assert_eq!(site.refused(1), refusal);
    assert_eq!(site.files(), before);
    assert_eq!(*node.status().borrow(), NodeStatus::Running);
    // The process id alone is not enough: it may be another process by now.
    site.host.running = vec![(1, 101)];
    site.start(2);
}

#[test]
fn a_double_start_on_another_host_is_seen_by_its_heartbeat() {
    let world = World::new(5);
    let mut site = Site::new(&world);
    site.start(0);
    site.host = host("b", 1);
    // The handle was dropped, so that process has ended: its heartbeat stands still.
    let before = world.now();
    let node = site.start(1);
    assert_eq!(world.now(), before + Duration::from_secs(2));

    site.host = host("c", 1);
    let before = world.now();
    let refusal = site.refused(2);
    assert!(
        matches!(&refusal, StartError::RunsAlready { host, .. } if host == "b"),
        "{refusal}"
    );
    assert!(world.now() < before + Duration::from_secs(2));
    drop(node);
}

#[test]
fn another_broker_that_lives_is_not_pushed_out() {
    let world = World::new(6);
    let mut site = Site::new(&world);
    let node = site.start(0);
    site.host = host("b", 1);
    site.config.broker_id = BrokerId(1);
    assert!(matches!(
        site.refused(1),
        StartError::NotAlone {
            broker: BrokerId(0),
            ..
        }
    ));
    let topic = create(&world, &node, "orders").unwrap();
    world
        .run(async move { node.stop().await })
        .unwrap()
        .unwrap();
    let node = site.start(2);
    let view = node.view();
    let leader = view.assignment.leader("orders", 1).unwrap();
    assert_eq!((leader.broker, leader.epoch), (BrokerId(1), 1));
    assert_eq!(view.assignment.brokers[0].health, Health::Dead);
    assert_eq!(view.topics.by_id(topic.id), Some(&topic));
}

#[test]
fn a_volume_that_is_not_mounted_is_refused_and_left_alone() {
    let site = Site::new(&World::new(7));
    site.identity.write("Ej5FZ-ibS9OkVkJmFBdAAA").unwrap();
    assert!(matches!(
        site.refused(0),
        StartError::VolumeMissing { remembered } if remembered == "Ej5FZ-ibS9OkVkJmFBdAAA"
    ));
    assert!(site.files().is_empty());
}

#[test]
fn the_volume_of_another_cluster_is_refused_and_left_alone() {
    let site = Site::new(&World::new(8));
    site.start(0);
    let before = site.files();
    site.identity.write("Ej5FZ-ibS9OkVkJmFBdAAA").unwrap();
    assert!(matches!(site.refused(1), StartError::OtherCluster { .. }));
    assert_eq!(site.files(), before);
}

#[test]
fn a_volume_with_something_on_it_is_no_new_cluster() {
    for (path, is_state) in [
        (VolumePath::root().join("holidays.txt"), true),
        (VolumePath::root().join("t").join(".topic-id.json"), true),
        (Place::Broker(BrokerId(3)).path(), true),
        (Place::Assignment.path(), true),
        (VolumePath::root().join("lost+found").join("x"), false),
        (VolumePath::root().join("index").join("db"), false),
    ] {
        let site = Site::new(&World::new(9));
        site.put(&path, b"x");
        let outcome = site.try_start(0, Interrupt::none()).unwrap();
        match outcome {
            Err(StartError::NotEmpty { .. }) => assert!(is_state, "{path}"),
            Err(error) => panic!("{path}: {error}"),
            Ok(_) => assert!(!is_state, "{path}"),
        }
    }
}

#[test]
fn a_new_data_directory_joins_the_volume_that_is_there() {
    let world = World::new(10);
    let mut site = Site::new(&world);
    let node = site.start(0);
    let id = node.view().cluster_id.clone();
    world
        .run(async move { node.stop().await })
        .unwrap()
        .unwrap();
    site.identity = std::sync::Arc::default();
    assert_eq!(site.start(1).view().cluster_id, id);
    assert_eq!(site.identity.read().unwrap().as_deref(), Some(&*id));
}

#[test]
fn a_later_layout_is_refused() {
    let site = Site::new(&World::new(11));
    site.put(
        &Place::Cluster.path(),
        br#"{"version":2,"clusterId":"x","txnSlots":50,"groupSlots":50}"#,
    );
    assert_eq!(site.refused(0), StartError::UnsupportedVersion { found: 2 });
}

#[test]
fn a_volume_that_renames_nothing_is_refused() {
    use store_adapter::volume::memory::{StepFault, StepOutcome};
    let site = Site::new(&World::new(12));
    // Directories first, then the trial's create and rename.
    let hook = Interrupt::new(6, How::Once(StepOutcome::Fail(StepFault::Io)));
    let outcome = site.try_start(0, hook).unwrap();
    assert!(
        matches!(&outcome, Err(StartError::NoRename(_))),
        "{outcome:?}"
    );
    assert!(site.files().is_empty());
    site.start(1);
}

#[test]
fn shards_are_as_many_as_configured_and_never_fewer() {
    let world = World::new(13);
    let mut site = Site::new(&world);
    site.config.shards = 4;
    let node = site.start(0);
    let many = new_topic("many", 10);
    let topic = {
        let node = node.clone();
        world.run(async move { node.create_topic(many).await })
    };
    let topic = topic.unwrap().unwrap();
    for shard in 0..4 {
        let held = topic.shards.iter().filter(|s| s.0 == shard).count();
        assert!((2..=3).contains(&held), "shard {shard} holds {held}");
    }
    world
        .run(async move { node.stop().await })
        .unwrap()
        .unwrap();
    site.config.shards = 1;
    assert_eq!(site.start(1).shards().len(), 4);
}

#[test]
fn a_damaged_assignment_stops_the_start_and_is_copied() {
    let world = World::new(14);
    let site = Site::new(&world);
    let node = site.start(0);
    world
        .run(async move { node.stop().await })
        .unwrap()
        .unwrap();
    site.put(&Place::Assignment.path(), b"{\"controllerEpoch\":");
    let refusal = site.refused(1);
    assert!(matches!(refusal, StartError::Damaged { .. }), "{refusal}");
    let files = site.files();
    assert_eq!(
        files[Place::Assignment.path().as_str()],
        b"{\"controllerEpoch\":"
    );
    let copies = files
        .iter()
        .filter(|(path, _)| path.starts_with("__cluster/quarantine/"));
    assert_eq!(copies.count(), 1);
}

#[test]
fn a_damaged_registration_does_not_stop_a_start() {
    let world = World::new(15);
    let site = Site::new(&world);
    let node = site.start(0);
    world
        .run(async move { node.stop().await })
        .unwrap()
        .unwrap();
    site.put(&Place::Broker(BrokerId(0)).path(), b"\0\0\0\0");
    let node = site.start(1);
    assert_eq!(node.instance(), 2);
    assert_eq!(node.damage().len(), 1);
    assert_eq!(registration(&site).instance, 2);
}

/// A host that keeps believing old listings and failed look-ups for a minute, as NFS clients may.
#[test]
fn a_host_with_stale_listings_sees_what_others_did() {
    use store_adapter::volume::memory::Staleness;
    let world = World::new(16);
    let site = Site::new(&world);
    let mount = |seed| {
        let staleness = Staleness {
            clock: world.env(0).clock,
            age_max: Duration::from_mins(1),
            seed,
        };
        site.volume.mount(Interrupt::none(), Some(staleness))
    };
    let start = |group, volume: &store_adapter::volume::MemoryVolume| {
        let (env, config) = (world.env(group), site.config.clone());
        let (host, identity) = (site.host.clone(), site.identity.clone());
        let (volume, host) = (
            std::sync::Arc::new(volume.clone()),
            std::sync::Arc::new(host),
        );
        world
            .run(super::super::ClusterNode::start(
                env, volume, host, identity, config,
            ))
            .unwrap()
            .unwrap()
    };
    for seed in 0..20 {
        let [one, other] = [mount(2 * seed), mount(2 * seed + 1)];
        let mut names: Vec<String> = Vec::new();
        for round in 0..4 {
            let volume = if round % 2 == 0 { &one } else { &other };
            let node = start(0, volume);
            let view = node.view();
            for name in &names {
                assert!(view.topics.get(name).is_some(), "seed {seed}: no {name}");
            }
            let name = format!("t{seed}-{round}");
            create(&world, &node, &name).unwrap();
            names.push(name);
            assert!(node.damage().is_empty());
            world
                .run(async move { node.stop().await })
                .unwrap()
                .unwrap();
        }
    }
}

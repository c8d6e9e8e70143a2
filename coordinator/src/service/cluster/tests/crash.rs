//! A crash at every step of a life on the volume, with and without a power cut.

use std::collections::{BTreeMap, BTreeSet};

use store_adapter::ids::LogId;
use uuid::Uuid;

use super::super::{ClusterNode, Levels, PartitionFile, TopicError};
use super::new_topic;
use super::world::{Group, How, Interrupt, Site, World};
use crate::volume::format::{Extra, Manifest};

/// What a life was told before its crash.
#[derive(Debug, Clone, Default)]
struct Told {
    cluster_id: Option<String>,
    instance: u64,
    controller_epoch: u64,
    version: u64,
    /// Topics that exist for sure.
    created: BTreeMap<String, Uuid>,
    /// Ids that are gone for sure.
    deleted: BTreeSet<Uuid>,
    /// Names with a change whose outcome was not told.
    open: BTreeSet<String>,
    ids: BTreeSet<Uuid>,
    manifest: Option<(LogId, i64)>,
    /// The last epoch of features that holds for sure, which is also the level.
    features: i64,
}

impl Told {
    fn view(&mut self, node: &ClusterNode) {
        let view = node.view();
        self.cluster_id = Some(view.cluster_id.to_string());
        self.instance = node.instance();
        self.controller_epoch = view.assignment.controller_epoch;
        self.version = view.assignment.version;
    }
}

/// Creates, deletes, creates again, finalizes features, writes a manifest and stops. `None` where
/// it hangs.
fn live(world: &World, node: &ClusterNode, told: &mut Told) -> Option<()> {
    for name in ["a", "b", "a"] {
        if let Some(id) = told.created.remove(name) {
            told.open.insert(name.to_owned());
            let node = node.clone();
            let deleted = world.run(async move { node.delete_topic(id).await })?;
            deleted.unwrap();
            told.open.remove(name);
            told.deleted.insert(id);
        }
        told.open.insert(name.to_owned());
        let (asker, new) = (node.clone(), new_topic(name, 2));
        let topic = world.run(async move { asker.create_topic(new).await })?;
        let topic = topic.unwrap();
        told.open.remove(name);
        assert!(told.ids.insert(topic.id));
        told.created.insert(name.to_owned(), topic.id);
        told.view(node);
    }
    for level in [1, 2] {
        let (asker, levels) = (node.clone(), Levels::from([("f".to_owned(), level)]));
        let finalized = world.run(async move { asker.finalize(levels).await })?;
        finalized.unwrap();
        told.features = level.into();
    }
    let log = LogId {
        topic: told.created["b"],
        partition: 1,
    };
    for high_watermark in [5, 7] {
        let manifest = PartitionFile::Manifest(Manifest {
            epoch: 0,
            high_watermark,
            log_start_offset: 0,
            topic_id: None,
            extra: Extra::new(),
        });
        let asker = node.clone();
        let wrote = world.run(async move { asker.write_partition(log, manifest).await })?;
        wrote.unwrap();
        told.manifest = Some((log, high_watermark));
    }
    let asker = node.clone();
    world.run(async move { asker.stop().await })?.unwrap();
    Some(())
}

/// What must hold after a restart, whatever happened before.
fn check(site: &Site, told: &Told, group: Group, context: &str) -> ClusterNode {
    let node = site.start(group);
    let view = node.view();
    assert!(node.damage().is_empty(), "{context}: {:?}", node.damage());
    if let Some(cluster_id) = &told.cluster_id {
        assert_eq!(&*view.cluster_id, cluster_id, "{context}");
    }
    assert!(node.instance() > told.instance, "{context}");
    let (features, level) = (&view.features, view.features.levels.get("f"));
    assert_eq!(level.map_or(0, |level| i64::from(*level)), features.epoch);
    assert!(features.epoch >= told.features, "{context}");
    let assignment = &view.assignment;
    assert!(
        assignment.controller_epoch > told.controller_epoch,
        "{context}"
    );
    assert!(assignment.version > told.version, "{context}");
    for (name, id) in &told.created {
        let topic = view.topics.get(name).expect(context);
        assert_eq!(topic.id, *id, "{context}");
    }
    for id in &told.deleted {
        assert!(view.topics.by_id(*id).is_none(), "{context}");
        assert!(view.topics.is_deleted(*id), "{context}");
    }
    for topic in view.topics.iter() {
        let known = told.created.contains_key(&*topic.name) || told.open.contains(&*topic.name);
        assert!(known, "{context}: {} came from nowhere", topic.name);
        assert_eq!(topic.partitions(), 2, "{context}");
        assert_eq!(topic.configs["retention.ms"], "1000", "{context}");
        for partition in 0..2 {
            let leader = assignment.leader(&topic.name, partition).expect(context);
            assert_eq!(leader.broker, node.broker(), "{context}");
        }
    }
    if let Some((log, high_watermark)) = told.manifest {
        let asker = node.clone();
        let content = site
            .world
            .run(async move { asker.read_partition(log).await });
        let manifest = content.unwrap().unwrap().manifest.expect(context);
        assert!(manifest.high_watermark >= high_watermark, "{context}");
    }
    node
}

/// Goes on after the restart: every name can be created, and ids are new.
fn go_on(world: &World, node: &ClusterNode, told: &Told, context: &str) {
    for name in ["a", "b", "c"] {
        let (asker, new) = (node.clone(), new_topic(name, 2));
        let outcome = world.run(async move { asker.create_topic(new).await });
        match outcome.unwrap() {
            Ok(topic) => assert!(!told.ids.contains(&topic.id), "{context}"),
            Err(TopicError::AlreadyExists { .. }) => {
                assert!(node.view().topics.get(name).is_some(), "{context}");
            }
            Err(error) => panic!("{context}: {error}"),
        }
    }
}

/// One life with a crash at step `at`; whether it came that far.
fn crash_at(at: u64, cut: Option<u64>) -> bool {
    let context = format!("step {at}, power cut {cut:?}");
    let world = World::new(at);
    let mut site = Site::new(&world);
    let mut told = Told::default();
    let hook = Interrupt::new(at, How::Stop);
    let ended = match site.try_start(0, hook.clone()) {
        None => None,
        Some(node) => {
            let node = node.unwrap();
            told.view(&node);
            live(&world, &node, &mut told)
        }
    };
    world.kill(0);
    if let Some(seed) = cut {
        site.volume.power_cut(seed);
    }
    site.host.pid = 2;
    let node = check(&site, &told, 1, &context);
    told.view(&node);
    // A second crash straight behind the start loses nothing either.
    world.kill(1);
    if let Some(seed) = cut {
        site.volume.power_cut(seed ^ 0xff);
    }
    site.host.pid = 3;
    let node = check(&site, &told, 2, &context);
    go_on(&world, &node, &told, &context);
    ended.is_none()
}

#[test]
fn a_kill_at_any_step_loses_nothing() {
    let mut at = 0;
    while crash_at(at, None) {
        at += 1;
    }
    assert!(at > 100, "only {at} steps");
}

#[test]
fn a_power_cut_at_any_step_loses_nothing() {
    for seed in 0..2 {
        let mut at = 0;
        while crash_at(at, Some(seed * 1000 + at)) {
            at += 1;
        }
        assert!(at > 100, "only {at} steps");
    }
}

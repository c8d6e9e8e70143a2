use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use store_adapter::ids::{BrokerId, LeaderEpoch, LogId};
use store_adapter::volume::memory::{StepFault, StepOutcome};
use uuid::Uuid;

use super::super::{ClusterNode, NameError, TOPIC_PARTITIONS_MAX, Topic, TopicError, TopicIndex};
use super::world::{How, Interrupt, Site, World};
use super::{create, delete, new_topic};
use crate::volume::format::{Extra, TopicIdFile, TopicTombstone, decode};
use crate::volume::layout::Place;

fn names(topics: &TopicIndex) -> Vec<String> {
    topics.iter().map(|topic| topic.name.to_string()).collect()
}

fn run_create(
    world: &World,
    node: &ClusterNode,
    name: &str,
    partitions: u32,
) -> Result<(), TopicError> {
    let (node, new) = (node.clone(), new_topic(name, partitions));
    let outcome = world.run(async move { node.create_topic(new).await });
    outcome.unwrap().map(|_| ())
}

#[test]
fn topics_come_and_go() {
    let world = World::new(1);
    let site = Site::new(&world);
    let node = site.start(0);
    let topic = create(&world, &node, "orders").unwrap();
    assert_eq!(topic.partitions(), 2);
    assert_eq!(topic.configs["retention.ms"], "1000");
    let log = LogId {
        topic: topic.id,
        partition: 1,
    };
    assert_eq!(node.leads(log), Some(LeaderEpoch(0)));
    assert_eq!(node.view().leader(log).unwrap().broker, BrokerId(0));
    let beyond = LogId {
        partition: 2,
        ..log
    };
    assert_eq!(node.leads(beyond), None);
    let old = node.view();

    delete(&world, &node, topic.id).unwrap();
    assert!(node.view().topics.is_empty() && node.view().topics.is_deleted(topic.id));
    assert_eq!(node.leads(log), None);
    // A snapshot that someone holds does not change.
    assert_eq!(names(&old.topics), ["orders"]);
    let id = topic.id;
    assert_eq!(delete(&world, &node, id), Err(TopicError::UnknownId { id }));
    let files = site.files();
    let body: TopicIdFile = decode(&files["orders/.topic-id.json"]).unwrap();
    assert_eq!(body, TopicIdFile::tombstone(id));
    let proof: TopicTombstone = decode(&files[Place::TopicDeleted(id).path().as_str()]).unwrap();
    assert_eq!((proof.topic_id, proof.name.as_str()), (id, "orders"));
}

#[test]
fn a_name_that_comes_again_inherits_nothing() {
    let world = World::new(2);
    let site = Site::new(&world);
    let node = site.start(0);
    let first = create(&world, &node, "orders").unwrap();
    delete(&world, &node, first.id).unwrap();
    let (again, new) = (node.clone(), new_topic("orders", 7));
    let new = super::super::NewTopic {
        configs: BTreeMap::new(),
        ..new
    };
    let second = world.run(async move { again.create_topic(new).await });
    let second = second.unwrap().unwrap();
    assert_ne!(first.id, second.id);
    assert_eq!((second.partitions(), second.configs.len()), (7, 0));
    assert_eq!(node.view().topics.by_id(first.id), None);
    world.kill(0);
    let node = site.start(1);
    assert_eq!(node.view().topics.get("orders"), Some(&second));
    assert!(node.view().topics.is_deleted(first.id));
}

#[test]
fn bad_requests_are_told_why() {
    let world = World::new(3);
    let node = Site::new(&world).start(0);
    run_create(&world, &node, "a.b", 1).unwrap();
    let name = |name: &str| name.to_owned();
    for (asked, partitions, error) in [
        ("", 1, TopicError::InvalidName(NameError::Empty)),
        ("..", 1, TopicError::InvalidName(NameError::Dots)),
        (
            "__cluster",
            1,
            TopicError::InvalidName(NameError::Reserved(name("__cluster"))),
        ),
        ("a.b", 1, TopicError::AlreadyExists { name: name("a.b") }),
        (
            "a_b",
            1,
            TopicError::Collides {
                name: name("a_b"),
                existing: name("a.b"),
            },
        ),
        (
            "c",
            0,
            TopicError::InvalidPartitions {
                asked: 0,
                max: TOPIC_PARTITIONS_MAX,
            },
        ),
        (
            "c",
            10_001,
            TopicError::InvalidPartitions {
                asked: 10_001,
                max: TOPIC_PARTITIONS_MAX,
            },
        ),
    ] {
        assert_eq!(node.check_topic(asked, partitions), Err(error.clone()));
        assert_eq!(run_create(&world, &node, asked, partitions), Err(error));
    }
    assert_eq!(names(&node.view().topics), ["a.b"]);
    // Once the other one is gone there is nothing to collide with.
    let id = node.view().topics.get("a.b").unwrap().id;
    delete(&world, &node, id).unwrap();
    run_create(&world, &node, "a_b", 1).unwrap();
}

#[test]
fn of_concurrent_creations_of_a_name_one_wins() {
    let world = World::new(5);
    let node = Site::new(&world).start(0);
    let asker = node.clone();
    let outcomes = world.run(async move {
        let ask = |name: &str| {
            let (node, new) = (asker.clone(), new_topic(name, 1));
            async move { node.create_topic(new).await }
        };
        tokio::join!(ask("t"), ask("t"), ask("u"), ask("t"))
    });
    let (a, b, c, d) = outcomes.unwrap();
    let won = [&a, &b, &d]
        .iter()
        .filter(|outcome| outcome.is_ok())
        .count();
    assert_eq!(won, 1);
    assert!(c.is_ok());
    let lost = TopicError::AlreadyExists { name: "t".into() };
    for outcome in [a, b, d] {
        assert!(outcome.is_ok() || outcome == Err(lost.clone()));
    }
    assert_eq!(node.view().topics.len(), 2);
    // They shared one assignment.
    assert_eq!(node.view().assignment.version, 2);
}

#[test]
fn tombstones_are_kept_for_seven_days() {
    let world = World::new(6);
    let site = Site::new(&world);
    let node = site.start(0);
    let topic = create(&world, &node, "orders").unwrap();
    delete(&world, &node, topic.id).unwrap();
    let stop = |node: ClusterNode| world.run(async move { node.stop().await });
    stop(node).unwrap().unwrap();
    let path = Place::TopicDeleted(topic.id).path();
    let age = |days: i64| {
        let tombstone = TopicTombstone {
            topic_id: topic.id,
            name: "orders".into(),
            deleted_ms: site_ms(&world) - days * 86_400_000,
            extra: Extra::new(),
        };
        let bytes = crate::volume::format::encode(&tombstone).unwrap();
        site.put(&path, bytes.to_vec().leak());
    };
    age(6);
    let node = site.start(1);
    assert!(site.files().contains_key(path.as_str()));
    stop(node).unwrap().unwrap();
    age(8);
    let node = site.start(2);
    assert!(!site.files().contains_key(path.as_str()));
    assert!(node.view().topics.is_empty() && node.damage().is_empty());
    stop(node).unwrap().unwrap();
    assert!(site.start(3).damage().is_empty());
}

/// What is decided of its transactions is carried out behind the start that removes the proof.
#[test]
fn a_tombstone_whose_time_is_over_is_a_proof_to_the_process_that_removes_it() {
    let world = World::new(6);
    let site = Site::new(&world);
    let node = site.start(0);
    let topic = create(&world, &node, "orders").unwrap();
    delete(&world, &node, topic.id).unwrap();
    // Nothing else has the old id.
    let again = create(&world, &node, "orders").unwrap();
    world
        .run(async move { node.stop().await })
        .unwrap()
        .unwrap();
    let path = Place::TopicDeleted(topic.id).path();
    let tombstone = TopicTombstone {
        topic_id: topic.id,
        name: "orders".into(),
        deleted_ms: site_ms(&world) - 8 * 86_400_000,
        extra: Extra::new(),
    };
    let bytes = crate::volume::format::encode(&tombstone).unwrap();
    site.put(&path, bytes.to_vec().leak());
    let node = site.start(1);
    assert!(!site.files().contains_key(path.as_str()));
    let view = node.view();
    assert!(view.topics.is_deleted(topic.id) && !view.topics.is_deleted(again.id));
}

fn site_ms(world: &World) -> i64 {
    world.env(0).clock.wall_ms()
}

#[test]
fn a_damaged_topic_is_answered_and_the_others_go_on() {
    for (file, bytes) in [
        (".topic-id.json", &b"{\"topicId\""[..]),
        (".topic-id.json", b""),
        (".config.json", b"[1]"),
    ] {
        let world = World::new(7);
        let site = Site::new(&world);
        let node = site.start(0);
        create(&world, &node, "bad").unwrap();
        create(&world, &node, "good").unwrap();
        world.kill(0);
        let path = crate::volume::layout::topic_dir("bad").join(file);
        site.put(&path, bytes);
        let node = site.start(1);
        let view = node.view();
        assert_eq!(names(&view.topics), ["good"]);
        assert!(view.topics.is_damaged("bad") && !view.topics.is_damaged("good"));
        // What was assigned stays on record, so that no epoch is lowered after a repair.
        assert!(view.assignment.leader("bad", 1).is_some());
        let damage = node.damage();
        assert_eq!(damage.len(), 1, "{damage:?}");
        assert_eq!(damage[0].path, path.to_string());
        let name = "bad".to_owned();
        assert_eq!(
            run_create(&world, &node, "bad", 1),
            Err(TopicError::Damaged { name })
        );
        create(&world, &node, "other").unwrap();
        assert_eq!(site.files()[path.as_str()], bytes);
    }
}

#[test]
fn a_lost_identity_of_an_assigned_topic_is_damage() {
    let world = World::new(8);
    let site = Site::new(&world);
    let node = site.start(0);
    create(&world, &node, "bad").unwrap();
    world.kill(0);
    let volume = site.volume.clone();
    world
        .run(async move {
            use store_adapter::volume::Volume;
            let path = Place::TopicId("bad".into()).path();
            volume.remove(&path).await.unwrap();
        })
        .unwrap();
    let node = site.start(1);
    assert!(node.view().topics.is_damaged("bad"));
}

#[test]
fn a_copied_topic_directory_is_damage() {
    let world = World::new(9);
    let site = Site::new(&world);
    let node = site.start(0);
    create(&world, &node, "a").unwrap();
    world.kill(0);
    let bytes = site.files()["a/.topic-id.json"].clone().leak();
    site.put(&Place::TopicId("b".into()).path(), bytes);
    let node = site.start(1);
    assert_eq!(names(&node.view().topics), ["a"]);
    assert!(node.view().topics.is_damaged("b"));
}

#[test]
fn a_topic_of_an_older_volume_opens() {
    let world = World::new(10);
    let site = Site::new(&world);
    let node = site.start(0);
    world
        .run(async move { node.stop().await })
        .unwrap()
        .unwrap();
    let dir = crate::volume::layout::topic_dir("old");
    site.put(
        &dir.join(".topic-id.json"),
        br#"{"topicId":"12345678-9abc-4def-8123-456789abcdef"}"#,
    );
    site.put(
        &dir.join(".config.json"),
        br#"{"retentionMs":5,"x":{"y":1}}"#,
    );
    for partition in 0..3 {
        let dir = crate::volume::layout::partition_dir("old", partition);
        site.put(&dir.join("00000000.seg"), b"x");
    }
    let node = site.start(1);
    let view = node.view();
    let topic = view.topics.get("old").unwrap();
    assert_eq!(topic.partitions(), 3);
    assert_eq!(topic.configs["retention.ms"], "5");
    assert_eq!(view.assignment.leader("old", 2).unwrap().epoch, 0);
}

/// Every step of a creation and a deletion fails once, in every way: the outcome is whole or
/// nothing, and the node goes on by itself.
#[test]
fn a_failed_step_leaves_all_or_nothing_and_is_recovered_from() {
    let outcomes = [
        StepOutcome::Fail(StepFault::NoSpace),
        StepOutcome::FailAfter(StepFault::Io),
        StepOutcome::Late(StepFault::Io),
    ];
    let mut failures = BTreeSet::new();
    for outcome in outcomes {
        let mut at = 0;
        loop {
            let world = World::new(at);
            let site = Site::new(&world);
            let hook = Interrupt::new(steps_of_start() + at, How::Once(outcome));
            let node = site.try_start(0, hook.clone()).unwrap().unwrap();
            let created = create(&world, &node, "t");
            failures.extend(created.as_ref().err().map(ToString::to_string));
            world.pass(std::time::Duration::from_secs(3));
            let id = node.view().topics.get("t").map(|topic| topic.id);
            if let Ok(topic) = &created {
                assert_eq!(id, Some(topic.id));
            }
            let id = match id {
                Some(id) => id,
                None => insist(&world, &node, "t").id,
            };
            let deleted = delete(&world, &node, id);
            world.pass(std::time::Duration::from_secs(3));
            if deleted.is_ok() {
                assert!(node.view().topics.get("t").is_none());
            } else if node.view().topics.get("t").is_some() {
                delete(&world, &node, id).unwrap();
            }
            let next = insist(&world, &node, "t");
            assert_ne!(next.id, id);
            // What the file server held back comes too late.
            while !site.volume.late().is_empty() {
                drop(site.volume.run_late(0));
            }
            world.kill(0);
            let again = site.start(1);
            assert_eq!(again.view().topics.get("t"), Some(&next));
            assert!(again.view().topics.is_deleted(id));
            assert!(again.damage().is_empty(), "{:?}", again.damage());
            if hook.steps() <= steps_of_start() + at {
                break;
            }
            at += 1;
        }
        assert!(at > 20, "only {at} steps");
    }
    assert!(!failures.is_empty());
}

/// Creates a topic, a second time if the first one failed and left nothing.
fn insist(world: &World, node: &ClusterNode, name: &str) -> Arc<Topic> {
    if let Ok(topic) = create(world, node, name) {
        return topic;
    }
    world.pass(std::time::Duration::from_secs(3));
    let found = node.view().topics.get(name).cloned();
    found.unwrap_or_else(|| create(world, node, name).unwrap())
}

fn steps_of_start() -> u64 {
    let site = Site::new(&World::new(0));
    let hook = Interrupt::none();
    let _node = site.try_start(0, hook.clone()).unwrap().unwrap();
    hook.steps()
}

#[test]
fn ids_are_version_4_and_do_not_look_like_flags() {
    let world = World::new(11);
    let node = Site::new(&world).start(0);
    for n in 0..200 {
        let topic = create(&world, &node, &format!("t{n}")).unwrap();
        assert_eq!(topic.id.get_version_num(), 4);
        assert_ne!(topic.id.as_bytes()[0] >> 2, 62);
        assert_ne!(topic.id, Uuid::nil());
    }
}

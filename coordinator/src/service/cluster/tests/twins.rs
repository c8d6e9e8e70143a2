//! A process that is stopped between any two steps, taken over by another one, and wakes up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use store_adapter::ids::LogId;
use tokio::sync::oneshot;

use super::super::{ClusterNode, NodeError, NodeStatus, PartitionFile, Topic, TopicError};
use super::new_topic;
use super::world::{How, Interrupt, Site, World, host};
use crate::volume::format::{Extra, Manifest};

type Files = BTreeMap<String, Vec<u8>>;

fn log_of(topic: &Topic) -> LogId {
    LogId {
        topic: topic.id,
        partition: 0,
    }
}

/// What the first process tries while it is stopped and after.
async fn work(node: ClusterNode, kept: Arc<Topic>) -> Result<(), TopicError> {
    let log = log_of(&kept);
    let manifest = PartitionFile::Manifest(Manifest {
        epoch: 0,
        high_watermark: 99,
        log_start_offset: 0,
        topic_id: None,
        extra: Extra::new(),
    });
    let wrote = node.write_partition(log, manifest).await;
    assert!(matches!(
        wrote,
        Ok(()) | Err(NodeError::Fenced | NodeError::Unavailable(_))
    ));
    let new = node.create_topic(new_topic("new", 1)).await?;
    node.delete_topic(kept.id).await?;
    node.delete_topic(new.id).await
}

/// One run with the first process held at step `at` of its work; whether it came that far.
fn held_at(at: u64, steps_before: u64) -> bool {
    let world = World::new(at);
    let mut site = Site::new(&world);
    let hook = Interrupt::new(steps_before + at, How::Hold);
    let first = site.try_start(0, hook.clone()).unwrap().unwrap();
    let (asker, new) = (first.clone(), new_topic("kept", 1));
    let kept = world.run(async move { asker.create_topic(new).await });
    let kept = kept.unwrap().unwrap();

    let (done, mut outcome) = oneshot::channel();
    let work = work(first.clone(), kept.clone());
    drop(
        world
            .env(0)
            .runtime
            .spawn("work", Box::pin(async move { drop(done.send(work.await)) })),
    );
    // Everything comes to rest: at the held step, or done.
    world.pass(Duration::from_millis(500));
    let came_that_far = hook.steps() > steps_before + at;

    site.host = host("b", 1);
    site.host.boot_id = "another".into();
    if !came_that_far {
        return false;
    }
    let second = site.start(1);
    let view = second.view();
    let (asker, new) = (second.clone(), new_topic("second", 3));
    world
        .run(async move { asker.create_topic(new).await })
        .unwrap()
        .unwrap();
    // As its store does when it opens the shard.
    let (asker, log) = (second.clone(), log_of(&kept));
    let read = world.run(async move { asker.read_partition(log).await });
    if !view.topics.is_deleted(kept.id) {
        read.unwrap().unwrap();
    }
    let mut before = site.files();
    hook.release();
    world.pass(Duration::from_secs(3));
    let mut after = site.files();
    // The heartbeat of the second process moves. The first one may still mark what it had
    // written before it was taken over.
    for files in [&mut before, &mut after] {
        files.remove("__cluster/brokers/kaas-0.json").unwrap();
        files.retain(|path, _| !path.contains("/w-"));
    }
    let changed = |a: &Files, b: &Files| -> Vec<String> {
        let differs = |(path, _): &(&String, &Vec<u8>)| a.get(*path) != b.get(*path);
        a.iter()
            .filter(differs)
            .map(|(path, _)| path.clone())
            .collect()
    };
    let changed = [changed(&before, &after), changed(&after, &before)].concat();
    assert!(changed.is_empty(), "step {at}: {changed:?}");
    assert_eq!(*first.status().borrow(), NodeStatus::Fenced, "step {at}");
    assert_eq!(*second.status().borrow(), NodeStatus::Running, "step {at}");
    // The first one was told of success only where the second one saw it.
    let outcome = outcome.try_recv().unwrap();
    if outcome.is_ok() {
        assert!(view.topics.is_deleted(kept.id), "step {at}");
        assert!(view.topics.get("new").is_none(), "step {at}");
    }
    world.kill(0);
    world.kill(1);
    site.host.pid = 2;
    let third = site.start(2);
    assert!(third.damage().is_empty(), "step {at}: {:?}", third.damage());
    assert!(third.view().topics.get("second").is_some(), "step {at}");
    let names = |node: &ClusterNode| -> Vec<String> {
        let view = node.view();
        view.topics.iter().map(|t| t.name.to_string()).collect()
    };
    assert_eq!(names(&third), names(&second), "step {at}");
    true
}

#[test]
fn a_stopped_twin_that_wakes_up_changes_nothing() {
    let steps_before = {
        let world = World::new(0);
        let site = Site::new(&world);
        let hook = Interrupt::none();
        let node = site.try_start(0, hook.clone()).unwrap().unwrap();
        world
            .run(async move { node.create_topic(new_topic("kept", 1)).await })
            .unwrap()
            .unwrap();
        hook.steps()
    };
    let mut at = 0;
    while held_at(at, steps_before) {
        at += 1;
    }
    assert!(at > 30, "only {at} steps");
}

use store_adapter::ids::{BrokerId, LogId, OwnerEpoch, ShardId};
use store_adapter::volume::memory::{StepFault, StepOutcome};
use store_adapter::volume::owned::{Area, OwnedFiles, PresentOwner};

use super::super::{ClusterNode, NodeError, PartitionContent, PartitionFile, StartError};
use super::world::{How, Interrupt, Site, World};
use super::{create, delete};
use crate::service::producer_ids::BlockFile;
use crate::volume::format::{
    AssignmentFile, Extra, Manifest, ProducerSnapshot, SNAPSHOT_VERSION, TxnIndexSnapshot, decode,
};
use crate::volume::layout::Place;

fn manifest(epoch: u32, high_watermark: i64) -> PartitionFile {
    PartitionFile::Manifest(Manifest {
        epoch,
        high_watermark,
        log_start_offset: 0,
        topic_id: None,
        extra: Extra::new(),
    })
}

fn snapshot(log_end_offset: i64) -> ProducerSnapshot {
    ProducerSnapshot {
        version: SNAPSHOT_VERSION,
        entries: Vec::new(),
        log_end_offset: Some(log_end_offset),
        leader_epoch: Some(0),
        last_batch: None,
        topic_id: None,
    }
}

fn index(log_end_offset: i64) -> TxnIndexSnapshot {
    TxnIndexSnapshot {
        version: SNAPSHOT_VERSION,
        open: Vec::new(),
        aborted: Vec::new(),
        log_end_offset: Some(log_end_offset),
        leader_epoch: Some(0),
        last_batch: None,
        topic_id: None,
    }
}

fn write(
    world: &World,
    node: &ClusterNode,
    log: LogId,
    file: PartitionFile,
) -> Result<(), NodeError> {
    let node = node.clone();
    world
        .run(async move { node.write_partition(log, file).await })
        .unwrap()
}

fn read(world: &World, node: &ClusterNode, log: LogId) -> PartitionContent {
    let node = node.clone();
    world
        .run(async move { node.read_partition(log).await })
        .unwrap()
        .unwrap()
}

#[test]
fn partition_files_come_back() {
    let world = World::new(1);
    let site = Site::new(&world);
    let node = site.start(0);
    let topic = create(&world, &node, "t").unwrap();
    let log = LogId {
        topic: topic.id,
        partition: 1,
    };
    assert_eq!(read(&world, &node, log), PartitionContent::default());
    write(&world, &node, log, manifest(3, 10)).unwrap();
    write(
        &world,
        &node,
        log,
        PartitionFile::ProducerState(snapshot(10)),
    )
    .unwrap();
    write(&world, &node, log, PartitionFile::TxnIndex(index(10))).unwrap();
    world.kill(0);
    let node = site.start(1);
    let content = read(&world, &node, log);
    let found = content.manifest.unwrap();
    assert_eq!((found.epoch, found.high_watermark), (3, 10));
    assert_eq!(found.topic_id, Some(topic.id));
    assert_eq!(content.producer_state.unwrap().log_end_offset, Some(10));
    assert_eq!(content.txn_index.unwrap().log_end_offset, Some(10));
    // The epoch is never lowered.
    write(&world, &node, log, manifest(1, 12)).unwrap();
    let found = read(&world, &node, log).manifest.unwrap();
    assert_eq!((found.epoch, found.high_watermark), (3, 12));
}

#[test]
fn a_recreated_topic_does_not_see_the_files_of_the_old_one() {
    let world = World::new(2);
    let node = Site::new(&world).start(0);
    let topic = create(&world, &node, "t").unwrap();
    let log = LogId {
        topic: topic.id,
        partition: 0,
    };
    write(&world, &node, log, manifest(3, 10)).unwrap();
    write(
        &world,
        &node,
        log,
        PartitionFile::ProducerState(snapshot(10)),
    )
    .unwrap();
    delete(&world, &node, topic.id).unwrap();
    assert_eq!(
        write(&world, &node, log, manifest(3, 11)),
        Err(NodeError::NotLeader)
    );
    let again = create(&world, &node, "t").unwrap();
    let log = LogId {
        topic: again.id,
        ..log
    };
    assert_eq!(read(&world, &node, log), PartitionContent::default());
    write(&world, &node, log, manifest(0, 1)).unwrap();
    assert_eq!(read(&world, &node, log).manifest.unwrap().epoch, 0);
}

#[test]
fn a_damaged_snapshot_counts_as_none_and_is_copied() {
    let world = World::new(3);
    let site = Site::new(&world);
    let node = site.start(0);
    let topic = create(&world, &node, "t").unwrap();
    let log = LogId {
        topic: topic.id,
        partition: 0,
    };
    write(
        &world,
        &node,
        log,
        PartitionFile::ProducerState(snapshot(10)),
    )
    .unwrap();
    write(&world, &node, log, PartitionFile::TxnIndex(index(10))).unwrap();
    site.put(&Place::ProducerState("t".into(), 0).path(), b"not json");
    // Left by others for "no snapshot", and no damage.
    site.put(&Place::TxnIndex("t".into(), 0).path(), b"");
    assert_eq!(read(&world, &node, log), PartitionContent::default());
    let damage = node.damage();
    assert_eq!(damage.len(), 1, "{damage:?}");
    let copy = damage[0].copy.as_deref().unwrap();
    assert_eq!(site.files()[copy], b"not json");
    // The log holds what was in it: a new one is no guess.
    write(
        &world,
        &node,
        log,
        PartitionFile::ProducerState(snapshot(11)),
    )
    .unwrap();
    let content = read(&world, &node, log);
    assert_eq!(content.producer_state.unwrap().log_end_offset, Some(11));
}

/// Writes a snapshot twice, the second time over a step that fails. Whether it came so far.
fn fail_at(at: u64, outcome: StepOutcome) -> bool {
    let steps = Interrupt::none();
    let begun = |hook| {
        let site = Site::new(&World::new(8));
        let node = site.try_start(0, hook).unwrap().unwrap();
        let topic = create(&site.world, &node, "t").unwrap();
        let log = LogId {
            topic: topic.id,
            partition: 0,
        };
        let first = PartitionFile::ProducerState(snapshot(10));
        write(&site.world, &node, log, first).unwrap();
        (site, node, log)
    };
    begun(steps.clone());
    let hook = Interrupt::new(steps.steps() + at, How::Once(outcome));
    let (site, node, log) = begun(hook.clone());
    let second = PartitionFile::ProducerState(snapshot(11));
    let wrote = write(&site.world, &node, log, second);
    let came = hook.steps() > steps.steps() + at;
    // A failure that passes is over with the next try.
    let third = PartitionFile::TxnIndex(index(12));
    let again = write(&site.world, &node, log, third);
    assert!(
        again.is_ok() || wrote.is_ok(),
        "{at} {outcome:?}: {again:?}"
    );
    site.world.kill(0);
    site.volume.power_cut(at);
    let node = site.start(1);
    let content = read(&site.world, &node, log);
    let end = content.producer_state.unwrap().log_end_offset;
    let allowed = if wrote.is_ok() { 11..=11 } else { 10..=11 };
    assert!(
        allowed.contains(&end.unwrap()),
        "{at} {outcome:?}: {wrote:?}, {end:?}"
    );
    assert_eq!(node.damage(), [], "{at} {outcome:?}");
    came
}

#[test]
fn a_snapshot_whose_write_fails_at_any_step_is_the_old_or_the_new_one() {
    let faults = [
        StepFault::Io,
        StepFault::NoSpace,
        StepFault::ReadOnly,
        StepFault::TooManyOpenFiles,
    ];
    let mut failures = 0;
    for fault in faults {
        for outcome in [StepOutcome::Fail(fault), StepOutcome::FailAfter(fault)] {
            failures += (0..10_000).take_while(|at| fail_at(*at, outcome)).count();
        }
    }
    println!("{failures} steps failed");
    assert!(failures >= 40, "{failures}");
}

#[test]
fn partition_files_use_the_claim_that_the_store_has_made() {
    let world = World::new(4);
    let site = Site::new(&world);
    let node = site.start(0);
    let topic = create(&world, &node, "t").unwrap();
    let log = LogId {
        topic: topic.id,
        partition: 0,
    };
    let epoch = node.shard_owner(ShardId(0)).unwrap();
    let volume = std::sync::Arc::new(site.volume.clone());
    let owned = OwnedFiles::new(volume, world.env(0).random);
    let area = Area::Shard(ShardId(0));
    let owner = |epoch: OwnerEpoch| PresentOwner {
        epoch,
        broker: BrokerId(0),
        instance: epoch.instance,
    };
    let claim = {
        let owned = owned.clone();
        world.run(async move { owned.take_over(area, owner(epoch)).await })
    };
    let claim = claim.unwrap().unwrap();
    write(&world, &node, log, manifest(0, 1)).unwrap();
    let checked = world.run(async move { claim.check().await });
    assert_eq!(checked, Some(Ok(())));
    // A later owner of the shard fences them.
    let later = OwnerEpoch {
        instance: epoch.instance + 1,
        ..epoch
    };
    world
        .run(async move { owned.take_over(area, owner(later)).await.map(|_| ()) })
        .unwrap()
        .unwrap();
    assert_eq!(
        write(&world, &node, log, manifest(0, 2)),
        Err(NodeError::Fenced)
    );
}

#[test]
fn producer_id_blocks_are_durable_and_only_grow() {
    let world = World::new(5);
    let site = Site::new(&world);
    let node = site.start(0);
    let file = node.block_file();
    let read = |file: &super::super::VolumeBlockFile| {
        let file = file.clone();
        world.run(async move { file.read().await }).unwrap()
    };
    let reserve = |file: &super::super::VolumeBlockFile, next| {
        let file = file.clone();
        world.run(async move { file.reserve(next).await }).unwrap()
    };
    assert_eq!(read(&file), Ok(0));
    reserve(&file, 1000).unwrap();
    reserve(&file, 2000).unwrap();
    assert!(reserve(&file, 1000).is_err());
    world.kill(0);
    site.volume.power_cut(7);
    let node = site.start(1);
    assert_eq!(read(&node.block_file()), Ok(2000));
    // The process before is fenced.
    assert!(reserve(&file, 3000).is_err());
    site.put(&Place::ProducerIds(BrokerId(0)).path(), b"");
    let file = node.block_file();
    assert!(read(&file).is_err() && reserve(&file, 3000).is_err());
    assert_eq!(node.damage().len(), 1);
}

#[test]
fn fields_of_later_versions_survive() {
    let world = World::new(6);
    let site = Site::new(&world);
    let node = site.start(0);
    world
        .run(async move { node.stop().await })
        .unwrap()
        .unwrap();
    let path = Place::Assignment.path();
    let text = String::from_utf8(site.files()[path.as_str()].clone()).unwrap();
    // The checksum behind it would be of the content before.
    let text = text.trim_end();
    let text = format!("{},\"later\":[1]}}", text.strip_suffix('}').unwrap());
    site.put(&path, text.into_bytes().leak());
    let node = site.start(1);
    create(&world, &node, "t").unwrap();
    let file: AssignmentFile = decode(&site.files()[path.as_str()]).unwrap();
    assert_eq!(file.extra["later"], serde_json::json!([1]));
}

#[test]
fn a_file_that_is_too_large_is_refused_without_reading_it() {
    let site = Site::new(&World::new(7));
    site.put(&Place::Cluster.path(), vec![b' '; (1 << 20) + 1].leak());
    let refusal = site.refused(0);
    assert!(matches!(refusal, StartError::Volume(_)), "{refusal}");
}

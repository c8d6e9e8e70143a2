//! Random requests about offsets.

use kafka_protocol::messages as kp;
use kp::{offset_commit_request as oc, offset_delete_request as od, offset_fetch_request as of};

use super::Rng;

pub(super) fn offset_commit(v: i16, r: &mut Rng) -> kp::OffsetCommitRequest {
    let topics = r.list(4, |r| {
        let partitions = r.list(5, |r| {
            let partition = oc::OffsetCommitRequestPartition::default()
                .with_partition_index(r.i32())
                .with_committed_offset(r.i64())
                .with_committed_metadata(r.maybe_text());
            if v >= 6 {
                partition.with_committed_leader_epoch(r.i32())
            } else {
                partition
            }
        });
        oc::OffsetCommitRequestTopic::default()
            .with_name(r.text().into())
            .with_partitions(partitions)
    });
    let mut request = kp::OffsetCommitRequest::default()
        .with_group_id(r.text().into())
        .with_generation_id_or_member_epoch(r.i32())
        .with_member_id(r.text())
        .with_topics(topics);
    if v >= 7 {
        request.group_instance_id = r.maybe_text();
    }
    if v <= 4 {
        request.retention_time_ms = r.i64();
    }
    request
}

pub(super) fn offset_fetch(v: i16, r: &mut Rng) -> kp::OffsetFetchRequest {
    let mut request = kp::OffsetFetchRequest::default();
    if v >= 8 {
        request.groups = r.list(3, |r| {
            let topics = r.list(4, |r| {
                of::OffsetFetchRequestTopics::default()
                    .with_name(r.text().into())
                    .with_partition_indexes(r.list(5, Rng::i32))
            });
            let all = r.chance();
            let group = of::OffsetFetchRequestGroup::default()
                .with_group_id(r.text().into())
                .with_topics((!all).then_some(topics));
            if v >= 9 {
                group
                    .with_member_id(r.maybe_text())
                    .with_member_epoch(r.i32())
            } else {
                group
            }
        });
        request.topics = Some(Vec::new());
    } else {
        request.group_id = r.text().into();
        let topics = r.list(4, |r| {
            of::OffsetFetchRequestTopic::default()
                .with_name(r.text().into())
                .with_partition_indexes(r.list(5, Rng::i32))
        });
        let all = v >= 2 && r.chance();
        request.topics = (!all).then_some(topics);
    }
    if v >= 7 {
        request.require_stable = r.chance();
    }
    request
}

pub(super) fn offset_delete(r: &mut Rng) -> kp::OffsetDeleteRequest {
    let topics = r.list(4, |r| {
        let partitions = r.list(5, |r| {
            od::OffsetDeleteRequestPartition::default().with_partition_index(r.i32())
        });
        od::OffsetDeleteRequestTopic::default()
            .with_name(r.text().into())
            .with_partitions(partitions)
    });
    kp::OffsetDeleteRequest::default()
        .with_group_id(r.text().into())
        .with_topics(topics)
}

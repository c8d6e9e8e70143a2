//! Requests of a group's member and of a consumer's offsets, at fixed versions.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use kafka_protocol::messages::consumer_protocol_assignment::TopicPartition;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, FindCoordinatorRequest, GroupId,
    HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, OffsetCommitRequest,
    OffsetFetchRequest, SyncGroupRequest, SyncGroupResponse,
};
use kafka_protocol::protocol::{Encodable as _, StrBytes};

use super::RawClient;
use super::ops::{check, topic_name};

/// Version of JoinGroup and SyncGroup that [`join`] and [`sync`] speak.
pub const JOIN_VERSION: i16 = 5;
/// Version of OffsetCommit that [`commit`] speaks.
pub const COMMIT_VERSION: i16 = 7;
const LEAVE_VERSION: i16 = 3;
const HEARTBEAT_VERSION: i16 = 3;
const FETCH_VERSION: i16 = 6;
const MEMBER_ID_REQUIRED: i16 = 79;
/// COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
const COORDINATOR_MOVES: [i16; 3] = [14, 15, 16];

fn text(value: &str) -> StrBytes {
    StrBytes::from_string(value.to_owned())
}

fn group_id(group: &str) -> GroupId {
    GroupId(text(group))
}

/// Awaits that the group has a coordinator that knows its members and offsets: Apache Kafka makes
/// the topic behind it when it is first asked. At most 600 times, 100 ms apart.
pub async fn await_coordinator(client: &mut RawClient, group: &str) -> Result<()> {
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    let mut last = 0;
    for _ in 0..600 {
        pace.tick().await;
        let request = FindCoordinatorRequest::default().with_key(text(group));
        last = client.call(&request, 2).await?.error_code;
        if last == 0 {
            last = heartbeat(client, group, "nobody", 0).await?;
        }
        if !COORDINATOR_MOVES.contains(&last) {
            let request = OffsetFetchRequest::default()
                .with_group_id(group_id(group))
                .with_topics(None);
            last = client.call(&request, FETCH_VERSION).await?.error_code;
            if last == 0 {
                return Ok(());
            }
        }
    }
    bail!("no coordinator for {group}: {last}")
}

/// What a consumer of `topic` sends when it joins.
pub fn subscription(topic: &str) -> Result<Bytes> {
    let subscription = ConsumerProtocolSubscription::default().with_topics(vec![text(topic)]);
    let mut bytes = BytesMut::new();
    bytes.put_i16(0);
    subscription.encode(&mut bytes, 0)?;
    Ok(bytes.freeze())
}

/// What a leader gives to a consumer of `topic`.
pub fn assignment(topic: &str, partitions: &[i32]) -> Result<Bytes> {
    let topic = TopicPartition::default()
        .with_topic(topic_name(topic))
        .with_partitions(partitions.to_vec());
    let assignment = ConsumerProtocolAssignment::default().with_assigned_partitions(vec![topic]);
    let mut bytes = BytesMut::new();
    bytes.put_i16(0);
    assignment.encode(&mut bytes, 0)?;
    Ok(bytes.freeze())
}

/// A JoinGroup of a consumer with the assignor `range`, for [`JOIN_VERSION`]. Both timeouts are
/// `timeout_ms`.
pub fn join_request(
    group: &str,
    member: &str,
    topic: &str,
    timeout_ms: i32,
) -> Result<JoinGroupRequest> {
    let protocol = JoinGroupRequestProtocol::default()
        .with_name(text("range"))
        .with_metadata(subscription(topic)?);
    Ok(JoinGroupRequest::default()
        .with_group_id(group_id(group))
        .with_member_id(text(member))
        .with_session_timeout_ms(timeout_ms)
        .with_rebalance_timeout_ms(timeout_ms)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]))
}

/// Joins; a newcomer (empty `member`) is told its id first and then joins with it.
pub async fn join(
    client: &mut RawClient,
    group: &str,
    member: &str,
    topic: &str,
    timeout_ms: i32,
) -> Result<JoinGroupResponse> {
    let request = join_request(group, member, topic, timeout_ms)?;
    let answer = client.call(&request, JOIN_VERSION).await?;
    if answer.error_code != MEMBER_ID_REQUIRED {
        return Ok(answer);
    }
    let request = request.with_member_id(answer.member_id);
    client.call(&request, JOIN_VERSION).await
}

/// Awaits the own assignment; a leader gives one to each member.
pub async fn sync(
    client: &mut RawClient,
    group: &str,
    joined: &JoinGroupResponse,
    assignments: &[(StrBytes, Bytes)],
) -> Result<SyncGroupResponse> {
    let assignments = assignments.iter().map(|(member, bytes)| {
        SyncGroupRequestAssignment::default()
            .with_member_id(member.clone())
            .with_assignment(bytes.clone())
    });
    let request = SyncGroupRequest::default()
        .with_group_id(group_id(group))
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone())
        .with_assignments(assignments.collect());
    client.call(&request, 3).await
}

/// The error code of a heartbeat.
pub async fn heartbeat(
    client: &mut RawClient,
    group: &str,
    member: &str,
    generation: i32,
) -> Result<i16> {
    let request = heartbeat_request(group, member, generation);
    Ok(client.call(&request, HEARTBEAT_VERSION).await?.error_code)
}

/// A Heartbeat for version 3.
pub fn heartbeat_request(group: &str, member: &str, generation: i32) -> HeartbeatRequest {
    HeartbeatRequest::default()
        .with_group_id(group_id(group))
        .with_member_id(text(member))
        .with_generation_id(generation)
}

/// Leaves the group.
pub async fn leave(client: &mut RawClient, group: &str, member: &str) -> Result<()> {
    let identity = MemberIdentity::default().with_member_id(text(member));
    let request = LeaveGroupRequest::default()
        .with_group_id(group_id(group))
        .with_members(vec![identity]);
    let answer = client.call(&request, LEAVE_VERSION).await?;
    check(answer.error_code, "LeaveGroup")
}

/// An OffsetCommit for [`COMMIT_VERSION`]: of a member's generation, or of a simple consumer,
/// which has an empty id and generation -1.
pub fn commit_request(
    group: &str,
    (member, generation): (&str, i32),
    topic: &str,
    offsets: &[(i32, i64)],
) -> OffsetCommitRequest {
    let partitions = offsets.iter().map(|(partition, offset)| {
        OffsetCommitRequestPartition::default()
            .with_partition_index(*partition)
            .with_committed_offset(*offset)
            .with_committed_leader_epoch(-1)
            .with_committed_metadata(Some(text("")))
    });
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(partitions.collect());
    OffsetCommitRequest::default()
        .with_group_id(group_id(group))
        .with_member_id(text(member))
        .with_generation_id_or_member_epoch(generation)
        .with_topics(vec![topic])
}

/// Commits offsets; an error if one is refused.
pub async fn commit(
    client: &mut RawClient,
    group: &str,
    member: (&str, i32),
    topic: &str,
    offsets: &[(i32, i64)],
) -> Result<()> {
    let request = commit_request(group, member, topic, offsets);
    let answer = client.call(&request, COMMIT_VERSION).await?;
    let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
    let mut count = 0;
    for partition in partitions {
        check(partition.error_code, "OffsetCommit")?;
        count += 1;
    }
    ensure!(count == offsets.len(), "{count} answers to OffsetCommit");
    Ok(())
}

/// Committed offset of every partition of a topic, -1 where there is none.
pub async fn committed(
    client: &mut RawClient,
    group: &str,
    topic: &str,
    partitions: i32,
) -> Result<Vec<i64>> {
    let asked = OffsetFetchRequestTopic::default()
        .with_name(topic_name(topic))
        .with_partition_indexes((0..partitions).collect());
    let request = OffsetFetchRequest::default()
        .with_group_id(group_id(group))
        .with_topics(Some(vec![asked]));
    let answer = client.call(&request, FETCH_VERSION).await?;
    check(answer.error_code, "OffsetFetch")?;
    let mut offsets = vec![None; usize::try_from(partitions)?];
    for partition in answer.topics.iter().flat_map(|topic| &topic.partitions) {
        check(partition.error_code, "OffsetFetch of a partition")?;
        let index = usize::try_from(partition.partition_index)?;
        let slot = offsets.get_mut(index).context("a foreign partition")?;
        *slot = Some(partition.committed_offset);
    }
    let offsets: Option<Vec<i64>> = offsets.into_iter().collect();
    offsets.context("OffsetFetch left a partition out")
}

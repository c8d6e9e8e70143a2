//! Reading and writing what a group needs: its description, committed offsets.

use std::collections::BTreeMap;

use kafka_protocol::messages::describe_groups_response::DescribedGroup;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::{
    DescribeGroupsRequest, GroupId, OffsetCommitRequest, OffsetFetchRequest, OffsetFetchResponse,
    TopicName,
};

use super::super::client::{Client, Key};
pub(super) use super::super::ends::{EARLIEST, LATEST, at};
use super::super::output::{Failure, check};
pub(super) use super::super::topics::{Place, leaders};
use super::text;

/// GROUP_ID_NOT_FOUND, as DescribeGroups v6 says it.
const NOT_FOUND: i16 = 69;
/// Versions by which topics have names: later ones have ids.
const COMMIT_BY_NAME: i16 = 9;

/// The group as its coordinator sees it. One that is not there is in state Dead, without an error.
pub(super) async fn describe(client: &mut Client, group: &str) -> Result<DescribedGroup, Failure> {
    let answer = client
        .call_coordinator(
            Key::Group(group),
            |_| DescribeGroupsRequest::default().with_groups(vec![GroupId(text(group))]),
            |answer| answer.groups.first().map_or(0, |group| group.error_code),
        )
        .await?;
    let what = || format!("group {group}");
    let described = answer.groups.into_iter().next();
    let described = described.ok_or_else(|| Failure::Refused(format!("{}: no answer", what())))?;
    if described.error_code != NOT_FOUND {
        check(described.error_code, what)?;
    }
    Ok(described)
}

/// An offset that a group has committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Committed {
    pub(super) offset: i64,
    /// Leader epoch of the record before it, where the group said it.
    pub(super) leader_epoch: Option<i32>,
}

/// Offsets that the group has committed.
pub(super) async fn committed(
    client: &mut Client,
    group: &str,
) -> Result<BTreeMap<Place, Committed>, Failure> {
    let answer = client
        .call_coordinator(
            Key::Group(group),
            |version| {
                let request = OffsetFetchRequest::default();
                if version >= 8 {
                    let mut asked = OffsetFetchRequestGroup::default();
                    asked.group_id = GroupId(text(group));
                    asked.topics = None;
                    asked.member_epoch = -1;
                    request.with_groups(vec![asked])
                } else {
                    request
                        .with_group_id(GroupId(text(group)))
                        .with_topics(None)
                }
            },
            fetch_code,
        )
        .await?;
    check(fetch_code(&answer), || format!("offsets of group {group}"))?;
    let mut offsets = BTreeMap::new();
    let mut keep = |topic: &TopicName, partition: i32, code: i16, offset: i64, epoch: i32| {
        check(code, || format!("offset of {}-{partition}", topic.as_str()))?;
        let committed = Committed {
            offset,
            leader_epoch: Some(epoch).filter(|epoch| *epoch >= 0),
        };
        if offset >= 0 {
            offsets.insert((topic.to_string(), partition), committed);
        }
        Ok(())
    };
    for topic in answer.groups.iter().flat_map(|group| &group.topics) {
        for p in &topic.partitions {
            keep(
                &topic.name,
                p.partition_index,
                p.error_code,
                p.committed_offset,
                p.committed_leader_epoch,
            )?;
        }
    }
    for topic in &answer.topics {
        for p in &topic.partitions {
            keep(
                &topic.name,
                p.partition_index,
                p.error_code,
                p.committed_offset,
                p.committed_leader_epoch,
            )?;
        }
    }
    Ok(offsets)
}

fn fetch_code(answer: &OffsetFetchResponse) -> i16 {
    let group = answer.groups.first().map(|group| group.error_code);
    group.unwrap_or(answer.error_code)
}

/// Commits offsets for a group without members; the partitions whose offset was refused, with the
/// code of each.
pub(super) async fn commit(
    client: &mut Client,
    group: &str,
    offsets: &BTreeMap<Place, i64>,
) -> Result<BTreeMap<Place, i16>, Failure> {
    let mut topics: BTreeMap<&str, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
    for ((topic, partition), offset) in offsets {
        topics.entry(topic).or_default().push(
            OffsetCommitRequestPartition::default()
                .with_partition_index(*partition)
                .with_committed_offset(*offset)
                .with_committed_leader_epoch(-1)
                .with_committed_metadata(Some(text(""))),
        );
    }
    let topics: Vec<OffsetCommitRequestTopic> = topics
        .into_iter()
        .map(|(name, partitions)| {
            OffsetCommitRequestTopic::default()
                .with_name(TopicName(text(name)))
                .with_partitions(partitions)
        })
        .collect();
    let codes = |answer: &kafka_protocol::messages::OffsetCommitResponse| {
        let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
        partitions
            .map(|p| p.error_code)
            .find(|code| *code != 0)
            .unwrap_or(0)
    };
    let answer = client
        .call_coordinator_upto(
            Key::Group(group),
            COMMIT_BY_NAME,
            |_| {
                OffsetCommitRequest::default()
                    .with_group_id(GroupId(text(group)))
                    .with_generation_id_or_member_epoch(-1)
                    .with_retention_time_ms(-1)
                    .with_topics(topics.clone())
            },
            codes,
        )
        .await?;
    let mut refused = BTreeMap::new();
    for topic in &answer.topics {
        let partitions = topic.partitions.iter().filter(|p| p.error_code != 0);
        let name = topic.name.to_string();
        refused.extend(partitions.map(|p| ((name.clone(), p.partition_index), p.error_code)));
    }
    Ok(refused)
}

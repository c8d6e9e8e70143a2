//! OffsetFetch (key 9), versions 1 to 9. v2 all partitions and an error for the group; v5 leader
//! epochs; v7 stable offsets only; v8 several groups.
//!
//! A group or partition without an offset is no error: -1. A partition of an open transaction is 88
//! for clients that want stable offsets. A group that can't be read is 14, which every client
//! retries here; not all know 15.
//!
//! Difference from Kafka: an error for the group stands at each partition as well in v2 to v7. Some
//! clients (aiokafka 0.14) look nowhere else, and take a partition that is not answered for one
//! without an offset: they would read everything again.

use std::collections::BTreeSet;
use std::sync::Arc;

use coordinator::machine::group::GroupError;
use coordinator::service::groups::{FetchedOffset, FetchedTopic, TopicPartitions};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{OffsetFetchRequest, OffsetFetchResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::{bounded, shared_text, text};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

/// What the answer says of one partition: offset, leader epoch, metadata, code.
type Shown = (i64, i32, StrBytes, i16);

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: OffsetFetchRequest,
) -> Staged<ApiResponse> {
    let version = context.version;
    bounded(broker, context, move |broker| {
        let response = if version >= 8 {
            several(broker, &request)
        } else {
            single(broker, version, &request)
        };
        ApiResponse::OffsetFetch(Box::new(response.into()))
    })
}

/// The answer of versions from 8 on, for several groups.
fn several(broker: &Broker, request: &OffsetFetchRequest) -> OffsetFetchResponse {
    let mut seen = BTreeSet::new();
    let groups = request.groups.iter().map(|group| {
        if seen.insert(&group.group_id) {
            return one_of_many(broker, group, request.require_stable);
        }
        // Once is enough, and keeps the answer in proportion.
        OffsetFetchResponseGroup::default()
            .with_group_id(group.group_id.clone())
            .with_error_code(ResponseError::InvalidRequest.code())
    });
    OffsetFetchResponse::default().with_groups(groups.collect())
}

/// The answer of versions up to 7, for one group.
fn single(broker: &Broker, version: i16, request: &OffsetFetchRequest) -> OffsetFetchResponse {
    let asked = request.topics.as_ref().map(|topics| {
        let topic = topics
            .iter()
            .map(|topic| (&topic.name, &topic.partition_indexes));
        asked(topic)
    });
    let offsets = broker.offsets();
    let fetched = offsets.fetch(&request.group_id, asked.as_deref(), request.require_stable);
    let code = fetched.as_ref().err().map_or(0, |error| code(*error));
    let topics = fetched.unwrap_or_else(|_| unknown(asked.unwrap_or_default()));
    let topics = topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|(index, fetched)| {
            let (offset, leader_epoch, metadata, own) = shown(fetched);
            OffsetFetchResponsePartition::default()
                .with_partition_index(*index)
                .with_committed_offset(offset)
                .with_committed_leader_epoch(leader_epoch)
                .with_metadata(Some(metadata))
                .with_error_code(if own != 0 { own } else { code })
        });
        OffsetFetchResponseTopic::default()
            .with_name(TopicName(text(&topic.topic)))
            .with_partitions(partitions.collect())
    });
    let response = OffsetFetchResponse::default().with_topics(topics.collect());
    response.with_error_code(if version >= 2 { code } else { 0 })
}

fn one_of_many(
    broker: &Broker,
    group: &OffsetFetchRequestGroup,
    require_stable: bool,
) -> OffsetFetchResponseGroup {
    let asked = group.topics.as_ref().map(|topics| {
        let topic = topics
            .iter()
            .map(|topic| (&topic.name, &topic.partition_indexes));
        asked(topic)
    });
    let offsets = broker.offsets();
    let fetched = offsets.fetch(&group.group_id, asked.as_deref(), require_stable);
    let response = OffsetFetchResponseGroup::default().with_group_id(group.group_id.clone());
    match fetched {
        Ok(topics) => response.with_topics(topics.iter().map(topic_of_many).collect()),
        Err(error) => response.with_error_code(code(error)),
    }
}

fn topic_of_many(topic: &FetchedTopic) -> OffsetFetchResponseTopics {
    let partitions = topic.partitions.iter().map(|(index, fetched)| {
        let (offset, leader_epoch, metadata, code) = shown(fetched);
        OffsetFetchResponsePartitions::default()
            .with_partition_index(*index)
            .with_committed_offset(offset)
            .with_committed_leader_epoch(leader_epoch)
            .with_metadata(Some(metadata))
            .with_error_code(code)
    });
    OffsetFetchResponseTopics::default()
        .with_name(TopicName(text(&topic.topic)))
        .with_partitions(partitions.collect())
}

/// What is asked for, each partition once: an answer is never larger than what is stored.
fn asked<'a>(topics: impl Iterator<Item = (&'a TopicName, &'a Vec<i32>)>) -> Vec<TopicPartitions> {
    let mut seen = BTreeSet::new();
    let topic = |(name, partitions): (&'a TopicName, &'a Vec<i32>)| TopicPartitions {
        topic: shared_text(name),
        partitions: partitions
            .iter()
            .copied()
            .filter(|number| seen.insert((name, *number)))
            .collect(),
    };
    topics.map(topic).collect()
}

fn unknown(asked: Vec<TopicPartitions>) -> Vec<FetchedTopic> {
    let none = |number| (number, FetchedOffset::None);
    let topic = |asked: TopicPartitions| FetchedTopic {
        topic: asked.topic,
        partitions: asked.partitions.into_iter().map(none).collect(),
    };
    asked.into_iter().map(topic).collect()
}

fn shown(fetched: &FetchedOffset) -> Shown {
    match fetched {
        FetchedOffset::Committed {
            offset,
            leader_epoch,
            metadata,
        } => (*offset, *leader_epoch, text(metadata), 0),
        FetchedOffset::None => (-1, -1, StrBytes::default(), 0),
        FetchedOffset::Unstable => {
            let code = ResponseError::UnstableOffsetCommit.code();
            (-1, -1, StrBytes::default(), code)
        }
    }
}

/// The code for a group. Consumers know 14 and 16 here; 15 ends some of them.
fn code(error: GroupError) -> i16 {
    let code = match error {
        GroupError::CoordinatorNotAvailable => ResponseError::CoordinatorLoadInProgress,
        error => error_code::group(error),
    };
    code.code()
}

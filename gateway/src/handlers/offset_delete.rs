//! OffsetDelete (key 47), version 0. A group without a name is 24, one that does not exist 69, one
//! with members that are no consumers of topics 68, a topic that a member is subscribed to 86.
//! Answered when it is fsynced.

use std::sync::Arc;

use coordinator::service::groups::TopicPartitions;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::{OffsetDeleteRequest, OffsetDeleteResponse, TopicName};

use super::{shared_text, text};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

const UNKNOWN: ResponseError = ResponseError::UnknownTopicOrPartition;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    _context: &RequestContext,
    request: &OffsetDeleteRequest,
) -> Staged<ApiResponse> {
    let mut unknown = Vec::new();
    let mut known = Vec::new();
    for topic in &request.topics {
        let hosted = broker.topic_by_name(&topic.name);
        let exists = |index: &i32| {
            let hosted = hosted.as_ref();
            hosted.is_some_and(|hosted| hosted.partition(*index).is_some())
        };
        let asked = topic.partitions.iter().map(|asked| asked.partition_index);
        let (there, missing): (Vec<i32>, Vec<i32>) = asked.partition(exists);
        let topic: Arc<str> = shared_text(&topic.name);
        for (list, partitions) in [(&mut known, there), (&mut unknown, missing)] {
            if !partitions.is_empty() {
                let topic = Arc::clone(&topic);
                list.push(TopicPartitions { topic, partitions });
            }
        }
    }
    let mut answered: Vec<OffsetDeleteResponseTopic> = unknown
        .iter()
        .map(|topic| entry(topic, UNKNOWN.code()))
        .collect();
    // Without a partition that exists the group is not asked.
    if known.is_empty() {
        return Staged::Now(answer(answered, 0));
    }
    let (outcomes, pending) = match broker.offsets().delete(&request.group_id, &known) {
        Ok(deleted) => deleted,
        Err(error) => return Staged::Now(answer(Vec::new(), error_code::group(error).code())),
    };
    for (topic, outcome) in known.iter().zip(outcomes) {
        let code = outcome
            .err()
            .map_or(0, |error| error_code::group(error).code());
        answered.push(entry(topic, code));
    }
    Staged::Later(Box::pin(async move {
        match pending.durable().await {
            Ok(()) => answer(answered, 0),
            Err(error) => answer(Vec::new(), error_code::group(error).code()),
        }
    }))
}

fn entry(topic: &TopicPartitions, code: i16) -> OffsetDeleteResponseTopic {
    let partitions = topic.partitions.iter().map(|index| {
        OffsetDeleteResponsePartition::default()
            .with_partition_index(*index)
            .with_error_code(code)
    });
    OffsetDeleteResponseTopic::default()
        .with_name(TopicName(text(&topic.topic)))
        .with_partitions(partitions.collect())
}

fn answer(topics: Vec<OffsetDeleteResponseTopic>, code: i16) -> ApiResponse {
    let response = OffsetDeleteResponse::default()
        .with_error_code(code)
        .with_topics(topics);
    ApiResponse::OffsetDelete(Box::new(response))
}

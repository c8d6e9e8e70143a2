//! OffsetForLeaderEpoch (key 23), versions 2 to 4: where an epoch of the leader ends, so that a
//! consumer notices records that were lost behind its back.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::{
    OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, TopicName,
};

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;
use crate::partition::EpochEnd;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    _context: &RequestContext,
    request: OffsetForLeaderEpochRequest,
) -> Staged<ApiResponse> {
    let broker = broker.clone();
    Staged::Later(Box::pin(async move {
        let mut response = OffsetForLeaderEpochResponse::default();
        for topic in request.topics {
            let mut answered = OffsetForLeaderTopicResult::default();
            for asked in &topic.partitions {
                let found = one(&broker, &topic.topic, asked).await;
                let mut result = EpochEndOffset::default();
                result.partition = asked.partition;
                let end = found.unwrap_or_else(|code| {
                    result.error_code = code.code();
                    EpochEnd::UNKNOWN
                });
                result.leader_epoch = end.epoch;
                result.end_offset = end.end_offset;
                answered.partitions.push(result);
            }
            answered.topic = topic.topic;
            response.topics.push(answered);
        }
        ApiResponse::OffsetForLeaderEpoch(Box::new(response))
    }))
}

async fn one(
    broker: &Broker,
    topic: &TopicName,
    asked: &OffsetForLeaderPartition,
) -> Result<EpochEnd, ResponseError> {
    let hosted = broker.find_topic(topic).map_err(error_code::no_topic)?;
    let partition = hosted
        .partition(asked.partition)
        .ok_or(ResponseError::UnknownTopicOrPartition)?
        .map_err(|error| error_code::unavailable_partition(&error))?;
    partition
        .check_leader_epoch(asked.current_leader_epoch)
        .map_err(|error| error_code::read(&error))?;
    let end = partition.end_of_epoch(asked.leader_epoch).await;
    end.map_err(|error| error_code::read(&error))
}

//! ListOffsets (key 2), versions 1 to 10. v2 isolation; v4 leader epochs; v5 error 78; v7 the
//! largest timestamp; v8 earliest local; v9 latest tiered (-1 without tiering).

use std::collections::BTreeSet;
use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::list_offsets_request::ListOffsetsPartition;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse, TopicName};

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;
use crate::partition::{Isolation, ListedOffset, Partition};

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: ListOffsetsRequest,
) -> Staged<ApiResponse> {
    let broker = broker.clone();
    let version = context.version;
    Staged::Later(Box::pin(async move {
        let isolation = Isolation::from_wire(request.isolation_level);
        let mut seen = BTreeSet::new();
        let mut repeated = BTreeSet::new();
        for topic in &request.topics {
            for partition in &topic.partitions {
                if !seen.insert((topic.name.clone(), partition.partition_index)) {
                    repeated.insert((topic.name.clone(), partition.partition_index));
                }
            }
        }
        let mut response = ListOffsetsResponse::default();
        for topic in request.topics {
            let mut answered = ListOffsetsTopicResponse::default();
            for asked in &topic.partitions {
                let repeats = repeated.contains(&(topic.name.clone(), asked.partition_index));
                let outcome = if repeats {
                    Err(ResponseError::InvalidRequest)
                } else {
                    one(&broker, &topic.name, asked, isolation, version).await
                };
                answered
                    .partitions
                    .push(entry(asked.partition_index, outcome, version));
            }
            answered.name = topic.name;
            response.topics.push(answered);
        }
        ApiResponse::ListOffsets(Box::new(response))
    }))
}

async fn one(
    broker: &Broker,
    topic: &TopicName,
    asked: &ListOffsetsPartition,
    isolation: Isolation,
    version: i16,
) -> Result<ListedOffset, ResponseError> {
    let hosted = broker.find_topic(topic).map_err(error_code::no_topic)?;
    let partition = hosted
        .partition(asked.partition_index)
        .ok_or(ResponseError::UnknownTopicOrPartition)?
        .map_err(|error| error_code::unavailable_partition(&error))?;
    let epoch = if version >= 4 {
        asked.current_leader_epoch
    } else {
        -1
    };
    partition
        .check_leader_epoch(epoch)
        .map_err(|error| error_code::read(&error))?;
    at(&partition, asked.timestamp, isolation, version).await
}

async fn at(
    partition: &Partition,
    timestamp: i64,
    isolation: Isolation,
    version: i16,
) -> Result<ListedOffset, ResponseError> {
    let read = |error| error_code::read(&error);
    match timestamp {
        LATEST => Ok(partition.latest(isolation)),
        EARLIEST => partition.earliest().await.map_err(read),
        MAX_TIMESTAMP if version >= 7 => partition.max_timestamp(isolation).await.map_err(read),
        EARLIEST_LOCAL if version >= 8 => partition.earliest().await.map_err(read),
        LATEST_TIERED if version >= 9 => Ok(ListedOffset::NONE),
        at if at >= 0 => partition.at_time(at, isolation).await.map_err(read),
        _ => Err(ResponseError::UnsupportedVersion),
    }
}

fn entry(
    index: i32,
    outcome: Result<ListedOffset, ResponseError>,
    version: i16,
) -> ListOffsetsPartitionResponse {
    let mut response = ListOffsetsPartitionResponse::default();
    response.partition_index = index;
    match outcome {
        Ok(listed) => {
            response.offset = listed.offset;
            response.timestamp = listed.timestamp;
            response.leader_epoch = if version >= 4 {
                listed.leader_epoch
            } else {
                -1
            };
        }
        Err(code) => {
            response.error_code = code.code();
            response.offset = -1;
            response.timestamp = -1;
            response.leader_epoch = -1;
        }
    }
    response
}

//! DeleteRecords (key 21), versions 0 to 2: the log of a partition begins later, durably.
//!
//! Offset -1 is the high watermark. What lies below the new start is not read again, and its space
//! follows; what producers sent stays known (KIP-360).

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::delete_records_request::DeleteRecordsPartition;
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse, TopicName};

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    _context: &RequestContext,
    request: DeleteRecordsRequest,
) -> Staged<ApiResponse> {
    let broker = broker.clone();
    Staged::Later(Box::pin(async move {
        let mut response = DeleteRecordsResponse::default();
        for topic in request.topics {
            let mut answered = DeleteRecordsTopicResult::default();
            for asked in &topic.partitions {
                let mut result = DeleteRecordsPartitionResult::default();
                result.partition_index = asked.partition_index;
                match one(&broker, &topic.name, asked).await {
                    Ok(log_start) => result.low_watermark = log_start,
                    Err(code) => {
                        result.error_code = code.code();
                        result.low_watermark = -1;
                    }
                }
                answered.partitions.push(result);
            }
            answered.name = topic.name;
            response.topics.push(answered);
        }
        ApiResponse::DeleteRecords(Box::new(response))
    }))
}

async fn one(
    broker: &Broker,
    topic: &TopicName,
    asked: &DeleteRecordsPartition,
) -> Result<i64, ResponseError> {
    let hosted = broker.find_topic(topic).map_err(error_code::no_topic)?;
    let partition = hosted
        .partition(asked.partition_index)
        .ok_or(ResponseError::UnknownTopicOrPartition)?
        .map_err(|error| error_code::unavailable_partition(&error))?;
    let trimmed = partition.delete_records(asked.offset).await;
    trimmed.map_err(|error| error_code::delete_records(&error))
}

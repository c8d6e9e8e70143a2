//! DeleteRecords (key 21), versions 0 to 2: the log of a partition begins later, durably.
//!
//! Offset -1 is the high watermark. What lies below the new start is not read again, and its space
//! follows; what producers sent stays known (KIP-360). Partitions whose new start is not durable
//! within the request's timeout are answered with 7, and go on. Topics that are only compacted are
//! refused with 44.

use std::sync::Arc;
use std::time::Duration;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse, TopicName};
use store_adapter::runtime::BoxFuture;
use tokio::sync::mpsc;

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

/// What is waited for at least: Kafka syncs nothing here, and its clients may say 0.
const PATIENCE_MIN: Duration = Duration::from_secs(1);

/// The offset that stands for the high watermark.
const HIGH_WATERMARK: i64 = -1;

/// The log's start afterwards.
type Outcome = Result<i64, ResponseError>;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    _context: &RequestContext,
    mut request: DeleteRecordsRequest,
) -> Staged<ApiResponse> {
    for topic in &mut request.topics {
        fix_ends(broker, topic);
    }
    let patience = u64::try_from(request.timeout_ms).map_or(PATIENCE_MIN, Duration::from_millis);
    let patience = broker.env().clock.sleep(patience.max(PATIENCE_MIN));
    let topics = Arc::new(request.topics);
    let outcomes = start(broker, Arc::clone(&topics));
    Staged::Later(Box::pin(answer(topics, outcomes, patience)))
}

/// What -1 stands for is what is there now: partitions that go on behind the answer must not take
/// records that come later.
fn fix_ends(broker: &Broker, topic: &mut DeleteRecordsTopic) {
    let Ok(hosted) = broker.find_topic(&topic.name) else {
        return;
    };
    let all = topic.partitions.iter_mut();
    for asked in all.filter(|asked| asked.offset == HIGH_WATERMARK) {
        if let Some(Ok(partition)) = hosted.partition(asked.partition_index) {
            asked.offset = partition.visible().high_watermark;
        }
    }
}

/// Deletes one after the other, whoever waits for it.
fn start(
    broker: &Arc<Broker>,
    topics: Arc<Vec<DeleteRecordsTopic>>,
) -> mpsc::UnboundedReceiver<Outcome> {
    let (done, outcomes) = mpsc::unbounded_channel();
    let here = Arc::clone(broker);
    let task = Box::pin(async move {
        for topic in topics.iter() {
            for asked in &topic.partitions {
                let outcome = one(&here, &topic.name, asked).await;
                // The asker may have gone.
                done.send(outcome).unwrap_or_default();
            }
        }
    });
    drop(broker.env().runtime.spawn("delete-records", task));
    outcomes
}

async fn answer(
    topics: Arc<Vec<DeleteRecordsTopic>>,
    mut outcomes: mpsc::UnboundedReceiver<Outcome>,
    mut patience: BoxFuture<'static, ()>,
) -> ApiResponse {
    let mut response = DeleteRecordsResponse::default();
    let mut late = false;
    for topic in topics.iter() {
        let mut answered = DeleteRecordsTopicResult::default();
        answered.name = topic.name.clone();
        for asked in &topic.partitions {
            let outcome = if late {
                outcomes.try_recv().ok()
            } else {
                tokio::select! {
                    biased;
                    outcome = outcomes.recv() => outcome,
                    () = &mut patience => None,
                }
            };
            late |= outcome.is_none();
            let mut result = DeleteRecordsPartitionResult::default();
            result.partition_index = asked.partition_index;
            match outcome.unwrap_or(Err(ResponseError::RequestTimedOut)) {
                Ok(log_start) => result.low_watermark = log_start,
                Err(code) => {
                    result.error_code = code.code();
                    result.low_watermark = -1;
                }
            }
            answered.partitions.push(result);
        }
        response.topics.push(answered);
    }
    ApiResponse::DeleteRecords(Box::new(response))
}

async fn one(broker: &Broker, topic: &TopicName, asked: &DeleteRecordsPartition) -> Outcome {
    let hosted = broker.find_topic(topic).map_err(error_code::no_topic)?;
    let partition = hosted
        .partition(asked.partition_index)
        .ok_or(ResponseError::UnknownTopicOrPartition)?
        .map_err(|error| error_code::unavailable_partition(&error))?;
    // Of each key the newest record is to stay.
    if hosted.rules.compact && !hosted.rules.delete {
        return Err(ResponseError::PolicyViolation);
    }
    let trimmed = partition.delete_records(asked.offset).await;
    trimmed.map_err(|error| error_code::delete_records(&error))
}

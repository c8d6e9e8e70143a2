//! CreatePartitions (key 37), versions 0 to 3: a topic grows to a number of partitions.
//!
//! Answered when the new partitions are durable and served. A manual assignment can name only this
//! broker, and virtual ones beside it. A name that is there twice is answered once, with 42.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsTopic,
};
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::{CreatePartitionsRequest, CreatePartitionsResponse};
use kafka_protocol::protocol::StrBytes;

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

type Refusal = (ResponseError, String);

pub(crate) fn handle(
    broker: &Arc<Broker>,
    _context: &RequestContext,
    request: CreatePartitionsRequest,
) -> Staged<ApiResponse> {
    let broker = broker.clone();
    Staged::Later(Box::pin(async move {
        let mut named = BTreeMap::new();
        for topic in &request.topics {
            *named.entry(topic.name.clone()).or_insert(0_usize) += 1;
        }
        let mut response = CreatePartitionsResponse::default();
        for asked in &request.topics {
            let outcome = match named.remove(&asked.name) {
                None => continue,
                Some(1) => grow(&broker, asked, request.validate_only).await,
                Some(_) => Err((
                    ResponseError::InvalidRequest,
                    "Duplicate topic name.".to_owned(),
                )),
            };
            let mut result = CreatePartitionsTopicResult::default();
            result.name = asked.name.clone();
            result.error_message = None;
            if let Err((code, message)) = outcome {
                result.error_code = code.code();
                result.error_message = Some(StrBytes::from_string(message));
            }
            response.results.push(result);
        }
        ApiResponse::CreatePartitions(Box::new(response))
    }))
}

async fn grow(
    broker: &Broker,
    asked: &CreatePartitionsTopic,
    validate_only: bool,
) -> Result<(), Refusal> {
    let topic = broker.topic_by_name(&asked.name).ok_or_else(|| {
        let message = "This server does not host this topic-partition.".to_owned();
        (ResponseError::UnknownTopicOrPartition, message)
    })?;
    // What is not even a count is refused like one that is too low.
    let total = u32::try_from(asked.count).unwrap_or(0);
    let refuse = |error| (error_code::topic(&error), error.to_string());
    broker
        .add_partitions(topic.id, total, true)
        .await
        .map_err(refuse)?;
    if let Some(assignments) = &asked.assignments {
        let have = u32::try_from(topic.partitions.len()).unwrap_or(u32::MAX);
        check_assignments(broker, assignments, total.saturating_sub(have))?;
    }
    if validate_only {
        return Ok(());
    }
    broker
        .add_partitions(topic.id, total, false)
        .await
        .map_err(refuse)
}

fn check_assignments(
    broker: &Broker,
    assignments: &[CreatePartitionsAssignment],
    more: u32,
) -> Result<(), Refusal> {
    let refuse = |message: String| Err((ResponseError::InvalidReplicaAssignment, message));
    if u32::try_from(assignments.len()) != Ok(more) {
        let given = assignments.len();
        return refuse(format!(
            "{more} partitions are new, but {given} are assigned."
        ));
    }
    let known = assignments
        .iter()
        .all(|one| broker.can_place(&one.broker_ids));
    if known {
        return Ok(());
    }
    refuse(broker.placement_refusal())
}

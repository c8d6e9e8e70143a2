//! AlterPartitionReassignments (key 45), versions 0 and 1.
//!
//! A partition's replica is this broker, and virtual ones beside it: asking for that is granted and
//! changes nothing, asking for anything else is refused with 39. Nothing is under way that could be
//! cancelled (85).

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::alter_partition_reassignments_request::ReassignablePartition;
use kafka_protocol::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    _context: &RequestContext,
    request: &AlterPartitionReassignmentsRequest,
) -> Staged<ApiResponse> {
    let mut response = AlterPartitionReassignmentsResponse::default();
    response.allow_replication_factor_change = request.allow_replication_factor_change;
    response.error_message = None;
    for topic in &request.topics {
        let mut answered = ReassignableTopicResponse::default();
        answered.name = topic.name.clone();
        for asked in &topic.partitions {
            let mut result = ReassignablePartitionResponse::default();
            result.partition_index = asked.partition_index;
            result.error_message = None;
            if let Err((code, why)) = one(broker, &topic.name, asked) {
                result.error_code = code.code();
                result.error_message = Some(StrBytes::from_string(why));
            }
            answered.partitions.push(result);
        }
        response.responses.push(answered);
    }
    Staged::Now(ApiResponse::AlterPartitionReassignments(Box::new(response)))
}

fn one(
    broker: &Broker,
    topic: &TopicName,
    asked: &ReassignablePartition,
) -> Result<(), (ResponseError, String)> {
    let found = broker
        .topic_by_name(topic)
        .and_then(|topic| topic.partition(asked.partition_index));
    if found.is_none() {
        let why = "There is no such topic or partition.".to_owned();
        return Err((ResponseError::UnknownTopicOrPartition, why));
    }
    match asked.replicas.as_deref() {
        None => {
            let why = "Nothing is under way that could be cancelled.".to_owned();
            Err((ResponseError::NoReassignmentInProgress, why))
        }
        Some(ids) if broker.can_place(ids) => Ok(()),
        Some(_) => Err((
            ResponseError::InvalidReplicaAssignment,
            broker.placement_refusal(),
        )),
    }
}

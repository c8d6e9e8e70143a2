//! ElectLeaders (key 43), versions 0 to 2. v1 kinds of elections.
//!
//! There is one broker, which leads everything that it can: no election is ever needed, and 84 says
//! so. Without a list of partitions there is nothing to answer.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_protocol::messages::{ElectLeadersRequest, ElectLeadersResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;

const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    _context: &RequestContext,
    request: &ElectLeadersRequest,
) -> Staged<ApiResponse> {
    let mut response = ElectLeadersResponse::default();
    if ![PREFERRED, UNCLEAN].contains(&request.election_type) {
        response.error_code = ResponseError::InvalidRequest.code();
    }
    for topic in request.topic_partitions.iter().flatten() {
        let mut answered = ReplicaElectionResult::default();
        answered.topic = topic.topic.clone();
        let results = topic.partitions.iter();
        answered.partition_result = results
            .map(|index| {
                let (code, why) = outcome(broker, request.election_type, &topic.topic, *index);
                let mut result = PartitionResult::default();
                result.partition_id = *index;
                result.error_code = code.code();
                result.error_message = Some(StrBytes::from_static_str(why));
                result
            })
            .collect();
        response.replica_election_results.push(answered);
    }
    Staged::Now(ApiResponse::ElectLeaders(Box::new(response)))
}

fn outcome(
    broker: &Broker,
    kind: i8,
    topic: &TopicName,
    index: i32,
) -> (ResponseError, &'static str) {
    if ![PREFERRED, UNCLEAN].contains(&kind) {
        return (
            ResponseError::InvalidRequest,
            "There is no such kind of election.",
        );
    }
    let found = broker
        .topic_by_name(topic)
        .and_then(|topic| topic.partition(index));
    match found {
        None => (
            ResponseError::UnknownTopicOrPartition,
            "There is no such topic or partition.",
        ),
        Some(_) => (
            ResponseError::ElectionNotNeeded,
            "The only replica leads as far as it can.",
        ),
    }
}

//! ConsumerGroupHeartbeat (key 68) and ConsumerGroupDescribe (key 69), versions 0 to 1: the
//! protocol by which the coordinator assigns (KIP-848).
//!
//! As of a Kafka whose `group.version` is 0 both are advertised and refused with 35: a client that
//! is configured for the protocol says so at once, or goes on with the classic one.

use kafka_protocol::messages::consumer_group_describe_response::DescribedGroup;
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatResponse,
};

use crate::api::{ApiResponse, Staged};
use crate::error_code::NO_CONSUMER_PROTOCOL;

pub(crate) fn heartbeat() -> Staged<ApiResponse> {
    let response = ConsumerGroupHeartbeatResponse::default();
    let response = response.with_error_code(NO_CONSUMER_PROTOCOL.code());
    Staged::Now(ApiResponse::ConsumerGroupHeartbeat(Box::new(response)))
}

pub(crate) fn describe(request: ConsumerGroupDescribeRequest) -> Staged<ApiResponse> {
    let groups = request.group_ids.into_iter();
    let groups = groups.map(|group| {
        DescribedGroup::default()
            .with_group_id(group)
            .with_error_code(NO_CONSUMER_PROTOCOL.code())
    });
    let response = ConsumerGroupDescribeResponse::default().with_groups(groups.collect());
    Staged::Now(ApiResponse::ConsumerGroupDescribe(Box::new(response)))
}

//! ListPartitionReassignments (key 46), version 0: none is ever under way, for every partition is
//! where it can be.

use kafka_protocol::messages::ListPartitionReassignmentsResponse;

use crate::api::{ApiResponse, Staged};

pub(crate) fn handle() -> Staged<ApiResponse> {
    let mut response = ListPartitionReassignmentsResponse::default();
    response.error_message = None;
    Staged::Now(ApiResponse::ListPartitionReassignments(Box::new(response)))
}

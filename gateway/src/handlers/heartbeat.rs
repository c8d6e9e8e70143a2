//! Heartbeat (key 12), versions 0 to 4. v3 static members.

use std::sync::Arc;

use coordinator::machine::group::GroupError;
use coordinator::machine::group::classic::Caller;
use kafka_protocol::messages::{HeartbeatRequest, HeartbeatResponse};

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    _context: &RequestContext,
    request: &HeartbeatRequest,
) -> Staged<ApiResponse> {
    let caller = Caller {
        member_id: &request.member_id,
        instance_id: request.group_instance_id.as_deref(),
    };
    let groups = broker.groups();
    let beat = groups.heartbeat(&request.group_id, caller, request.generation_id);
    let mut response = HeartbeatResponse::default();
    response.error_code = match beat {
        // The member is not known to be gone: it is told nothing until the group is loaded.
        Ok(()) | Err(GroupError::CoordinatorLoading) => 0,
        Err(error) => error_code::group(error).code(),
    };
    Staged::Now(ApiResponse::Heartbeat(Box::new(response)))
}

//! SyncGroup (key 14), versions 0 to 5. v3 static members; v5 protocol type and name, which are
//! then mandatory.
//!
//! Answered when the leader's assignment is there, and everything that was accepted of the group
//! before it is durable; 15 where it is not, or may not be.

use std::sync::Arc;

use bytes::Bytes;
use coordinator::machine::group::GroupError;
use coordinator::machine::group::classic::{Caller, Sync, SyncReply};
use coordinator::service::groups::Reply;
use kafka_protocol::messages::{SyncGroupRequest, SyncGroupResponse};

use super::{shared_text, text};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &SyncGroupRequest,
) -> Staged<ApiResponse> {
    let told = request.protocol_type.is_some() && request.protocol_name.is_some();
    if context.version >= 5 && !told {
        return Staged::Now(answer(Err(GroupError::InconsistentGroupProtocol)));
    }
    let assignments = request.assignments.iter().map(|assignment| {
        // Copied: what is kept must not hold the frame that it came in.
        let bytes = Bytes::copy_from_slice(&assignment.assignment);
        (shared_text(&assignment.member_id), bytes)
    });
    let sync = Sync {
        caller: Caller {
            member_id: &request.member_id,
            instance_id: request.group_instance_id.as_deref(),
        },
        generation: request.generation_id,
        protocol_type: request.protocol_type.as_deref(),
        protocol_name: request.protocol_name.as_deref(),
        assignments: assignments.collect(),
    };
    match broker.groups().sync(&request.group_id, sync) {
        Reply::Now(reply) => Staged::Now(answer(reply)),
        Reply::Later(reply) => Staged::Parked(Box::pin(async move {
            answer(reply.await.unwrap_or(Err(GroupError::NotCoordinator)))
        })),
    }
}

fn answer(reply: SyncReply) -> ApiResponse {
    let mut response = SyncGroupResponse::default();
    match reply {
        Ok(synced) => {
            response.protocol_type = synced.protocol_type.as_deref().map(text);
            response.protocol_name = synced.protocol_name.as_deref().map(text);
            response.assignment = synced.assignment;
        }
        Err(error) => response.error_code = error_code::group(error).code(),
    }
    ApiResponse::SyncGroup(Box::new(response))
}

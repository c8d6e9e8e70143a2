//! JoinGroup (key 11), versions 0 to 9. v1 rebalance timeout; v4 member ids are given before a
//! member counts (KIP-394); v5 static members; v7 protocol type; v8 reasons; v9 a static leader
//! may be told to keep the assignment (KIP-814).
//!
//! Answered when the join phase of the group ends.

use std::sync::Arc;

use bytes::Bytes;
use coordinator::machine::group::GroupError;
use coordinator::machine::group::classic::{Join, JoinRefused, JoinReply, JoinedMember, Protocol};
use coordinator::service::groups::Reply;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::{JoinGroupRequest, JoinGroupResponse};
use kafka_protocol::protocol::StrBytes;

use super::{shared_text, text};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &JoinGroupRequest,
) -> Staged<ApiResponse> {
    let version = context.version;
    match broker
        .groups()
        .join(&request.group_id, join(context, request))
    {
        Reply::Now(reply) => Staged::Now(answer(version, reply)),
        Reply::Later(reply) => {
            let member_id = shared_text(&request.member_id);
            Staged::Parked(Box::pin(async move {
                let reply = reply.await.unwrap_or_else(|_| {
                    let error = GroupError::NotCoordinator;
                    Err(JoinRefused { error, member_id })
                });
                answer(version, reply)
            }))
        }
    }
}

fn join(context: &RequestContext, request: &JoinGroupRequest) -> Join {
    let session_timeout_ms = u32::try_from(request.session_timeout_ms).unwrap_or(0);
    let peer = context.connection.peer;
    Join {
        member_id: shared_text(&request.member_id),
        instance_id: request.group_instance_id.as_ref().map(shared_text),
        client_id: context.client_id.as_deref().unwrap_or_default().into(),
        client_host: peer
            .map(|peer| format!("/{}", peer.ip().to_canonical()))
            .unwrap_or_default()
            .into(),
        session_timeout_ms,
        rebalance_timeout_ms: match context.version {
            0 => session_timeout_ms,
            _ => u32::try_from(request.rebalance_timeout_ms).unwrap_or(0),
        },
        protocol_type: shared_text(&request.protocol_type),
        protocols: request.protocols.iter().map(protocol).collect(),
        requires_member_id: context.version >= 4,
        supports_skip_assignment: context.version >= 9,
        reason: request.reason.as_ref().map(shared_text),
    }
}

/// Copied: what is kept must not hold the frame that it came in.
fn protocol(protocol: &JoinGroupRequestProtocol) -> Protocol {
    Protocol {
        name: shared_text(&protocol.name),
        metadata: Bytes::copy_from_slice(&protocol.metadata),
    }
}

fn answer(version: i16, reply: JoinReply) -> ApiResponse {
    let mut response = JoinGroupResponse::default();
    match reply {
        Ok(joined) => {
            response.member_id = text(joined.member_id.as_str());
            response.generation_id = joined.generation;
            response.protocol_type = joined.protocol_type.as_deref().map(text);
            response.protocol_name = joined.protocol_name.as_deref().map(text);
            response.leader = text(joined.leader.as_str());
            response.skip_assignment = joined.skip_assignment;
            response.members = joined.members.into_iter().map(member).collect();
        }
        Err(refused) => {
            response.error_code = error_code::group(refused.error).code();
            response.generation_id = -1;
            response.member_id = text(&refused.member_id);
            response.protocol_name = None;
        }
    }
    if version < 7 {
        // Null came with v7.
        response.protocol_name.get_or_insert_with(StrBytes::default);
    }
    ApiResponse::JoinGroup(Box::new(response))
}

fn member(member: JoinedMember) -> JoinGroupResponseMember {
    JoinGroupResponseMember::default()
        .with_member_id(text(member.member_id.as_str()))
        .with_group_instance_id(member.instance_id.as_deref().map(text))
        .with_metadata(member.metadata)
}

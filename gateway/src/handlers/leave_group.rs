//! LeaveGroup (key 13), versions 0 to 5. v3 several members, also by group instance id alone, each
//! with its own outcome; v5 reasons.

use std::sync::Arc;

use coordinator::machine::group::classic::Leaving;
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{LeaveGroupRequest, LeaveGroupResponse};

use super::{shared_text, text};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &LeaveGroupRequest,
) -> Staged<ApiResponse> {
    let one = context.version < 3;
    let leaving: Vec<Leaving> = if one {
        vec![Leaving {
            member_id: shared_text(&request.member_id),
            instance_id: None,
            reason: None,
        }]
    } else {
        let members = request.members.iter().map(|member| Leaving {
            member_id: shared_text(&member.member_id),
            instance_id: member.group_instance_id.as_ref().map(shared_text),
            reason: member.reason.as_ref().map(shared_text),
        });
        members.collect()
    };
    let mut response = LeaveGroupResponse::default();
    match broker.groups().leave(&request.group_id, &leaving) {
        Err(error) => response.error_code = error_code::group(error).code(),
        Ok(outcomes) => {
            let codes = outcomes.into_iter().map(|outcome| match outcome {
                Ok(()) => 0,
                Err(error) => error_code::group(error).code(),
            });
            if one {
                response.error_code = codes.max().unwrap_or(0);
            } else {
                let members = leaving.iter().zip(codes);
                response.members = members
                    .map(|(leaving, code)| member(leaving, code))
                    .collect();
            }
        }
    }
    Staged::Now(ApiResponse::LeaveGroup(Box::new(response)))
}

fn member(leaving: &Leaving, code: i16) -> MemberResponse {
    MemberResponse::default()
        .with_member_id(text(&leaving.member_id))
        .with_group_instance_id(leaving.instance_id.as_deref().map(text))
        .with_error_code(code)
}

//! ListGroups (key 16), versions 0 to 5. v4 by state, v5 by type; neither looks at case. A state or
//! type that nobody has lists nothing.

use std::sync::Arc;

use coordinator::service::groups::ListedGroup;
use kafka_protocol::messages::{
    GroupId, ListGroupsRequest, ListGroupsResponse, list_groups_response,
};
use kafka_protocol::protocol::StrBytes;

use super::{bounded, text};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: ListGroupsRequest,
) -> Staged<ApiResponse> {
    let version = context.version;
    bounded(broker, context, move |broker| {
        let response = list(broker, &request, version);
        ApiResponse::ListGroups(Box::new(response.into()))
    })
}

fn list(broker: &Broker, request: &ListGroupsRequest, version: i16) -> ListGroupsResponse {
    let mut response = ListGroupsResponse::default();
    match broker.groups().list() {
        Ok(groups) => {
            let wanted = groups.iter().filter(|group| {
                accepts(&request.states_filter, group.state)
                    && accepts(&request.types_filter, group.group_type.name())
            });
            response.groups = wanted.map(|group| shown(group, version)).collect();
        }
        Err(error) => response.error_code = error_code::group(error).code(),
    }
    response
}

fn accepts(filter: &[StrBytes], value: &str) -> bool {
    let mut names = filter.iter().map(|name| name.trim());
    filter.is_empty() || names.any(|name| name.eq_ignore_ascii_case(value))
}

fn shown(group: &ListedGroup, version: i16) -> list_groups_response::ListedGroup {
    let mut shown = list_groups_response::ListedGroup::default()
        .with_group_id(GroupId(text(&group.group)))
        .with_protocol_type(text(&group.protocol_type));
    if version >= 4 {
        shown.group_state = text(group.state);
    }
    if version >= 5 {
        shown.group_type = text(group.group_type.name());
    }
    shown
}

//! DescribeGroups (key 15), versions 0 to 6. v3 authorized operations; v4 group instance ids; v6
//! says 69 of a group that is not there, where older versions show it as Dead.
//!
//! Difference from Kafka: a group that is named twice is answered once.

use std::collections::BTreeSet;
use std::sync::Arc;

use coordinator::machine::group::GroupError;
use coordinator::machine::group::classic::{Described, DescribedMember};
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::{DescribeGroupsRequest, DescribeGroupsResponse, GroupId};

use super::{bounded, text};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

/// Everything that can be done with a group, as bits of Kafka's operation codes: READ 3, DELETE 6,
/// DESCRIBE 8, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11. There are no access rules.
const EVERY_OPERATION: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: DescribeGroupsRequest,
) -> Staged<ApiResponse> {
    let version = context.version;
    let operations = request.include_authorized_operations;
    let mut seen = BTreeSet::new();
    let mut groups = request.groups;
    groups.retain(|group| seen.insert(group.clone()));
    bounded(broker, context, move |broker| {
        let groups = groups.iter();
        let described = groups.map(|group| one(broker, group, version, operations));
        let response = DescribeGroupsResponse::default().with_groups(described.collect());
        ApiResponse::DescribeGroups(Box::new(response.into()))
    })
}

fn one(broker: &Broker, group: &GroupId, version: i16, operations: bool) -> DescribedGroup {
    let mut described = match broker.groups().describe(group) {
        Ok(Some(described)) => shown(described),
        Ok(None) => missing(version),
        Err(error) => DescribedGroup::default().with_error_code(error_code::group(error).code()),
    };
    described.group_id = group.clone();
    if operations && described.error_code == 0 {
        described.authorized_operations = EVERY_OPERATION;
    }
    described
}

fn missing(version: i16) -> DescribedGroup {
    let dead = DescribedGroup::default().with_group_state(text("Dead"));
    if version < 6 {
        return dead;
    }
    let error = GroupError::GroupIdNotFound;
    dead.with_error_code(error_code::group(error).code())
        .with_error_message(Some(text(&error.to_string())))
}

fn shown(group: Described) -> DescribedGroup {
    DescribedGroup::default()
        .with_group_id(GroupId::default())
        .with_group_state(text(group.state.name()))
        .with_protocol_type(text(group.protocol_type.as_deref().unwrap_or_default()))
        .with_protocol_data(text(group.protocol_name.as_deref().unwrap_or_default()))
        .with_members(group.members.into_iter().map(member).collect())
}

fn member(member: DescribedMember) -> DescribedGroupMember {
    DescribedGroupMember::default()
        .with_member_id(text(member.member_id.as_str()))
        .with_group_instance_id(member.instance_id.as_deref().map(text))
        .with_client_id(text(&member.client_id))
        .with_client_host(text(&member.client_host))
        .with_member_metadata(member.metadata)
        .with_member_assignment(member.assignment)
}

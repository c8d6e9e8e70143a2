//! Random requests of groups.

use kafka_protocol::messages as kp;

use super::Rng;

pub(super) fn join_group(v: i16, r: &mut Rng) -> kp::JoinGroupRequest {
    let protocols = r.list(4, |r| {
        kp::join_group_request::JoinGroupRequestProtocol::default()
            .with_name(r.text())
            .with_metadata(r.bytes(50))
    });
    let mut request = kp::JoinGroupRequest::default()
        .with_group_id(r.text().into())
        .with_session_timeout_ms(r.i32())
        .with_member_id(r.text())
        .with_protocol_type(r.text())
        .with_protocols(protocols);
    if v >= 1 {
        request.rebalance_timeout_ms = r.i32();
    }
    if v >= 5 {
        request.group_instance_id = r.maybe_text();
    }
    if v >= 8 {
        request.reason = r.maybe_text();
    }
    request
}

pub(super) fn heartbeat(v: i16, r: &mut Rng) -> kp::HeartbeatRequest {
    let mut request = kp::HeartbeatRequest::default()
        .with_group_id(r.text().into())
        .with_generation_id(r.i32())
        .with_member_id(r.text());
    if v >= 3 {
        request.group_instance_id = r.maybe_text();
    }
    request
}

pub(super) fn leave_group(v: i16, r: &mut Rng) -> kp::LeaveGroupRequest {
    let request = kp::LeaveGroupRequest::default().with_group_id(r.text().into());
    if v < 3 {
        return request.with_member_id(r.text());
    }
    request.with_members(r.list(4, |r| {
        let member = kp::leave_group_request::MemberIdentity::default()
            .with_member_id(r.text())
            .with_group_instance_id(r.maybe_text());
        if v >= 5 {
            member.with_reason(r.maybe_text())
        } else {
            member
        }
    }))
}

pub(super) fn sync_group(v: i16, r: &mut Rng) -> kp::SyncGroupRequest {
    let assignments = r.list(4, |r| {
        kp::sync_group_request::SyncGroupRequestAssignment::default()
            .with_member_id(r.text())
            .with_assignment(r.bytes(50))
    });
    let mut request = kp::SyncGroupRequest::default()
        .with_group_id(r.text().into())
        .with_generation_id(r.i32())
        .with_member_id(r.text())
        .with_assignments(assignments);
    if v >= 3 {
        request.group_instance_id = r.maybe_text();
    }
    if v >= 5 {
        request.protocol_type = r.maybe_text();
        request.protocol_name = r.maybe_text();
    }
    request
}

pub(super) fn describe_groups(v: i16, r: &mut Rng) -> kp::DescribeGroupsRequest {
    let request = kp::DescribeGroupsRequest::default().with_groups(r.list(4, |r| r.text().into()));
    if v >= 3 {
        request.with_include_authorized_operations(r.chance())
    } else {
        request
    }
}

pub(super) fn list_groups(v: i16, r: &mut Rng) -> kp::ListGroupsRequest {
    let mut request = kp::ListGroupsRequest::default();
    if v >= 4 {
        request.states_filter = r.list(4, Rng::text);
    }
    if v >= 5 {
        request.types_filter = r.list(4, Rng::text);
    }
    request
}

pub(super) fn delete_groups(r: &mut Rng) -> kp::DeleteGroupsRequest {
    kp::DeleteGroupsRequest::default().with_groups_names(r.list(4, |r| r.text().into()))
}

pub(super) fn consumer_group_heartbeat(v: i16, r: &mut Rng) -> kp::ConsumerGroupHeartbeatRequest {
    let partitions = r.list(4, |r| {
        kp::consumer_group_heartbeat_request::TopicPartitions::default()
            .with_topic_id(uuid::Uuid::from_u128(r.i32().unsigned_abs().into()))
            .with_partitions(r.list(4, Rng::i32))
    });
    let names = r.list(4, |r| r.text().into());
    let mut request = kp::ConsumerGroupHeartbeatRequest::default()
        .with_group_id(r.text().into())
        .with_member_id(r.text())
        .with_member_epoch(r.i32())
        .with_instance_id(r.maybe_text())
        .with_rack_id(r.maybe_text())
        .with_rebalance_timeout_ms(r.i32())
        .with_subscribed_topic_names(r.chance().then_some(names))
        .with_server_assignor(r.maybe_text())
        .with_topic_partitions(r.chance().then_some(partitions));
    if v >= 1 {
        request.subscribed_topic_regex = r.maybe_text();
    }
    request
}

pub(super) fn consumer_group_describe(r: &mut Rng) -> kp::ConsumerGroupDescribeRequest {
    kp::ConsumerGroupDescribeRequest::default()
        .with_group_ids(r.list(4, |r| r.text().into()))
        .with_include_authorized_operations(r.chance())
}

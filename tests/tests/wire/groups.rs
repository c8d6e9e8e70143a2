//! Groups: membership by the classic protocol.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::messages::{
    ApiVersionsRequest, ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest, DescribeGroupsRequest, FindCoordinatorRequest, GroupId, HeartbeatRequest,
    JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse, ListGroupsRequest,
    ListGroupsResponse, SyncGroupRequest, SyncGroupResponse, UpdateFeaturesRequest,
};
use tests::raw::{CLIENT_ID, RawClient, ops};

use crate::kit::{Target, on_kafka, text};

pub(crate) fn group_id(group: &str) -> GroupId {
    GroupId(text(group))
}

/// A connection, once the group has a coordinator: Kafka makes the topic behind it when it is
/// first asked.
pub(crate) async fn connect(target: &Target, group: &str) -> RawClient {
    let mut client = target.connect().await;
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..1800 {
        pace.tick().await;
        let request = FindCoordinatorRequest::default().with_key(text(group));
        let found = client.call(&request, 2).await.unwrap();
        let described = describe(&mut client, group, 0).await;
        if found.error_code == 0 && ![14, 15, 16].contains(&described.0) {
            return client;
        }
    }
    panic!("no coordinator for {group}");
}

/// Metadata of a consumer of topic `t`.
const SUBSCRIPTION: &[u8] = b"\0\0\0\0\0\x01\0\x01t\xff\xff\xff\xff";

/// A JoinGroup; the fields that its version lacks are left out.
#[derive(Debug, Clone)]
pub(crate) struct Joining {
    group: &'static str,
    member: String,
    pub(crate) instance: Option<&'static str>,
    protocols: &'static [&'static str],
    session_ms: i32,
    rebalance_ms: i32,
}

/// Nobody here sends heartbeats in time on a machine that stands still for a while, hence the long
/// timeouts.
pub(crate) fn joining(group: &'static str, member: &str) -> Joining {
    Joining {
        group,
        member: member.to_owned(),
        instance: None,
        protocols: &["range"],
        session_ms: 60_000,
        rebalance_ms: 60_000,
    }
}

impl Joining {
    fn request(&self, version: i16) -> JoinGroupRequest {
        let protocols = self.protocols.iter().map(|name| {
            JoinGroupRequestProtocol::default()
                .with_name(text(name))
                .with_metadata(Bytes::from_static(SUBSCRIPTION))
        });
        let mut request = JoinGroupRequest::default()
            .with_group_id(group_id(self.group))
            .with_session_timeout_ms(self.session_ms)
            .with_member_id(text(&self.member))
            .with_protocol_type(text("consumer"))
            .with_protocols(protocols.collect());
        if version >= 1 {
            request.rebalance_timeout_ms = self.rebalance_ms;
        }
        if version >= 5 {
            request.group_instance_id = self.instance.map(text);
        }
        request
    }

    async fn call(&self, client: &mut RawClient, version: i16) -> JoinGroupResponse {
        client.call(&self.request(version), version).await.unwrap()
    }
}

/// A member of a generation.
pub(crate) struct Member {
    pub(crate) client: RawClient,
    pub(crate) id: String,
    pub(crate) generation: i32,
}

/// Joins alone, by way of v5: an id first, then the generation.
pub(crate) async fn member(target: &Target, shape: &Joining) -> Member {
    let mut client = connect(target, shape.group).await;
    let mut shape = shape.clone();
    if shape.instance.is_none() {
        let told = shape.call(&mut client, 5).await;
        assert_eq!(told.error_code, 79);
        shape.member = told.member_id.to_string();
    }
    let joined = shape.call(&mut client, 5).await;
    assert_eq!(joined.error_code, 0, "{joined:?}");
    Member {
        client,
        id: joined.member_id.to_string(),
        generation: joined.generation_id,
    }
}

pub(crate) fn syncing(
    group: &str,
    id: &str,
    generation: i32,
    assignments: &[(&str, &'static str)],
) -> SyncGroupRequest {
    let assignments = assignments.iter().map(|(member, bytes)| {
        SyncGroupRequestAssignment::default()
            .with_member_id(text(member))
            .with_assignment(Bytes::from_static(bytes.as_bytes()))
    });
    SyncGroupRequest::default()
        .with_group_id(group_id(group))
        .with_generation_id(generation)
        .with_member_id(text(id))
        .with_assignments(assignments.collect())
}

impl Member {
    pub(crate) async fn sync(
        &mut self,
        group: &str,
        assignments: &[(&str, &'static str)],
    ) -> SyncGroupResponse {
        let request = syncing(group, &self.id, self.generation, assignments);
        self.client.call(&request, 3).await.unwrap()
    }

    async fn heartbeat(&mut self, group: &str) -> i16 {
        beat(&mut self.client, group, &self.id, self.generation, None).await
    }

    /// Heartbeats until the answer is `code`.
    async fn beats_until(&mut self, group: &str, code: i16) {
        let mut pace = tokio::time::interval(Duration::from_millis(50));
        let mut last = 0;
        for _ in 0..1200 {
            pace.tick().await;
            last = self.heartbeat(group).await;
            if last == code {
                return;
            }
        }
        panic!("never {code}, at last {last}");
    }
}

async fn beat(
    client: &mut RawClient,
    group: &str,
    id: &str,
    generation: i32,
    instance: Option<&str>,
) -> i16 {
    let request = HeartbeatRequest::default()
        .with_group_id(group_id(group))
        .with_generation_id(generation)
        .with_member_id(text(id))
        .with_group_instance_id(instance.map(text));
    client.call(&request, 3).await.unwrap().error_code
}

async fn leave_v2(client: &mut RawClient, group: &str, id: &str) -> i16 {
    let request = LeaveGroupRequest::default()
        .with_group_id(group_id(group))
        .with_member_id(text(id));
    client.call(&request, 2).await.unwrap().error_code
}

async fn leave_v3(
    client: &mut RawClient,
    group: &str,
    members: &[(&str, Option<&str>)],
) -> LeaveGroupResponse {
    let members = members.iter().map(|(id, instance)| {
        MemberIdentity::default()
            .with_member_id(text(id))
            .with_group_instance_id(instance.map(text))
    });
    let request = LeaveGroupRequest::default()
        .with_group_id(group_id(group))
        .with_members(members.collect());
    client.call(&request, 3).await.unwrap()
}

/// Code, state and number of members.
async fn describe(client: &mut RawClient, group: &str, version: i16) -> (i16, String, usize) {
    let request = DescribeGroupsRequest::default().with_groups(vec![group_id(group)]);
    let response = client.call(&request, version).await.unwrap();
    let group = &response.groups[0];
    (
        group.error_code,
        group.group_state.to_string(),
        group.members.len(),
    )
}

pub(crate) async fn delete(client: &mut RawClient, group: &str) -> i16 {
    let request = DeleteGroupsRequest::default().with_groups_names(vec![group_id(group)]);
    client.call(&request, 1).await.unwrap().results[0].error_code
}

#[tokio::test]
async fn find_coordinator_names_this_broker() {
    let target = Target::shared();
    drop(connect(&target, "found").await);
    let mut client = target.connect().await;
    for version in 0..=6 {
        let mut request = FindCoordinatorRequest::default();
        if version >= 4 {
            request.coordinator_keys = vec![text("found"), text("")];
        } else {
            request.key = text("found");
        }
        let response = client.call(&request, version).await.unwrap();
        let found = if version >= 4 {
            assert_eq!(response.coordinators.len(), 2);
            assert_eq!(response.coordinators[1].error_code, 0);
            let found = &response.coordinators[0];
            assert_eq!(found.key.as_str(), "found");
            (found.error_code, found.host.clone(), found.port)
        } else {
            (response.error_code, response.host, response.port)
        };
        assert_eq!(found.0, 0, "v{version}");
        let address = format!("{}:{}", found.1, found.2);
        RawClient::connect(&address).await.unwrap();
    }
}

#[tokio::test]
async fn g01_a_member_gets_its_id_first() {
    let target = Target::shared();
    let mut client = connect(&target, "g01").await;
    let told = joining("g01", "").call(&mut client, 5).await;
    assert_eq!((told.error_code, told.generation_id), (79, -1));
    let prefix = format!("{CLIENT_ID}-");
    assert!(told.member_id.starts_with(&prefix), "{told:?}");
    let joined = joining("g01", &told.member_id).call(&mut client, 5).await;
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    assert_eq!(joined.member_id, told.member_id);
    assert_eq!(joined.leader, told.member_id);
    assert_eq!(joined.protocol_name.as_deref(), Some("range"));
    assert_eq!(joined.members.len(), 1);
    assert_eq!(joined.members[0].member_id, told.member_id);
    assert_eq!(&joined.members[0].metadata[..], SUBSCRIPTION);
}

#[tokio::test]
async fn g02_older_versions_join_at_once() {
    let target = Target::shared();
    for (group, version) in [("g02-0", 0), ("g02-1", 1), ("g02-2", 2), ("g02-3", 3)] {
        let mut client = connect(&target, group).await;
        let joined = joining(group, "").call(&mut client, version).await;
        assert_eq!((joined.error_code, joined.generation_id), (0, 1));
        assert!(!joined.member_id.is_empty());
    }
}

#[tokio::test]
async fn every_version_joins_and_syncs() {
    let target = Target::shared();
    let mut client = connect(&target, "versions").await;
    for version in 0..=9 {
        let shape = Joining {
            instance: (version >= 5).then_some("i"),
            ..joining("versions", "")
        };
        let mut joined = shape.call(&mut client, version).await;
        if version == 4 {
            assert_eq!(joined.error_code, 79);
            let again = joining("versions", &joined.member_id);
            joined = again.call(&mut client, version).await;
        }
        assert_eq!(joined.error_code, 0, "v{version}");
        assert_eq!(joined.protocol_name.as_deref(), Some("range"));
        let told = (version >= 7).then(|| text("consumer"));
        assert_eq!(joined.protocol_type, told, "v{version}");
        let sync_version = version.min(5);
        let mut sync = syncing(
            "versions",
            &joined.member_id,
            joined.generation_id,
            &[(&joined.member_id, "a")],
        );
        if sync_version >= 5 {
            sync.protocol_type = Some(text("consumer"));
            sync.protocol_name = Some(text("range"));
        }
        let synced = client.call(&sync, sync_version).await.unwrap();
        assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"a"[..]));
        let left = leave_v2(&mut client, "versions", &joined.member_id).await;
        assert_eq!(left, 0);
    }
}

#[tokio::test]
async fn g04_an_id_of_a_group_that_is_not_there_is_unknown() {
    let target = Target::shared();
    let mut client = connect(&target, "g04").await;
    for version in [2, 5, 9] {
        let refused = joining("g04", "x").call(&mut client, version).await;
        assert_eq!(refused.error_code, 25);
        assert_eq!(refused.member_id.as_str(), "x");
        assert_eq!(refused.generation_id, -1);
    }
    assert_eq!(beat(&mut client, "g04", "x", 1, None).await, 25);
    assert_eq!(leave_v2(&mut client, "g04", "x").await, 25);
    let sync = client.call(&syncing("g04", "x", 1, &[]), 3).await.unwrap();
    assert_eq!(sync.error_code, 25);
    assert_eq!(delete(&mut client, "g04").await, 69);
}

#[tokio::test]
async fn g05_protocols_must_have_one_in_common() {
    let target = Target::shared();
    drop(member(&target, &joining("g05", "")).await);
    let mut client = connect(&target, "g05").await;
    for protocols in [&["roundrobin"][..], &[][..]] {
        let shape = Joining {
            protocols,
            ..joining("g05", "")
        };
        assert_eq!(shape.call(&mut client, 5).await.error_code, 23);
    }
    let mut connect_worker = joining("g05", "").request(5);
    connect_worker.protocol_type = text("connect");
    let refused = client.call(&connect_worker, 5).await.unwrap();
    assert_eq!(refused.error_code, 23);
}

#[tokio::test]
async fn requests_are_checked_in_kafkas_order() {
    let target = Target::shared();
    let mut client = connect(&target, "order").await;
    let nameless = Joining {
        group: "",
        session_ms: 1,
        ..joining("", "")
    };
    assert_eq!(nameless.call(&mut client, 5).await.error_code, 24);
    for session_ms in [-1, 0, 5_999, 1_800_001] {
        let shape = Joining {
            session_ms,
            ..joining("order", "x")
        };
        let refused = shape.call(&mut client, 5).await;
        assert_eq!(refused.error_code, 26, "{session_ms}");
    }
    assert_eq!(beat(&mut client, "", "x", 1, None).await, 24);
    let sync = client.call(&syncing("", "x", 1, &[]), 3).await.unwrap();
    assert_eq!(sync.error_code, 24);
    let left = leave_v3(&mut client, "", &[("x", None)]).await;
    assert_eq!(left.error_code, 24);
    drop(connect(&target, "").await);
    assert_eq!(delete(&mut client, "").await, 69);

    let mut first = member(&target, &joining("order", "")).await;
    let id = first.id.clone();
    let wrong = syncing("order", &id, first.generation + 1, &[]);
    let refused = first.client.call(&wrong, 3).await.unwrap();
    assert_eq!(refused.error_code, 22);
    let nothing_told = syncing("order", &id, first.generation, &[]);
    let refused = first.client.call(&nothing_told, 5).await.unwrap();
    assert_eq!(refused.error_code, 23);
    let other = syncing("order", &id, first.generation, &[])
        .with_protocol_type(Some(text("consumer")))
        .with_protocol_name(Some(text("roundrobin")));
    let refused = first.client.call(&other, 5).await.unwrap();
    assert_eq!(refused.error_code, 23);
    let generation = first.generation;
    let ahead = beat(&mut first.client, "order", &id, generation + 1, None).await;
    assert_eq!(ahead, 22);
    let stranger = beat(&mut first.client, "order", "x", generation + 1, None).await;
    assert_eq!(stranger, 25);
}

/// Two members of one generation, the first leads; nobody has synced.
async fn two(target: &Target, group: &'static str) -> (Member, Member) {
    let mut first = member(target, &joining(group, "")).await;
    first.sync(group, &[]).await;
    let mut client = connect(target, group).await;
    let told = joining(group, "").call(&mut client, 5).await;
    let second = joining(group, &told.member_id);
    client.send(&second.request(5), 5).await.unwrap();
    first.beats_until(group, 27).await;
    let joined = joining(group, &first.id).call(&mut first.client, 5).await;
    assert_eq!((joined.error_code, joined.generation_id), (0, 2));
    assert_eq!(joined.leader.as_str(), first.id);
    assert_eq!(joined.members.len(), 2);
    let (_, follows) = client.receive::<JoinGroupRequest>(5).await.unwrap();
    assert_eq!((follows.error_code, follows.generation_id), (0, 2));
    assert_eq!(follows.leader.as_str(), first.id);
    assert_eq!(follows.members, []);
    first.generation = 2;
    let second = Member {
        client,
        id: follows.member_id.to_string(),
        generation: 2,
    };
    (first, second)
}

#[tokio::test]
async fn g07_heartbeats_are_fine_while_the_leader_assigns() {
    let target = Target::shared();
    let (mut first, mut second) = two(&target, "g07").await;
    assert_eq!(first.heartbeat("g07").await, 0);
    assert_eq!(second.heartbeat("g07").await, 0);
    let state = describe(&mut first.client, "g07", 0).await;
    assert_eq!(state, (0, "CompletingRebalance".to_owned(), 2));
}

#[tokio::test]
async fn a_follower_waits_for_the_leaders_assignment() {
    let target = Target::shared();
    let (mut first, mut second) = two(&target, "waits").await;
    let request = syncing("waits", &second.id, 2, &[("ignored", "x")]);
    second.client.send(&request, 3).await.unwrap();
    let quiet = Duration::from_millis(300);
    assert!(second.client.is_silent_for(quiet).await);
    let assigned = [(first.id.clone(), "a"), (second.id.clone(), "b")];
    let assigned = assigned.each_ref().map(|(id, bytes)| (id.as_str(), *bytes));
    let leads = first.sync("waits", &assigned).await;
    assert_eq!((leads.error_code, &leads.assignment[..]), (0, &b"a"[..]));
    let (_, follows) = second.client.receive::<SyncGroupRequest>(3).await.unwrap();
    assert_eq!(
        (follows.error_code, &follows.assignment[..]),
        (0, &b"b"[..])
    );
    // Again, and the same: the group is stable.
    let again = second.sync("waits", &[]).await;
    assert_eq!((again.error_code, &again.assignment[..]), (0, &b"b"[..]));
    let state = describe(&mut first.client, "waits", 0).await;
    assert_eq!(state, (0, "Stable".to_owned(), 2));

    // An unchanged follower gets its generation back; the leader makes a new one.
    let same = joining("waits", &second.id)
        .call(&mut second.client, 5)
        .await;
    assert_eq!((same.error_code, same.generation_id), (0, 2));
    let leaves = leave_v2(&mut second.client, "waits", &second.id).await;
    assert_eq!(leaves, 0);
    assert_eq!(first.heartbeat("waits").await, 27);
    let sync = first.sync("waits", &[]).await;
    assert_eq!(sync.error_code, 27);
    let alone = joining("waits", &first.id).call(&mut first.client, 5).await;
    assert_eq!((alone.error_code, alone.generation_id), (0, 3));
    assert_eq!(alone.members.len(), 1);
    assert_eq!(second.heartbeat("waits").await, 25);
}

#[tokio::test]
async fn g08_a_static_member_is_replaced_without_a_rebalance() {
    let target = Target::shared();
    for (group, version) in [("g08-5", 5), ("g08-9", 9)] {
        let shape = Joining {
            instance: Some("i1"),
            ..joining(group, "")
        };
        let mut old = member(&target, &shape).await;
        assert!(old.id.starts_with("i1-"), "{}", old.id);
        let id = old.id.clone();
        assert_eq!(old.sync(group, &[(&id, "a")]).await.error_code, 0);
        let mut client = connect(&target, group).await;
        let joined = shape.call(&mut client, version).await;
        assert_eq!((joined.error_code, joined.generation_id), (0, 1));
        assert_ne!(joined.member_id.as_str(), id);
        if version >= 9 {
            assert!(joined.skip_assignment);
            assert_eq!(joined.leader, joined.member_id);
            assert_eq!(joined.members.len(), 1);
        } else {
            assert_eq!(joined.leader.as_str(), id, "so that it does not assign");
            assert_eq!(joined.members, []);
        }
        let fenced = beat(&mut old.client, group, &id, 1, Some("i1")).await;
        assert_eq!(fenced, 82);
        assert_eq!(beat(&mut old.client, group, &id, 1, None).await, 25);
        let rejoins = Joining {
            member: id.clone(),
            ..shape.clone()
        };
        let refused = rejoins.call(&mut old.client, version).await;
        assert_eq!(refused.error_code, 82);
        let synced = client
            .call(&syncing(group, &joined.member_id, 1, &[]), 3)
            .await;
        assert_eq!(&synced.unwrap().assignment[..], b"a");
        let left = leave_v3(&mut client, group, &[(&id, Some("i1")), ("", Some("i1"))]).await;
        let codes: Vec<i16> = left.members.iter().map(|m| m.error_code).collect();
        assert_eq!((left.error_code, codes), (0, vec![82, 0]));
    }
}

#[tokio::test]
async fn members_leave_together_each_with_its_outcome() {
    let target = Target::shared();
    let (mut first, second) = two(&target, "leave").await;
    let members = [
        (second.id.as_str(), None),
        ("x", None),
        ("", Some("nobody")),
    ];
    let left = leave_v3(&mut first.client, "leave", &members).await;
    assert_eq!(left.error_code, 0);
    let codes: Vec<(String, i16)> = left
        .members
        .iter()
        .map(|m| (m.member_id.to_string(), m.error_code))
        .collect();
    let expected = [
        (second.id.clone(), 0),
        ("x".to_owned(), 25),
        (String::new(), 25),
    ];
    assert_eq!(codes, expected);
    // Its coordinator may be another than that of the group before.
    drop(connect(&target, "not-there").await);
    let gone = leave_v3(&mut first.client, "not-there", &[("x", None)]).await;
    assert_eq!((gone.error_code, gone.members[0].error_code), (0, 25));
}

#[tokio::test]
async fn g11_a_group_with_members_is_not_deleted() {
    let target = Target::shared();
    let mut only = member(&target, &joining("g11", "")).await;
    assert_eq!(delete(&mut only.client, "g11").await, 68);
    assert_eq!(leave_v2(&mut only.client, "g11", &only.id).await, 0);
    let state = describe(&mut only.client, "g11", 0).await;
    assert_eq!(state, (0, "Empty".to_owned(), 0));
    assert_eq!(delete(&mut only.client, "g11").await, 0);
    assert_eq!(delete(&mut only.client, "g11").await, 69);
}

#[tokio::test]
async fn g13_a_member_that_never_syncs_is_removed() {
    let target = Target::shared();
    let shape = |id: &str| Joining {
        // Each step below must come within it.
        rebalance_ms: 10_000,
        ..joining("g13", id)
    };
    let mut first = member(&target, &shape("")).await;
    first.sync("g13", &[]).await;
    let mut client = connect(&target, "g13").await;
    let told = shape("").call(&mut client, 5).await;
    client
        .send(&shape(&told.member_id).request(5), 5)
        .await
        .unwrap();
    first.beats_until("g13", 27).await;
    let joined = shape(&first.id).call(&mut first.client, 5).await;
    assert_eq!((joined.error_code, joined.members.len()), (0, 2));
    first.generation = 2;
    let (_, lazy) = client.receive::<JoinGroupRequest>(5).await.unwrap();
    assert_eq!(lazy.error_code, 0);
    let synced = first.sync("g13", &[]).await;
    assert_eq!(synced.error_code, 0);
    first.beats_until("g13", 27).await;
    let removed = beat(&mut client, "g13", &lazy.member_id, 2, None).await;
    assert_eq!(removed, 25);
    let alone = shape(&first.id).call(&mut first.client, 5).await;
    assert_eq!((alone.generation_id, alone.members.len()), (3, 1));
}

#[tokio::test]
async fn a_silent_member_is_removed_when_its_session_ends() {
    let target = Target::shared();
    let shape = Joining {
        session_ms: 6_000,
        ..joining("silent", "")
    };
    let mut silent = member(&target, &shape).await;
    silent.sync("silent", &[]).await;
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..1200 {
        pace.tick().await;
        let (_, state, members) = describe(&mut silent.client, "silent", 0).await;
        if state == "Empty" {
            assert_eq!(members, 0);
            assert_eq!(silent.heartbeat("silent").await, 25);
            return;
        }
        assert_eq!(state, "Stable");
    }
    panic!("the silent member stays");
}

#[tokio::test]
async fn groups_are_described() {
    let target = Target::shared();
    let mut client = connect(&target, "described").await;
    for version in 0..=6 {
        let missing = describe(&mut client, "described", version).await;
        let code = if version >= 6 { 69 } else { 0 };
        assert_eq!(missing, (code, "Dead".to_owned(), 0), "v{version}");
    }
    let shape = Joining {
        instance: Some("i"),
        ..joining("described", "")
    };
    let mut only = member(&target, &shape).await;
    let id = only.id.clone();
    only.sync("described", &[(&id, "a")]).await;
    for version in 0..=6 {
        let mut request = DescribeGroupsRequest::default();
        request.groups = vec![group_id("described")];
        request.include_authorized_operations = version >= 3;
        let response = client.call(&request, version).await.unwrap();
        let group = &response.groups[0];
        assert_eq!(group.error_code, 0);
        assert_eq!(group.group_state.as_str(), "Stable");
        assert_eq!(group.protocol_type.as_str(), "consumer");
        assert_eq!(group.protocol_data.as_str(), "range");
        let operations = if version >= 3 { 3_400 } else { i32::MIN };
        assert_eq!(group.authorized_operations, operations, "v{version}");
        let member = &group.members[0];
        assert_eq!(member.member_id.as_str(), id);
        assert_eq!(member.client_id.as_str(), CLIENT_ID);
        assert_eq!(member.client_host.as_str(), "/127.0.0.1");
        assert_eq!(&member.member_metadata[..], SUBSCRIPTION);
        assert_eq!(&member.member_assignment[..], b"a");
        let instance = (version >= 4).then(|| text("i"));
        assert_eq!(member.group_instance_id, instance);
    }
}

/// A ListGroups, once every coordinator has loaded what it has.
async fn list(
    client: &mut RawClient,
    request: &ListGroupsRequest,
    version: i16,
) -> ListGroupsResponse {
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..600 {
        pace.tick().await;
        let response = client.call(request, version).await.unwrap();
        if ![14, 15].contains(&response.error_code) {
            assert_eq!(response.error_code, 0);
            return response;
        }
    }
    panic!("ListGroups still asks for a retry");
}

#[tokio::test]
async fn groups_are_listed_by_state_and_type() {
    let target = Target::shared();
    let mut only = member(&target, &joining("listed", "")).await;
    only.sync("listed", &[]).await;
    for version in 0..=5 {
        let mut filters = vec![(vec![], vec![], true)];
        if version >= 4 {
            filters.push((vec!["stable"], vec![], true));
            filters.push((vec!["Empty", "STABLE"], vec![], true));
            filters.push((vec!["Empty"], vec![], false));
            filters.push((vec!["nonsense"], vec![], false));
        }
        if version >= 5 {
            filters.push((vec![], vec!["Classic"], true));
            filters.push((vec![], vec!["consumer"], false));
            filters.push((vec!["Stable"], vec!["classic"], true));
        }
        for (states, types, found) in filters {
            let strings = |names: &[&str]| names.iter().map(|name| text(name)).collect();
            let request = ListGroupsRequest::default()
                .with_states_filter(strings(&states))
                .with_types_filter(strings(&types));
            let response = list(&mut only.client, &request, version).await;
            let listed = response.groups.iter();
            let listed = listed.filter(|g| g.group_id.as_str() == "listed");
            let listed: Vec<_> = listed.collect();
            assert_eq!(listed.len(), usize::from(found), "{states:?} {types:?}");
            for group in listed {
                assert_eq!(group.protocol_type.as_str(), "consumer");
                let state = if version >= 4 { "Stable" } else { "" };
                assert_eq!(group.group_state.as_str(), state);
                let kind = if version >= 5 { "classic" } else { "" };
                assert_eq!(group.group_type.as_str(), kind);
            }
        }
    }
}

#[tokio::test]
async fn a_full_group_refuses_more() {
    let target = Target::start(&[("group.max.size", "1")]);
    let mut only = member(&target, &joining("full", "")).await;
    only.sync("full", &[]).await;
    let mut client = connect(&target, "full").await;
    for version in [2, 5] {
        let refused = joining("full", "").call(&mut client, version).await;
        assert_eq!(refused.error_code, 81);
        assert_eq!(refused.member_id.as_str(), "");
    }
}

/// Ours alone: how Kafka ends is not in question.
#[tokio::test]
async fn a_broker_that_stops_sends_waiting_members_away() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[("group.initial.rebalance.delay.ms", "600000")]);
    let mut client = connect(&target, "stopping").await;
    let shape = Joining {
        rebalance_ms: 600_000,
        ..joining("stopping", "")
    };
    client.send(&shape.request(2), 2).await.unwrap();
    let mut other = target.connect().await;
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    while describe(&mut other, "stopping", 0).await.2 == 0 {
        pace.tick().await;
    }
    let status = target.gateway(|gateway, _| gateway.stop().unwrap());
    assert_eq!(status.code(), Some(0));
    let (_, sent_away) = client.receive::<JoinGroupRequest>(2).await.unwrap();
    assert_eq!(sent_away.error_code, 16);
}

/// Sets Kafka's `group.version`, which is 0 here, to 0.
async fn without_consumer_protocol(client: &mut RawClient) {
    let update = FeatureUpdateKey::default()
        .with_feature(text("group.version"))
        .with_max_version_level(0)
        // A safe downgrade.
        .with_upgrade_type(2);
    let request = UpdateFeaturesRequest::default()
        .with_timeout_ms(30_000)
        .with_feature_updates(vec![update]);
    let answer = client.call(&request, 1).await.unwrap();
    assert_eq!(answer.error_code, 0, "{answer:?}");
    // It is on its way through the metadata log; a heartbeat that came before would make a group.
    let request = ApiVersionsRequest::default()
        .with_client_software_name(text("wire"))
        .with_client_software_version(text("1"));
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..600 {
        pace.tick().await;
        let answer = client.call(&request, 4).await.unwrap();
        let mut levels = answer.finalized_features.iter();
        let is_higher = levels.any(|feature| {
            feature.name.as_str() == "group.version" && feature.max_version_level > 0
        });
        if !is_higher {
            return;
        }
    }
    panic!("group.version does not come to 0");
}

fn newer_heartbeat(version: i16) -> ConsumerGroupHeartbeatRequest {
    let member = if version >= 1 {
        "m9rRpIpQSvSyYBzNcdPeAA"
    } else {
        ""
    };
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group_id("newer"))
        .with_member_id(text(member))
        .with_member_epoch(0)
        .with_rebalance_timeout_ms(10_000)
        .with_subscribed_topic_names(Some(vec![ops::topic_name("t")]))
        .with_topic_partitions(Some(Vec::new()))
}

#[tokio::test]
async fn the_consumer_protocol_is_refused_without_its_feature() {
    let target = Target::start(&[]);
    let mut client = connect(&target, "newer").await;
    if on_kafka() {
        without_consumer_protocol(&mut client).await;
    }
    for version in 0..=1 {
        let answer = client.call(&newer_heartbeat(version), version).await;
        let answer = answer.unwrap();
        assert_eq!(answer.error_code, 35, "v{version}");
        assert_eq!(answer.error_message, None);
        assert_eq!((answer.member_id, answer.member_epoch), (None, 0));
        assert_eq!(answer.heartbeat_interval_ms, 0);
        assert!(answer.assignment.is_none());

        let groups = ["newer", "other", "newer"];
        let request = ConsumerGroupDescribeRequest::default()
            .with_group_ids(groups.map(group_id).to_vec())
            .with_include_authorized_operations(true);
        let answer = client.call(&request, version).await.unwrap();
        let described = answer.groups.iter();
        let described: Vec<_> = described
            .map(|group| (group.group_id.as_str(), group.error_code))
            .collect();
        assert_eq!(described, groups.map(|group| (group, 35)), "v{version}");
        for group in &answer.groups {
            assert_eq!(group.error_message, None);
            assert_eq!(group.authorized_operations, i32::MIN);
            assert_eq!((group.group_state.as_str(), group.members.len()), ("", 0));
        }
    }
    // It left no group.
    assert_eq!(delete(&mut client, "newer").await, 69);
}

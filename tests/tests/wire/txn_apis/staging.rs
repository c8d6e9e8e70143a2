//! TxnOffsetCommit, and what OffsetFetch shows of it.

use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest, OffsetFetchRequest, ProducerId,
    TxnOffsetCommitRequest,
};
use tests::raw::{RawClient, group, ops};

use super::{
    PASSES, Session, add_group, await_state, begin, connect, describe, end, id_of, partitions_of,
};
use crate::groups::{self, group_id, joining, member};
use crate::kit::{Target, text};

/// Who commits: member id, instance id and generation.
type Who<'a> = (&'a str, Option<&'a str>, i32);

const NOBODY: Who<'_> = ("", None, -1);

fn staging(
    (id, session): (&str, Session),
    group: &str,
    who: Who<'_>,
    topic: &str,
    of: &[(i32, i64)],
    v: i16,
) -> TxnOffsetCommitRequest {
    let partitions = of.iter().map(|(partition, offset)| {
        TxnOffsetCommitRequestPartition::default()
            .with_partition_index(*partition)
            .with_committed_offset(*offset)
            .with_committed_metadata(Some(text("m")))
    });
    let topic = TxnOffsetCommitRequestTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partitions(partitions.collect());
    let request = TxnOffsetCommitRequest::default()
        .with_transactional_id(id_of(id))
        .with_group_id(group_id(group))
        .with_producer_id(ProducerId(session.0))
        .with_producer_epoch(session.1)
        .with_topics(vec![topic]);
    if v < 3 {
        return request;
    }
    request
        .with_member_id(text(who.0))
        .with_group_instance_id(who.1.map(text))
        .with_generation_id(who.2)
}

/// Codes of a request's partitions, once what passes has passed.
async fn send(client: &mut RawClient, request: &TxnOffsetCommitRequest, v: i16) -> Vec<i16> {
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(50));
    for _ in 0..600 {
        pace.tick().await;
        let answer = client.call(request, v).await.unwrap();
        let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
        let mut partitions: Vec<_> = partitions.collect();
        // Kafka has those first that failed.
        partitions.sort_by_key(|partition| partition.partition_index);
        let codes: Vec<i16> = partitions.iter().map(|p| p.error_code).collect();
        if !codes.iter().any(|code| PASSES.contains(code)) {
            return codes;
        }
    }
    panic!("TxnOffsetCommit still asks for a retry");
}

/// Offset and code of partition 0, plain and stable.
async fn fetch(client: &mut RawClient, group: &str, topic: &str) -> [(i64, i16); 2] {
    let mut found = [(0, 0); 2];
    for (slot, require_stable) in found.iter_mut().zip([false, true]) {
        let topic = OffsetFetchRequestTopic::default()
            .with_name(ops::topic_name(topic))
            .with_partition_indexes(vec![0]);
        let request = OffsetFetchRequest::default()
            .with_group_id(group_id(group))
            .with_topics(Some(vec![topic]))
            .with_require_stable(require_stable);
        let mut answer = client.call(&request, 7).await.unwrap();
        // The file of a group may still be being read after a start.
        let mut pace = tokio::time::interval(std::time::Duration::from_millis(100));
        for _ in 0..600 {
            if answer.error_code != 14 {
                break;
            }
            pace.tick().await;
            answer = client.call(&request, 7).await.unwrap();
        }
        assert_eq!(answer.error_code, 0);
        let partition = &answer.topics[0].partitions[0];
        *slot = (partition.committed_offset, partition.error_code);
    }
    found
}

/// Connections to both coordinators, and a new session.
async fn both(target: &Target, id: &str, group: &str) -> (RawClient, Session) {
    groups::connect(target, group).await;
    let mut client = connect(target, id).await;
    let session = begin(&mut client, id).await;
    (client, session)
}

#[tokio::test]
async fn t53_staged_offsets_are_invisible() {
    let target = Target::shared();
    target.with_topic("t53", 2).await;
    let (mut client, session) = both(&target, "t53", "g53").await;
    let first = group::commit(&mut client, "g53", ("", -1), "t53", &[(0, 5)]);
    first.await.unwrap();
    assert_eq!(add_group(&mut client, "t53", session, "g53", 0).await, 0);
    let request = staging(("t53", session), "g53", NOBODY, "t53", &[(0, 8), (7, 1)], 3);
    assert_eq!(send(&mut client, &request, 3).await, [0, 3]);
    assert_eq!(fetch(&mut client, "g53", "t53").await, [(5, 0), (-1, 88)]);
    // The last one of the transaction counts.
    let request = staging(("t53", session), "g53", NOBODY, "t53", &[(0, 9)], 0);
    assert_eq!(send(&mut client, &request, 0).await, [0]);
    assert_eq!(fetch(&mut client, "g53", "t53").await, [(5, 0), (-1, 88)]);
}

#[tokio::test]
async fn t53_to_t55_they_are_seen_when_the_transaction_commits() {
    let target = Target::shared();
    target.with_topic("t54", 1).await;
    let (mut client, mut session) = both(&target, "t54", "g54").await;
    for (staged, commit, seen) in [(8, false, -1), (8, true, 8), (20, false, 8), (21, true, 21)] {
        let request = staging(("t54", session), "g54", NOBODY, "t54", &[(0, staged)], 5);
        assert_eq!(send(&mut client, &request, 5).await, [0]);
        assert_eq!(fetch(&mut client, "g54", "t54").await[1], (-1, 88));
        let (code, pid, epoch) = end(&mut client, "t54", session, commit, 5).await;
        assert_eq!((code, pid), (0, session.0));
        session = (pid, epoch);
        let state = if commit {
            "CompleteCommit"
        } else {
            "CompleteAbort"
        };
        await_state(&mut client, "t54", state).await;
        assert_eq!(fetch(&mut client, "g54", "t54").await, [(seen, 0); 2]);
    }
    // What was committed behind them wins, whenever they are decided.
    let request = staging(("t54", session), "g54", NOBODY, "t54", &[(0, 30)], 5);
    assert_eq!(send(&mut client, &request, 5).await, [0]);
    let later = group::commit(&mut client, "g54", ("", -1), "t54", &[(0, 9)]);
    later.await.unwrap();
    assert_eq!(end(&mut client, "t54", session, true, 5).await.0, 0);
    await_state(&mut client, "t54", "CompleteCommit").await;
    assert_eq!(fetch(&mut client, "g54", "t54").await, [(9, 0), (9, 0)]);
}

#[tokio::test]
async fn they_outlive_a_kill() {
    let target = Target::start(&[]);
    target.with_topic("t55", 1).await;
    let (mut client, session) = both(&target, "t55", "g55").await;
    let request = staging(("t55", session), "g55", NOBODY, "t55", &[(0, 8)], 5);
    assert_eq!(send(&mut client, &request, 5).await, [0]);
    drop(client);
    target.kill_and_restart();
    groups::connect(&target, "g55").await;
    let mut client = connect(&target, "t55").await;
    let open = describe(&mut client, "t55").await;
    assert_eq!(open.transaction_state.as_str(), "Ongoing");
    assert_eq!(fetch(&mut client, "g55", "t55").await, [(-1, 0), (-1, 88)]);
    assert_eq!(end(&mut client, "t55", session, true, 5).await.0, 0);
    await_state(&mut client, "t55", "CompleteCommit").await;
    assert_eq!(fetch(&mut client, "g55", "t55").await, [(8, 0); 2]);
}

#[tokio::test]
async fn t56_and_t58_members_commit_for_their_generation() {
    let target = Target::shared();
    target.with_topic("t56", 1).await;
    let shape = joining("g56", "");
    let mut one = member(&target, &shape).await;
    let (mut client, session) = both(&target, "t56", "g56").await;
    assert_eq!(add_group(&mut client, "t56", session, "g56", 3).await, 0);
    let id = one.id.clone();
    let now = one.generation;
    let mut stage = async |who: Who<'_>| {
        let request = staging(("t56", session), "g56", who, "t56", &[(0, 8)], 3);
        send(&mut client, &request, 3).await
    };
    // Before the generation is complete.
    assert_eq!(stage((&id, None, now)).await, [0]);
    let plain = group::commit_request("g56", (&id, now), "t56", &[(0, 8)]);
    let plain = one
        .client
        .call(&plain, group::COMMIT_VERSION)
        .await
        .unwrap();
    assert_eq!(plain.topics[0].partitions[0].error_code, 27);
    let synced = one.sync("g56", &[(&id, "a")]).await;
    assert_eq!(synced.error_code, 0);
    for (who, code) in [
        ((&*id, None, now), 0),
        ((&*id, None, now - 1), 22),
        ((&*id, None, now + 1), 22),
        (("nobody", None, now), 25),
        ((&*id, None, -1), 22),
        (("", None, -1), 0),
    ] {
        assert_eq!(stage(who).await, [code], "{who:?}");
    }
}

#[tokio::test]
async fn t56_of_a_static_member() {
    let target = Target::shared();
    target.with_topic("t56-static", 1).await;
    let mut shape = joining("g56-static", "");
    shape.instance = Some("i");
    let mut one = member(&target, &shape).await;
    let id = one.id.clone();
    assert_eq!(one.sync("g56-static", &[(&id, "a")]).await.error_code, 0);
    let (mut client, session) = both(&target, "t56-static", "g56-static").await;
    for (who, code) in [
        ((&*id, Some("i"), one.generation), 0),
        (("nobody", Some("i"), one.generation), 82),
        ((&*id, Some("j"), one.generation), 25),
    ] {
        let of = [(0, 8)];
        let request = staging(
            ("t56-static", session),
            "g56-static",
            who,
            "t56-static",
            &of,
            5,
        );
        assert_eq!(send(&mut client, &request, 5).await, [code], "{who:?}");
    }
}

#[tokio::test]
async fn t59_a_group_that_is_not_there() {
    let target = Target::shared();
    target.with_topic("t59", 1).await;
    let (mut client, session) = both(&target, "t59", "g59").await;
    for (group, who, version, code) in [
        ("g59-a", ("x", None, 3), 3, 22),
        ("g59-a", ("x", None, 3), 5, 22),
        ("g59-b", NOBODY, 3, 0),
        ("g59-c", NOBODY, 5, 0),
        ("", NOBODY, 3, 24),
        ("", NOBODY, 5, 24),
    ] {
        if !group.is_empty() {
            groups::connect(&target, group).await;
            assert_eq!(add_group(&mut client, "t59", session, group, 3).await, 0);
        }
        let request = staging(("t59", session), group, who, "t59", &[(0, 8)], version);
        let codes = send(&mut client, &request, version).await;
        assert_eq!(codes, [code], "{group} v{version}");
    }
}

#[tokio::test]
async fn a_group_of_a_transaction_without_offsets_is_no_group() {
    let target = Target::shared();
    let (mut client, session) = both(&target, "t60", "g60").await;
    for (commit, state) in [(false, "CompleteAbort"), (true, "CompleteCommit")] {
        assert_eq!(add_group(&mut client, "t60", session, "g60", 3).await, 0);
        assert_eq!(end(&mut client, "t60", session, commit, 3).await.0, 0);
        await_state(&mut client, "t60", state).await;
    }
    let request = DescribeGroupsRequest::default().with_groups(vec![group_id("g60")]);
    let answer = client.call(&request, 5).await.unwrap();
    let state = &answer.groups[0];
    assert_eq!((state.error_code, state.group_state.as_str()), (0, "Dead"));
    let request = DeleteGroupsRequest::default().with_groups_names(vec![group_id("g60")]);
    let answer = client.call(&request, 2).await.unwrap();
    assert_eq!(answer.results[0].error_code, 69);
    let listed = client.call(&ListGroupsRequest::default(), 3).await.unwrap();
    let named = listed
        .groups
        .iter()
        .any(|one| one.group_id == group_id("g60"));
    assert!(!named, "{listed:?}");
}

#[tokio::test]
async fn t61_and_t62_the_transaction_is_looked_at_first() {
    // Of its own: Kafka answers by the newest version of what it verifies at the same time.
    let target = Target::start(&[]);
    target.with_topic("t61", 1).await;
    let (mut client, session) = both(&target, "t61", "g61").await;
    let mut stage = async |id: &str, session: Session, v: i16| {
        let request = staging((id, session), "g61", NOBODY, "t61", &[(0, 8)], v);
        send(&mut client, &request, v).await[0]
    };
    let mut outside = Vec::new();
    for version in [4, 3, 2, 1, 0, 3, 4] {
        outside.push(stage("t61", session, version).await);
    }
    assert_eq!(outside, [120, 48, 48, 48, 48, 48, 120]);
    for version in 0..=5 {
        assert_eq!(stage("t61-none", session, version).await, 49, "v{version}");
        let other = (session.0 + 1, session.1);
        assert_eq!(stage("t61", other, version).await, 49, "v{version}");
        let stale = (session.0, session.1 + 1);
        assert_eq!(stage("t61", stale, version).await, 47, "v{version}");
    }
    // The group is added.
    assert_eq!(stage("t61", session, 5).await, 0);
    let open = describe(&mut client, "t61").await;
    assert_eq!(open.transaction_state.as_str(), "Ongoing");
    assert_eq!(partitions_of(&open)[0].0, "__consumer_offsets");
}

#[tokio::test]
async fn long_metadata_fail_their_partition_alone() {
    let target = Target::shared();
    target.with_topic("t63", 2).await;
    let (mut client, session) = both(&target, "t63", "g63").await;
    let mut request = staging(("t63", session), "g63", NOBODY, "t63", &[(0, 8), (1, 8)], 5);
    let long = text(&"x".repeat(4097));
    request.topics[0].partitions[1].committed_metadata = Some(long);
    assert_eq!(send(&mut client, &request, 5).await, [0, 12]);
    assert_eq!(fetch(&mut client, "g63", "t63").await, [(-1, 0), (-1, 88)]);
}

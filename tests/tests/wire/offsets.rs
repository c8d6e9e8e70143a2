//! Offsets of groups: Kafka's codes in Kafka's order, what outlives what, and how writes are
//! shared.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::{
    DeleteTopicsRequest, OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest,
};
use tests::raw::{RawClient, ops};
use tests::wallclock::poll_until;

use crate::fsyncs::counter;
use crate::groups::{connect, delete, group_id, joining, member};
use crate::kit::{Target, differs, on_kafka, text};

const PATIENCE: Duration = Duration::from_mins(1);
const PACE: Duration = Duration::from_millis(20);

/// Who commits: member id and generation.
const NOBODY: (&str, i32) = ("", -1);

/// An OffsetCommit of (topic, partition, offset), metadata `m`, leader epoch 0.
fn committing(
    group: &str,
    who: (&str, i32),
    v: i16,
    of: &[(&str, i32, i64)],
) -> OffsetCommitRequest {
    let topics = of.iter().map(|(topic, partition, offset)| {
        let mut partition = OffsetCommitRequestPartition::default()
            .with_partition_index(*partition)
            .with_committed_offset(*offset)
            .with_committed_metadata(Some(text("m")));
        if v >= 6 {
            partition.committed_leader_epoch = 0;
        }
        OffsetCommitRequestTopic::default()
            .with_name(ops::topic_name(topic))
            .with_partitions(vec![partition])
    });
    let request = OffsetCommitRequest::default()
        .with_group_id(group_id(group))
        .with_member_id(text(who.0))
        .with_generation_id_or_member_epoch(who.1)
        .with_topics(topics.collect());
    if v <= 4 {
        request.with_retention_time_ms(-1)
    } else {
        request
    }
}

/// The codes of a request's partitions, in order.
async fn send(client: &mut RawClient, request: &OffsetCommitRequest, v: i16) -> Vec<i16> {
    let response = client.call(request, v).await.unwrap();
    let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
    partitions.map(|partition| partition.error_code).collect()
}

async fn commit(
    client: &mut RawClient,
    group: &str,
    who: (&str, i32),
    v: i16,
    of: &[(&str, i32, i64)],
) -> Vec<i16> {
    send(client, &committing(group, who, v, of), v).await
}

/// Offset and code of partitions of one topic, by OffsetFetch v5.
async fn fetch(client: &mut RawClient, group: &str, topic: &str, of: &[i32]) -> Vec<(i64, i16)> {
    let topic = OffsetFetchRequestTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partition_indexes(of.to_vec());
    let request = OffsetFetchRequest::default()
        .with_group_id(group_id(group))
        .with_topics(Some(vec![topic]));
    let mut response = client.call(&request, 5).await.unwrap();
    // The file of a group may still be being read after a start.
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..600 {
        if response.error_code != 14 {
            break;
        }
        pace.tick().await;
        response = client.call(&request, 5).await.unwrap();
    }
    assert_eq!(response.error_code, 0);
    let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
    partitions
        .map(|p| (p.committed_offset, p.error_code))
        .collect()
}

async fn delete_offsets(
    client: &mut RawClient,
    group: &str,
    of: &[(&str, i32)],
) -> (i16, BTreeMap<String, i16>) {
    let topics = of.iter().map(|(topic, partition)| {
        let partition = OffsetDeleteRequestPartition::default().with_partition_index(*partition);
        OffsetDeleteRequestTopic::default()
            .with_name(ops::topic_name(topic))
            .with_partitions(vec![partition])
    });
    let request = OffsetDeleteRequest::default()
        .with_group_id(group_id(group))
        .with_topics(topics.collect());
    let response = client.call(&request, 0).await.unwrap();
    let topics = response.topics.iter();
    let codes = topics.map(|topic| (topic.name.to_string(), topic.partitions[0].error_code));
    (response.error_code, codes.collect())
}

#[tokio::test]
async fn g10_a_group_that_is_not_there_takes_offsets_of_nobody_only() {
    let target = Target::shared();
    target.with_topic("offsets-g10", 2).await;
    let mut client = connect(&target, "o10").await;
    let one = [("offsets-g10", 0, 5)];
    assert_eq!(commit(&mut client, "o10", ("x", 3), 8, &one).await, [22]);
    assert_eq!(commit(&mut client, "o10", ("x", 3), 9, &one).await, [69]);
    assert_eq!(
        fetch(&mut client, "o10", "offsets-g10", &[0]).await,
        [(-1, 0)]
    );
    assert_eq!(commit(&mut client, "o10", NOBODY, 8, &one).await, [0]);
    assert_eq!(
        fetch(&mut client, "o10", "offsets-g10", &[0, 1]).await,
        [(5, 0), (-1, 0)]
    );
}

#[tokio::test]
async fn every_version_commits_and_fetches() {
    let target = Target::shared();
    target.with_topic("offsets-versions", 2).await;
    let mut client = connect(&target, "ov").await;
    for v in 2..=9 {
        let of = [
            ("offsets-versions", 0, i64::from(v)),
            ("offsets-versions", 1, 7),
        ];
        assert_eq!(
            commit(&mut client, "ov", NOBODY, v, &of).await,
            [0, 0],
            "v{v}"
        );
        let offsets = fetch(&mut client, "ov", "offsets-versions", &[0]).await;
        assert_eq!(offsets, [(i64::from(v), 0)]);
    }
    for v in 1..=7 {
        let topic = OffsetFetchRequestTopic::default()
            .with_name(ops::topic_name("offsets-versions"))
            .with_partition_indexes(vec![1]);
        let request = OffsetFetchRequest::default()
            .with_group_id(group_id("ov"))
            .with_topics(Some(vec![topic]))
            .with_require_stable(v >= 7);
        let response = client.call(&request, v).await.unwrap();
        let found = &response.topics[0].partitions[0];
        assert_eq!((found.committed_offset, found.error_code), (7, 0), "v{v}");
        assert_eq!(found.metadata, Some(text("m")));
        let epoch = if v >= 5 { 0 } else { -1 };
        assert_eq!(found.committed_leader_epoch, epoch, "v{v}");
        if v >= 2 {
            let all = client.call(&request.with_topics(None), v).await.unwrap();
            assert_eq!(all.topics[0].partitions.len(), 2, "v{v}");
        }
    }
    // Its coordinator may be another.
    drop(connect(&target, "ov-nothing").await);
    for v in 8..=9 {
        let topic = OffsetFetchRequestTopics::default()
            .with_name(ops::topic_name("offsets-versions"))
            .with_partition_indexes(vec![0, 1]);
        let known = OffsetFetchRequestGroup::default()
            .with_group_id(group_id("ov"))
            .with_topics(Some(vec![topic]));
        let all = OffsetFetchRequestGroup::default()
            .with_group_id(group_id("ov-nothing"))
            .with_topics(None);
        let request = OffsetFetchRequest::default()
            .with_topics(Some(Vec::new()))
            .with_groups(vec![known, all])
            .with_require_stable(true);
        let response = client.call(&request, v).await.unwrap();
        let [known, nothing] = &response.groups[..] else {
            panic!("{response:?}");
        };
        assert_eq!((known.error_code, nothing.error_code), (0, 0));
        let found: Vec<i64> = known.topics[0]
            .partitions
            .iter()
            .map(|p| p.committed_offset)
            .collect();
        assert_eq!(found, [9, 7]);
        assert!(nothing.topics.is_empty());
    }
}

#[tokio::test]
async fn partitions_fail_alone_and_before_their_group() {
    let target = Target::shared();
    target.with_topic("offsets-alone", 1).await;
    let mut client = connect(&target, "oa").await;
    let of = [
        ("offsets-alone", 0, 1),
        ("offsets-alone", 1, 1),
        ("offsets-none", 0, 1),
    ];
    for (who, code) in [(NOBODY, 0), (("x", 1), 25)] {
        let request = committing("oa", who, 8, &of);
        let response = client.call(&request, 8).await.unwrap();
        let topics = response.topics.iter();
        // Kafka answers what is not there first.
        let codes: BTreeMap<(&str, i32), i16> = topics
            .flat_map(|topic| topic.partitions.iter().map(|p| (topic.name.as_str(), p)))
            .map(|(topic, p)| ((topic, p.partition_index), p.error_code))
            .collect();
        let expected = [
            (("offsets-alone", 0), code),
            (("offsets-alone", 1), 3),
            (("offsets-none", 0), 3),
        ];
        assert_eq!(codes, BTreeMap::from(expected));
    }
    let mut long = committing("oa", NOBODY, 8, &[("offsets-alone", 0, 2)]);
    long.topics[0].partitions[0].committed_metadata = Some(text(&"x".repeat(4097)));
    assert_eq!(send(&mut client, &long, 8).await, [12]);
    assert_eq!(
        fetch(&mut client, "oa", "offsets-alone", &[0]).await,
        [(1, 0)]
    );
    long.topics[0].partitions[0].committed_metadata = Some(text(&"x".repeat(4096)));
    assert_eq!(send(&mut client, &long, 8).await, [0]);
    assert_eq!(
        fetch(&mut client, "oa", "offsets-alone", &[0]).await,
        [(2, 0)]
    );
}

#[tokio::test]
async fn metadata_is_as_long_as_it_is_in_utf_16() {
    let target = Target::shared();
    target.with_topic("offsets-utf16", 1).await;
    let mut client = connect(&target, "ou").await;
    let with = |metadata: String| {
        let mut request = committing("ou", NOBODY, 8, &[("offsets-utf16", 0, 2)]);
        request.topics[0].partitions[0].committed_metadata = Some(text(&metadata));
        request
    };
    // Three bytes and one unit; four bytes and two units.
    for (letter, most) in [("\u{20ac}", 4_096), ("\u{1f6eb}", 2_048)] {
        let fits = with(letter.repeat(most));
        assert_eq!(send(&mut client, &fits, 8).await, [0], "{letter}");
        let long = with(letter.repeat(most) + "x");
        assert_eq!(send(&mut client, &long, 8).await, [12], "{letter}");
    }
}

#[tokio::test]
async fn what_is_asked_for_twice_is_answered_in_proportion() {
    let target = Target::shared();
    target.with_topic("offsets-twice", 1).await;
    let mut client = connect(&target, "oz").await;
    let one = [("offsets-twice", 0, 5)];
    assert_eq!(commit(&mut client, "oz", NOBODY, 8, &one).await, [0]);
    let partitions = fetch(&mut client, "oz", "offsets-twice", &[0, 0]).await;
    let expected = differs(
        "offset-fetch-partition-twice",
        vec![(5, 0), (5, 0)],
        vec![(5, 0)],
    );
    assert_eq!(partitions, expected);
    let topic = OffsetFetchRequestTopics::default()
        .with_name(ops::topic_name("offsets-twice"))
        .with_partition_indexes(vec![0]);
    let group = OffsetFetchRequestGroup::default()
        .with_group_id(group_id("oz"))
        .with_topics(Some(vec![topic]));
    let request = OffsetFetchRequest::default()
        .with_topics(Some(Vec::new()))
        .with_groups(vec![group.clone(), group]);
    let answer = client.call(&request, 8).await.unwrap();
    let codes: Vec<i16> = answer.groups.iter().map(|group| group.error_code).collect();
    let expected = differs("offset-fetch-group-twice", [0, 0], [0, 42]);
    assert_eq!(codes, expected);
}

#[tokio::test]
async fn a_group_without_a_name_is_refused() {
    let target = Target::shared();
    target.with_topic("offsets-nameless", 1).await;
    let mut client = connect(&target, "on").await;
    let of = [("offsets-nameless", 0)];
    assert_eq!(
        delete_offsets(&mut client, "", &of).await,
        (24, BTreeMap::new())
    );
}

#[tokio::test]
async fn a_member_is_a_stranger_after_kill_9_also_before_its_first_commit() {
    let target = Target::start(&[]);
    target.with_topic("offsets-first", 1).await;
    let mut member = member(&target, &joining("of", "")).await;
    let id = member.id.clone();
    assert_eq!(member.sync("of", &[(&id, "a")]).await.error_code, 0);
    if !on_kafka() {
        let written = || counter(&target, "fencepost_offset_writes_total") >= 1;
        assert!(poll_until(PATIENCE, PACE, written), "the group is written");
    }
    target.kill_and_restart();
    let mut client = connect(&target, "of").await;
    let who = (id.as_str(), member.generation);
    for v in [8, 9] {
        let of = [("offsets-first", 0, 5)];
        // Until the file of the group is read.
        let mut codes = vec![14];
        let mut pace = tokio::time::interval(Duration::from_millis(100));
        for _ in 0..600 {
            pace.tick().await;
            codes = commit(&mut client, "of", who, v, &of).await;
            if codes != [14] {
                break;
            }
        }
        assert_eq!(codes, [differs("membership-in-memory", 0, 25)], "v{v}");
    }
}

#[tokio::test]
async fn g07_members_commit_in_their_generation() {
    let target = Target::shared();
    target.with_topic("offsets-g07", 1).await;
    let mut member = member(&target, &joining("o07", "")).await;
    let of = [("offsets-g07", 0, 5)];
    let (id, generation) = (member.id.clone(), member.generation);
    let who = (id.as_str(), generation);
    let client = &mut member.client;
    // Before the leader has assigned.
    assert_eq!(commit(client, "o07", who, 8, &of).await, [27]);
    assert_eq!(
        commit(client, "o07", (&id, generation + 1), 8, &of).await,
        [22]
    );
    assert_eq!(member.sync("o07", &[(&id, "a")]).await.error_code, 0);
    let client = &mut member.client;
    assert_eq!(commit(client, "o07", who, 8, &of).await, [0]);
    assert_eq!(
        commit(client, "o07", (&id, generation - 1), 8, &of).await,
        [22]
    );
    assert_eq!(commit(client, "o07", ("x", generation), 8, &of).await, [25]);
    assert_eq!(commit(client, "o07", NOBODY, 8, &of).await, [25]);
    assert_eq!(fetch(client, "o07", "offsets-g07", &[0]).await, [(5, 0)]);
}

#[tokio::test]
async fn g11_offsets_of_subscribed_topics_stay() {
    let target = Target::shared();
    // The topic that the members of this suite subscribe to.
    let mut client = target.connect().await;
    let made = ops::create_topic(&mut client, "t", 1, &[]).await;
    drop(made);
    target.with_topic("offsets-g11", 1).await;
    let mut member = member(&target, &joining("o11", "")).await;
    let id = member.id.clone();
    assert_eq!(member.sync("o11", &[(&id, "a")]).await.error_code, 0);
    let who = (id.as_str(), member.generation);
    let client = &mut member.client;
    let of = [("t", 0, 5), ("offsets-g11", 0, 5)];
    assert_eq!(commit(client, "o11", who, 8, &of).await, [0, 0]);
    let both = [("t", 0), ("offsets-g11", 0), ("offsets-none", 0)];
    let (code, codes) = delete_offsets(client, "o11", &both).await;
    assert_eq!((code, codes["t"], codes["offsets-g11"]), (0, 86, 0));
    assert_eq!(codes["offsets-none"], 3);
    assert_eq!(fetch(client, "o11", "t", &[0]).await, [(5, 0)]);
    assert_eq!(fetch(client, "o11", "offsets-g11", &[0]).await, [(-1, 0)]);
    assert_eq!(delete(client, "o11").await, 68);
    drop(connect(&target, "o11-missing").await);
    let missing = delete_offsets(client, "o11-missing", &[("t", 0)]).await;
    assert_eq!(missing, (69, BTreeMap::new()));
}

#[tokio::test]
async fn a_deleted_group_has_no_offsets() {
    let target = Target::shared();
    target.with_topic("offsets-deleted", 1).await;
    let mut client = connect(&target, "od").await;
    let of = [("offsets-deleted", 0, 5)];
    assert_eq!(commit(&mut client, "od", NOBODY, 8, &of).await, [0]);
    assert_eq!(delete(&mut client, "od").await, 0);
    assert_eq!(delete(&mut client, "od").await, 69);
    assert_eq!(
        fetch(&mut client, "od", "offsets-deleted", &[0]).await,
        [(-1, 0)]
    );
    assert_eq!(commit(&mut client, "od", NOBODY, 8, &of).await, [0]);
    assert_eq!(
        fetch(&mut client, "od", "offsets-deleted", &[0]).await,
        [(5, 0)]
    );
}

#[tokio::test]
async fn a_recreated_topic_inherits_nothing() {
    let target = Target::shared();
    target.with_topic("offsets-again", 1).await;
    let mut client = connect(&target, "oi").await;
    let of = [("offsets-again", 0, 5)];
    assert_eq!(commit(&mut client, "oi", NOBODY, 8, &of).await, [0]);
    let request = DeleteTopicsRequest::default()
        .with_topic_names(vec![ops::topic_name("offsets-again")])
        .with_timeout_ms(30_000);
    let response = client.call(&request, 5).await.unwrap();
    assert_eq!(response.responses[0].error_code, 0);
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    // Kafka drops them behind its answer.
    for _ in 0..600 {
        pace.tick().await;
        if fetch(&mut client, "oi", "offsets-again", &[0]).await == [(-1, 0)] {
            break;
        }
    }
    while ops::create_topic(&mut client, "offsets-again", 1, &[])
        .await
        .is_err()
    {
        pace.tick().await;
    }
    assert_eq!(
        fetch(&mut client, "oi", "offsets-again", &[0]).await,
        [(-1, 0)]
    );
}

#[tokio::test]
async fn acknowledged_commits_outlive_kill_9() {
    let target = Target::start(&[]);
    target.with_topic("offsets-killed", 4).await;
    let rounds = if on_kafka() { 1 } else { 4 };
    for round in 1..=rounds {
        let mut waiting = Vec::new();
        for n in 0..8 {
            let group = format!("ok{n}");
            let mut client = connect(&target, &group).await;
            waiting.push(async move {
                let mut last = 0;
                for offset in round * 100..round * 100 + 10 {
                    let of = [("offsets-killed", n % 4, offset)];
                    assert_eq!(commit(&mut client, &group, NOBODY, 8, &of).await, [0]);
                    last = offset;
                }
                last
            });
        }
        let last = futures_util::future::join_all(waiting).await;
        target.kill_and_restart();
        for (n, last) in (0..8).zip(last) {
            let group = format!("ok{n}");
            let mut client = connect(&target, &group).await;
            let found = fetch(&mut client, &group, "offsets-killed", &[n % 4]).await;
            assert_eq!(found, [(last, 0)], "{group}");
        }
    }
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn commits_of_one_group_are_written() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    target.with_topic("offsets-shared", 1).await;
    let writes = || counter(&target, "fencepost_offset_writes_total");
    let mut client = connect(&target, "os").await;
    let before = writes();
    for offset in 0..20 {
        let of = [("offsets-shared", 0, offset)];
        assert_eq!(commit(&mut client, "os", NOBODY, 8, &of).await, [0]);
    }
    assert_eq!(writes() - before, 20, "each alone is written alone");
    let mut clients = Vec::new();
    for _ in 0..64 {
        clients.push(target.connect().await);
    }
    let before = writes();
    let running = clients.into_iter().map(|mut client| async move {
        for offset in 0..20 {
            let of = [("offsets-shared", 0, offset)];
            assert_eq!(commit(&mut client, "os", NOBODY, 8, &of).await, [0]);
        }
    });
    futures_util::future::join_all(running).await;
    let shared = writes() - before;
    // How many share one is a matter of the disk; tests/delays.rs has one that can be held.
    assert!(shared > 0, "acknowledged without a write");
}

//! Fetch and ListOffsets.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::{BrokerId, FetchRequest, FetchResponse, ListOffsetsRequest};
use tests::raw::batch::Record;
use tests::raw::{RawClient, decode_response, encode_request, ops};
use uuid::Uuid;

use crate::idempotence::topic_id;
use crate::kit::{P, Target, differs, on_kafka, plain, produce};

const VERSION: i16 = 12;

/// A full Fetch without session that does not wait: partitions with their offsets.
pub(crate) fn fetch_request(topic: &str, partitions: &[(i32, i64)]) -> FetchRequest {
    let wanted = partitions.iter().map(|(partition, offset)| {
        FetchPartition::default()
            .with_partition(*partition)
            .with_current_leader_epoch(-1)
            .with_fetch_offset(*offset)
            .with_last_fetched_epoch(-1)
            .with_log_start_offset(-1)
            .with_partition_max_bytes(1 << 20)
    });
    let topic = FetchTopic::default()
        .with_topic(ops::topic_name(topic))
        .with_partitions(wanted.collect());
    FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(0)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_session_id(0)
        .with_session_epoch(-1)
        .with_topics(vec![topic])
}

/// Every partition's answer, in order.
pub(crate) fn partitions(response: &FetchResponse) -> Vec<PartitionData> {
    let topics = response.responses.iter();
    topics.flat_map(|topic| topic.partitions.clone()).collect()
}

/// Bytes of the records; null counts as none.
pub(crate) fn records(partition: &PartitionData) -> Bytes {
    partition.records.clone().unwrap_or_default()
}

/// The stored bytes of partition 0 from `offset` on.
pub(crate) async fn fetch_batch(client: &mut RawClient, topic: &str, offset: i64) -> Bytes {
    let request = fetch_request(topic, &[(0, offset)]);
    let response = client.call(&request, VERSION).await.unwrap();
    let answer = &partitions(&response)[0];
    assert_eq!(answer.error_code, 0);
    records(answer)
}

/// A topic with ten records in partition 0, in batches of three, three and four.
async fn ten(target: &Target, topic: &str) -> RawClient {
    let mut client = target.with_topic(topic, 2).await;
    for (sequence, count) in [(0, 3), (3, 3), (6, 4)] {
        let (code, _) = produce(&mut client, topic, P(7, 0, sequence, count).batch()).await;
        assert_eq!(code, 0);
    }
    client
}

#[tokio::test]
async fn what_was_sent_comes_back_byte_for_byte() {
    let target = Target::shared();
    let mut client = ten(&target, "bytes").await;
    let all = fetch_batch(&mut client, "bytes", 0).await;
    let mut rest = &all[..];
    for (base, producer) in [
        (0_i64, P(7, 0, 0, 3)),
        (3, P(7, 0, 3, 3)),
        (6, P(7, 0, 6, 4)),
    ] {
        let sent = producer.batch();
        let (stored, behind) = rest.split_at(sent.len());
        assert_eq!(stored[..8], base.to_be_bytes());
        // Offset and leader epoch lie outside the CRC and are the log's.
        assert_eq!(stored[8..12], sent[8..12]);
        assert_eq!(stored[16..], sent[16..]);
        rest = behind;
    }
    assert!(rest.is_empty());
    // The batch that holds the offset, whole.
    let from_4 = fetch_batch(&mut client, "bytes", 4).await;
    assert_eq!(from_4[..8], 3_i64.to_be_bytes());
    assert_eq!(from_4[..], all[P(7, 0, 0, 3).batch().len()..]);
}

#[tokio::test]
async fn r10_offsets_out_of_range() {
    let target = Target::shared();
    let mut client = ten(&target, "range").await;
    for offset in [11, 1_000_000, i64::MAX, -1, -5] {
        let request = fetch_request("range", &[(0, offset)]);
        let response = client.call(&request, VERSION).await.unwrap();
        let answer = &partitions(&response)[0];
        assert_eq!(answer.error_code, 1, "{offset}");
        let bounds = (
            answer.high_watermark,
            answer.last_stable_offset,
            answer.log_start_offset,
        );
        assert_eq!(bounds, (-1, -1, -1), "{offset}");
        assert!(records(answer).is_empty());
    }
    let request = fetch_request("range", &[(0, 10)]).with_max_wait_ms(100);
    let response = client.call(&request, VERSION).await.unwrap();
    let answer = &partitions(&response)[0];
    assert_eq!((answer.error_code, answer.high_watermark), (0, 10));
    assert_eq!(
        (answer.last_stable_offset, answer.log_start_offset),
        (10, 0)
    );
    assert!(records(answer).is_empty());
}

#[tokio::test]
async fn unknown_topics_and_partitions() {
    let target = Target::shared();
    let mut client = target.with_topic("known", 1).await;
    let code = |response: &FetchResponse| partitions(response)[0].error_code;
    for (topic, partition) in [("known", 1), ("known", -1), ("no-such-topic", 0)] {
        let request = fetch_request(topic, &[(partition, 0)]);
        let response = client.call(&request, VERSION).await.unwrap();
        assert_eq!(code(&response), 3, "{topic} {partition}");
    }
    let by_id = |id: Uuid| {
        let mut request = fetch_request("", &[(0, 0)]);
        request.topics[0].topic_id = id;
        request
    };
    let unknown = client
        .call(&by_id(Uuid::from_u128(0x77)), 13)
        .await
        .unwrap();
    assert_eq!(code(&unknown), 100);
    let id = topic_id(&mut client, "known").await;
    let known = client.call(&by_id(id), 16).await.unwrap();
    assert_eq!(code(&known), 0);
    assert_eq!(known.responses[0].topic_id, id);
}

#[tokio::test]
async fn isolation_decides_what_is_said_of_aborted_transactions() {
    let target = Target::shared();
    let mut client = ten(&target, "isolation").await;
    for (level, aborted) in [(0, None), (1, Some(vec![]))] {
        let request = fetch_request("isolation", &[(0, 0)]).with_isolation_level(level);
        let response = client.call(&request, VERSION).await.unwrap();
        let answer = &partitions(&response)[0];
        assert_eq!(answer.aborted_transactions, aborted, "level {level}");
        assert_eq!((answer.high_watermark, answer.last_stable_offset), (10, 10));
        assert!(!records(answer).is_empty());
    }
}

#[tokio::test]
async fn r12_a_long_poll_ends_with_the_data_it_waits_for() {
    let target = Target::shared();
    let mut reader = ten(&target, "poll").await;
    let mut writer = target.connect().await;
    for level in [0, 1] {
        let end = 10 + i64::from(level);
        let request = fetch_request("poll", &[(1, 0), (0, end)])
            .with_isolation_level(level)
            .with_max_wait_ms(25_000);
        reader.send(&request, VERSION).await.unwrap();
        // Nothing comes before there is something.
        assert!(reader.is_silent_for(Duration::from_millis(200)).await);
        assert_eq!(
            produce(&mut writer, "poll", plain(1)).await,
            (0, end),
            "level {level}"
        );
        let (_, response) = reader.receive::<FetchRequest>(VERSION).await.unwrap();
        let answers = partitions(&response);
        let with_data = answers.iter().find(|p| p.partition_index == 0).unwrap();
        assert_eq!(records(with_data)[..8], end.to_be_bytes());
        assert_eq!(with_data.high_watermark, end + 1);
    }
}

#[tokio::test]
async fn a_long_poll_is_not_held_by_an_error() {
    let target = Target::shared();
    let mut client = ten(&target, "poll-error").await;
    let request = fetch_request("poll-error", &[(0, 10), (1, 7)]).with_max_wait_ms(600_000);
    let response = client.call(&request, VERSION).await.unwrap();
    let mut codes: Vec<i16> = partitions(&response).iter().map(|p| p.error_code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 1]);
    // Nor by having nothing to wait for.
    let nothing = request.with_topics(Vec::new());
    let response = client.call(&nothing, VERSION).await.unwrap();
    assert!(response.responses.is_empty());
    assert!(ops::api_versions(&mut client).await.is_ok());
}

#[tokio::test]
async fn r13_the_first_batch_is_returned_above_every_limit() {
    let target = Target::shared();
    let mut client = target.with_topic("large", 2).await;
    let mut spec = P(-1, -1, -1, 0).spec();
    spec.records = vec![Record::value(vec![b'x'; 1_000_000])];
    let batch = spec.build();
    for partition in [0, 1] {
        let sent = ops::produce(&mut client, "large", partition, batch.clone());
        assert_eq!(sent.await.unwrap().error_code, 0);
    }
    for (max_bytes, partition_max) in [(50 << 20, 1024), (1024, 1 << 20), (0, 0), (1, 1)] {
        let mut request = fetch_request("large", &[(0, 0), (1, 0)]).with_max_bytes(max_bytes);
        for partition in &mut request.topics[0].partitions {
            partition.partition_max_bytes = partition_max;
        }
        let response = client.call(&request, VERSION).await.unwrap();
        let lengths: Vec<usize> = partitions(&response)
            .iter()
            .map(|p| records(p).len())
            .collect();
        assert_eq!(lengths, [batch.len(), 0], "{max_bytes} {partition_max}");
    }
    // Room for both.
    let request = fetch_request("large", &[(0, 0), (1, 0)]);
    let response = client.call(&request, VERSION).await.unwrap();
    assert!(
        partitions(&response)
            .iter()
            .all(|p| records(p).len() == batch.len())
    );
}

/// Leader epoch of partition 0.
pub(crate) async fn leader_epoch(client: &mut RawClient, topic: &str) -> i32 {
    let metadata = ops::metadata(client, topic).await.unwrap();
    metadata.topics[0].partitions[0].leader_epoch
}

/// Code of a Fetch and of a ListOffsets that claim to know `epoch`.
pub(crate) async fn with_epoch(client: &mut RawClient, topic: &str, epoch: i32) -> (i16, i16) {
    let mut request = fetch_request(topic, &[(0, 0)]);
    request.topics[0].partitions[0].current_leader_epoch = epoch;
    let fetched = client.call(&request, VERSION).await.unwrap();
    let mut request = list_request(topic, &[(0, ops::LATEST)]);
    request.topics[0].partitions[0].current_leader_epoch = epoch;
    let listed = client.call(&request, 7).await.unwrap();
    (
        partitions(&fetched)[0].error_code,
        listed.topics[0].partitions[0].error_code,
    )
}

#[tokio::test]
async fn r15_leader_epochs() {
    let target = Target::shared();
    let mut client = ten(&target, "epochs-r15").await;
    let epoch = leader_epoch(&mut client, "epochs-r15").await;
    assert!(epoch >= 0);
    assert_eq!(with_epoch(&mut client, "epochs-r15", epoch).await, (0, 0));
    assert_eq!(
        with_epoch(&mut client, "epochs-r15", epoch + 1).await,
        (75, 75)
    );
    assert_eq!(with_epoch(&mut client, "epochs-r15", -1).await, (0, 0));
    // To Fetch any negative one is none.
    assert_eq!(with_epoch(&mut client, "epochs-r15", -2).await, (0, 74));
    // Batches say under which epoch they were written.
    let stored = fetch_batch(&mut client, "epochs-r15", 0).await;
    assert_eq!(stored[12..16], epoch.to_be_bytes());
}

/// KIP-951: who is behind hears at once whom to ask, and under which epoch.
#[tokio::test]
async fn r15_the_leader_is_named_to_who_knows_an_older_one() {
    if !on_kafka() {
        // Ours grows only with another owner (docs/decisions/0014): unit tests have it.
        return;
    }
    let target = Target::start(&[]);
    target.with_topic("led", 2).await;
    target.kill_and_restart();
    let mut client = target.connect().await;
    ops::await_topic(&mut client, "led", 2).await.unwrap();
    let epoch = leader_epoch(&mut client, "led").await;
    assert!(epoch > 0);
    let metadata = ops::metadata(&mut client, "led").await.unwrap();
    let broker = &metadata.brokers[0];
    let id = topic_id(&mut client, "led").await;
    for version in [12, 15, 16, 17] {
        let mut request = fetch_request("led", &[(0, 0), (1, 0)]);
        request.topics[0].topic_id = id;
        request.topics[0].partitions[0].current_leader_epoch = epoch - 1;
        let response = client.call(&request, version).await.unwrap();
        let mut answers: Vec<(i32, i16, i32, i32)> = Vec::new();
        for partition in partitions(&response) {
            let leader = &partition.current_leader;
            let leader = (leader.leader_id.0, leader.leader_epoch);
            answers.push((
                partition.partition_index,
                partition.error_code,
                leader.0,
                leader.1,
            ));
        }
        answers.sort_unstable();
        let nodes = response.node_endpoints.iter();
        let nodes: Vec<_> = nodes
            .map(|node| (node.node_id, node.host.clone(), node.port))
            .collect();
        if version < 16 {
            assert_eq!(answers, [(0, 74, -1, -1), (1, 0, -1, -1)], "v{version}");
            assert!(nodes.is_empty(), "v{version}");
        } else {
            let named = (0, 74, broker.node_id.0, epoch);
            assert_eq!(answers, [named, (1, 0, -1, -1)], "v{version}");
            let known = (broker.node_id, broker.host.clone(), broker.port);
            assert_eq!(nodes, [known], "v{version}");
        }
    }
}

pub(crate) fn list_request(topic: &str, wanted: &[(i32, i64)]) -> ListOffsetsRequest {
    let wanted = wanted.iter().map(|(partition, timestamp)| {
        ListOffsetsPartition::default()
            .with_partition_index(*partition)
            .with_current_leader_epoch(-1)
            .with_timestamp(*timestamp)
    });
    let topic = ListOffsetsTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partitions(wanted.collect());
    ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_topics(vec![topic])
}

#[tokio::test]
async fn r07_r09_offsets_by_timestamp() {
    let target = Target::shared();
    let mut client = target.with_topic("times", 1).await;
    let stamp = P(7, 0, 0, 1).spec().timestamp_ms;
    for (sequence, late) in [(0, 0), (1, 1000), (2, 500)] {
        let mut spec = P(7, 0, sequence, 1).spec();
        spec.timestamp_ms += late;
        let sent = produce(&mut client, "times", spec.build()).await;
        assert_eq!(sent, (0, i64::from(sequence)));
    }
    // Version, timestamp asked for; code, offset, timestamp.
    for (version, asked, code, offset, timestamp) in [
        (1, -1, 0, 3, -1),
        (10, -1, 0, 3, -1),
        (1, -2, 0, 0, -1),
        (7, -3, 0, 1, stamp + 1000),
        (6, -3, 35, -1, -1),
        (8, -4, 0, 0, -1),
        (7, -4, 35, -1, -1),
        (9, -5, 0, -1, -1),
        (8, -5, 35, -1, -1),
        (10, -6, 35, -1, -1),
        (10, -9, 35, -1, -1),
        (7, 0, 0, 0, stamp),
        (7, stamp, 0, 0, stamp),
        (7, stamp + 1, 0, 1, stamp + 1000),
        (7, stamp + 1001, 0, -1, -1),
    ] {
        let request = list_request("times", &[(0, asked)]);
        let response = client.call(&request, version).await.unwrap();
        let got = &response.topics[0].partitions[0];
        assert_eq!(
            (got.error_code, got.offset, got.timestamp),
            (code, offset, timestamp),
            "v{version} {asked}"
        );
    }
    for isolation in [0, 1] {
        let request = list_request("times", &[(0, -1)]).with_isolation_level(isolation);
        let response = client.call(&request, 7).await.unwrap();
        assert_eq!(response.topics[0].partitions[0].offset, 3);
    }
}

#[tokio::test]
async fn r07_r10_of_a_log_that_begins_later() {
    let target = Target::shared();
    let mut client = ten(&target, "later").await;
    let deleted = crate::trimming::delete(&mut client, 2, "later", &[(0, 3)]).await;
    assert_eq!(deleted, [(0, 0, 3)]);
    for (version, asked, offset) in [
        (1, -2, 3),
        (10, -2, 3),
        (8, -4, 3),
        (10, -4, 3),
        (9, -5, -1),
        (10, -1, 10),
    ] {
        let request = list_request("later", &[(0, asked)]);
        let response = client.call(&request, version).await.unwrap();
        let got = &response.topics[0].partitions[0];
        assert_eq!(
            (got.error_code, got.offset),
            (0, offset),
            "v{version} {asked}"
        );
    }
    for (offset, code) in [(2, 1), (0, 1), (3, 0)] {
        let request = fetch_request("later", &[(0, offset)]);
        let response = client.call(&request, VERSION).await.unwrap();
        assert_eq!(partitions(&response)[0].error_code, code, "{offset}");
    }
    // Version 11 is written like 10, and knows what is stored elsewhere and waits to be.
    let request = list_request("later", &[(0, -6)]);
    let mut frame = encode_request(&request, 10, 7).unwrap().to_vec();
    frame[6..8].copy_from_slice(&11_i16.to_be_bytes());
    let mut other = target.connect().await;
    other.send_bytes(&frame).await.unwrap();
    let answer = other.receive_frame().await.unwrap().map(|frame| {
        let (_, answer) = decode_response::<ListOffsetsRequest>(frame, 10).unwrap();
        let got = &answer.topics[0].partitions[0];
        (got.error_code, got.offset)
    });
    assert_eq!(answer, differs("newer-schemas", Some((0, -1)), None));
}

#[tokio::test]
async fn r09_a_partition_asked_for_twice() {
    let target = Target::shared();
    let mut client = target.with_topic("list-twice", 2).await;
    let request = list_request("list-twice", &[(0, -1), (1, -1), (0, -2)]);
    let response = client.call(&request, 7).await.unwrap();
    let mut codes: Vec<(i32, i16)> = response
        .topics
        .iter()
        .flat_map(|topic| &topic.partitions)
        .map(|p| (p.partition_index, p.error_code))
        .collect();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes, [(0, 42), (1, 0)]);
    let request = list_request("list-twice", &[(2, -1)]);
    let response = client.call(&request, 7).await.unwrap();
    assert_eq!(response.topics[0].partitions[0].error_code, 3);
}

#[tokio::test]
async fn negative_byte_limits() {
    let target = Target::shared();
    let mut client = ten(&target, "negative-limits").await;
    let mut partition = fetch_request("negative-limits", &[(0, 0)]);
    partition.topics[0].partitions[0].partition_max_bytes = -1;
    let whole = fetch_request("negative-limits", &[(0, 0)]).with_max_bytes(-1);
    for request in [partition, whole] {
        let response = client.call(&request, VERSION).await.unwrap();
        let code = partitions(&response)[0].error_code;
        assert_eq!(code, differs("negative-byte-limits", -1, 0));
    }
}

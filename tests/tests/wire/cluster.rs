//! ElectLeaders, partition reassignments, UpdateFeatures, DescribeProducers, leader epochs.

use kafka_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::describe_producers_response::PartitionResponse;
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::list_partition_reassignments_request as reassignments;
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, BrokerId, DescribeProducersRequest, ElectLeadersRequest,
    FetchRequest, ListPartitionReassignmentsRequest, OffsetForLeaderEpochRequest,
    UpdateFeaturesRequest,
};
use tests::raw::{RawClient, ops};

use crate::kit::{P, Target, plain, produce, text};

#[tokio::test]
async fn no_election_is_needed() {
    let target = Target::shared();
    let mut client = target.with_topic("elect", 1).await;
    for version in 0..=2 {
        let topics = [("elect", vec![0, 7]), ("elect-none", vec![0])];
        let topics = topics.map(|(name, partitions)| {
            TopicPartitions::default()
                .with_topic(ops::topic_name(name))
                .with_partitions(partitions)
        });
        let request = ElectLeadersRequest::default()
            .with_topic_partitions(Some(topics.into()))
            .with_timeout_ms(30_000);
        let response = client.call(&request, version).await.unwrap();
        assert_eq!(response.error_code, 0, "v{version}");
        let results = response.replica_election_results.iter();
        let mut codes: Vec<_> = results
            .flat_map(|topic| topic.partition_result.iter().map(|p| (&*topic.topic, p)))
            .map(|(topic, p)| (topic.to_string(), p.partition_id, p.error_code))
            .collect();
        codes.sort_unstable();
        let expected = [("elect", 0, 84), ("elect", 7, 3), ("elect-none", 0, 3)];
        assert_eq!(
            codes,
            expected.map(|(name, index, code)| (name.to_owned(), index, code))
        );
    }
}

async fn reassign(
    client: &mut RawClient,
    topic: &str,
    partition: i32,
    replicas: Option<&[i32]>,
) -> i16 {
    let replicas = replicas.map(|ids| ids.iter().map(|id| BrokerId(*id)).collect());
    let partition = ReassignablePartition::default()
        .with_partition_index(partition)
        .with_replicas(replicas);
    let topic = ReassignableTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partitions(vec![partition]);
    let request = AlterPartitionReassignmentsRequest::default()
        .with_timeout_ms(30_000)
        .with_topics(vec![topic]);
    let response = client.call(&request, 0).await.unwrap();
    assert_eq!(response.error_code, 0);
    response.responses[0].partitions[0].error_code
}

#[tokio::test]
async fn partitions_stay_where_they_are() {
    let target = Target::shared();
    let mut client = target.with_topic("reassign", 1).await;
    let metadata = ops::metadata(&mut client, "reassign").await.unwrap();
    let here = metadata.brokers[0].node_id.0;
    let elsewhere = here + 1;
    for (topic, partition, replicas, code) in [
        ("reassign", 0, Some(&[here][..]), 0),
        ("reassign", 0, Some(&[elsewhere]), 39),
        ("reassign", 0, Some(&[]), 39),
        ("reassign", 0, Some(&[here, here]), 39),
        ("reassign", 0, None, 85),
        ("reassign", 7, Some(&[here]), 3),
        ("reassign-none", 0, Some(&[here]), 3),
    ] {
        let answer = reassign(&mut client, topic, partition, replicas).await;
        assert_eq!(answer, code, "{topic}-{partition} to {replicas:?}");
    }
    let one = reassignments::ListPartitionReassignmentsTopics::default()
        .with_name(ops::topic_name("reassign"))
        .with_partition_indexes(vec![0]);
    for topics in [None, Some(vec![one])] {
        let request = ListPartitionReassignmentsRequest::default()
            .with_timeout_ms(30_000)
            .with_topics(topics);
        let response = client.call(&request, 0).await.unwrap();
        assert_eq!((response.error_code, response.topics.len()), (0, 0));
    }
}

#[tokio::test]
async fn unknown_features_are_refused() {
    let target = Target::shared();
    let mut client = target.connect().await;
    for version in 0..=2 {
        let mut update = FeatureUpdateKey::default();
        update.feature = text("no.such.version");
        update.max_version_level = 1;
        let request = UpdateFeaturesRequest::default()
            .with_timeout_ms(30_000)
            .with_feature_updates(vec![update]);
        let response = client.call(&request, version).await.unwrap();
        assert_eq!(response.error_code, 95, "v{version}");
        assert!(response.error_message.is_some() && response.results.is_empty());
    }
}

async fn producers(client: &mut RawClient, topic: &str, index: i32) -> PartitionResponse {
    let asked = TopicRequest::default()
        .with_name(ops::topic_name(topic))
        .with_partition_indexes(vec![index]);
    let request = DescribeProducersRequest::default().with_topics(vec![asked]);
    let response = client.call(&request, 0).await.unwrap();
    response.topics[0].partitions[0].clone()
}

#[tokio::test]
async fn producers_are_described() {
    let target = Target::shared();
    let mut client = target.with_topic("who", 1).await;
    let (id, epoch) = ops::init_producer_id(&mut client).await.unwrap();
    assert!(
        producers(&mut client, "who", 0)
            .await
            .active_producers
            .is_empty()
    );
    let spec = P(id, epoch, 0, 3).spec();
    assert_eq!(produce(&mut client, "who", spec.build()).await.0, 0);
    let described = producers(&mut client, "who", 0).await;
    assert_eq!((described.error_code, described.error_message), (0, None));
    assert_eq!(described.active_producers.len(), 1);
    let producer = &described.active_producers[0];
    assert_eq!(producer.producer_id.0, id);
    assert_eq!(producer.producer_epoch, i32::from(epoch));
    assert_eq!(producer.last_sequence, 2);
    assert_eq!(producer.last_timestamp, spec.timestamp_ms);
    assert_eq!(producer.coordinator_epoch, -1);
    assert_eq!(producer.current_txn_start_offset, -1);
    for (topic, index, code) in [("who", 7, 3), ("who-none", 0, 3), ("who/else", 0, 17)] {
        let answer = producers(&mut client, topic, index).await;
        assert_eq!(answer.error_code, code, "{topic}-{index}");
        assert!(answer.active_producers.is_empty());
    }
}

/// Code, epoch and end of an epoch.
async fn epoch_end(
    client: &mut RawClient,
    version: i16,
    topic: &str,
    current: i32,
    epoch: i32,
) -> (i16, i32, i64) {
    let partition = OffsetForLeaderPartition::default()
        .with_partition(0)
        .with_current_leader_epoch(current)
        .with_leader_epoch(epoch);
    let topic = OffsetForLeaderTopic::default()
        .with_topic(ops::topic_name(topic))
        .with_partitions(vec![partition]);
    let mut request = OffsetForLeaderEpochRequest::default().with_topics(vec![topic]);
    if version >= 3 {
        // A consumer.
        request.replica_id = BrokerId(-1);
    }
    let response = client.call(&request, version).await.unwrap();
    let end = &response.topics[0].partitions[0];
    (end.error_code, end.leader_epoch, end.end_offset)
}

#[tokio::test]
async fn leader_epochs_have_an_end() {
    let target = Target::shared();
    let mut client = target.with_topic("epochs", 1).await;
    assert_eq!(produce(&mut client, "epochs", plain(3)).await, (0, 0));
    for version in 2..=4 {
        for (topic, current, epoch, expected) in [
            ("epochs", -1, 0, (0, 0, 3)),
            ("epochs", 0, 0, (0, 0, 3)),
            ("epochs", -1, 5, (0, -1, -1)),
            ("epochs", -1, -1, (0, -1, -1)),
            ("epochs", 1, 0, (75, -1, -1)),
            ("epochs-none", -1, 0, (3, -1, -1)),
        ] {
            let end = epoch_end(&mut client, version, topic, current, epoch).await;
            assert_eq!(end, expected, "v{version} {topic}: {epoch} at {current}");
        }
    }
}

/// What a reader is told who has read up to an offset, the last of it in an epoch.
async fn after(client: &mut RawClient, topic: &str, offset: i64, epoch: i32) -> PartitionData {
    let partition = FetchPartition::default()
        .with_partition(0)
        .with_fetch_offset(offset)
        .with_last_fetched_epoch(epoch)
        .with_partition_max_bytes(1 << 20);
    let topic = FetchTopic::default()
        .with_topic(ops::topic_name(topic))
        .with_partitions(vec![partition]);
    let request = FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_bytes(1 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![topic]);
    let response = client.call(&request, 12).await.unwrap();
    response.responses[0].partitions[0].clone()
}

#[tokio::test]
async fn r16_a_reader_whose_log_parted_is_told_where() {
    let target = Target::shared();
    let mut client = target.with_topic("parted", 1).await;
    assert_eq!(produce(&mut client, "parted", plain(3)).await, (0, 0));
    for (offset, last_epoch, code, diverging) in [
        (0, 0, 0, (-1, -1)),
        (3, 0, 0, (-1, -1)),
        (5, 0, 0, (0, 3)),
        (1, 5, 1, (-1, -1)),
        (1, -1, 0, (-1, -1)),
    ] {
        let answer = after(&mut client, "parted", offset, last_epoch).await;
        let parted = &answer.diverging_epoch;
        assert_eq!(answer.error_code, code, "{offset} after epoch {last_epoch}");
        assert_eq!(
            (parted.epoch, parted.end_offset),
            diverging,
            "{offset} after {last_epoch}"
        );
        let empty = answer.records.as_ref().is_none_or(bytes::Bytes::is_empty);
        assert_eq!(empty, code != 0 || diverging.0 >= 0 || offset == 3);
    }
}

/// A leader that starts again may have another epoch: then the one before has ended.
#[tokio::test]
async fn r16_r21_epochs_before_and_after_a_restart() {
    let target = Target::start(&[]);
    let mut client = target.with_topic("r21", 1).await;
    let before = crate::reading::leader_epoch(&mut client, "r21").await;
    assert_eq!(produce(&mut client, "r21", plain(3)).await, (0, 0));
    target.kill_and_restart();
    client = target.connect().await;
    ops::await_topic(&mut client, "r21", 1).await.unwrap();
    let now = crate::reading::leader_epoch(&mut client, "r21").await;
    assert_eq!(produce(&mut client, "r21", plain(2)).await, (0, 3));
    let end = if now > before { 3 } else { 5 };
    for (epoch, expected) in [
        (now, (0, now, 5)),
        (before, (0, before, end)),
        (now + 5, (0, -1, -1)),
    ] {
        let found = epoch_end(&mut client, 4, "r21", -1, epoch).await;
        assert_eq!(found, expected, "{epoch}, led in {before} and {now}");
    }
    let answer = after(&mut client, "r21", 9, before).await;
    let parted = &answer.diverging_epoch;
    assert_eq!(answer.error_code, 0);
    assert_eq!((parted.epoch, parted.end_offset), (before, end));
    assert!(answer.records.as_ref().is_none_or(bytes::Bytes::is_empty));
    let fits = after(&mut client, "r21", 1, before).await;
    assert_eq!(fits.diverging_epoch.epoch, -1);
    assert_eq!(fits.high_watermark, 5);
}

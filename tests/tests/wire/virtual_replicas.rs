//! `virtual.replicas`: one broker that reports several replicas. A key of Fencepost's own.

use kafka_protocol::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsTopic,
};
use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use kafka_protocol::messages::describe_topic_partitions_request::TopicRequest;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    BrokerId, CreatePartitionsRequest, CreateTopicsRequest, DescribeTopicPartitionsRequest,
    MetadataRequest,
};
use tests::raw::{RawClient, ops};

use crate::kit::{Target, on_kafka, plain};

fn brokers(ids: &[i32]) -> Vec<BrokerId> {
    ids.iter().copied().map(BrokerId).collect()
}

/// Code and replication factor that a creation is answered with.
async fn create(client: &mut RawClient, topic: CreatableTopic) -> (i16, i16) {
    let request = CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000);
    let response = client.call(&request, 7).await.unwrap();
    let answer = &response.topics[0];
    (answer.error_code, answer.replication_factor)
}

fn assigned(name: &str, ids: &[i32]) -> CreatableTopic {
    let assignment = CreatableReplicaAssignment::default()
        .with_partition_index(0)
        .with_broker_ids(brokers(ids));
    CreatableTopic::default()
        .with_name(ops::topic_name(name))
        .with_num_partitions(-1)
        .with_replication_factor(-1)
        .with_assignments(vec![assignment])
}

async fn grow(client: &mut RawClient, name: &str, count: i32, ids: &[i32]) -> i16 {
    let assignment = CreatePartitionsAssignment::default().with_broker_ids(brokers(ids));
    let topic = CreatePartitionsTopic::default()
        .with_name(ops::topic_name(name))
        .with_count(count)
        .with_assignments(Some(vec![assignment]));
    let request = CreatePartitionsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000);
    client.call(&request, 3).await.unwrap().results[0].error_code
}

#[tokio::test]
async fn a_lone_broker_reports_the_replicas_that_it_is_told_to() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[("virtual.replicas", "3"), ("node.id", "7")]);
    let mut client = target.connect().await;
    let topic = CreatableTopic::default()
        .with_name(ops::topic_name("three"))
        .with_num_partitions(2)
        .with_replication_factor(3);
    assert_eq!(create(&mut client, topic).await, (0, 3));

    for version in [0, 12, 13] {
        let request = MetadataRequest::default().with_topics(Some(vec![
            MetadataRequestTopic::default().with_name(Some(ops::topic_name("three"))),
        ]));
        let metadata = client.call(&request, version).await.unwrap();
        // Nobody can connect to the others.
        assert_eq!(metadata.brokers.len(), 1, "v{version}");
        assert_eq!(metadata.topics[0].partitions.len(), 2, "v{version}");
        for partition in &metadata.topics[0].partitions {
            assert_eq!(partition.leader_id, 7, "v{version}");
            assert_eq!(partition.replica_nodes, [7, 8, 9], "v{version}");
            assert_eq!(partition.isr_nodes, [7, 8, 9], "v{version}");
            assert!(partition.offline_replicas.is_empty(), "v{version}");
        }
    }
    let asked = TopicRequest::default().with_name(ops::topic_name("three"));
    let request = DescribeTopicPartitionsRequest::default()
        .with_topics(vec![asked])
        .with_response_partition_limit(10);
    let described = client.call(&request, 0).await.unwrap();
    for partition in &described.topics[0].partitions {
        assert_eq!(partition.leader_id, 7);
        assert_eq!(partition.replica_nodes, [7, 8, 9]);
        assert_eq!(partition.isr_nodes, [7, 8, 9]);
    }

    let sent = ops::produce(&mut client, "three", 1, plain(2)).await;
    assert_eq!(sent.unwrap().error_code, 0, "acks=all waits for nobody");

    for (name, ids, code) in [
        ("placed", &[7, 8, 9][..], 0),
        ("placed-9", &[9, 7], 0),
        ("without", &[8, 9], 39),
        ("twice", &[7, 8, 8], 39),
        ("unknown", &[7, 10], 39),
        ("none", &[], 39),
        ("long", &(7..1000).collect::<Vec<i32>>(), 39),
    ] {
        let (answer, _) = create(&mut client, assigned(name, ids)).await;
        assert_eq!(answer, code, "{name}: {ids:?}");
    }
    assert_eq!(grow(&mut client, "placed", 2, &[7, 8, 9]).await, 0);
    assert_eq!(grow(&mut client, "placed", 3, &[7, 10]).await, 39);
}

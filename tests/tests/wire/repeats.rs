//! One name many times in a request: an answer is as large as what there is, not as what was asked.

use bytes::Bytes;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest,
    DescribeGroupsRequest, DescribeProducersRequest, FindCoordinatorRequest, GroupId,
    MetadataRequest,
};
use kafka_protocol::protocol::Request;
use tests::raw::{RawClient, decode_response, group, ops};

use crate::kit::{P, Target, on_kafka, plain, produce, text};
use crate::reading::{fetch_request, partitions, records};

const TIMES: usize = 60_000;

/// The body of the answer to a request, behind its correlation id.
async fn answer<R: Request>(client: &mut RawClient, request: &R, version: i16) -> Bytes {
    client.send(request, version).await.unwrap();
    client.receive_frame().await.unwrap().unwrap().slice(4..)
}

/// Fails unless asking for `TIMES` times the same is answered like asking once. The answer.
async fn same<R: Request>(
    client: &mut RawClient,
    version: i16,
    request: impl Fn(usize) -> R,
) -> R::Response {
    alike(client, version, request(1), request(TIMES)).await
}

/// Fails unless both requests have the same answer. The answer.
async fn alike<R: Request>(client: &mut RawClient, version: i16, once: R, often: R) -> R::Response {
    let once = answer(client, &once, version).await;
    let often = answer(client, &often, version).await;
    assert_eq!(
        often.len(),
        once.len(),
        "api {}: bytes of the answer",
        R::KEY
    );
    assert_eq!(often, once, "api {}", R::KEY);
    let frame = [&[0; 4][..], &often[..]].concat();
    decode_response::<R>(frame.into(), version).unwrap().1
}

#[tokio::test]
async fn a_topic_is_described_once() {
    let target = Target::shared();
    let mut client = target.with_topic("wide", 100).await;
    let by_name = |times| {
        let topic = MetadataRequestTopic::default().with_name(Some(ops::topic_name("wide")));
        MetadataRequest::default().with_topics(Some(vec![topic; times]))
    };
    for version in [1, 12] {
        let found = same(&mut client, version, by_name).await;
        assert_eq!(found.topics.len(), 1);
        assert_eq!(found.topics[0].error_code, 0);
        assert_eq!(found.topics[0].partitions.len(), 100);
    }
    let id = ops::metadata(&mut client, "wide").await.unwrap().topics[0].topic_id;
    let by_id = |times| {
        let topic = MetadataRequestTopic::default()
            .with_name(None)
            .with_topic_id(id);
        MetadataRequest::default().with_topics(Some(vec![topic; times]))
    };
    let found = same(&mut client, 12, by_id).await;
    assert_eq!(found.topics.len(), 1);
    assert_eq!(found.topics[0].partitions.len(), 100);
    let unknown = |times| {
        let topic = MetadataRequestTopic::default().with_name(Some(ops::topic_name("none")));
        MetadataRequest::default()
            .with_topics(Some(vec![topic; times]))
            .with_allow_auto_topic_creation(false)
    };
    let found = same(&mut client, 12, unknown).await;
    let codes: Vec<i16> = found.topics.iter().map(|topic| topic.error_code).collect();
    assert_eq!(codes, [3]);
}

#[tokio::test]
async fn a_partition_is_read_once_as_it_was_named_last() {
    let target = Target::shared();
    let mut client = target.with_topic("read-once", 1).await;
    for offset in 0..2 {
        assert_eq!(
            produce(&mut client, "read-once", plain(1)).await,
            (0, offset)
        );
    }
    let mut named = vec![(0, 0); TIMES];
    named.push((0, 1));
    let fetched = client.call(&fetch_request("read-once", &named), 12).await;
    let fetched = partitions(&fetched.unwrap());
    assert_eq!(fetched.len(), 1);
    assert_eq!((fetched[0].error_code, fetched[0].high_watermark), (0, 2));
    assert_eq!(records(&fetched[0])[..8], 1_i64.to_be_bytes());
}

/// Kafka answers each of these as often as it is named.
#[tokio::test]
async fn what_kafka_repeats_is_described_once() {
    if on_kafka() {
        return;
    }
    let target = Target::shared();
    let mut client = target.with_topic("described-once", 1).await;
    let sent = produce(&mut client, "described-once", P(7, 0, 0, 1).batch()).await;
    assert_eq!(sent, (0, 0));
    let resource = |name: &str, keys: Option<&[&str]>| {
        let keys = keys.map(|keys| keys.iter().map(|key| text(key)).collect());
        DescribeConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text(name))
            .with_configuration_keys(keys)
    };
    let configs = |times| {
        let resource = resource("described-once", None);
        DescribeConfigsRequest::default().with_resources(vec![resource; times])
    };
    let described = same(&mut client, 4, configs).await;
    assert_eq!(described.results.len(), 1);
    assert_eq!(described.results[0].error_code, 0);
    // The configs of every time that it is named.
    let two = DescribeConfigsRequest::default().with_resources(vec![
        resource("described-once", Some(&["retention.ms"])),
        resource("described-once", Some(&["segment.bytes"])),
    ]);
    let described = client.call(&two, 4).await.unwrap();
    assert_eq!(described.results.len(), 1);
    let mut names: Vec<&str> = described.results[0]
        .configs
        .iter()
        .map(|config| config.name.as_str())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["retention.ms", "segment.bytes"]);

    let producers = |times| {
        let topic = TopicRequest::default()
            .with_name(ops::topic_name("described-once"))
            .with_partition_indexes(vec![0; times]);
        DescribeProducersRequest::default().with_topics(vec![topic])
    };
    let described = same(&mut client, 0, producers).await;
    assert_eq!(described.topics[0].partitions.len(), 1);
    let partition = &described.topics[0].partitions[0];
    assert_eq!(partition.error_code, 0);
    assert_eq!(partition.active_producers.len(), 1);

    group::await_coordinator(&mut client, "nobody")
        .await
        .unwrap();
    let groups = |times| {
        let groups = vec![GroupId(text("nobody")); times];
        DescribeGroupsRequest::default().with_groups(groups)
    };
    let described = same(&mut client, 6, groups).await;
    let codes: Vec<i16> = described.groups.iter().map(|g| g.error_code).collect();
    assert_eq!(codes, [69]);

    let keys = |times| {
        let keys = vec![text("nobody"); times];
        FindCoordinatorRequest::default().with_coordinator_keys(keys)
    };
    let found = same(&mut client, 4, keys).await;
    let codes: Vec<i16> = found.coordinators.iter().map(|c| c.error_code).collect();
    assert_eq!(codes, [0]);
}

#[tokio::test]
async fn a_topic_that_is_named_twice_is_not_deleted() {
    let target = Target::shared();
    let mut client = target.with_topic("deleted-twice", 1).await;
    let named = DeleteTopicState::default().with_name(Some(ops::topic_name("deleted-twice")));
    let id = ops::metadata(&mut client, "deleted-twice").await.unwrap();
    let by_id = DeleteTopicState::default()
        .with_name(None)
        .with_topic_id(id.topics[0].topic_id);
    for topic in [named, by_id] {
        let request = DeleteTopicsRequest::default()
            .with_topics(vec![topic; 3])
            .with_timeout_ms(30_000);
        let response = client.call(&request, 6).await.unwrap();
        let codes: Vec<i16> = response.responses.iter().map(|t| t.error_code).collect();
        assert_eq!(codes, [42]);
        assert!(response.responses[0].error_message.is_some());
    }
    let still = ops::metadata(&mut client, "deleted-twice").await.unwrap();
    assert_eq!(still.topics[0].error_code, 0);
}

#[tokio::test]
async fn a_topic_that_is_named_by_name_and_by_id_is_not_deleted() {
    let target = Target::shared();
    let mut client = target.with_topic("named-both-ways", 1).await;
    let found = ops::metadata(&mut client, "named-both-ways").await.unwrap();
    let id = found.topics[0].topic_id;
    let name = ops::topic_name("named-both-ways");
    let named = DeleteTopicState::default().with_name(Some(name.clone()));
    let by_id = DeleteTopicState::default()
        .with_name(None)
        .with_topic_id(id);
    for (topics, codes) in [
        (vec![named.clone(), by_id.clone()], vec![42]),
        (vec![by_id.clone(), named.clone()], vec![42]),
        (
            vec![named.clone(), by_id.clone(), by_id.clone()],
            vec![42, 42],
        ),
    ] {
        let request = DeleteTopicsRequest::default()
            .with_topics(topics)
            .with_timeout_ms(30_000);
        let response = client.call(&request, 6).await.unwrap();
        let answers = response.responses.iter();
        let mut got: Vec<_> = answers
            .map(|t| (t.name.is_some(), t.topic_id == id, t.error_code))
            .collect();
        got.sort_unstable();
        let answered: Vec<i16> = got.iter().map(|(_, _, code)| *code).collect();
        assert_eq!(answered, codes);
        // Under its name, and with its id.
        assert_eq!(got.last(), Some(&(true, true, 42)));
    }
    let still = ops::metadata(&mut client, "named-both-ways").await.unwrap();
    assert_eq!(still.topics[0].error_code, 0);
    // A name that says too much is none.
    let request = DeleteTopicsRequest::default()
        .with_topics(vec![named.clone(), named, by_id])
        .with_timeout_ms(30_000);
    let response = client.call(&request, 6).await.unwrap();
    let answers = response.responses.iter();
    let mut codes: Vec<i16> = answers.map(|t| t.error_code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 42]);
}

#[tokio::test]
async fn where_deletion_is_disabled_nothing_is_deleted() {
    let target = Target::start(&[("delete.topic.enable", "false")]);
    let mut client = target.with_topic("stays", 1).await;
    let found = ops::metadata(&mut client, "stays").await.unwrap();
    let id = found.topics[0].topic_id;
    for version in [1, 2, 3, 5, 6] {
        let mut request = DeleteTopicsRequest::default().with_timeout_ms(30_000);
        if version < 6 {
            request.topic_names = ["stays", "no-such-topic"].map(ops::topic_name).to_vec();
        } else {
            let name = Some(ops::topic_name("no-such-topic"));
            request.topics = vec![
                DeleteTopicState::default().with_name(name),
                DeleteTopicState::default()
                    .with_name(None)
                    .with_topic_id(id),
            ];
        }
        let response = client.call(&request, version).await.unwrap();
        let answers = response.responses.iter();
        let codes: Vec<i16> = answers.map(|topic| topic.error_code).collect();
        let expected = if version < 3 { 42 } else { 73 };
        assert_eq!(codes, [expected; 2], "v{version}");
    }
    let still = ops::metadata(&mut client, "stays").await.unwrap();
    assert_eq!(still.topics[0].error_code, 0);
}

#[tokio::test]
async fn a_topic_that_is_named_twice_is_not_created_and_does_not_grow() {
    // A thousand of them Kafka does not answer in time.
    let many = if on_kafka() { 3 } else { TIMES };
    let target = Target::shared();
    let mut client = target.with_topic("grown-twice", 1).await;
    for version in [5, 7] {
        let created = |times| {
            let topic = CreatableTopic::default()
                .with_name(ops::topic_name("created-twice"))
                .with_num_partitions(1)
                .with_replication_factor(1);
            CreateTopicsRequest::default()
                .with_topics(vec![topic; times])
                .with_timeout_ms(30_000)
        };
        let answer = alike(&mut client, version, created(2), created(many)).await;
        let codes: Vec<i16> = answer.topics.iter().map(|t| t.error_code).collect();
        assert_eq!(codes, [42], "v{version}");
        assert!(answer.topics[0].error_message.is_some());
    }
    let grown = |times| {
        let topic = CreatePartitionsTopic::default()
            .with_name(ops::topic_name("grown-twice"))
            .with_count(2);
        CreatePartitionsRequest::default()
            .with_topics(vec![topic; times])
            .with_timeout_ms(30_000)
    };
    let answer = alike(&mut client, 3, grown(2), grown(many)).await;
    let codes: Vec<i16> = answer.results.iter().map(|t| t.error_code).collect();
    assert_eq!(codes, [42]);
    assert!(answer.results[0].error_message.is_some());
    for (name, code, partitions) in [("created-twice", 3, 0), ("grown-twice", 0, 1)] {
        let still = ops::metadata(&mut client, name).await.unwrap();
        assert_eq!(still.topics[0].error_code, code);
        assert_eq!(still.topics[0].partitions.len(), partitions);
    }
}

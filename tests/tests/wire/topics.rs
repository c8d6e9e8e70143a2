//! Metadata, CreateTopics, DeleteTopics.

use std::collections::BTreeSet;

use kafka_protocol::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest,
};
use tests::raw::{RawClient, ops};
use uuid::Uuid;

use crate::kit::{Target, differs, text};

fn by_names(names: &[&str], create: bool) -> MetadataRequest {
    let topics = names
        .iter()
        .map(|name| MetadataRequestTopic::default().with_name(Some(ops::topic_name(name))));
    MetadataRequest::default()
        .with_topics(Some(topics.collect()))
        .with_allow_auto_topic_creation(create)
}

async fn topic(client: &mut RawClient, request: &MetadataRequest, v: i16) -> MetadataResponseTopic {
    let response = client.call(request, v).await.unwrap();
    assert_eq!(response.topics.len(), 1);
    response.topics[0].clone()
}

#[tokio::test]
async fn metadata_in_every_version() {
    let target = Target::shared();
    let mut client = target.with_topic("meta", 3).await;
    for version in 0..=13 {
        // Before v4 a client can't say no.
        let request = by_names(&["meta"], version < 4);
        let response = client.call(&request, version).await.unwrap();
        assert_eq!(response.brokers.len(), 1, "v{version}");
        let broker = &response.brokers[0];
        assert_eq!(broker.host.as_str(), "127.0.0.1");
        if version >= 1 {
            assert_eq!(response.controller_id, broker.node_id, "v{version}");
        }
        if version >= 2 {
            let cluster = response.cluster_id.as_ref().unwrap();
            assert!(!cluster.is_empty(), "v{version}");
        }
        let topic = &response.topics[0];
        assert_eq!(topic.error_code, 0, "v{version}");
        assert_eq!(topic.topic_id.is_nil(), version < 10, "v{version}");
        assert!(!topic.is_internal);
        let mut indices: Vec<i32> = topic.partitions.iter().map(|p| p.partition_index).collect();
        indices.sort_unstable();
        assert_eq!(indices, [0, 1, 2]);
        for partition in &topic.partitions {
            assert_eq!(partition.error_code, 0);
            assert_eq!(partition.leader_id, broker.node_id);
            assert_eq!(partition.replica_nodes, [broker.node_id]);
            assert_eq!(partition.isr_nodes, [broker.node_id]);
            assert!(partition.offline_replicas.is_empty());
        }
    }
}

/// Without an authorizer a client may do everything; it is told when it asks.
#[tokio::test]
async fn metadata_tells_what_the_client_may_do() {
    const NOT_GIVEN: i32 = i32::MIN;
    // Create, alter, describe, cluster action, describe and alter configs, idempotent write.
    const CLUSTER: i32 = 0b1_1111_1010_0000;
    // Read, write, create, delete, alter, describe, describe and alter configs.
    const TOPIC: i32 = 0b1101_1111_1000;
    let target = Target::shared();
    let mut client = target.with_topic("meta-operations", 1).await;
    for version in 8..=13 {
        for asked in [false, true] {
            let request = by_names(&["meta-operations", "meta-operations-none"], false)
                .with_include_topic_authorized_operations(asked)
                .with_include_cluster_authorized_operations(asked && version <= 10);
            let response = client.call(&request, version).await.unwrap();
            let codes: BTreeSet<i16> = response.topics.iter().map(|t| t.error_code).collect();
            assert_eq!(codes, [0, 3].into());
            let of_topics = if asked { TOPIC } else { NOT_GIVEN };
            for topic in &response.topics {
                let found = topic.topic_authorized_operations;
                assert_eq!(found, of_topics, "v{version}: {:?}", topic.name);
            }
            let of_cluster = if asked && version <= 10 {
                CLUSTER
            } else {
                NOT_GIVEN
            };
            assert_eq!(
                response.cluster_authorized_operations, of_cluster,
                "v{version}"
            );
        }
    }
    let by_id = MetadataRequestTopic::default()
        .with_name(None)
        .with_topic_id(Uuid::from_u128(7));
    let request = by_names(&[], false)
        .with_topics(Some(vec![by_id]))
        .with_include_topic_authorized_operations(true);
    let missing = topic(&mut client, &request, 12).await;
    assert_eq!(missing.error_code, 100);
    assert_eq!(missing.topic_authorized_operations, NOT_GIVEN);
}

#[tokio::test]
async fn all_topics_and_none() {
    let target = Target::shared();
    let mut client = target.with_topic("one-of-all", 1).await;
    let all = MetadataRequest::default().with_topics(None);
    let none = MetadataRequest::default().with_topics(Some(Vec::new()));
    for (request, version, listed) in [
        (&all, 1, true),
        (&all, 12, true),
        (&none, 0, true),
        (&none, 1, false),
        (&none, 12, false),
    ] {
        let response = client.call(request, version).await.unwrap();
        let found = response
            .topics
            .iter()
            .any(|topic| topic.name == Some(ops::topic_name("one-of-all")));
        assert_eq!(found, listed, "v{version}");
        assert!(found || response.topics.is_empty());
    }
}

#[tokio::test]
async fn topics_by_id() {
    let target = Target::shared();
    let mut client = target.with_topic("meta-id", 1).await;
    let named = topic(&mut client, &by_names(&["meta-id"], false), 12).await;
    let ask = |id: Uuid| {
        let topic = MetadataRequestTopic::default()
            .with_name(None)
            .with_topic_id(id);
        MetadataRequest::default().with_topics(Some(vec![topic]))
    };
    let found = topic(&mut client, &ask(named.topic_id), 12).await;
    assert_eq!((found.error_code, &found.name), (0, &named.name));
    for version in [12, 13] {
        let unknown = topic(&mut client, &ask(Uuid::from_u128(0x99)), version).await;
        assert_eq!(unknown.error_code, 100, "v{version}");
        assert_eq!(unknown.topic_id, Uuid::from_u128(0x99), "v{version}");
        assert_eq!(unknown.name, None, "v{version}");
    }
}

/// Versions 10 and 11 have the field, and no use for it.
#[tokio::test]
async fn topics_by_id_in_versions_that_only_tell_ids() {
    let target = Target::shared();
    let mut client = target.with_topic("meta-id-early", 1).await;
    let named = by_names(&["meta-id-early"], false);
    let id = topic(&mut client, &named, 12).await.topic_id;
    for version in [10, 11] {
        let asked = |name: Option<&str>, id| {
            MetadataRequestTopic::default()
                .with_name(name.map(ops::topic_name))
                .with_topic_id(id)
        };
        for (odd, name) in [
            (asked(None, id), ""),
            (asked(None, Uuid::nil()), ""),
            (asked(Some("meta-id-early"), id), "meta-id-early"),
        ] {
            let id = odd.topic_id;
            let other = asked(Some("meta-id-none"), Uuid::nil());
            let request = by_names(&[], true).with_topics(Some(vec![other, odd]));
            let response = client.call(&request, version).await.unwrap();
            let mut answers: Vec<(i16, &str, Uuid)> = Vec::new();
            for topic in &response.topics {
                assert!(topic.partitions.is_empty());
                let name = topic.name.as_ref().unwrap();
                answers.push((topic.error_code, name.as_str(), topic.topic_id));
            }
            let other = (42, "meta-id-none", Uuid::nil());
            assert_eq!(answers, [other, (42, name, id)], "v{version}");
            assert!(response.brokers.is_empty(), "v{version}");
            assert_eq!(response.controller_id, BrokerId(-1), "v{version}");
            assert_eq!(response.cluster_id, None, "v{version}");
        }
    }
    // Nothing of it was done.
    let asked = topic(&mut client, &by_names(&["meta-id-none"], false), 12).await;
    assert_eq!(asked.error_code, 3);
}

#[tokio::test]
async fn a_topic_is_created_by_asking_for_it() {
    let target = Target::shared();
    let mut client = target.connect().await;
    // Not when the client says no.
    for name in ["auto-4", "auto-12"] {
        let version = name[5..].parse().unwrap();
        let asked = topic(&mut client, &by_names(&[name], false), version).await;
        assert_eq!(asked.error_code, 3, "{name}");
    }
    for (name, version) in [("auto-4", 4), ("auto-12", 12), ("auto-0", 0)] {
        let first = topic(&mut client, &by_names(&[name], true), version).await;
        let code = differs("auto-creation-at-once", 3, 0);
        assert_eq!(first.error_code, code, "{name}");
        let metadata = ops::await_topic(&mut client, name, 4).await.unwrap();
        assert_eq!(metadata.topics[0].partitions.len(), 4, "num.partitions");
    }
    for name in ["", "a/b", ".", "..", "sp ace", "\u{fc}", &"x".repeat(250)] {
        let asked = topic(&mut client, &by_names(&[name], true), 9).await;
        assert_eq!(asked.error_code, 17, "{name:?}");
    }
}

#[tokio::test]
async fn no_topic_is_created_where_that_is_switched_off() {
    let target = Target::start(&[("auto.create.topics.enable", "false")]);
    let mut client = target.connect().await;
    for version in [0, 4, 12] {
        for _ in 0..2 {
            let asked = topic(&mut client, &by_names(&["never"], true), version).await;
            assert_eq!(asked.error_code, 3, "v{version}");
        }
    }
    // Produce and Fetch create nothing either.
    let sent = ops::produce(&mut client, "never", 0, crate::kit::plain(1));
    assert_eq!(sent.await.unwrap().error_code, 3);
    let all = MetadataRequest::default().with_topics(None);
    let response = client.call(&all, 12).await.unwrap();
    assert!(response.topics.is_empty(), "{:?}", response.topics);
}

fn creatable(name: &str, partitions: i32) -> CreatableTopic {
    CreatableTopic::default()
        .with_name(ops::topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(1)
}

fn assigned(name: &str, partitions: &[(i32, &[i32])]) -> CreatableTopic {
    let assignments = partitions.iter().map(|(index, brokers)| {
        CreatableReplicaAssignment::default()
            .with_partition_index(*index)
            .with_broker_ids(brokers.iter().copied().map(BrokerId).collect())
    });
    creatable(name, -1)
        .with_replication_factor(-1)
        .with_assignments(assignments.collect())
}

fn configured(name: &str, key: &str, value: &str) -> CreatableTopic {
    let config = CreatableTopicConfig::default()
        .with_name(text(key))
        .with_value(Some(text(value)));
    creatable(name, 1).with_configs(vec![config])
}

/// With configs that have no value.
fn valueless(name: &str, partitions: i32) -> CreatableTopic {
    let configs = ["max.message.bytes", "no.such.config"].map(|key| {
        CreatableTopicConfig::default()
            .with_name(text(key))
            .with_value(None)
    });
    creatable(name, partitions).with_configs(configs.to_vec())
}

async fn create(
    client: &mut RawClient,
    topics: Vec<CreatableTopic>,
    validate_only: bool,
) -> Vec<CreatableTopicResult> {
    let request = CreateTopicsRequest::default()
        .with_topics(topics)
        .with_timeout_ms(30_000)
        .with_validate_only(validate_only);
    client.call(&request, 7).await.unwrap().topics
}

#[tokio::test]
async fn create_topics_codes() {
    let target = Target::shared();
    let mut client = target.with_topic("there.already", 1).await;
    let this = client
        .call(&by_names(&["there.already"], false), 12)
        .await
        .unwrap()
        .brokers[0]
        .node_id
        .0;
    for (topic, code) in [
        (creatable("there.already", 1), 36),
        (creatable("", 1), 17),
        (creatable(".", 1), 17),
        (creatable("..", 1), 17),
        (creatable("a/b", 1), 17),
        (creatable("a b", 1), 17),
        (creatable(&"x".repeat(250), 1), 17),
        (creatable("there_already", 1), 17),
        (creatable("none", 0), 37),
        (creatable("none", -2), 37),
        (
            creatable("none", 1).with_replication_factor(0),
            differs("replication-factor", 38, 0),
        ),
        (
            creatable("none3", 1).with_replication_factor(3),
            differs("replication-factor", 38, 0),
        ),
        (assigned("none", &[(1, &[this])]), 39),
        (assigned("none", &[(0, &[this, this])]), 39),
        (assigned("none", &[(0, &[this + 1])]), 39),
        (assigned("none", &[(0, &[])]), 39),
        (assigned("none", &[(0, &[this])]).with_num_partitions(1), 42),
        (configured("none", "no.such.config", "1"), 40),
        (configured("none", "max.message.bytes", "many"), 40),
        (configured("none", "message.timestamp.type", "Never"), 40),
        (valueless("none", 1), 40),
        // The name, then the configs, then the partitions.
        (valueless("there.already", 1), 36),
        (valueless("a/b", 0), 17),
        (valueless("none", 0), 40),
        (creatable("a/b", 0), 17),
        (creatable("there.already", 0), 36),
        (
            configured("none", "no.such.config", "1").with_num_partitions(0),
            40,
        ),
    ] {
        let shown = format!("{topic:?}");
        // Nothing is made: those that ours accepts must not stay.
        let results = create(&mut client, vec![topic], true).await;
        assert_eq!(results[0].error_code, code, "{shown}");
        assert_eq!(results[0].error_message.is_some(), code != 0, "{shown}");
    }
}

#[tokio::test]
async fn create_topics_tells_the_configs_that_a_topic_has() {
    let target = Target::shared();
    let mut client = target.connect().await;
    let one = configured("told", "max.message.bytes", "5000");
    let told = create(&mut client, vec![one], true).await.remove(0);
    let configs = told.configs.unwrap();
    assert_eq!(configs.len(), 33);
    let find = |name: &str| {
        let config = configs.iter().find(|config| &*config.name == name);
        let config = config.unwrap();
        assert!(!config.read_only && !config.is_sensitive);
        (config.value.as_deref().unwrap(), config.config_source)
    };
    assert_eq!(find("max.message.bytes"), ("5000", 1));
    assert_eq!(find("segment.bytes"), ("1073741824", 5));
    assert_eq!(find("retention.ms"), ("-1", 4));
    let many = (0..65).map(|number| creatable(&format!("told-{number}"), 1));
    let many = create(&mut client, many.collect(), true).await;
    assert_eq!(many.len(), 65);
    for topic in many {
        let told = topic.configs.unwrap().len();
        assert_eq!(told, differs("configs-of-many-topics", 33, 0));
    }
}

#[tokio::test]
async fn create_topics_makes_what_it_says() {
    let target = Target::shared();
    let mut client = target.connect().await;
    let checked = create(&mut client, vec![creatable("made", 2)], true).await;
    assert_eq!(checked[0].error_code, 0);
    let asked = topic(&mut client, &by_names(&["made"], false), 12).await;
    assert_eq!(asked.error_code, 3, "validate_only makes nothing");

    let topics = vec![
        creatable("made", 2),
        creatable("made-bad/", 1),
        creatable("made-default", -1).with_replication_factor(-1),
    ];
    let made = create(&mut client, topics, false).await;
    let codes: BTreeSet<(String, i16)> = made
        .iter()
        .map(|topic| (topic.name.to_string(), topic.error_code))
        .collect();
    let expected = [("made", 0), ("made-bad/", 17), ("made-default", 0)];
    assert_eq!(codes, expected.map(|(n, c)| (n.to_owned(), c)).into());
    for (name, partitions) in [("made", 2), ("made-default", 4)] {
        let answer = made
            .iter()
            .find(|t| t.name == ops::topic_name(name))
            .unwrap();
        assert_eq!(answer.num_partitions, partitions);
        assert_eq!(answer.replication_factor, 1);
        let found = ops::await_topic(&mut client, name, partitions).await;
        assert_eq!(found.unwrap().topics[0].topic_id, answer.topic_id);
    }
    let twice = vec![creatable("double", 1), creatable("double", 2)];
    let refused = create(&mut client, twice, false).await;
    assert!(refused.iter().all(|topic| topic.error_code == 42));
    let asked = topic(&mut client, &by_names(&["double"], false), 12).await;
    assert_eq!(asked.error_code, 3);
}

/// Name or id; the answers in order.
async fn delete(client: &mut RawClient, topics: &[(Option<&str>, Uuid)]) -> Vec<i16> {
    let topics = topics.iter().map(|(name, id)| {
        DeleteTopicState::default()
            .with_name(name.map(ops::topic_name))
            .with_topic_id(*id)
    });
    let request = DeleteTopicsRequest::default()
        .with_topics(topics.collect())
        .with_timeout_ms(30_000);
    let response = client.call(&request, 6).await.unwrap();
    response.responses.iter().map(|t| t.error_code).collect()
}

#[tokio::test]
async fn delete_topics_codes() {
    let target = Target::shared();
    let mut client = target.with_topic("doomed", 1).await;
    let nil = Uuid::nil();
    assert_eq!(delete(&mut client, &[(Some("no-such"), nil)]).await, [3]);
    let unknown = Uuid::from_u128(0x55);
    assert_eq!(delete(&mut client, &[(None, unknown)]).await, [100]);
    assert_eq!(
        delete(&mut client, &[(Some("doomed"), unknown)]).await,
        [42]
    );
    assert_eq!(delete(&mut client, &[(None, nil)]).await, [42]);
    let id = topic(&mut client, &by_names(&["doomed"], false), 12)
        .await
        .topic_id;
    assert_eq!(delete(&mut client, &[(None, id)]).await, [0]);
    assert_eq!(delete(&mut client, &[(None, id)]).await, [100]);
    assert_eq!(delete(&mut client, &[(Some("doomed"), nil)]).await, [3]);
    ops::create_topic(&mut client, "doomed", 2, &[])
        .await
        .unwrap();
    let again = topic(&mut client, &by_names(&["doomed"], false), 12).await;
    assert_ne!(again.topic_id, id, "a name is not an identity");
}

//! DescribeCluster, DescribeTopicPartitions, DescribeConfigs.

use std::collections::BTreeMap;

use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use kafka_protocol::messages::describe_topic_partitions_request::{Cursor, TopicRequest};
use kafka_protocol::messages::describe_topic_partitions_response::DescribeTopicPartitionsResponse;
use kafka_protocol::messages::{
    DescribeClusterRequest, DescribeConfigsRequest, DescribeTopicPartitionsRequest,
};
use tests::raw::{RawClient, ops};

use crate::kit::{Target, differs, on_kafka, text};

/// Create, alter, describe, cluster action, describe and alter configs, idempotent write.
const CLUSTER_OPERATIONS: i32 = 0b1_1111_1010_0000;
/// Read, write, create, delete, alter, describe, describe and alter configs.
const TOPIC_OPERATIONS: i32 = 0b1101_1111_1000;

#[tokio::test]
async fn the_cluster_describes_itself() {
    let target = Target::shared();
    let mut client = target.connect().await;
    let metadata = ops::metadata(&mut client, "none").await.unwrap();
    for version in 0..=2 {
        let mut request = DescribeClusterRequest::default();
        request.include_cluster_authorized_operations = version == 1;
        let response = client.call(&request, version).await.unwrap();
        assert_eq!((response.error_code, response.error_message), (0, None));
        assert_eq!(Some(response.cluster_id), metadata.cluster_id);
        assert_eq!(response.controller_id, metadata.controller_id);
        let operations = if version == 1 {
            CLUSTER_OPERATIONS
        } else {
            i32::MIN
        };
        assert_eq!(response.cluster_authorized_operations, operations);
        assert_eq!(response.brokers.len(), 1);
        let (broker, known) = (&response.brokers[0], &metadata.brokers[0]);
        assert_eq!(broker.broker_id, known.node_id);
        assert_eq!((&broker.host, broker.port), (&known.host, known.port));
        assert_eq!((&broker.rack, broker.is_fenced), (&None, false));
        if version >= 1 {
            assert_eq!(response.endpoint_type, 1);
        }
    }
    for (endpoint_type, code) in [(2, 114), (3, 115), (0, 115), (-1, 115)] {
        for version in 1..=2 {
            let request = DescribeClusterRequest::default().with_endpoint_type(endpoint_type);
            let response = client.call(&request, version).await.unwrap();
            assert_eq!(response.error_code, code, "type {endpoint_type}");
            assert!(response.error_message.is_some());
            assert!(response.brokers.is_empty());
        }
    }
}

async fn page(
    client: &mut RawClient,
    names: &[&str],
    limit: i32,
    cursor: Option<(&str, i32)>,
) -> DescribeTopicPartitionsResponse {
    let topics = names
        .iter()
        .map(|name| TopicRequest::default().with_name(ops::topic_name(name)));
    let cursor = cursor.map(|(name, partition)| {
        Cursor::default()
            .with_topic_name(ops::topic_name(name))
            .with_partition_index(partition)
    });
    let request = DescribeTopicPartitionsRequest::default()
        .with_topics(topics.collect())
        .with_response_partition_limit(limit)
        .with_cursor(cursor);
    client.call(&request, 0).await.unwrap()
}

/// Name, code and partitions of every topic, and where the next page begins.
type Page = (Vec<(String, i16, Vec<i32>)>, Option<(String, i32)>);

fn seen(response: &DescribeTopicPartitionsResponse) -> Page {
    let topics = response.topics.iter().map(|topic| {
        let name = topic.name.as_ref().map_or("", |name| name.as_str());
        let partitions = topic.partitions.iter().map(|p| p.partition_index);
        (name.to_owned(), topic.error_code, partitions.collect())
    });
    let next = response.next_cursor.as_ref();
    let next = next.map(|at| (at.topic_name.to_string(), at.partition_index));
    (topics.collect(), next)
}

#[tokio::test]
async fn topics_are_described_page_by_page() {
    let target = Target::shared();
    let mut client = target.with_topic("page-a", 3).await;
    ops::create_topic(&mut client, "page-b", 2, &[])
        .await
        .unwrap();
    let names = ["page-b", "page-a", "page-b"];
    let one = |name: &str, partitions: &[i32]| (name.to_owned(), 0, partitions.to_vec());
    let at = |name: &str, partition| Some((name.to_owned(), partition));
    for (limit, cursor, topics, next) in [
        (
            100,
            None,
            vec![one("page-a", &[0, 1, 2]), one("page-b", &[0, 1])],
            None,
        ),
        (2, None, vec![one("page-a", &[0, 1])], at("page-a", 2)),
        (3, None, vec![one("page-a", &[0, 1, 2])], at("page-b", 0)),
        (
            2,
            Some(("page-a", 2)),
            vec![one("page-a", &[2]), one("page-b", &[0])],
            at("page-b", 1),
        ),
        (2, Some(("page-b", 0)), vec![one("page-b", &[0, 1])], None),
        (0, None, vec![one("page-a", &[0])], at("page-a", 1)),
        (-1, Some(("page-b", 1)), vec![one("page-b", &[1])], None),
        (9, Some(("page-b", 7)), vec![one("page-b", &[])], None),
    ] {
        let response = page(&mut client, &names, limit, cursor).await;
        assert_eq!(seen(&response), (topics, next), "{limit} from {cursor:?}");
    }
    let response = page(&mut client, &["page-a"], 1, None).await;
    let topic = &response.topics[0];
    assert!(!topic.topic_id.is_nil() && !topic.is_internal);
    assert_eq!(topic.topic_authorized_operations, TOPIC_OPERATIONS);
    let partition = &topic.partitions[0];
    assert_eq!(partition.replica_nodes, [partition.leader_id]);
    assert_eq!(partition.isr_nodes, [partition.leader_id]);
    assert_eq!(partition.leader_epoch, 0);
    assert_eq!(partition.eligible_leader_replicas, Some(Vec::new()));
    assert_eq!(partition.last_known_elr, Some(Vec::new()));
    assert!(partition.offline_replicas.is_empty());
    // Without names: all of them, from the cursor on.
    let response = page(&mut client, &[], 2, Some(("page-a", 1))).await;
    assert_eq!(seen(&response).0[0], one("page-a", &[1, 2]));
}

#[tokio::test]
async fn topics_that_are_not_there_have_codes() {
    let target = Target::shared();
    let mut client = target.with_topic("page-c", 1).await;
    let response = page(&mut client, &["page-c", "page-none", "page/bad"], 9, None).await;
    let (topics, next) = seen(&response);
    let codes: BTreeMap<_, _> = topics
        .into_iter()
        .map(|(name, code, _)| (name, code))
        .collect();
    let expected = [("page-c", 0), ("page-none", 3), ("page/bad", 17)];
    assert_eq!(
        codes,
        expected.map(|(name, code)| (name.to_owned(), code)).into()
    );
    assert_eq!(next, None);
    for cursor in [("page-d", 0), ("page-c", -1)] {
        let response = page(&mut client, &["page-c"], 9, Some(cursor)).await;
        let codes: Vec<_> = response
            .topics
            .iter()
            .map(|topic| topic.error_code)
            .collect();
        assert_eq!(codes, [42], "{cursor:?}");
    }
}

async fn describe(
    client: &mut RawClient,
    version: i16,
    kind: i8,
    name: &str,
    keys: Option<&[&str]>,
) -> DescribeConfigsResult {
    let keys = keys.map(|keys| keys.iter().map(|key| text(key)).collect());
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(keys);
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(version >= 2)
        .with_include_documentation(version >= 4);
    let mut response = client.call(&request, version).await.unwrap();
    assert_eq!(response.results.len(), 1);
    let result = response.results.remove(0);
    assert_eq!(
        (result.resource_type, result.resource_name.as_str()),
        (kind, name)
    );
    result
}

/// Name, type, default, and the broker's key of it, of every topic config of Kafka 4.3.1.
const TOPIC_CONFIGS: [(&str, i8, &str, &str); 33] = [
    ("cleanup.policy", 7, "delete", "log.cleanup.policy"),
    ("compression.gzip.level", 3, "-1", "compression.gzip.level"),
    ("compression.lz4.level", 3, "9", "compression.lz4.level"),
    ("compression.type", 2, "producer", "compression.type"),
    ("compression.zstd.level", 3, "3", "compression.zstd.level"),
    (
        "delete.retention.ms",
        5,
        "86400000",
        "log.cleaner.delete.retention.ms",
    ),
    (
        "file.delete.delay.ms",
        5,
        "60000",
        "log.segment.delete.delay.ms",
    ),
    (
        "flush.messages",
        5,
        "9223372036854775807",
        "log.flush.interval.messages",
    ),
    ("flush.ms", 5, "9223372036854775807", ""),
    ("follower.replication.throttled.replicas", 7, "", ""),
    (
        "index.interval.bytes",
        3,
        "4096",
        "log.index.interval.bytes",
    ),
    ("leader.replication.throttled.replicas", 7, "", ""),
    (
        "local.retention.bytes",
        5,
        "-2",
        "log.local.retention.bytes",
    ),
    ("local.retention.ms", 5, "-2", "log.local.retention.ms"),
    (
        "max.compaction.lag.ms",
        5,
        "9223372036854775807",
        "log.cleaner.max.compaction.lag.ms",
    ),
    ("max.message.bytes", 3, "1048588", "message.max.bytes"),
    (
        "message.timestamp.after.max.ms",
        5,
        "3600000",
        "log.message.timestamp.after.max.ms",
    ),
    (
        "message.timestamp.before.max.ms",
        5,
        "9223372036854775807",
        "log.message.timestamp.before.max.ms",
    ),
    (
        "message.timestamp.type",
        2,
        "CreateTime",
        "log.message.timestamp.type",
    ),
    (
        "min.cleanable.dirty.ratio",
        6,
        "0.5",
        "log.cleaner.min.cleanable.ratio",
    ),
    (
        "min.compaction.lag.ms",
        5,
        "0",
        "log.cleaner.min.compaction.lag.ms",
    ),
    ("min.insync.replicas", 3, "1", "min.insync.replicas"),
    ("preallocate", 1, "false", "log.preallocate"),
    ("remote.log.copy.disable", 1, "false", ""),
    ("remote.log.delete.on.disable", 1, "false", ""),
    ("remote.storage.enable", 1, "false", ""),
    ("retention.bytes", 5, "-1", "log.retention.bytes"),
    ("retention.ms", 5, "604800000", ""),
    ("segment.bytes", 3, "1073741824", "log.segment.bytes"),
    (
        "segment.index.bytes",
        3,
        "10485760",
        "log.index.size.max.bytes",
    ),
    ("segment.jitter.ms", 5, "0", ""),
    ("segment.ms", 5, "604800000", ""),
    (
        "unclean.leader.election.enable",
        1,
        "false",
        "unclean.leader.election.enable",
    ),
];

fn by_name(result: &DescribeConfigsResult) -> BTreeMap<String, DescribeConfigsResourceResult> {
    let configs = result.configs.iter();
    configs
        .map(|config| (config.name.to_string(), config.clone()))
        .collect()
}

#[tokio::test]
async fn a_topic_shows_every_config_of_kafka() {
    let target = Target::shared();
    let mut client = target.with_topic("shown", 1).await;
    for version in 1..=4 {
        let result = describe(&mut client, version, 2, "shown", None).await;
        assert_eq!(result.error_code, 0, "v{version}");
        assert_eq!(result.error_message.as_deref(), Some(""), "v{version}");
        let configs = by_name(&result);
        let names: Vec<&str> = configs.keys().map(String::as_str).collect();
        assert_eq!(names, TOPIC_CONFIGS.map(|(name, ..)| name));
        for (name, config_type, default, broker) in TOPIC_CONFIGS {
            let config = &configs[name];
            // The suite keeps old records, and a fresh 4.3 sets this one for its brokers.
            let of_kafka = on_kafka() && name == "min.insync.replicas";
            let set = of_kafka || name == "retention.ms";
            let broker = match name {
                "segment.ms" => differs("finest-key-is-shown", "", "log.roll.ms"),
                _ => broker,
            };
            if !set {
                assert_eq!(config.value.as_deref(), Some(default), "{name}");
                assert_eq!(config.config_source, 5, "{name}");
                let synonyms = config.synonyms.iter();
                let synonyms: Vec<_> = synonyms
                    .map(|one| (one.name.as_str(), one.value.as_deref(), one.source))
                    .collect();
                let expected = [(broker, Some(default), 5)];
                let shown = version >= 2 && !broker.is_empty();
                assert_eq!(
                    synonyms,
                    &expected[..usize::from(shown)],
                    "{name} v{version}"
                );
            }
            assert!(!config.read_only && !config.is_sensitive, "{name}");
            if version >= 3 {
                assert_eq!(config.config_type, config_type, "{name}");
            }
            if version >= 3 {
                assert_eq!(config.documentation.is_some(), version >= 4, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn what_a_topic_sets_comes_before_what_the_broker_says() {
    let target = Target::start(&[("message.max.bytes", "3000000")]);
    let configs = [("max.message.bytes", "2000"), ("cleanup.policy", "delete")];
    let mut client = target.with_configs("sets", 1, &configs).await;
    let keys = ["max.message.bytes", "cleanup.policy", "no.such"];
    let result = describe(&mut client, 4, 2, "sets", Some(&keys)).await;
    let configs = by_name(&result);
    assert_eq!(configs.len(), 2);
    let config = &configs["max.message.bytes"];
    assert_eq!(
        (config.value.as_deref(), config.config_source),
        (Some("2000"), 1)
    );
    let synonyms = config.synonyms.iter();
    let synonyms: Vec<_> = synonyms
        .map(|one| (one.name.as_str(), one.value.as_deref(), one.source))
        .collect();
    let expected = [
        ("max.message.bytes", Some("2000"), 1),
        ("message.max.bytes", Some("3000000"), 4),
        ("message.max.bytes", Some("1048588"), 5),
    ];
    assert_eq!(synonyms, expected);
    assert_eq!(configs["cleanup.policy"].config_source, 1);
    let none = describe(&mut client, 4, 2, "sets", Some(&[])).await;
    assert_eq!(none.configs.len(), 33);
}

#[tokio::test]
async fn the_broker_shows_its_keys() {
    let target = Target::shared();
    let mut client = target.connect().await;
    let metadata = ops::metadata(&mut client, "none").await.unwrap();
    let id = metadata.brokers[0].node_id.0.to_string();
    let keys = [
        "num.partitions",
        "message.max.bytes",
        "auto.create.topics.enable",
    ];
    let result = describe(&mut client, 4, 4, &id, Some(&keys)).await;
    assert_eq!(result.error_code, 0);
    let configs = by_name(&result);
    let shown = |name: &str| {
        let config = &configs[name];
        let value = config.value.as_deref().unwrap().to_owned();
        (
            value,
            config.config_source,
            config.config_type,
            config.is_sensitive,
        )
    };
    assert_eq!(shown("num.partitions"), ("4".to_owned(), 4, 3, false));
    assert_eq!(
        shown("message.max.bytes"),
        ("1048588".to_owned(), 5, 3, false)
    );
    let auto = shown("auto.create.topics.enable");
    assert_eq!((auto.0.as_str(), auto.2), ("true", 1));
    assert!(configs["num.partitions"].read_only);
    let all = describe(&mut client, 1, 4, &id, None).await;
    let all = by_name(&all);
    for name in [
        "node.id",
        "listeners",
        "log.dirs",
        "num.partitions",
        "fetch.max.bytes",
    ] {
        assert!(all.contains_key(name), "{name}");
    }
    let none_set = describe(&mut client, 4, 4, "", Some(&keys)).await;
    assert_eq!((none_set.error_code, none_set.configs.len()), (0, 0));
}

/// Also those that have no effect here.
#[tokio::test]
async fn the_broker_shows_every_key_of_kafkas() {
    let target = Target::shared();
    let mut client = target.connect().await;
    let metadata = ops::metadata(&mut client, "none").await.unwrap();
    let id = metadata.brokers[0].node_id.0.to_string();
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![
            DescribeConfigsResource::default()
                .with_resource_type(4)
                .with_resource_name(text(&id))
                .with_configuration_keys(None),
        ])
        .with_include_synonyms(true)
        .with_include_documentation(true);
    let response = client.call(&request, 4).await.unwrap();
    let result = &response.results[0];
    let configs = by_name(result);
    assert_eq!(configs.len(), result.configs.len(), "each once");
    assert!(configs.len() >= 340, "{}", configs.len());
    for (name, value, kind) in [
        ("background.threads", Some("10"), 3),
        ("broker.rack", None, 2),
        ("compression.gzip.level", Some("-1"), 3),
        ("delete.topic.enable", Some("true"), 1),
        ("log.cleaner.threads", Some("1"), 3),
        ("log.flush.interval.ms", None, 5),
        ("sasl.server.callback.handler.class", None, 8),
        ("request.timeout.ms", Some("30000"), 3),
        ("ssl.keystore.password", None, 9),
        ("transaction.state.log.segment.bytes", Some("104857600"), 3),
    ] {
        let config = &configs[name];
        let shown = config.value.as_deref();
        let shown = (name, shown, config.config_type, config.config_source);
        assert_eq!(shown, (name, value, kind, 5));
        assert_eq!(config.is_sensitive, kind == 9, "{name}");
        let documented = config.documentation.as_ref();
        assert!(documented.is_some_and(|text| !text.is_empty()), "{name}");
    }
    // Two names of one key.
    assert_eq!(configs["broker.id"].value, configs["node.id"].value);
    assert_eq!(configs["broker.id"].config_type, 3);
}

#[tokio::test]
async fn what_has_no_configs_is_refused() {
    let target = Target::shared();
    let mut client = target.connect().await;
    for (kind, name, code) in [
        (2, "not-there", 3),
        (2, "not/there", 17),
        (2, "", 17),
        (4, "77", 42),
        (4, "x", 42),
        (0, "x", 42),
        (99, "x", 42),
    ] {
        let result = describe(&mut client, 4, kind, name, None).await;
        assert_eq!(result.error_code, code, "type {kind} {name:?}");
        assert!(result.error_message.is_some(), "type {kind} {name:?}");
        assert!(result.configs.is_empty());
    }
}

//! What describes and changes topics, configs and the cluster. Every field of the answers is
//! compared; the literals are Kafka's codes.

use anyhow::Result;
use bytes::Bytes;
use kafka_protocol::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_protocol::messages::describe_producers_request::TopicRequest as ProducersOf;
use kafka_protocol::messages::describe_topic_partitions_request::TopicRequest;
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, BrokerId, CreatePartitionsRequest, CreateTopicsRequest,
    DeleteRecordsRequest, DeleteTopicsRequest, DescribeClusterRequest, DescribeConfigsRequest,
    DescribeLogDirsRequest, DescribeProducersRequest, DescribeTopicPartitionsRequest,
    ElectLeadersRequest, IncrementalAlterConfigsRequest, ListConfigResourcesRequest,
    ListPartitionReassignmentsRequest, MetadataRequest,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::super::play::{P, Play, only, plain};
use crate::raw::ops;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// A topic to be created, with one replica.
pub(super) fn creatable(name: &str, partitions: i32, configs: &[(&str, &str)]) -> CreatableTopic {
    let configs = configs.iter().map(|(key, value)| {
        CreatableTopicConfig::default()
            .with_name(text(key))
            .with_value(Some(text(value)))
    });
    CreatableTopic::default()
        .with_name(ops::topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(1)
        .with_configs(configs.collect())
}

/// A CreateTopics request.
pub(super) fn create_request(topics: Vec<CreatableTopic>) -> CreateTopicsRequest {
    CreateTopicsRequest::default()
        .with_topics(topics)
        .with_timeout_ms(30_000)
}

/// A DeleteRecords request for partition 0.
pub(super) fn delete_records(topic: &str, offset: i64) -> DeleteRecordsRequest {
    let partition = DeleteRecordsPartition::default()
        .with_partition_index(0)
        .with_offset(offset);
    let topic = DeleteRecordsTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partitions(vec![partition]);
    DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000)
}

pub(super) async fn topics(play: &mut Play) -> Result<()> {
    let name = play.topic();
    let valueless = CreatableTopicConfig::default()
        .with_name(text("max.message.bytes"))
        .with_value(None);
    for (topic, code) in [
        (creatable("a/b", 1, &[]), 17),
        (creatable("", 0, &[]), 17),
        (creatable(&name, 0, &[]), 37),
        (creatable(&name, 1, &[]).with_configs(vec![valueless]), 40),
        (creatable(&name, 1, &[("no.such.config", "1")]), 40),
        (creatable(&name, 0, &[("max.message.bytes", "x")]), 40),
        (creatable(&name, 2, &[]), 0),
        (creatable(&name, 2, &[]), 36),
        (creatable(&name, 0, &[]), 36),
    ] {
        let mut response = play.ask(&create_request(vec![topic]), 7).await?;
        // A fresh 4.3 sets this one for all brokers.
        let configs = response.topics[0].configs.iter_mut().flatten();
        for config in configs.filter(|config| &*config.name == "min.insync.replicas") {
            config.config_source = 5;
        }
        play.record("CreateTopics", &response);
        play.expect("CreateTopics", only(&response.topics)?.error_code, code);
    }
    ops::await_topic(play.client(), &name, 2).await?;
    let metadata = MetadataRequest::default()
        .with_topics(Some(vec![
            kafka_protocol::messages::metadata_request::MetadataRequestTopic::default()
                .with_name(Some(ops::topic_name(&name))),
        ]))
        .with_allow_auto_topic_creation(true);
    for version in [1, 5, 9, 12, 13] {
        let operations = version >= 8;
        let metadata = metadata.clone();
        let metadata = metadata.with_include_topic_authorized_operations(operations);
        play.call(&metadata, version).await?;
    }
    let id = ops::metadata(play.client(), &name).await?.topics[0].topic_id;
    let by_name = |name: &str| DeleteTopicState::default().with_name(Some(ops::topic_name(name)));
    let by_id = |id: Uuid| {
        DeleteTopicState::default()
            .with_name(None)
            .with_topic_id(id)
    };
    for (topic, code) in [
        (by_name("of-nobody"), 3),
        (by_id(Uuid::from_u128(0x55)), 100),
        (by_id(Uuid::nil()), 42),
        (by_name(&name).with_topic_id(id), 42),
        (by_id(id), 0),
        (by_id(id), 100),
        (by_name(&name), 3),
    ] {
        let request = DeleteTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(30_000);
        let response = play.call(&request, 6).await?;
        play.expect("DeleteTopics", only(&response.responses)?.error_code, code);
    }
    Ok(())
}

pub(super) async fn partitions(play: &mut Play) -> Result<()> {
    play.create(2, &[]).await?;
    let name = play.topic();
    for (name, count, code) in [
        (name.as_str(), 2, 37),
        (&name, 1, 37),
        (&name, -1, 37),
        ("of-nobody", 2, 3),
        (&name, 3, 0),
    ] {
        let topic = CreatePartitionsTopic::default()
            .with_name(ops::topic_name(name))
            .with_count(count)
            .with_assignments(None);
        let request = CreatePartitionsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(30_000);
        let response = play.call(&request, 3).await?;
        play.expect(
            "CreatePartitions",
            only(&response.results)?.error_code,
            code,
        );
    }
    ops::await_topic(play.client(), &name, 3).await?;
    for (names, limit) in [(vec![name.as_str()], 100), (vec![&name, "of-nobody"], 2)] {
        let topics = names
            .into_iter()
            .map(|name| TopicRequest::default().with_name(ops::topic_name(name)));
        let request = DescribeTopicPartitionsRequest::default()
            .with_topics(topics.collect())
            .with_response_partition_limit(limit)
            .with_cursor(None);
        play.call(&request, 0).await?;
    }
    Ok(())
}

fn change(name: &str, entries: &[(&str, i8, Option<&str>)]) -> IncrementalAlterConfigsRequest {
    let configs = entries.iter().map(|(key, operation, value)| {
        AlterableConfig::default()
            .with_name(text(key))
            .with_config_operation(*operation)
            .with_value(value.map(text))
    });
    let resource = AlterConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text(name))
        .with_configs(configs.collect());
    IncrementalAlterConfigsRequest::default().with_resources(vec![resource])
}

pub(super) async fn configs(play: &mut Play) -> Result<()> {
    play.create(2, &[("max.message.bytes", "5000")]).await?;
    let name = play.topic();
    let size = "max.message.bytes";
    for (entries, code) in [
        (vec![(size, 0, Some("1000"))], 0),
        (vec![(size, 0, Some("many"))], 40),
        (vec![(size, 0, None)], 42),
        (vec![(size, 2, Some("1"))], 40),
        (vec![("no.such.config", 0, Some("1"))], 40),
        (vec![(size, 0, Some("1")), (size, 1, None)], 42),
    ] {
        let response = play.call(&change(&name, &entries), 1).await?;
        let code_of = only(&response.responses)?.error_code;
        play.expect("IncrementalAlterConfigs", code_of, code);
    }
    let keys = ["max.message.bytes", "compression.type", "retention.bytes"];
    let describe = |kind: i8, name: &str, keys: &[&str]| {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(text(name))
            .with_configuration_keys(Some(keys.iter().map(|key| text(key)).collect()));
        DescribeConfigsRequest::default()
            .with_resources(vec![resource])
            .with_include_synonyms(true)
    };
    let request = describe(TOPIC, &name, &["max.message.bytes"]);
    // A broker of Kafka follows its controller.
    play.until(&request, 4, |answer| {
        let results = answer.results.iter();
        let mut configs = results.flat_map(|result| &result.configs);
        configs.all(|one| one.value.as_deref() == Some("1000"))
    })
    .await?;
    for key in keys {
        play.call(&describe(TOPIC, &name, &[key]), 4).await?;
    }
    play.call(&describe(TOPIC, "of-nobody", &keys), 4).await?;
    play.call(&describe(BROKER, "77", &keys), 4).await?;
    let broker = describe(BROKER, "1", &["num.partitions"]);
    play.call(&broker, 4).await?;
    let mut large = P(-1, -1, -1, 1).spec();
    large.records[0].value = Some(Bytes::from(vec![b'x'; 2000]));
    // A log of Kafka may hear of it after it is described.
    let elsewhere = ops::produce_request(&name, 1, large.build());
    play.until(&elsewhere, 9, |answer| {
        answer.responses[0].partition_responses[0].error_code == 10
    })
    .await?;
    play.produce(large.build(), 10, -1).await?;
    play.produce(plain(1), 0, 0).await?;
    // Of all types there are topics and brokers; other topics are not this vector's.
    for (types, code) in [
        (vec![BROKER], 0),
        (vec![16], 0),
        (vec![32], 0),
        (vec![3], 35),
    ] {
        let request = ListConfigResourcesRequest::default().with_resource_types(types);
        let response = play.call(&request, 1).await?;
        play.expect("ListConfigResources", response.error_code, code);
    }
    Ok(())
}

/// Keys that only Fencepost has.
const OWN_KEYS: &[&str] = &[
    "admin.listen",
    "admin.token.file",
    "connections.write.stall.ms",
    "enable.faults",
    "flush.policy",
    "index.dir",
    "journal.reserved.bytes",
    "journal.segment.bytes",
    "logging.filter",
    "logging.format",
    // These two are internal to Kafka, which does not show them.
    "log.initial.task.delay.ms",
    "producer.id.expiration.check.interval.ms",
    "queued.max.response.bytes",
    "shutdown.drain.ms",
    "store",
    "transaction.poll.interval.ms",
    "transaction.reconcile.interval.ms",
    "transaction.version",
    "validate",
    "virtual.replicas",
];

/// Which keys a broker shows, and of which types.
pub(super) async fn broker_keys(play: &mut Play) -> Result<()> {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(BROKER)
        .with_resource_name(text("1"))
        .with_configuration_keys(None);
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_documentation(true);
    let response = play.ask(&request, 4).await?;
    let result = only(&response.results)?;
    play.expect("DescribeConfigs", result.error_code, 0);
    let mut keys = std::collections::BTreeMap::new();
    for config in &result.configs {
        let name = config.name.as_str();
        if OWN_KEYS.contains(&name) {
            continue;
        }
        let documented = config.documentation.as_ref();
        let documented = documented.is_some_and(|text| !text.is_empty());
        let told = !config.is_sensitive || config.value.is_none();
        let key = (config.config_type, config.is_sensitive, documented, told);
        let twice = keys.insert(name.to_owned(), key).is_some();
        play.expect(name, twice, false);
    }
    for (name, key) in keys {
        play.record(&name, &key);
    }
    Ok(())
}

pub(super) async fn cluster(play: &mut Play) -> Result<()> {
    for version in 0..=2 {
        let request =
            DescribeClusterRequest::default().with_include_cluster_authorized_operations(true);
        play.call(&request, version).await?;
    }
    for (endpoint, code) in [(2, 114), (3, 115)] {
        let request = DescribeClusterRequest::default().with_endpoint_type(endpoint);
        let response = play.call(&request, 1).await?;
        play.expect("DescribeCluster", response.error_code, code);
    }
    Ok(())
}

pub(super) async fn directories(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    play.produce(plain(3), 0, 0).await?;
    let name = play.topic();
    let asked = |name: &str, partitions: &[i32]| {
        DescribableLogDirTopic::default()
            .with_topic(ops::topic_name(name))
            .with_partitions(partitions.to_vec())
    };
    for topics in [
        vec![asked(&name, &[0])],
        vec![asked(&name, &[0, 7]), asked("of-nobody", &[0])],
        vec![],
    ] {
        let request = DescribeLogDirsRequest::default().with_topics(Some(topics));
        for version in 1..=4 {
            let response = play.call(&request, version).await?;
            play.expect("DescribeLogDirs", response.error_code, 0);
        }
    }
    Ok(())
}

pub(super) async fn elections(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    let name = play.topic();
    for (topic, partition, kind, code) in [
        (name.as_str(), 0, 0, 84),
        (&name, 0, 1, 84),
        (&name, 5, 0, 3),
        ("of-nobody", 0, 0, 3),
    ] {
        let partitions = TopicPartitions::default()
            .with_topic(ops::topic_name(topic))
            .with_partitions(vec![partition]);
        let request = ElectLeadersRequest::default()
            .with_election_type(kind)
            .with_topic_partitions(Some(vec![partitions]))
            .with_timeout_ms(30_000);
        let response = play.call(&request, 2).await?;
        let of_topic = only(&response.replica_election_results)?;
        let got = only(&of_topic.partition_result)?.error_code;
        play.expect("ElectLeaders", got, code);
    }
    for (partition, replicas, code) in [
        (0, Some(vec![BrokerId(1)]), 0),
        (0, Some(vec![BrokerId(9)]), 39),
        (0, None, 85),
        (7, Some(vec![BrokerId(1)]), 3),
    ] {
        let partition = ReassignablePartition::default()
            .with_partition_index(partition)
            .with_replicas(replicas);
        let topic = ReassignableTopic::default()
            .with_name(ops::topic_name(&name))
            .with_partitions(vec![partition]);
        let request = AlterPartitionReassignmentsRequest::default()
            .with_timeout_ms(30_000)
            .with_topics(vec![topic]);
        let response = play.call(&request, 0).await?;
        let got = only(&only(&response.responses)?.partitions)?.error_code;
        play.expect("AlterPartitionReassignments", got, code);
    }
    let request = ListPartitionReassignmentsRequest::default()
        .with_timeout_ms(30_000)
        .with_topics(None);
    play.call(&request, 0).await?;
    Ok(())
}

pub(super) async fn producers(play: &mut Play) -> Result<()> {
    play.create(1, &[]).await?;
    play.produce(P(7, 3, 0, 4).batch(), 0, 0).await?;
    let name = play.topic();
    for (topic, partition) in [(name.as_str(), 0), (&name, 5), ("of-nobody", 0)] {
        let topic = ProducersOf::default()
            .with_name(ops::topic_name(topic))
            .with_partition_indexes(vec![partition]);
        let request = DescribeProducersRequest::default().with_topics(vec![topic]);
        play.call(&request, 0).await?;
    }
    Ok(())
}

//! The handful of requests that nearly every suite begins with.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{MetadataResponse, MetadataResponseTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    ApiVersionsRequest, BrokerId, CreateTopicsRequest, DeleteTopicsRequest, InitProducerIdRequest,
    ListOffsetsRequest, MetadataRequest, ProduceRequest, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use super::RawClient;

/// ListOffsets timestamp of the end of the log.
pub const LATEST: i64 = -1;
/// ListOffsets timestamp of the start of the log.
pub const EARLIEST: i64 = -2;

/// Error unless `code` is 0; the error names the code in Kafka's words.
pub fn check(code: i16, what: &str) -> Result<()> {
    match ResponseError::try_from_code(code) {
        None => Ok(()),
        Some(error) => bail!("{what}: {code} ({error:?})"),
    }
}

/// A topic name as the protocol crate wants it.
pub fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

/// What the broker advertises.
pub async fn api_versions(client: &mut RawClient) -> Result<Vec<ApiVersion>> {
    let request = ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("fencepost-tests"))
        .with_client_software_version(StrBytes::from_static_str("1"));
    let response = client.call(&request, 3).await?;
    check(response.error_code, "ApiVersions")?;
    Ok(response.api_keys)
}

/// Creates a topic with one replica and awaits that all its partitions have a leader. `configs`
/// are topic configs. The topic must not exist.
pub async fn create_topic(
    client: &mut RawClient,
    name: &str,
    partitions: i32,
    configs: &[(&str, &str)],
) -> Result<MetadataResponse> {
    let configs = configs.iter().map(|(key, value)| {
        CreatableTopicConfig::default()
            .with_name(StrBytes::from_string((*key).to_owned()))
            .with_value(Some(StrBytes::from_string((*value).to_owned())))
    });
    let topic = CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(1)
        .with_configs(configs.collect());
    let request = CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000);
    let response = client.call(&request, 5).await?;
    let result = response
        .topics
        .first()
        .context("CreateTopics answered no topic")?;
    check(result.error_code, &format!("CreateTopics {name}"))?;
    await_topic(client, name, partitions).await
}

/// Deletes a topic by name.
pub async fn delete_topic(client: &mut RawClient, name: &str) -> Result<()> {
    let request = DeleteTopicsRequest::default()
        .with_topic_names(vec![topic_name(name)])
        .with_timeout_ms(30_000);
    let response = client.call(&request, 5).await?;
    let result = response
        .responses
        .first()
        .context("DeleteTopics answered no topic")?;
    check(result.error_code, &format!("DeleteTopics {name}"))
}

/// Metadata of one topic; does not create it.
pub async fn metadata(client: &mut RawClient, name: &str) -> Result<MetadataResponse> {
    let topic = MetadataRequestTopic::default().with_name(Some(topic_name(name)));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![topic]))
        .with_allow_auto_topic_creation(false);
    client.call(&request, 12).await
}

/// Awaits until the topic has `partitions` partitions, each with a leader that serves it. Apache
/// Kafka answers CreateTopics before its metadata has the topic, and its metadata before the log
/// is open, so this has to ask again; at most 1200 times, 50 ms apart. ListOffsets is the probe:
/// it is answered by the leader's log and changes nothing.
pub async fn await_topic(
    client: &mut RawClient,
    name: &str,
    partitions: i32,
) -> Result<MetadataResponse> {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let mut last = String::from("no leader for each partition");
    for _ in 0..1200 {
        pace.tick().await;
        let response = metadata(client, name).await?;
        if response
            .topics
            .first()
            .is_some_and(|topic| has_leaders(topic, partitions))
        {
            match list_offsets(client, name, partitions, LATEST).await {
                Ok(_) => return Ok(response),
                Err(e) => last = e.to_string(),
            }
        }
    }
    bail!("topic {name} does not serve its {partitions} partitions: {last}")
}

fn has_leaders(topic: &MetadataResponseTopic, partitions: i32) -> bool {
    topic.error_code == 0
        && i32::try_from(topic.partitions.len()) == Ok(partitions)
        && topic
            .partitions
            .iter()
            .all(|p| p.error_code == 0 && p.leader_id.0 >= 0)
}

/// Address of the broker that leads every partition of the topic; an error if there are several.
pub fn sole_leader(metadata: &MetadataResponse) -> Result<String> {
    let topic = metadata
        .topics
        .first()
        .context("no topic in the metadata")?;
    let mut leaders: Vec<BrokerId> = topic.partitions.iter().map(|p| p.leader_id).collect();
    leaders.dedup();
    let [leader] = leaders[..] else {
        bail!("the partitions of the topic are led by several brokers: {leaders:?}");
    };
    let broker = metadata.brokers.iter().find(|b| b.node_id == leader);
    let broker = broker.with_context(|| format!("leader {leader:?} is not in the metadata"))?;
    Ok(format!("{}:{}", &*broker.host, broker.port))
}

/// A fresh producer id and epoch, without transactional id. Answers that ask for a retry are
/// retried at most 600 times, 50 ms apart.
pub async fn init_producer_id(client: &mut RawClient) -> Result<(i64, i16)> {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_transaction_timeout_ms(60_000)
        .with_producer_id((-1).into())
        .with_producer_epoch(-1);
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..600 {
        pace.tick().await;
        let response = client.call(&request, 4).await?;
        if ResponseError::try_from_code(response.error_code).is_some_and(|e| e.is_retriable()) {
            continue;
        }
        check(response.error_code, "InitProducerId")?;
        return Ok((response.producer_id.0, response.producer_epoch));
    }
    bail!("InitProducerId kept asking for a retry")
}

/// The offset of each partition `0..partitions` at `timestamp` ([`EARLIEST`], [`LATEST`] or ms).
pub async fn list_offsets(
    client: &mut RawClient,
    name: &str,
    partitions: i32,
    timestamp: i64,
) -> Result<Vec<i64>> {
    offsets_as(client, name, partitions, timestamp, 0).await
}

/// The last stable offset of each partition `0..partitions`.
pub async fn stable_offsets(
    client: &mut RawClient,
    name: &str,
    partitions: i32,
) -> Result<Vec<i64>> {
    offsets_as(client, name, partitions, LATEST, 1).await
}

async fn offsets_as(
    client: &mut RawClient,
    name: &str,
    partitions: i32,
    timestamp: i64,
    isolation_level: i8,
) -> Result<Vec<i64>> {
    let wanted = (0..partitions).map(|index| {
        ListOffsetsPartition::default()
            .with_partition_index(index)
            .with_current_leader_epoch(-1)
            .with_timestamp(timestamp)
    });
    let topic = ListOffsetsTopic::default()
        .with_name(topic_name(name))
        .with_partitions(wanted.collect());
    let request = ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_isolation_level(isolation_level)
        .with_topics(vec![topic]);
    let response = client.call(&request, 7).await?;
    let topic = response
        .topics
        .first()
        .context("ListOffsets answered no topic")?;
    let mut offsets = vec![None; topic.partitions.len()];
    for partition in &topic.partitions {
        let index = partition.partition_index;
        check(partition.error_code, &format!("ListOffsets {name}-{index}"))?;
        let slot = usize::try_from(index).ok().and_then(|i| offsets.get_mut(i));
        *slot.with_context(|| format!("ListOffsets answered partition {index}"))? =
            Some(partition.offset);
    }
    let offsets: Option<Vec<i64>> = offsets.into_iter().collect();
    offsets.context("ListOffsets left a partition out")
}

/// A Produce request of one batch to one partition, acks=all.
pub fn produce_request(name: &str, partition: i32, batch: Bytes) -> ProduceRequest {
    let partition = PartitionProduceData::default()
        .with_index(partition)
        .with_records(Some(batch));
    let topic = TopicProduceData::default()
        .with_name(topic_name(name))
        .with_partition_data(vec![partition]);
    ProduceRequest::default()
        .with_transactional_id(None)
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![topic])
}

/// Sends one batch to one partition (Produce v9, acks=all) and returns that partition's answer,
/// whatever its error code is.
pub async fn produce(
    client: &mut RawClient,
    name: &str,
    partition: i32,
    batch: Bytes,
) -> Result<PartitionProduceResponse> {
    let response = client
        .call(&produce_request(name, partition, batch), 9)
        .await?;
    let topic = response
        .responses
        .into_iter()
        .next()
        .context("Produce answered no topic")?;
    topic
        .partition_responses
        .into_iter()
        .next()
        .context("Produce answered no partition")
}

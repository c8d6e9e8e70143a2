//! CreateTopics (key 19), versions 2 to 7. v4 defaults by -1; v5 configs in the answer; v7 ids.
//!
//! Differences from Kafka: any replication factor is accepted, and the answer reports the one
//! replica that there is (or `virtual.replicas`). A topic config whose mechanism is not there is
//! refused with 40, never silently ignored. The configs of more than 64 topics are not told. A name
//! that is there twice is answered once, with 42.

use std::collections::BTreeMap;
use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult,
};
use kafka_protocol::messages::{CreateTopicsRequest, CreateTopicsResponse};
use kafka_protocol::protocol::StrBytes;

use super::describe_configs::in_force;
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::{Broker, NewTopic, TopicError};
use crate::error_code;

/// Requests of more topics have no configs in their answers, which would be many times as large.
const DESCRIBED_MAX: usize = 64;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: CreateTopicsRequest,
) -> Staged<ApiResponse> {
    let broker = broker.clone();
    let with_configs = context.version >= 5 && request.topics.len() <= DESCRIBED_MAX;
    Staged::Later(Box::pin(async move {
        let mut named = BTreeMap::new();
        for topic in &request.topics {
            *named.entry(topic.name.clone()).or_insert(0_usize) += 1;
        }
        let mut response = CreateTopicsResponse::default();
        for topic in request.topics {
            let name = topic.name.clone();
            let outcome = match named.remove(&name) {
                None => continue,
                Some(1) => create(&broker, topic, request.validate_only, with_configs).await,
                Some(_) => Err(Refusal::new(
                    ResponseError::InvalidRequest,
                    "Duplicate topic name.",
                )),
            };
            let mut result = outcome.unwrap_or_else(Refusal::into_result);
            result.name = name;
            response.topics.push(result);
        }
        ApiResponse::CreateTopics(Box::new(response))
    }))
}

struct Refusal {
    code: ResponseError,
    message: String,
}

impl Refusal {
    fn new(code: ResponseError, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    fn into_result(self) -> CreatableTopicResult {
        let mut result = CreatableTopicResult::default();
        result.error_code = self.code.code();
        result.error_message = Some(StrBytes::from_string(self.message));
        result.num_partitions = -1;
        result.replication_factor = -1;
        result.configs = Some(Vec::new());
        result
    }
}

async fn create(
    broker: &Arc<Broker>,
    asked: CreatableTopic,
    validate_only: bool,
    with_configs: bool,
) -> Result<CreatableTopicResult, Refusal> {
    let refuse = |error: TopicError| Refusal::new(error_code::topic(&error), error.to_string());
    // In Kafka's order: the name, the configs, the partitions.
    broker.check_topic_name(&asked.name).map_err(refuse)?;
    let configs = configs(&asked)?;
    broker.check_topic_configs(&configs).map_err(refuse)?;
    let partitions = partitions(broker, &asked)?;
    let mut described = Vec::new();
    if with_configs {
        described = in_force(broker, &configs);
    }
    let topic = NewTopic {
        name: asked.name.to_string(),
        partitions,
        configs,
    };
    let created = broker.create_topic(topic, validate_only).await;
    let created = created.map_err(refuse)?;
    let mut result = CreatableTopicResult::default();
    result.topic_id = created.unwrap_or_default();
    result.num_partitions = i32::try_from(partitions).unwrap_or(i32::MAX);
    result.replication_factor = i16::try_from(broker.replicas().len()).unwrap_or(i16::MAX);
    // The crate's default is an empty message; Kafka sends none.
    result.error_message = None;
    result.configs = Some(described.into_iter().map(config).collect());
    Ok(result)
}

fn config((name, value, source): (&'static str, String, i8)) -> CreatableTopicConfigs {
    let mut config = CreatableTopicConfigs::default();
    config.name = StrBytes::from_static_str(name);
    config.value = Some(StrBytes::from_string(value));
    config.config_source = source;
    config
}

/// Configs by name; each needs a value, and of a name that is there twice the last one counts.
fn configs(asked: &CreatableTopic) -> Result<BTreeMap<String, String>, Refusal> {
    let mut configs = BTreeMap::new();
    let mut without = Vec::new();
    for config in &asked.configs {
        match &config.value {
            None => without.push(config.name.as_str()),
            Some(value) => {
                configs.insert(config.name.to_string(), value.to_string());
            }
        }
    }
    if without.is_empty() {
        return Ok(configs);
    }
    let names = without.join(", ");
    let message = format!("These configs have no value: {names}");
    Err(Refusal::new(ResponseError::InvalidConfig, message))
}

/// Partition count from the count, the default, or a manual assignment to this broker.
fn partitions(broker: &Broker, asked: &CreatableTopic) -> Result<u32, Refusal> {
    if asked.assignments.is_empty() {
        return match asked.num_partitions {
            -1 => Ok(broker.config().num_partitions),
            n if n > 0 => Ok(n.unsigned_abs()),
            _ => Err(Refusal::new(
                ResponseError::InvalidPartitions,
                "Number of partitions was set to an invalid non-positive value.",
            )),
        };
    }
    if asked.num_partitions != -1 || asked.replication_factor != -1 {
        return Err(Refusal::new(
            ResponseError::InvalidRequest,
            "A manual assignment excludes a partition count and a replication factor.",
        ));
    }
    let mut indices: Vec<i32> = asked
        .assignments
        .iter()
        .map(|a| a.partition_index)
        .collect();
    indices.sort_unstable();
    let consecutive = indices
        .iter()
        .zip(0_i32..)
        .all(|(index, wanted)| *index == wanted);
    if !consecutive {
        return Err(Refusal::new(
            ResponseError::InvalidReplicaAssignment,
            "Partitions must be numbered from 0 without a gap.",
        ));
    }
    let known = asked
        .assignments
        .iter()
        .all(|a| broker.can_place(&a.broker_ids));
    if !known {
        return Err(Refusal::new(
            ResponseError::InvalidReplicaAssignment,
            broker.placement_refusal(),
        ));
    }
    Ok(u32::try_from(indices.len()).unwrap_or(u32::MAX))
}

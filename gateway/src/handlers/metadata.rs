//! Metadata (key 3), versions 0 to 13.
//!
//! v1 null topics are all; v4 auto-creation can be refused; v8 authorized operations of topics, to
//! v10 of the cluster too; v10 topic ids; v12 topics by id; v13 a top-level error. Auto-creation
//! happens only for names, never ids.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{BrokerId, MetadataRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::operations;
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::{Broker, HostedTopic, NoTopic};
use crate::error_code;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: MetadataRequest,
) -> Staged<ApiResponse> {
    let broker = broker.clone();
    let (version, listener) = (context.version, context.connection.listener);
    let missing = missing_names(&broker, &request, version);
    if missing.is_empty() {
        return Staged::Now(answer(&broker, request, version, listener));
    }
    Staged::Later(Box::pin(async move {
        for name in missing {
            if let Err(error) = broker.auto_create(&name).await {
                // Each request for it comes here.
                tracing::debug!(topic = name.as_str(), %error, "topic not created automatically");
            }
        }
        answer(&broker, request, version, listener)
    }))
}

/// Names that may be created by asking for them.
fn missing_names(broker: &Broker, request: &MetadataRequest, version: i16) -> Vec<StrBytes> {
    let allowed = version < 4 || request.allow_auto_topic_creation;
    if !allowed || !broker.config().auto_create_topics {
        return Vec::new();
    }
    let asked = request.topics.iter().flatten();
    asked
        .filter(|topic| topic.topic_id.is_nil())
        .filter_map(|topic| topic.name.as_ref())
        .filter(|name| broker.find_topic(name).err() == Some(NoTopic::Unknown))
        .filter(|name| broker.valid_topic_name(name))
        .map(|name| name.0.clone())
        .collect()
}

fn answer(broker: &Broker, request: MetadataRequest, version: i16, listener: usize) -> ApiResponse {
    let mut response = MetadataResponse::default();
    let (host, port) = broker.address(listener);
    let mut this = MetadataResponseBroker::default();
    this.node_id = BrokerId(broker.id().0);
    this.host = host;
    this.port = port;
    response.brokers.push(this);
    response.cluster_id = Some(broker.cluster_id());
    response.controller_id = BrokerId(broker.id().0);
    response.cluster_authorized_operations = operations::NOT_GIVEN;
    if request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = operations::CLUSTER;
    }
    // v0 has no null list: an empty one means all.
    let all = match &request.topics {
        None => true,
        Some(topics) => version == 0 && topics.is_empty(),
    };
    let of_topics = request.include_topic_authorized_operations;
    response.topics = if all {
        broker
            .topics()
            .iter()
            .map(|topic| describe(broker, topic))
            .collect()
    } else {
        let asked = request.topics.unwrap_or_default();
        asked.into_iter().map(|topic| one(broker, topic)).collect()
    };
    // Also of a name that is not there, but not of an id.
    let named = response.topics.iter_mut().filter(|topic| is_named(topic));
    for topic in named.filter(|_| of_topics) {
        topic.topic_authorized_operations = operations::TOPIC;
    }
    ApiResponse::Metadata(Box::new(response))
}

fn is_named(topic: &MetadataResponseTopic) -> bool {
    topic.name.as_ref().is_some_and(|name| !name.is_empty())
}

fn one(broker: &Broker, asked: MetadataRequestTopic) -> MetadataResponseTopic {
    if !asked.topic_id.is_nil() {
        return match broker.topic_by_id(asked.topic_id) {
            Some(topic) => describe(broker, &topic),
            None => unknown(None, asked.topic_id, ResponseError::UnknownTopicId),
        };
    }
    let Some(name) = asked.name else {
        return unknown(None, Uuid::nil(), ResponseError::InvalidRequest);
    };
    let code = match broker.find_topic(&name) {
        Ok(topic) => return describe(broker, &topic),
        Err(_) if !broker.valid_topic_name(&name) => ResponseError::InvalidTopicException,
        Err(reason) => error_code::no_topic_in_metadata(reason),
    };
    unknown(Some(name), Uuid::nil(), code)
}

fn unknown(name: Option<TopicName>, id: Uuid, code: ResponseError) -> MetadataResponseTopic {
    let mut topic = MetadataResponseTopic::default();
    topic.error_code = code.code();
    // Versions without null names carry an empty one.
    topic.name = Some(name.unwrap_or_default());
    topic.topic_id = id;
    topic.topic_authorized_operations = operations::NOT_GIVEN;
    topic
}

fn describe(broker: &Broker, hosted: &HostedTopic) -> MetadataResponseTopic {
    let mut topic = MetadataResponseTopic::default();
    topic.name = Some(TopicName(hosted.name.clone()));
    topic.topic_id = hosted.id;
    topic.topic_authorized_operations = operations::NOT_GIVEN;
    let this = BrokerId(broker.id().0);
    let replicas = broker.replicas();
    for (index, slot) in (0_i32..).zip(&hosted.partitions) {
        let mut partition = MetadataResponsePartition::default();
        partition.partition_index = index;
        partition.leader_id = this;
        partition.replica_nodes.clone_from(&replicas);
        partition.isr_nodes.clone_from(&replicas);
        match slot.unavailable() {
            None => {
                partition.leader_epoch = i32::try_from(slot.epoch().0).unwrap_or(i32::MAX);
            }
            Some(error) => {
                partition.error_code = error_code::unavailable_partition(&error).code();
                partition.leader_id = BrokerId(-1);
                partition.isr_nodes = Vec::new();
                partition.offline_replicas.clone_from(&replicas);
            }
        }
        topic.partitions.push(partition);
    }
    topic
}

//! Metadata (key 3), versions 0 to 13.
//!
//! v1 null topics are all; v4 auto-creation can be refused; v8 authorized operations of topics, to
//! v10 of the cluster too; v10 topic ids; v12 topics by id (42 for the whole request before), and
//! no name for an id without a topic; v13 a top-level error. Auto-creation happens only for names,
//! never ids. What is asked for twice is answered once.

use std::collections::BTreeSet;
use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{BrokerId, MetadataRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::{bounded, in_turn, operations};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::{Broker, HostedTopic, NoTopic};
use crate::error_code;

/// First version that can ask for a topic by its id, and whose answers may be without a name.
const BY_ID: i16 = 12;

/// What is asked for.
#[derive(Debug, Clone)]
struct Asked {
    version: i16,
    /// Each once; `None` for all topics.
    topics: Option<Vec<MetadataRequestTopic>>,
    /// Index of the listener whose address is told.
    listener: usize,
    /// Whether it is told what the client may do with the cluster.
    of_cluster: bool,
    /// Whether it is told what the client may do with each topic.
    of_topics: bool,
}

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: MetadataRequest,
) -> Staged<ApiResponse> {
    let version = context.version;
    let may_create = version < 4 || request.allow_auto_topic_creation;
    // v0 has no null list: an empty one means all.
    let topics = request.topics;
    let topics = topics.filter(|topics| version > 0 || !topics.is_empty());
    let asked = Asked {
        version,
        topics: topics.map(each_once),
        listener: context.connection.listener,
        of_cluster: request.include_cluster_authorized_operations,
        of_topics: request.include_topic_authorized_operations,
    };
    if version < BY_ID && asked.topics.iter().flatten().any(is_by_id) {
        return Staged::Now(refused(&asked));
    }
    let missing = missing_names(broker, &asked, may_create);
    if missing.is_empty() {
        return bounded(broker, context, move |broker| answer(broker, &asked));
    }
    let broker = broker.clone();
    Staged::Later(Box::pin(async move {
        for name in missing {
            if let Err(error) = broker.auto_create(&name).await {
                // Each request for it comes here.
                tracing::debug!(topic = name.as_str(), %error, "topic not created automatically");
            }
        }
        in_turn(&broker, version, |broker| answer(broker, &asked)).await
    }))
}

/// A topic is answered once, however often it is asked for.
fn each_once(mut topics: Vec<MetadataRequestTopic>) -> Vec<MetadataRequestTopic> {
    let mut seen = BTreeSet::new();
    topics.retain(|topic| {
        let by_name = topic.topic_id.is_nil();
        let name = topic.name.clone().filter(|_| by_name);
        seen.insert((topic.topic_id, name))
    });
    topics
}

/// Names that may be created by asking for them.
fn missing_names(broker: &Broker, asked: &Asked, may_create: bool) -> Vec<StrBytes> {
    if !may_create || !broker.config().auto_create_topics {
        return Vec::new();
    }
    let asked = asked.topics.iter().flatten();
    asked
        .filter(|topic| topic.topic_id.is_nil())
        .filter_map(|topic| topic.name.as_ref())
        .filter(|name| broker.find_topic(name).err() == Some(NoTopic::Unknown))
        .filter(|name| broker.valid_topic_name(name))
        .map(|name| name.0.clone())
        .collect()
}

fn answer(broker: &Broker, asked: &Asked) -> ApiResponse {
    let mut response = MetadataResponse::default();
    let (host, port) = broker.address(asked.listener);
    let mut this = MetadataResponseBroker::default();
    this.node_id = BrokerId(broker.id().0);
    this.host = host;
    this.port = port;
    response.brokers.push(this);
    response.cluster_id = Some(broker.cluster_id());
    response.controller_id = BrokerId(broker.id().0);
    response.cluster_authorized_operations = operations::NOT_GIVEN;
    if asked.of_cluster {
        response.cluster_authorized_operations = operations::CLUSTER;
    }
    response.topics = match &asked.topics {
        None => {
            let topics = broker.topics();
            let topics = topics.iter().map(|topic| describe(broker, topic));
            topics.collect()
        }
        Some(topics) => {
            let topics = topics.iter().map(|topic| one(broker, topic, asked.version));
            topics.collect()
        }
    };
    // Also of a name that is not there, but not of an id.
    let named = response.topics.iter_mut().filter(|topic| is_named(topic));
    for topic in named.filter(|_| asked.of_topics) {
        topic.topic_authorized_operations = operations::TOPIC;
    }
    ApiResponse::Metadata(Box::new(response.into()))
}

fn is_named(topic: &MetadataResponseTopic) -> bool {
    topic.name.as_ref().is_some_and(|name| !name.is_empty())
}

/// Whether a topic is asked for as only later versions may.
fn is_by_id(topic: &MetadataRequestTopic) -> bool {
    topic.name.is_none() || !topic.topic_id.is_nil()
}

/// As Kafka does: nothing of the request is answered, not even who the brokers are.
fn refused(asked: &Asked) -> ApiResponse {
    let topics = asked.topics.iter().flatten().map(|topic| {
        let name = topic.name.clone();
        unknown(
            name,
            topic.topic_id,
            ResponseError::InvalidRequest,
            asked.version,
        )
    });
    let mut response = MetadataResponse::default();
    response.topics = topics.collect();
    response.cluster_id = None;
    response.controller_id = BrokerId(-1);
    response.cluster_authorized_operations = operations::NOT_GIVEN;
    ApiResponse::Metadata(Box::new(response.into()))
}

fn one(broker: &Broker, asked: &MetadataRequestTopic, version: i16) -> MetadataResponseTopic {
    if !asked.topic_id.is_nil() {
        return match broker.topic_by_id(asked.topic_id) {
            Some(topic) => describe(broker, &topic),
            None => unknown(None, asked.topic_id, ResponseError::UnknownTopicId, version),
        };
    }
    let Some(name) = &asked.name else {
        return unknown(None, Uuid::nil(), ResponseError::InvalidRequest, version);
    };
    let code = match broker.find_topic(name) {
        Ok(topic) => return describe(broker, &topic),
        Err(_) if !broker.valid_topic_name(name) => ResponseError::InvalidTopicException,
        Err(reason) => error_code::no_topic_in_metadata(reason),
    };
    unknown(Some(name.clone()), Uuid::nil(), code, version)
}

fn unknown(
    name: Option<TopicName>,
    id: Uuid,
    code: ResponseError,
    version: i16,
) -> MetadataResponseTopic {
    let mut topic = MetadataResponseTopic::default();
    topic.error_code = code.code();
    // Versions without null names carry an empty one.
    topic.name = name.or_else(|| (version < BY_ID).then(TopicName::default));
    topic.topic_id = id;
    topic.topic_authorized_operations = operations::NOT_GIVEN;
    topic
}

fn describe(broker: &Broker, hosted: &HostedTopic) -> MetadataResponseTopic {
    let mut topic = MetadataResponseTopic::default();
    topic.name = Some(TopicName(hosted.name.clone()));
    topic.topic_id = hosted.id;
    topic.topic_authorized_operations = operations::NOT_GIVEN;
    let replicas = broker.replicas();
    for (index, slot) in (0_i32..).zip(&hosted.partitions) {
        let mut partition = MetadataResponsePartition::default();
        partition.partition_index = index;
        partition.replica_nodes.clone_from(&replicas);
        partition.isr_nodes.clone_from(&replicas);
        match slot.unavailable() {
            None => {
                (partition.leader_id, partition.leader_epoch) = broker.said_leader(slot);
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

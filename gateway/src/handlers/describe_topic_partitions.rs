//! DescribeTopicPartitions (key 75), version 0: topics in order of names, page by page.
//!
//! A page holds as many partitions as the client asks for, at most [`PAGE_MAX`]; the cursor of the
//! answer is where the next one begins.

use std::collections::BTreeSet;
use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_topic_partitions_request::Cursor as Asked;
use kafka_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use kafka_protocol::messages::{
    BrokerId, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use super::{bounded, operations};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::{Broker, HostedTopic};
use crate::error_code;

/// Kafka's default of `max.request.partition.size.limit`.
const PAGE_MAX: i32 = 2000;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: DescribeTopicPartitionsRequest,
) -> Staged<ApiResponse> {
    bounded(broker, context, move |broker| {
        let response = match plan(broker, &request) {
            Ok(plan) => page(broker, &plan),
            Err(code) => refused(&request, code),
        };
        ApiResponse::DescribeTopicPartitions(Box::new(response.into()))
    })
}

/// What a page is made of.
struct Plan {
    /// Names from the cursor on, in order.
    names: BTreeSet<StrBytes>,
    /// Topic and partition that the page begins with.
    from: Option<(StrBytes, usize)>,
    /// Partitions of a page, at least 1.
    limit: usize,
    /// Whether all topics were asked for: then none of them can be missing.
    all: bool,
}

fn plan(broker: &Broker, request: &DescribeTopicPartitionsRequest) -> Result<Plan, ResponseError> {
    let all = request.topics.is_empty();
    let names = if all {
        broker
            .topics()
            .iter()
            .map(|topic| topic.name.clone())
            .collect()
    } else {
        request
            .topics
            .iter()
            .map(|topic| topic.name.0.clone())
            .collect()
    };
    let from = request.cursor.as_ref().map(start).transpose()?;
    let mut names: BTreeSet<StrBytes> = names;
    if let Some((first, _)) = &from {
        if !all && !names.contains(first) {
            return Err(ResponseError::InvalidRequest);
        }
        names = names.split_off(first);
    }
    let limit = request.response_partition_limit.clamp(1, PAGE_MAX);
    Ok(Plan {
        names,
        from,
        limit: usize::try_from(limit).unwrap_or(1),
        all,
    })
}

fn start(cursor: &Asked) -> Result<(StrBytes, usize), ResponseError> {
    let partition =
        usize::try_from(cursor.partition_index).map_err(|_| ResponseError::InvalidRequest)?;
    Ok((cursor.topic_name.0.clone(), partition))
}

/// The answer to a request whose cursor makes no sense: there is no other place for the code than
/// the topics.
fn refused(
    request: &DescribeTopicPartitionsRequest,
    code: ResponseError,
) -> DescribeTopicPartitionsResponse {
    let mut response = DescribeTopicPartitionsResponse::default();
    response.next_cursor = None;
    let topics = request.topics.iter();
    response.topics = topics
        .map(|asked| missing(asked.name.0.clone(), code))
        .collect();
    response
}

fn page(broker: &Broker, plan: &Plan) -> DescribeTopicPartitionsResponse {
    let mut response = DescribeTopicPartitionsResponse::default();
    response.next_cursor = None;
    let mut left = plan.limit;
    for name in &plan.names {
        if left == 0 {
            response.next_cursor = Some(cursor(name, 0));
            break;
        }
        let Some(topic) = broker.topic_by_name(name) else {
            if !plan.all {
                response.topics.push(unknown(broker, name));
            }
            continue;
        };
        let from = match &plan.from {
            Some((first, partition)) if first == name => *partition,
            _ => 0,
        };
        let described = describe(broker, &topic, from, left);
        let next = from + described.partitions.len();
        left -= described.partitions.len();
        response.topics.push(described);
        if next < topic.partitions.len() {
            response.next_cursor = Some(cursor(name, next));
            break;
        }
    }
    response
}

fn cursor(name: &StrBytes, partition: usize) -> Cursor {
    let mut cursor = Cursor::default();
    cursor.topic_name = TopicName(name.clone());
    cursor.partition_index = i32::try_from(partition).unwrap_or(i32::MAX);
    cursor
}

fn unknown(broker: &Broker, name: &StrBytes) -> DescribeTopicPartitionsResponseTopic {
    let code = if broker.valid_topic_name(name) {
        broker
            .find_topic(name)
            .map_or_else(error_code::no_topic_in_metadata, |_| {
                ResponseError::UnknownTopicOrPartition
            })
    } else {
        ResponseError::InvalidTopicException
    };
    missing(name.clone(), code)
}

fn missing(name: StrBytes, code: ResponseError) -> DescribeTopicPartitionsResponseTopic {
    let mut topic = DescribeTopicPartitionsResponseTopic::default();
    topic.error_code = code.code();
    topic.name = Some(TopicName(name));
    topic.topic_authorized_operations = operations::TOPIC;
    topic
}

fn describe(
    broker: &Broker,
    hosted: &HostedTopic,
    from: usize,
    limit: usize,
) -> DescribeTopicPartitionsResponseTopic {
    let mut topic = DescribeTopicPartitionsResponseTopic::default();
    topic.name = Some(TopicName(hosted.name.clone()));
    topic.topic_id = hosted.id;
    topic.topic_authorized_operations = operations::TOPIC;
    let replicas = broker.replicas();
    let slots = (0_i32..).zip(&hosted.partitions).skip(from).take(limit);
    for (index, slot) in slots {
        let mut partition = DescribeTopicPartitionsResponsePartition::default();
        partition.partition_index = index;
        partition.replica_nodes.clone_from(&replicas);
        partition.isr_nodes.clone_from(&replicas);
        // No replica can be behind, so none is waited for.
        partition.eligible_leader_replicas = Some(Vec::new());
        partition.last_known_elr = Some(Vec::new());
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

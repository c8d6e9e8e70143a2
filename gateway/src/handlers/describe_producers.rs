//! DescribeProducers (key 61), version 0: what a partition knows of the producers that wrote to it.
//!
//! Difference from Kafka: a partition that is named twice is answered once.

use std::collections::BTreeSet;
use std::sync::Arc;

use coordinator::machine::producer::ProducerEntry;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_producers_response::{
    PartitionResponse, ProducerState, TopicResponse,
};
use kafka_protocol::messages::{
    DescribeProducersRequest, DescribeProducersResponse, ProducerId, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use super::bounded;
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: DescribeProducersRequest,
) -> Staged<ApiResponse> {
    let mut topics = request.topics;
    let mut seen = BTreeSet::new();
    for topic in &mut topics {
        let name = &topic.name;
        topic
            .partition_indexes
            .retain(|index| seen.insert((name.clone(), *index)));
    }
    bounded(broker, context, move |broker| {
        let topics = topics.iter().map(|asked| {
            let partitions = asked.partition_indexes.iter();
            let partitions = partitions.map(|index| partition(broker, &asked.name, *index));
            TopicResponse::default()
                .with_name(asked.name.clone())
                .with_partitions(partitions.collect())
        });
        let response = DescribeProducersResponse::default().with_topics(topics.collect());
        ApiResponse::DescribeProducers(Box::new(response.into()))
    })
}

fn partition(broker: &Broker, topic: &TopicName, index: i32) -> PartitionResponse {
    let mut result = PartitionResponse::default();
    result.partition_index = index;
    result.error_message = None;
    match producers(broker, topic, index) {
        Ok(producers) => result.active_producers = producers,
        Err(code) => {
            result.error_code = code.code();
            let why = "The partition is not served here.";
            result.error_message = Some(StrBytes::from_static_str(why));
        }
    }
    result
}

fn producers(
    broker: &Broker,
    topic: &TopicName,
    index: i32,
) -> Result<Vec<ProducerState>, ResponseError> {
    if !broker.valid_topic_name(topic) {
        return Err(ResponseError::InvalidTopicException);
    }
    let hosted = broker.find_topic(topic).map_err(error_code::no_topic)?;
    let partition = hosted
        .partition(index)
        .ok_or(ResponseError::UnknownTopicOrPartition)?
        .map_err(|error| error_code::unavailable_partition(&error))?;
    let show = |(id, entry): (store_adapter::ids::ProducerId, &ProducerEntry)| {
        let mut state = ProducerState::default();
        state.producer_id = ProducerId(id.0);
        state.producer_epoch = i32::from(entry.epoch.0);
        state.last_sequence = entry.window.last_seq().map_or(-1, |sequence| sequence.0);
        state.last_timestamp = entry.last_timestamp;
        state.coordinator_epoch = entry.coordinator_epoch;
        state.current_txn_start_offset = entry.current_txn_first_offset.unwrap_or(-1);
        state
    };
    let (_, shown) = partition.look(|producers| producers.producers().map(show).collect());
    Ok(shown)
}

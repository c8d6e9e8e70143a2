//! WriteTxnMarkers (key 27), version 1: an administrator ends a transaction that hangs on a
//! partition, whatever its coordinator knows.
//!
//! Refused with 51 while the coordinator has decided about that producer's records on that
//! partition and has not finished: its own marker is on the way. From other hosts: 31.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coordinator::machine::txn::TopicPartitions;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::write_txn_markers_request::WritableTxnMarker;
use kafka_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use kafka_protocol::messages::{TopicName, WriteTxnMarkersRequest, WriteTxnMarkersResponse};
use store_adapter::ids::{ProducerEpoch, ProducerId};

use super::{text, txn_request};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;
use crate::partition::{Marker, Ticket};

/// A marker of one partition that was queued, or why not.
type Queued = Result<Ticket, ResponseError>;

/// A topic's partitions.
type OfTopic = (TopicName, Vec<(i32, Queued)>);

/// Producers of the markers, each with its topics.
type Ordered = Vec<(kafka_protocol::messages::ProducerId, Vec<OfTopic>)>;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &WriteTxnMarkersRequest,
) -> Staged<ApiResponse> {
    let allowed = txn_request::is_from_cluster(context);
    // What the coordinator has not finished: one look, whatever is asked for.
    let producers: BTreeSet<_> = request
        .markers
        .iter()
        .map(|marker| ProducerId(marker.producer_id.0))
        .collect();
    let undecided = if allowed {
        broker.txns().undecided(&producers).map_err(error_code::txn)
    } else {
        Ok(BTreeMap::new())
    };
    let one = |marker: &WritableTxnMarker| {
        let topics = marker.topics.iter().map(|topic| {
            let queue = |partition: &i32| {
                let queued = if allowed {
                    queue(broker, marker, &undecided, &topic.name, *partition)
                } else {
                    Err(ResponseError::ClusterAuthorizationFailed)
                };
                (*partition, queued)
            };
            let partitions = topic.partition_indexes.iter().map(queue);
            (TopicName(text(&topic.name)), partitions.collect())
        });
        (marker.producer_id, topics.collect())
    };
    let ordered: Ordered = request.markers.iter().map(one).collect();
    Staged::Later(Box::pin(answer(ordered)))
}

/// Queues a marker behind what the partition has queued.
fn queue(
    broker: &Broker,
    asked: &WritableTxnMarker,
    undecided: &Result<BTreeMap<ProducerId, TopicPartitions>, ResponseError>,
    topic: &TopicName,
    partition: i32,
) -> Queued {
    let producer_id = ProducerId(asked.producer_id.0);
    if producer_id.0 < 0 || asked.producer_epoch < 0 {
        return Err(ResponseError::InvalidRequest);
    }
    let hosted = broker.find_topic(topic).map_err(error_code::no_topic)?;
    let led = hosted
        .partition(partition)
        .ok_or(ResponseError::UnknownTopicOrPartition)?
        .map_err(|error| error_code::unavailable_partition(&error))?;
    let undecided = undecided.as_ref().map_err(|code| *code)?;
    let of_producer = undecided.get(&producer_id);
    let of_topic = of_producer.and_then(|topics| topics.get(topic.as_str()));
    if of_topic.is_some_and(|partitions| partitions.contains(&partition)) {
        return Err(ResponseError::ConcurrentTransactions);
    }
    Ok(led.append_marker(Marker {
        producer_id,
        producer_epoch: ProducerEpoch(asked.producer_epoch),
        commit: asked.transaction_result,
        coordinator_epoch: asked.coordinator_epoch,
        txn_seq: None,
    }))
}

async fn answer(ordered: Ordered) -> ApiResponse {
    let mut response = WriteTxnMarkersResponse::default();
    for (producer_id, topics) in ordered {
        let mut result = WritableTxnMarkerResult::default().with_producer_id(producer_id);
        for (name, partitions) in topics {
            let mut topic = WritableTxnMarkerTopicResult::default().with_name(name);
            for (partition, queued) in partitions {
                let code = match queued {
                    Err(code) => code.code(),
                    Ok(ticket) => {
                        let failed = ticket.outcome().await.err();
                        failed.map_or(0, |error| error_code::marker(&error).code())
                    }
                };
                let answered = WritableTxnMarkerPartitionResult::default()
                    .with_partition_index(partition)
                    .with_error_code(code);
                topic.partitions.push(answered);
            }
            result.topics.push(topic);
        }
        response.markers.push(result);
    }
    ApiResponse::WriteTxnMarkers(Box::new(response))
}

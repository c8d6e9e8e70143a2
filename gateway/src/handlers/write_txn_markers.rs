//! WriteTxnMarkers (key 27), version 1: an administrator ends a transaction that hangs on a
//! partition, whatever its coordinator knows.
//!
//! Refused with 51 while the coordinator, here or at another broker, has decided about that
//! producer's records on that partition and has not finished: its own marker is on the way. With 6
//! while one is loading, 15 while one can't be asked. From other hosts: 31.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coordinator::machine::txn::TopicPartitions;
use coordinator::service::txns::Undecided;
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

/// Partitions on which a decision is still to be carried out, by producer.
type Open = BTreeMap<ProducerId, TopicPartitions>;

/// A topic's partitions.
type OfTopic = (TopicName, Vec<(i32, Queued)>);

/// Producers of the markers, each with its topics.
type Ordered = Vec<(kafka_protocol::messages::ProducerId, Vec<OfTopic>)>;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: WriteTxnMarkersRequest,
) -> Staged<ApiResponse> {
    let allowed = txn_request::is_from_cluster(context);
    let broker = Arc::clone(broker);
    Staged::Later(Box::pin(async move {
        let known = if allowed {
            look(&broker, &request).await
        } else {
            Err(ResponseError::ClusterAuthorizationFailed)
        };
        answer(order(&broker, &request, &known)).await
    }))
}

/// What coordinators have not finished of the producers: one look, whatever is asked for.
async fn look(broker: &Broker, request: &WriteTxnMarkersRequest) -> Result<Open, ResponseError> {
    let producers = request.markers.iter();
    let producers: BTreeSet<_> = producers
        .map(|marker| ProducerId(marker.producer_id.0))
        .collect();
    let found = broker.coordinators().undecided(&producers).await;
    let mut found = found.map_err(error_code::undecided)?;
    // Again, behind which nothing is waited for: the marker of what is decided here from now on is
    // queued behind that of this request.
    found.ids.retain(|id| broker.txns().coordinates(id));
    let here = broker.txns().undecided_of(&found.ids, &producers);
    let again = Undecided {
        partitions: here.map_err(error_code::undecided)?,
        ..Undecided::default()
    };
    Ok(found.and(again).partitions)
}

/// Queues what can be.
fn order(
    broker: &Broker,
    request: &WriteTxnMarkersRequest,
    known: &Result<Open, ResponseError>,
) -> Ordered {
    let one = |marker: &WritableTxnMarker| {
        let topics = marker.topics.iter().map(|topic| {
            let queue = |partition: &i32| {
                let queued = queue(broker, marker, known, &topic.name, *partition);
                (*partition, queued)
            };
            let partitions = topic.partition_indexes.iter().map(queue);
            (TopicName(text(&topic.name)), partitions.collect())
        });
        (marker.producer_id, topics.collect())
    };
    request.markers.iter().map(one).collect()
}

/// Queues a marker behind what the partition has queued.
fn queue(
    broker: &Broker,
    asked: &WritableTxnMarker,
    known: &Result<Open, ResponseError>,
    topic: &TopicName,
    partition: i32,
) -> Queued {
    if let Err(ResponseError::ClusterAuthorizationFailed) = known {
        return Err(ResponseError::ClusterAuthorizationFailed);
    }
    let producer_id = ProducerId(asked.producer_id.0);
    if producer_id.0 < 0 || asked.producer_epoch < 0 {
        return Err(ResponseError::InvalidRequest);
    }
    let hosted = broker.find_topic(topic).map_err(error_code::no_topic)?;
    let led = hosted
        .partition(partition)
        .ok_or(ResponseError::UnknownTopicOrPartition)?
        .map_err(|error| error_code::unavailable_partition(&error))?;
    let known = known.as_ref().map_err(|code| *code)?;
    let of_producer = known.get(&producer_id);
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

//! WriteTxnMarkers, as an administrator aborts a transaction that hangs.

use kafka_protocol::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use kafka_protocol::messages::{ProducerId, WriteTxnMarkersRequest};
use tests::raw::{RawClient, ops};

use super::Session;
use crate::kit::Target;

/// Codes of partitions of one topic.
async fn abort(
    client: &mut RawClient,
    session: Session,
    topic: &str,
    partitions: &[i32],
) -> Vec<i16> {
    let topic = WritableTxnMarkerTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partition_indexes(partitions.to_vec());
    let marker = WritableTxnMarker::default()
        .with_producer_id(ProducerId(session.0))
        .with_producer_epoch(session.1)
        .with_transaction_result(false)
        .with_coordinator_epoch(0)
        .with_topics(vec![topic]);
    let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
    let answer = client.call(&request, 1).await.unwrap();
    assert_eq!(answer.markers.len(), 1);
    assert_eq!(answer.markers[0].producer_id.0, session.0);
    let partitions = answer.markers[0].topics.iter();
    let partitions = partitions.flat_map(|topic| &topic.partitions);
    partitions.map(|partition| partition.error_code).collect()
}

#[tokio::test]
async fn markers_of_partitions_that_are_not_there() {
    let target = Target::shared();
    let mut client = target.with_topic("markers", 1).await;
    assert_eq!(abort(&mut client, (7, 0), "markers-none", &[0]).await, [3]);
    assert_eq!(abort(&mut client, (7, 0), "markers", &[7]).await, [3]);
    let none = WriteTxnMarkersRequest::default();
    let answer = client.call(&none, 1).await.unwrap();
    assert_eq!(answer.markers.len(), 0);
}

#[tokio::test]
async fn t43_a_marker_of_a_producer_that_nobody_knows() {
    let target = Target::shared();
    let mut client = target.with_topic("t43", 1).await;
    assert_eq!(abort(&mut client, (7, 3), "t43", &[0]).await, [0]);
    assert_eq!(crate::kit::end_of(&mut client, "t43").await, 1);
    // Its epoch is known now.
    assert_eq!(abort(&mut client, (7, 2), "t43", &[0]).await, [47]);
    assert_eq!(crate::kit::end_of(&mut client, "t43").await, 1);
}

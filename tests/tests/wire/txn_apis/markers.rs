//! WriteTxnMarkers, as an administrator aborts a transaction that hangs.

use kafka_protocol::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use kafka_protocol::messages::{ProducerId, WriteTxnMarkersRequest};
use tests::raw::{RawClient, decode_response, ops};

use super::{Session, add, begin, connect, describe, end};
use crate::kit::{P, Target, codes, differs, produce_request};

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

/// A WriteTxnMarkers of version 2 in bytes: a marker of a coordinator that raises the epoch with
/// every transaction. No schema that we have knows it.
fn marker_of_the_second_dialect(topic: &str, session: Session, commit: bool) -> Vec<u8> {
    let mut body = vec![0, 27, 0, 2, 0, 0, 0, 41];
    // No client id, no tags; one marker.
    body.extend([0xff, 0xff, 0, 2]);
    body.extend(session.0.to_be_bytes());
    body.extend(session.1.to_be_bytes());
    body.push(u8::from(commit));
    // One topic with partition 0.
    body.push(2);
    body.push(u8::try_from(topic.len() + 1).unwrap());
    body.extend(topic.as_bytes());
    body.extend([2, 0, 0, 0, 0, 0]);
    // Coordinator epoch 0, the version of the transaction, and no tags anywhere.
    body.extend([0, 0, 0, 0, 2, 0, 0]);
    body
}

#[tokio::test]
async fn t41_a_marker_of_the_second_dialect_must_raise_the_epoch() {
    let target = Target::shared();
    target.with_topic("t41", 1).await;
    let mut client = connect(&target, "t41").await;
    begin(&mut client, "t41").await;
    begin(&mut client, "t41").await;
    let (pid, epoch) = begin(&mut client, "t41").await;
    assert_eq!(epoch, 2);
    let of = [("t41", &[0][..])];
    assert_eq!(add(&mut client, "t41", (pid, 2), &of, 3).await, [0]);
    let mut spec = P(pid, 2, 0, 1).spec();
    spec.attributes = 0x10;
    let mut request = produce_request("t41", &[(0, Some(spec.build()))]);
    request.transactional_id = Some(super::id_of("t41"));
    assert_eq!(codes(&client.call(&request, 9).await.unwrap()), [0]);
    for commit in [false, true] {
        let mut other = target.connect().await;
        let bytes = marker_of_the_second_dialect("t41", (pid, 2), commit);
        other.send_frame(&bytes).await.unwrap();
        let answer = other.receive_frame().await.unwrap();
        let code = answer.map(|frame| {
            let (_, answer) = decode_response::<WriteTxnMarkersRequest>(frame, 1).unwrap();
            answer.markers[0].topics[0].partitions[0].error_code
        });
        assert_eq!(code, differs("newer-schemas", Some(47), None));
        let open = describe(&mut client, "t41").await;
        assert_eq!(open.transaction_state.as_str(), "Ongoing");
        assert_eq!(crate::kit::end_of(&mut client, "t41").await, 1);
    }
    assert_eq!(end(&mut client, "t41", (pid, 2), true, 3).await.0, 0);
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

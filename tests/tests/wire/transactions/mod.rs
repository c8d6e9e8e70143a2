//! Transactions in partitions: who may open one, what markers do, what readers see.

mod crashes;
mod held;
mod reading;
mod verification;

use bytes::Bytes;
use kafka_protocol::messages::WriteTxnMarkersRequest;
use kafka_protocol::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use tests::raw::{RawClient, ops};

use crate::kit::{P, produce_request};
use crate::txn_apis::{self, Session};

/// The version with which clients of the first dialect produce, and the first of the second.
const TV1: i16 = 9;
const TV2: i16 = 12;

/// A transactional batch.
fn batch(producer: P) -> Bytes {
    let mut spec = producer.spec();
    spec.attributes = 0x10;
    spec.build()
}

/// Code and base offset of a transactional batch for partition 0, once what passes has passed.
async fn send(
    client: &mut RawClient,
    id: &str,
    topic: &str,
    producer: P,
    version: i16,
) -> (i16, i64) {
    let mut request = produce_request(topic, &[(0, Some(batch(producer)))]);
    request.transactional_id = Some(txn_apis::id_of(id));
    let answer = &txn_apis::produce(client, &request, version).await[0];
    (answer.error_code, answer.base_offset)
}

/// Ends a transaction of the first dialect, and awaits its markers.
async fn finish(client: &mut RawClient, id: &str, session: Session, commit: bool) {
    let ended = txn_apis::end(client, id, session, commit, 3).await;
    assert_eq!(ended.0, 0, "{id}");
    let state = if commit {
        "CompleteCommit"
    } else {
        "CompleteAbort"
    };
    txn_apis::await_state(client, id, state).await;
}

/// The code of an administrator's ABORT marker for partition 0.
async fn abort(
    client: &mut RawClient,
    topic: &str,
    (pid, epoch): Session,
    coordinator_epoch: i32,
) -> i16 {
    let topic = WritableTxnMarkerTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partition_indexes(vec![0]);
    let marker = WritableTxnMarker::default()
        .with_producer_id(pid.into())
        .with_producer_epoch(epoch)
        .with_transaction_result(false)
        .with_topics(vec![topic])
        .with_coordinator_epoch(coordinator_epoch);
    let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
    let answer = client.call(&request, 1).await.unwrap();
    answer.markers[0].topics[0].partitions[0].error_code
}

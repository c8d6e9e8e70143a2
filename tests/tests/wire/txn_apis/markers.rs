//! WriteTxnMarkers, as an administrator aborts a transaction that hangs.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use kafka_protocol::messages::{BrokerId, ListOffsetsRequest, ProducerId, WriteTxnMarkersRequest};
use tests::raw::{RawClient, decode_response, ops};
use tests::txn_tools::run_ours;
use tokio::net::TcpSocket;

use super::{Session, add, await_state, begin, connect, describe, end};
use crate::kit::{P, Target, differs, on_kafka, produce_request};

/// Codes of partitions of one topic.
async fn abort(
    client: &mut RawClient,
    session: Session,
    topic: &str,
    partitions: &[i32],
) -> Vec<i16> {
    abort_by(client, session, topic, partitions, 0).await
}

/// The same with the epoch of a coordinator.
async fn abort_by(
    client: &mut RawClient,
    session: Session,
    topic: &str,
    partitions: &[i32],
    coordinator_epoch: i32,
) -> Vec<i16> {
    let topic = WritableTxnMarkerTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partition_indexes(partitions.to_vec());
    let marker = WritableTxnMarker::default()
        .with_producer_id(ProducerId(session.0))
        .with_producer_epoch(session.1)
        .with_transaction_result(false)
        .with_coordinator_epoch(coordinator_epoch)
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

/// An address of this machine that others would use; `None` where it has no network. Nothing is
/// sent.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("198.51.100.1:9").ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_loopback() && !own.is_unspecified()).then_some(own)
}

#[tokio::test]
async fn markers_from_an_address_that_is_not_the_brokers() {
    let Some(own) = own_address() else { return };
    let target = Target::shared();
    drop(target.with_topic("markers-elsewhere", 1).await);
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(own, 0)).unwrap();
    let broker = target.address().parse().unwrap();
    let mut client = RawClient::over(socket.connect(broker).await.unwrap()).unwrap();
    let code = abort(&mut client, (7, 0), "markers-elsewhere", &[0]).await;
    assert_eq!(code, [differs("markers-from-own-host", 0, 31)]);
}

#[tokio::test]
async fn markers_from_the_brokers_host_where_it_has_another_address_than_loopback() {
    let Some(own) = own_address().filter(|_| !on_kafka()) else {
        return;
    };
    let listeners = format!("PLAINTEXT://{own}:0");
    let target = Target::start(&[("listeners", &listeners)]);
    let mut client = target.with_topic("markers-here", 1).await;
    assert_eq!(abort(&mut client, (7, 0), "markers-here", &[0]).await, [0]);
    // By the command that the admin port names, over the address that Metadata tells.
    let mut client = connect(&target, "markers-here").await;
    let (pid, epoch) = begin(&mut client, "markers-here").await;
    let of = [("markers-here", &[0][..])];
    let added = add(&mut client, "markers-here", (pid, epoch), &of, 3).await;
    assert_eq!(added, [0]);
    let code = produce(&mut client, "markers-here", "markers-here", (pid, epoch)).await;
    assert_eq!(code, 0);
    assert_eq!(stable_end(&mut client, "markers-here").await, 1);
    let address = target.address().to_owned();
    let args = "abort --topic markers-here --partition 0 --start-offset 1";
    let run = move || run_ours(&address, args).unwrap();
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stable_end(&mut client, "markers-here").await, 3);
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
    let sent = super::produce(&mut client, &request, 9).await;
    assert_eq!(sent[0].error_code, 0);
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

#[tokio::test]
async fn t40_a_coordinator_epoch_that_an_administrator_made_up_stops_no_transaction() {
    let target = Target::shared();
    target.with_topic("made-up", 1).await;
    let mut client = connect(&target, "made-up").await;
    let session = begin(&mut client, "made-up").await;
    assert_eq!(
        abort_by(&mut client, session, "made-up", &[0], 99).await,
        [0]
    );
    assert_eq!(
        abort_by(&mut client, session, "made-up", &[0], 98).await,
        [52]
    );
    let end_before = crate::kit::end_of(&mut client, "made-up").await;
    assert_eq!(end_before, 1);
    if on_kafka() {
        // There the transaction would hang until somebody makes up a higher one.
        return;
    }
    let of = [("made-up", &[0][..])];
    assert_eq!(add(&mut client, "made-up", session, &of, 3).await, [0]);
    assert_eq!(produce(&mut client, "made-up", "made-up", session).await, 0);
    assert_eq!(end(&mut client, "made-up", session, true, 3).await.0, 0);
    assert_eq!(stable_end(&mut client, "made-up").await, 3);
    // The next one too.
    assert_eq!(add(&mut client, "made-up", session, &of, 3).await, [0]);
}

#[tokio::test]
async fn an_end_that_a_partition_refuses_is_left_to_who_writes_there() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[("transaction.partition.verification.enable", "false")]);
    target.with_topic("refused-end", 2).await;
    let mut client = connect(&target, "refused-end").await;
    let (pid, epoch) = begin(&mut client, "refused-end").await;
    assert_eq!(epoch, 0);
    let of = [("refused-end", &[0, 1][..])];
    let added = add(&mut client, "refused-end", (pid, 0), &of, 3).await;
    assert_eq!(added, [0, 0]);
    // An epoch that nobody was given: without verification it is taken, into what is open.
    for epoch in [0, 1] {
        let code = produce(&mut client, "refused-end", "refused-end", (pid, epoch)).await;
        assert_eq!(code, 0);
    }
    let ended = end(&mut client, "refused-end", (pid, 0), true, 3).await;
    assert_eq!(ended.0, 0);
    await_state(&mut client, "refused-end", "CompleteCommit").await;
    // Its coordinator goes on; what is open there hangs, and can be ended.
    let other = [("refused-end", &[1][..])];
    let added = add(&mut client, "refused-end", (pid, 0), &other, 3).await;
    assert_eq!(added, [0]);
    assert_eq!(stable_end(&mut client, "refused-end").await, 0);
    let aborted = abort(&mut client, (pid, 1), "refused-end", &[0]).await;
    assert_eq!(aborted, [0]);
    assert_eq!(stable_end(&mut client, "refused-end").await, 3);
    target.log_is_clean(&["a partition refuses the end of a transaction"]);
}

/// The code of a transactional batch of version 9, for partition 0.
async fn produce(client: &mut RawClient, id: &str, topic: &str, (pid, epoch): Session) -> i16 {
    let mut spec = P(pid, epoch, 0, 1).spec();
    spec.attributes = 0x10;
    let mut request = produce_request(topic, &[(0, Some(spec.build()))]);
    request.transactional_id = Some(super::id_of(id));
    super::produce(client, &request, 9).await[0].error_code
}

/// The last stable offset of partition 0.
async fn stable_end(client: &mut RawClient, topic: &str) -> i64 {
    let asked = ListOffsetsPartition::default()
        .with_partition_index(0)
        .with_current_leader_epoch(-1)
        .with_timestamp(-1);
    let topic = ListOffsetsTopic::default()
        .with_name(ops::topic_name(topic))
        .with_partitions(vec![asked]);
    let request = ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_isolation_level(1)
        .with_topics(vec![topic]);
    let answer = client.call(&request, 7).await.unwrap();
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    answer.topics[0].partitions[0].offset
}

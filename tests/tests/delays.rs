//! A disk that takes its time: requests that say how long they wait are answered by then, and what
//! comes meanwhile shares the next sync.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gateway::Gateway;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    DeleteRecordsRequest, GroupId, HeartbeatRequest, OffsetCommitRequest, OffsetFetchRequest,
    ProduceRequest, ProducerId, TransactionalId, TxnOffsetCommitRequest,
};
use kafka_protocol::protocol::StrBytes;
use store_adapter::runtime::BoxFuture;
use store_adapter::volume::memory::{Step, StepHook, StepOp, StepOutcome};
use store_adapter::volume::{MemoryVolume, Volume};
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::txn::{self, Dialect, Session};
use tests::raw::{RawClient, group, ops};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Holds syncs while it is shut; counts those of journal files.
#[derive(Debug)]
struct Gate {
    open: watch::Sender<bool>,
    /// For those of journal files, whatever `open` says.
    journal_open: watch::Sender<bool>,
    journal: AtomicU64,
}

impl StepHook for Gate {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let mut open = self.open.subscribe();
        let mut journal_open = self.journal_open.subscribe();
        let waits = step.op == StepOp::SyncData;
        let path = step.path.as_str();
        let of_journal = path.rsplit_once('.').is_some_and(|(_, end)| end == "log");
        if waits && of_journal {
            self.journal.fetch_add(1, Ordering::SeqCst);
        }
        Box::pin(async move {
            if waits {
                // Gone with the test.
                tokio::select! {
                    opened = open.wait_for(|open| *open) => drop(opened),
                    opened = journal_open.wait_for(|open| *open), if of_journal => drop(opened),
                }
            }
            StepOutcome::Proceed
        })
    }
}

/// A broker on a volume behind a gate that is open.
async fn gated(dir: &tempfile::TempDir) -> (Gateway, Arc<Gate>) {
    let gate = Arc::new(Gate {
        open: watch::Sender::new(true),
        journal_open: watch::Sender::new(false),
        journal: AtomicU64::new(0),
    });
    let volume = MemoryVolume::new().mount(Arc::<Gate>::clone(&gate), None);
    let builder = Gateway::builder().free_ports().data_dir(dir.path());
    let volume: Arc<dyn Volume> = Arc::new(volume);
    (builder.volume(volume).start().await.unwrap(), gate)
}

/// A value of `/metrics`.
async fn metric(gateway: &Gateway, name: &str) -> u64 {
    let address = &gateway.addresses().admin;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let line = answer.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {answer}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Puts a request that may overlap behind what was sent on each connection, and awaits that all of
/// these are under way: then everything before them is ordered, and its answer waits for nothing
/// but the disk.
async fn all_ordered(gateway: &Gateway, clients: &mut [RawClient]) {
    for client in &mut *clients {
        let request = HeartbeatRequest::default();
        client.send(&request, 0).await.unwrap();
    }
    under_way(gateway, "Heartbeat", clients.len() as u64).await;
}

/// Awaits that so many requests of a kind are under way.
async fn under_way(gateway: &Gateway, api: &str, count: u64) {
    let name = format!("fencepost_requests_inflight{{api=\"{api}\"}}");
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    while metric(gateway, &name).await < count {
        pace.tick().await;
    }
}

/// Codes and log starts of partitions 0 and 1.
async fn delete(client: &mut RawClient, timeout_ms: i32) -> Vec<(i16, i64)> {
    let partitions = [0, 1].map(|index| {
        DeleteRecordsPartition::default()
            .with_partition_index(index)
            .with_offset(2)
    });
    let topic = DeleteRecordsTopic::default()
        .with_name(ops::topic_name("slow"))
        .with_partitions(partitions.to_vec());
    let request = DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(timeout_ms);
    let response = client.call(&request, 2).await.unwrap();
    let partitions = &response.topics[0].partitions;
    let answers = partitions.iter().map(|p| (p.error_code, p.low_watermark));
    answers.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_records_is_answered_in_time_and_happens_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (gateway, gate) = gated(&dir).await;
    let mut client = RawClient::connect(&gateway.addresses().kafka)
        .await
        .unwrap();
    ops::create_topic(&mut client, "slow", 2, &[])
        .await
        .unwrap();
    let spec = BatchSpec {
        records: vec![Record::value("v"); 3],
        ..BatchSpec::default()
    };
    for partition in [0, 1] {
        let sent = ops::produce(&mut client, "slow", partition, spec.build()).await;
        assert_eq!(sent.unwrap().error_code, 0);
    }
    gate.open.send_replace(false);
    for timeout_ms in [1, 1500, i32::MIN] {
        assert_eq!(delete(&mut client, timeout_ms).await, [(7, -1); 2]);
    }
    gate.open.send_replace(true);
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    let starts = loop {
        pace.tick().await;
        let starts = ops::list_offsets(&mut client, "slow", 2, ops::EARLIEST).await;
        let starts = starts.unwrap();
        if starts != [0, 0] && starts.iter().all(|start| *start > 0) {
            break starts;
        }
    };
    assert_eq!(starts, [2, 2]);
    assert_eq!(delete(&mut client, 30_000).await, [(0, 2); 2]);
    assert!(gateway.shutdown().await);
}

fn batch(producer_id: i64, base_sequence: i32) -> bytes::Bytes {
    let spec = BatchSpec {
        producer_id,
        producer_epoch: if producer_id < 0 { -1 } else { 0 },
        base_sequence,
        records: vec![Record::value("v")],
        ..BatchSpec::default()
    };
    spec.build()
}

/// What is in flight together is synced in two rounds at most: what came while the first was
/// synced is in the second, of however many clients it is.
#[tokio::test(flavor = "multi_thread")]
async fn batches_that_come_while_the_disk_is_busy_share_a_sync() {
    let dir = tempfile::tempdir().unwrap();
    let (gateway, gate) = gated(&dir).await;
    let address = &gateway.addresses().kafka;
    let mut client = RawClient::connect(address).await.unwrap();
    ops::create_topic(&mut client, "shared", 1, &[])
        .await
        .unwrap();
    // Of one producer on one connection, and of many with one each.
    for (connections, each) in [(1, 5), (64, 1)] {
        let mut clients = Vec::new();
        for _ in 0..connections {
            clients.push(RawClient::connect(address).await.unwrap());
        }
        let before = gate.journal.load(Ordering::SeqCst);
        gate.open.send_replace(false);
        for (number, client) in (0..).zip(&mut clients) {
            for sequence in 0..each {
                let producer = connections * 1_000 + number;
                let request = ops::produce_request("shared", 0, batch(producer, sequence));
                client.send(&request, 9).await.unwrap();
            }
        }
        all_ordered(&gateway, &mut clients).await;
        gate.open.send_replace(true);
        for client in &mut clients {
            for _ in 0..each {
                let (_, answer) = client.receive::<ProduceRequest>(9).await.unwrap();
                let partition = &answer.responses[0].partition_responses[0];
                assert_eq!(partition.error_code, 0);
            }
        }
        let synced = gate.journal.load(Ordering::SeqCst) - before;
        assert!((1..=2).contains(&synced), "{synced} syncs");
    }
    assert!(gateway.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_of_a_group_that_come_while_the_disk_is_busy_share_a_write() {
    const WRITES: &str = "fencepost_offset_writes_total";
    let dir = tempfile::tempdir().unwrap();
    let (gateway, gate) = gated(&dir).await;
    let mut clients = Vec::new();
    for _ in 0..64 {
        let client = RawClient::connect(&gateway.addresses().kafka).await;
        clients.push(client.unwrap());
    }
    ops::create_topic(&mut clients[0], "shared", 1, &[])
        .await
        .unwrap();
    let awaited = group::await_coordinator(&mut clients[0], "g");
    awaited.await.unwrap();
    let first = group::commit(&mut clients[0], "g", ("", -1), "shared", &[(0, 7)]);
    first.await.unwrap();
    let before = metric(&gateway, WRITES).await;
    gate.open.send_replace(false);
    for (offset, client) in (100..).zip(&mut clients) {
        let request = group::commit_request("g", ("", -1), "shared", &[(0, offset)]);
        client.send(&request, group::COMMIT_VERSION).await.unwrap();
    }
    all_ordered(&gateway, &mut clients).await;
    gate.open.send_replace(true);
    for client in &mut clients {
        let answer = client.receive::<OffsetCommitRequest>(group::COMMIT_VERSION);
        let (_, answer) = answer.await.unwrap();
        assert_eq!(answer.topics[0].partitions[0].error_code, 0);
    }
    let written = metric(&gateway, WRITES).await - before;
    assert!((1..=2).contains(&written), "{written} writes");
    assert!(gateway.shutdown().await);
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// A TxnOffsetCommit that adds its group to the transaction itself, for v5.
fn staging((pid, epoch): Session, offset: i64) -> TxnOffsetCommitRequest {
    let partition = TxnOffsetCommitRequestPartition::default().with_committed_offset(offset);
    let topic = TxnOffsetCommitRequestTopic::default()
        .with_name(ops::topic_name("cut"))
        .with_partitions(vec![partition]);
    TxnOffsetCommitRequest::default()
        .with_transactional_id(TransactionalId(text("cut")))
        .with_group_id(GroupId(text("cut")))
        .with_producer_id(ProducerId(pid))
        .with_producer_epoch(epoch)
        .with_topics(vec![topic])
}

/// Code and offset of partition 0, where what is staged is told.
async fn stable(client: &mut RawClient) -> (i16, i64) {
    let topic = OffsetFetchRequestTopic::default()
        .with_name(ops::topic_name("cut"))
        .with_partition_indexes(vec![0]);
    let request = OffsetFetchRequest::default()
        .with_group_id(GroupId(text("cut")))
        .with_topics(Some(vec![topic]))
        .with_require_stable(true);
    let answer = client.call(&request, 7).await.unwrap();
    let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
    let mut partitions = partitions.map(|p| (p.error_code, p.committed_offset));
    partitions.next().unwrap_or((answer.error_code, -1))
}

/// A request that was ordered is settled, wherever its connection is lost: a transaction that is
/// ended over another one has all that was begun of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_connection_staged_is_in_its_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let (gateway, gate) = gated(&dir).await;
    let connect = async || {
        let client = RawClient::connect(&gateway.addresses().kafka).await;
        client.unwrap()
    };
    let mut other = connect().await;
    ops::create_topic(&mut other, "cut", 1, &[]).await.unwrap();
    group::await_coordinator(&mut other, "cut").await.unwrap();
    txn::await_coordinator(&mut other, "cut").await.unwrap();
    let ids = ["cut".to_owned()];
    let session = txn::begin_all(&mut other, &ids, 900_000).await.unwrap()[0];

    gate.open.send_replace(false);
    let mut lost = connect().await;
    let request = ops::produce_request("cut", 0, batch(-1, -1));
    lost.send(&request, 9).await.unwrap();
    lost.send(&staging(session, 8), 5).await.unwrap();
    under_way(&gateway, "TxnOffsetCommit", 1).await;
    lost.reset().unwrap();
    // The answer to the first finds nobody, while the second waits for the disk.
    gate.journal_open.send_replace(true);
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    for _ in 0..500 {
        if metric(&gateway, "fencepost_connections ").await <= 1 {
            break;
        }
        pace.tick().await;
    }
    gate.open.send_replace(true);

    let staged = async {
        while stable(&mut other).await.0 != 88 {
            pace.tick().await;
        }
    };
    let staged = tokio::time::timeout(Duration::from_mins(1), staged).await;
    staged.expect("the offset is not staged");
    let end = txn::end_request("cut", session, true);
    loop {
        let ended = other.call(&end, Dialect::V2.end_version()).await.unwrap();
        if ![14, 15, 16, txn::CONCURRENT].contains(&ended.error_code) {
            assert_eq!(ended.error_code, 0);
            break;
        }
        pace.tick().await;
    }
    assert_eq!(stable(&mut other).await, (0, 8));
    drop(other);
    assert!(gateway.shutdown().await);
}

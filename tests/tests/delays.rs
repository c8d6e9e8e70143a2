//! A disk that takes its time: requests that say how long they wait are answered by then, and what
//! comes meanwhile shares the next sync.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gateway::Gateway;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::{
    DeleteRecordsRequest, HeartbeatRequest, OffsetCommitRequest, ProduceRequest,
};
use store_adapter::runtime::BoxFuture;
use store_adapter::volume::memory::{Step, StepHook, StepOp, StepOutcome};
use store_adapter::volume::{MemoryVolume, Volume};
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, group, ops};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Holds syncs while it is shut; counts those of journal files.
#[derive(Debug)]
struct Gate {
    open: watch::Sender<bool>,
    journal: AtomicU64,
}

impl StepHook for Gate {
    fn before(&self, step: &Step) -> BoxFuture<'static, StepOutcome> {
        let mut open = self.open.subscribe();
        let waits = step.op == StepOp::SyncData;
        let path = step.path.as_str();
        if waits && path.rsplit_once('.').is_some_and(|(_, end)| end == "log") {
            self.journal.fetch_add(1, Ordering::SeqCst);
        }
        Box::pin(async move {
            if waits {
                // Gone with the test.
                drop(open.wait_for(|open| *open).await);
            }
            StepOutcome::Proceed
        })
    }
}

/// A broker on a volume behind a gate that is open.
async fn gated(dir: &tempfile::TempDir) -> (Gateway, Arc<Gate>) {
    let gate = Arc::new(Gate {
        open: watch::Sender::new(true),
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
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    let under_way = "fencepost_requests_inflight{api=\"Heartbeat\"}";
    while metric(gateway, under_way).await < clients.len() as u64 {
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
        producer_epoch: 0,
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

//! The broker under test, whichever it is, and what every module asks of it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{ProduceRequest, ProduceResponse};
use kafka_protocol::protocol::StrBytes;
use parking_lot::Mutex;
use tempfile::TempDir;
use tests::gatewayproc::{Gateway, GatewayOptions};
use tests::oracle::{KafkaNode, OracleOptions};
use tests::process::Process;
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, ops};

use crate::differences::KNOWN_DIFFERENCES;

/// Settings of every broker of the suite, by Kafka's names.
const SETTINGS: [(&str, &str); 3] = [
    ("num.partitions", "4"),
    ("group.initial.rebalance.delay.ms", "0"),
    // Some records here are meant to be older than a week.
    ("log.retention.ms", "-1"),
];

/// A running broker.
pub(crate) struct Target {
    broker: Mutex<Broker>,
    address: String,
}

enum Broker {
    Fencepost(Box<Gateway>, TempDir),
    Kafka(Box<KafkaNode>),
}

/// Whether the suite runs against Apache Kafka.
pub(crate) fn on_kafka() -> bool {
    match std::env::var("FENCEPOST_WIRE_TARGET").as_deref() {
        Err(_) | Ok("fencepost") => false,
        Ok("kafka") => true,
        Ok(other) => panic!("FENCEPOST_WIRE_TARGET is {other:?}: fencepost or kafka"),
    }
}

/// The finalized `transaction.version` of every broker of the suite, 1 or 2.
pub(crate) fn txn_version() -> u8 {
    match std::env::var("FENCEPOST_WIRE_TXN_VERSION").as_deref() {
        Err(_) | Ok("2") => 2,
        Ok("1") => 1,
        Ok(other) => panic!("FENCEPOST_WIRE_TXN_VERSION is {other:?}: 1 or 2"),
    }
}

/// Where our brokers keep records, if not where they do by themselves.
fn store_arguments() -> Vec<String> {
    let store = std::env::var("FENCEPOST_WIRE_STORE").ok();
    let store = store.map(|store| ["--store".to_owned(), store]);
    store.into_iter().flatten().collect()
}

/// Kafka's behaviour, or ours where the list of differences has `id`.
pub(crate) fn differs<T>(id: &str, kafka: T, ours: T) -> T {
    let known = KNOWN_DIFFERENCES.iter().any(|(name, _)| *name == id);
    assert!(known, "{id} is not in the list of differences");
    if on_kafka() { kafka } else { ours }
}

impl Target {
    /// The broker that tests share while at least one of them holds it.
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Target>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock();
        if let Some(running) = shared.upgrade() {
            return running;
        }
        let started = Arc::new(Self::start(&[]));
        *shared = Arc::downgrade(&started);
        started
    }

    /// A broker whose memory and log are one test's. Kafka, of which neither is asked, is shared.
    pub(crate) fn alone() -> Arc<Self> {
        if on_kafka() {
            return Self::shared();
        }
        Arc::new(Self::start(&[]))
    }

    /// A broker of its own with further settings.
    pub(crate) fn start(settings: &[(&str, &str)]) -> Self {
        let settings: Vec<(String, String)> = SETTINGS
            .iter()
            .chain(settings)
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let broker = if on_kafka() {
            let options = OracleOptions {
                properties: settings,
                heap_mib: 512,
                transaction_version: Some(txn_version()),
                ..OracleOptions::default()
            };
            Broker::Kafka(Box::new(KafkaNode::start(&options).unwrap()))
        } else {
            let dir = tempfile::tempdir().unwrap();
            // Before what the test sets itself.
            let version = format!("transaction.version={}", txn_version());
            let settings = settings.iter().map(|(key, value)| format!("{key}={value}"));
            let options = GatewayOptions {
                overrides: std::iter::once(version).chain(settings).collect(),
                args: store_arguments(),
                ..GatewayOptions::default()
            };
            let gateway = Gateway::start(&dir.path().join("data"), &options).unwrap();
            Broker::Fencepost(Box::new(gateway), dir)
        };
        let address = match &broker {
            Broker::Fencepost(gateway, _) => gateway.address(),
            Broker::Kafka(node) => node.address(),
        };
        Self {
            broker: Mutex::new(broker),
            address,
        }
    }

    /// Where clients connect.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A connection.
    pub(crate) async fn connect(&self) -> RawClient {
        RawClient::connect(&self.address).await.unwrap()
    }

    /// A connection, and a new topic that it created.
    pub(crate) async fn with_topic(&self, topic: &str, partitions: i32) -> RawClient {
        self.with_configs(topic, partitions, &[]).await
    }

    /// A connection, and a new topic with configs.
    pub(crate) async fn with_configs(
        &self,
        topic: &str,
        partitions: i32,
        configs: &[(&str, &str)],
    ) -> RawClient {
        let mut client = self.connect().await;
        ops::create_topic(&mut client, topic, partitions, configs)
            .await
            .unwrap();
        client
    }

    /// Kills it with -9 and starts it again on the same data and port.
    pub(crate) fn kill_and_restart(&self) {
        let mut broker = self.broker.lock();
        match &mut *broker {
            Broker::Fencepost(gateway, _) => {
                gateway.process().kill().unwrap();
                gateway.restart().unwrap();
            }
            Broker::Kafka(node) => {
                node.process().kill().unwrap();
                node.restart().unwrap();
            }
        }
    }

    /// Runs `look` on its process.
    pub(crate) fn process<T>(&self, look: impl FnOnce(&mut Process) -> T) -> T {
        match &mut *self.broker.lock() {
            Broker::Fencepost(gateway, _) => look(gateway.process()),
            Broker::Kafka(node) => look(node.process()),
        }
    }

    /// Our gateway and its data directory; panics on Kafka.
    pub(crate) fn gateway<T>(&self, look: impl FnOnce(&mut Gateway, PathBuf) -> T) -> T {
        match &mut *self.broker.lock() {
            Broker::Fencepost(gateway, dir) => look(gateway, dir.path().join("data")),
            Broker::Kafka(_) => panic!("a test of the gateway's own"),
        }
    }

    /// What our gateway's admin port answers to a GET.
    pub(crate) fn admin(&self, path: &str) -> String {
        get(&self.gateway(|gateway, _| gateway.admin_address()), path)
    }

    /// Sends JSON to the admin port of our gateway; the status and the body of the answer.
    pub(crate) fn admin_call(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let address = self.gateway(|gateway, _| gateway.admin_address());
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let answer = exchange(&address, &request);
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        (status, body.to_owned())
    }

    /// Fails if our gateway logged a panic, or an error that none of `expected` is part of.
    pub(crate) fn log_is_clean(&self, expected: &[&str]) {
        if on_kafka() {
            return;
        }
        let log = self.gateway(|gateway, _| gateway.log().unwrap());
        for line in log.lines() {
            let known = expected.iter().any(|part| line.contains(part));
            let bad = line.contains("panicked") || (line.contains("ERROR") && !known);
            assert!(!bad, "logged: {line}");
        }
    }
}

/// The answer to a GET over HTTP, with its head.
pub(crate) fn get(address: &str, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    exchange(address, &request)
}

fn exchange(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The time, in milliseconds since the epoch.
#[allow(
    clippy::disallowed_methods,
    reason = "records need timestamps that a broker believes"
)]
pub(crate) fn now_ms() -> i64 {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// Producer id, epoch, base sequence, record count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct P(pub i64, pub i16, pub i32, pub usize);

impl P {
    /// The batch's parts, stamped with the time of the first call in this process, so that equal
    /// producers give equal bytes.
    pub(crate) fn spec(self) -> BatchSpec {
        static STAMP: std::sync::OnceLock<i64> = std::sync::OnceLock::new();
        let P(producer_id, producer_epoch, base_sequence, count) = self;
        BatchSpec {
            producer_id,
            producer_epoch,
            base_sequence,
            timestamp_ms: *STAMP.get_or_init(now_ms),
            records: (0..count).map(|i| Record::value(format!("v{i}"))).collect(),
            ..BatchSpec::default()
        }
    }

    /// The batch.
    pub(crate) fn batch(self) -> Bytes {
        self.spec().build()
    }
}

/// A batch without a producer.
pub(crate) fn plain(count: usize) -> Bytes {
    P(-1, -1, -1, count).batch()
}

/// A Produce request, acks=all, for partitions of one topic.
pub(crate) fn produce_request(topic: &str, data: &[(i32, Option<Bytes>)]) -> ProduceRequest {
    let partitions = data.iter().map(|(index, records)| {
        PartitionProduceData::default()
            .with_index(*index)
            .with_records(records.clone())
    });
    let topic = TopicProduceData::default()
        .with_name(ops::topic_name(topic))
        .with_partition_data(partitions.collect());
    ProduceRequest::default()
        .with_transactional_id(None)
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![topic])
}

/// Every partition's answer, in order.
pub(crate) fn answers(response: &ProduceResponse) -> Vec<PartitionProduceResponse> {
    let topics = response.responses.iter();
    topics
        .flat_map(|topic| topic.partition_responses.clone())
        .collect()
}

/// Every partition's error code, in order.
pub(crate) fn codes(response: &ProduceResponse) -> Vec<i16> {
    answers(response).iter().map(|p| p.error_code).collect()
}

/// Sends one batch to partition 0 and returns the code and base offset.
pub(crate) async fn produce(client: &mut RawClient, topic: &str, batch: Bytes) -> (i16, i64) {
    let answer = ops::produce(client, topic, 0, batch).await.unwrap();
    (answer.error_code, answer.base_offset)
}

/// The end of partition 0.
pub(crate) async fn end_of(client: &mut RawClient, topic: &str) -> i64 {
    ops::list_offsets(client, topic, 1, ops::LATEST)
        .await
        .unwrap()[0]
}

/// A string of the protocol.
pub(crate) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Whether a new connection is served.
pub(crate) async fn serves(target: &Target) -> bool {
    let mut client = target.connect().await;
    ops::api_versions(&mut client).await.is_ok()
}

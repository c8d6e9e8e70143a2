//! Real consumers of different makers in one group: they share the partitions, one leaves, the
//! other gets all, and what they committed is where they stopped.
//!
//! Needs kcat and the jars of Apache Kafka (`scripts/setup-clients.sh`) and `--features clients`;
//! what is missing fails. `FENCEPOST_WIRE_TARGET=kafka` runs the same against Apache
//! Kafka.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::{
    DescribeGroupsRequest, GroupId, OffsetFetchRequest, describe_groups_response::DescribedGroup,
};
use kafka_protocol::protocol::StrBytes;
use tests::flights::child::java;
use tests::gatewayproc::{Gateway, GatewayOptions};
use tests::oracle::{KafkaNode, OracleOptions};
use tests::process::Process;
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, ops};

const TOPIC: &str = "shared";
const GROUP: &str = "makers";
const PARTITIONS: i32 = 4;

enum Broker {
    Fencepost(Box<Gateway>),
    Kafka(Box<KafkaNode>),
}

impl Broker {
    fn start(dir: &Path) -> Self {
        let delay = ("group.initial.rebalance.delay.ms", "0");
        if std::env::var("FENCEPOST_WIRE_TARGET").is_ok_and(|target| target == "kafka") {
            let options = OracleOptions {
                properties: vec![(delay.0.to_owned(), delay.1.to_owned())],
                ..OracleOptions::default()
            };
            return Self::Kafka(Box::new(KafkaNode::start(&options).unwrap()));
        }
        let options = GatewayOptions {
            overrides: vec![format!("{}={}", delay.0, delay.1)],
            ..GatewayOptions::default()
        };
        let gateway = Gateway::start(&dir.join("data"), &options).unwrap();
        Self::Fencepost(Box::new(gateway))
    }

    fn address(&self) -> String {
        match self {
            Self::Fencepost(gateway) => gateway.address(),
            Self::Kafka(node) => node.address(),
        }
    }
}

/// A consumer that appends what it reads to a file, a line a record.
struct Consumer {
    process: Process,
    output: std::path::PathBuf,
}

impl Consumer {
    fn start(mut command: Command, name: &str, dir: &Path) -> Self {
        let output = dir.join(format!("{name}.out"));
        let log = File::create(dir.join(format!("{name}.log"))).unwrap();
        command.stdin(Stdio::null());
        command.stdout(File::create(&output).unwrap()).stderr(log);
        let child = command.spawn().expect("run scripts/setup-clients.sh");
        Self {
            process: Process::new(child),
            output,
        }
    }

    fn kcat(broker: &str, dir: &Path) -> Self {
        let mut command = Command::new("kcat");
        command.args(["-b", broker, "-G", GROUP, "-u", "-q", "-f", "%s\n"]);
        command.args(["-X", "auto.offset.reset=earliest", "-X", "client.id=kcat"]);
        command.args(["-X", "auto.commit.interval.ms=500", TOPIC]);
        Self::start(command, "kcat", dir)
    }

    fn java(broker: &str, dir: &Path) -> Self {
        let mut command = java("org.apache.kafka.tools.consumer.ConsoleConsumer").unwrap();
        command.args(["--bootstrap-server", broker, "--topic", TOPIC]);
        command.args(["--group", GROUP, "--from-beginning"]);
        for property in ["client.id=java", "auto.commit.interval.ms=500"] {
            command.args(["--command-property", property]);
        }
        Self::start(command, "java", dir)
    }

    fn read(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.output).unwrap();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(str::to_owned).collect()
    }
}

/// The partitions of `TOPIC` in an assignment: version, topics with partitions.
fn partitions(assignment: &[u8]) -> Vec<i32> {
    let int = |at: usize| i32::from_be_bytes(assignment[at..at + 4].try_into().unwrap());
    if assignment.len() < 6 || int(2) == 0 {
        return Vec::new();
    }
    assert_eq!(int(2), 1, "one topic");
    let length = u16::from_be_bytes(assignment[6..8].try_into().unwrap());
    let at = 8 + usize::from(length);
    assert_eq!(&assignment[8..at], TOPIC.as_bytes());
    let count = usize::try_from(int(at)).unwrap();
    (0..count).map(|n| int(at + 4 + 4 * n)).collect()
}

async fn describe(client: &mut RawClient) -> DescribedGroup {
    let group = GroupId(StrBytes::from_static_str(GROUP));
    let request = DescribeGroupsRequest::default().with_groups(vec![group]);
    let mut response = client.call(&request, 5).await.unwrap();
    response.groups.remove(0)
}

/// Awaits that the group is stable with these client ids, and that they share the partitions.
async fn shared_by(client: &mut RawClient, clients: &[&str]) -> BTreeMap<String, Vec<i32>> {
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    let mut last = String::new();
    for _ in 0..3000 {
        pace.tick().await;
        let group = describe(client).await;
        let mut shares = BTreeMap::new();
        for member in &group.members {
            let id = member.client_id.to_string();
            shares.insert(id, partitions(&member.member_assignment));
        }
        let there = shares
            .keys()
            .map(String::as_str)
            .eq(clients.iter().copied());
        last = format!("{} {shares:?}", group.group_state);
        if group.group_state.as_str() == "Stable" && there {
            let mut all: Vec<i32> = shares.values().flatten().copied().collect();
            all.sort_unstable();
            assert_eq!(all, (0..PARTITIONS).collect::<Vec<_>>(), "{shares:?}");
            return shares;
        }
    }
    panic!("{clients:?} never shared the topic; at last {last}");
}

/// Writes records `from..to`, over all partitions in turn.
async fn write(client: &mut RawClient, from: i32, to: i32) {
    for number in from..to {
        let batch = BatchSpec {
            records: vec![Record::value(format!("r{number}"))],
            ..BatchSpec::default()
        };
        let partition = number % PARTITIONS;
        let written = ops::produce(client, TOPIC, partition, batch.build()).await;
        assert_eq!(written.unwrap().error_code, 0);
    }
}

async fn read_all(consumers: &[&Consumer], to: i32) {
    let wanted: BTreeSet<String> = (0..to).map(|number| format!("r{number}")).collect();
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    let mut read = BTreeSet::new();
    for _ in 0..3000 {
        pace.tick().await;
        read = consumers.iter().flat_map(|c| c.read()).collect();
        if read.is_superset(&wanted) {
            assert_eq!(read, wanted, "nothing that was not written");
            return;
        }
    }
    panic!("not read: {:?}", wanted.difference(&read));
}

/// Awaits that the group has committed the end of every partition.
async fn committed_all(client: &mut RawClient) {
    let ends = ops::list_offsets(client, TOPIC, PARTITIONS, ops::LATEST);
    let ends = ends.await.unwrap();
    let topic = OffsetFetchRequestTopic::default()
        .with_name(ops::topic_name(TOPIC))
        .with_partition_indexes((0..PARTITIONS).collect());
    let request = OffsetFetchRequest::default()
        .with_group_id(GroupId(StrBytes::from_static_str(GROUP)))
        .with_topics(Some(vec![topic]));
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    let mut committed = Vec::new();
    for _ in 0..3000 {
        pace.tick().await;
        let response = client.call(&request, 5).await.unwrap();
        let partitions = &response.topics[0].partitions;
        committed = partitions.iter().map(|p| p.committed_offset).collect();
        if committed == ends {
            return;
        }
    }
    panic!("committed {committed:?}, ends {ends:?}");
}

#[tokio::test]
async fn librdkafka_and_java_share_a_group() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(dir.path());
    let address = broker.address();
    let mut client = RawClient::connect(&address).await.unwrap();
    ops::create_topic(&mut client, TOPIC, PARTITIONS, &[])
        .await
        .unwrap();
    write(&mut client, 0, 40).await;

    let mut java = Consumer::java(&address, dir.path());
    let shares = shared_by(&mut client, &["java"]).await;
    assert_eq!(shares["java"].len(), 4);
    let mut kcat = Consumer::kcat(&address, dir.path());
    let shares = shared_by(&mut client, &["java", "kcat"]).await;
    assert_eq!((shares["java"].len(), shares["kcat"].len()), (2, 2));
    write(&mut client, 40, 80).await;
    read_all(&[&java, &kcat], 80).await;

    // One leaves, and the other gets all.
    assert!(java.process.terminate().is_ok());
    let shares = shared_by(&mut client, &["kcat"]).await;
    assert_eq!(shares["kcat"].len(), 4);
    write(&mut client, 80, 120).await;
    read_all(&[&java, &kcat], 120).await;
    committed_all(&mut client).await;

    // The last one leaves, and one that comes goes on where it stopped.
    assert!(kcat.process.terminate().is_ok());
    let before = kcat.read();
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    while describe(&mut client).await.group_state.as_str() != "Empty" {
        pace.tick().await;
    }
    write(&mut client, 120, 160).await;
    let later = tempfile::tempdir().unwrap();
    let next = Consumer::kcat(&address, later.path());
    shared_by(&mut client, &["kcat"]).await;
    committed_all(&mut client).await;
    let read: BTreeSet<String> = next.read().into_iter().collect();
    let wanted: BTreeSet<String> = (120..160).map(|number| format!("r{number}")).collect();
    assert_eq!(read, wanted, "nothing again, nothing skipped");
    assert!(before.iter().all(|record| !wanted.contains(record)));
}

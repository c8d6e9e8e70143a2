//! Kafka's own tools as judges: what they print of us is what they print of Kafka.

use tests::oracle;
use tests::raw::ops;

use crate::kit::{Target, on_kafka, plain, produce};

const TOPICS: &str = "org.apache.kafka.tools.TopicCommand";
const CONFIGS: &str = "kafka.admin.ConfigCommand";
const OFFSETS: &str = "org.apache.kafka.tools.GetOffsetShell";
const DELETE_RECORDS: &str = "org.apache.kafka.tools.DeleteRecordsCommand";
const VERSIONS: &str = "org.apache.kafka.tools.BrokerApiVersionsCommand";

/// What a tool prints; fails when the tool does.
pub(crate) async fn tool(target: &Target, class: &'static str, args: &str) -> String {
    let address = target.address().to_owned();
    let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
    let run = move || {
        let class_path = oracle::class_path().unwrap();
        let mut command = oracle::tool(&class_path, class);
        command.args(["--bootstrap-server", &address]).args(args);
        command.output().unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{class}: {printed}{errors}");
    printed
}

/// The lines of `kafka-topics --describe` about partitions.
async fn partitions(target: &Target, topic: &str) -> Vec<String> {
    let printed = tool(target, TOPICS, &format!("--describe --topic {topic}")).await;
    let head = printed.lines().next().unwrap();
    assert!(head.contains("ReplicationFactor: 1"), "{head}");
    printed.lines().skip(1).map(str::to_owned).collect()
}

fn partition_line(topic: &str, partition: i32, broker: i32) -> String {
    format!(
        "\tTopic: {topic}\tPartition: {partition}\tLeader: {broker}\tReplicas: {broker}\t\
         Isr: {broker}\tElr: \tLastKnownElr: "
    )
}

#[tokio::test]
async fn topics_and_their_records_by_the_tools() {
    let target = Target::shared();
    let mut client = target.connect().await;
    let created = tool(&target, TOPICS, "--create --topic tools --partitions 2").await;
    assert_eq!(created, "Created topic tools.\n");
    let metadata = ops::await_topic(&mut client, "tools", 2).await.unwrap();
    let broker = metadata.brokers[0].node_id.0;
    let expected = [0, 1].map(|index| partition_line("tools", index, broker));
    assert_eq!(partitions(&target, "tools").await, expected);

    assert_eq!(
        tool(&target, TOPICS, "--alter --topic tools --partitions 3").await,
        ""
    );
    ops::await_topic(&mut client, "tools", 3).await.unwrap();
    let expected = [0, 1, 2].map(|index| partition_line("tools", index, broker));
    assert_eq!(partitions(&target, "tools").await, expected);

    assert_eq!(produce(&mut client, "tools", plain(5)).await, (0, 0));
    let printed = tool(&target, OFFSETS, "--topic tools").await;
    assert_eq!(printed, "tools:0:5\ntools:1:0\ntools:2:0\n");

    let file = tempfile::NamedTempFile::new().unwrap();
    let asked = r#"{"partitions":[{"topic":"tools","partition":0,"offset":3}],"version":1}"#;
    std::fs::write(file.path(), asked).unwrap();
    let args = format!("--offset-json-file {}", file.path().display());
    let printed = tool(&target, DELETE_RECORDS, &args).await;
    let expected = "partition: tools-0\tlow_watermark: 3";
    assert!(printed.lines().any(|line| line == expected), "{printed}");
    let printed = tool(&target, OFFSETS, "--topic tools --time earliest").await;
    assert_eq!(printed, "tools:0:3\ntools:1:0\ntools:2:0\n");

    let listed = tool(&target, TOPICS, "--list").await;
    assert!(listed.lines().any(|line| line == "tools"), "{listed}");
    assert_eq!(tool(&target, TOPICS, "--delete --topic tools").await, "");
}

#[tokio::test]
async fn configs_by_the_tool() {
    let target = Target::shared();
    let mut client = target.with_topic("tool-configs", 1).await;
    let of = "--entity-type topics --entity-name tool-configs";
    let done = "Completed updating config for topic tool-configs.\n";
    let set = format!("--alter {of} --add-config max.message.bytes=1000");
    assert_eq!(tool(&target, CONFIGS, &set).await, done);
    let describe = format!("--describe {of}");
    let printed = tool(&target, CONFIGS, &describe).await;
    assert_eq!(
        printed,
        "Dynamic configs for topic tool-configs are:\n  \
         max.message.bytes=1000 sensitive=false \
         synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=1000, \
         DEFAULT_CONFIG:message.max.bytes=1048588}\n"
    );
    let delete = format!("--alter {of} --delete-config max.message.bytes");
    assert_eq!(tool(&target, CONFIGS, &delete).await, done);
    let printed = tool(&target, CONFIGS, &describe).await;
    assert_eq!(printed, "Dynamic configs for topic tool-configs are:\n");
    let metadata = ops::metadata(&mut client, "tool-configs").await.unwrap();
    let broker = metadata.brokers[0].node_id.0;
    let all = format!("--describe --all --entity-type brokers --entity-name {broker}");
    let printed = tool(&target, CONFIGS, &all).await;
    let line = "  num.partitions=4 sensitive=false \
                synonyms={STATIC_BROKER_CONFIG:num.partitions=4, DEFAULT_CONFIG:num.partitions=1}";
    assert!(printed.lines().any(|found| found == line), "{printed}");
}

#[tokio::test]
async fn versions_by_the_tool() {
    let target = Target::shared();
    let printed = tool(&target, VERSIONS, "").await;
    for line in [
        "Produce(0): 0 to 13 [usable: 13]",
        "Fetch(1): 4 to 18 [usable: 18]",
        "DescribeConfigs(32): 1 to 4 [usable: 4]",
        "DescribeTopicPartitions(75): 0 [usable: 0]",
        "PushTelemetry(72): UNSUPPORTED",
    ] {
        assert!(printed.contains(line), "{line} is not in\n{printed}");
    }
    let fewer = "ListOffsets(2): 1 to 10 [usable: 10]";
    assert_eq!(printed.contains(fewer), !on_kafka(), "{printed}");
}

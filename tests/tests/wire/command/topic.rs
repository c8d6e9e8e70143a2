//! `fencepost topic` beside Kafka's tools.

use serde_json::json;
use tests::raw::ops;

use super::{fencepost, write};
use crate::kit::{Target, on_kafka};
use crate::tools::tool;

const TOPICS: &str = "org.apache.kafka.tools.TopicCommand";
const CONFIGS: &str = "kafka.admin.ConfigCommand";
const OFFSETS: &str = "org.apache.kafka.tools.GetOffsetShell";

#[tokio::test]
async fn what_one_makes_the_other_sees() {
    let target = Target::shared();
    let mut client = target.connect().await;
    let args = [
        "create",
        "cli-made",
        "-p",
        "3",
        "-c",
        "retention.ms=-1",
        "--format",
        "json",
    ];
    let made = fencepost(&target, "topic", &args).await.rows();
    assert_eq!(made.len(), 1);
    assert_eq!(made[0]["partitions"], 3);
    assert_eq!(made[0]["created"], true);
    ops::await_topic(&mut client, "cli-made", 3).await.unwrap();
    write(&mut client, "cli-made", 1, &["a", "b"]).await;

    let theirs = tool(&target, TOPICS, "--describe --topic cli-made").await;
    let head = theirs.lines().next().unwrap();
    let ours = fencepost(
        &target,
        "topic",
        &["describe", "cli-made", "--format", "json"],
    )
    .await;
    let ours = ours.rows();
    assert!(head.contains(ours[0]["topicId"].as_str().unwrap_or("none")) || is_java_id(head));
    assert!(
        head.contains("PartitionCount: 3") && head.contains("retention.ms=-1"),
        "{head}"
    );
    assert_eq!(ours[0]["partitions"], 3);
    assert_eq!(ours[0]["replicationFactor"], 1);
    assert_eq!(ours[0]["configs"], json!({ "retention.ms": "-1" }));

    let partitions = ["partitions", "cli-made", "--format", "json"];
    let rows = fencepost(&target, "topic", &partitions).await.rows();
    let lines = theirs.lines().skip(1).zip(&rows);
    for (line, row) in lines {
        for (word, key) in [("Partition", "partition"), ("Leader", "leader")] {
            let found = format!("{word}: {}", row[key]);
            assert!(line.contains(&found), "{line} has no {found}");
        }
    }
    let theirs = tool(&target, OFFSETS, "--topic cli-made").await;
    let ours = rows.iter().map(|row| {
        let end = row["highWatermark"].as_i64().unwrap();
        assert_eq!(row["lastStableOffset"].as_i64(), Some(end));
        format!("cli-made:{}:{end}\n", row["partition"])
    });
    assert_eq!(theirs, ours.collect::<String>());

    let listed = fencepost(&target, "topic", &["list"]).await.ok();
    let names: Vec<&str> = listed.lines().filter_map(|l| l.split(' ').next()).collect();
    let theirs = tool(&target, TOPICS, "--list").await;
    assert!(names.contains(&"cli-made"), "{listed}");
    for name in theirs.lines().filter(|name| name.starts_with("cli-made")) {
        assert!(names.contains(&name), "{name}");
    }

    let deleted = fencepost(&target, "topic", &["delete", "cli-made"])
        .await
        .ok();
    assert_eq!(deleted, "TOPIC     DELETED\ncli-made  true\n");
    let theirs = tool(&target, TOPICS, "--list").await;
    assert!(theirs.lines().all(|name| name != "cli-made"), "{theirs}");
}

/// Java prints an id in base64.
fn is_java_id(head: &str) -> bool {
    let id = head
        .split("TopicId: ")
        .nth(1)
        .and_then(|rest| rest.split('\t').next());
    id.is_some_and(|id| id.trim().len() == 22)
}

#[tokio::test]
async fn configs_and_partitions_are_altered_or_nothing_is() {
    let target = Target::shared();
    let mut client = target.with_topic("cli-alter", 2).await;
    let set = [
        "alter",
        "cli-alter",
        "-s",
        "max.message.bytes=2000",
        "-p",
        "3",
    ];
    let dry = [&set[..], &["--dry-run", "--format", "json"]].concat();
    let rows = fencepost(&target, "topic", &dry).await.rows();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row["altered"] == false));
    let configs = ["configs", "cli-alter", "--format", "jsonl"];
    assert_eq!(fencepost(&target, "topic", &configs).await.ok(), "");

    let done = fencepost(&target, "topic", &set).await.ok();
    assert!(
        done.contains("partitions 3") && done.contains("true"),
        "{done}"
    );
    ops::await_topic(&mut client, "cli-alter", 3).await.unwrap();
    let describe = "--describe --entity-type topics --entity-name cli-alter";
    let theirs = tool(&target, CONFIGS, describe).await;
    assert!(theirs.contains("  max.message.bytes=2000 "), "{theirs}");
    let ours = fencepost(&target, "topic", &["configs", "cli-alter"])
        .await
        .ok();
    let line = "cli-alter  max.message.bytes  2000   DYNAMIC_TOPIC_CONFIG";
    assert!(ours.lines().any(|found| found == line), "{ours}");

    // The config would do, the partitions do not: neither is changed.
    let refused = ["alter", "cli-alter", "-s", "max.message.bytes=1", "-p", "2"];
    let complaint = fencepost(&target, "topic", &refused).await.failed(1);
    assert!(complaint.contains("(37)"), "{complaint}");
    assert!(
        tool(&target, CONFIGS, describe)
            .await
            .contains("max.message.bytes=2000 ")
    );

    let delete = ["alter", "cli-alter", "--delete", "max.message.bytes"];
    fencepost(&target, "topic", &delete).await.ok();
    let all = fencepost(&target, "topic", &["configs", "cli-alter", "--all"])
        .await
        .ok();
    let restored = all
        .lines()
        .find(|line| line.contains(" max.message.bytes "));
    assert!(restored.unwrap().contains("1048588"), "{all}");
    for (config, code) in [("no.such.key=1", 40), ("max.message.bytes=x", 40)] {
        let args = ["alter", "cli-alter", "--set", config];
        let complaint = fencepost(&target, "topic", &args).await.failed(1);
        assert!(complaint.contains(&format!("({code})")), "{complaint}");
    }
}

#[tokio::test]
async fn refusals_have_kafkas_codes_and_what_was_done_is_printed() {
    let target = Target::shared();
    target.with_topic("cli-there", 1).await;
    let two = ["create", "cli-there", "cli-new", "-p", "1"];
    let said = fencepost(&target, "topic", &two).await;
    assert_eq!(said.code, Some(1));
    assert!(
        said.err.contains("topic cli-there") && said.err.contains("(36)"),
        "{}",
        said.err
    );
    assert!(
        said.out.contains("cli-new") && !said.out.contains("cli-there"),
        "{}",
        said.out
    );
    let again = ["create", "cli-there", "--if-not-exists", "--format", "json"];
    assert_eq!(
        fencepost(&target, "topic", &again).await.rows()[0]["created"],
        false
    );
    for (args, code) in [
        (&["create", "no/slash"][..], 17),
        (&["create", "cli-x", "-c", "no.such.key=1"], 40),
        (&["delete", "cli-none"], 3),
        (&["describe", "cli-none"], 3),
        (&["partitions", "cli-none"], 3),
        (&["configs", "cli-none"], 3),
        (&["alter", "cli-none", "-p", "2"], 3),
        (
            &["delete-records", "cli-none", "-p", "0", "--before", "end"],
            3,
        ),
    ] {
        let complaint = fencepost(&target, "topic", args).await.failed(1);
        assert!(
            complaint.contains(&format!("({code})")),
            "{args:?}: {complaint}"
        );
    }
    let gone = ["delete", "cli-none", "--if-exists", "--format", "json"];
    assert_eq!(
        fencepost(&target, "topic", &gone).await.rows()[0]["deleted"],
        false
    );
    let dry = ["create", "cli-dry", "--dry-run", "--format", "json"];
    assert_eq!(
        fencepost(&target, "topic", &dry).await.rows()[0]["created"],
        false
    );
    let listed = fencepost(&target, "topic", &["list"]).await.ok();
    assert!(!listed.contains("cli-dry"), "{listed}");
}

#[tokio::test]
async fn records_are_deleted_below_an_offset() {
    let target = Target::shared();
    let mut client = target.with_topic("cli-trim", 2).await;
    for partition in 0..2 {
        write(&mut client, "cli-trim", partition, &["a", "b", "c"]).await;
    }
    let args = [
        "delete-records",
        "cli-trim",
        "-p",
        "0",
        "--before",
        "2",
        "--format",
        "json",
    ];
    let dry = [&args[..], &["--dry-run"]].concat();
    let planned = fencepost(&target, "topic", &dry).await.rows();
    assert_eq!(planned[0]["lowWatermark"], 2);
    assert_eq!(planned[0]["deleted"], false);
    let earliest = "--topic cli-trim --time earliest";
    assert_eq!(
        tool(&target, OFFSETS, earliest).await,
        "cli-trim:0:0\ncli-trim:1:0\n"
    );
    let done = fencepost(&target, "topic", &args).await.rows();
    assert_eq!(done[0]["lowWatermark"], 2);
    assert_eq!(
        tool(&target, OFFSETS, earliest).await,
        "cli-trim:0:2\ncli-trim:1:0\n"
    );

    let file = tempfile::NamedTempFile::new().unwrap();
    let asked = r#"{"partitions":[{"topic":"cli-trim","partition":1,"offset":-1}],"version":1}"#;
    std::fs::write(file.path(), asked).unwrap();
    let from_file = [
        "delete-records",
        "--offset-json-file",
        file.path().to_str().unwrap(),
    ];
    fencepost(&target, "topic", &from_file).await.ok();
    assert_eq!(
        tool(&target, OFFSETS, earliest).await,
        "cli-trim:0:2\ncli-trim:1:3\n"
    );

    let beyond = ["delete-records", "cli-trim", "-p", "0", "--before", "4"];
    let complaint = fencepost(&target, "topic", &beyond).await.failed(1);
    assert!(complaint.contains("ends at 3"), "{complaint}");
    let nowhere = ["delete-records", "cli-trim", "-p", "7", "--before", "1"];
    let complaint = fencepost(&target, "topic", &nowhere).await.failed(1);
    assert!(complaint.contains("it has 0 to 1"), "{complaint}");
    std::fs::write(file.path(), "{}").unwrap();
    let complaint = fencepost(&target, "topic", &from_file).await.failed(2);
    assert!(complaint.contains("partitions"), "{complaint}");
    assert!(on_kafka() || complaint.contains("--offset-json-file"));
}

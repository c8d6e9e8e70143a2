//! DescribeLogDirs and ListConfigResources: where records are, and what has configs.

use std::collections::BTreeMap;

use bytes::Bytes;
use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::messages::{DescribeLogDirsRequest, ListConfigResourcesRequest};
use tests::raw::{RawClient, ops};

use crate::kit::{Target, differs, on_kafka, plain, produce};
use crate::tools::tool;

/// The one directory, asked about some partitions or everything.
async fn directory(
    client: &mut RawClient,
    version: i16,
    asked: Option<&[(&str, &[i32])]>,
) -> DescribeLogDirsResult {
    let topics = asked.map(|asked| {
        let topics = asked.iter().map(|(name, partitions)| {
            DescribableLogDirTopic::default()
                .with_topic(ops::topic_name(name))
                .with_partitions(partitions.to_vec())
        });
        topics.collect()
    });
    let request = DescribeLogDirsRequest::default().with_topics(topics);
    let mut response = client.call(&request, version).await.unwrap();
    assert_eq!(response.error_code, 0, "v{version}");
    assert_eq!(response.results.len(), 1, "v{version}");
    let directory = response.results.remove(0);
    assert_eq!(directory.error_code, 0, "v{version}");
    directory
}

/// Bytes that a batch takes: ours has a header of the journal.
fn stored(batch: &Bytes) -> i64 {
    let header = differs("log-dir-sizes", 0, 64);
    i64::try_from(batch.len()).unwrap() + header
}

/// Bytes of every partition, by number.
fn sizes(topic: &DescribeLogDirsTopic) -> BTreeMap<i32, i64> {
    let partitions = topic.partitions.iter();
    let sizes = partitions.map(|partition| {
        assert_eq!((partition.offset_lag, partition.is_future_key), (0, false));
        (partition.partition_index, partition.partition_size)
    });
    sizes.collect()
}

fn names(directory: &DescribeLogDirsResult) -> Vec<&str> {
    let mut names: Vec<&str> = directory.topics.iter().map(|t| t.name.as_str()).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn partitions_have_the_bytes_of_their_batches() {
    let target = Target::shared();
    let mut client = target.with_topic("dirs", 3).await;
    ops::create_topic(&mut client, "dirs-other", 1, &[])
        .await
        .unwrap();
    let batch = plain(7);
    let len = stored(&batch);
    for _ in 0..2 {
        assert_eq!(produce(&mut client, "dirs", batch.clone()).await.0, 0);
    }
    for version in 1..=4 {
        let all = directory(&mut client, version, None).await;
        assert!(all.log_dir.starts_with('/'), "{}", all.log_dir);
        let found = names(&all);
        assert!(found.contains(&"dirs") && found.contains(&"dirs-other"));
        let topic = all.topics.iter().find(|t| t.name.as_str() == "dirs");
        let expected = BTreeMap::from([(0, 2 * len), (1, 0), (2, 0)]);
        assert_eq!(sizes(topic.unwrap()), expected, "v{version}");
        if version >= 4 {
            assert!(all.usable_bytes > 0 && all.total_bytes >= all.usable_bytes);
        }
    }
    // Some, more than once, and what is not there.
    let asked: [(&str, &[i32]); 4] = [
        ("dirs", &[2, 0, 2]),
        ("no-such-topic", &[0]),
        ("dirs", &[0, 9, -1]),
        ("dirs-other", &[]),
    ];
    let some = directory(&mut client, 4, Some(&asked)).await;
    assert_eq!(names(&some), ["dirs"]);
    assert_eq!(sizes(&some.topics[0]), [(0, 2 * len), (2, 0)].into());
    let none = directory(&mut client, 4, Some(&[])).await;
    assert!(none.topics.is_empty());
}

/// Space follows: what is deleted goes as a whole, a segment there, a stretch of the journal here.
#[tokio::test]
async fn what_was_deleted_is_not_counted_for_ever() {
    let target = Target::shared();
    let mut client = target.with_topic("dirs-cut", 1).await;
    let batch = plain(7);
    let len = stored(&batch);
    for _ in 0..3 {
        assert_eq!(produce(&mut client, "dirs-cut", batch.clone()).await.0, 0);
    }
    let asked: [(&str, &[i32]); 1] = [("dirs-cut", &[0])];
    for (offset, least) in [(14, len), (21, 0)] {
        let deleted = crate::trimming::delete(&mut client, 2, "dirs-cut", &[(0, offset)]).await;
        assert_eq!(deleted, [(0, 0, offset)]);
        let cut = directory(&mut client, 4, Some(&asked)).await;
        let size = sizes(&cut.topics[0])[&0];
        assert!((least..=3 * len).contains(&size), "{size} of {len} each");
        if !on_kafka() && least == 0 {
            assert_eq!(size, 0, "nothing is left");
        }
    }
}

#[tokio::test]
async fn log_dirs_by_the_tool() {
    let target = Target::shared();
    let mut client = target.with_topic("dirs-tool", 2).await;
    assert_eq!(produce(&mut client, "dirs-tool", plain(7)).await.0, 0);
    let class = "org.apache.kafka.tools.LogDirsCommand";
    let printed = tool(&target, class, "--describe --topic-list dirs-tool").await;
    let json = printed.lines().find(|line| line.starts_with('{')).unwrap();
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    let directory = &json["brokers"][0]["logDirs"][0];
    assert!(directory["error"].is_null(), "{printed}");
    let mut partitions = directory["partitions"].as_array().unwrap().clone();
    partitions.sort_by_key(|one| one["partition"].as_str().unwrap().to_owned());
    let expected = serde_json::json!([
        {"partition": "dirs-tool-0", "size": stored(&plain(7)), "offsetLag": 0, "isFuture": false},
        {"partition": "dirs-tool-1", "size": 0, "offsetLag": 0, "isFuture": false},
    ]);
    assert_eq!(serde_json::Value::Array(partitions), expected);
}

/// Type and name of what has configs, and the code.
async fn listed(client: &mut RawClient, version: i16, types: &[i8]) -> (i16, Vec<(i8, String)>) {
    let request = ListConfigResourcesRequest::default().with_resource_types(types.to_vec());
    let response = client.call(&request, version).await.unwrap();
    let resources = response.config_resources.iter();
    let mut resources: Vec<(i8, String)> = resources
        .map(|one| (one.resource_type, one.resource_name.to_string()))
        .collect();
    resources.sort();
    (response.error_code, resources)
}

#[tokio::test]
async fn topics_and_brokers_have_configs() {
    let target = Target::shared();
    let mut client = target.with_topic("has-configs", 1).await;
    let metadata = ops::metadata(&mut client, "has-configs").await.unwrap();
    let broker = metadata.brokers[0].node_id.0.to_string();
    let topic = (2, "has-configs".to_owned());

    let (code, all) = listed(&mut client, 1, &[]).await;
    assert_eq!(code, 0);
    assert!(all.contains(&topic) && all.contains(&(4, broker.clone())));
    let loggers = differs("no-loggers", true, false);
    assert_eq!(all.contains(&(8, broker.clone())), loggers);

    let (code, topics) = listed(&mut client, 1, &[2, 2]).await;
    assert_eq!(code, 0);
    assert!(topics.contains(&topic) && topics.iter().all(|(kind, _)| *kind == 2));
    assert_eq!(listed(&mut client, 1, &[4]).await, (0, vec![(4, broker)]));
    for types in [&[16][..], &[32], &[16, 32]] {
        assert_eq!(listed(&mut client, 1, types).await, (0, vec![]));
    }
    // Client metrics are all that version 0 knows.
    assert_eq!(listed(&mut client, 0, &[]).await, (0, vec![]));
    for types in [&[0][..], &[1], &[3], &[64], &[-1], &[2, 77]] {
        assert_eq!(
            listed(&mut client, 1, types).await,
            (35, vec![]),
            "{types:?}"
        );
    }
}

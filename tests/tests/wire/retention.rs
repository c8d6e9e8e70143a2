//! Records that are too old, or too many, go; and no others.

use std::time::Duration;

use kafka_protocol::messages::IncrementalAlterConfigsRequest;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::protocol::StrBytes;
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, ops};

use crate::compaction::{NOBODY, keyed};
use crate::kit::{P, Target, now_ms, on_kafka, produce};
use crate::reading::fetch_request;

/// Kafka looks for the first time after `log.initial.task.delay.ms`.
pub(crate) const SOON: [(&str, &str); 2] = [
    ("log.retention.check.interval.ms", "100"),
    ("log.initial.task.delay.ms", "100"),
];
pub(crate) const MEBIBYTE: &str = "1048576";

/// One record of `len` bytes at a time.
fn record(len: usize, timestamp: i64) -> bytes::Bytes {
    let spec = BatchSpec {
        timestamp_ms: timestamp,
        records: vec![Record::value(vec![b'x'; len])],
        ..P(-1, -1, -1, 0).spec()
    };
    spec.build()
}

async fn start(client: &mut RawClient, topic: &str) -> i64 {
    let starts = ops::list_offsets(client, topic, 1, ops::EARLIEST).await;
    starts.unwrap()[0]
}

/// Waits until the log begins at `wanted`, and that it stays there.
pub(crate) async fn begins_at(client: &mut RawClient, topic: &str, wanted: i64) {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..2400 {
        pace.tick().await;
        if start(client, topic).await >= wanted {
            break;
        }
    }
    for _ in 0..10 {
        pace.tick().await;
        assert_eq!(start(client, topic).await, wanted);
    }
}

async fn set(client: &mut RawClient, topic: &str, key: &str, value: &str) {
    let text = |text: &str| StrBytes::from_string(text.to_owned());
    let config = AlterableConfig::default()
        .with_name(text(key))
        .with_config_operation(0)
        .with_value(Some(text(value)));
    let resource = AlterConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text(topic))
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    let response = client.call(&request, 1).await.unwrap();
    assert_eq!(response.responses[0].error_code, 0);
}

#[tokio::test]
async fn the_oldest_segments_go_while_the_others_are_enough() {
    let target = Target::start(&SOON);
    let configs = [("segment.bytes", MEBIBYTE)];
    let mut client = target.with_configs("by-size", 1, &configs).await;
    for n in 0..8 {
        // Two of them are more than a segment.
        let sent = produce(&mut client, "by-size", record(600_000, 0)).await;
        assert_eq!(sent, (0, n));
    }
    begins_at(&mut client, "by-size", 0).await;
    set(&mut client, "by-size", "retention.bytes", "2200000").await;
    begins_at(&mut client, "by-size", 4).await;
    // Who reads what went is told so.
    let fetched = client.call(&fetch_request("by-size", &[(0, 3)]), 12).await;
    assert_eq!(fetched.unwrap().responses[0].partitions[0].error_code, 1);
    let sent = produce(&mut client, "by-size", record(600_000, 0)).await;
    assert_eq!(sent, (0, 8));
    begins_at(&mut client, "by-size", 5).await;
}

#[tokio::test]
async fn without_a_policy_nothing_goes() {
    let configs = [("segment.bytes", MEBIBYTE), ("retention.bytes", "2200000")];
    let none = ("cleanup.policy", "");
    // The topic's own, and the broker's.
    for (of_broker, of_topic) in [(None, Some(none)), (Some(("log.cleanup.policy", "")), None)] {
        let settings: Vec<_> = SOON.into_iter().chain(of_broker).collect();
        let target = Target::start(&settings);
        let configs: Vec<_> = configs.into_iter().chain(of_topic).collect();
        let mut client = target.with_configs("by-nothing", 1, &configs).await;
        for n in 0..8 {
            let sent = produce(&mut client, "by-nothing", record(600_000, 0)).await;
            assert_eq!(sent, (0, n));
        }
        begins_at(&mut client, "by-nothing", 0).await;
        set(&mut client, "by-nothing", "cleanup.policy", "delete").await;
        begins_at(&mut client, "by-nothing", 4).await;
    }
}

/// A connection, and a new topic with four records of eight days ago, each in a segment of its own.
pub(crate) async fn aged(target: &Target, topic: &str, configs: &[(&str, &str)]) -> RawClient {
    let eight_days_ago = now_ms() - 8 * 86_400_000;
    let small = [("segment.bytes", MEBIBYTE)];
    let configs: Vec<_> = small.iter().chain(configs).copied().collect();
    let mut client = target.with_configs(topic, 1, &configs).await;
    for n in 0..4 {
        let large = "x".repeat(600_000);
        let batch = keyed(NOBODY, eight_days_ago, &[("k", Some(&large))]);
        assert_eq!(produce(&mut client, topic, batch).await, (0, n));
    }
    client
}

/// What was stored meant something, perhaps to keep everything: the broker's defaults are not it.
#[tokio::test]
async fn a_topic_whose_configs_do_not_apply_after_a_restart_keeps_its_records() {
    if on_kafka() {
        return;
    }
    let settings = [("log.retention.ms", "604800000")];
    let settings: Vec<_> = SOON.into_iter().chain(settings).collect();
    let target = Target::start(&settings);
    let lag = ("min.compaction.lag.ms", "7200000");
    drop(aged(&target, "lags", &[("cleanup.policy", "compact"), lag]).await);
    target.gateway(|gateway, _| {
        assert!(gateway.stop().unwrap().success());
        let less = "log.cleaner.max.compaction.lag.ms=3600000";
        gateway.options().overrides.push(less.to_owned());
        gateway.restart().unwrap();
    });
    let ready = target.admin("/readyz");
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
    assert!(ready.contains("\nconfigs: lags: conflict topic"), "{ready}");
    // Another topic loses its records, this one does not.
    let mut client = aged(&target, "plain", &[]).await;
    begins_at(&mut client, "plain", 4).await;
    begins_at(&mut client, "lags", 0).await;
    set(&mut client, "lags", "min.compaction.lag.ms", "0").await;
    assert!(!target.admin("/readyz").contains("configs:"));
    set(&mut client, "lags", "cleanup.policy", "delete").await;
    begins_at(&mut client, "lags", 4).await;
    target.log_is_clean(&["a stored config of the topic is not in force"]);
}

#[tokio::test]
async fn it_is_looked_for_first_soon_after_a_restart() {
    if on_kafka() {
        return;
    }
    // Behind the first look the next is an hour away.
    let settings = [
        ("log.initial.task.delay.ms", "100"),
        ("log.retention.check.interval.ms", "3600000"),
    ];
    let target = Target::start(&settings);
    let day = [("retention.ms", "86400000")];
    drop(aged(&target, "old", &day).await);
    target.kill_and_restart();
    let mut client = target.connect().await;
    ops::await_topic(&mut client, "old", 1).await.unwrap();
    begins_at(&mut client, "old", 4).await;
}

#[tokio::test]
async fn a_segment_goes_by_its_largest_timestamp() {
    let target = Target::start(&SOON);
    let configs = [("segment.bytes", MEBIBYTE)];
    let mut client = target.with_configs("by-time", 1, &configs).await;
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    let now = i64::try_from(now.as_millis()).unwrap();
    for (n, age) in (0..).zip([90_000_000, 90_000_000, 0, 90_000_000]) {
        let sent = produce(&mut client, "by-time", record(600_000, now - age)).await;
        assert_eq!(sent, (0, n));
    }
    begins_at(&mut client, "by-time", 0).await;
    set(&mut client, "by-time", "retention.ms", "86400000").await;
    // The one behind the young segment stays: a log has no holes.
    begins_at(&mut client, "by-time", 2).await;
    set(&mut client, "by-time", "retention.ms", "-1").await;
    begins_at(&mut client, "by-time", 2).await;
    // The last segment goes too, and the end stays.
    set(&mut client, "by-time", "retention.ms", "1").await;
    begins_at(&mut client, "by-time", 4).await;
    let sent = produce(&mut client, "by-time", record(10, now)).await;
    assert_eq!(sent, (0, 4));
}

/// Small enough that all segments but the last go, if there are several.
async fn keeps_the_last_segment_only(client: &mut RawClient, topic: &str) {
    set(client, topic, "retention.bytes", "1").await;
    begins_at(client, topic, 0).await;
}

#[tokio::test]
async fn timestamps_that_reach_far_begin_a_segment_once_the_topic_says_so() {
    let target = Target::start(&SOON);
    let mut client = target.with_topic("by-reach", 1).await;
    // Small ones would be accounted for together.
    let late = |n: i64| record(600_000, 1_000_000 + n * 10_000);
    for n in 0..3 {
        assert_eq!(produce(&mut client, "by-reach", late(n)).await, (0, n));
    }
    keeps_the_last_segment_only(&mut client, "by-reach").await;
    set(&mut client, "by-reach", "segment.ms", "5000").await;
    for n in 3..6 {
        assert_eq!(produce(&mut client, "by-reach", late(n)).await, (0, n));
    }
    begins_at(&mut client, "by-reach", 5).await;
}

#[tokio::test]
async fn segments_are_as_large_as_the_topic_says_from_then_on() {
    let target = Target::start(&SOON);
    let mut client = target.with_topic("by-length", 1).await;
    for n in 0..3 {
        let sent = produce(&mut client, "by-length", record(600_000, 1000)).await;
        assert_eq!(sent, (0, n));
    }
    keeps_the_last_segment_only(&mut client, "by-length").await;
    set(&mut client, "by-length", "segment.bytes", MEBIBYTE).await;
    for n in 3..6 {
        let sent = produce(&mut client, "by-length", record(600_000, 1000)).await;
        assert_eq!(sent, (0, n));
    }
    begins_at(&mut client, "by-length", 5).await;
}

#[tokio::test]
async fn the_broker_says_what_holds_for_topics_that_say_nothing() {
    let settings = [
        ("log.retention.ms", "86400000"),
        ("log.retention.hours", "1000"),
        ("log.segment.bytes", MEBIBYTE),
    ];
    let settings: Vec<_> = SOON.into_iter().chain(settings).collect();
    let target = Target::start(&settings);
    let mut client = target.with_topic("by-broker", 1).await;
    let mut kept = target
        .with_configs("kept", 1, &[("retention.ms", "-1")])
        .await;
    for n in 0..3 {
        let sent = produce(&mut client, "by-broker", record(600_000, 1000)).await;
        assert_eq!(sent, (0, n));
        assert_eq!(produce(&mut kept, "kept", record(10, 1000)).await, (0, n));
    }
    begins_at(&mut client, "by-broker", 3).await;
    assert_eq!(start(&mut kept, "kept").await, 0);
}

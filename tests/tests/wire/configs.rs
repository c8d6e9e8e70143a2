//! AlterConfigs and IncrementalAlterConfigs: what is stored is in force, or is refused.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::alter_configs_request as replace;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::incremental_alter_configs_response::IncrementalAlterConfigsResponse;
use kafka_protocol::messages::{
    AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest,
};
use tests::raw::batch::Record;
use tests::raw::{RawClient, ops};

use crate::kit::{P, Target, differs, now_ms, on_kafka, plain, text};

pub(crate) const SET: i8 = 0;
pub(crate) const DELETE: i8 = 1;
pub(crate) const APPEND: i8 = 2;
pub(crate) const SUBTRACT: i8 = 3;
pub(crate) const TOPIC: i8 = 2;
pub(crate) const BROKER: i8 = 4;

pub(crate) type Entry<'a> = (&'a str, i8, Option<&'a str>);

fn resource(kind: i8, name: &str, entries: &[Entry<'_>]) -> AlterConfigsResource {
    let configs = entries.iter().map(|(key, op, value)| {
        AlterableConfig::default()
            .with_name(text(key))
            .with_config_operation(*op)
            .with_value(value.map(text))
    });
    AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configs(configs.collect())
}

fn codes(response: &IncrementalAlterConfigsResponse) -> Vec<i16> {
    let codes = response.responses.iter().map(|one| {
        assert!(one.error_code != 0 || one.error_message.is_none());
        one.error_code
    });
    codes.collect()
}

pub(crate) async fn change(
    client: &mut RawClient,
    kind: i8,
    name: &str,
    entries: &[Entry<'_>],
    validate_only: bool,
) -> i16 {
    let request = IncrementalAlterConfigsRequest::default()
        .with_resources(vec![resource(kind, name, entries)])
        .with_validate_only(validate_only);
    codes(&client.call(&request, 1).await.unwrap())[0]
}

async fn set(client: &mut RawClient, topic: &str, key: &str, value: &str) -> i16 {
    change(client, TOPIC, topic, &[(key, SET, Some(value))], false).await
}

/// Value and source of a topic's config.
async fn shown(client: &mut RawClient, topic: &str, key: &str) -> (String, i8) {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(text(topic))
        .with_configuration_keys(Some(vec![text(key)]));
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let response = client.call(&request, 4).await.unwrap();
    let config = &response.results[0].configs[0];
    (
        config.value.as_ref().unwrap().to_string(),
        config.config_source,
    )
}

/// Produces until the answer has `code`: at once here, soon on Kafka, whose brokers follow their
/// controller. The time that the broker stamped.
pub(crate) async fn produces(client: &mut RawClient, topic: &str, batch: Bytes, code: i16) -> i64 {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let tries = if on_kafka() { 200 } else { 1 };
    let mut answer = ops::produce(client, topic, 0, batch.clone()).await.unwrap();
    for _ in 1..tries {
        if answer.error_code == code {
            break;
        }
        pace.tick().await;
        answer = ops::produce(client, topic, 0, batch.clone()).await.unwrap();
    }
    assert_eq!(answer.error_code, code, "{topic}");
    answer.log_append_time_ms
}

fn stamped(timestamp_ms: i64) -> Bytes {
    let mut spec = P(-1, -1, -1, 1).spec();
    spec.timestamp_ms = timestamp_ms;
    spec.build()
}

pub(crate) fn of_bytes(len: usize) -> Bytes {
    let mut spec = P(-1, -1, -1, 1).spec();
    spec.records = vec![Record::value("x".repeat(len))];
    spec.build()
}

#[tokio::test]
async fn the_largest_batch_changes_at_run_time() {
    let target = Target::shared();
    let mut client = target.with_topic("alter-size", 1).await;
    let key = "max.message.bytes";
    produces(&mut client, "alter-size", of_bytes(2000), 0).await;
    assert_eq!(set(&mut client, "alter-size", key, "1000").await, 0);
    produces(&mut client, "alter-size", of_bytes(2000), 10).await;
    produces(&mut client, "alter-size", of_bytes(500), 0).await;
    assert_eq!(
        shown(&mut client, "alter-size", key).await,
        ("1000".to_owned(), 1)
    );
    let gone = [(key, DELETE, None)];
    assert_eq!(
        change(&mut client, TOPIC, "alter-size", &gone, false).await,
        0
    );
    produces(&mut client, "alter-size", of_bytes(2000), 0).await;
    assert_eq!(
        shown(&mut client, "alter-size", key).await,
        ("1048588".to_owned(), 5)
    );
}

#[tokio::test]
async fn a_batch_that_is_larger_than_a_segment_is_refused() {
    let target = Target::shared();
    let configs = [
        ("segment.bytes", "1048576"),
        ("max.message.bytes", "3000000"),
    ];
    let mut client = target.with_configs("alter-segment", 1, &configs).await;
    produces(&mut client, "alter-segment", of_bytes(2_000_000), 18).await;
    produces(&mut client, "alter-segment", of_bytes(1_000_000), 0).await;
}

#[tokio::test]
async fn whose_clock_stamps_changes_at_run_time() {
    let target = Target::shared();
    let mut client = target.with_topic("alter-clock", 1).await;
    let key = "message.timestamp.type";
    assert_eq!(produces(&mut client, "alter-clock", plain(1), 0).await, -1);
    assert_eq!(
        set(&mut client, "alter-clock", key, "LogAppendTime").await,
        0
    );
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let tries = if on_kafka() { 200 } else { 1 };
    let mut at = -1;
    for _ in 0..tries {
        pace.tick().await;
        at = produces(&mut client, "alter-clock", plain(1), 0).await;
        if at >= 0 {
            break;
        }
    }
    assert!((now_ms() - at).abs() < 60_000, "{at}");
}

#[tokio::test]
async fn how_far_timestamps_may_lie_changes_at_run_time() {
    let target = Target::shared();
    let mut client = target.with_topic("alter-times", 1).await;
    let (past, future) = (now_ms() - 600_000, now_ms() + 600_000);
    produces(&mut client, "alter-times", stamped(past), 0).await;
    produces(&mut client, "alter-times", stamped(future), 0).await;
    let before = "message.timestamp.before.max.ms";
    let after = "message.timestamp.after.max.ms";
    assert_eq!(set(&mut client, "alter-times", before, "60000").await, 0);
    produces(&mut client, "alter-times", stamped(past), 32).await;
    produces(&mut client, "alter-times", stamped(future), 0).await;
    assert_eq!(set(&mut client, "alter-times", after, "60000").await, 0);
    produces(&mut client, "alter-times", stamped(future), 32).await;
    // Not the time of the other batches: the suite may run for longer than a minute.
    produces(&mut client, "alter-times", stamped(now_ms()), 0).await;
}

#[tokio::test]
async fn what_is_altered_survives_a_kill() {
    let target = Target::start(&[]);
    let mut client = target.with_topic("alter-kill", 1).await;
    assert_eq!(
        set(&mut client, "alter-kill", "max.message.bytes", "1000").await,
        0
    );
    target.kill_and_restart();
    let mut client = target.connect().await;
    ops::await_topic(&mut client, "alter-kill", 1)
        .await
        .unwrap();
    produces(&mut client, "alter-kill", of_bytes(2000), 10).await;
    produces(&mut client, "alter-kill", of_bytes(500), 0).await;
}

#[tokio::test]
async fn the_old_request_replaces_everything() {
    let target = Target::shared();
    let configs = [
        ("max.message.bytes", "1000"),
        ("flush.messages", "9223372036854775807"),
    ];
    let mut client = target.with_configs("replaced", 1, &configs).await;
    for (version, value) in [(0, "2000"), (1, "3000"), (2, "4000")] {
        let config = replace::AlterableConfig::default()
            .with_name(text("max.message.bytes"))
            .with_value(Some(text(value)));
        let resource = replace::AlterConfigsResource::default()
            .with_resource_type(TOPIC)
            .with_resource_name(text("replaced"))
            .with_configs(vec![config]);
        let request = AlterConfigsRequest::default().with_resources(vec![resource]);
        let response = client.call(&request, version).await.unwrap();
        let answer = &response.responses[0];
        assert_eq!(
            (answer.error_code, &answer.error_message),
            (0, &None),
            "v{version}"
        );
        await_value(&mut client, "replaced", "max.message.bytes", (value, 1)).await;
        assert_eq!(shown(&mut client, "replaced", "flush.messages").await.1, 5);
    }
}

/// Until a config shows this value and source: at once here.
async fn await_value(client: &mut RawClient, topic: &str, key: &str, wanted: (&str, i8)) {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let tries = if on_kafka() { 200 } else { 1 };
    let mut found = shown(client, topic, key).await;
    for _ in 1..tries {
        if (found.0.as_str(), found.1) == wanted {
            break;
        }
        pace.tick().await;
        found = shown(client, topic, key).await;
    }
    assert_eq!((found.0.as_str(), found.1), wanted, "{key}");
}

#[tokio::test]
async fn what_changes_nothing_is_accepted_and_the_rest_is_refused() {
    let target = Target::shared();
    let mut client = target.with_topic("alter-kinds", 1).await;
    for (key, value) in [
        ("cleanup.policy", "delete"),
        ("compression.type", "producer"),
        ("min.insync.replicas", "1"),
        ("retention.ms", "604800000"),
        ("retention.ms", "-1"),
        ("retention.ms", "1000"),
        ("retention.bytes", "1000"),
        ("segment.bytes", "1048576"),
        ("segment.ms", "1000"),
        ("min.cleanable.dirty.ratio", "0.25"),
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", ""),
        ("delete.retention.ms", "1000"),
        ("max.compaction.lag.ms", "2000"),
        ("min.compaction.lag.ms", "1000"),
    ] {
        assert_eq!(
            set(&mut client, "alter-kinds", key, value).await,
            0,
            "{key}"
        );
        await_value(&mut client, "alter-kinds", key, (value, 1)).await;
    }
    for (key, value) in [
        ("compression.type", "zstd"),
        ("min.insync.replicas", "2"),
        ("flush.messages", "1"),
    ] {
        let code = set(&mut client, "alter-kinds", key, value).await;
        assert_eq!(code, differs("configs-without-mechanism", 0, 40), "{key}");
    }
    for (key, value) in [
        ("max.message.bytes", "many"),
        ("max.message.bytes", "-1"),
        ("retention.ms", "-2"),
        ("segment.bytes", "1048575"),
        ("segment.ms", "0"),
        ("message.timestamp.type", "createtime"),
        ("cleanup.policy", "sweep"),
        ("delete.retention.ms", "-1"),
        ("max.compaction.lag.ms", "999"),
        ("min.compaction.lag.ms", "-1"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("no.such.key", "1"),
    ] {
        assert_eq!(
            set(&mut client, "alter-kinds", key, value).await,
            40,
            "{key}"
        );
    }
}

#[tokio::test]
async fn lists_have_operations_of_their_own() {
    let target = Target::shared();
    let mut client = target.with_topic("alter-lists", 1).await;
    for (key, op, value, code) in [
        ("cleanup.policy", APPEND, "delete", 0),
        ("cleanup.policy", APPEND, "compact", 0),
        ("cleanup.policy", SUBTRACT, "compact,delete", 0),
        ("cleanup.policy", APPEND, "delete", 0),
        ("max.message.bytes", APPEND, "1", 40),
        ("max.message.bytes", SUBTRACT, "1", 40),
        ("no.such.key", APPEND, "1", 40),
    ] {
        let entry = [(key, op, Some(value))];
        let answer = change(&mut client, TOPIC, "alter-lists", &entry, false).await;
        assert_eq!(answer, code, "{op} {value} of {key}");
    }
    await_value(&mut client, "alter-lists", "cleanup.policy", ("delete", 1)).await;
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let target = Target::shared();
    let mut client = target.with_topic("alter-dry", 1).await;
    for (value, code) in [("1000", 0), ("many", 40)] {
        let entry = [("max.message.bytes", SET, Some(value))];
        assert_eq!(
            change(&mut client, TOPIC, "alter-dry", &entry, true).await,
            code
        );
    }
    produces(&mut client, "alter-dry", of_bytes(2000), 0).await;
    let default = ("1048588".to_owned(), 5);
    assert_eq!(
        shown(&mut client, "alter-dry", "max.message.bytes").await,
        default
    );
}

#[tokio::test]
async fn one_bad_config_of_a_resource_refuses_it_whole() {
    let target = Target::shared();
    let mut client = target.with_topic("alter-whole", 1).await;
    let entries = [
        ("max.message.bytes", SET, Some("1000")),
        ("message.timestamp.type", SET, Some("never")),
    ];
    assert_eq!(
        change(&mut client, TOPIC, "alter-whole", &entries, false).await,
        40
    );
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![
        resource(
            TOPIC,
            "alter-none",
            &[("max.message.bytes", SET, Some("1"))],
        ),
        resource(
            TOPIC,
            "alter-whole",
            &[("max.message.bytes", SET, Some("1000000"))],
        ),
    ]);
    for version in 0..=1 {
        let response = client.call(&request, version).await.unwrap();
        assert_eq!(codes(&response), [3, 0], "v{version}");
    }
    await_value(
        &mut client,
        "alter-whole",
        "max.message.bytes",
        ("1000000", 1),
    )
    .await;
}

#[tokio::test]
async fn requests_that_contradict_themselves_are_refused() {
    let target = Target::shared();
    let mut client = target.with_topic("alter-bad", 1).await;
    let size = |op, value| ("max.message.bytes", op, value);
    let unknown = differs("unknown-config-operation", -1, 42);
    for (kind, name, entries, code) in [
        (
            TOPIC,
            "alter-bad",
            vec![size(SET, Some("1")), size(SET, Some("2"))],
            42,
        ),
        (
            TOPIC,
            "alter-bad",
            vec![size(SET, Some("1")), size(DELETE, None)],
            42,
        ),
        (TOPIC, "alter-bad", vec![size(SET, None)], 42),
        (TOPIC, "alter-bad", vec![size(APPEND, None)], 42),
        (TOPIC, "alter-bad", vec![size(9, Some("1"))], unknown),
        (TOPIC, "alter-bad", vec![], 0),
        (TOPIC, "alter-none", vec![size(SET, Some("1"))], 3),
        (TOPIC, "alter-none", vec![size(SET, Some("many"))], 40),
        (TOPIC, "alter/none", vec![size(SET, Some("1"))], 17),
        (TOPIC, "", vec![size(SET, Some("1"))], 42),
        (0, "x", vec![size(SET, Some("1"))], 42),
        (99, "x", vec![size(SET, Some("1"))], 42),
        (BROKER, "77", vec![("num.partitions", SET, Some("1"))], 42),
        (BROKER, "x", vec![("num.partitions", SET, Some("1"))], 42),
    ] {
        let answer = change(&mut client, kind, name, &entries, false).await;
        assert_eq!(answer, code, "type {kind} {name:?} {entries:?}");
    }
    let twice = resource(TOPIC, "alter-bad", &[size(SET, Some("1"))]);
    let request =
        IncrementalAlterConfigsRequest::default().with_resources(vec![twice.clone(), twice]);
    let response = client.call(&request, 1).await.unwrap();
    let mut codes = codes(&response);
    codes.dedup();
    assert_eq!(codes, [42]);
    produces(&mut client, "alter-bad", of_bytes(2000), 0).await;
}

/// Every config that is accepted for more than what happens anyhow, and the test that sets it and
/// sees its effect.
const EFFECTS: [(&str, &str); 13] = [
    (
        "cleanup.policy",
        "the_newest_record_of_every_key_stays_where_it_was",
    ),
    ("delete.retention.ms", "a_tombstone_goes_after_its_time"),
    ("max.compaction.lag.ms", "lags_and_the_ratio_say_when"),
    ("max.message.bytes", "the_largest_batch_changes_at_run_time"),
    (
        "message.timestamp.after.max.ms",
        "how_far_timestamps_may_lie_changes_at_run_time",
    ),
    (
        "message.timestamp.before.max.ms",
        "how_far_timestamps_may_lie_changes_at_run_time",
    ),
    (
        "message.timestamp.type",
        "whose_clock_stamps_changes_at_run_time",
    ),
    ("min.cleanable.dirty.ratio", "lags_and_the_ratio_say_when"),
    ("min.compaction.lag.ms", "lags_and_the_ratio_say_when"),
    (
        "retention.bytes",
        "the_oldest_segments_go_while_the_others_are_enough",
    ),
    ("retention.ms", "a_segment_goes_by_its_largest_timestamp"),
    (
        "segment.bytes",
        "segments_are_as_large_as_the_topic_says_from_then_on",
    ),
    (
        "segment.ms",
        "timestamps_that_reach_far_begin_a_segment_once_the_topic_says_so",
    ),
];

#[test]
fn every_config_that_is_accepted_has_a_test_of_its_effect() {
    let page = include_str!("../../../docs/protocol.md");
    let (_, table) = page.split_once("These take effect").unwrap();
    let (table, _) = table.split_once("These have no mechanism").unwrap();
    let accepted: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    assert_eq!(accepted, EFFECTS.map(|(key, _)| key));
    let sources = [
        include_str!("compaction.rs"),
        include_str!("configs.rs"),
        include_str!("retention.rs"),
    ];
    let sources = sources.concat();
    for (key, test) in EFFECTS {
        let (_, body) = sources
            .split_once(&format!("async fn {test}("))
            .unwrap_or_else(|| panic!("no test {test}"));
        let body = body.split("\n}").next().unwrap();
        assert!(body.contains(&format!("\"{key}\"")), "{test} of {key}");
    }
}

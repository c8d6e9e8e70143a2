//! Configs of brokers that change while they run: the defaults of topics.

use std::time::Duration;

use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::{
    AlterConfigsRequest, DescribeConfigsRequest, alter_configs_request,
};
use tests::raw::{RawClient, ops};

use crate::configs::{
    APPEND, BROKER, DELETE, Entry, SET, SUBTRACT, TOPIC, change, of_bytes, produces,
};
use crate::kit::{Target, differs, on_kafka, text};
use crate::retention::{MEBIBYTE, SOON, aged, begins_at};

/// Values of a config with their sources: what is in force, and its synonyms.
type Shown = Vec<(String, String, i8)>;

fn values(expected: &[(&str, &str, i8)]) -> Shown {
    let expected = expected.iter();
    expected
        .map(|(name, value, source)| ((*name).to_owned(), (*value).to_owned(), *source))
        .collect()
}

/// Nothing, if the resource does not show it.
async fn shown(client: &mut RawClient, kind: i8, name: &str, key: &str) -> Shown {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(Some(vec![text(key)]));
    let request = DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true);
    let response = client.call(&request, 4).await.unwrap();
    let result = &response.results[0];
    assert_eq!(result.error_code, 0, "{:?}", result.error_message);
    let Some(config) = result.configs.first() else {
        return Vec::new();
    };
    assert!(!config.read_only, "{key}");
    let synonyms = config.synonyms.iter().map(|synonym| {
        let value = synonym.value.as_ref().map_or("", |value| value.as_str());
        (synonym.name.to_string(), value.to_owned(), synonym.source)
    });
    let mut synonyms: Shown = synonyms.collect();
    // What is in force is the first of them; Kafka reads it a moment later.
    let value = config.value.as_ref().map_or("", |value| value.as_str());
    (synonyms[0].1, synonyms[0].2) = (value.to_owned(), config.config_source);
    synonyms
}

/// Until it is shown so: at once here.
async fn await_shown(
    client: &mut RawClient,
    (kind, name, key): (i8, &str, &str),
    expected: &[(&str, &str, i8)],
) {
    let expected = values(expected);
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let tries = if on_kafka() { 200 } else { 1 };
    let mut found = shown(client, kind, name, key).await;
    for _ in 1..tries {
        if found == expected {
            break;
        }
        pace.tick().await;
        found = shown(client, kind, name, key).await;
    }
    assert_eq!(found, expected, "{key} of {name:?}");
}

async fn own_name(client: &mut RawClient) -> String {
    let metadata = ops::metadata(client, "none").await.unwrap();
    metadata.brokers[0].node_id.0.to_string()
}

/// Sets a config of the broker of this name.
async fn set(client: &mut RawClient, broker: &str, key: &str, value: &str) {
    let code = change(client, BROKER, broker, &[(key, SET, Some(value))], false).await;
    assert_eq!(code, 0, "{key}={value} of {broker:?}");
}

async fn unset(client: &mut RawClient, broker: &str, key: &str) {
    let code = change(client, BROKER, broker, &[(key, DELETE, None)], false).await;
    assert_eq!(code, 0, "{key} of {broker:?}");
}

#[tokio::test]
async fn a_broker_takes_the_defaults_of_topics_and_nothing_else() {
    let target = Target::start(&[]);
    let mut client = target.connect().await;
    let own = own_name(&mut client).await;
    let other = differs("broker-configs", 0, 42);
    let table: [(Entry<'_>, i16); 20] = [
        (("message.max.bytes", SET, Some("2000")), 0),
        (("message.max.bytes", DELETE, None), 0),
        (("log.retention.bytes", DELETE, None), 0),
        (("log.retention.ms", SET, Some("-1")), 0),
        (("log.cleanup.policy", SET, Some("compact")), 0),
        (("log.cleanup.policy", APPEND, Some("delete")), 0),
        (("log.cleanup.policy", SUBTRACT, Some("compact")), 0),
        (("log.retention.ms", SET, Some("many")), 42),
        (("log.retention.ms", SET, Some("0")), 42),
        (("log.retention.ms", SET, None), 42),
        (("message.max.bytes", SET, Some("-1")), 42),
        (("log.segment.bytes", SET, Some("1000")), 42),
        (("log.cleanup.policy", SET, Some("sweep")), 42),
        (("message.max.bytes", APPEND, Some("1")), 40),
        (("num.partitions", SET, Some("7")), 42),
        (("num.partitions", DELETE, None), 0),
        (("log.retention.hours", SET, Some("7")), 42),
        (("background.threads", SET, Some("11")), other),
        (("no.such.key", SET, Some("1")), other),
        (("no.such.key", APPEND, Some("1")), 40),
    ];
    for name in ["", own.as_str()] {
        let (mut dry, mut done) = (Vec::new(), Vec::new());
        for (entry, _) in table {
            dry.push((
                entry,
                change(&mut client, BROKER, name, &[entry], true).await,
            ));
            done.push((
                entry,
                change(&mut client, BROKER, name, &[entry], false).await,
            ));
        }
        assert_eq!(dry, table, "dry run, {name:?}");
        assert_eq!(done, table, "{name:?}");
        let of = (BROKER, name, "log.cleanup.policy");
        let source = if name.is_empty() { 3 } else { 2 };
        let mut found = vec![("log.cleanup.policy", "delete", source)];
        if !name.is_empty() {
            found.push(("log.cleanup.policy", "delete", 3));
            found.push(("log.cleanup.policy", "delete", 5));
        }
        await_shown(&mut client, of, &found).await;
        // One that is refused, and none is changed.
        let entries: [Entry<'_>; 2] = [
            ("log.cleanup.policy", SET, Some("compact")),
            ("num.partitions", SET, Some("7")),
        ];
        let answer = change(&mut client, BROKER, name, &entries, false).await;
        assert_eq!(answer, 42);
        await_shown(&mut client, of, &found).await;
    }
}

#[tokio::test]
async fn the_old_request_replaces_what_was_set_of_a_broker() {
    let target = Target::start(&[]);
    let mut client = target.connect().await;
    let own = own_name(&mut client).await;
    set(&mut client, &own, "message.max.bytes", "2000").await;
    set(&mut client, &own, "log.segment.bytes", MEBIBYTE).await;
    let config = alter_configs_request::AlterableConfig::default()
        .with_name(text("message.max.bytes"))
        .with_value(Some(text("3000")));
    let resource = alter_configs_request::AlterConfigsResource::default()
        .with_resource_type(BROKER)
        .with_resource_name(text(&own))
        .with_configs(vec![config]);
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    let response = client.call(&request, 2).await.unwrap();
    let answer = &response.responses[0];
    assert_eq!((answer.error_code, &answer.error_message), (0, &None));
    let size = [
        ("message.max.bytes", "3000", 2),
        ("message.max.bytes", "1048588", 5),
    ];
    await_shown(&mut client, (BROKER, &own, size[0].0), &size).await;
    let segment = ("log.segment.bytes", "1073741824", 5);
    await_shown(&mut client, (BROKER, &own, segment.0), &[segment]).await;
}

#[tokio::test]
async fn sources_are_shown_in_the_order_in_which_they_count() {
    let key = "log.segment.bytes";
    let target = Target::start(&[(key, "4000000")]);
    let own_size = [("segment.bytes", "7000000")];
    let mut client = target.with_configs("own", 1, &own_size).await;
    ops::create_topic(&mut client, "plain", 1, &[])
        .await
        .unwrap();
    let own = own_name(&mut client).await;
    set(&mut client, "", key, "5000000").await;
    set(&mut client, &own, key, "6000000").await;
    let of_broker = [
        (key, "6000000", 2),
        (key, "5000000", 3),
        (key, "4000000", 4),
        (key, "1073741824", 5),
    ];
    await_shown(&mut client, (BROKER, &own, key), &of_broker).await;
    let topics_own = ("segment.bytes", "7000000", 1);
    let of_own: Vec<_> = std::iter::once(topics_own).chain(of_broker).collect();
    await_shown(&mut client, (TOPIC, "plain", "segment.bytes"), &of_broker).await;
    await_shown(&mut client, (TOPIC, "own", "segment.bytes"), &of_own).await;
    await_shown(&mut client, (BROKER, "", key), &of_broker[1..2]).await;
    unset(&mut client, &own, key).await;
    await_shown(&mut client, (BROKER, &own, key), &of_broker[1..]).await;
    await_shown(
        &mut client,
        (TOPIC, "plain", "segment.bytes"),
        &of_broker[1..],
    )
    .await;
    unset(&mut client, "", key).await;
    await_shown(&mut client, (BROKER, &own, key), &of_broker[2..]).await;
    await_shown(&mut client, (BROKER, "", key), &[]).await;
}

#[tokio::test]
async fn the_largest_batch_of_all_topics_changes_at_run_time() {
    let key = "message.max.bytes";
    let target = Target::start(&[]);
    let larger = [("max.message.bytes", "5000")];
    let mut client = target.with_configs("own", 1, &larger).await;
    ops::create_topic(&mut client, "before", 1, &[])
        .await
        .unwrap();
    let own = own_name(&mut client).await;
    set(&mut client, "", key, "1000").await;
    produces(&mut client, "before", of_bytes(2000), 10).await;
    produces(&mut client, "own", of_bytes(2000), 0).await;
    ops::create_topic(&mut client, "after", 1, &[])
        .await
        .unwrap();
    produces(&mut client, "after", of_bytes(2000), 10).await;
    set(&mut client, &own, key, "3000").await;
    produces(&mut client, "before", of_bytes(2000), 0).await;
    produces(&mut client, "after", of_bytes(2000), 0).await;
    unset(&mut client, &own, key).await;
    produces(&mut client, "after", of_bytes(2000), 10).await;
}

#[tokio::test]
async fn how_long_records_are_kept_changes_for_all_topics_and_stays_so_after_a_kill() {
    let key = "log.retention.ms";
    let target = Target::start(&SOON);
    let own = own_name(&mut target.connect().await).await;
    let forever = [("retention.ms", "-1")];
    let mut kept = aged(&target, "kept", &forever).await;
    let mut client = aged(&target, "by-default", &[]).await;
    begins_at(&mut client, "by-default", 0).await;
    // What is set of the one is over what is set of all.
    set(&mut client, &own, key, "864000000").await;
    set(&mut client, "", key, "86400000").await;
    begins_at(&mut client, "by-default", 0).await;
    unset(&mut client, &own, key).await;
    begins_at(&mut client, "by-default", 4).await;
    begins_at(&mut kept, "kept", 0).await;
    target.kill_and_restart();
    let mut client = aged(&target, "later", &[]).await;
    begins_at(&mut client, "later", 4).await;
    begins_at(&mut client, "kept", 0).await;
    unset(&mut client, "", key).await;
    let mut client = aged(&target, "last", &[]).await;
    begins_at(&mut client, "last", 0).await;
}

/// What was set meant something, perhaps to keep everything.
#[tokio::test]
async fn a_broker_whose_configs_do_not_apply_after_a_restart_keeps_all_records() {
    if on_kafka() {
        return;
    }
    let (min, max) = (
        "log.cleaner.min.compaction.lag.ms",
        "log.cleaner.max.compaction.lag.ms",
    );
    let target = Target::start(&SOON);
    let mut client = target.connect().await;
    set(&mut client, "", min, "7200000").await;
    target.gateway(|gateway, _| {
        assert!(gateway.stop().unwrap().success());
        gateway.options().overrides.push(format!("{max}=3600000"));
        gateway.restart().unwrap();
    });
    let ready = target.admin("/readyz");
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
    let told =
        format!("\nconfigs: conflict topic config setting {min} (7200000) > {max} (3600000)");
    assert!(ready.contains(&told), "{ready}");
    let day = [("retention.ms", "86400000")];
    let mut client = aged(&target, "kept", &day).await;
    begins_at(&mut client, "kept", 0).await;
    unset(&mut client, "", min).await;
    assert!(!target.admin("/readyz").contains("configs:"));
    begins_at(&mut client, "kept", 4).await;
    target.log_is_clean(&["a stored config of the broker is not in force"]);
}

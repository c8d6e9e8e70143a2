//! Compacted topics: of every key the newest record stays, where it was.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::IncrementalAlterConfigsRequest;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::records::RecordBatchDecoder;
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, ops};

use crate::fsyncs::counter;
use crate::kit::{P, Target, answers, now_ms, on_kafka, produce, produce_request, text};
use crate::passing::until;
use crate::reading::fetch_batch;

/// Kafka looks for the first time after `log.initial.task.delay.ms`.
pub(crate) const SOON: [(&str, &str); 3] = [
    ("log.cleaner.backoff.ms", "100"),
    ("log.retention.check.interval.ms", "100"),
    ("log.initial.task.delay.ms", "100"),
];
/// Segments close soon, so that there is something to be compacted.
pub(crate) const EAGER: [(&str, &str); 2] =
    [("segment.ms", "100"), ("min.cleanable.dirty.ratio", "0.01")];
/// A record that only makes a segment close.
const TICK: &str = "tick";

/// Offset, key, value.
type Seen = (i64, String, Option<String>);

pub(crate) fn keyed(producer: P, time: i64, records: &[(&str, Option<&str>)]) -> Bytes {
    let records = records.iter().map(|(key, value)| Record {
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        value: value.map(|value| Bytes::copy_from_slice(value.as_bytes())),
    });
    let spec = BatchSpec {
        timestamp_ms: time,
        records: records.collect(),
        ..producer.spec()
    };
    spec.build()
}

pub(crate) const NOBODY: P = P(-1, -1, -1, 0);

pub(crate) async fn set(client: &mut RawClient, topic: &str, key: &str, value: &str) {
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

/// The records of one answer and behind which offset it ends, as the client library of somebody
/// else decodes them.
fn decoded(bytes: &Bytes) -> (Vec<Seen>, i64) {
    let (mut seen, mut next, mut rest) = (Vec::new(), -1, bytes.clone());
    while rest.len() >= 61 {
        let at = |from: usize, len: usize| &rest[from..from + len];
        let base = i64::from_be_bytes(at(0, 8).try_into().unwrap());
        let length = i32::from_be_bytes(at(8, 4).try_into().unwrap());
        let last = i32::from_be_bytes(at(23, 4).try_into().unwrap());
        let count = i32::from_be_bytes(at(57, 4).try_into().unwrap());
        assert!(base >= next, "{base} behind {next}");
        next = base + i64::from(last) + 1;
        let mut batch = rest.split_to(12 + usize::try_from(length).unwrap());
        if count == 0 {
            continue;
        }
        for record in RecordBatchDecoder::decode(&mut batch).unwrap().records {
            let shown = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
            let key = shown(record.key.unwrap());
            seen.push((record.offset, key, record.value.map(shown)));
        }
    }
    (seen, next)
}

/// Everything but ticks.
async fn read_all(client: &mut RawClient, topic: &str) -> Vec<Seen> {
    let (mut all, mut from) = (Vec::new(), 0);
    loop {
        let bytes = fetch_batch(client, topic, from).await;
        if bytes.is_empty() {
            all.retain(|(_, key, _): &Seen| key != TICK);
            assert!(all.is_sorted_by(|a: &Seen, b: &Seen| a.0 < b.0), "{all:?}");
            return all;
        }
        let (seen, next) = decoded(&bytes);
        all.extend(seen.into_iter().filter(|(offset, ..)| *offset >= from));
        assert!(next > from, "{next}");
        from = next;
    }
}

/// Makes segments close until nothing but `expected` is left, which is there all the time.
async fn await_left(client: &mut RawClient, topic: &str, expected: &[Seen]) {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let mut found = Vec::new();
    for _ in 0..3600 {
        pace.tick().await;
        let tick = keyed(NOBODY, now_ms(), &[(TICK, Some("x"))]);
        assert_eq!(produce(client, topic, tick).await.0, 0);
        found = read_all(client, topic).await;
        if found == expected {
            return;
        }
        for record in expected {
            assert!(found.contains(record), "{record:?} is gone: {found:?}");
        }
    }
    panic!("{topic} has {found:?}");
}

/// Twenty batches over five keys, a tombstone for one of them; all that was sent, in order.
async fn fill(client: &mut RawClient, topic: &str) -> Vec<Seen> {
    let mut sent = Vec::new();
    for n in 0..20_i64 {
        let keys = [format!("k{}", n % 5), format!("k{}", (n + 2) % 5)];
        let value = format!("v{n}");
        let value = (n % 5 != 3).then_some(value.as_str());
        let records = [(keys[0].as_str(), value), (keys[1].as_str(), Some("again"))];
        let (code, base) = produce(client, topic, keyed(NOBODY, now_ms(), &records)).await;
        assert_eq!(code, 0);
        for (offset, (key, value)) in (base..).zip(records) {
            sent.push((offset, key.to_owned(), value.map(str::to_owned)));
        }
    }
    let last = keyed(NOBODY, now_ms(), &[("k3", None), ("k4", Some("end"))]);
    let (code, base) = produce(client, topic, last).await;
    assert_eq!(code, 0);
    sent.push((base, "k3".to_owned(), None));
    sent.push((base + 1, "k4".to_owned(), Some("end".to_owned())));
    sent
}

/// The newest record of every key, in order of offset.
fn newest(sent: &[Seen]) -> Vec<Seen> {
    let by_key: BTreeMap<&str, &Seen> = sent.iter().map(|one| (one.1.as_str(), one)).collect();
    let mut newest: Vec<Seen> = by_key.into_values().cloned().collect();
    newest.sort();
    newest
}

/// A topic that was filled before it came to be compacted.
async fn filled(target: &Target, topic: &str, configs: &[(&str, &str)]) -> (RawClient, Vec<Seen>) {
    let configs: Vec<_> = EAGER.iter().chain(configs).copied().collect();
    let mut client = target.with_configs(topic, 1, &configs).await;
    let sent = fill(&mut client, topic).await;
    set(&mut client, topic, "cleanup.policy", "compact").await;
    (client, sent)
}

#[tokio::test]
async fn the_newest_record_of_every_key_stays_where_it_was() {
    let target = Target::start(&SOON);
    let mut client = target.with_configs("newest", 1, &EAGER).await;
    let (id, epoch) = ops::init_producer_id(&mut client).await.unwrap();
    let own = keyed(P(id, epoch, 0, 0), now_ms(), &[("k0", Some("mine"))]);
    assert_eq!(produce(&mut client, "newest", own.clone()).await, (0, 0));
    let sent = fill(&mut client, "newest").await;
    set(&mut client, "newest", "cleanup.policy", "compact").await;
    let left = newest(&sent);
    assert_eq!(left.len(), 5);
    await_left(&mut client, "newest", &left).await;
    let check = async |client: &mut RawClient| {
        let starts = ops::list_offsets(client, "newest", 1, ops::EARLIEST).await;
        assert_eq!(starts.unwrap(), [0]);
        // Who asks for what is gone gets what comes next.
        for from in 0..=left[0].0 {
            let (seen, _) = decoded(&fetch_batch(client, "newest", from).await);
            let first = seen.iter().find(|(offset, ..)| *offset >= from);
            assert_eq!(first, left.first(), "from {from}");
        }
        // The record is gone; that it was written is known.
        assert_eq!(produce(client, "newest", own.clone()).await, (0, 0));
        let next = keyed(P(id, epoch, 2, 0), now_ms(), &[("k0", Some("gap"))]);
        assert_eq!(produce(client, "newest", next).await.0, 45);
    };
    check(&mut client).await;
    if on_kafka() {
        return;
    }
    // A pass is counted a moment after readers see what it left.
    until("counted", || {
        let value = |what: &str| counter(&target, &format!("fencepost_compaction{what} "));
        let kept = value("_kept_bytes_total");
        value("s_total") > 0 && kept > 0 && kept < value("_looked_at_bytes_total")
    })
    .await;
    let before = read_all(&mut client, "newest").await;
    drop(client);
    target.kill_and_restart();
    let mut client = target.connect().await;
    ops::await_topic(&mut client, "newest", 1).await.unwrap();
    assert_eq!(read_all(&mut client, "newest").await, before);
    check(&mut client).await;
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn a_tombstone_goes_after_its_time() {
    let target = Target::start(&SOON);
    let (mut kept, sent) = filled(&target, "tombstone-kept", &[]).await;
    let configs = [("delete.retention.ms", "1")];
    let (mut gone, others) = filled(&target, "tombstone-gone", &configs).await;
    let mut left = newest(&others);
    left.retain(|(_, _, value)| value.is_some());
    assert_eq!(left.len(), 4);
    await_left(&mut gone, "tombstone-gone", &left).await;
    // By default it stays for a day.
    await_left(&mut kept, "tombstone-kept", &newest(&sent)).await;
}

#[tokio::test]
async fn lags_and_the_ratio_say_when() {
    let target = Target::start(&SOON);
    let never = ("min.cleanable.dirty.ratio", "1.0");
    let with = async |topic: &str, configs: &[(&str, &str)]| {
        let mut client = target.with_configs(topic, 1, &[EAGER[0]]).await;
        let sent = fill(&mut client, topic).await;
        for (key, value) in configs {
            set(&mut client, topic, key, value).await;
        }
        set(&mut client, topic, "cleanup.policy", "compact").await;
        (client, sent)
    };
    let lag = ("min.compaction.lag.ms", "3600000");
    let (mut young, young_sent) = with("young", &[EAGER[1], lag]).await;
    let (mut clean, clean_sent) = with("clean-enough", &[never]).await;
    let (mut old, old_sent) = with("overdue", &[never, ("max.compaction.lag.ms", "1")]).await;
    let (mut plain, plain_sent) = with("dirty", &[EAGER[1]]).await;
    for topic in ["young", "clean-enough"] {
        let tick = keyed(NOBODY, now_ms(), &[(TICK, Some("x"))]);
        assert_eq!(produce(&mut plain, topic, tick).await.0, 0);
    }
    await_left(&mut old, "overdue", &newest(&old_sent)).await;
    await_left(&mut plain, "dirty", &newest(&plain_sent)).await;
    assert_eq!(read_all(&mut young, "young").await, young_sent);
    assert_eq!(read_all(&mut clean, "clean-enough").await, clean_sent);
}

#[tokio::test]
async fn records_are_deleted_where_the_policy_says_so_too() {
    let target = Target::start(&SOON);
    let old = now_ms() - 90_000_000;
    let mut clients = Vec::new();
    for policy in ["compact", "compact,delete"] {
        let topic = policy.replace(',', "-");
        let configs = [
            ("cleanup.policy", policy),
            ("retention.ms", "86400000"),
            EAGER[0],
        ];
        let mut client = target.with_configs(&topic, 1, &configs).await;
        for key in ["a", "b"] {
            let batch = keyed(NOBODY, old, &[(key, Some("old"))]);
            assert_eq!(produce(&mut client, &topic, batch).await.0, 0);
        }
        clients.push((client, topic));
    }
    let (client, topic) = &mut clients[1];
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let mut start = 0;
    for _ in 0..3600 {
        pace.tick().await;
        let starts = ops::list_offsets(client, topic, 1, ops::EARLIEST).await;
        start = starts.unwrap()[0];
        if start == 2 {
            break;
        }
    }
    assert_eq!(start, 2);
    let (client, topic) = &mut clients[0];
    assert_eq!(read_all(client, topic).await.len(), 2);
}

#[tokio::test]
async fn the_broker_says_what_holds_for_topics_that_say_nothing() {
    let settings = [
        ("log.cleanup.policy", "compact"),
        ("log.roll.ms", "100"),
        ("log.cleaner.min.cleanable.ratio", "0.01"),
        ("log.cleaner.delete.retention.ms", "1"),
    ];
    let settings: Vec<_> = SOON.into_iter().chain(settings).collect();
    let target = Target::start(&settings);
    let mut client = target.with_topic("by-broker", 1).await;
    let sent = fill(&mut client, "by-broker").await;
    let mut left = newest(&sent);
    left.retain(|(_, _, value)| value.is_some());
    await_left(&mut client, "by-broker", &left).await;
    let plain = produce_request("by-broker", &[(0, Some(P(-1, -1, -1, 2).batch()))]);
    let refused = answers(&client.call(&plain, 9).await.unwrap()).remove(0);
    assert_eq!(refused.error_code, 87);
    let named: Vec<i32> = refused
        .record_errors
        .iter()
        .map(|error| error.batch_index)
        .collect();
    assert_eq!(named, [0, 1]);
}

#[tokio::test]
async fn nothing_is_compacted_where_it_is_switched_off() {
    if on_kafka() {
        // There it is deprecated.
        return;
    }
    let settings: Vec<_> = SOON
        .into_iter()
        .chain([("log.cleaner.enable", "false")])
        .collect();
    let target = Target::start(&settings);
    let (mut client, sent) = filled(&target, "switched-off", &[]).await;
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..20 {
        pace.tick().await;
        let tick = keyed(NOBODY, now_ms(), &[(TICK, Some("x"))]);
        assert_eq!(produce(&mut client, "switched-off", tick).await.0, 0);
        assert_eq!(read_all(&mut client, "switched-off").await, sent);
    }
}

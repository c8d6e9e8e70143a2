//! Clients that ask for much and never read it: what they cost is bounded, and those that
//! read are served beside them.

use std::time::Duration;

use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::{DescribeConfigsRequest, FetchRequest};
use tests::raw::batch::Record;
use tests::raw::{RawClient, ops};

use crate::fsyncs::counter;
use crate::kit::{P, Target, on_kafka, produce, serves, text};
use crate::reading::{fetch_request, partitions, records};

const VERSION: i16 = 12;
const MIB: u64 = 1 << 20;
/// Batches of the topic, a MiB each.
const BATCHES: i64 = 24;

async fn filled(target: &Target, topic: &str) -> RawClient {
    let mut client = target.with_topic(topic, 1).await;
    let mut spec = P(-1, -1, -1, 0).spec();
    spec.records = vec![Record::value(vec![b'x'; 1_000_000])];
    let batch = spec.build();
    for offset in 0..BATCHES {
        assert_eq!(
            produce(&mut client, topic, batch.clone()).await,
            (0, offset)
        );
    }
    client
}

/// A Fetch of all there is.
fn greedy(topic: &str, from: i64) -> FetchRequest {
    let mut request = fetch_request(topic, &[(0, from)]).with_max_wait_ms(500);
    request.topics[0].partitions[0].partition_max_bytes = 50 << 20;
    request
}

/// Connections that have asked for everything, many times, and read nothing: more than the
/// kernel holds for them.
async fn hoarders(target: &Target, topic: &str, count: usize) -> Vec<RawClient> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = target.connect().await;
        for _ in 0..16 {
            let request = greedy(topic, 0).with_max_wait_ms(60_000);
            client.send(&request, VERSION).await.unwrap();
        }
        clients.push(client);
    }
    clients
}

/// Reads the topic to its end; how many answers had no records.
async fn read_all(client: &mut RawClient, topic: &str) -> u32 {
    let (mut next, mut empty) = (0, 0);
    while next < BATCHES {
        let response = client.call(&greedy(topic, next), VERSION).await.unwrap();
        let answer = &partitions(&response)[0];
        assert_eq!(answer.error_code, 0);
        assert_eq!(answer.high_watermark, BATCHES);
        let bytes = records(answer);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            assert_eq!(rest[..8], next.to_be_bytes());
            let len = i32::from_be_bytes(rest[8..12].try_into().unwrap());
            rest = &rest[12 + usize::try_from(len).unwrap()..];
            next += 1;
        }
        empty += u32::from(bytes.is_empty());
        assert!(empty < 100, "never served");
    }
    empty
}

#[tokio::test]
async fn eighty_clients_that_never_read_cost_a_bounded_amount() {
    if on_kafka() {
        return;
    }
    // Twice queued.max.response.bytes, whose default is 128 MiB, and what the rest of it takes.
    let limit = (2 * 128 + 64) * MIB;
    let target = Target::start(&[]);
    let mut client = filled(&target, "unread").await;
    let before = target.process(|process| process.rss_peak_bytes().unwrap());
    let hoarders = hoarders(&target, "unread", 80).await;
    for _ in 0..3 {
        assert_eq!(read_all(&mut client, "unread").await, 0, "unaffected");
    }
    let after = target.process(|process| process.rss_peak_bytes().unwrap());
    let grown = after - before;
    assert!(grown < limit, "{} MiB more", grown / MIB);
    drop(hoarders);
    assert!(serves(&target).await);
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn who_hoards_answers_while_others_wait_is_closed() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[("queued.max.response.bytes", "2097152")]);
    let mut client = filled(&target, "hoarded").await;
    let hoarders = hoarders(&target, "hoarded", 8).await;
    let said = "answers are not read, and others wait for their room";
    let closed = || {
        let log = target.gateway(|gateway, _| gateway.log().unwrap());
        log.lines().filter(|line| line.contains(said)).count()
    };
    // Served again and again, though the eight could hold more than all there is for ever.
    while closed() < 3 {
        read_all(&mut client, "hoarded").await;
    }
    assert!(closed() <= 8, "one line for each");
    drop(hoarders);
    target.log_is_clean(&[]);
}

/// Answers that describe much share the bound: they are not made before there is room for them.
#[tokio::test]
async fn who_asks_what_everything_is_and_never_reads_costs_a_bounded_amount() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[("queued.max.response.bytes", "4194304")]);
    let mut client = target.connect().await;
    let mut all = DescribeConfigsRequest::default()
        .with_include_documentation(true)
        .with_include_synonyms(true);
    for number in 0..300 {
        let topic = format!("much-{number}");
        ops::create_topic(&mut client, &topic, 1, &[])
            .await
            .unwrap();
        let resource = DescribeConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text(&topic))
            .with_configuration_keys(None);
        all.resources.push(resource);
    }
    let before = target.process(|process| process.rss_peak_bytes().unwrap());
    let mut hoarders = Vec::new();
    for _ in 0..12 {
        let mut client = target.connect().await;
        for _ in 0..24 {
            client.send(&all, 4).await.unwrap();
        }
        hoarders.push(client);
    }
    // Who reads is answered beside them, when one of them was closed for what it holds.
    let mut client = client.with_patience(Duration::from_mins(2));
    let answer = client.call(&all, 4).await.unwrap();
    assert_eq!(answer.results.len(), 300);
    assert!(answer.results.iter().all(|result| result.error_code == 0));
    let after = target.process(|process| process.rss_peak_bytes().unwrap());
    let grown = after - before;
    // 288 answers of more than a MiB, which take several times that before they are sent.
    assert!(grown < 96 * MIB, "{} MiB more", grown / MIB);
    drop(hoarders);
    assert!(serves(&target).await);
    target.log_is_clean(&[]);
}

/// Bytes of answers in memory, as the gateway counts them.
fn counted(target: &Target) -> u64 {
    counter(target, "fencepost_responses_in_memory_bytes ")
}

async fn await_counted(target: &Target, is_reached: impl Fn(u64) -> bool) {
    let reached = async {
        while !is_reached(counted(target)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let reached = tokio::time::timeout(Duration::from_mins(2), reached).await;
    reached.unwrap();
}

/// A few bytes of a session bring the news of all its partitions, records or not: they are counted.
#[tokio::test]
async fn answers_of_wide_sessions_are_counted_without_records() {
    const PARTITIONS: i32 = 30_000;
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    let mut client = target.connect().await;
    // There are none of them, which is news each time.
    let wanted: Vec<(i32, i64)> = (0..PARTITIONS).map(|partition| (partition, 0)).collect();
    let first = fetch_request("nowhere", &wanted).with_session_epoch(0);
    let opened = client.call(&first, VERSION).await.unwrap();
    assert_ne!(opened.session_id, 0);
    let mut hoarder = target.connect().await;
    for epoch in 1..200 {
        let next = fetch_request("", &[])
            .with_topics(Vec::new())
            .with_session_id(opened.session_id)
            .with_session_epoch(epoch);
        hoarder.send(&next, VERSION).await.unwrap();
    }
    // More than 200 MiB, of which the kernel holds a part: one is left that nobody takes.
    await_counted(&target, |bytes| bytes > 1 << 20).await;
    drop(hoarder);
    await_counted(&target, |bytes| bytes == 0).await;
    target.log_is_clean(&[]);
}

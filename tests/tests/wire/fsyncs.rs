//! Fsyncs are counted, never timed: nothing is acknowledged without one. How many requests share
//! one is a matter of the disk; tests/delays.rs has one that can be held.

use kafka_protocol::messages::ProduceRequest;
use tests::raw::{RawClient, ops};

use crate::kit::{P, Target, codes, on_kafka, produce_request};

/// The value of a counter of `/metrics`.
pub(crate) fn counter(target: &Target, name: &str) -> u64 {
    let answer = target.admin("/metrics");
    let line = answer
        .lines()
        .find(|line| line.starts_with(name))
        .unwrap_or_else(|| panic!("no {name} in {answer}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Syncs of journal files and Produce requests so far.
fn counted(target: &Target) -> (u64, u64) {
    (
        counter(target, "fencepost_journal_syncs_total"),
        counter(target, "fencepost_requests_total{api=\"Produce\"}"),
    )
}

/// Sends `count` batches of one producer, never more than `in_flight` unanswered.
async fn pipelined(mut client: RawClient, topic: &str, id: i64, count: i32, in_flight: i32) {
    let mut sent = 0;
    for answered in 0..count {
        while sent < count && sent - answered < in_flight {
            let batch = P(id, 0, sent, 1).batch();
            let request = produce_request(topic, &[(0, Some(batch))]);
            client.send(&request, 9).await.unwrap();
            sent += 1;
        }
        let (_, response) = client.receive::<ProduceRequest>(9).await.unwrap();
        assert_eq!(codes(&response), [0]);
    }
}

#[tokio::test]
async fn five_in_flight_are_synced() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    let client = target.with_topic("shared-fsyncs", 1).await;
    let (fsyncs, requests) = counted(&target);
    pipelined(client, "shared-fsyncs", 7, 1000, 5).await;
    let (fsyncs_after, requests_after) = counted(&target);
    let (fsyncs, requests) = (fsyncs_after - fsyncs, requests_after - requests);
    assert_eq!(requests, 1000);
    assert!(fsyncs > 0, "acknowledged without a sync");
}

#[tokio::test]
async fn sixty_four_connections_are_synced() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    let mut client = target.with_topic("many-fsyncs", 1).await;
    let mut clients = Vec::new();
    for _ in 0..64 {
        clients.push(target.connect().await);
    }
    let (fsyncs, requests) = counted(&target);
    let running = (0..).zip(clients).map(|(id, client)| {
        // One in flight each: what is shared is shared between connections.
        pipelined(client, "many-fsyncs", id, 50, 1)
    });
    futures_util::future::join_all(running).await;
    let (fsyncs_after, requests_after) = counted(&target);
    let (fsyncs, requests) = (fsyncs_after - fsyncs, requests_after - requests);
    assert_eq!(requests, 64 * 50);
    assert!(fsyncs > 0, "acknowledged without a sync");
    let end = ops::list_offsets(&mut client, "many-fsyncs", 1, ops::LATEST);
    assert_eq!(end.await.unwrap(), [64 * 50]);
}

#[tokio::test]
async fn one_at_a_time_is_synced_each_time() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    let client = target.with_topic("alone", 1).await;
    let (fsyncs, _) = counted(&target);
    pipelined(client, "alone", 7, 20, 1).await;
    let (after, _) = counted(&target);
    assert!(
        after - fsyncs >= 20,
        "{} syncs for 20 answers",
        after - fsyncs
    );
}

//! Several requests at once: order on one connection, duplicates over two, and acks=0.

use bytes::Bytes;
use kafka_protocol::messages::{ApiVersionsRequest, ProduceRequest};
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, ops};

use crate::kit::{P, Target, answers, codes, end_of, plain, produce, produce_request, serves};

async fn sends(client: &mut RawClient, topic: &str, producers: &[P]) -> Vec<i32> {
    let mut sent = Vec::new();
    for producer in producers {
        let request = produce_request(topic, &[(0, Some(producer.batch()))]);
        sent.push(client.send(&request, 9).await.unwrap());
    }
    sent
}

/// The next answer: correlation id, code, base offset.
async fn next(client: &mut RawClient) -> (i32, i16, i64) {
    let (id, response) = client.receive::<ProduceRequest>(9).await.unwrap();
    let answer = &answers(&response)[0];
    (id, answer.error_code, answer.base_offset)
}

#[tokio::test]
async fn five_in_flight_are_answered_in_order() {
    let target = Target::shared();
    let mut client = target.with_topic("five", 1).await;
    let producers: Vec<P> = (0..5).map(|i| P(7, 0, i * 2, 2)).collect();
    let sent = sends(&mut client, "five", &producers).await;
    for (id, base) in sent.into_iter().zip([0, 2, 4, 6, 8]) {
        assert_eq!(next(&mut client).await, (id, 0, base));
    }
    assert_eq!(end_of(&mut client, "five").await, 10);
}

#[tokio::test]
async fn a_gap_in_flight_fails_what_lies_behind_it() {
    let target = Target::shared();
    let mut client = target.with_topic("gap", 1).await;
    let producers = [0, 2, 3, 1, 2].map(|sequence| P(7, 0, sequence, 1));
    sends(&mut client, "gap", &producers).await;
    let mut got = Vec::new();
    for _ in producers {
        let (_, code, base) = next(&mut client).await;
        got.push((code, base));
    }
    assert_eq!(got, [(0, 0), (45, -1), (45, -1), (0, 1), (0, 2)]);
}

#[tokio::test]
async fn requests_of_all_kinds_keep_their_order() {
    let target = Target::shared();
    let mut client = target.with_topic("mixed", 1).await;
    let produce = produce_request("mixed", &[(0, Some(plain(1)))]);
    let versions = ApiVersionsRequest::default();
    let first = client.send(&produce, 9).await.unwrap();
    let second = client.send(&versions, 0).await.unwrap();
    let third = client.send(&produce, 9).await.unwrap();
    assert_eq!(client.receive::<ProduceRequest>(9).await.unwrap().0, first);
    assert_eq!(
        client.receive::<ApiVersionsRequest>(0).await.unwrap().0,
        second
    );
    assert_eq!(client.receive::<ProduceRequest>(9).await.unwrap().0, third);
}

#[tokio::test]
async fn i38_a_duplicate_on_another_connection_is_stored_once() {
    let target = Target::shared();
    let mut one = target.with_topic("two-connections", 1).await;
    let mut two = target.connect().await;
    // Both in flight at the same time, over and over.
    for round in 0..50 {
        let batch = [P(7, 0, round, 1)];
        sends(&mut one, "two-connections", &batch).await;
        sends(&mut two, "two-connections", &batch).await;
        let (_, code, base) = next(&mut one).await;
        assert_eq!((code, base), (0, i64::from(round)));
        let (_, code, base) = next(&mut two).await;
        assert_eq!((code, base), (0, i64::from(round)));
    }
    assert_eq!(end_of(&mut one, "two-connections").await, 50);
}

#[tokio::test]
async fn a_lost_connection_cancels_nothing_that_was_ordered() {
    let target = Target::shared();
    let mut client = target.with_topic("lost", 1).await;
    let mut doomed = target.connect().await;
    sends(&mut doomed, "lost", &[P(7, 0, 0, 1), P(7, 0, 1, 1)]).await;
    // Only the answer to the first is awaited: what came with it was ordered too, or is not yet.
    assert_eq!(next(&mut doomed).await.1, 0);
    drop(doomed);
    assert_eq!(
        produce(&mut client, "lost", P(7, 0, 0, 1).batch()).await,
        (0, 0)
    );
    assert_eq!(
        produce(&mut client, "lost", P(7, 0, 1, 1).batch()).await,
        (0, 1)
    );
    assert_eq!(end_of(&mut client, "lost").await, 2);
}

/// One record of 960 KiB.
fn large(id: i64, sequence: i32) -> Bytes {
    let records = vec![Record::value(vec![b'x'; 960 << 10])];
    let spec = P(id, 0, sequence, 1).spec();
    BatchSpec { records, ..spec }.build()
}

/// Twenty connections with five large requests each: more than is admitted at once, and more than
/// one sync of the disk takes.
async fn flood(target: &Target, topic: &str, acks: i16) {
    let mut running = Vec::new();
    for id in 0..20 {
        let mut client = target.connect().await;
        let topic = topic.to_owned();
        running.push(tokio::spawn(async move {
            for sequence in 0..5 {
                let data = [(0, Some(large(id, sequence)))];
                let request = produce_request(&topic, &data).with_acks(acks);
                client.send(&request, 9).await.unwrap();
            }
            if acks == 0 {
                // Answered only if the connection was not closed for any of them.
                ops::api_versions(&mut client).await.unwrap();
                return;
            }
            for _ in 0..5 {
                assert_eq!(next(&mut client).await.1, 0);
            }
        }));
    }
    for client in running {
        client.await.unwrap();
    }
}

#[tokio::test]
async fn more_in_flight_than_is_admitted_waits_and_is_not_refused() {
    let target = Target::start(&[]);
    let mut client = target.with_topic("flood", 1).await;
    flood(&target, "flood", -1).await;
    assert_eq!(end_of(&mut client, "flood").await, 100);
    flood(&target, "flood", -1).await;
    assert_eq!(end_of(&mut client, "flood").await, 100, "duplicates");
}

#[tokio::test]
async fn more_without_acknowledgement_than_is_admitted_loses_nothing() {
    let target = Target::start(&[]);
    let mut client = target.with_topic("silent-flood", 1).await;
    flood(&target, "silent-flood", 0).await;
    // Ordered behind all of them.
    let (code, base) = produce(&mut client, "silent-flood", plain(1)).await;
    assert_eq!((code, base), (0, 100));
}

#[tokio::test]
async fn acks_zero_is_never_answered() {
    let target = Target::shared();
    let mut client = target.with_topic("silent", 1).await;
    let request = produce_request("silent", &[(0, Some(plain(3)))]).with_acks(0);
    client.send(&request, 9).await.unwrap();
    // The next answer is the one to the next request.
    let versions = ops::api_versions(&mut client).await.unwrap();
    assert!(!versions.is_empty());
    let acknowledged = produce_request("silent", &[(0, Some(plain(1)))]);
    let response = client.call(&acknowledged, 9).await.unwrap();
    assert_eq!(codes(&response), [0]);
    assert_eq!(answers(&response)[0].base_offset, 3);
}

#[tokio::test]
async fn an_error_with_acks_zero_closes_the_connection() {
    let target = Target::shared();
    drop(target.with_topic("silent-error", 2).await);
    let mut corrupt = plain(1).to_vec();
    corrupt[66] ^= 0xff;
    let bad: [Vec<_>; 3] = [
        vec![(7, Some(plain(1)))],
        vec![(0, Some(corrupt.into())), (1, Some(plain(1)))],
        vec![(0, Some(P(7, 0, -1, 1).batch()))],
    ];
    for data in bad {
        let mut client = target.connect().await;
        let request = produce_request("silent-error", &data).with_acks(0);
        client.send(&request, 9).await.unwrap();
        assert!(client.receive_frame().await.unwrap().is_none());
    }
    // Refusals that rest on what the partition knows of a producer.
    let mut client = target.connect().await;
    let request = produce_request("silent-error", &[(0, Some(P(8, 3, 0, 1).batch()))]);
    assert_eq!(codes(&client.call(&request, 9).await.unwrap()), [0]);
    for refused in [P(8, 3, 5, 1), P(8, 2, 0, 1)] {
        let mut client = target.connect().await;
        let request = produce_request("silent-error", &[(0, Some(refused.batch()))]);
        client.send(&request.with_acks(0), 9).await.unwrap();
        assert!(client.receive_frame().await.unwrap().is_none());
    }
    assert!(serves(&target).await);
}

//! Several faults in one Produce: the first of Kafka's checks that fails decides the code.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{ProduceRequest, TransactionalId};
use tests::raw::batch::Record;
use tests::raw::ops;

use crate::idempotence::patched;
use crate::kit::{P, Target, codes, differs, end_of, on_kafka, plain, produce_request, text};

const TOPIC: &str = "order-of-errors";

/// Request version, request, code of its only partition.
type Row = (&'static str, i16, ProduceRequest, i16);

fn one(topic: &str, partition: i32, records: Bytes) -> ProduceRequest {
    produce_request(topic, &[(partition, Some(records))])
}

fn broken_crc(batch: &Bytes) -> Bytes {
    let mut bytes = BytesMut::from(&batch[..]);
    bytes[17] ^= 0xff;
    bytes.freeze()
}

/// Larger than max.message.bytes.
fn huge() -> Bytes {
    let mut spec = P(-1, -1, -1, 0).spec();
    spec.records = vec![Record::value(vec![0; 1_100_000])];
    spec.build()
}

fn rows() -> Vec<Row> {
    let good = P(7, 0, 0, 2).batch();
    let transactional = patched(&good, 21, &[0, 0x10]);
    let two = |batch: &Bytes| Bytes::from([&batch[..], &batch[..]].concat());
    let zstd = patched(&good, 21, &[0, 4]);
    let base_1 = patched(&plain(1), 0, &1_i64.to_be_bytes());
    let huge_base_1 = patched(&huge(), 0, &1_i64.to_be_bytes());
    let control = patched(&plain(1), 21, &[0, 0x20]);
    let mut bad_length = BytesMut::from(&good[..]);
    bad_length[8..12].copy_from_slice(&13_i32.to_be_bytes());
    let bad_length = bad_length.freeze();
    let stale_gap = P(9, 0, 500, 1).batch();
    let wrong_count = patched(&P(9, 1, 500, 2).batch(), 23, &[0, 0, 0, 7]);
    vec![
        (
            "transactional without id, unknown topic",
            9,
            one("no-such-topic", 0, transactional.clone()),
            53,
        ),
        (
            "transactional without id, bad CRC, acks 2",
            9,
            one(TOPIC, 0, broken_crc(&transactional)).with_acks(2),
            53,
        ),
        (
            "length 13, unknown topic",
            9,
            one("no-such-topic", 0, bad_length),
            2,
        ),
        (
            "unknown topic, bad CRC",
            9,
            one("no-such-topic", 0, broken_crc(&good)),
            3,
        ),
        (
            "unknown partition, acks 2",
            9,
            one(TOPIC, 5, good.clone()).with_acks(2),
            3,
        ),
        (
            "unknown partition, no records",
            9,
            one(TOPIC, 5, Bytes::new()),
            3,
        ),
        ("negative partition", 9, one(TOPIC, -1, good.clone()), 3),
        (
            "no records, acks 2",
            9,
            one(TOPIC, 0, Bytes::new()).with_acks(2),
            87,
        ),
        ("zstd on v6, two batches", 6, one(TOPIC, 0, two(&zstd)), 76),
        (
            "two batches, acks 2",
            9,
            one(TOPIC, 0, two(&good)).with_acks(2),
            87,
        ),
        (
            "acks 2, base offset 1",
            9,
            one(TOPIC, 0, base_1.clone()).with_acks(2),
            21,
        ),
        (
            "acks 2, bad CRC",
            9,
            one(TOPIC, 0, broken_crc(&good)).with_acks(2),
            21,
        ),
        (
            "base offset 1, too large",
            9,
            one(TOPIC, 0, huge_base_1),
            87,
        ),
        (
            "base offset 1, bad CRC",
            9,
            one(TOPIC, 0, broken_crc(&base_1)),
            87,
        ),
        (
            "too large, bad CRC",
            9,
            one(TOPIC, 0, broken_crc(&huge())),
            10,
        ),
        (
            "bad CRC, control",
            9,
            one(TOPIC, 0, broken_crc(&control)),
            2,
        ),
        ("control", 9, one(TOPIC, 0, control), 87),
        (
            "bad CRC, stale epoch",
            9,
            one(TOPIC, 0, broken_crc(&stale_gap)),
            2,
        ),
        (
            "wrong count, wrong sequence",
            9,
            one(TOPIC, 0, wrong_count),
            87,
        ),
        (
            "stale epoch, wrong sequence",
            9,
            one(TOPIC, 0, stale_gap),
            47,
        ),
    ]
}

#[tokio::test]
async fn the_first_check_that_fails_decides() {
    let target = Target::shared();
    let mut client = target.with_topic(TOPIC, 1).await;
    let seed = one(TOPIC, 0, P(9, 1, 0, 1).batch());
    assert_eq!(codes(&client.call(&seed, 9).await.unwrap()), [0]);
    for (what, version, request, code) in rows() {
        let response = client.call(&request, version).await.unwrap();
        assert_eq!(codes(&response), [code], "{what}");
    }
    assert_eq!(end_of(&mut client, TOPIC).await, 1);
    // None of it touched the window.
    let next = client.call(&one(TOPIC, 0, P(9, 1, 1, 1).batch()), 9).await;
    assert_eq!(codes(&next.unwrap()), [0]);
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn t34_a_transactional_batch_without_an_id_refuses_every_partition() {
    let target = Target::shared();
    let mut client = target.with_topic("t34", 2).await;
    let transactional = patched(&P(7, 0, 0, 1).batch(), 21, &[0, 0x10]);
    let data = [(0, Some(plain(1))), (1, Some(transactional.clone()))];
    let request = produce_request("t34", &data);
    for version in [3, 9, 12] {
        let response = client.call(&request, version).await.unwrap();
        assert_eq!(codes(&response), [53, 53], "v{version}");
    }
    // With an id that no coordinator knows.
    let id = TransactionalId(text("nobody"));
    let request = produce_request("t34", &[(0, Some(transactional))]);
    let request = request.with_transactional_id(Some(id));
    let mut code = 19;
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(50));
    // Retriable while the coordinator is not up, or slow: Kafka's may first have to create its
    // topic.
    let looks = if on_kafka() { 100 } else { 600 };
    for _ in 0..looks {
        pace.tick().await;
        let response = client.call(&request, 11).await.unwrap();
        code = codes(&response)[0];
        if code != 19 {
            break;
        }
    }
    assert!(code == 49 || (on_kafka() && code == 19), "{code}");
    let ends = ops::list_offsets(&mut client, "t34", 2, ops::LATEST).await;
    assert_eq!(ends.unwrap(), [0, 0]);
}

#[tokio::test]
async fn a_partition_named_twice_loses_nothing_silently() {
    let target = Target::shared();
    let mut client = target.with_topic("twice", 2).await;
    let data = [
        (0, Some(plain(1))),
        (1, Some(plain(1))),
        (0, Some(plain(2))),
    ];
    let request = produce_request("twice", &data);
    let response = client.call(&request, 9).await.unwrap();
    let expected = differs("partition-twice", vec![0, 0], vec![87, 0, 87]);
    let mut got = codes(&response);
    if expected.len() == 2 {
        // One answer each, in the order of a hash map.
        got.sort_unstable();
    }
    assert_eq!(got, expected);
    let ends = ops::list_offsets(&mut client, "twice", 2, ops::LATEST)
        .await
        .unwrap();
    assert_eq!(ends, differs("partition-twice", [2, 1], [0, 1]));
}

//! Idempotent produce: the vectors of the window, of record validation, and of timestamps.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::ProduceRequest;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use tests::raw::RawClient;
use tests::raw::batch::{Record, put_varint, seal};
use tests::raw::ops;
use uuid::Uuid;

use crate::kit::{P, Target, answers, codes, end_of, now_ms, plain, produce, produce_request};
use crate::reading::fetch_batch;

/// Batches for one empty partition, with the code and base offset of each, and the end after them.
struct Vector {
    id: &'static str,
    steps: &'static [(P, i16, i64)],
    end: i64,
}

const NONE: i64 = -1;

const WINDOW: &[Vector] = &[
    Vector {
        id: "i01",
        steps: &[(P(7, 0, 0, 3), 0, 0)],
        end: 3,
    },
    Vector {
        id: "i02",
        steps: &[(P(-1, -1, -1, 10), 0, 0), (P(7, 0, 5, 1), 0, 10)],
        end: 11,
    },
    Vector {
        id: "i04",
        steps: &[(P(7, 0, 0, 3), 0, 0), (P(7, 0, 0, 3), 0, 0)],
        end: 3,
    },
    Vector {
        id: "i05",
        steps: &[
            (P(7, 0, 0, 1), 0, 0),
            (P(7, 0, 1, 1), 0, 1),
            (P(7, 0, 2, 1), 0, 2),
            (P(7, 0, 3, 1), 0, 3),
            (P(7, 0, 4, 1), 0, 4),
            (P(7, 0, 0, 1), 0, 0),
            (P(7, 0, 3, 1), 0, 3),
            (P(7, 0, 5, 1), 0, 5),
            // Six ago: no longer known, and never 46.
            (P(7, 0, 0, 1), 45, NONE),
            (P(7, 0, 1, 1), 0, 1),
        ],
        end: 6,
    },
    Vector {
        id: "i07-subset",
        steps: &[(P(7, 0, 0, 3), 0, 0), (P(7, 0, 0, 2), 45, NONE)],
        end: 3,
    },
    Vector {
        id: "i08-union",
        steps: &[
            (P(7, 0, 0, 3), 0, 0),
            (P(7, 0, 3, 3), 0, 3),
            (P(7, 0, 0, 6), 45, NONE),
        ],
        end: 6,
    },
    Vector {
        id: "overlap-and-gap",
        steps: &[
            (P(7, 0, 0, 3), 0, 0),
            (P(7, 0, 2, 3), 45, NONE),
            (P(7, 0, 4, 1), 45, NONE),
            (P(7, 0, 3, 1), 0, 3),
        ],
        end: 4,
    },
    Vector {
        id: "i10",
        steps: &[
            (P(7, 0, 0, 3), 0, 0),
            (P(7, 1, 0, 1), 0, 3),
            (P(7, 0, 3, 1), 47, NONE),
            // A duplicate of the old epoch is not looked for.
            (P(7, 0, 0, 3), 47, NONE),
        ],
        end: 4,
    },
    Vector {
        id: "i11",
        steps: &[
            (P(7, 0, 0, 3), 0, 0),
            (P(7, 1, 3, 1), 45, NONE),
            (P(7, 0, 3, 1), 0, 3),
        ],
        end: 4,
    },
    Vector {
        id: "i13-wrap",
        steps: &[(P(7, 0, 2_147_483_647, 1), 0, 0), (P(7, 0, 0, 1), 0, 1)],
        end: 2,
    },
    Vector {
        id: "i14-straddle-i16",
        steps: &[
            (P(7, 0, 2_147_483_645, 1), 0, 0),
            (P(7, 0, 2_147_483_646, 4), 0, 1),
            (P(7, 0, 2, 1), 0, 5),
            (P(7, 0, 2_147_483_646, 4), 0, 1),
        ],
        end: 6,
    },
    Vector {
        id: "i17",
        steps: &[(P(7, 0, -1, 1), 87, NONE)],
        end: 0,
    },
    Vector {
        id: "i37",
        steps: &[(P(7, 0, 9, 1), 0, 0), (P(7, 1, 0, 1), 0, 1)],
        end: 2,
    },
    Vector {
        id: "two-producers",
        steps: &[
            (P(7, 0, 0, 1), 0, 0),
            (P(8, 0, 0, 1), 0, 1),
            (P(7, 0, 0, 1), 0, 0),
            (P(8, 0, 0, 1), 0, 1),
        ],
        end: 2,
    },
    Vector {
        id: "no-producer-no-window",
        steps: &[(P(-1, -1, -1, 1), 0, 0), (P(-1, -1, -1, 1), 0, 1)],
        end: 2,
    },
];

#[tokio::test]
async fn the_window_answers_as_kafkas_does() {
    let target = Target::shared();
    for vector in WINDOW {
        let topic = format!("window-{}", vector.id);
        let mut client = target.with_topic(&topic, 1).await;
        for (number, (producer, code, base)) in vector.steps.iter().enumerate() {
            let got = produce(&mut client, &topic, producer.batch()).await;
            assert_eq!(got, (*code, *base), "{} step {number}", vector.id);
        }
        assert_eq!(
            end_of(&mut client, &topic).await,
            vector.end,
            "{}",
            vector.id
        );
    }
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn errors_and_duplicates_carry_what_kafka_puts_into_the_other_fields() {
    let target = Target::shared();
    let mut client = target.with_topic("fields", 1).await;
    let spec = P(7, 0, 0, 3).spec();
    let sent = ops::produce(&mut client, "fields", 0, spec.build())
        .await
        .unwrap();
    assert_eq!((sent.log_append_time_ms, sent.log_start_offset), (-1, 0));
    let again = ops::produce(&mut client, "fields", 0, spec.build())
        .await
        .unwrap();
    assert_eq!(
        (again.base_offset, again.log_append_time_ms),
        (0, spec.timestamp_ms)
    );
    let mut corrupt = BytesMut::from(&plain(1)[..]);
    corrupt[66] ^= 1;
    for (batch, code, log_start) in [
        (P(7, 0, 9, 1).batch(), 45, 0),
        (P(7, 0, -1, 1).batch(), 87, 0),
        (corrupt.freeze(), 2, -1),
        (Bytes::new(), 87, -1),
    ] {
        let got = ops::produce(&mut client, "fields", 0, batch).await.unwrap();
        assert_eq!((got.error_code, got.log_start_offset), (code, log_start));
        assert_eq!((got.base_offset, got.log_append_time_ms), (-1, -1));
    }
}

#[tokio::test]
async fn producer_state_is_of_one_partition() {
    let target = Target::shared();
    let mut client = target.with_topic("by-partition", 2).await;
    for (partition, code) in [(0, 0), (1, 0), (0, 0)] {
        let got = ops::produce(
            &mut client,
            "by-partition",
            partition,
            P(7, 0, 0, 2).batch(),
        );
        let got = got.await.unwrap();
        assert_eq!((got.error_code, got.base_offset), (code, 0));
    }
}

#[tokio::test]
async fn a_new_topic_of_an_old_name_inherits_no_window() {
    let target = Target::shared();
    let mut client = target.with_topic("reborn", 1).await;
    assert_eq!(
        produce(&mut client, "reborn", P(7, 3, 0, 2).batch()).await,
        (0, 0)
    );
    ops::delete_topic(&mut client, "reborn").await.unwrap();
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(50));
    for _ in 0..1200 {
        let metadata = ops::metadata(&mut client, "reborn").await.unwrap();
        if metadata.topics[0].error_code == 3 {
            break;
        }
        pace.tick().await;
    }
    ops::create_topic(&mut client, "reborn", 1, &[])
        .await
        .unwrap();
    assert_eq!(end_of(&mut client, "reborn").await, 0);
    // A lower epoch and the middle of a sequence: nobody knows this producer here.
    assert_eq!(
        produce(&mut client, "reborn", P(7, 0, 40, 1).batch()).await,
        (0, 0)
    );
}

/// Replaces bytes and makes length and CRC true again.
pub(crate) fn patched(batch: &Bytes, at: usize, with: &[u8]) -> Bytes {
    let mut bytes = BytesMut::from(&batch[..]);
    bytes[at..at + with.len()].copy_from_slice(with);
    seal(&mut bytes);
    bytes.freeze()
}

#[tokio::test]
async fn i19_to_i23_batches_that_no_producer_sends() {
    let target = Target::shared();
    let mut client = target.with_topic("refused", 1).await;
    let good = P(7, 0, 0, 2).batch();
    let two: Bytes = [&good[..], &good[..]].concat().into();
    let mut magic_1 = BytesMut::from(&good[..]);
    magic_1[16] = 1;
    for (what, records, version, code) in [
        ("two batches", two, 9, 87),
        ("magic 1", magic_1.freeze(), 9, 87),
        ("no records", Bytes::new(), 9, 87),
        ("zstd on v6", patched(&good, 21, &[0, 4]), 6, 76),
        (
            "base offset 1",
            patched(&good, 0, &1_i64.to_be_bytes()),
            9,
            87,
        ),
        (
            "last offset delta 2",
            patched(&good, 23, &[0, 0, 0, 2]),
            9,
            87,
        ),
    ] {
        let request = produce_request("refused", &[(0, Some(records))]);
        let response = client.call(&request, version).await.unwrap();
        assert_eq!(codes(&response), [code], "{what}");
    }
    assert_eq!(end_of(&mut client, "refused").await, 0);
}

/// A batch whose records have their own timestamps, as deltas to the base.
fn with_timestamps(base: i64, deltas: &[i64]) -> Bytes {
    let mut spec = P(-1, -1, -1, 0).spec();
    spec.timestamp_ms = base;
    let mut batch = BytesMut::from(&spec.build()[..]);
    for (offset_delta, delta) in (0..).zip(deltas) {
        let mut body = BytesMut::from(&[0_u8][..]);
        put_varint(&mut body, *delta);
        put_varint(&mut body, offset_delta);
        put_varint(&mut body, -1);
        put_varint(&mut body, 1);
        body.extend_from_slice(b"v");
        put_varint(&mut body, 0);
        put_varint(&mut batch, i64::try_from(body.len()).unwrap());
        batch.extend_from_slice(&body);
    }
    let count = i32::try_from(deltas.len()).unwrap();
    let largest = base + deltas.iter().max().unwrap();
    batch[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    batch[35..43].copy_from_slice(&largest.to_be_bytes());
    batch[57..61].copy_from_slice(&count.to_be_bytes());
    seal(&mut batch);
    batch.freeze()
}

#[tokio::test]
async fn i25_one_timestamp_in_the_future_refuses_the_batch() {
    let target = Target::shared();
    let mut client = target.with_topic("future", 1).await;
    let batch = with_timestamps(now_ms(), &[0, 2 * 3_600_000, 0]);
    let request = produce_request("future", &[(0, Some(batch))]);
    let response = client.call(&request, 9).await.unwrap();
    let answer = &answers(&response)[0];
    assert_eq!(answer.error_code, 32);
    let named: Vec<i32> = answer.record_errors.iter().map(|e| e.batch_index).collect();
    assert_eq!(named, [1]);
    assert!(answer.error_message.is_some());
    assert_eq!(end_of(&mut client, "future").await, 0);
    // Old ones and ones within the hour are welcome.
    let batch = with_timestamps(now_ms(), &[-9_000_000_000, 1_800_000, 0]);
    assert_eq!(produce(&mut client, "future", batch).await, (0, 0));
}

#[tokio::test]
async fn i26_the_log_stamps_where_the_topic_says_so() {
    let target = Target::shared();
    let configs = [("message.timestamp.type", "LogAppendTime")];
    let mut client = target.with_configs("append-time", 1, &configs).await;
    let before = now_ms();
    let sent = ops::produce(&mut client, "append-time", 0, P(7, 0, 0, 1).batch())
        .await
        .unwrap();
    assert_eq!(sent.error_code, 0);
    let stamp = sent.log_append_time_ms;
    assert!(
        (before - 60_000..=now_ms() + 60_000).contains(&stamp),
        "{stamp} is not now"
    );
    let stored = fetch_batch(&mut client, "append-time", 0).await;
    assert_eq!(stored[22] & 0x08, 0x08, "bit 3 of the attributes");
    assert_eq!(stored[35..43], stamp.to_be_bytes(), "largest timestamp");
    let crc = crc32c::crc32c(&stored[21..]);
    assert_eq!(stored[17..21], crc.to_be_bytes());

    // A producer that claims it: only the log may.
    let claimed = patched(&P(7, 0, 1, 1).batch(), 21, &[0, 8]);
    assert_eq!(
        produce(&mut client, "append-time", claimed.clone()).await.0,
        32
    );
    let mut client = target.with_topic("create-time", 1).await;
    let on_create_time = produce(&mut client, "create-time", claimed).await;
    assert_eq!(on_create_time, (0, 0));
    let stored = fetch_batch(&mut client, "create-time", 0).await;
    assert_eq!(stored[22] & 0x08, 0, "cleared, timestamps kept");
}

#[tokio::test]
async fn i28_a_compacted_topic_needs_keys() {
    let target = Target::shared();
    let mut client = target.connect().await;
    let configs = [("cleanup.policy", "compact")];
    ops::create_topic(&mut client, "compact", 1, &configs)
        .await
        .unwrap();
    let batch = plain(2);
    let request = produce_request("compact", &[(0, Some(batch))]);
    let response = client.call(&request, 9).await.unwrap();
    let answer = &answers(&response)[0];
    assert_eq!(answer.error_code, 87);
    let named = answer.record_errors.iter().map(|error| error.batch_index);
    assert_eq!(named.collect::<Vec<_>>(), [0, 1]);
}

#[tokio::test]
async fn i29_acks_two_is_refused() {
    let target = Target::shared();
    let mut client = target.with_topic("acks", 1).await;
    for (acks, code) in [(2, 21), (-2, 21), (i16::MAX, 21), (1, 0), (-1, 0)] {
        let request = produce_request("acks", &[(0, Some(plain(1)))]).with_acks(acks);
        let response = client.call(&request, 9).await.unwrap();
        assert_eq!(codes(&response), [code], "acks {acks}");
    }
    assert_eq!(end_of(&mut client, "acks").await, 2);
}

/// A Produce request by topic id, for v13.
pub(crate) fn produce_by_id(id: Uuid, records: Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default()
        .with_index(0)
        .with_records(Some(records));
    let topic = TopicProduceData::default()
        .with_topic_id(id)
        .with_partition_data(vec![data]);
    ProduceRequest::default()
        .with_transactional_id(None)
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![topic])
}

/// The id of a topic.
pub(crate) async fn topic_id(client: &mut RawClient, topic: &str) -> Uuid {
    ops::metadata(client, topic).await.unwrap().topics[0].topic_id
}

#[tokio::test]
async fn i40_topics_by_id() {
    let target = Target::shared();
    let mut client = target.with_topic("by-id", 1).await;
    let unknown = produce_by_id(Uuid::from_u128(0x1234), plain(1));
    let response = client.call(&unknown, 13).await.unwrap();
    assert_eq!(codes(&response), [100]);
    let id = topic_id(&mut client, "by-id").await;
    assert_ne!(id, Uuid::nil());
    let response = client.call(&produce_by_id(id, plain(1)), 13).await.unwrap();
    assert_eq!(codes(&response), [0]);
    assert_eq!(response.responses[0].topic_id, id);
}

#[tokio::test]
async fn i41_partitions_fail_one_by_one() {
    let target = Target::shared();
    let mut client = target.with_topic("partial", 3).await;
    let mut corrupt = BytesMut::from(&plain(1)[..]);
    corrupt[66] ^= 0xff;
    let data = [
        (0, Some(corrupt.freeze())),
        (1, Some(plain(2))),
        (9, Some(plain(1))),
    ];
    let request = produce_request("partial", &data);
    let response = client.call(&request, 9).await.unwrap();
    // Kafka's order is that of a hash map.
    let mut got: Vec<(i32, i16)> = answers(&response)
        .iter()
        .map(|answer| (answer.index, answer.error_code))
        .collect();
    got.sort_unstable();
    assert_eq!(got, [(0, 2), (1, 0), (9, 3)]);
    let ends = ops::list_offsets(&mut client, "partial", 3, ops::LATEST)
        .await
        .unwrap();
    assert_eq!(ends, [0, 2, 0]);
}

#[tokio::test]
async fn a_batch_is_as_large_as_the_topic_allows() {
    let target = Target::shared();
    let configs = [("max.message.bytes", "1000")];
    let mut client = target.with_configs("small", 1, &configs).await;
    let sized = |len: usize| {
        let mut spec = P(7, 0, 0, 0).spec();
        spec.records = vec![Record::value(vec![b'x'; 10])];
        let small = spec.build().len();
        // One more byte for each of the two varints that grow.
        spec.records = vec![Record::value(vec![b'x'; len - small + 10 - 2])];
        let batch = spec.build();
        assert_eq!(batch.len(), len);
        batch
    };
    assert_eq!(produce(&mut client, "small", sized(1001)).await.0, 10);
    // What was refused did not touch the window.
    assert_eq!(produce(&mut client, "small", sized(1000)).await, (0, 0));
}

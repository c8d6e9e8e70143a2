//! Malformed records of a Produce request (v11). Each row goes to partition 0 beside a good batch
//! for partition 1.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{
    FindCoordinatorRequest, ProduceRequest, ProduceResponse, TransactionalId,
};
use tests::raw::batch::{put_varint, seal};
use tests::raw::{RawClient, ops};

use crate::idempotence::patched;
use crate::kit::{
    P, Target, answers, codes, differs, end_of, on_kafka, plain, produce, produce_request, text,
};
use crate::malformed::bounded;
use crate::reading::list_request;

/// Kafka's codes of partitions 0 and 1; `None`: it never answers.
type Codes = Option<[i16; 2]>;

struct Row {
    name: &'static str,
    records: Option<Bytes>,
    transactional: bool,
    kafka: Codes,
    /// Name of the difference, and our codes.
    ours: Option<(&'static str, [i16; 2])>,
}

fn row(name: &'static str, records: impl Into<Bytes>, code: i16) -> Row {
    Row {
        name,
        records: Some(records.into()),
        transactional: false,
        kafka: Some([code, 0]),
        ours: None,
    }
}

impl Row {
    fn kafka(mut self, codes: [i16; 2]) -> Self {
        self.kafka = Some(codes);
        self
    }

    fn ours(mut self, difference: &'static str, codes: [i16; 2]) -> Self {
        self.ours = Some((difference, codes));
        self
    }

    fn transactional(mut self) -> Self {
        self.transactional = true;
        self
    }
}

/// Overwrites bytes and makes nothing true again.
fn raw(batch: &Bytes, at: usize, with: &[u8]) -> Bytes {
    let mut bytes = BytesMut::from(&batch[..]);
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes.freeze()
}

/// A record by its parts; the length in front is true.
fn record(attributes: u8, offset_delta: i64, key: i64, headers: &[u8]) -> Vec<u8> {
    record_at(0, attributes, offset_delta, key, headers)
}

fn record_at(late: i64, attributes: u8, offset_delta: i64, key: i64, headers: &[u8]) -> Vec<u8> {
    let mut body = BytesMut::from(&[attributes][..]);
    put_varint(&mut body, late);
    put_varint(&mut body, offset_delta);
    put_varint(&mut body, key);
    put_varint(&mut body, 1);
    body.extend_from_slice(b"v");
    body.extend_from_slice(headers);
    let mut bytes = BytesMut::new();
    put_varint(&mut bytes, i64::try_from(body.len()).unwrap());
    bytes.extend_from_slice(&body);
    bytes.to_vec()
}

fn good(offset_delta: i64) -> Vec<u8> {
    record(0, offset_delta, -1, &[0])
}

/// A batch with a true header for `count` records and any bytes behind it.
fn batch(count: i32, records: &[u8]) -> Bytes {
    let mut bytes = BytesMut::from(&P(-1, -1, -1, 0).batch()[..]);
    bytes[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    bytes[57..61].copy_from_slice(&count.to_be_bytes());
    bytes.extend_from_slice(records);
    seal(&mut bytes);
    bytes.freeze()
}

/// The same with a codec in the attributes.
fn compressed(codec: u8, count: i32, records: &[u8]) -> Bytes {
    patched(&batch(count, records), 22, &[codec])
}

/// gzip without compression: one stored block.
fn gzip(content: &[u8]) -> Vec<u8> {
    let len = u16::try_from(content.len()).unwrap();
    let mut bytes = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 1];
    bytes.extend(len.to_le_bytes());
    bytes.extend((!len).to_le_bytes());
    bytes.extend(content);
    let mut crc = u32::MAX;
    for byte in content {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    bytes.extend((!crc).to_le_bytes());
    bytes.extend(u32::from(len).to_le_bytes());
    bytes
}

fn lengths() -> Vec<Row> {
    let whole = plain(3);
    let length = |value: i32| raw(&whole, 8, &value.to_be_bytes());
    let fragment = |more: &[u8]| [&whole[..], more].concat();
    let mut short = BytesMut::from(&whole[..60]);
    short[8..12].copy_from_slice(&48_i32.to_be_bytes());
    let mut short_header = BytesMut::from(&whole[..26]);
    short_header[8..12].copy_from_slice(&14_i32.to_be_bytes());
    let mut rows = vec![
        Row {
            name: "null",
            records: None,
            transactional: false,
            kafka: None,
            ours: Some(("null-records", [87, 0])),
        },
        row("empty", Bytes::new(), 87),
        row("length beyond what is there", length(100_000), 87),
        row("good and one byte", fragment(&[0]), 0),
        row("good and half a batch", fragment(&whole[..40]), 0),
        row("length -5", length(-5), 2).kafka([2, 2]),
        row("length 13", length(13), 2).kafka([2, 2]),
        row("length 2^31-1", length(i32::MAX), -1)
            .kafka([-1, -1])
            .ours("impossible-batch-length", [87, 0]),
        row("length 14, 26 bytes", short_header.freeze(), -1)
            .kafka([-1, -1])
            .ours("impossible-batch-length", [87, 0]),
        row("length 48, 60 bytes", short.freeze(), 2),
        row("two batches", [&whole[..], &whole[..]].concat(), 87),
        row("wrong CRC", raw(&whole, 17, &[1, 2, 3, 4]), 2),
        row("magic 0", raw(&whole, 16, &[0]), 87),
        row("magic 1", raw(&whole, 16, &[1]), 87),
        row("magic 3", raw(&whole, 16, &[3]), 2).kafka([2, 2]),
        row("magic -1", raw(&whole, 16, &[0xff]), 2).kafka([2, 2]),
    ];
    for len in [11, 16, 17, 60] {
        rows.push(row("part of a batch", whole.slice(..len), 87));
    }
    rows
}

fn counts() -> Vec<Row> {
    let three = [good(0), good(1), good(2)].concat();
    let behind = [&three[..], &[0]].concat();
    let mut rows = vec![
        row("three good ones", batch(3, &three), 0),
        row("bytes after the last record", batch(3, &behind), 87),
        row("a record of length -3", batch(1, &[5]), 87),
        row("a record beyond the batch", batch(1, &[0x7e, 0, 0]), 87),
        row(
            "a key beyond its record",
            batch(1, &record(0, 0, 1000, &[0])),
            87,
        ),
        row("header count -1", batch(1, &record(0, 0, -1, &[1])), 87),
        row(
            "header count 10^6",
            batch(1, &record(0, 0, -1, &[0x80, 0x89, 0x7a])),
            87,
        ),
        row(
            "header key null",
            batch(1, &record(0, 0, -1, &[2, 1, 1])),
            87,
        ),
    ];
    for count in [0, -1, i32::MAX, 4, 2] {
        let claimed = raw(&batch(3, &three), 57, &count.to_be_bytes());
        rows.push(row(
            "a count that is not the offset range",
            patched(&claimed, 0, &[]),
            87,
        ));
        if count > 0 {
            rows.push(row(
                "a count and range beside the records",
                batch(count, &three),
                87,
            ));
        }
    }
    rows
}

fn contents() -> Vec<Row> {
    let whole = plain(3);
    let gap = [good(0), good(5), good(2)].concat();
    let backwards = [good(2), good(1), good(0)].concat();
    let deltas = "offset-deltas";
    let zip = gzip(&[good(0), good(1)].concat());
    let mut rows = vec![
        row("offsets with a gap", batch(3, &gap), 0).ours(deltas, [87, 0]),
        row("offsets backwards", batch(3, &backwards), 0).ours(deltas, [87, 0]),
        row("gzip", compressed(1, 2, &zip), 0),
        row("control", patched(&whole, 21, &[0, 0x20]), 87),
        row(
            "base offset 1",
            patched(&whole, 0, &1_i64.to_be_bytes()),
            87,
        ),
        row(
            "attribute bits 6 to 15",
            patched(&whole, 21, &[0xff, 0xc0]),
            0,
        ),
        row(
            "record attributes 0xff",
            batch(1, &record(0xff, 0, -1, &[0])),
            0,
        ),
        row("max timestamp too low", patched(&whole, 35, &[0; 8]), 0),
        row("leader epoch 77", patched(&whole, 12, &[0, 0, 0, 77]), 0),
    ];
    let unread = "compressed-records-unread";
    for codec in 1..=4 {
        let garbage = compressed(codec, 1, b"no such thing as this");
        // Snappy's begin in any way.
        let ours = if codec == 2 { 0 } else { 87 };
        rows.push(row("garbage for a codec", garbage, -1).ours(unread, [ours, 0]));
    }
    for codec in [5, 7] {
        let unknown = compressed(codec, 1, &good(0));
        rows.push(row("a codec that is not there", unknown, -1).ours("unknown-codec", [87, 0]));
    }
    rows.push(row("gzip cut short", compressed(1, 2, &zip[..20]), -1).ours(unread, [0, 0]));
    rows.push(row("gzip with a gap", compressed(1, 3, &gzip(&gap)), -1).ours(unread, [0, 0]));
    rows
}

fn producers() -> Vec<Row> {
    let contradiction = "producer-fields";
    let transactional = |batch: &Bytes| patched(batch, 21, &[0, 0x10]);
    vec![
        row("transactional, pid -1", transactional(&plain(1)), 0)
            .transactional()
            .ours(contradiction, [87, 0]),
        row("pid -2", P(-2, 0, 0, 1).batch(), 0).ours(contradiction, [87, 0]),
        row("pid 5, epoch -1", P(5, -1, 0, 1).batch(), 0).ours(contradiction, [87, 0]),
        row(
            "transactional, pid 5, epoch -1",
            transactional(&P(5, -1, 0, 1).batch()),
            49,
        )
        .transactional()
        .ours(contradiction, [87, 0]),
        row("pid 5, sequence -1", P(5, 0, -1, 1).batch(), 87),
    ]
}

fn request(topic: &str, row: &Row) -> ProduceRequest {
    let data = [(0, row.records.clone()), (1, Some(plain(1)))];
    let id = row.transactional.then(|| TransactionalId(text("someone")));
    produce_request(topic, &data).with_transactional_id(id)
}

/// Codes in the order of partitions: Kafka's own is that of a hash map.
fn by_index(response: &ProduceResponse) -> Vec<i16> {
    let mut answers = answers(response);
    answers.sort_unstable_by_key(|answer| answer.index);
    answers.iter().map(|answer| answer.error_code).collect()
}

async fn ends(client: &mut RawClient, topic: &str) -> Vec<i64> {
    ops::list_offsets(client, topic, 2, ops::LATEST)
        .await
        .unwrap()
}

async fn run(topic: &str, rows: &[Row]) {
    let target = Target::alone();
    let mut client = target.with_topic(topic, 2).await;
    // Asking for a coordinator is what makes Kafka create its topic.
    let coordinator = FindCoordinatorRequest::default()
        .with_key(text("someone"))
        .with_key_type(1);
    client.call(&coordinator, 1).await.unwrap();
    let before = target.process(|process| process.rss_peak_bytes().unwrap());
    for row in rows {
        let name = row.name;
        let start = ends(&mut client, topic).await;
        let expected = match row.ours {
            Some((id, ours)) => differs(id, row.kafka, Some(ours)),
            None => row.kafka,
        };
        let request = request(topic, row);
        let Some(expected) = expected else {
            client.send(&request, 11).await.unwrap();
            let quiet = std::time::Duration::from_millis(500);
            assert!(client.is_silent_for(quiet).await, "{name}");
            client = target.connect().await;
            continue;
        };
        let response = client.call(&request, 11).await.unwrap();
        let mut got = by_index(&response);
        if row.transactional {
            // While the topic of Kafka's coordinator is being made.
            let mut pace = tokio::time::interval(std::time::Duration::from_millis(50));
            for _ in 0..600 {
                if got[0] != 19 {
                    break;
                }
                pace.tick().await;
                got = by_index(&client.call(&request, 11).await.unwrap());
            }
        }
        assert_eq!(got, expected, "{name}");
        let end = ends(&mut client, topic).await;
        assert_eq!(end[0] > start[0], expected[0] == 0, "{name}: partition 0");
        assert_eq!(end[1] > start[1], expected[1] == 0, "{name}: partition 1");
    }
    bounded(&target, before);
}

#[tokio::test]
async fn batch_lengths_and_headers() {
    run("lengths", &lengths()).await;
}

#[tokio::test]
async fn record_counts_and_lengths() {
    run("counts", &counts()).await;
}

#[tokio::test]
async fn record_contents() {
    run("contents", &contents()).await;
}

#[tokio::test]
async fn compressed_records_are_looked_at_on_request() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[("validate", "full")]);
    let mut client = target.with_topic("unpacked", 1).await;
    let zip = gzip(&[good(0), good(1)].concat());
    let gap = [good(0), good(5), good(2)].concat();
    for (name, batch, code) in [
        ("gzip", compressed(1, 2, &zip), 0),
        ("garbage for gzip", compressed(1, 1, b"no such thing"), 87),
        ("garbage for snappy", compressed(2, 1, b"no such thing"), 87),
        ("garbage for lz4", compressed(3, 1, b"no such thing"), 87),
        ("garbage for zstd", compressed(4, 1, b"no such thing"), 87),
        ("cut short", compressed(1, 2, &zip[..20]), 87),
        ("a gap", compressed(1, 3, &gzip(&gap)), 87),
        ("fewer than claimed", compressed(1, 3, &zip), 87),
        ("more than claimed", compressed(1, 1, &zip), 87),
    ] {
        assert_eq!(
            produce(&mut client, "unpacked", batch).await.0,
            code,
            "{name}"
        );
    }
    assert_eq!(end_of(&mut client, "unpacked").await, 2);
}

#[tokio::test]
async fn times_inside_a_compressed_batch() {
    let target = Target::shared();
    let mut client = target.with_topic("packed-times", 1).await;
    let stamp = P(-1, -1, -1, 0).spec().timestamp_ms;
    let records = [(0, 0), (1000, 1), (500, 2)]
        .map(|(late, offset_delta)| record_at(late, 0, offset_delta, -1, &[0]));
    let batch = compressed(1, 3, &gzip(&records.concat()));
    let batch = patched(&batch, 35, &(stamp + 1000).to_be_bytes());
    assert_eq!(produce(&mut client, "packed-times", batch).await, (0, 0));
    for (asked, offset, timestamp) in [
        (stamp, 0, stamp),
        (stamp + 1, 1, stamp + 1000),
        (stamp + 1001, -1, -1),
        (-3, 1, stamp + 1000),
    ] {
        let request = list_request("packed-times", &[(0, asked)]);
        let response = client.call(&request, 7).await.unwrap();
        let got = &response.topics[0].partitions[0];
        assert_eq!((got.offset, got.timestamp), (offset, timestamp), "{asked}");
    }
}

#[tokio::test]
async fn producer_fields() {
    run("producers", &producers()).await;
}

#[tokio::test]
async fn the_frame_around_the_records() {
    let target = Target::shared();
    let mut client = target.with_topic("around", 1).await;
    for topic in ["", "a/b", &"x".repeat(300)] {
        let request = produce_request(topic, &[(0, Some(plain(1)))]);
        let response = client.call(&request, 11).await.unwrap();
        assert_eq!(codes(&response), [3], "{topic:?}");
    }
    let request = produce_request("around", &[(0, Some(plain(1)))]).with_timeout_ms(-5);
    let response = client.call(&request, 11).await.unwrap();
    assert_eq!(codes(&response), [0]);
    let nothing = ProduceRequest::default()
        .with_transactional_id(None)
        .with_acks(-1);
    let response = client.call(&nothing, 11).await.unwrap();
    assert!(response.responses.is_empty());
}

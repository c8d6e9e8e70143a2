//! The seeds that the fuzz targets start from: committed, and equal to what is generated here.
//! `UPDATE_CORPUS=1 cargo test -p gateway corpus` writes them anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use store_adapter::batch::{Batch, BatchHeader, LOG_OVERHEAD};
use store_adapter::control::EndTxnMarker;
use store_adapter::ids::{ProducerEpoch, ProducerId, Sequence};

use super::samples::{self, Rng};
use super::{crowds, schema};
use crate::api::api_table;

fn seeds() -> BTreeMap<String, Vec<u8>> {
    let mut seeds = requests();
    seeds.extend(hostile_requests());
    let crowds = crowds::crowds().into_iter();
    seeds.extend(crowds.map(|(name, key, version, body)| {
        let frame = frame(key, version, &body);
        (format!("request/{name}"), frame)
    }));
    for (name, bytes) in batches() {
        seeds.insert(format!("records/{name}"), bytes.clone());
        seeds.insert(format!("blob/{name}"), bytes);
    }
    seeds
}

fn frame(key: i16, version: i16, body: &[u8]) -> Vec<u8> {
    let mut frame = [key.to_be_bytes(), version.to_be_bytes()].concat();
    frame.extend([0, 0, 0, 1, 0, 2, b'i', b'd']);
    if version >= schema::message(key).unwrap().flexible_from {
        frame.push(0);
    }
    frame.extend(body);
    frame
}

/// One valid request of every version, the smallest of several that is not empty.
fn requests() -> BTreeMap<String, Vec<u8>> {
    let mut seeds = BTreeMap::new();
    for row in api_table() {
        for version in row.versions.clone() {
            let mut rng = Rng(u64::from(version.cast_unsigned()));
            let bodies = (0..8).map(|_| samples::body(row.key, version, &mut rng));
            let body = bodies
                .filter(|body| body.len() > 24)
                .min_by_key(bytes::Bytes::len);
            let body = body.unwrap_or_else(|| samples::body(row.key, version, &mut rng));
            let name = format!("request/{}-v{version}", row.name);
            seeds.insert(name, frame(row.key, version, &body));
        }
    }
    seeds
}

/// Frames that a decoder without a guard aborts on, and the rows of Kafka's malformed input.
fn hostile_requests() -> BTreeMap<String, Vec<u8>> {
    let compact_max = [0xff, 0xff, 0xff, 0xff, 0x0f];
    let produce = [&[0, 0, 1, 0, 0, 0, 1][..], &compact_max].concat();
    let tags = [&[0, 1, 0, 0, 64][..], &[5, 0].repeat(64)].concat();
    [
        ("count-max", frame(3, 1, &[0x7f, 0xff, 0xff, 0xff])),
        ("count-compact-max", frame(3, 9, &compact_max)),
        ("count-compact-max-produce", frame(0, 9, &produce)),
        ("count-reserved", frame(3, 1, &[0x03, 0x3c, 0x0c, 0x00])),
        ("count-minus-two", frame(3, 1, &[0xff, 0xff, 0xff, 0xfe])),
        (
            "empty-names",
            frame(3, 1, &[&[0, 0, 0, 100][..], &[0; 200]].concat()),
        ),
        (
            "varint-of-six",
            frame(3, 9, &[0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        ),
        ("null-name", frame(3, 1, &[0, 0, 0, 1, 0xff, 0xff])),
        ("unknown-tags", frame(3, 9, &tags)),
        (
            "tag-count-max",
            frame(3, 9, &[0, 1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x07]),
        ),
        ("two-bytes", vec![0, 3]),
        ("header-only", vec![0, 3, 0, 9, 0, 0, 0, 1]),
    ]
    .map(|(name, bytes)| (format!("request/hostile-{name}"), bytes))
    .into()
}

fn header(count: i32) -> BatchHeader {
    BatchHeader {
        base_offset: 0,
        batch_length: 0,
        leader_epoch: -1,
        magic: 2,
        crc: 0,
        attributes: 0,
        last_offset_delta: count - 1,
        base_timestamp: 1_700_000_000_000,
        max_timestamp: 1_700_000_000_000,
        producer_id: ProducerId(5),
        producer_epoch: ProducerEpoch(0),
        base_sequence: Sequence(0),
        records_count: count,
    }
}

fn batches() -> BTreeMap<&'static str, Vec<u8>> {
    let with =
        |header: BatchHeader, records: &[u8]| Batch::assemble(header, records).bytes().to_vec();
    // Null key and value; key `k`, value `v`; a header `h` without value.
    let records = [
        &[12, 0, 0, 0, 1, 1, 0][..],
        &[16, 0, 0, 2, 2, b'k', 2, b'v', 0],
        &[18, 0, 2, 4, 1, 1, 2, 2, b'h', 1],
    ];
    let plain = with(header(3), &records.concat());
    let mut compressed = header(3);
    compressed.attributes = 1;
    let mut log_time = header(1);
    log_time.attributes = 0x08;
    let marker = |txn_seq| {
        let marker = EndTxnMarker {
            commit: true,
            coordinator_epoch: 3,
            txn_seq,
        };
        let batch = marker.to_batch(ProducerId(5), ProducerEpoch(1), 1_700_000_000_000);
        batch.bytes().to_vec()
    };
    let mut short = plain.clone();
    short[8..LOG_OVERHEAD].copy_from_slice(&14_i32.to_be_bytes());
    BTreeMap::from([
        ("three-records", plain.clone()),
        ("two-batches", plain.repeat(2)),
        ("fragment-behind", [&plain[..], &plain[..40]].concat()),
        ("length-14", short[..26].to_vec()),
        ("compressed", with(compressed, b"opaque")),
        ("log-append-time", with(log_time, records[0])),
        ("count-max", with(header(i32::MAX), records[0])),
        (
            "offset-gap",
            with(header(2), &[records[0], records[2]].concat()),
        ),
        (
            "header-count-max",
            with(header(1), &[16, 0, 0, 0, 1, 1, 0x80, 0x89, 0x7a]),
        ),
        ("timestamp-overflow", {
            let delta = [&[0xfe][..], &[0xff; 8], &[1]].concat();
            with(header(1), &[&[30, 0][..], &delta, &[0, 1, 1, 0]].concat())
        }),
        ("marker", marker(None)),
        ("marker-numbered", marker(Some(9))),
    ])
}

#[test]
fn committed_seeds_are_what_is_generated() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus");
    let update = std::env::var_os("UPDATE_CORPUS").is_some();
    for (name, bytes) in seeds() {
        let path = root.join(&name);
        if update {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            #[allow(clippy::disallowed_methods, reason = "a test's own files")]
            fs::write(&path, &bytes).unwrap();
        }
        let committed = fs::read(&path).unwrap_or_default();
        assert!(
            committed == bytes,
            "{name} differs; UPDATE_CORPUS=1 writes it"
        );
    }
}

//! What the fuzz targets do with their input. Ordinary tests replay the corpora through the same
//! functions, so every finding stays found.
#![allow(clippy::expect_used, reason = "a panic is a finding")]

use bytes::Bytes;
use gateway::api::CloseReason;
use gateway::partition::validate::{self, TimestampType, TopicRules};
use gateway::wire::{codec, header};
use store_adapter::batch::{Batch, BatchHeader, HEADER_LEN};
use store_adapter::blob::Batches;
use store_adapter::control::EndTxnMarker;
use store_adapter::records::{Records, first_at_or_after};

/// What a target does with one input; a panic is a finding.
pub(crate) type Target = fn(&[u8]);

/// Every target by name; the name is the directory of its corpus.
pub(crate) const TARGETS: [(&str, Target); 3] =
    [("request", request), ("blob", blob), ("records", records)];

/// A frame, without its length: header, guard, decoder. What the guard lets pass must decode.
/// Returns whether it did.
pub(crate) fn decodes(frame: &[u8]) -> bool {
    let frame = Bytes::copy_from_slice(frame);
    let Ok((header, body)) = header::decode(&frame) else {
        return false;
    };
    match codec::decode(header.key, header.version, body) {
        Ok(request) => {
            assert_eq!(request.key(), header.key);
            true
        }
        Err(CloseReason::Malformed(why)) => {
            assert!(!why.starts_with("decoder"), "{why}");
            false
        }
        Err(_) => false,
    }
}

/// See [`decodes`].
pub(crate) fn request(frame: &[u8]) {
    decodes(frame);
}

/// The records of one partition in a Produce request, up to a batch that may be appended. What is
/// accepted reads back with offsets 0, 1, 2 and so on.
pub(crate) fn blob(blob: &[u8]) {
    let total: usize = Batches::new(blob)
        .map_while(Result::ok)
        .map(<[u8]>::len)
        .sum();
    assert!(total <= blob.len());
    validate::peek(blob);
    let blob = Bytes::copy_from_slice(blob);
    for timestamp_type in [TimestampType::CreateTime, TimestampType::LogAppendTime] {
        let rules = TopicRules {
            timestamp_type,
            compact: blob.len().is_multiple_of(2),
            unpack: blob.len().is_multiple_of(3),
            ..TopicRules::default()
        };
        let Ok(single) = validate::single_batch(Some(&blob), 9) else {
            continue;
        };
        let Ok(valid) = validate::batch(single, &rules, 1_700_000_000_000) else {
            continue;
        };
        let batch = Batch::parse(valid.batch.bytes().clone()).expect("a valid batch parses");
        if batch.header().compression() == 0 {
            let records = Records::new(batch.header(), &batch.bytes()[HEADER_LEN..]);
            for (index, record) in (0..).zip(records.expect("a valid batch has records")) {
                assert_eq!(record.expect("a valid record").offset_delta, index);
            }
        }
    }
}

/// A batch as it is read from a log, its CRC trusted: header, records, marker, search by time.
pub(crate) fn records(batch: &[u8]) {
    first_at_or_after(&Bytes::copy_from_slice(batch), 0);
    EndTxnMarker::read(batch);
    let Ok(header) = BatchHeader::read(batch) else {
        return;
    };
    let Ok(records) = Records::new(&header, &batch[HEADER_LEN..]) else {
        return;
    };
    let mut count = 0_i32;
    for record in records {
        let Ok(record) = record else { return };
        count += 1;
        for (key, value) in record.headers() {
            assert!(key.len() + value.unwrap_or_default().len() <= batch.len());
        }
    }
    assert_eq!(count, header.records_count);
}

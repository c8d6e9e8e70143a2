use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::records as kr;
use proptest::prelude::*;

use super::*;
use crate::batch::Batch;
use crate::samples::{self, body, framed};

fn walk(header: &BatchHeader, records: &[u8]) -> Result<usize, RecordError> {
    let mut count = 0;
    for record in Records::new(header, records)? {
        record?;
        count += 1;
    }
    Ok(count)
}

fn one(record: &[u8]) -> Result<usize, RecordFault> {
    walk(&samples::header(1), record).map_err(|error| error.fault)
}

#[test]
fn the_count_must_be_what_is_there() {
    let two = [framed(&body(0, None, None)), framed(&body(1, None, None))].concat();
    let counted = |count| walk(&samples::header(count), &two);
    assert_eq!(counted(2), Ok(2));
    let fault = |index, fault| Err(RecordError { index, fault });
    assert_eq!(counted(1), fault(1, RecordFault::LeftOver));
    for count in [3, -1, i32::MIN, i32::MAX, 1_000_000] {
        assert_eq!(counted(count), fault(0, RecordFault::Count(count)));
    }
    // Three would fit by size.
    let long = [
        framed(&body(0, None, Some(&[1; 30]))),
        framed(&body(1, None, None)),
    ]
    .concat();
    let short = walk(&samples::header(3), &long);
    assert_eq!(short, fault(2, RecordFault::Field));
    assert_eq!(walk(&samples::header(0), &[]), Ok(0));
    assert_eq!(
        walk(&samples::header(0), &[0]),
        fault(0, RecordFault::LeftOver)
    );
}

#[test]
fn lengths_must_fit() {
    assert_eq!(one(&framed(&body(0, Some(b"k"), Some(b"v")))), Ok(1));
    // Negative, and beyond the batch.
    assert_eq!(one(&[1, 0, 0, 0, 1, 1, 0]), Err(RecordFault::Length));
    assert_eq!(one(&[0x7e, 0, 0, 0, 1, 1, 0]), Err(RecordFault::Length));
    // Key and value beyond the record.
    assert_eq!(one(&framed(&[0, 0, 0, 100, 1, 0])), Err(RecordFault::Field));
    assert_eq!(one(&framed(&[0, 0, 0, 1, 100, 0])), Err(RecordFault::Field));
    // Bytes that belong to no field.
    let longer = [&body(0, None, None)[..], &[0]].concat();
    assert_eq!(one(&framed(&longer)), Err(RecordFault::LeftOver));
    // No byte of a field.
    for len in 0..6 {
        let cut = framed(&body(0, None, None)[..len]);
        let padded = [&cut[..], &[0; 8]].concat();
        assert!(one(&padded).is_err(), "{len}");
    }
}

#[test]
fn null_is_any_negative_length() {
    let mut record = BytesMut::new();
    record.put_slice(&[0, 0, 0]);
    samples::varint(&mut record, -7);
    samples::varint(&mut record, -1);
    record.put_u8(0);
    let bytes = framed(&record);
    let found = Records::new(&samples::header(1), &bytes).unwrap().next();
    let found = found.unwrap().unwrap();
    assert_eq!((found.key, found.value), (None, None));
}

#[test]
fn headers_are_checked() {
    let headers = |bytes: &[u8]| {
        let mut record = body(0, None, None);
        record.truncate(record.len() - 1);
        record.put_slice(bytes);
        one(&framed(&record))
    };
    assert_eq!(headers(&[2, 2, b'k', 2, b'v']), Ok(1));
    assert_eq!(headers(&[2, 2, b'k', 1]), Ok(1));
    assert_eq!(headers(&[1]), Err(RecordFault::HeaderCount));
    assert_eq!(headers(&[0x80, 0x89, 0x7a]), Err(RecordFault::HeaderCount));
    assert_eq!(headers(&[2, 1, 1]), Err(RecordFault::HeaderKey));
    assert_eq!(headers(&[2, 100, 0, 0]), Err(RecordFault::Field));
    assert_eq!(headers(&[2, 0, 100]), Err(RecordFault::Field));
    assert_eq!(headers(&[0, 0]), Err(RecordFault::LeftOver));
}

#[test]
fn varints_are_bounded() {
    // Six bytes of length; ten bytes of a timestamp are fine, eleven are not.
    let six = [&[0xff; 5][..], &[1, 0, 0]].concat();
    assert_eq!(one(&six), Err(RecordFault::Varint));
    let timestamp = |bytes: &[u8]| one(&framed(&[&[0][..], bytes, &[0, 1, 1, 0]].concat()));
    assert_eq!(timestamp(&[&[0xff; 9][..], &[1]].concat()), Ok(1));
    assert_eq!(
        timestamp(&[&[0xff; 10][..], &[1]].concat()),
        Err(RecordFault::Varint)
    );
}

#[test]
fn compressed_batches_are_not_walked() {
    let mut header = samples::header(1);
    header.attributes = 2;
    assert_eq!(
        walk(&header, &framed(&body(0, None, None)))
            .unwrap_err()
            .fault,
        RecordFault::Compressed
    );
}

#[test]
fn timestamps_wrap_and_the_log_overrides_them() {
    let mut record = BytesMut::new();
    record.put_u8(0);
    samples::varint(&mut record, i64::MAX);
    record.put_slice(&[0, 1, 1, 0]);
    let bytes = framed(&record);
    let mut header = samples::header(1);
    header.base_timestamp = 1;
    let timestamp = |header: &BatchHeader| {
        let record = Records::new(header, &bytes).unwrap().next();
        record.unwrap().unwrap().timestamp
    };
    assert_eq!(timestamp(&header), i64::MIN);
    header.attributes = 8;
    header.max_timestamp = 77;
    assert_eq!(timestamp(&header), 77);
}

#[test]
fn headers_are_read_in_order_with_duplicates() {
    let mut record = body(0, None, None);
    record.truncate(record.len() - 1);
    record.put_slice(&[6, 2, b'k', 2, b'x', 2, b'k', 2, b'y', 0, 1]);
    let bytes = framed(&record);
    let record = Records::new(&samples::header(1), &bytes).unwrap().next();
    let headers: Vec<_> = record.unwrap().unwrap().headers().collect();
    let (k, x, y) = (&b"k"[..], &b"x"[..], &b"y"[..]);
    assert_eq!(headers, [(k, Some(x)), (k, Some(y)), (&b""[..], None)]);
}

#[test]
fn the_first_record_at_a_time_is_found() {
    let records = [(1_000, 0), (3_000, 1), (2_000, 2)].map(|(timestamp, offset)| {
        let mut record = samples::oracle_record(offset);
        record.sequence = i32::try_from(offset).unwrap();
        record.timestamp = timestamp;
        record
    });
    let stamped = Batch::parse(samples::oracle_encode(&records)).unwrap();
    let stored = stamped.stamp(50, crate::ids::LeaderEpoch(0)).to_bytes();
    assert_eq!(first_at_or_after(&stored, i64::MIN, 0), Some((50, 1_000)));
    assert_eq!(first_at_or_after(&stored, 1_000, 0), Some((50, 1_000)));
    assert_eq!(first_at_or_after(&stored, 1_001, 0), Some((51, 3_000)));
    assert_eq!(first_at_or_after(&stored, 3_000, 0), Some((51, 3_000)));
    assert_eq!(first_at_or_after(&stored, 3_001, 0), None);
    assert_eq!(first_at_or_after(&stored.slice(..60), 0, 0), None);
    let log = stamped
        .with_log_append_time(9_000)
        .stamp(50, crate::ids::LeaderEpoch(0));
    assert_eq!(
        first_at_or_after(&log.to_bytes(), 5_000, 0),
        Some((50, 9_000))
    );
    assert_eq!(first_at_or_after(&log.to_bytes(), 9_001, 0), None);
    // What lies before an offset is not there.
    assert_eq!(first_at_or_after(&stored, 0, 51), Some((51, 3_000)));
    assert_eq!(first_at_or_after(&stored, 0, 52), Some((52, 2_000)));
    assert_eq!(first_at_or_after(&stored, 2_001, 52), None);
    assert_eq!(first_at_or_after(&log.to_bytes(), 0, 52), Some((52, 9_000)));
    assert_eq!(first_at_or_after(&log.to_bytes(), 0, 53), None);
    assert_eq!(first_of_largest(&stored, 0), Some((51, 3_000)));
    assert_eq!(first_of_largest(&stored, 52), Some((52, 2_000)));
    assert_eq!(first_of_largest(&stored, 53), None);
    assert_eq!(first_of_largest(&log.to_bytes(), 51), Some((51, 9_000)));
}

#[test]
fn in_a_compressed_batch_the_answer_is_not_past_the_record() {
    let mut header = samples::header(5);
    header.attributes = 1;
    header.base_timestamp = 1_000;
    header.max_timestamp = 2_000;
    header.base_offset = 50;
    let stored = Batch::assemble(header, b"opaque").bytes().clone();
    assert_eq!(first_at_or_after(&stored, 900, 0), Some((50, 1_000)));
    assert_eq!(first_at_or_after(&stored, 1_500, 0), Some((50, 2_000)));
    assert_eq!(first_at_or_after(&stored, 2_001, 0), None);
    assert_eq!(first_at_or_after(&stored, 900, 52), Some((52, 2_000)));
    assert_eq!(first_of_largest(&stored, 52), Some((52, 2_000)));
}

#[test]
fn in_a_compressed_batch_the_record_is_found() {
    let records = [(1_000, 0), (3_000, 1), (2_000, 2)].map(|(timestamp, offset)| {
        let mut record = samples::oracle_record(offset);
        record.sequence = i32::try_from(offset).unwrap();
        record.timestamp = timestamp;
        record
    });
    let plain = samples::oracle_encode(&records);
    let mut header = BatchHeader::read(&plain).unwrap();
    header.attributes |= 2;
    let packed = snap::raw::Encoder::new()
        .compress_vec(&plain[HEADER_LEN..])
        .unwrap();
    let batch = Batch::assemble(header, &packed);
    let stored = batch.stamp(50, crate::ids::LeaderEpoch(0)).to_bytes();
    assert_eq!(first_at_or_after(&stored, 1_000, 0), Some((50, 1_000)));
    assert_eq!(first_at_or_after(&stored, 1_001, 0), Some((51, 3_000)));
    assert_eq!(first_at_or_after(&stored, 3_001, 0), None);
}

fn nullable() -> impl Strategy<Value = Option<Bytes>> {
    prop::option::of(prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from))
}

fn oracle_records() -> impl Strategy<Value = Vec<kr::Record>> {
    let headers = prop::collection::vec(("[a-z]{0,8}", nullable()), 0..4);
    let fields = (0..1_000_000_i64, nullable(), nullable(), headers);
    prop::collection::vec(fields, 1..20).prop_map(|rows| {
        let numbered = (0..).zip(rows);
        numbered
            .map(|(offset, (timestamp, key, value, headers))| {
                let mut record = samples::oracle_record(offset);
                record.sequence = i32::try_from(offset).unwrap() + 3;
                record.timestamp = timestamp;
                (record.key, record.value) = (key, value);
                for (name, value) in headers {
                    record.headers.insert(name.into(), value);
                }
                record
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn records_are_those_of_kafka_protocol(records in oracle_records()) {
        let batch = Batch::parse(samples::oracle_encode(&records)).unwrap();
        let walked: Vec<_> = Records::new(batch.header(), &batch.bytes()[HEADER_LEN..])
            .unwrap()
            .map(Result::unwrap)
            .collect();
        prop_assert_eq!(walked.len(), records.len());
        for (ours, theirs) in walked.iter().zip(&records) {
            prop_assert_eq!(i64::from(ours.offset_delta), theirs.offset);
            prop_assert_eq!(ours.timestamp, theirs.timestamp);
            prop_assert_eq!(ours.key, theirs.key.as_deref());
            prop_assert_eq!(ours.value, theirs.value.as_deref());
            let headers: Vec<_> = ours.headers().collect();
            let expected: Vec<_> = theirs
                .headers
                .iter()
                .map(|(name, value)| (name.as_bytes(), value.as_deref()))
                .collect();
            prop_assert_eq!(headers, expected);
        }
    }

    #[test]
    fn a_changed_byte_is_refused_or_still_decodes(
        records in oracle_records(), at: prop::sample::Index, byte: u8,
    ) {
        let batch = Batch::parse(samples::oracle_encode(&records)).unwrap();
        let mut changed = batch.bytes()[HEADER_LEN..].to_vec();
        let at = at.index(changed.len());
        changed[at] = byte;
        if let Ok(count) = walk(batch.header(), &changed) {
            prop_assert_eq!(count, records.len());
        }
    }

    #[test]
    fn a_cut_is_refused(records in oracle_records(), at: prop::sample::Index) {
        let batch = Batch::parse(samples::oracle_encode(&records)).unwrap();
        let whole = &batch.bytes()[HEADER_LEN..];
        let cut = &whole[..at.index(whole.len())];
        prop_assert!(walk(batch.header(), cut).is_err());
    }

    #[test]
    fn noise_never_panics(
        noise in prop::collection::vec(any::<u8>(), 0..200), count in -2..30_i32, attributes: i16,
    ) {
        let mut header = samples::header(count);
        header.attributes = attributes;
        if let Ok(found) = walk(&header, &noise) {
            prop_assert_eq!(i32::try_from(found).unwrap(), count);
        }
        let stored = Batch::assemble(header, &noise);
        if let Some((offset, _)) = first_at_or_after(stored.bytes(), 0, 0) {
            prop_assert!(offset >= 0 || header.compression() == 0);
        }
    }
}

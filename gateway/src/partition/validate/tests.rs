use proptest::prelude::*;
use store_adapter::batch::LOG_OVERHEAD;
use store_adapter::ids::{ProducerEpoch, ProducerId, Sequence};

use super::*;
use crate::error_code;
use crate::partition::RetentionRules;

const NOW: i64 = 1_700_000_000_000;
/// What nobody unpacks.
const GZIPPED: &[u8] = b"\x1f\x8bopaque";
/// How the records of a codec begin; zstd's in two ways.
const BEGINNINGS: [(i16, &[u8]); 5] = [
    (1, b"\x1f\x8b"),
    (2, b""),
    (3, b"\x04\x22\x4d\x18"),
    (4, b"\x28\xb5\x2f\xfd"),
    (4, b"\x53\x2a\x4d\x18"),
];

fn header(count: i32) -> BatchHeader {
    BatchHeader {
        base_offset: 0,
        batch_length: 0,
        leader_epoch: -1,
        magic: 2,
        crc: 0,
        attributes: 0,
        last_offset_delta: count.wrapping_sub(1),
        base_timestamp: NOW,
        max_timestamp: NOW,
        producer_id: ProducerId(-1),
        producer_epoch: ProducerEpoch(-1),
        base_sequence: Sequence(-1),
        records_count: count,
    }
}

/// Zigzag of a small number in one byte.
fn small(value: i8) -> u8 {
    ((value << 1) ^ (value >> 7)).cast_unsigned()
}

/// A record with a one-byte key (or null), no value; deltas below 64.
fn record(offset_delta: i8, timestamp_delta: i8, key: Option<u8>) -> Vec<u8> {
    let mut body = vec![0, small(timestamp_delta), small(offset_delta)];
    match key {
        Some(key) => body.extend([2, key]),
        None => body.push(1),
    }
    body.extend([1, 0]);
    body.insert(0, small(i8::try_from(body.len()).unwrap()));
    body
}

fn keyed(count: i8) -> Vec<u8> {
    (0..count)
        .flat_map(|delta| record(delta, 0, Some(b'k')))
        .collect()
}

fn sent(header: BatchHeader, records: &[u8]) -> Bytes {
    Batch::assemble(header, records).bytes().clone()
}

fn check_with(rules: &TopicRules, bytes: &Bytes) -> Result<Valid, ValidateError> {
    batch(single_batch(Some(bytes), 9)?, rules, NOW)
}

fn check(bytes: &Bytes) -> Result<Valid, ValidateError> {
    check_with(&TopicRules::default(), bytes)
}

/// Kafka's code of what `check` says: 0 for accepted.
fn code(bytes: &Bytes) -> i16 {
    check(bytes).map_or_else(|error| error_code::validate(&error).code(), |_| 0)
}

fn code_of(change: impl FnOnce(&mut BatchHeader)) -> i16 {
    let mut header = header(2);
    change(&mut header);
    code(&sent(header, &keyed(2)))
}

fn rules(timestamp_type: TimestampType) -> TopicRules {
    TopicRules {
        timestamp_type,
        ..TopicRules::default()
    }
}

#[test]
fn a_good_batch_is_kept_as_sent() {
    let bytes = sent(header(3), &keyed(3));
    let valid = check(&bytes).unwrap();
    assert_eq!(valid.batch.bytes().as_ptr(), bytes.as_ptr());
    assert_eq!(valid.batch.bytes(), &bytes);
    assert_eq!(valid.log_append_time, None);
}

/// The records table of Kafka's malformed input, where it gives a code of its own or where a
/// fault of Kafka is answered better.
#[test]
fn malformed_records_have_kafkas_codes() {
    let good = sent(header(2), &keyed(2));
    let first = |len: usize| code(&good.slice(..len));
    for len in [0, 11, 16, 17, 60] {
        assert_eq!(first(len), 87, "{len} bytes");
    }
    let with = |at: usize, field: &[u8]| {
        let mut bytes = good.to_vec();
        bytes[at..at + field.len()].copy_from_slice(field);
        Bytes::from(bytes)
    };
    let length = |length: i32| with(8, &length.to_be_bytes());
    assert_eq!(code(&length(1_000)), 87);
    assert_eq!(code(&length(-5)), 2);
    assert_eq!(code(&length(13)), 2);
    assert_eq!(code(&length(i32::MAX)), 87);
    assert_eq!(code(&length(14).slice(..26)), 87);
    assert_eq!(code(&length(48).slice(..60)), 2);
    assert_eq!(code(&with(16, &[3])), 2);
    assert_eq!(code(&with(16, &[0xff])), 2);
    assert_eq!(code(&with(16, &[0])), 87);
    assert_eq!(code(&with(16, &[1])), 87);
    assert_eq!(code(&with(17, &[1, 2, 3, 4])), 2);
    let and = |more: &[u8]| Bytes::from([&good[..], more].concat());
    assert_eq!(code(&and(&[0])), 0);
    assert_eq!(code(&and(&good[..good.len() / 2])), 0);
    assert_eq!(code(&and(&good)), 87);
    assert_eq!(
        error_code::validate(&single_batch(None, 9).unwrap_err()).code(),
        87
    );
}

#[test]
fn malformed_fields_have_kafkas_codes() {
    let counts = |count, last_offset_delta| {
        code_of(|header| {
            header.records_count = count;
            header.last_offset_delta = last_offset_delta;
        })
    };
    assert_eq!(counts(2, 1), 0);
    for count in [0, -1, i32::MAX, i32::MIN, 1, 3] {
        assert_eq!(counts(count, count.wrapping_sub(1)), 87, "count {count}");
    }
    assert_eq!(counts(2, 2), 87);
    assert_eq!(counts(2, 0), 87);
    assert_eq!(counts(2, -1), 87);
    assert_eq!(code_of(|header| header.base_offset = 1), 87);
    assert_eq!(code_of(|header| header.attributes = 0x20), 87);
    assert_eq!(code_of(|header| header.attributes = 0x30), 87);
    for codec in [5, 6, 7] {
        assert_eq!(
            code_of(|header| header.attributes = codec),
            87,
            "codec {codec}"
        );
    }
    // Kept as sent.
    assert_eq!(code_of(|header| header.attributes = 0x7f_c0), 0);
    assert_eq!(code_of(|header| header.leader_epoch = 77), 0);
}

#[test]
fn malformed_record_bytes_have_kafkas_codes() {
    let records = |bytes: &[u8]| code(&sent(header(1), bytes));
    assert_eq!(records(&record(0, 0, None)), 0);
    // Length negative, beyond the batch; key beyond the record; header count -1 and 10^6; header
    // key null; bytes after the last record.
    assert_eq!(records(&[1, 0, 0, 0, 1, 1, 0]), 87);
    assert_eq!(records(&[100, 0, 0, 0, 1, 1, 0]), 87);
    assert_eq!(records(&[12, 0, 0, 0, 100, 1, 0]), 87);
    assert_eq!(records(&[12, 0, 0, 0, 1, 1, 1]), 87);
    assert_eq!(records(&[16, 0, 0, 0, 1, 1, 0x80, 0x89, 0x7a]), 87);
    assert_eq!(records(&[16, 0, 0, 0, 1, 1, 2, 1, 1]), 87);
    assert_eq!(records(&[&record(0, 0, None)[..], &[0]].concat()), 87);
    // Record attributes are kept.
    assert_eq!(records(&[12, 0xff, 0, 0, 1, 1, 0]), 0);
}

#[test]
fn offset_deltas_count_from_zero() {
    let deltas = |deltas: [i8; 3]| {
        let records: Vec<u8> = deltas
            .iter()
            .flat_map(|delta| record(*delta, 0, None))
            .collect();
        check(&sent(header(3), &records))
    };
    assert!(deltas([0, 1, 2]).is_ok());
    for (bad, index) in [
        ([0, 2, 3], 1),
        ([0, 2, 1], 1),
        ([1, 2, 3], 0),
        ([0, 1, 1], 2),
    ] {
        let error = deltas(bad).unwrap_err();
        let ValidateError::InvalidRecord(InvalidRecord::OffsetDelta { index: found, .. }) = error
        else {
            panic!("{error}")
        };
        assert_eq!(found, index, "{bad:?}");
    }
}

#[test]
fn producer_fields_must_agree() {
    let producer = |id: i64, epoch: i16, sequence: i32, transactional: bool| {
        code_of(|header| {
            header.producer_id = ProducerId(id);
            header.producer_epoch = ProducerEpoch(epoch);
            header.base_sequence = Sequence(sequence);
            header.attributes = if transactional { 0x10 } else { 0 };
        })
    };
    assert_eq!(producer(-1, -1, -1, false), 0);
    assert_eq!(producer(5, 0, 0, false), 0);
    assert_eq!(producer(5, 0, i32::MAX, true), 0);
    assert_eq!(producer(-1, -1, -1, true), 87);
    assert_eq!(producer(-2, -1, -1, false), 87);
    assert_eq!(producer(5, -1, 0, false), 87);
    assert_eq!(producer(5, 0, -1, false), 87);
}

#[test]
fn size_is_checked_before_the_crc_and_after_the_base_offset() {
    let bytes = sent(header(2), &keyed(2));
    let len = i64::try_from(bytes.len()).unwrap();
    let limited = |max_message_bytes| TopicRules {
        max_message_bytes,
        ..TopicRules::default()
    };
    assert!(check_with(&limited(len), &bytes).is_ok());
    let too_large = check_with(&limited(len - 1), &bytes).unwrap_err();
    assert_eq!(error_code::validate(&too_large).code(), 10);
    let mut damaged = bytes.to_vec();
    damaged[17] ^= 1;
    let damaged = Bytes::from(damaged);
    let too_large = check_with(&limited(len - 1), &damaged).unwrap_err();
    assert_eq!(error_code::validate(&too_large).code(), 10);
    let mut moved = header(2);
    moved.base_offset = 1;
    let error = check_with(&limited(1), &sent(moved, &keyed(2))).unwrap_err();
    assert_eq!(error_code::validate(&error).code(), 87);
    // A fragment behind the batch does not count.
    let longer = Bytes::from([&bytes[..], &[0; 11]].concat());
    assert!(check_with(&limited(len), &longer).is_ok());
}

#[test]
fn a_batch_fits_into_a_segment() {
    let bytes = sent(header(2), &keyed(2));
    let len = i64::try_from(bytes.len()).unwrap();
    let limited = |segment_bytes| TopicRules {
        retention: RetentionRules {
            segment_bytes,
            ..RetentionRules::default()
        },
        ..TopicRules::default()
    };
    assert!(check_with(&limited(len), &bytes).is_ok());
    let too_large = check_with(&limited(len - 1), &bytes).unwrap_err();
    assert_eq!(error_code::validate(&too_large).code(), 18);
}

#[test]
fn zstd_needs_version_seven() {
    let mut zstd = header(1);
    zstd.attributes = 4;
    let bytes = sent(zstd, b"opaque");
    assert_eq!(
        single_batch(Some(&bytes), 6),
        Err(ValidateError::UnsupportedCompression)
    );
    assert!(single_batch(Some(&bytes), 7).is_ok());
}

#[test]
fn compressed_batches_are_judged_by_their_header() {
    let compressed = |codec: i16, payload: &[u8]| {
        let mut header = header(2);
        header.attributes = codec;
        code(&sent(header, payload))
    };
    for (codec, begins) in BEGINNINGS {
        assert_eq!(compressed(codec, &[begins, b"opaque"].concat()), 0);
        assert_eq!(compressed(codec, b""), 87);
    }
    for codec in [1, 3, 4] {
        assert_eq!(compressed(codec, b"opaque"), 87, "{codec}");
    }
    let mut header = header(2);
    header.attributes = 1;
    header.last_offset_delta = 5;
    assert_eq!(code(&sent(header, GZIPPED)), 87);
}

#[test]
fn timestamps_must_be_near() {
    let at = |delta_ms: i64| {
        let mut header = header(1);
        header.base_timestamp = NOW + delta_ms;
        header.max_timestamp = NOW + delta_ms;
        sent(header, &record(0, 0, None))
    };
    assert_eq!(code(&at(3_600_000)), 0);
    assert_eq!(code(&at(3_600_001)), 32);
    // The past is not limited by default, not even by overflow.
    assert_eq!(code(&at(-NOW)), 0);
    let mut oldest = header(1);
    oldest.base_timestamp = i64::MIN;
    assert_eq!(code(&sent(oldest, &record(0, 0, None))), 0);
    let rules = TopicRules {
        timestamp_before_max_ms: 1_000,
        ..TopicRules::default()
    };
    assert!(check_with(&rules, &at(-1_000)).is_ok());
    let error = check_with(&rules, &at(-1_001)).unwrap_err();
    assert_eq!(error_code::validate(&error).code(), 32);
    let named: Vec<_> = error.record_errors().map(|(index, _)| index).collect();
    assert_eq!(named, [0]);
    // -1 is no timestamp.
    assert!(check_with(&rules, &at(-NOW - 1)).is_ok());
}

#[test]
fn one_bad_timestamp_refuses_the_batch_and_is_named() {
    let mut late = header(3);
    late.base_timestamp = NOW + 3_600_000 - 1;
    let records = [record(0, 0, None), record(1, 9, None), record(2, 1, None)].concat();
    let error = check(&sent(late, &records)).unwrap_err();
    let expected = RefusedRecord {
        index: 1,
        why: RecordRefusal::Timestamp(NOW + 3_600_008),
    };
    assert_eq!(error, ValidateError::InvalidTimestamp(vec![expected]));
}

#[test]
fn compressed_timestamps_are_those_of_the_header() {
    let at = |base: i64, max: i64| {
        let mut header = header(2);
        header.attributes = 1;
        (header.base_timestamp, header.max_timestamp) = (base, max);
        sent(header, GZIPPED)
    };
    assert_eq!(code(&at(NOW, NOW)), 0);
    assert_eq!(code(&at(NOW, NOW + 3_600_001)), 32);
    let rules = TopicRules {
        timestamp_before_max_ms: 1_000,
        ..TopicRules::default()
    };
    let error = check_with(&rules, &at(NOW - 1_001, NOW)).unwrap_err();
    assert_eq!(error.record_errors().count(), 1);
    assert_eq!(error_code::validate(&error).code(), 32);
}

#[test]
fn max_timestamp_is_corrected() {
    let mut low = header(2);
    low.max_timestamp = 5;
    let records = [record(0, 3, None), record(1, 40, None)].concat();
    let bytes = sent(low, &records);
    let valid = check(&bytes).unwrap();
    assert_eq!(valid.batch.header().max_timestamp, NOW + 40);
    assert_eq!(valid.batch.bytes()[HEADER_LEN..], bytes[HEADER_LEN..]);
    assert!(Batch::parse(valid.batch.bytes().clone()).is_ok());
}

#[test]
fn log_append_time_is_set_by_the_log() {
    let valid = check_with(
        &rules(TimestampType::LogAppendTime),
        &sent(header(2), &keyed(2)),
    );
    let valid = valid.unwrap();
    assert_eq!(valid.log_append_time, Some(NOW));
    let parsed = Batch::parse(valid.batch.bytes().clone()).unwrap();
    assert!(parsed.header().is_log_append_time());
    assert_eq!(parsed.header().max_timestamp, NOW);
    // Timestamps of the producer are not judged.
    let mut far = header(1);
    far.base_timestamp = NOW + 10_000_000;
    let far = sent(far, &record(0, 0, None));
    assert!(check_with(&rules(TimestampType::LogAppendTime), &far).is_ok());
    assert_eq!(code(&far), 32);
}

#[test]
fn a_producer_cannot_claim_log_append_time() {
    let mut claims = header(3);
    claims.attributes = 0x08;
    // On a topic with CreateTime: cleared, timestamps kept, CRC right.
    let valid = check(&sent(claims, &keyed(3))).unwrap();
    let parsed = Batch::parse(valid.batch.bytes().clone()).unwrap();
    assert!(!parsed.header().is_log_append_time());
    assert_eq!(parsed.header().max_timestamp, NOW);
    // On a topic with LogAppendTime: an error for every record.
    let error = check_with(
        &rules(TimestampType::LogAppendTime),
        &sent(claims, &keyed(3)),
    );
    let error = error.unwrap_err();
    assert_eq!(error_code::validate(&error).code(), 32);
    let named: Vec<_> = error.record_errors().map(|(index, _)| index).collect();
    assert_eq!(named, [0, 1, 2]);
    // On a topic with CreateTime and no timestamp.
    (claims.base_timestamp, claims.max_timestamp) = (-1, -1);
    assert_eq!(code(&sent(claims, &keyed(3))), 32);
}

#[test]
fn a_compressed_batch_names_a_bounded_number_of_records() {
    let mut claims = header(i32::MAX);
    claims.attributes = 0x09;
    let bytes = sent(claims, GZIPPED);
    let error = check_with(&rules(TimestampType::LogAppendTime), &bytes).unwrap_err();
    assert_eq!(error_code::validate(&error).code(), 32);
    assert_eq!(error.record_errors().count(), 65_536);
}

#[test]
fn compacted_topics_need_keys() {
    let compact = TopicRules {
        compact: true,
        ..TopicRules::default()
    };
    let records = |keys: [Option<u8>; 3]| {
        let records = (0..)
            .zip(keys)
            .flat_map(|(delta, key)| record(delta, 0, key));
        sent(header(3), &records.collect::<Vec<u8>>())
    };
    assert!(check_with(&compact, &records([Some(1); 3])).is_ok());
    let error = check_with(&compact, &records([None, Some(1), None])).unwrap_err();
    assert_eq!(error_code::validate(&error).code(), 87);
    let named: Vec<_> = error.record_errors().collect();
    assert_eq!(
        named.iter().map(|(index, _)| *index).collect::<Vec<_>>(),
        [0, 2]
    );
    assert!(named[0].1.contains("key"));
    assert!(check(&records([None; 3])).is_ok());
}

#[test]
fn compacted_topics_need_keys_in_compressed_batches_too() {
    let compact = TopicRules {
        compact: true,
        ..TopicRules::default()
    };
    let packed = |keys: [Option<u8>; 2]| {
        let records = (0..)
            .zip(keys)
            .flat_map(|(delta, key)| record(delta, 0, key));
        let records: Vec<u8> = records.collect();
        let len = u8::try_from(records.len()).unwrap();
        assert!(len <= 60);
        let mut header = header(2);
        header.attributes = 2;
        // Snappy: the length, and all of it as one literal.
        sent(header, &[&[len, (len - 1) << 2], &records[..]].concat())
    };
    assert!(check_with(&compact, &packed([Some(1); 2])).is_ok());
    let error = check_with(&compact, &packed([Some(1), None])).unwrap_err();
    assert_eq!(error_code::validate(&error).code(), 87);
    let named: Vec<_> = error.record_errors().map(|(index, _)| index).collect();
    assert_eq!(named, [1]);
    assert!(check(&packed([None; 2])).is_ok());
}

#[test]
fn a_refused_timestamp_outweighs_a_missing_key() {
    let compact = TopicRules {
        compact: true,
        ..TopicRules::default()
    };
    let mut late = header(2);
    late.base_timestamp = NOW + 3_600_000;
    let records = [record(0, 0, None), record(1, 1, Some(1))].concat();
    let error = check_with(&compact, &sent(late, &records)).unwrap_err();
    assert_eq!(error_code::validate(&error).code(), 32);
    assert_eq!(error.record_errors().count(), 2);
}

#[test]
fn peek_finds_what_concerns_the_whole_request() {
    let good = sent(header(1), &keyed(1));
    assert_eq!(peek(&good), Peek::Plain);
    assert_eq!(peek(&[]), Peek::Plain);
    assert_eq!(peek(&good[..40]), Peek::Plain);
    let mut bytes = good.to_vec();
    bytes[16] = 3;
    assert_eq!(peek(&bytes), Peek::Corrupt);
    let mut bytes = good.to_vec();
    bytes[8..12].copy_from_slice(&13_i32.to_be_bytes());
    assert_eq!(peek(&bytes), Peek::Corrupt);
    // Only the first batch is looked at.
    let then_bad = [&good[..], &bytes].concat();
    assert_eq!(peek(&then_bad), Peek::Plain);
    let transactional = |producer_id, producer_epoch| {
        let mut header = header(1);
        header.attributes = 0x10;
        header.producer_id = ProducerId(producer_id);
        header.producer_epoch = ProducerEpoch(producer_epoch);
        sent(header, &keyed(1))
    };
    let found = Peek::Transactional {
        producer_id: 9,
        producer_epoch: 2,
    };
    assert_eq!(peek(&transactional(9, 2)), found);
    let is_transactional = |bytes| single_batch(Some(&bytes), 9).unwrap().is_transactional();
    assert!(is_transactional(transactional(9, 2)));
    assert!(is_transactional(transactional(9, -1)));
    assert!(!is_transactional(transactional(-1, -1)));
    assert!(!is_transactional(good));
}

#[test]
fn a_fragment_is_cut_off_without_a_copy() {
    let good = sent(header(1), &keyed(1));
    let longer = Bytes::from([&good[..], &[1, 2, 3]].concat());
    let single = single_batch(Some(&longer), 9).unwrap();
    assert_eq!(single.bytes(), &good);
    assert_eq!(single.bytes().as_ptr(), longer.as_ptr());
}

proptest! {
    /// Whatever is accepted is one batch that reads back: offsets 0 to n-1, the CRC right, the
    /// largest timestamp true.
    #[test]
    fn what_is_accepted_reads_back(
        count in 1..6_i8, at: prop::sample::Index, byte: u8, seal: bool, compact: bool,
        append_time: bool,
    ) {
        let mut bytes = sent(header(i32::from(count)), &keyed(count)).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if seal {
            let crc = crc32c::crc32c(&bytes[21..]);
            bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        }
        let timestamp_type =
            if append_time { TimestampType::LogAppendTime } else { TimestampType::CreateTime };
        let rules = TopicRules { compact, ..rules(timestamp_type) };
        if let Ok(valid) = check_with(&rules, &Bytes::from(bytes)) {
            let batch = Batch::parse(valid.batch.bytes().clone()).unwrap();
            let header = batch.header();
            prop_assert_eq!(header.is_log_append_time(), append_time);
            prop_assert_eq!(header.total_len(), Some(batch.bytes().len()));
            if header.compression() == 0 {
                let records: Vec<_> = Records::new(header, &batch.bytes()[HEADER_LEN..])
                    .unwrap()
                    .map(Result::unwrap)
                    .collect();
                let deltas: Vec<i32> = records.iter().map(|record| record.offset_delta).collect();
                prop_assert_eq!(deltas, (0..header.records_count).collect::<Vec<_>>());
                let largest = records.iter().map(|record| record.timestamp).max().unwrap();
                prop_assert_eq!(header.max_timestamp, largest.max(-1));
                prop_assert!(!compact || records.iter().all(|record| record.key.is_some()));
            }
        }
    }

    #[test]
    fn noise_never_panics(mut noise in prop::collection::vec(any::<u8>(), 0..200), sane: bool) {
        if sane && noise.len() > HEADER_LEN {
            let len = i32::try_from(noise.len() - LOG_OVERHEAD).unwrap();
            noise[..8].fill(0);
            noise[8..12].copy_from_slice(&len.to_be_bytes());
            noise[16] = 2;
            let crc = crc32c::crc32c(&noise[21..]);
            noise[17..21].copy_from_slice(&crc.to_be_bytes());
        }
        peek(&noise);
        if let Err(error) = check(&Bytes::from(noise)) {
            prop_assert!([87, 2, 10, 32, 76].contains(&error_code::validate(&error).code()));
        }
    }
}

use proptest::prelude::*;

use super::*;
use crate::samples;

/// Written out by hand: one record without key, value `v`.
const GOLDEN: &[u8] = &[
    0, 0, 0, 0, 0, 0, 0, 0, // base offset
    0, 0, 0, 57, // length
    0xff, 0xff, 0xff, 0xff, // leader epoch
    2,    // magic
    0x97, 0x8a, 0x2e, 0x71, // CRC
    0, 0, // attributes
    0, 0, 0, 0, // last offset delta
    0, 0, 0, 0, 0, 0, 3, 0xe8, // base timestamp
    0, 0, 0, 0, 0, 0, 3, 0xe8, // max timestamp
    0, 0, 0, 0, 0, 0, 0, 9, // producer id
    0, 1, // producer epoch
    0, 0, 0, 5, // base sequence
    0, 0, 0, 1, // records
    14, 0, 0, 0, 1, 2, b'v', 0, // record
];

fn golden_header() -> BatchHeader {
    let mut header = samples::header(1);
    header.producer_id = ProducerId(9);
    header.producer_epoch = ProducerEpoch(1);
    header.base_sequence = Sequence(5);
    header
}

#[test]
fn assemble_writes_the_golden_bytes() {
    let batch = Batch::assemble(golden_header(), &[14, 0, 0, 0, 1, 2, b'v', 0]);
    assert_eq!(&batch.bytes()[..], GOLDEN);
    assert_eq!(Batch::parse(Bytes::from_static(GOLDEN)), Ok(batch));
}

#[test]
fn fields_are_those_of_kafka_protocol() {
    let records: Vec<_> = (0..5)
        .map(|offset| {
            let mut record = samples::oracle_record(offset);
            record.producer_id = 77;
            record.producer_epoch = 3;
            record.sequence = i32::try_from(offset).unwrap() + 40;
            record.timestamp = 5_000 + offset * 10;
            record.transactional = true;
            record.value = Some(Bytes::from_static(b"value"));
            record
        })
        .collect();
    let batch = Batch::parse(samples::oracle_encode(&records)).unwrap();
    let header = batch.header();
    assert_eq!(header.records_count, 5);
    assert_eq!(header.last_offset_delta, 4);
    assert_eq!(
        (header.base_timestamp, header.max_timestamp),
        (5_000, 5_040)
    );
    assert_eq!(header.producer_id, ProducerId(77));
    assert_eq!(header.producer_epoch, ProducerEpoch(3));
    assert_eq!(header.base_sequence, Sequence(40));
    assert_eq!(header.last_sequence(), Sequence(44));
    assert!(header.is_transactional());
    assert!(!header.is_control());
    assert_eq!(header.compression(), 0);
}

#[test]
fn stamping_leaves_the_crc_right() {
    let batch = samples::batch(3);
    let stamped = batch.stamp(1_234_567_890_123, LeaderEpoch(7));
    let again = Batch::parse(stamped.to_bytes()).unwrap();
    assert_eq!(again.header(), stamped.header());
    assert_eq!(again.header().base_offset, 1_234_567_890_123);
    assert_eq!(again.header().last_offset(), 1_234_567_890_125);
    assert_eq!(again.header().leader_epoch, 7);
    assert_eq!(stamped.head()[..], again.bytes()[..HEADER_LEN]);
    // The records are those of the batch, not a copy.
    assert_eq!(
        stamped.records().as_ptr(),
        batch.bytes()[HEADER_LEN..].as_ptr()
    );
}

#[test]
fn timestamps_are_set_with_a_new_crc() {
    let batch = samples::batch(3);
    let log = batch.with_log_append_time(99);
    let parsed = Batch::parse(log.bytes().clone()).unwrap();
    assert!(parsed.header().is_log_append_time());
    assert_eq!(parsed.header().max_timestamp, 99);
    assert_eq!(parsed.header().base_timestamp, 1_000);
    let create = parsed.with_create_time(1_000);
    assert_eq!(create, batch);
    // Nothing to change: the same bytes.
    let same = batch.with_create_time(1_000);
    assert_eq!(same.bytes().as_ptr(), batch.bytes().as_ptr());
}

#[test]
fn every_prefix_and_every_suffix_is_refused() {
    let bytes = samples::batch(2).bytes().clone();
    for cut in 0..bytes.len() {
        assert_eq!(Batch::parse(bytes.slice(..cut)), Err(BatchError::Truncated));
    }
    let longer = [&bytes[..], &[0]].concat();
    let length = bytes.len() - LOG_OVERHEAD;
    assert_eq!(
        Batch::parse(longer.into()),
        Err(BatchError::BadLength(i32::try_from(length).unwrap()))
    );
}

#[test]
fn lengths_and_magic_are_checked_before_the_crc() {
    let bytes = samples::batch(1).bytes().to_vec();
    let with = |at: usize, field: &[u8]| {
        let mut changed = bytes.clone();
        changed[at..at + field.len()].copy_from_slice(field);
        Batch::parse(changed.into()).unwrap_err()
    };
    assert_eq!(with(8, &[0xff; 4]), BatchError::BadLength(-1));
    assert_eq!(with(8, &[0, 0, 0, 48]), BatchError::BadLength(48));
    assert_eq!(with(8, &[0x7f, 0xff, 0xff, 0xff]), BatchError::Truncated);
    assert_eq!(with(16, &[1]), BatchError::Magic(1));
    assert_eq!(with(16, &[0xff]), BatchError::Magic(-1));
    assert_eq!(with(17, &[0, 0, 0, 0]), BatchError::Crc);
}

proptest! {
    #[test]
    fn headers_read_what_was_written(
        base_offset: i64, leader_epoch: i32, attributes: i16, last_offset_delta: i32,
        times: (i64, i64), producer: (i64, i16, i32), records_count: i32,
    ) {
        let header = BatchHeader {
            base_offset,
            batch_length: 0,
            leader_epoch,
            magic: 0,
            crc: 0,
            attributes,
            last_offset_delta,
            base_timestamp: times.0,
            max_timestamp: times.1,
            producer_id: ProducerId(producer.0),
            producer_epoch: ProducerEpoch(producer.1),
            base_sequence: Sequence(producer.2),
            records_count,
        };
        prop_assert_eq!(BatchHeader::read(&header.to_bytes()), Ok(header));
        let batch = Batch::assemble(header, b"records");
        prop_assert_eq!(Batch::parse(batch.bytes().clone()), Ok(batch));
    }

    #[test]
    fn one_flipped_bit_is_found_unless_it_is_outside_the_crc(at in 0..GOLDEN.len(), bit in 0..8) {
        let mut bytes = GOLDEN.to_vec();
        bytes[at] ^= 1_u8 << bit;
        let parsed = Batch::parse(bytes.into());
        // Base offset and leader epoch are the broker's to set.
        let outside = at < 8 || (12..16).contains(&at);
        prop_assert_eq!(parsed.is_ok(), outside, "byte {}", at);
    }

    #[test]
    fn noise_is_an_error(noise in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Batch::parse(noise.into()).is_err());
    }
}

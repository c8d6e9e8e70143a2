use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::samples;

fn marker(commit: bool, txn_seq: Option<u64>) -> EndTxnMarker {
    EndTxnMarker {
        commit,
        coordinator_epoch: 7,
        txn_seq,
    }
}

fn batch(marker: EndTxnMarker) -> Batch {
    marker.to_batch(ProducerId(5), ProducerEpoch(2), 1_700_000_000_000)
}

#[test]
fn markers_without_number_are_those_of_kafka_protocol() {
    for (commit, kind) in [(false, 0), (true, 1)] {
        let mut record = samples::oracle_record(0);
        record.transactional = true;
        record.control = true;
        record.partition_leader_epoch = 0;
        record.producer_id = 5;
        record.producer_epoch = 2;
        record.timestamp = 1_700_000_000_000;
        record.key = Some(Bytes::copy_from_slice(&[0, 0, 0, kind]));
        record.value = Some(Bytes::from_static(&[0, 0, 0, 0, 0, 7]));
        let ours = batch(marker(commit, None));
        assert_eq!(ours.bytes().len(), 78);
        assert_eq!(ours.bytes(), &samples::oracle_encode(&[record]));
        let header = ours.header();
        assert_eq!((header.attributes, header.base_sequence.0), (0x30, -1));
    }
}

#[test]
fn a_number_is_a_header_of_the_record() {
    let ours = batch(marker(true, Some(0x0102_0304_0506_0708)));
    assert_eq!(ours.bytes().len(), 98);
    let payload = &ours.bytes()[HEADER_LEN..];
    let record = Records::new(ours.header(), payload).unwrap().next();
    let headers: Vec<_> = record.unwrap().unwrap().headers().collect();
    let number: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(headers, [(&b"fp-txn-seq"[..], Some(number))]);
}

#[test]
fn what_is_no_marker_reads_as_none() {
    assert_eq!(EndTxnMarker::read(samples::batch(1).bytes()), None);
    let whole = batch(marker(true, Some(9)));
    for cut in 0..whole.bytes().len() {
        assert_eq!(EndTxnMarker::read(&whole.bytes()[..cut]), None);
    }
    let with = |at: usize, byte: u8| {
        let mut bytes = whole.bytes().to_vec();
        bytes[at] = byte;
        EndTxnMarker::read(&bytes)
    };
    // Leader change, an unknown type, a negative version.
    assert_eq!(with(HEADER_LEN + 8, 2), None);
    assert_eq!(with(HEADER_LEN + 8, 9), None);
    assert_eq!(with(HEADER_LEN + 5, 0x80), None);
    assert_eq!(with(HEADER_LEN + 10, 0x80), None);
    // A newer version only adds fields.
    assert_eq!(with(HEADER_LEN + 6, 1), Some(marker(true, Some(9))));
    // No control batch.
    assert_eq!(with(22, 0x10), None);
}

proptest! {
    #[test]
    fn markers_read_what_was_written(
        commit: bool, coordinator_epoch: i32, txn_seq: Option<u64>,
        producer: (i64, i16), now_ms: i64,
    ) {
        let written = EndTxnMarker { commit, coordinator_epoch, txn_seq };
        let batch = written.to_batch(ProducerId(producer.0), ProducerEpoch(producer.1), now_ms);
        prop_assert_eq!(EndTxnMarker::read(batch.bytes()), Some(written));
        prop_assert_eq!(Batch::parse(batch.bytes().clone()), Ok(batch.clone()));
        let header = batch.header();
        prop_assert!(header.is_control() && header.is_transactional());
        prop_assert_eq!((header.producer_id.0, header.producer_epoch.0), producer);
    }

    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut header = *batch(marker(true, None)).header();
        header.records_count = 1;
        let read = EndTxnMarker::read(Batch::assemble(header, &noise).bytes());
        if let Some(read) = read {
            prop_assert!(noise.len() >= 16, "{:?}", read);
        }
    }
}

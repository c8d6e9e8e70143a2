//! Batches for the tests of compaction, and how they are shown.

use std::fmt::Write;

use bytes::{BufMut, Bytes, BytesMut};
use store_adapter::batch::{Batch, BatchHeader};
use store_adapter::control::EndTxnMarker;
use store_adapter::ids::{LeaderEpoch, ProducerEpoch, ProducerId, Sequence};
use store_adapter::rebuild::each;
use store_adapter::store::StoredBatch;

/// Timestamp of the first record of every sample, ms.
pub(super) const TIME: i64 = 1_000;

/// One data batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample<'a> {
    pub(super) base: i64,
    /// Producer id, epoch and first sequence.
    pub(super) producer: (i64, i16, i32),
    pub(super) transactional: bool,
    /// `key=value`, `key` for a tombstone, `=value` for no key; divided by blanks.
    pub(super) records: &'a str,
}

/// A batch of nobody.
pub(super) fn plain(base: i64, records: &str) -> Bytes {
    sample(Sample {
        base,
        producer: (-1, -1, -1),
        transactional: false,
        records,
    })
}

/// A batch of a transaction of a producer, at epoch 0.
pub(super) fn in_txn(base: i64, producer: i64, records: &str) -> Bytes {
    sample(Sample {
        base,
        producer: (producer, 0, 0),
        transactional: true,
        records,
    })
}

pub(super) fn sample(sample: Sample<'_>) -> Bytes {
    let mut records = BytesMut::new();
    let mut count = 0;
    for (delta, text) in (0_u8..).zip(sample.records.split_whitespace()) {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (Some(key).filter(|key| !key.is_empty()), Some(value)),
            None => (Some(text), None),
        };
        let mut body = BytesMut::new();
        // Attributes, one ms a record, offset; all varints here are one byte.
        body.put_slice(&[0, 2 * delta, 2 * delta]);
        for field in [key, value] {
            match field {
                Some(text) => {
                    body.put_u8(2 * u8::try_from(text.len()).unwrap());
                    body.put_slice(text.as_bytes());
                }
                None => body.put_u8(1),
            }
        }
        body.put_u8(0);
        records.put_u8(2 * u8::try_from(body.len()).unwrap());
        records.put_slice(&body);
        count += 1;
    }
    let (id, epoch, sequence) = sample.producer;
    let header = BatchHeader {
        base_offset: sample.base,
        batch_length: 0,
        leader_epoch: 3,
        magic: 2,
        crc: 0,
        attributes: if sample.transactional { 0x10 } else { 0 },
        last_offset_delta: count - 1,
        base_timestamp: TIME,
        max_timestamp: TIME + i64::from(count) - 1,
        producer_id: ProducerId(id),
        producer_epoch: ProducerEpoch(epoch),
        base_sequence: Sequence(sequence),
        records_count: count,
    };
    Batch::assemble(header, &records).bytes().clone()
}

/// A marker of a producer, at epoch 0.
pub(super) fn marker(base: i64, producer: i64, commit: bool) -> Bytes {
    let marker = EndTxnMarker {
        commit,
        coordinator_epoch: 1,
        txn_seq: Some(9),
    };
    let batch = marker.to_batch(ProducerId(producer), ProducerEpoch(0), TIME);
    batch.stamp(base, LeaderEpoch(3)).to_bytes()
}

/// As it stands in a store.
pub(super) fn stored(batch: &Bytes) -> StoredBatch {
    let header = BatchHeader::read(batch).unwrap();
    StoredBatch {
        bytes: batch.clone(),
        base_offset: header.base_offset,
        last_offset: header.last_offset(),
        append_ms: TIME,
    }
}

/// Range, producer, delete horizon, and offset, timestamp, key and value of every record.
pub(super) fn shown(batch: &Bytes) -> String {
    let batch = Batch::parse(batch.clone()).expect("a batch that is right");
    let header = batch.header();
    let mut text = format!("{}..{}", header.base_offset, header.last_offset());
    if header.producer_id.0 >= 0 {
        write!(text, " p{}", header.producer_id.0).unwrap();
    }
    if let Some(horizon) = header.delete_horizon() {
        write!(text, " until {horizon}").unwrap();
    }
    let mut count = 0;
    each(batch.bytes(), |record| {
        count += 1;
        let offset = header.base_offset + i64::from(record.offset_delta);
        let at = format!("{offset}@{}", record.timestamp);
        if header.is_control() {
            write!(text, " {at}:marker").unwrap();
            return;
        }
        let key = String::from_utf8_lossy(record.key.unwrap_or_default());
        write!(text, " {at}:{key}").unwrap();
        if let Some(value) = record.value {
            write!(text, "={}", String::from_utf8_lossy(value)).unwrap();
        }
    })
    .unwrap();
    assert_eq!(count, header.records_count);
    text
}

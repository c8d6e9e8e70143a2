//! Batches for the tests of this crate.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::records as kr;

use crate::batch::{Batch, BatchHeader};
use crate::ids::{ProducerEpoch, ProducerId, Sequence};

pub(crate) fn header(count: i32) -> BatchHeader {
    BatchHeader {
        base_offset: 0,
        batch_length: 0,
        leader_epoch: -1,
        magic: 2,
        crc: 0,
        attributes: 0,
        last_offset_delta: count.wrapping_sub(1),
        base_timestamp: 1_000,
        max_timestamp: 1_000,
        producer_id: ProducerId(-1),
        producer_epoch: ProducerEpoch(-1),
        base_sequence: Sequence(-1),
        records_count: count,
    }
}

pub(crate) fn varint(out: &mut BytesMut, value: i64) {
    let mut zigzag = (value << 1).cast_unsigned() ^ (value >> 63).cast_unsigned();
    while zigzag >= 0x80 {
        out.put_u8(zigzag.to_le_bytes()[0] | 0x80);
        zigzag >>= 7;
    }
    out.put_u8(zigzag.to_le_bytes()[0]);
}

/// A record's bytes behind its length.
pub(crate) fn body(delta: i64, key: Option<&[u8]>, value: Option<&[u8]>) -> BytesMut {
    let mut out = BytesMut::new();
    out.put_u8(0);
    varint(&mut out, 0);
    varint(&mut out, delta);
    for field in [key, value] {
        varint(
            &mut out,
            field.map_or(-1, |bytes| i64::try_from(bytes.len()).unwrap()),
        );
        out.put_slice(field.unwrap_or_default());
    }
    varint(&mut out, 0);
    out
}

pub(crate) fn framed(body: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    varint(&mut out, i64::try_from(body.len()).unwrap());
    out.put_slice(body);
    out.to_vec()
}

/// `count` records with keys and values.
pub(crate) fn batch(count: i32) -> Batch {
    let records: Vec<u8> = (0..count)
        .flat_map(|delta| framed(&body(i64::from(delta), Some(b"key"), Some(b"value"))))
        .collect();
    Batch::assemble(header(count), &records)
}

pub(crate) fn oracle_record(offset: i64) -> kr::Record {
    kr::Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id: -1,
        producer_epoch: -1,
        timestamp_type: kr::TimestampType::Creation,
        offset,
        sequence: -1,
        timestamp: 0,
        key: None,
        value: None,
        headers: kafka_protocol::indexmap::IndexMap::default(),
    }
}

pub(crate) fn oracle_encode(records: &[kr::Record]) -> Bytes {
    let options = kr::RecordEncodeOptions {
        version: 2,
        compression: kr::Compression::None,
    };
    let mut out = BytesMut::new();
    kr::RecordBatchEncoder::encode(&mut out, records, &options).unwrap();
    out.freeze()
}

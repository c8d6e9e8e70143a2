//! Record batches of magic 2, written by hand so that a suite owns every byte of them.
//!
//! Layout as in the record batch of Kafka's message format: base offset, length, partition leader
//! epoch, magic, CRC-32C over everything from the attributes on, attributes, last offset delta, two
//! timestamps, producer id, producer epoch, base sequence, record count, records.

use bytes::{BufMut, Bytes, BytesMut};

/// Length of a batch's header: everything before its first record, in bytes.
pub const HEADER_LEN: usize = 61;
/// Where the CRC lies; it covers all bytes from [`CRC_FROM`] to the end.
pub const CRC_AT: usize = 17;
/// Where the bytes that the CRC covers begin (the attributes).
pub const CRC_FROM: usize = 21;
/// Where the producer id lies (i64), followed by the epoch (i16) and the base sequence (i32).
pub const PRODUCER_ID_AT: usize = 43;

/// One record: key and value, no headers.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// `None` is a null key.
    pub key: Option<Bytes>,
    /// `None` is a null value.
    pub value: Option<Bytes>,
}

impl Record {
    /// A record without key.
    pub fn value(value: impl Into<Bytes>) -> Self {
        Self {
            key: None,
            value: Some(value.into()),
        }
    }
}

/// An uncompressed batch to build; the defaults are those of a producer without idempotence.
#[derive(Debug, Clone)]
pub struct BatchSpec {
    /// -1: none.
    pub producer_id: i64,
    /// -1: none.
    pub producer_epoch: i16,
    /// -1: none.
    pub base_sequence: i32,
    /// Bits: 0-2 compression, 3 log append time, 4 transactional, 5 control.
    pub attributes: i16,
    /// Timestamp of every record, in milliseconds since the epoch.
    pub timestamp_ms: i64,
    /// The records, with offset deltas 0, 1, 2, ...
    pub records: Vec<Record>,
}

impl Default for BatchSpec {
    fn default() -> Self {
        Self {
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            attributes: 0,
            timestamp_ms: 1_700_000_000_000,
            records: Vec::new(),
        }
    }
}

impl BatchSpec {
    /// The batch as it goes into a Produce request, with base offset 0 and a true CRC.
    pub fn build(&self) -> Bytes {
        let mut batch = BytesMut::with_capacity(HEADER_LEN + self.records.len() * 64);
        let count = i32::try_from(self.records.len()).unwrap_or(i32::MAX);
        batch.put_i64(0);
        batch.put_i32(0);
        batch.put_i32(-1);
        batch.put_i8(2);
        batch.put_u32(0);
        batch.put_i16(self.attributes);
        batch.put_i32(count - 1);
        batch.put_i64(self.timestamp_ms);
        batch.put_i64(self.timestamp_ms);
        batch.put_i64(self.producer_id);
        batch.put_i16(self.producer_epoch);
        batch.put_i32(self.base_sequence);
        batch.put_i32(count);
        for (delta, record) in (0_i64..).zip(&self.records) {
            put_record(&mut batch, delta, record);
        }
        seal(&mut batch);
        batch.freeze()
    }
}

/// Writes the length field and the CRC of a batch whose other bytes are final. Batches shorter
/// than a header are left alone.
pub fn seal(batch: &mut [u8]) {
    if batch.len() < HEADER_LEN {
        return;
    }
    let len = i32::try_from(batch.len() - 12).unwrap_or(i32::MAX);
    batch[8..12].copy_from_slice(&len.to_be_bytes());
    let crc = crc32c::crc32c(&batch[CRC_FROM..]);
    batch[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
}

fn put_record(batch: &mut BytesMut, offset_delta: i64, record: &Record) {
    let mut body = BytesMut::new();
    body.put_i8(0);
    put_varint(&mut body, 0);
    put_varint(&mut body, offset_delta);
    put_bytes(&mut body, record.key.as_ref());
    put_bytes(&mut body, record.value.as_ref());
    put_varint(&mut body, 0);
    put_varint(batch, i64::try_from(body.len()).unwrap_or(i64::MAX));
    batch.put_slice(&body);
}

fn put_bytes(out: &mut BytesMut, bytes: Option<&Bytes>) {
    match bytes {
        None => put_varint(out, -1),
        Some(bytes) => {
            put_varint(out, i64::try_from(bytes.len()).unwrap_or(i64::MAX));
            out.put_slice(bytes);
        }
    }
}

/// Appends a zigzag varint.
pub fn put_varint(out: &mut BytesMut, value: i64) {
    let mut zigzag = (value << 1).cast_unsigned() ^ (value >> 63).cast_unsigned();
    while zigzag >= 0x80 {
        out.put_u8(zigzag.to_le_bytes()[0] | 0x80);
        zigzag >>= 7;
    }
    out.put_u8(zigzag.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use kafka_protocol::records::RecordBatchDecoder;

    use super::*;

    #[test]
    fn the_crates_decoder_reads_back_what_was_built() {
        let spec = BatchSpec {
            producer_id: 7,
            producer_epoch: 3,
            base_sequence: 2_147_483_647,
            records: (0..300).map(|i| Record::value(vec![b'x'; i])).collect(),
            ..BatchSpec::default()
        };
        let mut bytes = spec.build();
        let set = RecordBatchDecoder::decode(&mut bytes).unwrap();
        assert!(bytes.is_empty());
        assert_eq!(set.records.len(), 300);
        assert!(
            set.records
                .iter()
                .all(|r| r.producer_id == 7 && r.producer_epoch == 3)
        );
        assert_eq!(set.records[299].offset, 299);
        assert_eq!(set.records[299].value.as_ref().map(Bytes::len), Some(299));
    }

    #[test]
    fn varints_of_both_signs_and_many_lengths() {
        for (value, expected) in [
            (0, &[0][..]),
            (-1, &[1]),
            (1, &[2]),
            (64, &[0x80, 1]),
            (-65, &[0x81, 1]),
        ] {
            let mut out = BytesMut::new();
            put_varint(&mut out, value);
            assert_eq!(&out[..], expected, "{value}");
        }
    }
}

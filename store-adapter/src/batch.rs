//! A checked view of one v2 record batch (`DefaultRecordBatch` of Kafka). Never decompresses.

use bytes::{BufMut, Bytes, BytesMut};

use crate::ids::{LeaderEpoch, ProducerEpoch, ProducerId, Sequence};

/// Bytes of the fixed part, before the first record.
pub const HEADER_LEN: usize = 61;
/// Bytes before the part that `batchLength` counts: base offset and the length itself.
pub const LOG_OVERHEAD: usize = 12;

const CRC_AT: usize = 17;
const CRC_START: usize = 21;
const ATTRIBUTE_TIMESTAMP_TYPE: i16 = 0x08;
const ATTRIBUTE_TRANSACTIONAL: i16 = 0x10;
const ATTRIBUTE_CONTROL: i16 = 0x20;
const ATTRIBUTE_DELETE_HORIZON: i16 = 0x40;

/// Why bytes are not one whole v2 batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Fewer bytes than a batch header, or than the batch says.
    #[error("truncated batch")]
    Truncated,
    /// The length field is below what a batch can have.
    #[error("batch length {0}")]
    BadLength(i32),
    /// Not magic 2.
    #[error("magic {0}")]
    Magic(i8),
    /// The CRC-32C over attributes to end does not match.
    #[error("CRC mismatch")]
    Crc,
}

/// The fixed fields of a batch header, read once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// First offset.
    pub base_offset: i64,
    /// Bytes behind this field.
    pub batch_length: i32,
    /// Partition leader epoch, outside the CRC.
    pub leader_epoch: i32,
    /// 2 for every batch that is stored.
    pub magic: i8,
    /// CRC-32C of everything from the attributes on.
    pub crc: u32,
    /// Bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon.
    pub attributes: i16,
    /// Last offset minus base offset.
    pub last_offset_delta: i32,
    /// Timestamp of the first record, ms.
    pub base_timestamp: i64,
    /// Largest timestamp, ms.
    pub max_timestamp: i64,
    /// Producer id, -1 for none.
    pub producer_id: ProducerId,
    /// Producer epoch, -1 for none.
    pub producer_epoch: ProducerEpoch,
    /// Sequence of the first record, -1 for none.
    pub base_sequence: Sequence,
    /// Records in the batch.
    pub records_count: i32,
}

impl BatchHeader {
    /// Reads the header; checks only that [`HEADER_LEN`] bytes are there.
    pub fn read(bytes: &[u8]) -> Result<Self, BatchError> {
        let header: &[u8; HEADER_LEN] = bytes
            .first_chunk::<HEADER_LEN>()
            .ok_or(BatchError::Truncated)?;
        Ok(Self {
            base_offset: i64::from_be_bytes(array(header, 0)),
            batch_length: i32::from_be_bytes(array(header, 8)),
            leader_epoch: i32::from_be_bytes(array(header, 12)),
            magic: i8::from_be_bytes(array(header, 16)),
            crc: u32::from_be_bytes(array(header, 17)),
            attributes: i16::from_be_bytes(array(header, 21)),
            last_offset_delta: i32::from_be_bytes(array(header, 23)),
            base_timestamp: i64::from_be_bytes(array(header, 27)),
            max_timestamp: i64::from_be_bytes(array(header, 35)),
            producer_id: ProducerId(i64::from_be_bytes(array(header, 43))),
            producer_epoch: ProducerEpoch(i16::from_be_bytes(array(header, 51))),
            base_sequence: Sequence(i32::from_be_bytes(array(header, 53))),
            records_count: i32::from_be_bytes(array(header, 57)),
        })
    }

    /// The fixed part as it stands in a batch.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        let mut rest = &mut out[..];
        rest.put_i64(self.base_offset);
        rest.put_i32(self.batch_length);
        rest.put_i32(self.leader_epoch);
        rest.put_i8(self.magic);
        rest.put_u32(self.crc);
        rest.put_i16(self.attributes);
        rest.put_i32(self.last_offset_delta);
        rest.put_i64(self.base_timestamp);
        rest.put_i64(self.max_timestamp);
        rest.put_i64(self.producer_id.0);
        rest.put_i16(self.producer_epoch.0);
        rest.put_i32(self.base_sequence.0);
        rest.put_i32(self.records_count);
        out
    }

    /// Offset of the last record.
    pub fn last_offset(&self) -> i64 {
        self.base_offset
            .saturating_add(i64::from(self.last_offset_delta))
    }

    /// Sequence of the last record, wrapped; -1 without a producer's sequence.
    pub fn last_sequence(&self) -> Sequence {
        if self.base_sequence.0 < 0 {
            return Sequence(-1);
        }
        self.base_sequence.plus(self.last_offset_delta)
    }

    /// Compression codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5 to 7 are not defined.
    pub fn compression(&self) -> u8 {
        self.attributes.to_be_bytes()[1] & 0x07
    }

    /// Whether the batch belongs to a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes & ATTRIBUTE_TRANSACTIONAL != 0
    }

    /// Whether the batch holds a control record (a marker).
    pub fn is_control(&self) -> bool {
        self.attributes & ATTRIBUTE_CONTROL != 0
    }

    /// Whether a record of the batch has a timestamp of at least `timestamp_ms`.
    pub fn reaches(&self, timestamp_ms: i64) -> bool {
        self.records_count > 0 && self.max_timestamp >= timestamp_ms
    }

    /// Whether timestamps were set by the log (LogAppendTime).
    pub fn is_log_append_time(&self) -> bool {
        self.attributes & ATTRIBUTE_TIMESTAMP_TYPE != 0
    }

    /// When the tombstones of the batch, or the marker that it is, may go, ms: compaction saw them
    /// so long before that every reader had `delete.retention.ms` from then on. It stands in place
    /// of the base timestamp, from which the records' timestamps count on.
    pub fn delete_horizon(&self) -> Option<i64> {
        (self.attributes & ATTRIBUTE_DELETE_HORIZON != 0).then_some(self.base_timestamp)
    }

    /// The attributes with a delete horizon.
    pub(crate) fn attributes_with_horizon(&self) -> i16 {
        self.attributes | ATTRIBUTE_DELETE_HORIZON
    }

    /// The attributes of a batch without records.
    pub(crate) fn attributes_without_records(&self) -> i16 {
        let kept = ATTRIBUTE_TIMESTAMP_TYPE | ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL;
        self.attributes & kept
    }

    /// Bytes of the whole batch, header included; `None` when the length field is not sane.
    pub fn total_len(&self) -> Option<usize> {
        usize::try_from(self.batch_length)
            .ok()?
            .checked_add(LOG_OVERHEAD)
    }
}

fn array<const N: usize>(bytes: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// One whole v2 batch whose length, magic and CRC were checked. Owns its bytes; a clone shares
/// them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    header: BatchHeader,
    bytes: Bytes,
}

impl Batch {
    /// Checks that `bytes` is exactly one v2 batch with a right CRC.
    pub fn parse(bytes: Bytes) -> Result<Self, BatchError> {
        let header = BatchHeader::read(&bytes)?;
        if header.magic != 2 {
            return Err(BatchError::Magic(header.magic));
        }
        match header.total_len() {
            Some(len) if len < HEADER_LEN => {
                return Err(BatchError::BadLength(header.batch_length));
            }
            Some(len) if len == bytes.len() => {}
            Some(len) if len > bytes.len() => return Err(BatchError::Truncated),
            _ => return Err(BatchError::BadLength(header.batch_length)),
        }
        if crc32c::crc32c(&bytes[CRC_START..]) != header.crc {
            return Err(BatchError::Crc);
        }
        Ok(Self { header, bytes })
    }

    /// A batch of `header` and `records`, whose bytes must be fewer than 2^31 together. Length,
    /// magic and CRC are set here.
    pub fn assemble(mut header: BatchHeader, records: &[u8]) -> Self {
        let len = HEADER_LEN - LOG_OVERHEAD + records.len();
        header.batch_length = i32::try_from(len).unwrap_or(i32::MAX);
        header.magic = 2;
        let mut bytes = BytesMut::with_capacity(HEADER_LEN + records.len());
        bytes.put_slice(&header.to_bytes());
        bytes.put_slice(records);
        header.crc = crc32c::crc32c(&bytes[CRC_START..]);
        bytes[CRC_AT..CRC_START].copy_from_slice(&header.crc.to_be_bytes());
        Self {
            header,
            bytes: bytes.freeze(),
        }
    }

    /// The fixed fields.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The batch as it was given.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// This batch at its place in a log. The two stamped fields lie outside the CRC, so the
    /// records are shared, not copied.
    pub fn stamp(&self, base_offset: i64, epoch: LeaderEpoch) -> StampedBatch {
        let mut header = self.header;
        header.base_offset = base_offset;
        header.leader_epoch = i32::try_from(epoch.0).unwrap_or(i32::MAX);
        StampedBatch {
            header,
            head: header.to_bytes(),
            records: self.bytes.slice(HEADER_LEN..),
        }
    }

    /// This batch with LogAppendTime: bit 3 set, the largest timestamp `now_ms`, a new CRC.
    /// Copies the batch.
    pub fn with_log_append_time(&self, now_ms: i64) -> Self {
        let attributes = self.header.attributes | ATTRIBUTE_TIMESTAMP_TYPE;
        self.restamped(attributes, now_ms)
    }

    /// This batch with CreateTime: bit 3 clear, `max_timestamp` as given, a new CRC. Copies the
    /// batch, unless nothing changes.
    pub fn with_create_time(&self, max_timestamp: i64) -> Self {
        let attributes = self.header.attributes & !ATTRIBUTE_TIMESTAMP_TYPE;
        self.restamped(attributes, max_timestamp)
    }

    fn restamped(&self, attributes: i16, max_timestamp: i64) -> Self {
        if attributes == self.header.attributes && max_timestamp == self.header.max_timestamp {
            return self.clone();
        }
        let header = BatchHeader {
            attributes,
            max_timestamp,
            ..self.header
        };
        Self::assemble(header, &self.bytes[HEADER_LEN..])
    }
}

/// A batch with its offset and leader epoch, ready to be appended: a small header of its own and
/// the records shared with whatever they were read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StampedBatch {
    header: BatchHeader,
    head: [u8; HEADER_LEN],
    records: Bytes,
}

impl StampedBatch {
    /// The fixed fields, as stamped.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The stamped fixed part.
    pub fn head(&self) -> &[u8; HEADER_LEN] {
        &self.head
    }

    /// Everything behind the fixed part.
    pub fn records(&self) -> &Bytes {
        &self.records
    }

    /// Bytes of the whole batch.
    pub fn total_len(&self) -> usize {
        HEADER_LEN + self.records.len()
    }

    /// The whole batch in one piece; copies.
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.total_len());
        bytes.put_slice(&self.head);
        bytes.put_slice(&self.records);
        bytes.freeze()
    }
}

#[cfg(test)]
mod tests;

//! Markers: the control batch that ends a transaction on a partition (`EndTransactionMarker`).

use bytes::{BufMut, BytesMut};

use crate::batch::{Batch, BatchHeader, HEADER_LEN};
use crate::ids::{ProducerEpoch, ProducerId, Sequence};
use crate::records::Records;

/// Record header that names the transaction by its number: 8 bytes, big endian. Clients read only
/// the key of a control record.
pub const TXN_SEQ_HEADER: &[u8] = b"fp-txn-seq";

const RECORD_LEN_MAX: usize = 37;
/// Transactional and control, uncompressed.
const ATTRIBUTES: i16 = 0x30;
const KEY_LEN: u8 = 4;
const VALUE_LEN: u8 = 6;
const TYPE_ABORT: i16 = 0;
const TYPE_COMMIT: i16 = 1;

/// The end of a transaction on a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndTxnMarker {
    /// Commit, or abort.
    pub commit: bool,
    /// Epoch of the coordinator that decided.
    pub coordinator_epoch: i32,
    /// Number of the transaction within its transactional id; `None` in markers of other systems.
    pub txn_seq: Option<u64>,
}

impl EndTxnMarker {
    /// The control batch: 78 bytes, as Kafka writes it, and 20 more with a transaction number.
    /// Its base offset and leader epoch are for [`Batch::stamp`].
    pub fn to_batch(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        now_ms: i64,
    ) -> Batch {
        let header = BatchHeader {
            base_offset: 0,
            batch_length: 0,
            leader_epoch: 0,
            magic: 2,
            crc: 0,
            attributes: ATTRIBUTES,
            last_offset_delta: 0,
            base_timestamp: now_ms,
            max_timestamp: now_ms,
            producer_id,
            producer_epoch,
            base_sequence: Sequence(-1),
            records_count: 1,
        };
        let mut record = BytesMut::with_capacity(RECORD_LEN_MAX);
        self.put_record(&mut record);
        Batch::assemble(header, &record)
    }

    /// Every varint here is below 64: one byte, twice the number.
    fn put_record(self, bytes: &mut BytesMut) {
        let headers_len = if self.txn_seq.is_some() { 20 } else { 0 };
        bytes.put_u8(2 * (16 + headers_len));
        bytes.put_slice(&[0, 0, 0]); // attributes, timestamp delta, offset delta
        bytes.put_u8(2 * KEY_LEN);
        bytes.put_i16(0); // version
        bytes.put_i16(if self.commit { TYPE_COMMIT } else { TYPE_ABORT });
        bytes.put_u8(2 * VALUE_LEN);
        bytes.put_i16(0); // version
        bytes.put_i32(self.coordinator_epoch);
        match self.txn_seq {
            None => bytes.put_u8(0),
            Some(txn_seq) => {
                bytes.put_slice(&[2, 20]); // one header, key of ten bytes
                bytes.put_slice(TXN_SEQ_HEADER);
                bytes.put_u8(16);
                bytes.put_u64(txn_seq);
            }
        }
    }

    /// Reads a stored batch. `None` for data, for control records that are no marker, and for
    /// bytes that are no batch. Newer versions of key and value only add fields.
    pub fn read(batch: &[u8]) -> Option<Self> {
        let header = BatchHeader::read(batch).ok()?;
        if !header.is_control() {
            return None;
        }
        let mut records = Records::new(&header, batch.get(HEADER_LEN..)?).ok()?;
        let record = records.next()?.ok()?;
        let [v0, v1, t0, t1] = *record.key?.first_chunk::<4>()?;
        let commit = match i16::from_be_bytes([t0, t1]) {
            TYPE_ABORT => false,
            TYPE_COMMIT => true,
            _ => return None,
        };
        let [w0, w1, epoch @ ..] = *record.value?.first_chunk::<6>()?;
        if i16::from_be_bytes([v0, v1]) < 0 || i16::from_be_bytes([w0, w1]) < 0 {
            return None;
        }
        let numbered = record.headers().find(|(key, _)| *key == TXN_SEQ_HEADER);
        let txn_seq =
            numbered.and_then(|(_, value)| Some(u64::from_be_bytes(value?.try_into().ok()?)));
        Some(Self {
            commit,
            coordinator_epoch: i32::from_be_bytes(epoch),
            txn_seq,
        })
    }
}

#[cfg(test)]
mod tests;

//! Reads the control record of a marker: `EndTransactionMarker` of Kafka, and the record header by
//! which a marker of ours names its transaction.

use super::MarkerInfo;

/// Key of the record header that holds the transaction's number, 8 bytes big endian.
pub const TXN_SEQ_HEADER: &[u8] = b"fp-txn-seq";

/// Record headers that are looked through.
const HEADERS_MAX: i32 = 16;

impl MarkerInfo {
    /// Reads the first record of a control batch; `records` is what follows the batch header. A
    /// control batch is never compressed. `None` for control records that are no marker, and for
    /// bytes that are no record. Newer versions of key and value only add fields.
    pub fn read(records: &[u8]) -> Option<Self> {
        let mut input = Input(records);
        let mut record = Input(input.bytes()?);
        record.take(1)?; // attributes
        record.varint()?; // timestamp delta
        record.varint()?; // offset delta
        let mut key = Input(record.bytes()?);
        let mut value = Input(record.bytes()?);
        if key.i16()? < 0 {
            return None;
        }
        let commit = match key.i16()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        if value.i16()? < 0 {
            return None;
        }
        Some(Self {
            commit,
            coordinator_epoch: value.i32()?,
            txn_seq: txn_seq(&mut record),
        })
    }
}

fn txn_seq(record: &mut Input<'_>) -> Option<u64> {
    let count = i32::try_from(record.varint()?).ok()?;
    for _ in 0..count.min(HEADERS_MAX) {
        let key = record.bytes()?;
        let value = record.bytes()?;
        if key == TXN_SEQ_HEADER {
            return value.try_into().ok().map(u64::from_be_bytes);
        }
    }
    None
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn i16(&mut self) -> Option<i16> {
        self.take(2)?.try_into().ok().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take(4)?.try_into().ok().map(i32::from_be_bytes)
    }

    /// A zigzag varint of at most ten bytes.
    fn varint(&mut self) -> Option<i64> {
        let mut raw = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = *self.take(1)?.first()?;
            raw |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed());
            }
        }
        None
    }

    /// Bytes behind their length; null reads as none.
    fn bytes(&mut self) -> Option<&'a [u8]> {
        match self.varint()? {
            -1 => Some(&[]),
            len => self.take(usize::try_from(len).ok()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// COMMIT at coordinator epoch 7, as Apache Kafka writes it: 17 bytes.
    const KAFKA: [u8; 17] = [0x20, 0, 0, 0, 0x08, 0, 0, 0, 1, 0x0c, 0, 0, 0, 0, 0, 7, 0];

    /// ABORT at coordinator epoch 258 of transaction 5, with another header before.
    fn ours() -> Vec<u8> {
        let mut record = vec![0, 0, 0, 0x08, 0, 0, 0, 0, 0x0c, 0, 0, 0, 0, 1, 2, 0x04];
        record.extend([0x02, b'x', 0x01]);
        record.push(0x14);
        record.extend(b"fp-txn-seq");
        record.extend([0x10, 0, 0, 0, 0, 0, 0, 0, 5]);
        record.insert(0, u8::try_from(record.len() * 2).unwrap());
        record
    }

    #[test]
    fn reads_kafkas_and_ours() {
        let kafka = MarkerInfo {
            commit: true,
            coordinator_epoch: 7,
            txn_seq: None,
        };
        assert_eq!(MarkerInfo::read(&KAFKA), Some(kafka));
        let abort = MarkerInfo {
            commit: false,
            coordinator_epoch: 258,
            txn_seq: Some(5),
        };
        assert_eq!(MarkerInfo::read(&ours()), Some(abort));
    }

    #[test]
    fn other_control_records_and_broken_ones_are_no_marker() {
        for (at, byte) in [
            (8, 2),
            (7, 1),
            (5, 0x80),
            (10, 0x80),
            (4, 0x01),
            (4, 0x7e),
            (0, 0x7e),
        ] {
            let mut record = KAFKA;
            record[at] = byte;
            assert_eq!(MarkerInfo::read(&record), None, "{at}: {byte}");
        }
        let whole = ours();
        for len in 0..whole.len() {
            assert_eq!(MarkerInfo::read(&whole[..len]), None, "{len}");
        }
        assert_eq!(MarkerInfo::read(&[0xff; 40]), None);
    }

    #[test]
    fn a_header_that_is_no_number_names_no_transaction() {
        let mut record = ours();
        let at = record.len() - 9;
        record[at] = 0x0e;
        assert_eq!(MarkerInfo::read(&record).unwrap().txn_seq, None);
    }
}

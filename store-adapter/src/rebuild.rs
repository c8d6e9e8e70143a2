//! Batches that have lost records to compaction. What is left keeps its offsets, its timestamps and
//! its producer's sequence numbers: the header's range stays, and gaps show in the records alone.

use bytes::{Bytes, BytesMut};

use crate::batch::{Batch, BatchError, BatchHeader, HEADER_LEN};
use crate::compression::{UNPACKED_MAX, UnpackError, pack, unpack};
use crate::ids::{ProducerEpoch, ProducerId, Sequence};
use crate::records::{Record, RecordError, Records};

const NO_TIMESTAMP: i64 = -1;

/// Why a batch can't be taken apart.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RebuildError {
    /// Not a batch.
    #[error("{0}")]
    Batch(#[from] BatchError),
    /// Its records can't be unpacked.
    #[error("{0}")]
    Unpack(#[from] UnpackError),
    /// A record does not decode.
    #[error("{0}")]
    Record(#[from] RecordError),
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rebuilt {
    /// Nothing has to change.
    Same,
    /// No record is left.
    Nothing,
    /// The batch as it is now.
    Batch(Bytes),
}

/// Goes through the records of a batch.
///
/// # Errors
/// If it can't be taken apart; `look` may have seen some of its records.
pub fn each(batch: &Bytes, mut look: impl FnMut(&Record<'_>)) -> Result<(), RebuildError> {
    let header = BatchHeader::read(batch)?;
    let records = unpack(&header, &batch.slice(HEADER_LEN..), UNPACKED_MAX)?;
    for record in Records::unpacked(&header, &records)? {
        look(&record?);
    }
    Ok(())
}

/// The batch with the records that `keep` wants, packed as it was; with a delete horizon, in ms, if
/// it is to get one.
///
/// # Errors
/// If it can't be taken apart.
pub fn rebuild(
    batch: &Bytes,
    horizon: Option<i64>,
    mut keep: impl FnMut(&Record<'_>) -> bool,
) -> Result<Rebuilt, RebuildError> {
    let header = BatchHeader::read(batch)?;
    let records = unpack(&header, &batch.slice(HEADER_LEN..), UNPACKED_MAX)?;
    let base_timestamp = horizon.unwrap_or(header.base_timestamp);
    let earlier = header.base_timestamp.wrapping_sub(base_timestamp);
    let mut out = BytesMut::with_capacity(records.len());
    let (mut count, mut latest) = (0_i32, NO_TIMESTAMP);
    for record in Records::unpacked(&header, &records)? {
        let record = record?;
        if keep(&record) {
            count += 1;
            latest = latest.max(record.timestamp);
            record.put(earlier, &mut out);
        }
    }
    if count == 0 {
        return Ok(Rebuilt::Nothing);
    }
    if count == header.records_count && horizon.is_none() {
        return Ok(Rebuilt::Same);
    }
    let append_time = header.is_log_append_time();
    let kept = BatchHeader {
        attributes: match horizon {
            Some(_) => header.attributes_with_horizon(),
            None => header.attributes,
        },
        base_timestamp,
        max_timestamp: if append_time {
            header.max_timestamp
        } else {
            latest
        },
        records_count: count,
        ..header
    };
    let packed = pack(header.compression(), out.freeze())?;
    Ok(Rebuilt::Batch(
        Batch::assemble(kept, &packed).bytes().clone(),
    ))
}

/// The batch without records: its offsets, its producer and its sequence numbers stay.
pub fn hollow(header: &BatchHeader) -> Bytes {
    let kept = BatchHeader {
        attributes: header.attributes_without_records(),
        base_timestamp: NO_TIMESTAMP,
        records_count: 0,
        ..*header
    };
    Batch::assemble(kept, &[]).bytes().clone()
}

/// A batch of nobody and without records, in place of one that is gone: its offsets stay.
pub fn filler(header: &BatchHeader) -> Bytes {
    let kept = BatchHeader {
        attributes: 0,
        base_timestamp: NO_TIMESTAMP,
        max_timestamp: NO_TIMESTAMP,
        producer_id: ProducerId(-1),
        producer_epoch: ProducerEpoch(-1),
        base_sequence: Sequence(-1),
        records_count: 0,
        ..*header
    };
    Batch::assemble(kept, &[]).bytes().clone()
}

/// Whether it is such a batch.
pub(crate) fn is_filler(header: &BatchHeader) -> bool {
    header.records_count == 0 && header.producer_id == ProducerId(-1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples::{batch, header};

    /// Offsets, timestamps, keys and headers of what a batch holds.
    fn shown(batch: &Bytes) -> Vec<(i32, i64, Option<Vec<u8>>, usize)> {
        let mut all = Vec::new();
        each(batch, |record| {
            let key = record.key.map(<[u8]>::to_vec);
            all.push((
                record.offset_delta,
                record.timestamp,
                key,
                record.headers().count(),
            ));
        })
        .unwrap();
        all
    }

    fn packed(codec: u8, count: i32) -> Bytes {
        let plain = batch(count);
        let records = pack(codec, plain.bytes().slice(HEADER_LEN..)).unwrap();
        let head = BatchHeader {
            base_offset: 1000,
            attributes: i16::from(codec),
            producer_id: ProducerId(7),
            producer_epoch: ProducerEpoch(3),
            base_sequence: Sequence(40),
            ..header(count)
        };
        Batch::assemble(head, &records).bytes().clone()
    }

    #[test]
    fn what_is_kept_stays_where_it_was() {
        for codec in 0..5 {
            let whole = packed(codec, 10);
            let all = shown(&whole);
            let kept = rebuild(&whole, None, |record| record.offset_delta % 3 == 0).unwrap();
            let Rebuilt::Batch(kept) = kept else {
                panic!("{kept:?}");
            };
            // Right in length and CRC.
            let kept = Batch::parse(kept).unwrap();
            let before = BatchHeader::read(&whole).unwrap();
            let after = *kept.header();
            assert_eq!(after.records_count, 4);
            assert_eq!(
                BatchHeader {
                    crc: 0,
                    batch_length: 0,
                    records_count: 0,
                    ..after
                },
                BatchHeader {
                    crc: 0,
                    batch_length: 0,
                    records_count: 0,
                    ..before
                },
            );
            let left: Vec<_> = all.iter().filter(|r| r.0 % 3 == 0).cloned().collect();
            assert_eq!(shown(kept.bytes()), left);
        }
        let whole = packed(0, 3);
        assert_eq!(rebuild(&whole, None, |_| true), Ok(Rebuilt::Same));
        assert_eq!(rebuild(&whole, None, |_| false), Ok(Rebuilt::Nothing));
    }

    #[test]
    fn batches_without_records_keep_their_range() {
        let whole = BatchHeader::read(&packed(1, 10)).unwrap();
        let head = BatchHeader {
            attributes: 0x11,
            ..whole
        };
        let empty = Batch::parse(hollow(&head)).unwrap();
        assert_eq!(empty.bytes().len(), HEADER_LEN);
        assert_eq!(empty.header().attributes, 0x10);
        assert_eq!(empty.header().last_offset(), 1009);
        assert_eq!(empty.header().last_sequence(), Sequence(49));
        assert_eq!(empty.header().records_count, 0);
        let nobody = Batch::parse(filler(&head)).unwrap();
        assert_eq!(nobody.header().attributes, 0);
        assert_eq!(nobody.header().producer_id, ProducerId(-1));
        assert_eq!(nobody.header().last_offset(), 1009);
        assert_eq!(filler(nobody.header()), *nobody.bytes());
    }

    proptest! {
        #[test]
        fn a_horizon_moves_no_timestamp(horizon: i64, codec in 0_u8..5, count in 1_i32..9) {
            let whole = packed(codec, count);
            let Rebuilt::Batch(with) = rebuild(&whole, Some(horizon), |_| true).unwrap() else {
                panic!("not rebuilt");
            };
            let with = Batch::parse(with).unwrap();
            prop_assert_eq!(with.header().delete_horizon(), Some(horizon));
            prop_assert_eq!(shown(with.bytes()), shown(&whole));
            let again = rebuild(with.bytes(), None, |record| record.offset_delta == 0).unwrap();
            if let Rebuilt::Batch(again) = again {
                let header = BatchHeader::read(&again).unwrap();
                prop_assert_eq!(header.delete_horizon(), Some(horizon));
                prop_assert_eq!(&shown(&again)[..], &shown(&whole)[..1]);
            }
        }
    }
}

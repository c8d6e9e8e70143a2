//! Answers parsed in place: only what a run judges by, nothing allocated.
//!
//! Versions are those the generator sends: Produce 11 and Fetch 12, both flexible.

use anyhow::{Context, Result, bail};
use kafka_protocol::error::ResponseError;

use crate::raw::batch::{CRC_AT, CRC_FROM, HEADER_LEN};

/// A cursor over a frame that is wholly here.
#[derive(Debug)]
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .0
            .split_at_checked(len)
            .context("the answer is cut short")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self
            .0
            .split_first_chunk::<N>()
            .context("the answer is cut short")?;
        self.0 = rest;
        Ok(*taken)
    }

    fn i16(&mut self) -> Result<i16> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    fn varint(&mut self) -> Result<usize> {
        let mut value = 0;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.array()?;
            value |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        bail!("a varint of more than five bytes")
    }

    /// Length of a compact array, string or bytes; null counts as empty.
    fn compact_len(&mut self) -> Result<usize> {
        Ok(self.varint()?.saturating_sub(1))
    }

    fn compact_bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.compact_len()?;
        self.take(len)
    }

    fn skip_tags(&mut self) -> Result<()> {
        for _ in 0..self.varint()? {
            self.varint()?;
            let len = self.varint()?;
            self.take(len)?;
        }
        Ok(())
    }

    /// The end of a frame: nothing may be left.
    fn finish(mut self) -> Result<()> {
        self.skip_tags()?;
        if !self.0.is_empty() {
            bail!("{} bytes behind the answer", self.0.len());
        }
        Ok(())
    }
}

/// Correlation id of a frame's body.
pub(super) fn correlation_id(frame: &[u8]) -> Result<i32> {
    Cursor(frame).i32()
}

/// Checks the answer to a Produce request: every one of its `batches` must be a success.
pub(super) fn check_produce(frame: &[u8], batches: usize) -> Result<()> {
    let mut at = Cursor(frame);
    at.i32()?;
    at.skip_tags()?;
    let mut answered = 0;
    for _ in 0..at.compact_len()? {
        at.compact_bytes()?;
        for _ in 0..at.compact_len()? {
            let partition = at.i32()?;
            let code = at.i16()?;
            let (_base_offset, _append_time, _log_start) = (at.i64()?, at.i64()?, at.i64()?);
            for _ in 0..at.compact_len()? {
                at.i32()?;
                at.compact_bytes()?;
            }
            let message = at.compact_bytes()?;
            at.skip_tags()?;
            refuse(code, partition, message)?;
            answered += 1;
        }
        at.skip_tags()?;
    }
    at.i32()?;
    at.finish()?;
    if answered != batches {
        bail!("a Produce of {batches} batches was answered for {answered}");
    }
    Ok(())
}

/// Calls `each` with every partition of a Fetch answer and its record bytes.
pub(super) fn each_fetched<'a>(
    frame: &'a [u8],
    mut each: impl FnMut(i32, &'a [u8]) -> Result<()>,
) -> Result<()> {
    let mut at = Cursor(frame);
    at.i32()?;
    at.skip_tags()?;
    at.i32()?;
    refuse(at.i16()?, -1, b"")?;
    at.i32()?;
    for _ in 0..at.compact_len()? {
        at.compact_bytes()?;
        for _ in 0..at.compact_len()? {
            let partition = at.i32()?;
            refuse(at.i16()?, partition, b"")?;
            let (_high_watermark, _last_stable, _log_start) = (at.i64()?, at.i64()?, at.i64()?);
            for _ in 0..at.compact_len()? {
                at.take(16)?;
                at.skip_tags()?;
            }
            at.i32()?;
            let records = at.compact_bytes()?;
            at.skip_tags()?;
            each(partition, records)?;
        }
        at.skip_tags()?;
    }
    at.finish()
}

fn refuse(code: i16, partition: i32, message: &[u8]) -> Result<()> {
    let Some(error) = ResponseError::try_from_code(code) else {
        return Ok(());
    };
    let message = String::from_utf8_lossy(message);
    bail!("partition {partition} answered {code} ({error:?}) {message}")
}

/// What a run of fetched batches held.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Walked {
    /// Bytes of whole batches.
    pub(super) bytes: u64,
    /// Offsets from the one asked for to the end of the last whole batch.
    pub(super) records: u64,
    /// Whole batches.
    pub(super) batches: u64,
    /// Offset to fetch next.
    pub(super) next_offset: i64,
}

/// Walks the batches of one partition from `wanted`, the offset that was asked for. They must be
/// contiguous and the first must contain `wanted`; a last one that is cut off is left out.
pub(super) fn walk(records: &[u8], wanted: i64, verify: bool) -> Result<Walked> {
    let mut walked = Walked {
        next_offset: wanted,
        ..Walked::default()
    };
    let mut rest = records;
    while rest.len() >= HEADER_LEN {
        let mut header = Cursor(rest);
        let base = header.i64()?;
        let len = usize::try_from(header.i32()?).context("negative batch length")? + 12;
        if len < HEADER_LEN {
            bail!("a batch of {len} bytes at offset {base}");
        }
        let Some((batch, behind)) = rest.split_at_checked(len) else {
            break;
        };
        header.take(CRC_AT - 12)?;
        let crc = header.array::<4>()?;
        header.i16()?;
        let last = base + i64::from(header.i32()?);
        let next = walked.next_offset;
        let fits = if walked.batches == 0 {
            base <= next && next <= last
        } else {
            base == next
        };
        if !fits {
            bail!("wanted offset {next}, got a batch of {base} to {last}");
        }
        if verify && crc32c::crc32c(&batch[CRC_FROM..]) != u32::from_be_bytes(crc) {
            bail!("the batch at offset {base} has a false CRC");
        }
        walked.bytes += len as u64;
        walked.batches += 1;
        walked.next_offset = last + 1;
        rest = behind;
    }
    walked.records = (walked.next_offset - wanted).unsigned_abs();
    Ok(walked)
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use kafka_protocol::messages::fetch_response::{
        AbortedTransaction, FetchableTopicResponse, PartitionData,
    };
    use kafka_protocol::messages::produce_response::{
        PartitionProduceResponse, TopicProduceResponse,
    };
    use kafka_protocol::messages::{FetchResponse, ProduceResponse, ResponseHeader};
    use kafka_protocol::protocol::{Encodable, StrBytes};

    use super::*;
    use crate::raw::batch::{BatchSpec, Record};

    fn frame(body: &impl Encodable, version: i16) -> Bytes {
        let mut out = BytesMut::new();
        ResponseHeader::default()
            .with_correlation_id(42)
            .encode(&mut out, 1)
            .unwrap();
        body.encode(&mut out, version).unwrap();
        out.freeze()
    }

    fn produced(codes: &[i16]) -> Bytes {
        let partitions = codes.iter().map(|&code| {
            PartitionProduceResponse::default()
                .with_error_code(code)
                .with_error_message(Some(StrBytes::from_static_str("because")))
        });
        let topic = TopicProduceResponse::default().with_partition_responses(partitions.collect());
        frame(&ProduceResponse::default().with_responses(vec![topic]), 11)
    }

    #[test]
    fn a_produce_answer_is_a_success_only_if_every_batch_is() {
        assert_eq!(correlation_id(&produced(&[0])).unwrap(), 42);
        check_produce(&produced(&[0, 0]), 2).unwrap();
        let why = check_produce(&produced(&[0, 45]), 2)
            .unwrap_err()
            .to_string();
        assert!(
            why.contains("45 (OutOfOrderSequenceNumber) because"),
            "{why}"
        );
        assert!(check_produce(&produced(&[0]), 2).is_err());
        let whole = produced(&[0, 0]);
        for len in 0..whole.len() {
            assert!(check_produce(&whole[..len], 2).is_err(), "cut at {len}");
        }
    }

    fn batch(base: i64, records: usize) -> Vec<u8> {
        let records = vec![Record::value("value"); records];
        let mut bytes = BatchSpec {
            records,
            ..BatchSpec::default()
        }
        .build()
        .to_vec();
        bytes[..8].copy_from_slice(&base.to_be_bytes());
        bytes
    }

    fn fetched(code: i16, records: Vec<u8>) -> Bytes {
        let partition = PartitionData::default()
            .with_partition_index(3)
            .with_error_code(code)
            .with_aborted_transactions(Some(vec![AbortedTransaction::default()]))
            .with_records(Some(records.into()));
        let empty = PartitionData::default()
            .with_partition_index(4)
            .with_records(None);
        let topic = FetchableTopicResponse::default().with_partitions(vec![partition, empty]);
        frame(&FetchResponse::default().with_responses(vec![topic]), 12)
    }

    #[test]
    fn a_fetch_answer_gives_the_records_of_each_partition() {
        let records = batch(0, 2);
        let mut seen = Vec::new();
        each_fetched(&fetched(0, records.clone()), |partition, bytes| {
            seen.push((partition, bytes.len()));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [(3, records.len()), (4, 0)]);
        assert!(each_fetched(&fetched(1, records), |_, _| Ok(())).is_err());
    }

    #[test]
    fn a_walk_demands_contiguous_batches_and_ignores_a_torn_end() {
        let mut log = batch(10, 5);
        log.extend(batch(15, 2));
        let whole = log.len() as u64;
        log.extend(&batch(17, 3)[..70]);
        let walked = walk(&log, 12, true).unwrap();
        let expected = Walked {
            bytes: whole,
            records: 5,
            batches: 2,
            next_offset: 17,
        };
        assert_eq!(walked, expected);
        assert!(
            walk(&log, 9, true).is_err(),
            "begins behind what was asked for"
        );
        assert!(
            walk(&log, 15, true).is_err(),
            "ends before what was asked for"
        );
        let mut gap = batch(10, 5);
        gap.extend(batch(16, 1));
        assert!(walk(&gap, 10, true).is_err());
        let mut damaged = batch(10, 5);
        damaged[70] ^= 1;
        assert!(walk(&damaged, 10, false).is_ok());
        assert!(walk(&damaged, 10, true).is_err());
    }
}

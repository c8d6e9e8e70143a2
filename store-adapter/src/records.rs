//! The records of a batch, one after the other, in place: no allocation, nothing copied. Those of a
//! compressed batch are unpacked first (`compression`). Checks what Kafka's `DefaultRecord` checks
//! when it reads a record.

use bytes::{BufMut, Bytes, BytesMut};

use crate::batch::{BatchHeader, HEADER_LEN};
use crate::compression::{UNPACKED_MAX, unpack};

/// Fewest bytes of a record: length, attributes, two deltas, two lengths, header count.
const RECORD_MIN: usize = 7;

/// Most bytes of a varint of 64 bits.
const VARLONG_MAX: usize = 10;

/// What is wrong with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// The batch is compressed: its records are not looked at.
    #[error("the batch is compressed")]
    Compressed,
    /// The count of the batch header is negative, or more than its bytes can hold.
    #[error("record count {0} does not fit the batch")]
    Count(i32),
    /// The record's length is negative or goes beyond the batch.
    #[error("record length does not fit the batch")]
    Length,
    /// A field goes beyond the record.
    #[error("field does not fit the record")]
    Field,
    /// A varint of too many bytes.
    #[error("varint is too long")]
    Varint,
    /// The number of headers is negative or more than the record can hold.
    #[error("header count does not fit the record")]
    HeaderCount,
    /// A header without key.
    #[error("header key is null")]
    HeaderKey,
    /// Bytes that belong to no field, in the record or behind the last record.
    #[error("bytes are left over")]
    LeftOver,
}

/// A fault and the record that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("record {index}: {fault}")]
pub struct RecordError {
    /// Index of the record in its batch, from 0.
    pub index: i32,
    /// What is wrong.
    pub fault: RecordFault,
}

/// One record, pointing into its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Offset minus the batch's base offset.
    pub offset_delta: i32,
    /// Timestamp, ms: the batch's append time if the log sets timestamps.
    pub timestamp: i64,
    /// Key; `None` is null.
    pub key: Option<&'a [u8]>,
    /// Value; `None` is null.
    pub value: Option<&'a [u8]>,
    headers_count: i32,
    headers: &'a [u8],
    /// Timestamp minus the batch's base timestamp.
    timestamp_delta: i64,
    /// The whole record, its length included.
    whole: &'a [u8],
    /// Everything behind the timestamp.
    rest: &'a [u8],
}

impl<'a> Record<'a> {
    /// Appends the record as it stands in its batch, but for a timestamp that counts from a base
    /// `earlier` ms before the batch's own.
    pub(crate) fn put(&self, earlier: i64, out: &mut BytesMut) {
        if earlier == 0 {
            out.put_slice(self.whole);
            return;
        }
        let mut timestamp = BytesMut::with_capacity(VARLONG_MAX);
        put_varlong(self.timestamp_delta.wrapping_add(earlier), &mut timestamp);
        let len = 1 + timestamp.len() + self.rest.len();
        put_varlong(i64::try_from(len).unwrap_or(i64::MAX), out);
        out.put_u8(0); // attributes: no bit is used
        out.put_slice(&timestamp);
        out.put_slice(self.rest);
    }

    /// The headers in order, duplicates included: key and value. Keys are bytes as sent.
    pub fn headers(&self) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + use<'a> {
        let mut input = Input(self.headers);
        // Read once before: neither step fails.
        (0..self.headers_count).map_while(move |_| {
            let key = input.header_key().ok()?;
            let value = input.nullable().ok()?;
            Some((key, value))
        })
    }
}

/// The records of a batch. Yields as many as the header counts, or an error and then nothing; an
/// error too if bytes are left over behind the last one.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    input: Input<'a>,
    index: i32,
    count: i32,
    base_timestamp: i64,
    append_time: Option<i64>,
}

impl<'a> Records<'a> {
    /// Over the records of a batch; `records` is everything behind its header.
    pub fn new(header: &BatchHeader, records: &'a [u8]) -> Result<Self, RecordError> {
        if header.compression() != 0 {
            let fault = RecordFault::Compressed;
            return Err(RecordError { index: 0, fault });
        }
        Self::unpacked(header, records)
    }

    /// Over the records of a batch, unpacked if it is compressed.
    pub fn unpacked(header: &BatchHeader, records: &'a [u8]) -> Result<Self, RecordError> {
        let refuse = |fault| Err(RecordError { index: 0, fault });
        let count = header.records_count;
        let fits = usize::try_from(count).is_ok_and(|count| count <= records.len() / RECORD_MIN);
        if !fits {
            return refuse(RecordFault::Count(count));
        }
        Ok(Self {
            input: Input(records),
            index: 0,
            count,
            base_timestamp: header.base_timestamp,
            append_time: header.is_log_append_time().then_some(header.max_timestamp),
        })
    }

    fn record(&mut self) -> Result<Record<'a>, RecordFault> {
        let before = self.input.0;
        let length = self.input.varint()?;
        let length = usize::try_from(length).map_err(|_| RecordFault::Length)?;
        let mut input = Input(self.input.take(length).map_err(|_| RecordFault::Length)?);
        let whole = before.len() - self.input.0.len();
        let whole = before.get(..whole).unwrap_or_default();
        input.take(1)?; // attributes: no bit is used
        let timestamp_delta = input.varlong()?;
        let rest = input.0;
        let offset_delta = input.varint()?;
        let key = input.nullable()?;
        let value = input.nullable()?;
        let headers_count = input.varint()?;
        let headers = input.0;
        input.headers(headers_count)?;
        if !input.0.is_empty() {
            return Err(RecordFault::LeftOver);
        }
        // Wraps, as it does for every client that reads it.
        let timestamp = self.base_timestamp.wrapping_add(timestamp_delta);
        Ok(Record {
            offset_delta,
            timestamp: self.append_time.unwrap_or(timestamp),
            key,
            value,
            headers_count,
            headers,
            timestamp_delta,
            whole,
            rest,
        })
    }

    fn stop(&mut self) {
        self.index = self.count;
        self.input = Input(&[]);
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, RecordError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let index = self.index;
        let outcome = if index < self.count {
            self.index += 1;
            self.record()
        } else if self.input.0.is_empty() {
            return None;
        } else {
            Err(RecordFault::LeftOver)
        };
        if outcome.is_err() {
            self.stop();
        }
        Some(outcome.map_err(|fault| RecordError { index, fault }))
    }
}

/// Offset and timestamp of the first record from offset `from` on whose timestamp is at least
/// `timestamp_ms`, in a batch as it is stored; `None` if there is none.
///
/// Of a compressed batch that can't be unpacked only the first record's and the largest timestamp
/// are known: if the record lies behind the first, the answer is the batch's first offset, or
/// `from`, which is not past it.
pub fn first_at_or_after(batch: &Bytes, timestamp_ms: i64, from: i64) -> Option<(i64, i64)> {
    let header = BatchHeader::read(batch).ok()?;
    if header.max_timestamp < timestamp_ms && header.compression() != 0 {
        return None;
    }
    let reaches = |(_, timestamp): &(i64, i64)| *timestamp >= timestamp_ms;
    if let Some(known) = all_alike(&header, from) {
        return known.filter(reaches);
    }
    let Some(records) = unpacked(&header, batch) else {
        let first_fits = header.base_timestamp >= timestamp_ms && from <= header.base_offset;
        let timestamp = if first_fits {
            header.base_timestamp
        } else {
            header.max_timestamp
        };
        return Some((header.base_offset.max(from), timestamp));
    };
    let mut places = places(&header, &records, from)?;
    places.find(reaches)
}

/// Offset and timestamp of the first record from offset `from` on that has the largest timestamp
/// of those, in a batch as it is stored; `None` if there is none. A compressed batch that can't be
/// unpacked is taken at its word.
pub fn first_of_largest(batch: &Bytes, from: i64) -> Option<(i64, i64)> {
    let header = BatchHeader::read(batch).ok()?;
    if let Some(known) = all_alike(&header, from) {
        return known;
    }
    let Some(records) = unpacked(&header, batch) else {
        return Some((header.base_offset.max(from), header.max_timestamp));
    };
    let places = places(&header, &records, from)?;
    places.reduce(|best, place| if place.1 > best.1 { place } else { best })
}

/// Where every record has the same timestamp, the first from `from` on, if there is one.
#[allow(
    clippy::option_option,
    reason = "whether they are alike, and whether there is one"
)]
fn all_alike(header: &BatchHeader, from: i64) -> Option<Option<(i64, i64)>> {
    let last = header
        .base_offset
        .saturating_add(header.last_offset_delta.into());
    let place = (header.base_offset.max(from), header.max_timestamp);
    header
        .is_log_append_time()
        .then(|| (from <= last).then_some(place))
}

fn unpacked(header: &BatchHeader, batch: &Bytes) -> Option<Bytes> {
    unpack(header, &batch.slice(HEADER_LEN..), UNPACKED_MAX).ok()
}

/// Offsets and timestamps of the records from `from` on.
fn places<'a>(
    header: &BatchHeader,
    records: &'a [u8],
    from: i64,
) -> Option<impl Iterator<Item = (i64, i64)> + use<'a>> {
    let base = header.base_offset;
    let records = Records::unpacked(header, records).ok()?;
    let place = move |record: Record<'_>| {
        let offset = base.saturating_add(record.offset_delta.into());
        (offset, record.timestamp)
    };
    let all = records.map_while(Result::ok).map(place);
    Some(all.filter(move |(offset, _)| *offset >= from))
}

/// A zigzag varint of 64 bits, which those of 32 are too.
fn put_varlong(value: i64, out: &mut BytesMut) {
    let mut zigzag = (value << 1).cast_unsigned() ^ (value >> 63).cast_unsigned();
    while zigzag >= 0x80 {
        out.put_u8(zigzag.to_le_bytes()[0] | 0x80);
        zigzag >>= 7;
    }
    out.put_u8(zigzag.to_le_bytes()[0]);
}

/// What is left of the bytes.
#[derive(Debug, Clone, Copy)]
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], RecordFault> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(RecordFault::Field)?;
        self.0 = rest;
        Ok(taken)
    }

    /// An unsigned varint of at most `bytes_max` bytes.
    #[inline]
    fn unsigned(&mut self, bytes_max: usize) -> Result<u64, RecordFault> {
        let mut value = 0_u64;
        for (index, byte) in self.0.iter().take(bytes_max).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if *byte < 0x80 {
                self.0 = self.0.get(index + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        Err(if self.0.len() < bytes_max {
            RecordFault::Field
        } else {
            RecordFault::Varint
        })
    }

    /// A zigzag varint of 32 bits; higher bits are dropped, as Kafka does.
    #[inline]
    fn varint(&mut self) -> Result<i32, RecordFault> {
        #[allow(clippy::cast_possible_truncation, reason = "higher bits are dropped")]
        let value = self.unsigned(5)? as u32;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// A zigzag varint of 64 bits.
    #[inline]
    fn varlong(&mut self) -> Result<i64, RecordFault> {
        let value = self.unsigned(10)?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Bytes behind their length; any negative length is null.
    #[inline]
    fn nullable(&mut self) -> Result<Option<&'a [u8]>, RecordFault> {
        match usize::try_from(self.varint()?) {
            Ok(len) => self.take(len).map(Some),
            Err(_) => Ok(None),
        }
    }

    fn header_key(&mut self) -> Result<&'a [u8], RecordFault> {
        let len = usize::try_from(self.varint()?).map_err(|_| RecordFault::HeaderKey)?;
        self.take(len)
    }

    fn headers(&mut self, count: i32) -> Result<(), RecordFault> {
        let fits = usize::try_from(count).is_ok_and(|count| count <= self.0.len() / 2);
        if !fits {
            return Err(RecordFault::HeaderCount);
        }
        for _ in 0..count {
            self.header_key()?;
            self.nullable()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

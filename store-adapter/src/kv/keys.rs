//! Keys and values of a shard's tree.
//!
//! Numbers are big endian, so that keys sort as what they name does. Every value but a batch's
//! pieces ends with the CRC-32C of its key and itself; a batch's own is in its entry.
//!
//! | key | value |
//! |---|---|
//! | `r` | number of the last round |
//! | `c` topic, partition | the log: name, birth, bounds, epochs, bytes |
//! | `b` birth, base offset | a batch: last offset, times, length, bytes before it, CRC-32C |
//! | `d` birth, base offset, piece | a part of a batch |
//! | `x` birth | a log that was deleted and is not swept yet |
//!
//! A birth is the number of a log's creation: what is left of a deleted log is never taken for a
//! younger log of the same id.

use std::sync::Arc;

use bytes::{Buf, BufMut};

use super::state::Entry;
use crate::ids::{LeaderEpoch, LogId};
use crate::store::Bounds;

/// Most bytes of a value that is written; earlier versions wrote up to 64 KiB. sled keeps leaves
/// of up to 17 values in memory, a few in each of 256 parts of its cache, whatever size that was
/// told to have: with small values they are little.
pub(super) const PIECE_BYTES: usize = 4 << 10;
/// The key of the round's number.
pub(super) const ROUND_KEY: &[u8] = b"r";
/// Letter of the keys of logs.
pub(super) const LOGS: u8 = b'c';
/// Letter of the keys of batches.
pub(super) const BATCHES: u8 = b'b';
/// Letter of the keys of deleted logs.
pub(super) const DELETED: u8 = b'x';

/// What is kept of a batch beside its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meta {
    /// Last offset.
    pub(super) last: i64,
    /// Time of the append, ms.
    pub(super) append_ms: i64,
    /// Largest timestamp of its records, ms.
    pub(super) max_timestamp: i64,
    /// Bytes.
    pub(super) len: u32,
    /// Bytes of the log's batches before it, from its creation on; as they were appended.
    pub(super) before: u64,
    /// CRC-32C of the bytes.
    pub(super) crc: u32,
}

impl Meta {
    /// How many pieces the batch is cut into, at most.
    pub(super) fn pieces(&self) -> u32 {
        pieces(self.len)
    }

    /// The value for `key`.
    pub(super) fn encode(&self, key: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(44);
        out.put_i64(self.last);
        out.put_i64(self.append_ms);
        out.put_i64(self.max_timestamp);
        out.put_u32(self.len);
        out.put_u64(self.before);
        out.put_u32(self.crc);
        sealed(key, out)
    }

    /// What the value of `key` says; `None` where it is damaged.
    pub(super) fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let mut body = opened(key, value)?;
        let meta = Self {
            last: body.try_get_i64().ok()?,
            append_ms: body.try_get_i64().ok()?,
            max_timestamp: body.try_get_i64().ok()?,
            len: body.try_get_u32().ok()?,
            before: body.try_get_u64().ok()?,
            crc: body.try_get_u32().ok()?,
        };
        body.is_empty().then_some(meta)
    }
}

/// How many pieces a batch of so many bytes is cut into, at most.
pub(super) fn pieces(len: u32) -> u32 {
    let pieces = (len as usize).div_ceil(PIECE_BYTES);
    u32::try_from(pieces).unwrap_or(u32::MAX)
}

/// The key of a log.
pub(super) fn log_key(log: LogId) -> Vec<u8> {
    let mut key = vec![LOGS];
    key.put_slice(log.topic.as_bytes());
    key.put_u32(log.partition);
    key
}

/// The log of a key.
pub(super) fn log_of(key: &[u8]) -> Option<LogId> {
    let (topic, mut rest) = key.strip_prefix(&[LOGS])?.split_first_chunk::<16>()?;
    let partition = rest.try_get_u32().ok()?;
    let topic = uuid::Uuid::from_bytes(*topic);
    rest.is_empty().then_some(LogId { topic, partition })
}

/// The value of a log's key.
pub(super) fn encode_log(key: &[u8], entry: &Entry) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + entry.name.len());
    out.put_u64(entry.birth);
    out.put_i64(entry.bounds.start);
    out.put_i64(entry.bounds.end);
    for epoch in [entry.epoch, entry.last_epoch] {
        out.put_u8(u8::from(epoch.is_some()));
        out.put_u32(epoch.map_or(0, |epoch| epoch.0));
    }
    out.put_u64(entry.before);
    out.put_u64(entry.total);
    out.put_slice(entry.name.as_bytes());
    sealed(key, out)
}

/// What the value of a log's key says; `None` where it is damaged.
pub(super) fn decode_log(key: &[u8], value: &[u8]) -> Option<Entry> {
    let mut body = opened(key, value)?;
    let birth = body.try_get_u64().ok()?;
    let start = body.try_get_i64().ok()?;
    let end = body.try_get_i64().ok()?;
    let mut epoch = || {
        let held = body.try_get_u8().ok()?;
        let epoch = LeaderEpoch(body.try_get_u32().ok()?);
        Some((held == 1).then_some(epoch))
    };
    let (held, last) = (epoch()?, epoch()?);
    Some(Entry {
        birth,
        bounds: Bounds { start, end },
        epoch: held,
        last_epoch: last,
        before: body.try_get_u64().ok()?,
        total: body.try_get_u64().ok()?,
        gone: 0,
        name: Arc::from(std::str::from_utf8(body).ok()?),
    })
}

/// The keys of a log's batches start with it.
pub(super) fn batch_prefix(birth: u64) -> Vec<u8> {
    let mut key = vec![BATCHES];
    key.put_u64(birth);
    key
}

/// The key of a batch.
pub(super) fn batch_key(birth: u64, base: i64) -> Vec<u8> {
    let mut key = batch_prefix(birth);
    key.put_i64(base);
    key
}

/// Birth and base offset of a batch's key.
pub(super) fn batch_of(key: &[u8]) -> Option<(u64, i64)> {
    let mut rest = key.strip_prefix(&[BATCHES])?;
    let of = (rest.try_get_u64().ok()?, rest.try_get_i64().ok()?);
    rest.is_empty().then_some(of)
}

/// The key of a piece of a batch.
pub(super) fn piece_key(birth: u64, base: i64, piece: u32) -> Vec<u8> {
    let mut key = vec![b'd'];
    key.put_u64(birth);
    key.put_i64(base);
    key.put_u32(piece);
    key
}

/// The key of a deleted log.
pub(super) fn deleted_key(birth: u64) -> Vec<u8> {
    let mut key = vec![DELETED];
    key.put_u64(birth);
    key
}

/// The birth of a deleted log's key.
pub(super) fn deleted_of(key: &[u8]) -> Option<u64> {
    let mut rest = key.strip_prefix(&[DELETED])?;
    let birth = rest.try_get_u64().ok()?;
    rest.is_empty().then_some(birth)
}

/// The value of the round's key.
pub(super) fn encode_round(round: u64) -> Vec<u8> {
    sealed(ROUND_KEY, round.to_be_bytes().to_vec())
}

/// What the round's key says; `None` where it is damaged.
pub(super) fn decode_round(value: &[u8]) -> Option<u64> {
    let body = opened(ROUND_KEY, value)?;
    Some(u64::from_be_bytes(body.try_into().ok()?))
}

/// Ends a value with its checksum, which the key is part of.
pub(super) fn sealed(key: &[u8], mut value: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c_append(crc32c::crc32c(key), &value);
    value.put_u32(crc);
    value
}

/// The value without its checksum, if that is right.
pub(super) fn opened<'a>(key: &[u8], value: &'a [u8]) -> Option<&'a [u8]> {
    let (body, crc) = value.split_last_chunk::<4>()?;
    let found = crc32c::crc32c_append(crc32c::crc32c(key), body);
    (u32::from_be_bytes(*crc) == found).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn what_is_written_is_read_and_a_flipped_bit_is_not() {
        let log = LogId {
            topic: Uuid::from_u128(7),
            partition: 3,
        };
        let entry = Entry {
            name: Arc::from("orders"),
            birth: 9,
            bounds: Bounds { start: 4, end: 12 },
            epoch: Some(LeaderEpoch(2)),
            last_epoch: None,
            before: 400,
            total: 1200,
            gone: 0,
        };
        let key = log_key(log);
        assert_eq!(log_of(&key), Some(log));
        let value = encode_log(&key, &entry);
        assert_eq!(decode_log(&key, &value).as_ref(), Some(&entry));
        let meta = Meta {
            last: 5,
            append_ms: 6,
            max_timestamp: -1,
            len: 4_097,
            before: 8,
            crc: 9,
        };
        assert_eq!(meta.pieces(), 2);
        let batch = batch_key(9, 4);
        assert_eq!(batch_of(&batch), Some((9, 4)));
        let sealed = meta.encode(&batch);
        assert_eq!(Meta::decode(&batch, &sealed), Some(meta));
        assert_eq!(Meta::decode(&batch_key(9, 5), &sealed), None);
        assert_eq!(decode_round(&encode_round(77)), Some(77));
        assert_eq!(deleted_of(&deleted_key(9)), Some(9));
        for bit in 0..8 * value.len() {
            let mut damaged = value.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_log(&key, &damaged), None, "{bit}");
        }
    }
}

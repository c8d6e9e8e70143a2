//! Payloads of commit and checkpoint frames.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use uuid::Uuid;

use crate::ids::{LeaderEpoch, LogId};

/// The payload of a commit frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Round {
    /// CRC-32C of the checksums of the round's frames.
    pub(crate) crc: u32,
    /// The logs of the round with their end offset, in order of their ids.
    pub(crate) ends: Vec<(LogId, i64)>,
}

impl Round {
    /// The payload's bytes.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(4 + self.ends.len() * 28);
        out.put_u32(self.crc);
        for (log, end) in &self.ends {
            put_log(&mut out, *log);
            out.put_i64(*end);
        }
        out.freeze()
    }

    /// Reads the payload.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let crc = bytes.try_get_u32().ok()?;
        if !bytes.len().is_multiple_of(28) {
            return None;
        }
        let mut ends = Vec::with_capacity(bytes.len() / 28);
        while !bytes.is_empty() {
            ends.push((get_log(&mut bytes)?, bytes.try_get_i64().ok()?));
        }
        Some(Self { crc, ends })
    }
}

/// A log in the catalogue of a checkpoint: topic id, partition, lsn of its creation, start, end,
/// leader epoch held and of the last batch (-1 for none, 8 bytes each), 1 if it is damaged
/// (1 byte), length of the name (2 bytes), name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CatalogueEntry {
    /// The log.
    pub(crate) log: LogId,
    /// Lsn of the frame that created it; what lies before belongs to an older log of that id.
    pub(crate) birth: u64,
    /// First offset.
    pub(crate) start: i64,
    /// End offset.
    pub(crate) end: i64,
    /// The epoch that holds it.
    pub(crate) epoch: Option<LeaderEpoch>,
    /// The epoch of its last batch.
    pub(crate) last_epoch: Option<LeaderEpoch>,
    /// Whether it was found damaged.
    pub(crate) damaged: bool,
    /// The topic's name.
    pub(crate) name: String,
}

impl CatalogueEntry {
    /// Appends the entry to `out`.
    pub(crate) fn encode(&self, out: &mut BytesMut) {
        put_log(out, self.log);
        out.put_u64(self.birth);
        out.put_i64(self.start);
        out.put_i64(self.end);
        out.put_i64(self.epoch.map_or(-1, |epoch| i64::from(epoch.0)));
        out.put_i64(self.last_epoch.map_or(-1, |epoch| i64::from(epoch.0)));
        out.put_u8(u8::from(self.damaged));
        let name = self.name.as_bytes();
        let len = u16::try_from(name.len()).unwrap_or(u16::MAX);
        out.put_u16(len);
        out.put_slice(&name[..usize::from(len)]);
    }

    /// Reads one entry and moves `bytes` behind it.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let log = get_log(bytes)?;
        let birth = bytes.try_get_u64().ok()?;
        let start = bytes.try_get_i64().ok()?;
        let end = bytes.try_get_i64().ok()?;
        let epoch = get_epoch(bytes).ok()?;
        let last_epoch = get_epoch(bytes).ok()?;
        let damaged = bytes.try_get_u8().ok()? != 0;
        let len = usize::from(bytes.try_get_u16().ok()?);
        let (name, rest) = bytes.split_at_checked(len)?;
        *bytes = rest;
        Some(Self {
            log,
            birth,
            start,
            end,
            epoch,
            last_epoch,
            damaged,
            name: std::str::from_utf8(name).ok()?.to_owned(),
        })
    }
}

/// An epoch, -1 for none; `Err` for what is neither.
fn get_epoch(bytes: &mut &[u8]) -> Result<Option<LeaderEpoch>, ()> {
    match bytes.try_get_i64().map_err(drop)? {
        -1 => Ok(None),
        epoch => Ok(Some(LeaderEpoch(u32::try_from(epoch).map_err(drop)?))),
    }
}

/// Writes a log id: topic id, partition.
pub(crate) fn put_log(out: &mut BytesMut, log: LogId) {
    out.put_slice(log.topic.as_bytes());
    out.put_u32(log.partition);
}

/// Reads a log id.
pub(crate) fn get_log(bytes: &mut &[u8]) -> Option<LogId> {
    Some(LogId {
        topic: Uuid::from_u128(bytes.try_get_u128().ok()?),
        partition: bytes.try_get_u32().ok()?,
    })
}

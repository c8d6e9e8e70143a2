//! The byte layout of the journal, and the only code that reads or writes it.
//!
//! All numbers are big endian. A file is a header of 64 bytes, then *rounds*, then, when the
//! file was closed in order, a footer. A round is a run of frames closed by a commit frame; it
//! counts as a whole or not at all.
//!
//! File header:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `FENCEPJ1` |
//! | 8 | 4 | format version, 1; a file with a newer one is refused and not touched |
//! | 12 | 4 | shard |
//! | 16 | 4 | owner epoch, assignment part |
//! | 20 | 8 | owner epoch, instance part |
//! | 28 | 8 | sequence number of the file within the owner epoch |
//! | 36 | 8 | lsn of position 0: data bytes of all files before this one |
//! | 44 | 8 | data length of the file before this one in the same epoch; 0 for the first |
//! | 52 | 8 | zero |
//! | 60 | 4 | CRC-32C of bytes 0 to 59 |
//!
//! Frame header, 64 bytes, payload behind it:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 4 | checksum, see below |
//! | 4 | 4 | length of the frame, header included; 0 where the file ends |
//! | 8 | 1 | kind: 1 append, 2 create, 3 delete, 4 fence, 5 trim, 6 checkpoint, 7 commit, 8 footer |
//! | 9 | 3 | zero |
//! | 12 | 4 | leader epoch (append, fence, trim) |
//! | 16 | 16 | topic id |
//! | 32 | 4 | partition |
//! | 36 | 8 | append: base offset; fence: end offset; trim: new start; commit: position where the round starts; checkpoint: index of the part |
//! | 44 | 4 | append: last offset minus base offset; commit: frames before it in the round; checkpoint: parts that follow |
//! | 48 | 8 | append: largest timestamp, ms |
//! | 56 | 8 | append: time of the append, ms since the Unix epoch |
//!
//! Payloads: append, the record batch as stamped; create, the topic's name in UTF-8; commit, the
//! CRC-32C of the checksums of the round's frames (4 bytes), then per log of the round topic id,
//! partition and end offset (28 bytes); checkpoint, the catalogue ([`CatalogueEntry`]); footer,
//! the index of the file (`extents.rs`).
//!
//! The checksum is a CRC-32C that starts with the identity of the file (shard, owner epoch,
//! sequence) and the position of the frame, so that a frame is valid nowhere else. It goes on
//! over the header from byte 4 and over the payload; of a batch only the first 21 bytes, because
//! byte 17 to 20 of them are the batch's own CRC-32C, which covers the rest. Each byte is so
//! covered once, and nothing is summed twice on the way in.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use uuid::Uuid;

use crate::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};

/// Bytes of a file header, and the position of the first frame.
pub(crate) const FILE_HEADER_LEN: usize = 64;
/// Bytes of a frame header.
pub(crate) const FRAME_HEADER_LEN: usize = 64;
/// The format that this code writes, and the newest that it reads.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Bytes of a batch that the checksum of its frame covers.
pub(crate) const BATCH_PREFIX_LEN: usize = 21;
/// Largest payload of a frame that is neither a batch nor a footer, bytes.
pub(crate) const CONTROL_PAYLOAD_MAX: usize = 4 << 20;

const MAGIC: &[u8; 8] = b"FENCEPJ1";

/// One journal file: its place in the order of the shard's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId {
    /// The shard.
    pub(crate) shard: ShardId,
    /// The owner that wrote it.
    pub(crate) epoch: OwnerEpoch,
    /// Number within the epoch.
    pub(crate) seq: u64,
}

impl FileId {
    /// `<assignment>.<instance>-<seq>.log`.
    pub(crate) fn name(self) -> String {
        format!("{}-{}.log", self.epoch, self.seq)
    }

    /// Reads a name; `None` for anything that is not exactly what [`FileId::name`] gives.
    pub(crate) fn from_name(shard: ShardId, name: &str) -> Option<Self> {
        let (epoch, seq) = name.strip_suffix(".log")?.split_once('-')?;
        let id = Self {
            shard,
            epoch: epoch.parse().ok()?,
            seq: seq.parse().ok()?,
        };
        (id.name() == name).then_some(id)
    }

    /// What every checksum of this file starts with.
    pub(crate) fn seed(self) -> Seed {
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&self.shard.0.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.epoch.assignment.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.epoch.instance.to_be_bytes());
        bytes[16..].copy_from_slice(&self.seq.to_be_bytes());
        Seed(crc32c::crc32c(&bytes))
    }
}

/// The start of every checksum of one file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seed(u32);

impl Seed {
    fn at(self, position: u64) -> u32 {
        crc32c::crc32c_append(self.0, &position.to_be_bytes())
    }
}

/// The header of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHeader {
    /// Which file.
    pub(crate) id: FileId,
    /// Log sequence number of position 0.
    pub(crate) first_lsn: u64,
    /// Data length of the file before it in the epoch.
    pub(crate) previous_len: u64,
}

/// Why a file header was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileHeaderError {
    /// Written by a newer version.
    Newer(u32),
    /// Short, torn or damaged.
    Bad,
}

impl FileHeader {
    /// The header's bytes.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(FILE_HEADER_LEN);
        out.put_slice(MAGIC);
        out.put_u32(FORMAT_VERSION);
        out.put_u32(self.id.shard.0);
        out.put_u32(self.id.epoch.assignment);
        out.put_u64(self.id.epoch.instance);
        out.put_u64(self.id.seq);
        out.put_u64(self.first_lsn);
        out.put_u64(self.previous_len);
        out.put_u64(0);
        let crc = crc32c::crc32c(&out);
        out.put_u32(crc);
        out.freeze()
    }

    /// Reads the header of the file `id`.
    pub(crate) fn decode(id: FileId, bytes: &[u8]) -> Result<Self, FileHeaderError> {
        let bytes = bytes.get(..FILE_HEADER_LEN).ok_or(FileHeaderError::Bad)?;
        let (body, mut crc) = bytes.split_at(FILE_HEADER_LEN - 4);
        let mut rest = body.strip_prefix(MAGIC).ok_or(FileHeaderError::Bad)?;
        let version = rest.get_u32();
        if version > FORMAT_VERSION {
            return Err(FileHeaderError::Newer(version));
        }
        if crc.get_u32() != crc32c::crc32c(body) || version != FORMAT_VERSION {
            return Err(FileHeaderError::Bad);
        }
        let found = FileId {
            shard: ShardId(rest.get_u32()),
            epoch: OwnerEpoch {
                assignment: rest.get_u32(),
                instance: rest.get_u64(),
            },
            seq: rest.get_u64(),
        };
        if found != id {
            return Err(FileHeaderError::Bad);
        }
        Ok(Self {
            id,
            first_lsn: rest.get_u64(),
            previous_len: rest.get_u64(),
        })
    }
}

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A batch.
    Append,
    /// A log begins.
    Create,
    /// A log is gone.
    Delete,
    /// A leader epoch was acquired.
    Fence,
    /// The start of a log moved.
    Trim,
    /// A part of the catalogue.
    Checkpoint,
    /// A round ends.
    Commit,
    /// The index of the file.
    Footer,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Self::Append => 1,
            Self::Create => 2,
            Self::Delete => 3,
            Self::Fence => 4,
            Self::Trim => 5,
            Self::Checkpoint => 6,
            Self::Commit => 7,
            Self::Footer => 8,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Append,
            2 => Self::Create,
            3 => Self::Delete,
            4 => Self::Fence,
            5 => Self::Trim,
            6 => Self::Checkpoint,
            7 => Self::Commit,
            8 => Self::Footer,
            _ => return None,
        })
    }
}

/// The fixed part of a frame. The meaning of a field depends on the kind (module text).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// What it says.
    pub(crate) kind: Kind,
    /// Bytes behind the header.
    pub(crate) payload_len: u32,
    /// Leader epoch.
    pub(crate) epoch: LeaderEpoch,
    /// The log.
    pub(crate) log: LogId,
    /// Base offset, end, start or position.
    pub(crate) base: i64,
    /// Last offset minus base offset, or a count.
    pub(crate) last_delta: u32,
    /// Largest timestamp, ms.
    pub(crate) max_timestamp: i64,
    /// Time of the append, ms.
    pub(crate) append_ms: i64,
}

/// The log id of frames that are about no log.
pub(crate) const NO_LOG: LogId = LogId {
    topic: Uuid::nil(),
    partition: 0,
};

impl Frame {
    /// A frame of `kind` about `log` with everything else zero.
    pub(crate) fn new(kind: Kind, log: LogId) -> Self {
        Self {
            kind,
            payload_len: 0,
            epoch: LeaderEpoch(0),
            log,
            base: 0,
            last_delta: 0,
            max_timestamp: 0,
            append_ms: 0,
        }
    }

    /// Bytes of the frame, header included.
    pub(crate) fn len(&self) -> u64 {
        FRAME_HEADER_LEN as u64 + u64::from(self.payload_len)
    }

    /// Last offset of an append.
    pub(crate) fn last(&self) -> i64 {
        self.base.saturating_add(i64::from(self.last_delta))
    }

    /// Bytes of the payload that the frame's checksum covers.
    pub(crate) fn covered_len(&self) -> usize {
        let len = self.payload_len as usize;
        match self.kind {
            Kind::Append => len.min(BATCH_PREFIX_LEN),
            _ => len,
        }
    }

    /// Appends the header to `out`, for a frame at `position`; returns its checksum. `covered` is
    /// the part of the payload that the checksum covers.
    pub(crate) fn encode(
        &self,
        seed: Seed,
        position: u64,
        covered: &[u8],
        out: &mut BytesMut,
    ) -> u32 {
        debug_assert_eq!(covered.len(), self.covered_len());
        let start = out.len();
        out.put_u32(0);
        out.put_u32((FRAME_HEADER_LEN as u32).saturating_add(self.payload_len));
        out.put_u8(self.kind.code());
        out.put_bytes(0, 3);
        out.put_u32(self.epoch.0);
        out.put_slice(self.log.topic.as_bytes());
        out.put_u32(self.log.partition);
        out.put_i64(self.base);
        out.put_u32(self.last_delta);
        out.put_i64(self.max_timestamp);
        out.put_i64(self.append_ms);
        let crc = checksum(seed, position, &out[start + 4..], covered);
        out[start..start + 4].copy_from_slice(&crc.to_be_bytes());
        crc
    }

    /// Reads a header without checking its checksum. `None` when it cannot be one: too short, an
    /// unknown kind, a length that no frame of that kind has.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, u32)> {
        let mut rest = bytes.get(..FRAME_HEADER_LEN)?;
        let crc = rest.get_u32();
        let payload_len = rest.get_u32().checked_sub(FRAME_HEADER_LEN as u32)?;
        let kind = Kind::from_code(rest.get_u8())?;
        let zero = rest.get_uint(3);
        let epoch = LeaderEpoch(rest.get_u32());
        let topic = Uuid::from_u128(rest.get_u128());
        let partition = rest.get_u32();
        let frame = Self {
            kind,
            payload_len,
            epoch,
            log: LogId { topic, partition },
            base: rest.get_i64(),
            last_delta: rest.get_u32(),
            max_timestamp: rest.get_i64(),
            append_ms: rest.get_i64(),
        };
        let fits = match kind {
            Kind::Append => payload_len as usize >= crate::batch::HEADER_LEN,
            Kind::Footer => true,
            _ => payload_len as usize <= CONTROL_PAYLOAD_MAX,
        };
        (fits && zero == 0).then_some((frame, crc))
    }
}

/// The checksum of a frame: `header` from byte 4 on, `covered` of the payload.
pub(crate) fn checksum(seed: Seed, position: u64, header: &[u8], covered: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(seed.at(position), header), covered)
}

/// What a whole frame in memory is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// All of it is right.
    Good(Frame, u32),
    /// The header is right, the batch behind it is not.
    BadBatch(Frame),
    /// Not a frame at this position.
    Bad,
}

/// Checks the frame at the start of `bytes`, which must hold all of it.
pub(crate) fn check(seed: Seed, position: u64, bytes: &[u8]) -> Check {
    let Some((frame, crc)) = Frame::decode(bytes) else {
        return Check::Bad;
    };
    let covered = FRAME_HEADER_LEN + frame.covered_len();
    let Some(covered) = bytes.get(FRAME_HEADER_LEN..covered) else {
        return Check::Bad;
    };
    if checksum(seed, position, &bytes[4..FRAME_HEADER_LEN], covered) != crc {
        return Check::Bad;
    }
    if frame.kind == Kind::Append {
        let end = FRAME_HEADER_LEN + frame.payload_len as usize;
        let batch = bytes.get(FRAME_HEADER_LEN..end);
        if !batch.is_some_and(batch_is_whole) {
            return Check::BadBatch(frame);
        }
    }
    Check::Good(frame, crc)
}

/// Whether `batch` has the CRC that it carries.
fn batch_is_whole(batch: &[u8]) -> bool {
    let Some((prefix, rest)) = batch.split_at_checked(BATCH_PREFIX_LEN) else {
        return false;
    };
    (&prefix[17..]).get_u32() == crc32c::crc32c(rest)
}

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
        let epoch = get_epoch(bytes)?;
        let last_epoch = get_epoch(bytes)?;
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

fn get_epoch(bytes: &mut &[u8]) -> Option<Option<LeaderEpoch>> {
    match bytes.try_get_i64().ok()? {
        -1 => Some(None),
        epoch => Some(Some(LeaderEpoch(u32::try_from(epoch).ok()?))),
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

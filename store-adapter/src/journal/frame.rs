//! The byte layout of the journal. Files are in `file.rs`, payloads in `payload.rs`, frames here.
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
//! | 8 | 4 | format version: 1, or 2 if the file was written anew; newer ones are refused |
//! | 12 | 4 | shard |
//! | 16 | 4 | owner epoch, assignment part |
//! | 20 | 8 | owner epoch, instance part |
//! | 28 | 8 | sequence number of the file within the owner epoch |
//! | 36 | 8 | lsn of position 0: data bytes of all files before this one |
//! | 44 | 8 | data length of the file before this one in the same epoch; 0 for the first |
//! | 52 | 8 | data length before the file was written anew; 0 if it was not |
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
//! partition and end offset (28 bytes); checkpoint, the catalogue (`payload.rs`); footer,
//! the index of the file (`extents.rs`).
//!
//! The checksum is a CRC-32C that starts with the identity of the file (shard, owner epoch,
//! sequence) and the position of the frame, so that a frame is valid nowhere else. It goes on
//! over the header from byte 4 and over the payload; of a batch only the first 21 bytes, because
//! byte 17 to 20 of them are the batch's own CRC-32C, which covers the rest. Each byte is so
//! covered once, and nothing is summed twice on the way in.

use bytes::{Buf, BufMut, BytesMut};
use uuid::Uuid;

use super::file::Seed;
use crate::ids::{LeaderEpoch, LogId};

/// Bytes of a frame header.
pub(crate) const FRAME_HEADER_LEN: usize = 64;
/// The same, as lengths are stored.
pub(crate) const FRAME_HEADER_BYTES: u32 = 64;
/// Bytes of a batch that the checksum of its frame covers.
pub(crate) const BATCH_PREFIX_LEN: usize = 21;
/// Largest payload of a frame that is neither a batch nor a footer, bytes.
pub(crate) const CONTROL_PAYLOAD_MAX: usize = 4 << 20;

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
        out.put_u32(FRAME_HEADER_BYTES.saturating_add(self.payload_len));
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
        let payload_len = rest.get_u32().checked_sub(FRAME_HEADER_BYTES)?;
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

#[cfg(test)]
mod tests {
    use super::super::file::{FileHeader, FileHeaderError, FileId};
    use super::super::payload::{CatalogueEntry, Round};
    use super::*;
    use crate::conformance::batch_of;
    use crate::ids::{OwnerEpoch, ShardId};

    fn file() -> FileId {
        FileId {
            shard: ShardId(3),
            epoch: OwnerEpoch {
                assignment: 4,
                instance: 9,
            },
            seq: 2,
        }
    }

    fn hex(bytes: &[u8]) -> String {
        use std::fmt::Write;
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
    }

    fn append_frame() -> (Frame, Vec<u8>) {
        let batch = batch_of(3, 64, 1_700_000_000_000, 5).stamp(40, LeaderEpoch(6));
        let frame = Frame {
            kind: Kind::Append,
            payload_len: 64,
            epoch: LeaderEpoch(6),
            log: LogId {
                topic: Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
                partition: 7,
            },
            base: 40,
            last_delta: 2,
            max_timestamp: 1_700_000_000_000,
            append_ms: 1_700_000_000_123,
        };
        let mut out = BytesMut::new();
        let prefix = &batch.head()[..BATCH_PREFIX_LEN];
        frame.encode(file().seed(), 4096, prefix, &mut out);
        out.put_slice(&batch.to_bytes());
        (frame, out.to_vec())
    }

    /// The bytes of docs/journal-format.md. A change of them is a new format version.
    #[test]
    fn golden_frame_and_file_header() {
        let (_, bytes) = append_frame();
        let docs = include_str!("../../../docs/journal-format.md");
        let header = FileHeader {
            id: file(),
            first_lsn: 1 << 20,
            previous_len: 777,
            rewritten: None,
            unsynced: false,
        };
        for golden in [hex(&header.encode()), hex(&bytes)] {
            let lines: Vec<&str> = golden
                .as_bytes()
                .chunks(64)
                .map(|line| std::str::from_utf8(line).unwrap())
                .collect();
            let block = lines.join("\n");
            assert!(docs.contains(&block), "not in the docs:\n{block}");
        }
    }

    #[test]
    fn a_frame_is_valid_only_where_it_was_written() {
        let (frame, bytes) = append_frame();
        let seed = file().seed();
        assert!(matches!(check(seed, 4096, &bytes), Check::Good(found, _) if found == frame));
        assert_eq!(check(seed, 4097, &bytes), Check::Bad);
        let other = FileId { seq: 3, ..file() };
        assert_eq!(check(other.seed(), 4096, &bytes), Check::Bad);
    }

    #[test]
    fn every_bit_of_a_frame_is_covered() {
        let (frame, bytes) = append_frame();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let found = check(file().seed(), 4096, &damaged);
            let expected = if bit / 8 >= FRAME_HEADER_LEN + BATCH_PREFIX_LEN {
                Check::BadBatch(frame)
            } else {
                Check::Bad
            };
            assert_eq!(found, expected, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(!matches!(
                check(file().seed(), 4096, &bytes[..len]),
                Check::Good(..)
            ));
        }
    }

    #[test]
    fn file_headers_round_trip_and_say_when_they_are_newer() {
        let header = FileHeader {
            id: file(),
            first_lsn: 5,
            previous_len: 6,
            rewritten: None,
            unsynced: false,
        };
        let bytes = header.encode();
        assert_eq!(FileHeader::decode(file(), &bytes), Ok(header));
        let other = FileId { seq: 9, ..file() };
        let bad = Err(FileHeaderError::Bad);
        assert_eq!(FileHeader::decode(other, &bytes), bad);
        assert_eq!(FileHeader::decode(file(), &bytes[..63]), bad);
        let mut newer = bytes.to_vec();
        newer[11] = 3;
        assert_eq!(
            FileHeader::decode(file(), &newer),
            bad,
            "its checksum is wrong"
        );
        let crc = crc32c::crc32c(&newer[..60]);
        newer[60..].copy_from_slice(&crc.to_be_bytes());
        let found = FileHeader::decode(file(), &newer);
        assert_eq!(found, Err(FileHeaderError::Newer(3)));
        let again = FileHeader {
            rewritten: Some(777),
            ..header
        };
        assert_eq!(FileHeader::decode(file(), &again.encode()), Ok(again));
        let unsynced = FileHeader {
            unsynced: true,
            ..header
        };
        assert_eq!(unsynced.encode()[52..60], 1_u64.to_be_bytes());
        assert_eq!(FileHeader::decode(file(), &unsynced.encode()), Ok(unsynced));
        assert_eq!((header.end_lsn(9), again.end_lsn(9)), (14, 782));
    }

    #[test]
    fn file_names_round_trip() {
        assert_eq!(file().name(), "4.9-2.log");
        let shard = ShardId(3);
        assert_eq!(FileId::from_name(shard, "4.9-2.log"), Some(file()));
        for bad in [
            "4.9-02.log",
            "4-2.log",
            "4.9-2",
            "4.9.log",
            "x.9-2.log",
            "4.9-+2.log",
        ] {
            assert_eq!(FileId::from_name(shard, bad), None, "{bad}");
        }
    }

    #[test]
    fn catalogue_and_commit_payloads_round_trip() {
        let entry = CatalogueEntry {
            log: append_frame().0.log,
            birth: 9,
            start: 1,
            end: 5,
            epoch: Some(LeaderEpoch(3)),
            last_epoch: None,
            damaged: true,
            name: "orders".to_owned(),
        };
        let mut out = BytesMut::new();
        entry.encode(&mut out);
        entry.encode(&mut out);
        let mut bytes = &out[..];
        for _ in 0..2 {
            assert_eq!(CatalogueEntry::decode(&mut bytes).as_ref(), Some(&entry));
        }
        assert_eq!(CatalogueEntry::decode(&mut bytes), None);
        let round = Round {
            crc: 7,
            ends: vec![(entry.log, 5), (NO_LOG, 0)],
        };
        let bytes = round.encode();
        assert_eq!(Round::decode(&bytes), Some(round));
        assert_eq!(Round::decode(&bytes[..31]), None);
    }
}

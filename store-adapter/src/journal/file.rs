//! Journal files: their names, their order, their headers.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::ids::{OwnerEpoch, ShardId};

/// Bytes of a file header, and the position of the first frame.
pub(crate) const FILE_HEADER_LEN: usize = 64;
/// The newest format that this code reads.
pub(crate) const FORMAT_VERSION: u32 = 2;
/// The format of a file that was written in rounds, as they came.
const VERSION_WRITTEN: u32 = 1;
/// The format of a file that was written anew, without what nobody needs any more.
const VERSION_REWRITTEN: u32 = 2;

/// What a file written in rounds has in place of the length before it was written anew, where a
/// round was not durable before the next was written.
const UNSYNCED: u64 = 1;

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
    /// The checksum so far of the frame at `position`.
    pub(crate) fn at(self, position: u64) -> u32 {
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
    /// Of a file that was written anew: its data length before, or that of all files that were
    /// joined in it, by which its lsns are counted. It was whole when it got its name, and nobody
    /// writes to it.
    pub(crate) rewritten: Option<u64>,
    /// Of a file written in rounds: nobody waited for one to be durable before the next was written
    /// (`flush.policy=os`), so a power cut may have taken one and left a later one.
    pub(crate) unsynced: bool,
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
        out.put_u32(match self.rewritten {
            None => VERSION_WRITTEN,
            Some(_) => VERSION_REWRITTEN,
        });
        out.put_u32(self.id.shard.0);
        out.put_u32(self.id.epoch.assignment);
        out.put_u64(self.id.epoch.instance);
        out.put_u64(self.id.seq);
        out.put_u64(self.first_lsn);
        out.put_u64(self.previous_len);
        out.put_u64(self.rewritten.unwrap_or(u64::from(self.unsynced)));
        let crc = crc32c::crc32c(&out);
        out.put_u32(crc);
        out.freeze()
    }

    /// Reads the header of the file `id`.
    pub(crate) fn decode(id: FileId, bytes: &[u8]) -> Result<Self, FileHeaderError> {
        let bytes = bytes.get(..FILE_HEADER_LEN).ok_or(FileHeaderError::Bad)?;
        let (body, mut crc) = bytes.split_at(FILE_HEADER_LEN - 4);
        let mut rest = body.strip_prefix(MAGIC).ok_or(FileHeaderError::Bad)?;
        // First, and in every version at its place: a damaged version is not a newer one, which
        // would close the whole shard.
        if crc.get_u32() != crc32c::crc32c(body) {
            return Err(FileHeaderError::Bad);
        }
        let version = rest.get_u32();
        if version > FORMAT_VERSION {
            return Err(FileHeaderError::Newer(version));
        }
        if version < VERSION_WRITTEN {
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
        let (first_lsn, previous_len) = (rest.get_u64(), rest.get_u64());
        let written = rest.get_u64();
        let rewritten = version == VERSION_REWRITTEN;
        Ok(Self {
            id,
            first_lsn,
            previous_len,
            rewritten: rewritten.then_some(written),
            unsynced: !rewritten && written == UNSYNCED,
        })
    }

    /// Lsn behind the file, whose data ends at `data_end`.
    pub(crate) fn end_lsn(&self, data_end: u64) -> u64 {
        self.first_lsn
            .saturating_add(self.rewritten.unwrap_or(data_end))
    }
}

//! How a journal file is written anew: what of the old one is needed, frame by frame, and the bytes
//! of the new one.

use bytes::{BufMut, Bytes, BytesMut};

use super::extents::{Extent, FileIndex};
use super::file::{FILE_HEADER_LEN, FileHeader, FileId, Seed};
use super::files::{Files, path, read_footer};
use super::frame::{self, BATCH_PREFIX_LEN, Check, FRAME_HEADER_LEN, Frame, Kind, NO_LOG};
use super::payload::Round;
use crate::ids::LogId;
use crate::volume::VolumeError;

/// What of a log has to be kept of a file.
#[derive(Debug)]
pub(super) struct Needed {
    pub(super) log: LogId,
    pub(super) file: FileId,
    pub(super) start: i64,
    pub(super) extents: Vec<Extent>,
}

/// Where the data of a closed file ends.
pub(super) async fn data_len(files: &Files, id: FileId) -> Result<u64, VolumeError> {
    let Some(closed) = files.closed_file(id) else {
        let path = path(id).to_string();
        return Err(VolumeError::NotFound { path });
    };
    if !closed.footer {
        return Ok(closed.len);
    }
    let file = files.handle(id).await?;
    let footer = read_footer(&*file, id, closed.len).await?;
    Ok(footer.map_or(closed.len, |footer| footer.position))
}

/// Takes the frames of a log, in order of offset.
pub(super) trait Taker {
    /// Takes one; `batch` is its payload.
    fn take(&mut self, frame: &Frame, batch: &Bytes);
}

/// Hands over what is needed of one extent. `None` when the extent is not what the index says.
pub(super) fn each_needed(
    bytes: &Bytes,
    extent: &Extent,
    needed: &Needed,
    taker: &mut dyn Taker,
) -> Option<()> {
    let seed = needed.file.seed();
    let mut at = 0;
    let mut next = None;
    while at < bytes.len() {
        let rest = bytes.get(at..)?;
        let (frame, _) = Frame::decode(rest)?;
        let len = FRAME_HEADER_LEN + frame.payload_len as usize;
        if len > rest.len() {
            return None;
        }
        if frame.kind == Kind::Append && frame.log == needed.log {
            if next.is_some_and(|next| next != frame.base) {
                return None;
            }
            if next.is_none() && frame.base != extent.base {
                return None;
            }
            next = Some(frame.last().saturating_add(1));
            if frame.last() >= needed.start {
                let position = extent.position.saturating_add(at as u64);
                if !matches!(frame::check(seed, position, rest), Check::Good(..)) {
                    return None;
                }
                taker.take(&frame, &bytes.slice(at + FRAME_HEADER_LEN..at + len));
            }
        }
        at += len;
    }
    (next == Some(extent.last.saturating_add(1))).then_some(())
}

/// A file that is written anew, round by round.
#[derive(Debug)]
pub(super) struct Output {
    seed: Seed,
    /// Where the round starts, in the file.
    pub(super) position: u64,
    pub(super) round: BytesMut,
    /// Bytes at the head of the first round that are no frames.
    head: usize,
    crc: u32,
    frames: u32,
    pub(super) index: FileIndex,
}

impl Taker for Output {
    fn take(&mut self, frame: &Frame, batch: &Bytes) {
        self.append(frame, batch);
    }
}

impl Output {
    pub(super) fn new(header: FileHeader) -> Self {
        Self {
            seed: header.id.seed(),
            position: 0,
            round: BytesMut::from(&header.encode()[..]),
            head: FILE_HEADER_LEN,
            crc: 0,
            frames: 0,
            index: FileIndex::default(),
        }
    }

    pub(super) fn append(&mut self, frame: &Frame, batch: &[u8]) {
        let position = self.position + self.round.len() as u64;
        let prefix = &batch[..BATCH_PREFIX_LEN.min(batch.len())];
        let crc = frame.encode(self.seed, position, prefix, &mut self.round);
        self.round.put_slice(batch);
        self.crc = crc32c::crc32c_append(self.crc, &crc.to_be_bytes());
        self.frames += 1;
        self.index.add(frame, position);
    }

    /// Ends the round: its bytes, and where they go.
    pub(super) fn close(&mut self) -> (u64, Bytes) {
        let start = self.position;
        if self.frames > 0 {
            let payload = Round {
                crc: self.crc,
                ends: Vec::new(),
            };
            let payload = payload.encode();
            let commit = Frame {
                payload_len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
                base: i64::try_from(start + self.head as u64).unwrap_or(i64::MAX),
                last_delta: self.frames,
                ..Frame::new(Kind::Commit, NO_LOG)
            };
            let position = start + self.round.len() as u64;
            commit.encode(self.seed, position, &payload, &mut self.round);
            self.round.put_slice(&payload);
        }
        let bytes = self.round.split().freeze();
        self.position += bytes.len() as u64;
        (self.head, self.crc, self.frames) = (0, 0, 0);
        (start, bytes)
    }
}

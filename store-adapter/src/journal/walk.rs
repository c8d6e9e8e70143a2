//! Finds a log's batches in what was read of a file, and keeps account of what was taken.
//!
//! The index is a hint. Every frame that is returned has its own position, log, offset and
//! checksum confirmed; frames of other logs in the same stretch are only stepped over.

use bytes::Bytes;

use super::extents::{Extent, SPAN_MAX};
use super::file::Seed;
use super::frame::{self, Check, FRAME_HEADER_BYTES, FRAME_HEADER_LEN, Frame, Kind};
use crate::ids::LogId;
use crate::store::StoredBatch;

/// Batches found so far.
pub(crate) struct Taken {
    pub(crate) batches: Vec<StoredBatch>,
    pub(crate) bytes: usize,
    pub(crate) max_bytes: usize,
    /// The offset that the next batch must hold.
    pub(crate) next: i64,
    pub(crate) upto: i64,
    /// Whether even the first batch has to fit.
    pub(crate) within: bool,
    /// How often a place was found that had moved meanwhile.
    pub(crate) retries: u32,
}

impl Taken {
    pub(crate) fn is_full(&self) -> bool {
        let enough = self.bytes >= self.max_bytes && !self.batches.is_empty();
        enough || self.next >= self.upto
    }

    /// Whether a batch of `len` bytes is one too many.
    fn is_too_much(&self, len: usize) -> bool {
        let over = self.bytes.saturating_add(len) > self.max_bytes;
        over && (self.within || !self.batches.is_empty())
    }

    /// Whether an extent is one batch that is one too many, which the index tells without a read.
    pub(crate) fn leaves(&self, extent: &Extent) -> bool {
        let batch = extent.span.saturating_sub(FRAME_HEADER_BYTES);
        u64::from(extent.span) > SPAN_MAX && self.is_too_much(batch as usize)
    }

    /// Takes a batch, unless it is one too many; then nothing more is wanted.
    fn push(&mut self, batch: StoredBatch) {
        let len = batch.bytes.len();
        if self.is_too_much(len) || batch.base_offset >= self.upto {
            self.upto = self.next;
            return;
        }
        self.bytes = self.bytes.saturating_add(len);
        self.next = batch.last_offset.saturating_add(1);
        self.batches.push(batch);
    }
}

/// Goes through the frames of one stretch.
pub(crate) struct Walk<'a> {
    log: LogId,
    seed: Seed,
    position: u64,
    bytes: &'a Bytes,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(log: LogId, seed: Seed, position: u64, bytes: &'a Bytes) -> Self {
        Self {
            log,
            seed,
            position,
            bytes,
        }
    }

    /// Takes the log's batches in order of offset, from the one that holds `taken.next`.
    pub(crate) fn take(&self, taken: &mut Taken) {
        let mut at = 0;
        while !taken.is_full() && at < self.bytes.len() {
            let Some(found) = self.next(at, taken.next) else {
                break;
            };
            at = found + self.len_at(found);
            let Some(batch) = self.batch(found) else {
                break;
            };
            taken.push(batch);
        }
    }

    /// Where the frame of the batch that holds `offset` starts, at or behind `at`.
    fn next(&self, at: usize, offset: i64) -> Option<usize> {
        self.step(at, offset)
            .or_else(|| (at..self.bytes.len()).find(|at| self.holds(*at, offset)))
    }

    /// The same, going from header to header. Lost where a header of another log is damaged.
    fn step(&self, mut at: usize, offset: i64) -> Option<usize> {
        loop {
            let (frame, _) = Frame::decode(self.bytes.get(at..)?)?;
            if frame.kind == Kind::Append && frame.log == self.log && frame.last() >= offset {
                return self.holds(at, offset).then_some(at);
            }
            at += FRAME_HEADER_LEN + frame.payload_len as usize;
        }
    }

    /// Whether a whole frame of the log that holds `offset` starts at `at`.
    fn holds(&self, at: usize, offset: i64) -> bool {
        let Some(bytes) = self.bytes.get(at..) else {
            return false;
        };
        // The checksums cost more than this look, and almost every position fails it.
        let candidate = Frame::decode(bytes).is_some_and(|(frame, _)| {
            frame.kind == Kind::Append
                && frame.log == self.log
                && (frame.base..=frame.last()).contains(&offset)
        });
        candidate
            && matches!(
                frame::check(self.seed, self.position + at as u64, bytes),
                Check::Good(..)
            )
    }

    fn len_at(&self, at: usize) -> usize {
        let frame = self.bytes.get(at..).and_then(Frame::decode);
        frame.map_or(FRAME_HEADER_LEN, |(frame, _)| {
            FRAME_HEADER_LEN + frame.payload_len as usize
        })
    }

    fn batch(&self, at: usize) -> Option<StoredBatch> {
        let (frame, _) = Frame::decode(self.bytes.get(at..)?)?;
        let start = at + FRAME_HEADER_LEN;
        let end = start + frame.payload_len as usize;
        if end > self.bytes.len() {
            return None;
        }
        let bytes = self.bytes.slice(start..end);
        // A frame also answers for offsets before its batch that are gone.
        let base_offset = i64::from_be_bytes(*bytes.first_chunk::<8>()?);
        Some(StoredBatch {
            bytes,
            base_offset,
            last_offset: frame.last(),
            append_ms: frame.append_ms,
        })
    }
}

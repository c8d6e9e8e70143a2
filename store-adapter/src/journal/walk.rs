//! Finds a log's batches in what was read of a file, and keeps account of what was taken.
//!
//! The index is a hint. Every frame that is returned has its own position, log, offset and
//! checksum confirmed; frames of other logs in the same stretch are only stepped over.

use std::time::Duration;

use bytes::Bytes;

use super::extents::{Extent, SPAN_MAX};
use super::file::Seed;
use super::frame::{self, Check, FRAME_HEADER_BYTES, FRAME_HEADER_LEN, Frame, Kind};
use super::opened::{Mark, Opened, RUN_MIN};
use super::reader::Range;
use crate::ids::LogId;
use crate::store::{Bounds, Passed, StoredBatch};

/// Batches found so far.
pub(crate) struct Taken {
    pub(crate) batches: Vec<Passed>,
    pub(crate) bytes: usize,
    pub(crate) max_bytes: usize,
    /// The offset that the next batch must hold.
    pub(crate) next: i64,
    pub(crate) upto: i64,
    /// Whether even the first batch has to fit.
    pub(crate) within: bool,
    /// How often a place was found that had moved meanwhile.
    pub(crate) retries: u32,
    /// When it is, if the batches are only passed on.
    pub(crate) passes: Option<Duration>,
    /// Large batches of the last stretch, with the position of their frames.
    pub(crate) found: Vec<(u64, Mark)>,
}

impl Taken {
    /// Nothing yet of `range`, of a log with these bounds.
    pub(crate) fn nothing(range: Range, bounds: Bounds) -> Self {
        Self {
            batches: Vec::new(),
            bytes: 0,
            max_bytes: range.max_bytes,
            next: range.from,
            upto: range.upto.min(bounds.end),
            within: range.within,
            retries: 0,
            passes: range.passes,
            found: Vec::new(),
        }
    }

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

    /// Takes a batch of `len` bytes, unless it is one too many; then nothing more is wanted.
    fn push(&mut self, base_offset: i64, len: usize, batch: Passed) -> bool {
        if self.is_too_much(len) || base_offset >= self.upto {
            self.upto = self.next;
            return false;
        }
        self.bytes = self.bytes.saturating_add(len);
        self.next = batch.last_offset().saturating_add(1);
        self.batches.push(batch);
        true
    }

    /// Takes batches that need no reading, as long as they come next, if they are enough; whether
    /// anything was decided.
    pub(crate) fn pass(&mut self, log: LogId, opened: &Opened, extents: &[Extent]) -> bool {
        let before = (self.batches.len(), self.upto);
        let pays = self.pays(log, opened, extents);
        for extent in extents.iter().take_while(|_| pays) {
            let is_next = (extent.base..=extent.last).contains(&self.next);
            if self.is_full() || !is_next || extent.last >= self.upto {
                break;
            }
            let trusted = self.passes.and_then(|now| opened.trusted(log, extent, now));
            let Some(range) = trusted else {
                break;
            };
            let last_offset = extent.last;
            let passed = Passed::File { range, last_offset };
            if !self.push(extent.base, batch_len(extent), passed) {
                break;
            }
        }
        before != (self.batches.len(), self.upto)
    }

    /// Whether these extents begin with so much that need not be read that it pays.
    pub(crate) fn pays(&self, log: LogId, opened: &Opened, extents: &[Extent]) -> bool {
        let Some(now) = self.passes else {
            return false;
        };
        let wanted = self.max_bytes.saturating_sub(self.bytes);
        let mut run = 0_usize;
        for extent in extents {
            let with = run.saturating_add(batch_len(extent));
            let fits = run == 0 || with <= wanted;
            let trusted = fits && extent.last < self.upto;
            if !trusted || opened.trusted(log, extent, now).is_none() {
                return false;
            }
            run = with;
            if run >= RUN_MIN {
                return true;
            }
        }
        false
    }
}

/// Bytes of the batch that is all of an extent.
fn batch_len(extent: &Extent) -> usize {
    extent.span.saturating_sub(FRAME_HEADER_BYTES) as usize
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
            let (base, len) = (batch.base_offset, batch.bytes.len());
            let took = taken.push(base, len, Passed::Read(batch));
            if let Some(now) = taken.passes.filter(|_| took) {
                taken.found.extend(self.mark(found, now));
            }
        }
    }

    /// The first offset of the first whole batch that begins behind `offset`. The checksums tell a
    /// frame from what only looks like one.
    pub(crate) fn behind(&self, offset: i64) -> Option<i64> {
        let begins = |at: usize| {
            let (frame, _) = Frame::decode(self.bytes.get(at..)?)?;
            let behind = frame.log == self.log && frame.base > offset;
            (behind && self.holds(at, frame.base)).then_some(frame.base)
        };
        (0..self.bytes.len()).find_map(begins)
    }

    /// Marks the frame at `at`, which was found right.
    fn mark(&self, at: usize, now: Duration) -> Option<(u64, Mark)> {
        let (frame, _) = Frame::decode(self.bytes.get(at..)?)?;
        Some((self.position + at as u64, Mark::of(&frame, now)?))
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

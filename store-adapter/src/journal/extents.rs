//! Where a log's batches lie: extents of one file, and the index of a whole file.
//!
//! An extent is a stretch of a file that starts and ends with a frame of its log; frames of other
//! logs may lie between. It grows while its batches follow one another in offset and it stays
//! within [`SPAN_MAX`] bytes, so a log has at most one extent per 64 KiB of a file unless its
//! batches are larger.
//!
//! The footer of a file is a frame whose payload is, per log in order of ids: topic id,
//! partition, number of extents (4 bytes), extents (position 8, span 4, base offset 8, last
//! offset 8, largest timestamp 8); the number of logs (4 bytes) comes first. The payload ends with
//! the position of the footer frame (8 bytes) and the magic `FPFOOTER`, so that it is found from
//! the end of the file.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::file::FileId;
use super::frame::{FRAME_HEADER_BYTES, Frame, Kind};
use super::payload::{get_log, put_log};
use super::scan::FoundRound;
use crate::ids::LogId;

/// Bytes up to which frames are gathered in one extent.
pub(crate) const SPAN_MAX: u64 = 64 << 10;
/// Bytes of the end of a footer, from which it is found.
pub(crate) const TRAILER_LEN: usize = 16;

const FOOTER_MAGIC: &[u8; 8] = b"FPFOOTER";
const EXTENT_LEN: usize = 36;

/// A stretch of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Where its first frame starts.
    pub(crate) position: u64,
    /// Bytes to the end of its last frame.
    pub(crate) span: u32,
    /// First offset.
    pub(crate) base: i64,
    /// Last offset.
    pub(crate) last: i64,
    /// Largest timestamp, ms.
    pub(crate) max_timestamp: i64,
}

impl Extent {
    /// The extent of one append frame.
    pub(crate) fn of(frame: &Frame, position: u64) -> Self {
        Self {
            position,
            span: FRAME_HEADER_BYTES.saturating_add(frame.payload_len),
            base: frame.base,
            last: frame.last(),
            max_timestamp: frame.max_timestamp,
        }
    }

    /// Position behind the last frame.
    pub(crate) fn end(&self) -> u64 {
        self.position.saturating_add(u64::from(self.span))
    }

    /// Takes `next` in, when it continues this extent and the whole stays small enough.
    fn absorb(&mut self, next: &Self) -> bool {
        let span = next.end().saturating_sub(self.position);
        if next.base != self.last.saturating_add(1) || span > SPAN_MAX {
            return false;
        }
        self.span = u32::try_from(span).unwrap_or(u32::MAX);
        self.last = next.last;
        self.max_timestamp = self.max_timestamp.max(next.max_timestamp);
        true
    }
}

/// Adds `extent` behind `extents`, merging it with the last one where that is allowed.
pub(crate) fn push(extents: &mut Vec<Extent>, extent: Extent) {
    let absorbed = extents.last_mut().is_some_and(|last| last.absorb(&extent));
    if !absorbed {
        extents.push(extent);
    }
}

/// The index of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FileIndex {
    /// Extents per log, in order of position.
    pub(crate) logs: BTreeMap<LogId, Vec<Extent>>,
}

impl FileIndex {
    /// Takes an append frame in.
    pub(crate) fn add(&mut self, frame: &Frame, position: u64) {
        let extents = self.logs.entry(frame.log).or_default();
        push(extents, Extent::of(frame, position));
    }

    /// Takes a round in. A log that is deleted in it has nothing from before.
    pub(crate) fn add_round(&mut self, round: &FoundRound) {
        for found in &round.frames {
            match found.frame.kind {
                Kind::Append => self.add(&found.frame, found.position),
                Kind::Delete => drop(self.logs.remove(&found.frame.log)),
                _ => {}
            }
        }
    }

    /// Extents of all logs.
    pub(crate) fn extent_count(&self) -> usize {
        self.logs.values().map(Vec::len).sum()
    }

    /// The payload of the footer frame at `position`.
    pub(crate) fn encode_footer(&self, position: u64) -> Bytes {
        let len = self.logs.len() * 24 + self.extent_count() * EXTENT_LEN + 4 + TRAILER_LEN;
        let mut out = BytesMut::with_capacity(len);
        self.encode(&mut out);
        out.put_u64(position);
        out.put_slice(FOOTER_MAGIC);
        out.freeze()
    }

    /// Appends the index to `out`, without the trailer.
    pub(crate) fn encode(&self, out: &mut BytesMut) {
        out.put_u32(u32::try_from(self.logs.len()).unwrap_or(u32::MAX));
        for (log, extents) in &self.logs {
            put_log(out, *log);
            out.put_u32(u32::try_from(extents.len()).unwrap_or(u32::MAX));
            for extent in extents {
                out.put_u64(extent.position);
                out.put_u32(extent.span);
                out.put_i64(extent.base);
                out.put_i64(extent.last);
                out.put_i64(extent.max_timestamp);
            }
        }
    }

    /// Reads the payload of a footer frame; the checksum of the frame was checked.
    pub(crate) fn decode_footer(payload: &[u8]) -> Option<Self> {
        let body = payload.len().checked_sub(TRAILER_LEN)?;
        Self::decode(&payload[..body])
    }

    /// Reads an index that fills `bytes`. Memory is bounded by the bytes that are there.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut logs = BTreeMap::new();
        for _ in 0..bytes.try_get_u32().ok()? {
            let log = get_log(&mut bytes)?;
            let count = bytes.try_get_u32().ok()? as usize;
            if bytes.len() / EXTENT_LEN < count {
                return None;
            }
            let extents = (0..count).map(|_| get_extent(&mut bytes));
            logs.insert(log, extents.collect::<Option<Vec<Extent>>>()?);
        }
        bytes.is_empty().then_some(Self { logs })
    }
}

fn get_extent(bytes: &mut &[u8]) -> Option<Extent> {
    Some(Extent {
        position: bytes.try_get_u64().ok()?,
        span: bytes.try_get_u32().ok()?,
        base: bytes.try_get_i64().ok()?,
        last: bytes.try_get_i64().ok()?,
        max_timestamp: bytes.try_get_i64().ok()?,
    })
}

/// Position of the footer frame, when the last [`TRAILER_LEN`] bytes of a file name one.
pub(crate) fn footer_position(trailer: &[u8]) -> Option<u64> {
    let mut position = trailer.strip_suffix(FOOTER_MAGIC.as_slice())?;
    position.try_get_u64().ok()
}

/// What a log has in a closed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The file.
    pub(crate) file: FileId,
    /// First offset there.
    pub(crate) base: i64,
    /// Last offset there.
    pub(crate) last: i64,
    /// Largest timestamp there, ms.
    pub(crate) max_timestamp: i64,
}

impl Segment {
    /// The summary of `extents` of `file`; `None` when there are none.
    pub(crate) fn of(file: FileId, extents: &[Extent]) -> Option<Self> {
        Some(Self {
            file,
            base: extents.first()?.base,
            last: extents.last()?.last,
            max_timestamp: extents.iter().map(|e| e.max_timestamp).max()?,
        })
    }
}

/// The index of one log: summaries for closed files, extents for the one being written.
#[derive(Debug, Default)]
pub(crate) struct LogIndex {
    /// Closed files, in order of offset.
    pub(crate) sealed: VecDeque<Segment>,
    /// Extents in the file being written.
    pub(crate) active: Vec<Extent>,
    /// The file being written; `None` while it holds nothing of the log.
    pub(crate) active_file: Option<FileId>,
}

/// Where the search for an offset or a time goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a closed file.
    Sealed(Segment),
    /// In the file being written; the extents from the one that was searched for.
    Active(FileId, Vec<Extent>),
}

impl LogIndex {
    /// Where the batch that holds `offset`, or the first one behind it, lies. At most `max`
    /// extents are copied.
    pub(crate) fn locate(&self, offset: i64, max: usize) -> Option<Place> {
        let at = self.sealed.partition_point(|s| s.last < offset);
        if let Some(segment) = self.sealed.get(at) {
            return Some(Place::Sealed(*segment));
        }
        let extents = from_offset(&self.active, offset);
        let taken = &extents[..extents.len().min(max)];
        let file = self.active_file.filter(|_| !taken.is_empty())?;
        Some(Place::Active(file, taken.to_vec()))
    }

    /// The first place at or behind `offset` that may hold a timestamp of at least `time`.
    pub(crate) fn locate_time(&self, offset: i64, time: i64) -> Option<Place> {
        let at = self.sealed.partition_point(|s| s.last < offset);
        let mut sealed = self.sealed.range(at..);
        if let Some(segment) = sealed.find(|s| s.max_timestamp >= time) {
            return Some(Place::Sealed(*segment));
        }
        let extents = from_offset(&self.active, offset);
        let found = extents.iter().find(|e| e.max_timestamp >= time)?;
        Some(Place::Active(self.active_file?, vec![*found]))
    }

    /// Takes an append frame of `file`, the one being written, in.
    pub(crate) fn add(&mut self, file: FileId, frame: &Frame, position: u64) {
        self.active_file = Some(file);
        push(&mut self.active, Extent::of(frame, position));
    }

    /// The file being written is closed; returns whether it holds something of the log.
    pub(crate) fn seal(&mut self) -> bool {
        let extents = std::mem::take(&mut self.active);
        let file = self.active_file.take();
        match file.and_then(|file| Segment::of(file, &extents)) {
            Some(segment) => {
                self.sealed.push_back(segment);
                true
            }
            None => false,
        }
    }

    /// Forgets what lies wholly below `start`; returns the closed files that the log no longer
    /// needs.
    pub(crate) fn drop_below(&mut self, start: i64) -> Vec<FileId> {
        let dead = self.sealed.partition_point(|s| s.last < start);
        let files = self.sealed.drain(..dead).map(|s| s.file).collect();
        let dead = self.active.partition_point(|e| e.last < start);
        self.active.drain(..dead);
        files
    }

    /// Whether every offset of `start..end` lies in some extent; if not, the first that does not.
    pub(crate) fn gap(&self, start: i64, end: i64) -> Option<i64> {
        let sealed = self.sealed.iter().map(|s| (s.base, s.last));
        let active = self.active.iter().map(|e| (e.base, e.last));
        let mut next = start;
        for (base, last) in sealed.chain(active) {
            if base > next {
                break;
            }
            next = next.max(last.saturating_add(1));
        }
        (next < end).then_some(next)
    }
}

/// The extents from the one that holds `offset` on.
pub(crate) fn from_offset(extents: &[Extent], offset: i64) -> &[Extent] {
    &extents[extents.partition_point(|e| e.last < offset)..]
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn extent(position: u64, span: u32, base: i64, last: i64) -> Extent {
        Extent {
            position,
            span,
            base,
            last,
            max_timestamp: base,
        }
    }

    #[test]
    fn extents_merge_only_what_follows_within_64_kib() {
        let mut extents = Vec::new();
        push(&mut extents, extent(64, 1000, 0, 9));
        push(&mut extents, extent(2000, 1000, 10, 19));
        assert_eq!(
            extents,
            [Extent {
                max_timestamp: 10,
                ..extent(64, 2936, 0, 19)
            }]
        );
        push(&mut extents, extent(4000, 1000, 21, 21));
        push(&mut extents, extent(4000 + 65_000, 1000, 22, 22));
        assert_eq!(extents.len(), 3);
    }

    #[test]
    fn a_footer_round_trips_and_garbage_is_refused() {
        let mut index = FileIndex::default();
        let log = |partition| LogId {
            topic: Uuid::from_u128(7),
            partition,
        };
        index.logs.insert(log(0), vec![extent(64, 100, 0, 4)]);
        index.logs.insert(
            log(1),
            vec![extent(164, 100, 5, 9), extent(1 << 20, 9, 10, 10)],
        );
        let footer = index.encode_footer(777);
        assert_eq!(FileIndex::decode_footer(&footer), Some(index));
        assert_eq!(
            footer_position(&footer[footer.len() - TRAILER_LEN..]),
            Some(777)
        );
        for len in 0..footer.len() - 1 {
            assert_eq!(FileIndex::decode_footer(&footer[..len]), None, "{len}");
        }
        assert_eq!(FileIndex::decode(&[0xff; 64]), None);
    }

    #[test]
    fn a_gap_is_the_first_offset_in_no_extent() {
        let index = LogIndex {
            active: vec![extent(64, 10, 0, 9), extent(74, 10, 12, 19)],
            ..LogIndex::default()
        };
        assert_eq!(index.gap(0, 20), Some(10));
        assert_eq!(index.gap(12, 20), None);
        assert_eq!(index.gap(5, 10), None);
        assert_eq!(index.gap(15, 25), Some(20));
        assert_eq!(index.gap(20, 20), None);
    }
}

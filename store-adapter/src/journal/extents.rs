//! Where a log's batches lie: extents of one file, and the index of a whole file.
//!
//! An extent is a stretch of a file that starts and ends with a frame of its log; frames of other
//! logs may lie between. It grows while its batches follow one another in offset and it stays
//! within [`SPAN_MAX`] bytes, so a log has at most one extent per 64 KiB of a file unless its
//! batches are larger or its timestamps jump ahead.
//!
//! The footer of a file is a frame whose payload is, per log in order of ids: topic id,
//! partition, number of extents (4 bytes), extents (position 8, span 4, own bytes 4, base offset
//! 8, last offset 8, largest timestamp 8); the number of logs (4 bytes) comes first. The payload
//! ends with the position of the footer frame (8 bytes) and the magic `FPFOOT02`, so that it is
//! found from the end of the file. Footers with the magic `FPFOOTER` are older and have no own
//! bytes: the span stands for them.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::file::FileId;
use super::frame::{FRAME_HEADER_BYTES, Frame, Kind};
use super::payload::{get_log, put_log};
use super::scan::FoundRound;
use crate::ids::LogId;
use crate::store::{Piece, Size};

/// Bytes up to which frames are gathered in one extent.
pub(crate) const SPAN_MAX: u64 = 64 << 10;
/// Bytes of the end of a footer, from which it is found.
pub(crate) const TRAILER_LEN: usize = 16;

/// How far ahead of an extent's timestamps the next one may be to join it, ms: retention deletes
/// no less than an extent.
const JUMP_MAX_MS: i64 = 600_000;

const FOOTER_MAGIC: &[u8; 8] = b"FPFOOT02";
const OLD_FOOTER_MAGIC: &[u8; 8] = b"FPFOOTER";
const EXTENT_LEN: usize = 40;
const OLD_EXTENT_LEN: usize = 36;

/// A stretch of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Where its first frame starts.
    pub(crate) position: u64,
    /// Bytes to the end of its last frame.
    pub(crate) span: u32,
    /// Bytes of its log's frames in it.
    pub(crate) bytes: u32,
    /// First offset.
    pub(crate) base: i64,
    /// Last offset.
    pub(crate) last: i64,
    /// Largest timestamp, ms; of batches without one, the time of their append.
    pub(crate) max_timestamp: i64,
}

impl Extent {
    /// The extent of one append frame.
    pub(crate) fn of(frame: &Frame, position: u64) -> Self {
        let len = FRAME_HEADER_BYTES.saturating_add(frame.payload_len);
        Self {
            position,
            span: len,
            bytes: len,
            base: frame.base,
            last: frame.last(),
            max_timestamp: match frame.max_timestamp {
                ..0 => frame.append_ms,
                time => time,
            },
        }
    }

    /// Position behind the last frame.
    pub(crate) fn end(&self) -> u64 {
        self.position.saturating_add(u64::from(self.span))
    }

    /// What it is to who decides what is to be deleted.
    pub(crate) fn piece(&self) -> Piece {
        Piece {
            base: self.base,
            last: self.last,
            bytes: u64::from(self.bytes),
            max_timestamp: self.max_timestamp,
        }
    }

    /// Takes `next` in, when it continues this extent and the whole stays small enough.
    fn absorb(&mut self, next: &Self) -> bool {
        let span = next.end().saturating_sub(self.position);
        let later = next.max_timestamp.saturating_sub(self.max_timestamp) > JUMP_MAX_MS;
        if next.base != self.last.saturating_add(1) || span > SPAN_MAX || later {
            return false;
        }
        self.span = u32::try_from(span).unwrap_or(u32::MAX);
        self.bytes = self.bytes.saturating_add(next.bytes);
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
                out.put_u32(extent.bytes);
                out.put_i64(extent.base);
                out.put_i64(extent.last);
                out.put_i64(extent.max_timestamp);
            }
        }
    }

    /// Reads the payload of a footer frame; the checksum of the frame was checked.
    pub(crate) fn decode_footer(payload: &[u8]) -> Option<Self> {
        let body = payload.len().checked_sub(TRAILER_LEN)?;
        let old = payload.ends_with(OLD_FOOTER_MAGIC);
        Self::decode_form(&payload[..body], old)
    }

    /// Reads an index that fills `bytes`. Memory is bounded by the bytes that are there.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        Self::decode_form(bytes, false)
    }

    fn decode_form(mut bytes: &[u8], old: bool) -> Option<Self> {
        let len = if old { OLD_EXTENT_LEN } else { EXTENT_LEN };
        let mut logs = BTreeMap::new();
        for _ in 0..bytes.try_get_u32().ok()? {
            let log = get_log(&mut bytes)?;
            let count = bytes.try_get_u32().ok()? as usize;
            if bytes.len() / len < count {
                return None;
            }
            let extents = (0..count).map(|_| get_extent(&mut bytes, old));
            logs.insert(log, extents.collect::<Option<Vec<Extent>>>()?);
        }
        bytes.is_empty().then_some(Self { logs })
    }
}

fn get_extent(bytes: &mut &[u8], old: bool) -> Option<Extent> {
    let position = bytes.try_get_u64().ok()?;
    let span = bytes.try_get_u32().ok()?;
    Some(Extent {
        position,
        span,
        bytes: if old { span } else { bytes.try_get_u32().ok()? },
        base: bytes.try_get_i64().ok()?,
        last: bytes.try_get_i64().ok()?,
        max_timestamp: bytes.try_get_i64().ok()?,
    })
}

/// Position of the footer frame, when the last [`TRAILER_LEN`] bytes of a file name one.
pub(crate) fn footer_position(trailer: &[u8]) -> Option<u64> {
    let (mut position, magic) = trailer.split_last_chunk::<8>()?;
    let known = magic == FOOTER_MAGIC || magic == OLD_FOOTER_MAGIC;
    position.try_get_u64().ok().filter(|_| known)
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
    /// Bytes of the log's frames there.
    pub(crate) bytes: u64,
}

impl Segment {
    /// About how many of its bytes lie at or behind `start`.
    pub(crate) fn bytes_from(&self, start: i64) -> u64 {
        if start <= self.base {
            return self.bytes;
        }
        let count = |from: i64| u128::try_from(self.last.saturating_sub(from) + 1).unwrap_or(0);
        let part = u128::from(self.bytes) * count(start) / count(self.base).max(1);
        u64::try_from(part).unwrap_or(self.bytes)
    }

    /// The summary of `extents` of `file`; `None` when there are none.
    pub(crate) fn of(file: FileId, extents: &[Extent]) -> Option<Self> {
        Some(Self {
            file,
            base: extents.first()?.base,
            last: extents.last()?.last,
            max_timestamp: extents.iter().map(|e| e.max_timestamp).max()?,
            bytes: extents.iter().map(|e| u64::from(e.bytes)).sum(),
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

    /// Whether something of it lies in the closed file `id`.
    pub(crate) fn has(&self, id: FileId) -> bool {
        self.sealed.iter().any(|segment| segment.file == id)
    }

    /// What lay in `files`, which follow one another, lies in the first of them: `now`. Nothing
    /// changes where there is more in them, or nothing.
    pub(crate) fn join(&mut self, files: &[FileId], now: Segment) {
        let at = |segment: &Segment| files.contains(&segment.file);
        let last = self.sealed.iter().rev().find(|segment| at(segment));
        if last.is_none_or(|last| last.last != now.last) {
            return;
        }
        let first = self.sealed.iter().position(at).unwrap_or(0);
        self.sealed.retain(|segment| !at(segment));
        self.sealed.insert(first, now);
    }

    /// What it holds from `from` on: a closed file is one part, an extent of the file that is being
    /// written another.
    pub(crate) fn parts(&self, from: i64) -> Vec<Piece> {
        let at = self.sealed.partition_point(|segment| segment.last < from);
        let sealed = self.sealed.range(at..).map(|segment| Piece {
            base: segment.base,
            last: segment.last,
            bytes: segment.bytes,
            max_timestamp: segment.max_timestamp,
        });
        let active = from_offset(&self.active, from).iter();
        sealed.chain(active.map(Extent::piece)).collect()
    }

    /// About how many bytes there are from `start` on.
    pub(crate) fn bytes_from(&self, start: i64) -> u64 {
        let sealed = self.sealed.iter().map(|segment| segment.bytes_from(start));
        let active = from_offset(&self.active, start).iter();
        sealed.sum::<u64>() + active.map(|extent| u64::from(extent.bytes)).sum::<u64>()
    }

    /// What is known of the bytes from `start` on. A closed file in the middle of which that lies
    /// is left out: only its index tells.
    pub(crate) fn size_from(&self, start: i64) -> Size {
        let cut = self
            .sealed
            .iter()
            .rev()
            .find(|segment| segment.base < start);
        let from = cut.map_or(start, |cut| start.max(cut.last.saturating_add(1)));
        let whole = self.sealed.iter().filter(|segment| segment.base >= from);
        let active = from_offset(&self.active, from).iter();
        let bytes = whole.map(|segment| segment.bytes).sum::<u64>()
            + active.map(|extent| u64::from(extent.bytes)).sum::<u64>();
        Size { bytes, from }
    }

    /// Forgets the closed files whose batches an earlier one has, too: it was joined with them, and
    /// they were not removed.
    pub(crate) fn forget_joined(&mut self) {
        let mut end = None;
        self.sealed.retain(|segment| {
            let more = end.is_none_or(|end| segment.last > end);
            end = end.max(Some(segment.last));
            more
        });
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
            bytes: span,
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
                bytes: 2000,
                ..extent(64, 2936, 0, 19)
            }]
        );
        push(&mut extents, extent(4000, 1000, 21, 21));
        push(&mut extents, extent(4000 + 65_000, 1000, 22, 22));
        assert_eq!(extents.len(), 3);
        let later = Extent {
            max_timestamp: 23 + JUMP_MAX_MS,
            ..extent(70_000, 1000, 23, 23)
        };
        push(&mut extents, later);
        assert_eq!(extents.len(), 4);
        push(&mut extents, extent(71_000, 1000, 24, 24));
        assert_eq!(extents.len(), 4);
    }

    #[test]
    fn a_footer_of_the_older_form_is_read() {
        let log = LogId {
            topic: Uuid::from_u128(7),
            partition: 3,
        };
        let mut old = BytesMut::new();
        old.put_u32(1);
        put_log(&mut old, log);
        old.put_u32(1);
        old.put_u64(64);
        old.put_u32(100);
        for number in [5, 9, 5] {
            old.put_i64(number);
        }
        old.put_u64(777);
        old.put_slice(b"FPFOOTER");
        let index = FileIndex::decode_footer(&old).unwrap();
        assert_eq!(index.logs[&log], [extent(64, 100, 5, 9)]);
        assert_eq!(footer_position(&old[old.len() - TRAILER_LEN..]), Some(777));
    }

    #[test]
    fn the_bytes_behind_a_start_are_a_part_of_the_segment() {
        let mut index = LogIndex {
            active: vec![extent(64, 10, 10, 19)],
            active_file: None,
            ..LogIndex::default()
        };
        index.sealed.push_back(Segment {
            bytes: 1000,
            ..Segment::of(file(), &[extent(64, 10, 0, 9)]).unwrap()
        });
        let size = |start| {
            let size = index.size_from(start);
            (size.from, size.bytes)
        };
        assert_eq!(size(0), (0, 1010));
        // What of the closed file is behind the middle of it, only its index tells.
        assert_eq!(size(5), (10, 10));
        assert_eq!(size(10), (10, 10));
        assert_eq!(size(20), (20, 0));
    }

    fn file() -> FileId {
        FileId {
            shard: crate::ids::ShardId(0),
            epoch: crate::ids::OwnerEpoch::single(1),
            seq: 0,
        }
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
    fn what_lay_in_several_files_lies_in_the_first() {
        let segment = |seq, base, last| Segment {
            file: FileId { seq, ..file() },
            ..Segment::of(file(), &[extent(64, 10, base, last)]).unwrap()
        };
        let files = [1, 2, 3].map(|seq| FileId { seq, ..file() });
        let index = |sealed: &[Segment]| LogIndex {
            sealed: sealed.iter().copied().collect(),
            ..LogIndex::default()
        };
        let all = [
            segment(0, 0, 4),
            segment(1, 5, 9),
            segment(3, 10, 14),
            segment(4, 15, 19),
        ];
        let joined = segment(1, 5, 14);
        let mut found = index(&all);
        found.join(&files, joined);
        assert_eq!(found.sealed, [all[0], joined, all[3]]);
        // The log had nothing in the first of them, or nothing at all.
        let mut found = index(&all[2..]);
        found.join(&files, segment(1, 10, 14));
        assert_eq!(found.sealed, [segment(1, 10, 14), all[3]]);
        let mut found = index(&all[3..]);
        found.join(&files, joined);
        assert_eq!(found.sealed, [all[3]]);
        // More of it is there than was joined.
        let mut found = index(&all);
        found.join(&files, segment(1, 5, 13));
        assert_eq!(found.sealed, all);
        // The others were not removed before the process ended.
        let mut found = index(&[all[0], joined, all[2], all[3]]);
        found.forget_joined();
        assert_eq!(found.sealed, [all[0], joined, all[3]]);
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

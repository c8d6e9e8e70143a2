//! Retention: which records of a partition are old enough, or too many, and go.
//!
//! As in Kafka a segment goes as a whole, from the log's start on. Segments are not files here:
//! they are counted from the log's start, over the pieces that the store keeps account of, and
//! one ends where `segment.bytes` or `segment.ms` would close it (docs/decisions/0004). They are
//! the same at every look, since a log only ever begins where one of them does.

use parking_lot::Mutex;
use store_adapter::store::Piece;

use super::{Partition, TrimError, Visible};

/// Bytes of pieces that are looked at first, which is one piece: mostly it shows that nothing goes.
/// Each further look takes twice as many.
const FIRST_BYTES: u64 = 1;
/// The most bytes of pieces of one look.
pub(super) const MOST_BYTES: u64 = 1 << 30;

/// What of a topic's configs deletes its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionRules {
    /// `retention.ms`: a segment whose largest timestamp is further back goes. -1: never.
    pub retention_ms: i64,
    /// `retention.bytes`: the oldest segments go while the others have as many. -1: never.
    pub retention_bytes: i64,
    /// `segment.bytes`: how large a segment gets.
    pub segment_bytes: i64,
    /// `segment.ms`: how far the timestamps of a segment reach from its first one.
    pub segment_ms: i64,
}

impl Default for RetentionRules {
    /// Kafka's defaults.
    fn default() -> Self {
        Self {
            retention_ms: 604_800_000,
            retention_bytes: -1,
            segment_bytes: 1_073_741_824,
            segment_ms: 604_800_000,
        }
    }
}

/// A partition at the moment of the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// First offset.
    pub start: i64,
    /// Nothing at or behind it may go: the high watermark, or the first offset of an open
    /// transaction.
    pub upto: i64,
    /// Bytes of the log.
    pub bytes: u64,
    /// The time, ms since the Unix epoch.
    pub now_ms: i64,
}

/// Decides, piece by piece, where a log should begin.
#[derive(Debug, Clone)]
pub struct Judge {
    rules: RetentionRules,
    held: Held,
    /// Behind the last segment that goes.
    start: i64,
    /// Bytes of the log that are left.
    bytes: u64,
    /// The segment that is gathered.
    segment: Option<Segment>,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    end: i64,
    bytes: u64,
    first_timestamp: i64,
    max_timestamp: i64,
}

impl Judge {
    /// Nothing judged yet.
    pub fn new(rules: RetentionRules, held: Held) -> Self {
        Self {
            rules,
            start: held.start,
            bytes: held.bytes,
            held,
            segment: None,
        }
    }

    /// Takes the next piece. `false` once it is clear that nothing more goes.
    pub fn push(&mut self, piece: &Piece) -> bool {
        if let Some(segment) = self.segment
            && self.closes(&segment, piece)
        {
            if !self.drop_segment() {
                return false;
            }
            self.segment = None;
        }
        let segment = self.segment.get_or_insert(Segment {
            end: piece.base,
            bytes: 0,
            first_timestamp: piece.max_timestamp,
            max_timestamp: piece.max_timestamp,
        });
        segment.end = piece.last.saturating_add(1);
        segment.bytes = segment.bytes.saturating_add(piece.bytes);
        segment.max_timestamp = segment.max_timestamp.max(piece.max_timestamp);
        // A segment only gets larger, later and younger.
        let segment = *segment;
        self.goes(&segment)
    }

    /// The log has ended, and with it the last segment. Where the log should begin.
    pub fn finish(mut self) -> i64 {
        if self.segment.is_some() {
            self.drop_segment();
        }
        self.start
    }

    /// Where the log should begin, as far as it was looked at.
    pub fn start(&self) -> i64 {
        self.start
    }

    fn closes(&self, segment: &Segment, next: &Piece) -> bool {
        let bytes = segment.bytes.saturating_add(next.bytes);
        let full = bytes > u64::try_from(self.rules.segment_bytes).unwrap_or(0);
        let reach = next.max_timestamp.saturating_sub(segment.first_timestamp);
        full || reach > self.rules.segment_ms
    }

    fn drop_segment(&mut self) -> bool {
        let Some(segment) = self.segment.filter(|segment| self.goes(segment)) else {
            return false;
        };
        self.start = segment.end;
        self.bytes = self.bytes.saturating_sub(segment.bytes);
        true
    }

    fn goes(&self, segment: &Segment) -> bool {
        let age = self.held.now_ms.saturating_sub(segment.max_timestamp);
        let old = self.rules.retention_ms >= 0 && age > self.rules.retention_ms;
        let over = u64::try_from(self.rules.retention_bytes).is_ok_and(|kept| {
            let left = self.bytes.checked_sub(segment.bytes);
            left.is_some_and(|left| left >= kept)
        });
        segment.end <= self.held.upto && (old || over)
    }
}

/// Whether nothing goes, as far as `parts` of many pieces tell, from the log's start on: the first
/// segment stays. Its first piece is of `first_time`; of the bytes held there may be fewer.
///
/// As long as parts fit into the first segment as a whole, so do all their pieces: it ends no
/// earlier, is no smaller and no older than they are.
pub fn keeps_all(rules: RetentionRules, held: Held, first_time: i64, parts: &[Piece]) -> bool {
    let judge = Judge::new(rules, held);
    let mut known = Segment {
        end: held.start,
        bytes: 0,
        first_timestamp: first_time,
        max_timestamp: first_time,
    };
    // With what there may be of the first part before the log's start.
    let mut most = known;
    for part in parts {
        if !judge.goes(&known) {
            return true;
        }
        if judge.closes(&most, part) {
            return false;
        }
        most.bytes = most.bytes.saturating_add(part.bytes);
        known.end = part.last.saturating_add(1);
        if part.base >= held.start {
            known.bytes = known.bytes.saturating_add(part.bytes);
            known.max_timestamp = known.max_timestamp.max(part.max_timestamp);
        }
    }
    !judge.goes(&known)
}

/// When the first piece of a log is of: known for one start of the log, until that moves.
#[derive(Debug, Default)]
pub(super) struct Oldest(Mutex<Option<(i64, i64)>>);

impl Oldest {
    /// It may be another one now.
    pub(super) fn forget(&self) {
        *self.0.lock() = None;
    }
}

impl Partition {
    /// Whether nothing goes, as far as that can be told without a look at more than one piece.
    async fn keeps_all(&self, rules: RetentionRules, held: Held) -> Result<bool, TrimError> {
        let store = &self.deps.store;
        let Some(parts) = store.parts(self.id, held.start) else {
            return Ok(false);
        };
        let known = self
            .oldest
            .0
            .lock()
            .filter(|(start, _)| *start == held.start);
        let first_time = if let Some((_, time)) = known {
            time
        } else {
            let pieces = store.pieces(self.id, held.start, FIRST_BYTES).await?;
            let Some(first) = pieces.first() else {
                return Ok(true);
            };
            *self.oldest.0.lock() = Some((held.start, first.max_timestamp));
            first.max_timestamp
        };
        let bytes = parts.iter().map(|part| part.bytes).sum();
        let held = Held { bytes, ..held };
        Ok(keeps_all(rules, held, first_time, &parts))
    }

    /// Deletes what the rules say is too old or too much, never what is not committed or belongs
    /// to an open transaction. The new start, if it moved.
    ///
    /// # Errors
    /// See [`TrimError`]; the next look tries again.
    pub async fn apply_retention(
        &self,
        rules: RetentionRules,
        now_ms: i64,
    ) -> Result<Option<i64>, TrimError> {
        let Visible {
            log_start,
            high_watermark,
            last_stable,
            ..
        } = self.visible();
        let Some(size) = self.deps.store.size(self.id) else {
            return Ok(None);
        };
        let held = Held {
            start: log_start,
            upto: high_watermark.min(last_stable),
            bytes: size.bytes,
            now_ms,
        };
        if self.keeps_all(rules, held).await? {
            return Ok(None);
        }
        let bytes = if rules.retention_bytes >= 0 {
            size.bytes
                .saturating_add(self.bytes_before(log_start, size.from).await?)
        } else {
            size.bytes
        };
        let held = Held { bytes, ..held };
        let start = self.judge(Judge::new(rules, held), log_start).await?;
        if start <= log_start {
            return Ok(None);
        }
        self.delete_records(start).await.map(Some)
    }

    /// Bytes of the log's first part, where its start cuts what the store counts as a whole; 0
    /// elsewhere.
    ///
    /// # Errors
    /// See [`TrimError`].
    pub async fn cut_bytes(&self) -> Result<u64, TrimError> {
        let Some(size) = self.deps.store.size(self.id) else {
            return Ok(0);
        };
        self.bytes_before(self.visible().log_start, size.from).await
    }

    /// Bytes of the batches from `start` on that begin before `upto`.
    pub(super) async fn bytes_before(&self, start: i64, upto: i64) -> Result<u64, TrimError> {
        let (mut next, mut bytes) = (start, 0_u64);
        while next < upto {
            let pieces = self.deps.store.pieces(self.id, next, MOST_BYTES).await?;
            let Some(last) = pieces.last() else { break };
            next = last.last.saturating_add(1);
            let before = pieces.iter().filter(|piece| piece.base < upto);
            bytes = before.fold(bytes, |sum, piece| sum.saturating_add(piece.bytes));
        }
        Ok(bytes)
    }

    async fn judge(&self, mut judge: Judge, from: i64) -> Result<i64, TrimError> {
        let (mut next, mut bytes) = (from, FIRST_BYTES);
        loop {
            let pieces = self.deps.store.pieces(self.id, next, bytes).await?;
            let Some(last) = pieces.last() else {
                return Ok(judge.finish());
            };
            next = last.last.saturating_add(1);
            if !pieces.iter().all(|piece| judge.push(piece)) {
                return Ok(judge.start());
            }
            bytes = bytes.saturating_mul(2).min(MOST_BYTES);
        }
    }
}

#[cfg(test)]
mod tests;

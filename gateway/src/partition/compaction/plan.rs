//! When a log is compacted, and how far: decided over the pieces that the store keeps account of.

use store_adapter::store::Piece;

/// Parts of [`CompactionRules::min_dirty_ratio`] that make a whole.
pub const WHOLE: u32 = 1_000_000;

/// What of a topic's configs compacts its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactionRules {
    /// `min.cleanable.dirty.ratio`, in millionths.
    pub min_dirty_ratio: u32,
    /// `min.compaction.lag.ms`: a record is left alone for so long.
    pub min_lag_ms: i64,
    /// `max.compaction.lag.ms`: after so long a record is compacted, however few there are.
    pub max_lag_ms: i64,
    /// `delete.retention.ms`: how long a tombstone stays.
    pub delete_retention_ms: i64,
}

impl Default for CompactionRules {
    /// Kafka's defaults.
    fn default() -> Self {
        Self {
            min_dirty_ratio: WHOLE / 2,
            min_lag_ms: 0,
            max_lag_ms: i64::MAX,
            delete_retention_ms: 86_400_000,
        }
    }
}

/// A log at the moment of the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Bytes that the last compaction left.
    pub clean_bytes: u64,
    /// Behind what the last compaction came to.
    pub clean_upto: i64,
    /// Behind the last batch in a closed file.
    pub settled: i64,
    /// Nothing at or behind it may change.
    pub upto: i64,
    /// The time, ms since the Unix epoch.
    pub now_ms: i64,
    /// Whether the file that is being written may be closed for this.
    pub may_seal: bool,
    /// `segment.bytes`: so much of the log in the file that is being written closes it.
    pub segment_bytes: i64,
    /// `segment.ms`: the same for the age of the first record there.
    pub segment_ms: i64,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Nothing at or behind it is compacted.
    pub upto: i64,
    /// Whether the file that is being written is closed first.
    pub seal: bool,
}

/// Decides over the pieces from [`Look::clean_upto`] on; `None` when it is not time yet.
pub fn plan(rules: CompactionRules, look: &Look, pieces: &[Piece]) -> Option<Plan> {
    let mut end = look.clean_upto;
    let (mut closed_bytes, mut open_bytes) = (0_u64, 0_u64);
    let (mut first_time, mut open_time) = (None, None);
    for piece in pieces.iter().filter(|piece| piece.last >= look.clean_upto) {
        let young = look.now_ms.saturating_sub(piece.max_timestamp) < rules.min_lag_ms;
        if piece.base >= look.upto || (rules.min_lag_ms > 0 && young) {
            break;
        }
        first_time.get_or_insert(piece.max_timestamp);
        end = piece.last.saturating_add(1).min(look.upto);
        if piece.last < look.settled {
            closed_bytes = closed_bytes.saturating_add(piece.bytes);
        } else {
            open_bytes = open_bytes.saturating_add(piece.bytes);
            open_time.get_or_insert(piece.max_timestamp);
        }
    }
    let age = |time: Option<i64>| time.map_or(0, |time| look.now_ms.saturating_sub(time));
    let overdue = age(first_time) > rules.max_lag_ms;
    let large = u64::try_from(look.segment_bytes).is_ok_and(|max| open_bytes > max);
    let seal =
        look.may_seal && open_bytes > 0 && (overdue || large || age(open_time) > look.segment_ms);
    let dirty = closed_bytes.saturating_add(if seal { open_bytes } else { 0 });
    let all = u128::from(dirty.saturating_add(look.clean_bytes));
    let filthy = u128::from(dirty) * u128::from(WHOLE) > all * u128::from(rules.min_dirty_ratio);
    (dirty > 0 && (overdue || filthy)).then_some(Plan { upto: end, seal })
}

#[cfg(test)]
mod tests;

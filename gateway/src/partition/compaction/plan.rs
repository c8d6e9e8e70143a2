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

/// Decides, piece by piece.
#[derive(Debug, Clone)]
pub struct Planner {
    rules: CompactionRules,
    look: Look,
    /// Behind the last piece that may be compacted.
    end: i64,
    /// Whether nothing behind it may be.
    ended: bool,
    /// Bytes of what may be compacted, in closed files and in the one that is being written.
    closed_bytes: u64,
    open_bytes: u64,
    first_time: Option<i64>,
    open_time: Option<i64>,
}

impl Planner {
    /// Nothing decided yet.
    pub fn new(rules: CompactionRules, look: Look) -> Self {
        Self {
            rules,
            look,
            end: look.clean_upto,
            ended: false,
            closed_bytes: 0,
            open_bytes: 0,
            first_time: None,
            open_time: None,
        }
    }

    /// Takes the next piece, from [`Look::clean_upto`] on.
    pub fn push(&mut self, piece: &Piece) {
        if self.ended || piece.last < self.look.clean_upto {
            return;
        }
        let (rules, look) = (self.rules, self.look);
        let young = look.now_ms.saturating_sub(piece.max_timestamp) < rules.min_lag_ms;
        if piece.base >= look.upto || (rules.min_lag_ms > 0 && young) {
            self.ended = true;
            return;
        }
        self.first_time.get_or_insert(piece.max_timestamp);
        self.end = piece.last.saturating_add(1).min(look.upto);
        if piece.last < look.settled {
            self.closed_bytes = self.closed_bytes.saturating_add(piece.bytes);
        } else {
            self.open_bytes = self.open_bytes.saturating_add(piece.bytes);
            self.open_time.get_or_insert(piece.max_timestamp);
        }
    }

    /// Takes the next part of many pieces: of what may be compacted there is no more than it
    /// counts.
    pub fn push_part(&mut self, part: &Piece) {
        if self.ended || part.last < self.look.clean_upto || part.base >= self.look.upto {
            return;
        }
        if part.last < self.look.settled {
            self.closed_bytes = self.closed_bytes.saturating_add(part.bytes);
        } else {
            self.open_bytes = self.open_bytes.saturating_add(part.bytes);
            self.open_time.get_or_insert(part.max_timestamp);
        }
        // The first young piece is in it, unless that is clean already.
        let young = self.look.now_ms.saturating_sub(part.max_timestamp) < self.rules.min_lag_ms;
        self.ended = self.rules.min_lag_ms > 0 && young && part.base >= self.look.clean_upto;
    }

    /// Tells the time of the first piece.
    pub fn begins(&mut self, first_time: i64) {
        self.first_time = Some(first_time);
    }

    /// Whether there is nothing to be done, whatever comes.
    pub fn is_idle(&self) -> bool {
        self.ended && self.closed_bytes == 0 && self.open_bytes == 0
    }

    /// The log has ended: what is to be done, if it is time. `clean_bytes` are those of what the
    /// last compaction left.
    pub fn finish(&self, clean_bytes: u64) -> Option<Plan> {
        let (rules, look) = (self.rules, self.look);
        let age = |time: Option<i64>| time.map_or(0, |time| look.now_ms.saturating_sub(time));
        let overdue = age(self.first_time) > rules.max_lag_ms;
        let open = self.open_bytes;
        let large = u64::try_from(look.segment_bytes).is_ok_and(|max| open > max);
        let old = age(self.open_time) > look.segment_ms;
        let seal = look.may_seal && open > 0 && (overdue || large || old);
        let dirty = self
            .closed_bytes
            .saturating_add(if seal { open } else { 0 });
        let all = u128::from(dirty.saturating_add(clean_bytes));
        let filthy =
            u128::from(dirty) * u128::from(WHOLE) > all * u128::from(rules.min_dirty_ratio);
        let upto = self.end;
        (dirty > 0 && (overdue || filthy)).then_some(Plan { upto, seal })
    }
}

#[cfg(test)]
mod tests;

//! What readers may see of a partition, and how much of it is new.

use super::Isolation;

/// What readers may see of a partition. All of it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Visible {
    /// First offset.
    pub log_start: i64,
    /// Behind the last durable record.
    pub high_watermark: i64,
    /// First offset of the earliest open transaction, or the high watermark.
    pub last_stable: i64,
    /// Bytes of batches below the high watermark, counted from wherever; wraps. What became visible
    /// since an earlier moment has at most as many as this has grown by.
    pub bytes: u64,
}

impl Visible {
    /// The most bytes that a reader of this isolation may see now and could not see `then`.
    pub fn bytes_since(&self, then: &Self, isolation: Isolation) -> u64 {
        match isolation {
            Isolation::ReadCommitted if self.last_stable == then.last_stable => 0,
            // What lay behind the open transaction then was counted before.
            Isolation::ReadCommitted if then.last_stable < then.high_watermark => u64::MAX,
            Isolation::ReadCommitted | Isolation::ReadUncommitted => {
                self.bytes.wrapping_sub(then.bytes)
            }
        }
    }
}

/// What [`Visible::bytes`] grows by where batches become visible that nobody counted.
pub(super) const UNCOUNTED: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(high_watermark: i64, last_stable: i64, bytes: u64) -> Visible {
        Visible {
            log_start: 0,
            high_watermark,
            last_stable,
            bytes,
        }
    }

    #[test]
    fn what_is_new_is_never_counted_too_low() {
        let both = |now: Visible, then: Visible| {
            let levels = [Isolation::ReadUncommitted, Isolation::ReadCommitted];
            levels.map(|level| now.bytes_since(&then, level))
        };
        let start = at(5, 5, u64::MAX - 9);
        assert_eq!(both(start, start), [0, 0]);
        // It wraps.
        assert_eq!(both(at(7, 7, 90), start), [100, 100]);
        // A transaction opens, grows, and ends.
        let open = at(9, 5, 190);
        assert_eq!(both(open, start), [200, 0]);
        assert_eq!(both(at(10, 10, 270), start), [280, 280]);
        // Whoever looked meanwhile has seen nothing of it.
        assert_eq!(both(at(10, 10, 270), open), [80, u64::MAX]);
        assert_eq!(both(at(10, 7, 270), open), [80, u64::MAX]);
        assert_eq!(both(at(11, 5, 300), open), [110, 0]);
        assert_eq!(both(at(6, 6, UNCOUNTED), at(5, 5, 0)), [UNCOUNTED; 2]);
    }
}

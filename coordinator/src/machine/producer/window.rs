//! The last batches of one producer at its present epoch, oldest first. `ProducerStateEntry` of
//! Kafka keeps the same five.

use store_adapter::ids::Sequence;

use super::BatchMeta;

/// Batches that a window holds.
pub const WINDOW_LEN: usize = 5;

/// One accepted data batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchMetadata {
    /// Sequence of the first record.
    pub first_seq: Sequence,
    /// Sequence of the last record.
    pub last_seq: Sequence,
    /// Last offset minus base offset.
    pub offset_delta: i32,
    /// CRC-32C of the batch.
    pub crc: u32,
    /// Offset of the first record.
    pub base_offset: i64,
    /// Largest timestamp, ms.
    pub timestamp: i64,
}

impl BatchMetadata {
    const NONE: Self = Self {
        first_seq: Sequence(-1),
        last_seq: Sequence(-1),
        offset_delta: 0,
        crc: 0,
        base_offset: -1,
        timestamp: -1,
    };

    /// What the window keeps of `batch`.
    pub fn of(batch: &BatchMeta) -> Self {
        let delta = batch.last_offset.saturating_sub(batch.base_offset);
        Self {
            first_seq: batch.first_seq,
            last_seq: batch.last_seq,
            offset_delta: i32::try_from(delta).unwrap_or(i32::MAX),
            crc: batch.crc,
            base_offset: batch.base_offset,
            timestamp: batch.max_timestamp,
        }
    }

    /// Offset of the last record.
    pub fn last_offset(&self) -> i64 {
        self.base_offset
            .saturating_add(i64::from(self.offset_delta))
    }
}

/// At most [`WINDOW_LEN`] batches, without an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    // Slots from `len` on hold `BatchMetadata::NONE`, so equality is that of the batches.
    batches: [BatchMetadata; WINDOW_LEN],
    len: u8,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            batches: [BatchMetadata::NONE; WINDOW_LEN],
            len: 0,
        }
    }
}

impl Window {
    /// The batches, oldest first.
    pub fn batches(&self) -> &[BatchMetadata] {
        self.batches
            .get(..usize::from(self.len))
            .unwrap_or_default()
    }

    /// Sequence of the newest batch's last record.
    pub fn last_seq(&self) -> Option<Sequence> {
        self.batches().last().map(|batch| batch.last_seq)
    }

    /// The batch whose first and last sequence are exactly these. After 2^31 records both can
    /// come again; the newest is meant then.
    pub fn find(&self, first_seq: Sequence, last_seq: Sequence) -> Option<&BatchMetadata> {
        self.batches()
            .iter()
            .rev()
            .find(|batch| batch.first_seq == first_seq && batch.last_seq == last_seq)
    }

    /// Takes a batch; the oldest leaves a full window.
    pub fn push(&mut self, batch: BatchMetadata) {
        if usize::from(self.len) == WINDOW_LEN {
            self.batches.rotate_left(1);
            self.len -= 1;
        }
        if let Some(slot) = self.batches.get_mut(usize::from(self.len)) {
            *slot = batch;
            self.len += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(first: i32, last: i32, base_offset: i64) -> BatchMetadata {
        BatchMetadata {
            first_seq: Sequence(first),
            last_seq: Sequence(last),
            offset_delta: last - first,
            base_offset,
            ..BatchMetadata::NONE
        }
    }

    #[test]
    fn keeps_the_newest_five_in_order() {
        let mut window = Window::default();
        assert_eq!(window.last_seq(), None);
        for seq in 0..7 {
            window.push(batch(seq, seq, i64::from(seq)));
        }
        let kept: Vec<i32> = window.batches().iter().map(|b| b.first_seq.0).collect();
        assert_eq!(kept, [2, 3, 4, 5, 6]);
        assert_eq!(window.last_seq(), Some(Sequence(6)));
    }

    #[test]
    fn finds_both_ends_exactly_and_nothing_else() {
        let mut window = Window::default();
        window.push(batch(0, 2, 10));
        window.push(batch(3, 5, 13));
        assert_eq!(
            window.find(Sequence(0), Sequence(2)).map(|b| b.base_offset),
            Some(10)
        );
        assert_eq!(
            window
                .find(Sequence(3), Sequence(5))
                .map(BatchMetadata::last_offset),
            Some(15)
        );
        for (first, last) in [(0, 1), (1, 2), (0, 5), (0, 3), (2, 3), (6, 8)] {
            assert_eq!(
                window.find(Sequence(first), Sequence(last)),
                None,
                "{first}-{last}"
            );
        }
    }
}

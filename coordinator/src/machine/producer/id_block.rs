//! Arithmetic of producer ids: `(broker + 1) * 2^40 + local`, reserved in blocks.

use store_adapter::ids::{BrokerId, ProducerId};

/// Ids of one block.
pub const BLOCK_LEN: i64 = 1000;
/// Local values of one broker: 0 to this, exclusive.
pub const LOCAL_MAX: i64 = 1 << 40;
/// Highest broker number whose ids stay below 2^53.
pub const BROKER_ID_MAX: i32 = 8190;

/// Why there is no block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdBlockError {
    /// The broker's number is out of range.
    #[error("broker id {0}: producer ids need 0 to {BROKER_ID_MAX}")]
    BrokerId(i32),
    /// The first local value is negative.
    #[error("next block {0} is negative")]
    Negative(i64),
    /// Fewer than [`BLOCK_LEN`] local values are left.
    #[error("next block {0}: the producer ids of this broker are used up")]
    Exhausted(i64),
}

/// Ids that nobody else hands out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdBlock {
    next: i64,
    end: i64,
}

impl IdBlock {
    /// The block of `broker` that begins at the local value `next_block`, and the local value
    /// behind it, which must be durable before an id of the block is used.
    pub fn reserve(broker: BrokerId, next_block: i64) -> Result<(Self, i64), IdBlockError> {
        if !(0..=BROKER_ID_MAX).contains(&broker.0) {
            return Err(IdBlockError::BrokerId(broker.0));
        }
        if next_block < 0 {
            return Err(IdBlockError::Negative(next_block));
        }
        if next_block > LOCAL_MAX - BLOCK_LEN {
            return Err(IdBlockError::Exhausted(next_block));
        }
        let base = (i64::from(broker.0) + 1) * LOCAL_MAX;
        let behind = next_block + BLOCK_LEN;
        let block = Self {
            next: base + next_block,
            end: base + behind,
        };
        Ok((block, behind))
    }

    /// The next id of the block.
    pub fn take(&mut self) -> Option<ProducerId> {
        if self.next == self.end {
            return None;
        }
        let id = ProducerId(self.next);
        self.next += 1;
        Some(id)
    }

    /// Ids left.
    pub fn remaining(&self) -> i64 {
        self.end - self.next
    }
}

/// The block in use and the one that was fetched ahead.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct IdBlocks {
    current: Option<IdBlock>,
    ahead: Option<IdBlock>,
}

impl IdBlocks {
    /// The next id, if a block holds one.
    pub fn take(&mut self) -> Option<ProducerId> {
        if let Some(id) = self.current.as_mut().and_then(IdBlock::take) {
            return Some(id);
        }
        self.current = self.ahead.take();
        self.current.as_mut().and_then(IdBlock::take)
    }

    /// Whether another block should be reserved: 90 % of the last one are used.
    pub fn wants_block(&self) -> bool {
        let left = self.current.as_ref().map_or(0, IdBlock::remaining);
        self.ahead.is_none() && left <= BLOCK_LEN / 10
    }

    /// Takes a block whose end is durable. One is asked for only when [`Self::wants_block`].
    pub fn add(&mut self, block: IdBlock) {
        if self
            .current
            .as_ref()
            .is_none_or(|block| block.remaining() == 0)
        {
            self.current = Some(block);
        } else {
            self.ahead = Some(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_ids_of_brokers() {
        for (broker, first) in [(0, 1_099_511_627_776), (1, 2_199_023_255_552)] {
            let (mut block, behind) = IdBlock::reserve(BrokerId(broker), 0).unwrap();
            assert_eq!(block.take(), Some(ProducerId(first)));
            assert_eq!((behind, block.remaining()), (1000, 999));
        }
        let (mut block, behind) = IdBlock::reserve(BrokerId(0), 3).unwrap();
        assert_eq!(block.take(), Some(ProducerId(1_099_511_627_779)));
        assert_eq!(behind, 1003);
    }

    #[test]
    fn limits() {
        assert_eq!(
            IdBlock::reserve(BrokerId(-1), 0),
            Err(IdBlockError::BrokerId(-1))
        );
        assert_eq!(
            IdBlock::reserve(BrokerId(8191), 0),
            Err(IdBlockError::BrokerId(8191))
        );
        assert_eq!(
            IdBlock::reserve(BrokerId(0), -1),
            Err(IdBlockError::Negative(-1))
        );
        let last = 1_099_511_627_776 - 1000;
        let (mut block, behind) = IdBlock::reserve(BrokerId(8190), last).unwrap();
        assert_eq!(behind, 1_099_511_627_776);
        let ids: Vec<ProducerId> = std::iter::from_fn(|| block.take()).collect();
        assert_eq!(ids.len(), 1000);
        // 8192 * 2^40 - 1, the largest of all, is below 2^53.
        assert_eq!(ids.last(), Some(&ProducerId(9_007_199_254_740_991)));
        let over = IdBlock::reserve(BrokerId(0), last + 1);
        assert_eq!(over, Err(IdBlockError::Exhausted(last + 1)));
        let far = IdBlock::reserve(BrokerId(0), i64::MAX);
        assert_eq!(far, Err(IdBlockError::Exhausted(i64::MAX)));
    }

    #[test]
    fn a_block_is_wanted_at_ninety_percent_and_only_once() {
        let mut blocks = IdBlocks::default();
        assert!(blocks.wants_block());
        assert_eq!(blocks.take(), None);
        blocks.add(IdBlock::reserve(BrokerId(0), 0).unwrap().0);
        for _ in 0..899 {
            blocks.take().unwrap();
        }
        assert!(!blocks.wants_block());
        blocks.take().unwrap();
        assert!(blocks.wants_block());
        blocks.add(IdBlock::reserve(BrokerId(0), 1000).unwrap().0);
        assert!(!blocks.wants_block());
        let first = 1_099_511_627_776;
        for local in 900..2000 {
            assert_eq!(blocks.take(), Some(ProducerId(first + local)));
        }
        assert_eq!(blocks.take(), None);
    }
}

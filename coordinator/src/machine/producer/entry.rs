//! One producer on one partition, and the rules by which a batch changes or contradicts it.

use store_adapter::ids::{ProducerEpoch, Sequence};

use super::window::{BatchMetadata, Window};
use super::{BatchMeta, MarkerInfo};

/// The newest marker of a producer that carried a transaction number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastMarker {
    /// The epoch that the marker carried.
    pub epoch: ProducerEpoch,
    /// Number of the transaction that it ended.
    pub txn_seq: u64,
    /// COMMIT, or ABORT.
    pub commit: bool,
}

impl LastMarker {
    /// Whether the transaction of this number, whose marker has this epoch, was ended by it or
    /// before it. Epochs and numbers of a producer only grow; only a slot that was repaired from an
    /// older file counts numbers again, and then under epochs that are higher.
    pub(super) fn covers(&self, epoch: ProducerEpoch, txn_seq: u64) -> bool {
        self.txn_seq >= txn_seq && self.epoch >= epoch
    }
}

/// State of one producer on one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerEntry {
    /// Highest epoch seen.
    pub epoch: ProducerEpoch,
    /// Last batches at that epoch; empty when only a marker was seen at it.
    pub window: Window,
    /// Record timestamp of the last batch, ms; DescribeProducers shows it.
    pub last_timestamp: i64,
    /// Latest append, ms since the Unix epoch; expiry counts from it.
    pub last_append_ms: i64,
    /// First offset of the open transaction.
    pub current_txn_first_offset: Option<i64>,
    /// Coordinator epoch of the last marker, -1 for none.
    pub coordinator_epoch: i32,
    /// The last numbered marker.
    pub last_marker: Option<LastMarker>,
}

/// What a batch did to the transactions of its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TxnChange {
    /// None was opened or ended.
    None,
    /// The batch opened one at its base offset.
    Opened,
    /// The marker ended the one that began at `first_offset`.
    Ended { first_offset: i64, commit: bool },
}

/// Why a batch cannot follow what an entry holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    StaleEpoch,
    OutOfOrder,
    InvalidTxnState,
}

impl ProducerEntry {
    /// A producer that was never seen, before its batch is applied.
    pub(super) fn new(batch: &BatchMeta) -> Self {
        Self {
            epoch: batch.producer_epoch,
            window: Window::default(),
            last_timestamp: batch.max_timestamp,
            last_append_ms: batch.append_ms,
            current_txn_first_offset: None,
            coordinator_epoch: -1,
            last_marker: None,
        }
    }

    /// Whether the producer counts as unknown at `now_ms`: idle for `limit_ms`, and without an
    /// open transaction.
    pub fn is_expired(&self, now_ms: i64, limit_ms: i64) -> bool {
        self.current_txn_first_offset.is_none()
            && now_ms.saturating_sub(self.last_append_ms) >= limit_ms
    }

    /// The batch of the window that `batch` repeats. Epochs that differ are never a repetition.
    pub(super) fn duplicate(&self, batch: &BatchMeta) -> Option<&BatchMetadata> {
        if batch.producer_epoch != self.epoch {
            return None;
        }
        self.window.find(batch.first_seq, batch.last_seq)
    }

    /// Whether a data batch that repeats nothing may follow. Epoch, then sequence, then
    /// transaction, as `ProducerAppendInfo` of Kafka orders them.
    pub(super) fn follow(&self, batch: &BatchMeta) -> Result<(), Refusal> {
        if batch.producer_epoch < self.epoch {
            return Err(Refusal::StaleEpoch);
        }
        let next = match self.window.last_seq() {
            Some(last) if batch.producer_epoch == self.epoch => last.plus(1),
            _ => Sequence(0),
        };
        if batch.first_seq != next {
            return Err(Refusal::OutOfOrder);
        }
        if self.current_txn_first_offset.is_some() && !batch.is_transactional {
            return Err(Refusal::InvalidTxnState);
        }
        Ok(())
    }

    /// Whether a numbered marker has nothing to do here any more: the producer has it or a later
    /// one, or is past its epoch with no transaction open, so that there is nothing left to end
    /// and nobody left to fence. Without a number only the epochs judge.
    pub(super) fn has_ended(&self, epoch: ProducerEpoch, marker: &MarkerInfo) -> bool {
        let Some(txn_seq) = marker.txn_seq else {
            return false;
        };
        let known = self.last_marker;
        known.is_some_and(|last| last.covers(epoch, txn_seq))
            || (self.current_txn_first_offset.is_none() && epoch < self.epoch)
    }

    /// Takes a batch that is in the log, or queued for it. Never refuses: the log is the truth.
    /// A batch or marker of a lower epoch, which this broker never writes, leaves epoch and window.
    pub(super) fn apply(&mut self, batch: &BatchMeta) -> TxnChange {
        if batch.producer_epoch > self.epoch {
            self.epoch = batch.producer_epoch;
            self.window = Window::default();
        }
        self.last_timestamp = batch.max_timestamp;
        // A clock that stepped back must not make the producer look idle.
        self.last_append_ms = self.last_append_ms.max(batch.append_ms);
        if let Some(marker) = batch.marker {
            return self.apply_marker(batch.producer_epoch, marker);
        }
        if batch.producer_epoch == self.epoch && batch.first_seq.0 >= 0 {
            self.window.push(BatchMetadata::of(batch));
        }
        if batch.is_transactional && self.current_txn_first_offset.is_none() {
            self.current_txn_first_offset = Some(batch.base_offset);
            return TxnChange::Opened;
        }
        TxnChange::None
    }

    fn apply_marker(&mut self, epoch: ProducerEpoch, marker: MarkerInfo) -> TxnChange {
        self.coordinator_epoch = marker.coordinator_epoch;
        if let Some(txn_seq) = marker.txn_seq
            && self
                .last_marker
                .is_none_or(|last| last.txn_seq <= txn_seq || last.epoch < epoch)
        {
            self.last_marker = Some(LastMarker {
                epoch,
                txn_seq,
                commit: marker.commit,
            });
        }
        match self.current_txn_first_offset.take() {
            Some(first_offset) => TxnChange::Ended {
                first_offset,
                commit: marker.commit,
            },
            None => TxnChange::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_small() {
        // A partition can know very many idle producers for a day.
        assert!(
            size_of::<ProducerEntry>() <= 240,
            "{}",
            size_of::<ProducerEntry>()
        );
    }
}

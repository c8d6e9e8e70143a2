//! Open and aborted transactions of one partition, of its durable log only.

use std::collections::{BTreeMap, BTreeSet};

use store_adapter::ids::ProducerId;

/// A transaction that an ABORT marker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortedTxn {
    /// Its producer.
    pub producer_id: ProducerId,
    /// Offset of its first record on this partition.
    pub first_offset: i64,
    /// Offset of its marker.
    pub last_offset: i64,
    /// First offset of the earliest transaction that was still open behind the marker, or the
    /// offset behind the marker: later entries begin at or behind it. `None` when unknown.
    pub last_stable_offset: Option<i64>,
}

/// Open transactions by first offset, and aborted ones in order of their markers.
///
/// The aborted list grows with the aborted transactions that the log still holds (40 bytes each)
/// and shrinks with the log's start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TxnIndex {
    open: BTreeMap<i64, ProducerId>,
    aborted: Vec<AbortedTxn>,
}

impl TxnIndex {
    /// An index of these. `open` is (first offset, producer); `aborted` is in order of markers.
    pub(super) fn new(
        open: impl IntoIterator<Item = (i64, ProducerId)>,
        aborted: Vec<AbortedTxn>,
    ) -> Self {
        Self {
            open: open.into_iter().collect(),
            aborted,
        }
    }

    /// Open transactions: first offset and producer, in order of offsets.
    pub fn open(&self) -> impl Iterator<Item = (i64, ProducerId)> + '_ {
        self.open
            .iter()
            .map(|(first, producer)| (*first, *producer))
    }

    /// Every aborted transaction, in order of markers.
    pub fn all_aborted(&self) -> &[AbortedTxn] {
        &self.aborted
    }

    /// First offset of the earliest open transaction.
    pub fn first_open(&self) -> Option<i64> {
        self.open.first_key_value().map(|(first, _)| *first)
    }

    pub(super) fn opened(&mut self, first_offset: i64, producer_id: ProducerId) {
        self.open.insert(first_offset, producer_id);
    }

    /// A marker at `marker_offset` ended the transaction that began at `first_offset`.
    pub(super) fn ended(
        &mut self,
        producer_id: ProducerId,
        first_offset: i64,
        marker_offset: i64,
        commit: bool,
    ) {
        self.open.remove(&first_offset);
        if commit {
            return;
        }
        let behind = marker_offset.saturating_add(1);
        self.aborted.push(AbortedTxn {
            producer_id,
            first_offset,
            last_offset: marker_offset,
            last_stable_offset: Some(self.first_open().unwrap_or(behind)),
        });
    }

    /// Forgets aborted transactions by the offsets of their markers; how many it were.
    pub(super) fn forget(&mut self, markers: &BTreeSet<i64>) -> usize {
        let before = self.aborted.len();
        self.aborted
            .retain(|txn| !markers.contains(&txn.last_offset));
        before - self.aborted.len()
    }

    /// Forgets aborted transactions that lie wholly below `log_start`.
    pub(super) fn trim(&mut self, log_start: i64) {
        let below = self
            .aborted
            .partition_point(|txn| txn.last_offset < log_start);
        self.aborted.drain(..below);
    }

    /// The aborted transactions that a reader of `from..upto` must know: those whose marker is at
    /// or behind `from` and whose first record is below `upto`. In order of first offsets.
    pub fn aborted(&self, from: i64, upto: i64) -> Vec<AbortedTxn> {
        let begin = self.aborted.partition_point(|txn| txn.last_offset < from);
        let mut found = Vec::new();
        for txn in self.aborted.get(begin..).unwrap_or_default() {
            if txn.first_offset < upto {
                found.push(*txn);
            }
            if txn.last_stable_offset.is_some_and(|stable| stable >= upto) {
                break;
            }
        }
        found.sort_by_key(|txn| txn.first_offset);
        found
    }
}

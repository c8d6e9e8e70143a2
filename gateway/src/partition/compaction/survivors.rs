//! What of a batch survives compaction: a pure function of the batch and of what was found out
//! about the log before. As Kafka's `Cleaner` decides.
//!
//! - A record stays if it is the newest of its key. Records behind those that were looked at are
//!   not asked about.
//! - A record without value, a tombstone, stays until `delete.retention.ms` have passed since it
//!   was first alone: whoever read an older record has so long to read it too. That time, the
//!   *delete horizon*, stands in its batch.
//! - Records of aborted transactions go; nothing of an undecided one is asked about.
//! - A marker stays while a batch of its transaction is left, and `delete.retention.ms` longer.
//! - The last batch of a producer stays, if need be without records: its sequence numbers are what
//!   a broker knows of the producer when it has nothing but the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use coordinator::machine::producer::{AbortedTxn, BatchMetadata, ProducerStates};
use store_adapter::batch::BatchHeader;
use store_adapter::control::EndTxnMarker;
use store_adapter::fault::{Fault, planted};
use store_adapter::ids::{ProducerEpoch, ProducerId};
use store_adapter::rebuild::{RebuildError, Rebuilt, hollow, rebuild};
use store_adapter::records::Record;
use store_adapter::store::{Left, Sieve, StoredBatch};

/// Memory of a key beside its bytes, about.
const KEY_OVERHEAD: usize = 64;
/// Memory of a transaction or a producer that is known, about.
const KNOWN_BYTES: usize = 48;

/// The newest offset of every key that was seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewestOffsets {
    offsets: BTreeMap<Box<[u8]>, i64>,
    bytes: usize,
}

impl NewestOffsets {
    /// Notes a record. Offsets come in order.
    pub fn note(&mut self, key: &[u8], offset: i64) {
        if let Some(newest) = self.offsets.get_mut(key) {
            *newest = offset;
            return;
        }
        self.bytes += key.len() + KEY_OVERHEAD;
        self.offsets.insert(key.into(), offset);
    }

    /// Bytes of memory, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn of(&self, key: &[u8]) -> Option<i64> {
        self.offsets.get(key).copied()
    }
}

/// The transactions that were aborted, by producer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Aborted(Arc<BTreeMap<(ProducerId, i64), i64>>);

impl Aborted {
    /// Of a list.
    pub fn new(aborted: &[AbortedTxn]) -> Self {
        let keyed = aborted
            .iter()
            .map(|txn| ((txn.producer_id, txn.last_offset), txn.first_offset));
        Self(Arc::new(keyed.collect()))
    }

    /// Whether a batch is of an aborted transaction.
    pub fn has(&self, header: &BatchHeader) -> bool {
        if !header.is_transactional() {
            return false;
        }
        let (id, offset) = (header.producer_id, header.base_offset);
        let mut ending = self.0.range((id, offset)..=(id, i64::MAX));
        ending.next().is_some_and(|(_, first)| *first <= offset)
    }
}

/// The last thing that a producer wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastWritten {
    /// Last offset of its last batch of this epoch; `None` when it has written but markers.
    pub last_offset: Option<i64>,
    /// Its epoch.
    pub epoch: ProducerEpoch,
}

/// What is known of a log before its batches are judged.
#[derive(Debug, Clone, Default)]
pub struct Survivors {
    /// The newest records.
    pub newest: NewestOffsets,
    /// Aborted transactions.
    pub aborted: Aborted,
    /// Markers, by offset, of whose transactions no batch is left.
    pub needless_markers: BTreeSet<i64>,
    /// What is known of producers that are not forgotten yet.
    pub producers: BTreeMap<ProducerId, LastWritten>,
    /// The time, ms since the Unix epoch.
    pub now_ms: i64,
    /// `delete.retention.ms`.
    pub delete_retention_ms: i64,
    /// Whether tombstones stay however old they are: a batch that can't be taken apart may hold an
    /// older record of their key, which would be there again without them.
    pub tombstones_stay: bool,
}

/// The last batches of the producers of a partition, as far as they matter below `upto`.
pub fn last_written(states: &ProducerStates, upto: i64) -> Vec<(ProducerId, LastWritten)> {
    let last = states.producers().map(|(id, entry)| {
        let batches = entry.window.batches();
        let last = LastWritten {
            last_offset: batches.last().map(BatchMetadata::last_offset),
            epoch: entry.epoch,
        };
        (id, last)
    });
    // A later one is none of those that are judged.
    last.filter(|(_, last)| last.last_offset.is_none_or(|offset| offset < upto))
        .collect()
}

impl Sieve for Survivors {
    fn sift(&self, batch: &StoredBatch) -> Left {
        self.judge(&batch.bytes)
    }
}

impl Survivors {
    /// Bytes of memory of what is known beside keys and markers, about.
    pub fn known_bytes(&self) -> usize {
        (self.aborted.0.len() + self.producers.len()) * KNOWN_BYTES
    }

    /// What is left of a batch. One that can't be taken apart stays as it is.
    pub fn judge(&self, batch: &Bytes) -> Left {
        let Ok(header) = BatchHeader::read(batch) else {
            return Left::Whole;
        };
        if header.is_control() {
            return self.marker(&header, batch);
        }
        let left = if self.aborted.has(&header) {
            Ok(Rebuilt::Nothing)
        } else {
            self.records(&header, batch)
        };
        match left {
            Err(_) | Ok(Rebuilt::Same) => Left::Whole,
            Ok(Rebuilt::Batch(batch)) => Left::Batch(batch),
            Ok(Rebuilt::Nothing) if !self.is_last_of_producer(&header) => Left::Nothing,
            Ok(Rebuilt::Nothing) if header.records_count == 0 => Left::Whole,
            Ok(Rebuilt::Nothing) => Left::Batch(hollow(&header)),
        }
    }

    fn records(&self, header: &BatchHeader, batch: &Bytes) -> Result<Rebuilt, RebuildError> {
        let mut tombstones = false;
        let left = rebuild(batch, None, |record| {
            let kept = self.keeps(header, record);
            tombstones |= kept && record.value.is_none();
            kept
        })?;
        if !tombstones || header.delete_horizon().is_some() {
            return Ok(left);
        }
        rebuild(batch, Some(self.horizon()), |record| {
            self.keeps(header, record)
        })
    }

    fn keeps(&self, header: &BatchHeader, record: &Record<'_>) -> bool {
        let Some(key) = record.key else {
            return false;
        };
        let delta = i64::from(record.offset_delta);
        let offset = header.base_offset.saturating_add(delta);
        let newest = self.newest.of(key);
        if planted(Fault::NewestNotKept) {
            return newest.is_some_and(|newest| offset < newest);
        }
        newest.is_none_or(|newest| offset >= newest)
            && (record.value.is_some() || self.tombstones_stay || self.is_early(header))
    }

    fn marker(&self, header: &BatchHeader, batch: &Bytes) -> Left {
        let needless = self.needless_markers.contains(&header.base_offset)
            && EndTxnMarker::read(batch).is_some()
            && !self.is_last_of_producer(header);
        if !needless {
            return Left::Whole;
        }
        if header.delete_horizon().is_none() {
            return match rebuild(batch, Some(self.horizon()), |_| true) {
                Ok(Rebuilt::Batch(batch)) => Left::Batch(batch),
                Ok(_) | Err(_) => Left::Whole,
            };
        }
        if self.is_early(header) {
            Left::Whole
        } else {
            Left::Nothing
        }
    }

    /// Whether the delete horizon of a batch is not passed, or not set.
    fn is_early(&self, header: &BatchHeader) -> bool {
        header
            .delete_horizon()
            .is_none_or(|horizon| self.now_ms < horizon)
    }

    fn horizon(&self) -> i64 {
        self.now_ms.saturating_add(self.delete_retention_ms)
    }

    fn is_last_of_producer(&self, header: &BatchHeader) -> bool {
        let last = self.producers.get(&header.producer_id);
        last.is_some_and(|last| match last.last_offset {
            Some(offset) => header.last_offset() == offset,
            None => header.is_control() && header.producer_epoch == last.epoch,
        })
    }
}

#[cfg(test)]
mod tests;

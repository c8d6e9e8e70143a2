//! What has to be known of a log before its batches are judged, gathered batch by batch in order of
//! offset.

use std::collections::BTreeSet;

use store_adapter::batch::BatchHeader;
use store_adapter::control::EndTxnMarker;
use store_adapter::ids::ProducerId;
use store_adapter::rebuild::each;
use store_adapter::store::StoredBatch;

use super::survivors::{Aborted, NewestOffsets};

/// Memory of a marker that is noted, about.
const MARKER_BYTES: usize = 32;

/// The part of the memory that markers may have: what is noted of them must not keep the scan from
/// what is new.
const MARKERS_PART: usize = 2;

/// Looks at a log from its start, or from where nothing was looked at, on.
#[derive(Debug)]
pub struct Scan {
    /// The newest records behind where the last compaction came to.
    pub newest: NewestOffsets,
    /// Markers of whose transactions no batch was seen, without those whose delete horizon is not
    /// passed. Not all if there are many: one that is not here stays longer, and does no harm.
    pub needless_markers: BTreeSet<i64>,
    /// Whether a batch of a transaction, or a marker, was seen.
    pub transactional: bool,
    /// Batches that could not be taken apart.
    pub opaque: u64,
    aborted: Aborted,
    /// Where keys are noted from.
    dirty_from: i64,
    /// Bytes of memory for keys.
    budget: usize,
    /// The time, ms since the Unix epoch.
    now_ms: i64,
    /// Producers of which a batch was seen since their last marker.
    open: BTreeSet<ProducerId>,
    end: i64,
}

impl Scan {
    /// Nothing looked at yet. Keys are noted from `dirty_from` on while they need at most `budget`
    /// bytes.
    pub fn new(aborted: Aborted, dirty_from: i64, budget: usize, now_ms: i64) -> Self {
        Self {
            newest: NewestOffsets::default(),
            needless_markers: BTreeSet::new(),
            transactional: false,
            opaque: 0,
            aborted,
            dirty_from,
            budget,
            now_ms,
            open: BTreeSet::new(),
            end: 0,
        }
    }

    /// Behind the last batch that was looked at.
    pub fn end(&self) -> i64 {
        self.end
    }

    /// Looks at the next batch. `false` once there is no memory for further ones: of what comes
    /// behind nothing may be judged.
    pub fn take(&mut self, batch: &StoredBatch) -> bool {
        self.end = batch.last_offset.saturating_add(1);
        let Ok(header) = BatchHeader::read(&batch.bytes) else {
            self.opaque += 1;
            return true;
        };
        if header.is_control() {
            self.marker(&header, batch);
        } else {
            self.data(&header, batch);
        }
        self.bytes() < self.budget
    }

    /// Bytes of memory that it takes, about.
    pub fn bytes(&self) -> usize {
        self.newest.bytes() + self.marker_bytes()
    }

    fn marker_bytes(&self) -> usize {
        self.needless_markers.len() * MARKER_BYTES
    }

    fn marker(&mut self, header: &BatchHeader, batch: &StoredBatch) {
        self.transactional = true;
        if EndTxnMarker::read(&batch.bytes).is_none() {
            // Of a kind that ends nothing.
            return;
        }
        let is_left = self.open.remove(&header.producer_id);
        let horizon = header.delete_horizon();
        let waits = horizon.is_some_and(|horizon| self.now_ms < horizon);
        let room = self.marker_bytes() + MARKER_BYTES <= self.budget / MARKERS_PART;
        if !is_left && !waits && room {
            self.needless_markers.insert(header.base_offset);
        }
    }

    fn data(&mut self, header: &BatchHeader, batch: &StoredBatch) {
        if header.is_transactional() {
            self.transactional = true;
            self.open.insert(header.producer_id);
        }
        if batch.last_offset < self.dirty_from || self.aborted.has(header) {
            return;
        }
        let newest = &mut self.newest;
        let looked = each(&batch.bytes, |record| {
            let delta = i64::from(record.offset_delta);
            if let Some(key) = record.key {
                newest.note(key, header.base_offset.saturating_add(delta));
            }
        });
        self.opaque += u64::from(looked.is_err());
    }
}

#[cfg(test)]
mod tests {
    use coordinator::machine::producer::AbortedTxn;
    use store_adapter::batch::Batch;
    use store_adapter::rebuild::{Rebuilt, rebuild};

    use super::*;
    use crate::partition::compaction::samples::{in_txn, marker, plain, stored};

    fn aborted() -> Aborted {
        Aborted::new(&[AbortedTxn {
            producer_id: ProducerId(8),
            first_offset: 10,
            last_offset: 12,
            last_stable_offset: None,
        }])
    }

    #[test]
    fn keys_are_those_of_what_is_new_and_not_aborted() {
        let mut scan = Scan::new(aborted(), 5, 1 << 20, 0);
        for batch in [
            plain(0, "old=1 a=1"),
            plain(4, "a=1 b=1 a=2"),
            in_txn(10, 8, "b=2 c=1"),
            marker(12, 8, false),
            in_txn(13, 9, "d=1 =2"),
        ] {
            assert!(scan.take(&stored(&batch)));
        }
        let mut newest = NewestOffsets::default();
        for (key, offset) in [("a", 4), ("b", 5), ("a", 6), ("d", 13)] {
            newest.note(key.as_bytes(), offset);
        }
        assert_eq!(scan.newest, newest);
        assert_eq!((scan.end(), scan.opaque, scan.transactional), (15, 0, true));
    }

    #[test]
    fn a_marker_is_needed_while_a_batch_of_its_transaction_is_there() {
        let mut scan = Scan::new(aborted(), 0, 1 << 20, 0);
        for batch in [
            marker(2, 7, true),
            in_txn(3, 7, "a=1"),
            in_txn(4, 8, "a=1"),
            marker(5, 7, true),
            marker(6, 7, false),
            marker(12, 8, false),
            marker(13, 8, true),
        ] {
            assert!(scan.take(&stored(&batch)));
        }
        assert_eq!(scan.needless_markers, BTreeSet::from([2, 6, 13]));
    }

    #[test]
    fn markers_do_not_keep_it_from_what_is_new() {
        let mut scan = Scan::new(Aborted::default(), 100, 1_000, 0);
        for offset in 0..100 {
            assert!(scan.take(&stored(&marker(offset, 7, true))), "{offset}");
        }
        // The first ones, in half of the memory.
        assert_eq!(scan.needless_markers, (0..15).collect());
        assert!(scan.take(&stored(&plain(100, "a=1 b=1"))));
        assert!(!scan.take(&stored(&plain(102, "c=1 d=1 e=1 f=1 g=1 h=1"))));
    }

    #[test]
    fn a_marker_that_waits_for_its_horizon_is_not_noted() {
        let with_horizon = match rebuild(&marker(2, 7, true), Some(500), |_| true) {
            Ok(Rebuilt::Batch(batch)) => batch,
            other => panic!("{other:?}"),
        };
        for (now_ms, noted) in [(499, &[][..]), (500, &[2])] {
            let mut scan = Scan::new(Aborted::default(), 0, 1 << 20, now_ms);
            assert!(scan.take(&stored(&with_horizon)));
            assert_eq!(scan.needless_markers, noted.iter().copied().collect());
        }
    }

    #[test]
    fn a_control_batch_of_another_kind_ends_no_transaction() {
        let end = marker(5, 8, false);
        let header = BatchHeader::read(&end).unwrap();
        let mut records = end[61..].to_vec();
        // The type, behind the version.
        assert_eq!(records[5..9], [0, 0, 0, 0]);
        records[8] = 9;
        let other = Batch::assemble(header, &records).bytes().clone();
        let mut scan = Scan::new(aborted(), 0, 1 << 20, 0);
        for batch in [in_txn(4, 8, "a=1"), other, marker(6, 8, false)] {
            assert!(scan.take(&stored(&batch)));
        }
        assert_eq!(scan.needless_markers, BTreeSet::new());
    }

    #[test]
    fn it_ends_when_the_memory_does() {
        let mut scan = Scan::new(Aborted::default(), 0, 300, 0);
        assert!(scan.take(&stored(&plain(0, "a=1 b=1"))));
        assert!(scan.take(&stored(&plain(2, "a=1 b=1 c=1"))));
        assert!(!scan.take(&stored(&plain(5, "d=1 e=1"))));
        assert_eq!(scan.end(), 7);
        // However little there is: one batch is always taken.
        let mut scan = Scan::new(Aborted::default(), 0, 1, 0);
        assert!(!scan.take(&stored(&plain(0, "a=1 b=1"))));
        assert_eq!(scan.end(), 2);
    }
}

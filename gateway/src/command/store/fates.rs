//! What became of transactions, by the markers behind their batches.

use std::collections::{BTreeMap, VecDeque};

use store_adapter::batch::BatchHeader;
use store_adapter::control::EndTxnMarker;
use store_adapter::ids::ProducerId;
use store_adapter::offline::{OfflineLog, StoredShard};
use store_adapter::store::StoredBatch;

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Its records count.
    Committed,
    /// They don't.
    Aborted,
    /// The log has no marker of it.
    Open,
    /// Its marker may lie in what can't be read.
    Unknown,
}

impl Fate {
    /// Its name in the output.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Aborted => "aborted",
            Self::Open => "open",
            Self::Unknown => "unknown",
        }
    }
}

/// Looks ahead in a log as far as the transactions of the batches that are asked for go. Memory:
/// the markers in between.
pub(super) struct Fates<'a> {
    shard: &'a StoredShard,
    log: &'a OfflineLog,
    /// Behind what was looked at.
    next: i64,
    /// Markers that may be asked for, by producer: offset, and whether it commits.
    markers: BTreeMap<ProducerId, VecDeque<(i64, bool)>>,
    /// Where parts begin that could not be read, and that may be asked for.
    unread: VecDeque<i64>,
}

impl<'a> Fates<'a> {
    /// Of batches from `from` on, which are asked for in their order.
    pub(super) fn new(shard: &'a StoredShard, log: &'a OfflineLog, from: i64) -> Self {
        Self {
            shard,
            log,
            next: from,
            markers: BTreeMap::new(),
            unread: VecDeque::new(),
        }
    }

    /// What became of the transaction of a batch; `None` if it has none.
    pub(super) async fn of(&mut self, header: &BatchHeader) -> Option<Fate> {
        if !header.is_transactional() {
            return None;
        }
        loop {
            match (self.decided(header), self.first_unread(header)) {
                // The marker may be one of the next transaction.
                (Some((at, _)), Some(unread)) if unread < at => return Some(Fate::Unknown),
                (Some((_, true)), _) => return Some(Fate::Committed),
                (Some((_, false)), _) => return Some(Fate::Aborted),
                (None, Some(_)) => return Some(Fate::Unknown),
                (None, None) if self.next < self.log.bounds.end => self.look_ahead().await,
                (None, None) if self.log.damaged.is_some() => return Some(Fate::Unknown),
                (None, None) => return Some(Fate::Open),
            }
        }
    }

    /// The first marker behind a batch, as far as was looked, and whether it commits.
    fn decided(&mut self, header: &BatchHeader) -> Option<(i64, bool)> {
        let markers = self.markers.get_mut(&header.producer_id)?;
        let passed = |(at, _): &mut (i64, bool)| *at < header.base_offset;
        while markers.pop_front_if(passed).is_some() {}
        markers.front().copied()
    }

    /// Where the first part behind a batch begins that can't be read, as far as was looked.
    fn first_unread(&mut self, header: &BatchHeader) -> Option<i64> {
        let passed = |at: &mut i64| *at <= header.base_offset;
        while self.unread.pop_front_if(passed).is_some() {}
        self.unread.front().copied()
    }

    async fn look_ahead(&mut self) {
        let end = self.log.bounds.end;
        if let Ok(batches) = self.shard.batches(self.log.id, self.next).await {
            self.next = batches.last().map_or(end, |last| last.last_offset + 1);
            for batch in &batches {
                self.note(batch);
            }
        } else {
            self.unread.push_back(self.next);
            let behind = self.shard.behind(self.log.id, self.next).await;
            self.next = behind.unwrap_or(end).max(self.next + 1);
        }
    }

    fn note(&mut self, batch: &StoredBatch) {
        let Ok(header) = BatchHeader::read(&batch.bytes) else {
            self.unread.push_back(batch.base_offset);
            return;
        };
        if header.is_control()
            && let Some(marker) = EndTxnMarker::read(&batch.bytes)
        {
            let markers = self.markers.entry(header.producer_id).or_default();
            markers.push_back((header.base_offset, marker.commit));
        }
    }
}

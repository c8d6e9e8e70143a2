//! Offsets that are committed with a transaction.
//!
//! Staged offsets are invisible until the transaction is decided. A decision is one change: per
//! partition the staged offset wins only over one that was committed before it, by commit number,
//! and the number of the transaction is kept, so that a repeat changes nothing.

use std::collections::BTreeMap;

use store_adapter::ids::{ProducerEpoch, ProducerId};

use super::table::{Applied, Committed, NewOffset, OffsetTable, StagedOffset, StagedTxn};
use super::{Change, Membership, OffsetBook, PrepareError, size};

/// The transaction that offsets are staged for.
#[derive(Debug, Clone)]
pub struct NewTxn {
    /// Its producer.
    pub producer_id: ProducerId,
    /// The epoch that the request carries.
    pub producer_epoch: ProducerEpoch,
    /// Its transactional id.
    pub transactional_id: String,
    /// Its number within the transactional id.
    pub txn_seq: u64,
}

impl NewTxn {
    fn number(&self) -> TxnNumber {
        TxnNumber {
            epoch: self.producer_epoch,
            txn_seq: self.txn_seq,
        }
    }
}

/// Which transaction of a producer. Of two the one with the higher epoch is the later: numbers grow
/// within an epoch, but a slot that was repaired from an older file counts some again, and then
/// under epochs that are higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TxnNumber {
    /// The epoch of its records.
    pub epoch: ProducerEpoch,
    /// Its number within the transactional id.
    pub txn_seq: u64,
}

impl TxnNumber {
    /// Whether it comes before another of the same epoch, and so must be decided first.
    fn precedes(self, other: Self) -> bool {
        self.epoch == other.epoch && self < other
    }
}

/// The decision on a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxnEnd {
    /// Its producer.
    pub producer_id: ProducerId,
    /// Which of its transactions.
    pub number: TxnNumber,
    /// COMMIT, or ABORT.
    pub commit: bool,
}

/// Why offsets were not staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// See there.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The transaction has ended here.
    #[error("the transaction has ended")]
    Decided,
    /// A later session of the producer has staged.
    #[error("a later epoch of the producer has staged offsets")]
    StaleEpoch,
    /// The producer's transaction before is not decided here yet; retriable.
    #[error("an earlier transaction of the producer is not decided yet")]
    EarlierOpen,
    /// A topic was deleted while the request waited: nothing is staged.
    #[error("a topic was deleted meanwhile")]
    TopicGone,
}

/// What became of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    /// It takes effect with this change, which may be an earlier one.
    With(Change),
    /// An earlier transaction of the producer is not decided yet: nothing was done.
    EarlierOpen,
}

impl OffsetBook {
    /// How many bytes more the group takes with these offsets staged, at most: they are kept beside
    /// what is committed, and take the place of what the same transaction has staged.
    pub fn staged_growth(&self, txn: &NewTxn, offsets: &[NewOffset]) -> usize {
        let open = self.ahead.staged.get(&txn.producer_id);
        let open = open.filter(|open| open.number() == txn.number());
        let alone = open.map_or_else(|| size::of_txn_alone(&txn.transactional_id), |_| 0);
        let grows = size::growth(offsets, |new| {
            let known = open?.offsets.get(&new.topic)?.get(&new.partition)?;
            Some(&known.metadata)
        });
        alone + grows
    }

    /// Prepares offsets of an open transaction. What is staged of a lower epoch is dropped: nothing
    /// begins before the decision on the transaction before is durable, so it is of one that the
    /// coordinator knows nothing of any more, its slot having been repaired.
    pub fn stage(
        &mut self,
        txn: &NewTxn,
        offsets: Vec<NewOffset>,
        membership: &Membership,
    ) -> Result<Change, StageError> {
        let (id, number) = (txn.producer_id, txn.number());
        if self.has_applied(id, number) {
            return Err(StageError::Decided);
        }
        match self.ahead.staged.get(&id).map(StagedTxn::number) {
            Some(open) if open > number && open.txn_seq > number.txn_seq => {
                return Err(StageError::Decided);
            }
            Some(open) if open > number => return Err(StageError::StaleEpoch),
            Some(open) if open.precedes(number) => return Err(StageError::EarlierOpen),
            _ => {}
        }
        if offsets.is_empty() {
            return Ok(self.unchanged()?);
        }
        let change = self.change(|table| {
            table.deleted = false;
            membership.note_in(table);
            stage_in(table, txn, offsets);
            Ok(())
        });
        Ok(change?)
    }

    /// Prepares the end of a transaction: its staged offsets become committed, or are dropped, as
    /// are those of a lower epoch. A transaction that is decided already changes nothing. One that
    /// has staged nothing is remembered, also by a group that is deleted or never was: what it
    /// stages comes too late.
    pub fn decide(&mut self, end: TxnEnd, now_ms: i64) -> Result<Decided, PrepareError> {
        let (id, number) = (end.producer_id, end.number);
        if self.has_applied(id, number) {
            return self.unchanged().map(Decided::With);
        }
        let open = self.ahead.staged.get(&id).map(StagedTxn::number);
        if open.is_some_and(|open| open.precedes(number)) {
            return Ok(Decided::EarlierOpen);
        }
        let change = self.change_within(size::DECIDED_BYTES_MAX, |table| {
            table.deleted = false;
            let ended = open.filter(|open| *open <= number);
            if let Some(open) = ended.and_then(|_| table.take_staged(id)) {
                let commit = end.commit && open.number() == number;
                finish(table, open, commit, now_ms);
            }
            let applied = Applied {
                epoch: Some(number.epoch),
                txn_seq: number.txn_seq,
                touched_ms: now_ms,
            };
            table.set_applied(id, applied);
            Ok(())
        });
        change.map(Decided::With)
    }

    fn has_applied(&self, id: ProducerId, number: TxnNumber) -> bool {
        let last = self.ahead.applied.get(&id);
        last.is_some_and(|last| last.covers(number))
    }

    /// Prepares that decisions are forgotten that are older than a producer id lives. `None`: there
    /// are none.
    pub fn forget_decisions(&mut self, before_ms: i64) -> Option<Change> {
        let old = |(id, last): (&ProducerId, &Applied)| {
            let open = self.ahead.staged.contains_key(id);
            (last.touched_ms < before_ms && !open).then_some(*id)
        };
        let old: Vec<ProducerId> = self.ahead.applied.iter().filter_map(old).collect();
        if old.is_empty() {
            return None;
        }
        let forgotten = self.change(|table| {
            for id in old {
                table.remove_applied(id);
            }
            if table.applied.is_empty() && table.is_nothing() {
                *table = OffsetTable {
                    deleted: true,
                    ..OffsetTable::default()
                };
            }
            Ok(())
        });
        forgotten.ok()
    }
}

fn stage_in(table: &mut OffsetTable, txn: &NewTxn, offsets: Vec<NewOffset>) {
    let seq = table.take_seq();
    // A topic of an earlier life of a name takes what was staged for it along.
    for new in &offsets {
        table.bind(&new.topic, new.topic_id);
    }
    let before = table.take_staged(txn.producer_id);
    let (before, orphan) = match before {
        Some(open) if open.number() == txn.number() => (open.offsets, BTreeMap::new()),
        before => (
            BTreeMap::new(),
            before.map(|open| open.offsets).unwrap_or_default(),
        ),
    };
    let mut staged: BTreeMap<_, BTreeMap<i32, StagedOffset>> = before;
    for new in offsets {
        let offset = StagedOffset {
            offset: new.offset,
            leader_epoch: new.leader_epoch,
            metadata: new.metadata,
            seq,
        };
        staged
            .entry(new.topic)
            .or_default()
            .insert(new.partition, offset);
    }
    let open = StagedTxn {
        producer_epoch: txn.producer_epoch,
        transactional_id: txn.transactional_id.clone(),
        txn_seq: txn.txn_seq,
        offsets: staged,
    };
    table.put_staged(txn.producer_id, open);
    for topic in orphan.keys() {
        table.forget_unused(topic);
    }
}

fn finish(table: &mut OffsetTable, open: StagedTxn, commit: bool, now_ms: i64) {
    for (topic, partitions) in open.offsets {
        for (partition, staged) in partitions {
            let committed = table.get(&topic, partition).and_then(|known| known.seq);
            if !commit || committed.is_some_and(|seq| seq >= staged.seq) {
                continue;
            }
            let won = Committed {
                offset: staged.offset,
                leader_epoch: staged.leader_epoch,
                metadata: staged.metadata,
                commit_ms: Some(now_ms),
                expire_ms: None,
                seq: Some(staged.seq),
            };
            table.put(&topic, partition, won);
        }
        table.forget_unused(&topic);
    }
}

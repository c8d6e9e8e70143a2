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
    /// Prepares offsets of an open transaction.
    pub fn stage(
        &mut self,
        txn: &NewTxn,
        offsets: Vec<NewOffset>,
        membership: &Membership,
    ) -> Result<Change, StageError> {
        let id = txn.producer_id;
        if self
            .ahead
            .applied
            .get(&id)
            .is_some_and(|last| last.txn_seq >= txn.txn_seq)
        {
            return Err(StageError::Decided);
        }
        match self.ahead.staged.get(&id) {
            Some(open) if open.txn_seq < txn.txn_seq => return Err(StageError::EarlierOpen),
            Some(open) if open.txn_seq > txn.txn_seq => return Err(StageError::Decided),
            Some(open) if open.producer_epoch > txn.producer_epoch => {
                return Err(StageError::StaleEpoch);
            }
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

    /// Prepares the end of a transaction: its staged offsets become committed, or are dropped.
    /// A transaction that is decided already changes nothing. One that has staged nothing is
    /// remembered, also by a group that is deleted or never was: what it stages comes too late.
    pub fn decide(
        &mut self,
        id: ProducerId,
        txn_seq: u64,
        commit: bool,
        now_ms: i64,
    ) -> Result<Decided, PrepareError> {
        if self
            .ahead
            .applied
            .get(&id)
            .is_some_and(|last| last.txn_seq >= txn_seq)
        {
            return self.unchanged().map(Decided::With);
        }
        if self
            .ahead
            .staged
            .get(&id)
            .is_some_and(|open| open.txn_seq < txn_seq)
        {
            return Ok(Decided::EarlierOpen);
        }
        let change = self.change_within(size::DECIDED_BYTES_MAX, |table| {
            table.deleted = false;
            let here = table
                .staged
                .get(&id)
                .is_some_and(|open| open.txn_seq == txn_seq);
            if let Some(open) = here.then(|| table.take_staged(id)).flatten() {
                end(table, open, commit, now_ms);
            }
            let touched_ms = now_ms;
            table.set_applied(
                id,
                Applied {
                    txn_seq,
                    touched_ms,
                },
            );
            Ok(())
        });
        change.map(Decided::With)
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
    let mut staged: BTreeMap<_, BTreeMap<i32, StagedOffset>> =
        before.map(|open| open.offsets).unwrap_or_default();
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
}

fn end(table: &mut OffsetTable, open: StagedTxn, commit: bool, now_ms: i64) {
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

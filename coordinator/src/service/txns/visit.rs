//! What people ask: which ids there are, and what an administrator may do to one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use store_adapter::ids::ProducerId;

use super::Txns;
use super::slot::Phase;
use crate::machine::txn::{self, Session, TopicPartitions, TxnEntry, TxnError};
use crate::service::fences::LastUse;
use crate::slot_hash::fnv1a32;

/// Why the ids of a slot can't be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// It is being taken over or read again; this passes.
    Loading,
    /// Its file can't be what was written; somebody has to repair it.
    Damaged,
    /// Another broker has it.
    Elsewhere,
}

/// A slot of which nothing is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotGap {
    /// Its number.
    pub slot: u32,
    /// Why.
    pub state: SlotState,
}

/// What brokers say of the records of some producers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Undecided {
    /// The partitions on which a decision is still to be carried out.
    pub partitions: BTreeMap<ProducerId, TopicPartitions>,
    /// The transactional ids that have the producers.
    pub ids: Vec<Arc<str>>,
    /// The slots that this was said of.
    pub slots: BTreeSet<u32>,
}

impl Undecided {
    /// With what others say.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        for (pid, partitions) in other.partitions {
            txn::merge(self.partitions.entry(pid).or_default(), partitions);
        }
        self.ids.extend(other.ids);
        self.slots.extend(other.slots);
        self
    }
}

impl Txns {
    /// The number of the slot of an id.
    pub fn slot_of(&self, id: &str) -> u32 {
        fnv1a32(id.as_bytes())
            .checked_rem(self.shared.count)
            .unwrap_or_default()
    }

    /// Shows every id that this broker coordinates, and says of which slots it can't. An entry is
    /// looked at under the lock of its slot: `look` must be short.
    pub fn visit(&self, look: &mut dyn FnMut(&Arc<str>, &TxnEntry)) -> Vec<SlotGap> {
        let numbers = 0..self.shared.count;
        numbers
            .filter_map(|number| self.visit_slot(number, look))
            .collect()
    }

    fn visit_slot(
        &self,
        number: u32,
        look: &mut dyn FnMut(&Arc<str>, &TxnEntry),
    ) -> Option<SlotGap> {
        let gap = |state| SlotGap {
            slot: number,
            state,
        };
        let Some(slot) = self.shared.slots.get(&number) else {
            return Some(gap(SlotState::Elsewhere));
        };
        let slot = slot.lock();
        match slot.phase {
            Phase::Ready => {
                for (id, entry) in slot.entries() {
                    look(id, entry);
                }
                None
            }
            Phase::Claim | Phase::Reload | Phase::Rewrite => Some(gap(SlotState::Loading)),
            Phase::Damaged => Some(gap(SlotState::Damaged)),
            Phase::Lost => Some(gap(SlotState::Elsewhere)),
        }
    }

    /// Why what is decided of an id could not be carried out, when that was tried last; `None`
    /// where nothing is known to hold it up.
    pub fn why_stuck(&self, id: &str) -> Option<Arc<str>> {
        self.slot(id).ok()?.lock().why_stuck(id).cloned()
    }

    /// Whether this broker coordinates an id, as far as it knows.
    pub fn coordinates(&self, id: &str) -> bool {
        let slot = self.slot(id);
        slot.is_ok_and(|slot| slot.lock().phase != Phase::Lost)
    }

    /// What `take` makes of the ids that this broker coordinates, in the order of slots; others
    /// have their turn between two of them. Ids of a slot that another process has are not among
    /// them, nor, if not `whole`, those of one that is damaged.
    ///
    /// # Errors
    /// [`TxnError::CoordinatorLoading`] while a slot is being read: a list would lack ids. If
    /// `whole`, [`TxnError::CoordinatorNotAvailable`] where one is damaged.
    pub async fn list<R>(
        &self,
        whole: bool,
        mut take: impl FnMut(&Arc<str>, &TxnEntry) -> Option<R>,
    ) -> Result<Vec<R>, TxnError> {
        let mut listed = Vec::new();
        for number in 0..self.shared.count {
            let gap = self.visit_slot(number, &mut |id, entry| listed.extend(take(id, entry)));
            if let Some(refused) = gap.and_then(|gap| refused(gap, whole)) {
                return Err(refused);
            }
            tokio::task::yield_now().await;
        }
        Ok(listed)
    }

    /// What is undecided of these producers, as far as this broker coordinates it. Others have
    /// their turn between two slots.
    ///
    /// # Errors
    /// As [`Txns::list`] of a whole list: a slot that is damaged may have decided anything.
    pub async fn undecided(&self, wanted: &BTreeSet<ProducerId>) -> Result<Undecided, TxnError> {
        let mut found = Undecided::default();
        for number in 0..self.shared.count {
            let ids = &mut found.ids;
            let gap = self.visit_slot(number, &mut |id, entry| {
                if txn::producers(entry).any(|pid| wanted.contains(&pid)) {
                    ids.push(id.clone());
                }
            });
            match gap {
                None => drop(found.slots.insert(number)),
                Some(gap) => refused(gap, true).map_or(Ok(()), Err)?,
            }
            tokio::task::yield_now().await;
        }
        found.partitions = self.undecided_of(&found.ids, wanted)?;
        Ok(found)
    }

    /// Of each of these producers, the partitions of its records on which a decision is still to
    /// be carried out; `ids` are the transactional ids that have them.
    ///
    /// # Errors
    /// Where a slot can't be answered for any more.
    pub fn undecided_of(
        &self,
        ids: &[Arc<str>],
        wanted: &BTreeSet<ProducerId>,
    ) -> Result<BTreeMap<ProducerId, TopicPartitions>, TxnError> {
        let mut found: BTreeMap<ProducerId, TopicPartitions> = BTreeMap::new();
        for id in ids {
            let slot = self.slot(id)?.lock();
            slot.check()?;
            let Some(entry) = slot.entry(id) else {
                continue;
            };
            for pid in txn::producers(entry).filter(|pid| wanted.contains(pid)) {
                txn::merge(found.entry(pid).or_default(), txn::undecided(entry, pid));
            }
        }
        Ok(found)
    }

    /// How many slots the cluster has.
    pub fn slot_count(&self) -> u32 {
        self.shared.count
    }

    /// Aborts an open transaction as the reaper would, for an administrator. `expected` and
    /// `txn_seq` are the session and the number of the transaction that was looked at.
    ///
    /// # Errors
    /// [`TxnError::InvalidProducerIdMapping`] and [`TxnError::ProducerFenced`] where the session is
    /// another one, [`TxnError::ConcurrentTransactions`] where it is decided already,
    /// [`TxnError::InvalidTxnState`] where nothing is open, or another transaction;
    /// [`TxnError::CoordinatorNotAvailable`] where it is decided now and takes longer than
    /// [`txn::END_WAIT_MS`] to carry out, where the slot can't be written, and, with nothing done,
    /// while no session can be fenced.
    pub async fn abort(
        &self,
        id: &str,
        expected: Option<Session>,
        txn_seq: Option<u64>,
    ) -> Result<(), TxnError> {
        self.can_fence(id).await?;
        self.decide(id, |entry, ctx| txn::abort(entry, expected, txn_seq, ctx))
            .await
    }
}

impl LastUse for Txns {
    fn last_use(&self, producers: &BTreeSet<ProducerId>) -> Option<BTreeMap<ProducerId, i64>> {
        let mut used = BTreeMap::new();
        let gaps = self.visit(&mut |_, entry| {
            if producers.contains(&entry.pid) {
                used.insert(entry.pid, entry.last_update_ms);
            }
        });
        let elsewhere = |gap: &SlotGap| gap.state == SlotState::Elsewhere;
        gaps.iter().all(elsewhere).then_some(used)
    }
}

/// Why an answer that lacks a slot is none.
fn refused(gap: SlotGap, whole: bool) -> Option<TxnError> {
    match gap.state {
        SlotState::Loading => Some(TxnError::CoordinatorLoading),
        SlotState::Damaged => whole.then_some(TxnError::CoordinatorNotAvailable),
        SlotState::Elsewhere => None,
    }
}

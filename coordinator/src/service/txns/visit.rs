//! What people ask: which ids there are, and what an administrator may do to one.

use std::sync::Arc;

use store_adapter::ids::ProducerId;

use super::Txns;
use super::slot::Phase;
use crate::machine::txn::{self, Session, TopicPartitions, TxnEntry, TxnError};
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
        let mut gaps = Vec::new();
        for number in 0..self.shared.count {
            let state = match self.shared.slots.get(&number) {
                None => Some(SlotState::Elsewhere),
                Some(slot) => {
                    let slot = slot.lock();
                    let gap = match slot.phase {
                        Phase::Ready => None,
                        Phase::Claim | Phase::Reload | Phase::Rewrite => Some(SlotState::Loading),
                        Phase::Damaged => Some(SlotState::Damaged),
                        Phase::Lost => Some(SlotState::Elsewhere),
                    };
                    if gap.is_none() {
                        for (id, entry) in slot.entries() {
                            look(id, entry);
                        }
                    }
                    gap
                }
            };
            gaps.extend(state.map(|state| SlotGap {
                slot: number,
                state,
            }));
        }
        gaps
    }

    /// Whether this broker coordinates an id.
    pub fn coordinates(&self, id: &str) -> bool {
        self.slot(id).is_ok()
    }

    /// What `take` makes of the ids that this broker coordinates, in the order of slots. Ids of a
    /// slot that is damaged, or that another process has, are not among them.
    ///
    /// # Errors
    /// [`TxnError::CoordinatorLoading`] while a slot is being read: a list would lack ids.
    pub fn list<R>(
        &self,
        mut take: impl FnMut(&Arc<str>, &TxnEntry) -> Option<R>,
    ) -> Result<Vec<R>, TxnError> {
        let mut listed = Vec::new();
        let gaps = self.visit(&mut |id, entry| listed.extend(take(id, entry)));
        if gaps.iter().any(|gap| gap.state == SlotState::Loading) {
            return Err(TxnError::CoordinatorLoading);
        }
        Ok(listed)
    }

    /// Partitions of a producer's records on which a decision is still to be carried out, as far as
    /// this broker coordinates it.
    ///
    /// # Errors
    /// As [`Txns::list`], and [`TxnError::CoordinatorNotAvailable`] where a slot is damaged: it may
    /// have decided anything.
    pub fn undecided(&self, pid: ProducerId) -> Result<TopicPartitions, TxnError> {
        let mut partitions = TopicPartitions::new();
        let gaps = self.visit(&mut |_, entry| {
            for (topic, numbers) in txn::undecided(entry, pid) {
                partitions.entry(topic).or_default().extend(numbers);
            }
        });
        let refused = gaps.iter().find_map(|gap| match gap.state {
            SlotState::Loading => Some(TxnError::CoordinatorLoading),
            SlotState::Damaged => Some(TxnError::CoordinatorNotAvailable),
            SlotState::Elsewhere => None,
        });
        refused.map_or(Ok(partitions), Err)
    }

    /// Aborts an open transaction as the reaper would, for an administrator. `expected` and
    /// `txn_seq` are the session and the number of the transaction that was looked at.
    ///
    /// # Errors
    /// [`TxnError::InvalidProducerIdMapping`] and [`TxnError::ProducerFenced`] where the session is
    /// another one, [`TxnError::ConcurrentTransactions`] where it is decided already,
    /// [`TxnError::InvalidTxnState`] where nothing is open, or another transaction;
    /// [`TxnError::CoordinatorNotAvailable`] where it is decided now and takes longer than
    /// [`txn::END_WAIT_MS`] to carry out, and where the slot can't be written.
    pub async fn abort(
        &self,
        id: &str,
        expected: Option<Session>,
        txn_seq: Option<u64>,
    ) -> Result<(), TxnError> {
        self.decide(id, |entry, ctx| txn::abort(entry, expected, txn_seq, ctx))
            .await
    }
}

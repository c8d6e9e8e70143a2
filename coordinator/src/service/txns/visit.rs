//! What people ask: which ids there are, and what an administrator may do to one.

use std::sync::Arc;

use super::Txns;
use super::slot::Phase;
use crate::machine::txn::{self, Session, TxnEntry, TxnError};
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

    /// Aborts an open transaction as the reaper would, for an administrator. `expected` is the
    /// session that was looked at.
    ///
    /// # Errors
    /// [`TxnError::InvalidProducerIdMapping`] and [`TxnError::ProducerFenced`] where the session is
    /// another one, [`TxnError::ConcurrentTransactions`] where it is decided already,
    /// [`TxnError::InvalidTxnState`] where nothing is open; [`TxnError::CoordinatorNotAvailable`]
    /// where it is decided now and takes longer than [`txn::END_WAIT_MS`] to carry out, and where
    /// the slot can't be written.
    pub async fn abort(&self, id: &str, expected: Option<Session>) -> Result<(), TxnError> {
        self.decide(id, |entry, ctx| txn::abort(entry, expected, ctx))
            .await
    }
}

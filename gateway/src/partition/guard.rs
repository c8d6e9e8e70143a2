//! Guards: what a first batch leaves behind while its coordinator is asked, without a lock.
//!
//! The coordinator's word is good for the state that it was asked about. A marker of the producer
//! that is queued meanwhile ends that state, and with it the word (KIP-890).

use std::collections::BTreeMap;
use std::sync::Arc;

use coordinator::machine::producer::BatchMeta;
use store_adapter::batch::BatchHeader;
use store_adapter::ids::{ProducerEpoch, ProducerId};

use super::Partition;

/// What is remembered of a guard.
#[derive(Debug)]
struct Standing {
    epoch: ProducerEpoch,
    implicit: bool,
    void: bool,
}

/// The guards of one partition: one for each first batch that waits for its coordinator.
#[derive(Debug, Default)]
pub(super) struct Guards {
    next: u64,
    standing: BTreeMap<(ProducerId, u64), Standing>,
}

impl Guards {
    fn leave(&mut self, id: ProducerId, standing: Standing) -> u64 {
        self.next += 1;
        self.standing.insert((id, self.next), standing);
        self.next
    }

    /// A marker of the producer was queued. Where every transaction has an epoch of its own, one
    /// that carries the guard's epoch ended the transaction before.
    pub(super) fn marker(&mut self, id: ProducerId, epoch: ProducerEpoch) {
        for (_, guard) in self.standing.range_mut((id, 0)..=(id, u64::MAX)) {
            guard.void |= !guard.implicit || guard.epoch != epoch;
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.standing.is_empty()
    }

    fn stands(&self, id: ProducerId, number: u64) -> bool {
        let guard = self.standing.get(&(id, number));
        guard.is_some_and(|guard| !guard.void)
    }
}

/// Held while the coordinator is asked about a first batch, and shown with it.
#[derive(Debug)]
pub struct Guard {
    partition: Arc<Partition>,
    id: ProducerId,
    number: u64,
    implicit: bool,
    /// The transaction for which the coordinator gave its word.
    txn_seq: Option<u64>,
}

impl Guard {
    /// The coordinator counts the batch to its transaction of this number. One that was taken over
    /// may say so of a transaction that has ended: the marker on the partition knows better.
    pub fn approved_for(&mut self, txn_seq: u64) {
        self.txn_seq = Some(txn_seq);
    }

    pub(super) fn txn_seq(&self) -> Option<u64> {
        self.txn_seq
    }

    pub(super) fn stands(&self, guards: &Guards) -> bool {
        guards.stands(self.id, self.number)
    }

    /// Whether the partition was added to the transaction for this batch (Produce v12+).
    pub(super) fn is_implicit(&self) -> bool {
        self.implicit
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut state = self.partition.state.lock();
        state.guards.standing.remove(&(self.id, self.number));
    }
}

/// By what right a transactional batch may open a transaction on the partition.
#[derive(Debug, Clone, Copy)]
pub enum Opening<'a> {
    /// By none: it goes on in one that is open.
    None,
    /// The coordinator knows of it.
    Verified(&'a Guard),
    /// Nobody is to be asked (`transaction.partition.verification.enable`).
    Unverified,
}

impl Partition {
    /// Leaves a guard if the coordinator has to be asked before a batch of this header may be
    /// appended; `None` where what the partition knows is enough. `implicit`: the question adds
    /// the partition to the transaction.
    pub fn guard(self: &Arc<Self>, header: &BatchHeader, implicit: bool) -> Option<Guard> {
        let meta = self.first_meta(header, implicit);
        let mut state = self.state.lock();
        // One that does not append says so, and remembers what it refused.
        if state.may_append().is_err() || !state.producers.wants_verification(&meta) {
            return None;
        }
        let standing = Standing {
            epoch: meta.producer_epoch,
            implicit,
            void: false,
        };
        let number = state.guards.leave(meta.producer_id, standing);
        drop(state);
        Some(Guard {
            partition: Arc::clone(self),
            id: meta.producer_id,
            number,
            implicit,
            txn_seq: None,
        })
    }

    /// The coordinator's answer makes a first batch come again: what was sent behind it must not
    /// take its place.
    pub fn refuse_first(&self, header: &BatchHeader) {
        let meta = self.first_meta(header, false);
        self.state.lock().producers.refuse(&meta);
    }

    fn first_meta(&self, header: &BatchHeader, implicit_add: bool) -> BatchMeta {
        let now_ms = self.deps.env.clock.wall_ms();
        BatchMeta {
            implicit_add,
            ..BatchMeta::from_header(header, now_ms, None)
        }
    }
}

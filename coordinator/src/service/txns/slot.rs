//! One slot in memory: what is known of its ids, and what waits to become durable.
//!
//! An id has at most one change that is not durable yet; requests for it wait for that one. The
//! changes of different ids share a write. A write that certainly did not happen drops its changes.
//! After one that may have happened the file is read and, because a sync that failed once proves
//! nothing later, written again before anything is decided.

use std::collections::BTreeMap;
use std::sync::Arc;

use store_adapter::ids::OwnerEpoch;
use tokio::sync::{oneshot, watch};

use super::files::SlotFileError;
use super::ids::Ids;
use crate::machine::txn::{TxnEntry, TxnError, TxnState};
use crate::slot_hash::fnv1a32;
use crate::volume::format::{Format, SlotText, TxnSlotFile};

/// What is known of the slot's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is to be taken over.
    Claim,
    /// A write may have happened: it is to be read.
    Reload,
    /// It was read, and is to be written again.
    Rewrite,
    /// Its ids can be answered for.
    Ready,
    /// It can't be what was written.
    Damaged,
    /// Another process has it.
    Lost,
}

/// Who waits for a change.
pub(super) type Waiter = oneshot::Sender<Result<(), TxnError>>;

/// A change of an id that is not durable yet.
#[derive(Debug)]
struct Pending {
    /// The entry afterwards; `None` removes the id.
    next: Option<TxnEntry>,
    /// Its field in the file.
    field: Vec<u8>,
    waiter: Option<Waiter>,
    /// It is in the write that is under way.
    taken: bool,
}

/// A slot.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) number: u32,
    pub(super) epoch: OwnerEpoch,
    pub(super) phase: Phase,
    /// How often in a row it was found damaged.
    pub(super) damaged_looks: u32,
    /// What is in force.
    ids: Ids,
    pending: BTreeMap<Arc<str>, Pending>,
    /// Entries moved that are derivable: written with the next change, or by the next pass.
    soft: bool,
    /// Why decisions are not carried out, by the ids that have them: as the last try found.
    stuck: BTreeMap<Arc<str>, Arc<str>>,
    /// Who wants to know whether the slot is still owned, as the volume has it from now on.
    sure: Vec<Waiter>,
    /// Those whom the work under way answers.
    asked: Vec<Waiter>,
    /// In the queue of the writers, with one of them, or waiting to be tried again.
    pub(super) queued: bool,
    /// Counts what may concern those who wait.
    pub(super) moved: watch::Sender<u64>,
}

/// What a writer does next.
#[derive(Debug)]
pub(super) enum Work {
    Claim(OwnerEpoch),
    Load,
    Write(SlotText),
    Check,
}

impl Slot {
    pub(super) fn new(number: u32, epoch: OwnerEpoch) -> Self {
        Self {
            number,
            epoch,
            phase: Phase::Claim,
            damaged_looks: 0,
            ids: Ids::default(),
            pending: BTreeMap::new(),
            soft: false,
            stuck: BTreeMap::new(),
            sure: Vec::new(),
            asked: Vec::new(),
            queued: false,
            moved: watch::channel(0).0,
        }
    }

    /// Why nothing can be decided now.
    pub(super) fn check(&self) -> Result<(), TxnError> {
        match self.phase {
            Phase::Ready => Ok(()),
            Phase::Claim | Phase::Reload | Phase::Rewrite => Err(TxnError::CoordinatorLoading),
            Phase::Damaged => Err(TxnError::CoordinatorNotAvailable),
            Phase::Lost => Err(TxnError::NotCoordinator),
        }
    }

    pub(super) fn entry(&self, id: &str) -> Option<&TxnEntry> {
        self.ids.entry(id)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&Arc<str>, &TxnEntry)> {
        self.ids.entries()
    }

    /// How many ids there are, with those that are being made.
    pub(super) fn len(&self) -> usize {
        let made = self.pending.keys().filter(|id| self.entry(id).is_none());
        self.ids.len() + made.count()
    }

    pub(super) fn is_pending(&self, id: &str) -> bool {
        self.pending.contains_key(id)
    }

    /// Takes a change of an id that has none pending; `None` removes the id.
    pub(super) fn put(
        &mut self,
        id: &Arc<str>,
        next: Option<&TxnEntry>,
        waiter: Option<Waiter>,
    ) -> Result<(), TxnError> {
        let field = match next {
            Some(next) => self.field(id, next)?,
            None => Vec::new(),
        };
        // What has begun can be ended: that adds little, and is never refused.
        let begins =
            next.is_some_and(|next| matches!(next.state, TxnState::Empty | TxnState::Ongoing));
        // Half of what can be read: changes that are pending at once are not counted together.
        let bytes = u64::try_from(self.ids.bytes() + field.len()).unwrap_or(u64::MAX);
        let full = bytes > TxnSlotFile::LEN_MAX / 2;
        if begins && full && field.len() > self.ids.field_len(id) {
            return Err(TxnError::CoordinatorNotAvailable);
        }
        let pending = Pending {
            next: next.cloned(),
            field,
            waiter,
            taken: false,
        };
        self.pending.insert(id.clone(), pending);
        Ok(())
    }

    /// Puts a change into force that can be derived again from what is durable.
    pub(super) fn put_soft(&mut self, id: &str, next: TxnEntry) -> Result<(), TxnError> {
        if self.entry(id).is_none() {
            return Err(TxnError::InvalidProducerIdMapping);
        }
        let field = self.field(id, &next)?;
        self.ids.put_unwritten(id, next, field);
        self.soft = true;
        self.tell();
        Ok(())
    }

    fn field(&self, id: &str, next: &TxnEntry) -> Result<Vec<u8>, TxnError> {
        self.ids.field(id, next).map_err(|error| {
            tracing::error!(%error, "a decision contradicts itself and was not taken");
            TxnError::CoordinatorNotAvailable
        })
    }

    /// Whether a decision of an id may still have to be carried out here.
    pub(super) fn is_unfinished(&self, id: &str) -> bool {
        match self.check() {
            Ok(()) => self
                .entry(id)
                .is_some_and(|it| it.state.prepared().is_some()),
            Err(error) => error == TxnError::CoordinatorLoading,
        }
    }

    /// Marks that somebody carries the decision of an id out; `false` if somebody does already.
    pub(super) fn begin_finish(&mut self, id: &str) -> bool {
        self.ids.finishing(id, true) == Some(false)
    }

    pub(super) fn end_finish(&mut self, id: &str) {
        self.ids.finishing(id, false);
        self.tell();
    }

    /// The decision of an id was tried to be carried out: why that failed, if it did.
    pub(super) fn tried(&mut self, id: &str, failed: Option<String>) {
        match failed.filter(|_| self.ids.entry(id).is_some()) {
            Some(why) => drop(self.stuck.insert(Arc::from(id), why.into())),
            None => drop(self.stuck.remove(id)),
        }
    }

    /// Why the decision of an id was not carried out, when that was tried last.
    pub(super) fn why_stuck(&self, id: &str) -> Option<&Arc<str>> {
        self.stuck.get(id)
    }

    /// What there is to do, also what could wait for the next change.
    pub(super) fn work(&mut self) -> Option<Work> {
        match self.phase {
            Phase::Claim | Phase::Damaged => Some(Work::Claim(self.epoch)),
            Phase::Reload => Some(Work::Load),
            Phase::Rewrite => Some(Work::Write(self.image())),
            Phase::Ready => {
                self.asked.append(&mut self.sure);
                if self.pending.is_empty() && !self.asked.is_empty() {
                    return Some(Work::Check);
                }
                (self.soft || !self.pending.is_empty()).then(|| Work::Write(self.image()))
            }
            Phase::Lost => None,
        }
    }

    /// Whether there is something to do that can't wait.
    pub(super) fn wants_work(&self) -> bool {
        match self.phase {
            Phase::Claim | Phase::Reload | Phase::Rewrite => true,
            Phase::Ready => !self.pending.is_empty() || !self.sure.is_empty(),
            Phase::Damaged | Phase::Lost => false,
        }
    }

    /// Has `waiter` told whether the slot is still owned: by the next write, or by a look.
    pub(super) fn ask_owner(&mut self, waiter: Waiter) {
        self.sure.push(waiter);
    }

    /// The slot was owned when the work under way was done.
    pub(super) fn owned(&mut self) {
        for waiter in std::mem::take(&mut self.asked) {
            answer(Some(waiter), Ok(()));
        }
    }

    /// Nothing is known of the owner.
    pub(super) fn not_checked(&mut self) {
        self.refuse_asked(TxnError::CoordinatorNotAvailable);
    }

    fn refuse_asked(&mut self, error: TxnError) {
        for waiter in std::mem::take(&mut self.asked) {
            answer(Some(waiter), Err(error));
        }
    }

    /// Whether something is in force, or becomes so, that is not written yet.
    pub(super) fn is_unwritten(&self) -> bool {
        self.phase == Phase::Ready && (self.soft || self.ids.is_writing())
    }

    /// Whether something is in force that is not written.
    pub(super) fn is_soft(&self) -> bool {
        self.soft && self.phase == Phase::Ready
    }

    fn image(&mut self) -> SlotText {
        self.soft = false;
        let changed = self.pending.iter_mut().map(|(id, pending)| {
            pending.taken = true;
            (id, &*pending.field)
        });
        self.ids.write(changed)
    }

    /// Takes what the file has. An id of another slot is damage.
    pub(super) fn loaded(
        &mut self,
        file: TxnSlotFile,
        slots: u32,
        now_ms: i64,
    ) -> Result<(), SlotFileError> {
        let here = |id: &str| fnv1a32(id.as_bytes()).checked_rem(slots) == Some(self.number);
        if let Some(id) = file.ids.keys().find(|id| !here(id)) {
            return Err(SlotFileError::Damaged(format!("{id:?} is of another slot")));
        }
        let ids = Ids::of(file, now_ms);
        self.ids = ids.map_err(|error| SlotFileError::Damaged(error.0))?;
        self.pending.clear();
        self.stuck.clear();
        self.damaged_looks = 0;
        self.soft = false;
        // After a claim the file was synced; after a write of unknown outcome it is written again.
        self.phase = match self.phase {
            Phase::Reload => Phase::Rewrite,
            _ => Phase::Ready,
        };
        self.tell();
        Ok(())
    }

    pub(super) fn written(&mut self) {
        self.phase = Phase::Ready;
        self.owned();
        let changed = self.take_pending(true).into_iter();
        self.ids.written(changed.map(|(id, pending)| {
            answer(pending.waiter, Ok(()));
            (id, pending.next)
        }));
        self.tell();
    }

    /// The changes that were waiting to be written; `taken`: only those of the write under way.
    fn take_pending(&mut self, taken: bool) -> BTreeMap<Arc<str>, Pending> {
        let all = std::mem::take(&mut self.pending).into_iter();
        let (out, left) = all.partition(|(_, pending)| pending.taken || !taken);
        self.pending = left;
        out
    }

    /// The write certainly did not happen.
    pub(super) fn not_written(&mut self) {
        self.soft = true;
        self.drop_pending(TxnError::CoordinatorNotAvailable, true);
    }

    /// The write may have happened: nothing that is in memory counts any more.
    pub(super) fn maybe_written(&mut self) {
        self.phase = Phase::Reload;
        self.drop_pending(TxnError::CoordinatorNotAvailable, false);
    }

    pub(super) fn damaged(&mut self) {
        self.phase = Phase::Damaged;
        self.damaged_looks = self.damaged_looks.saturating_add(1);
        self.drop_pending(TxnError::CoordinatorNotAvailable, false);
    }

    pub(super) fn lost(&mut self) {
        self.phase = Phase::Lost;
        self.drop_pending(TxnError::NotCoordinator, false);
        self.ids = Ids::default();
        self.stuck.clear();
    }

    fn drop_pending(&mut self, error: TxnError, only_taken: bool) {
        self.ids.not_written();
        if !only_taken {
            self.asked.append(&mut self.sure);
        }
        self.refuse_asked(error);
        for pending in self.take_pending(only_taken).into_values() {
            answer(pending.waiter, Err(error));
        }
        self.tell();
    }

    fn tell(&self) {
        self.moved.send_modify(|count| *count += 1);
    }
}

fn answer(waiter: Option<Waiter>, outcome: Result<(), TxnError>) {
    if let Some(waiter) = waiter
        && waiter.send(outcome).is_err()
    {
        tracing::trace!("nobody waits for this transition any more");
    }
}

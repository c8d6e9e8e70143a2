//! One slot in memory: what is known of its ids, and what waits to become durable.
//!
//! An id has at most one change that is not durable yet; requests for it wait for that one. The
//! changes of different ids share a write. A write that certainly did not happen drops its changes.
//! After one that may have happened the file is read and, because a sync that failed once proves
//! nothing later, written again before anything is decided.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use store_adapter::ids::OwnerEpoch;
use tokio::sync::{oneshot, watch};

use super::files::SlotFileError;
use crate::machine::txn::{Change, TxnEntry, TxnError, TxnState};
use crate::slot_hash::fnv1a32;
use crate::volume::format::{Extra, Format, TxnEntryFile, TxnSlotFile};

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

#[derive(Debug)]
struct Pending {
    change: Change,
    encoded: Option<Bytes>,
    waiter: Option<Waiter>,
    /// It is in the write that is under way.
    taken: bool,
}

/// An id. There may be very many that nobody uses: what most of them lack is behind a pointer, and
/// so is what would be kept for the free places of a node of the map.
#[derive(Debug, Default)]
struct Cell {
    entry: Option<Box<TxnEntry>>,
    extra: Extra,
    encoded: Bytes,
    pending: Option<Box<Pending>>,
    /// The decision is being carried out.
    finishing: bool,
}

/// A slot.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) number: u32,
    pub(super) epoch: OwnerEpoch,
    pub(super) phase: Phase,
    /// How often in a row it was found damaged.
    pub(super) damaged_looks: u32,
    cells: BTreeMap<Arc<str>, Cell>,
    /// Bytes of the entries as they will be written.
    bytes: usize,
    /// Entries moved that are derivable: written with the next change, or by the next pass.
    soft: bool,
    /// Why decisions are not carried out, by the ids that have them: as the last try found.
    stuck: BTreeMap<Arc<str>, Arc<str>>,
    /// A write is under way.
    writing: bool,
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
    Write(Bytes),
    Check,
}

impl Slot {
    pub(super) fn new(number: u32, epoch: OwnerEpoch) -> Self {
        Self {
            number,
            epoch,
            phase: Phase::Claim,
            damaged_looks: 0,
            cells: BTreeMap::new(),
            bytes: 0,
            soft: false,
            stuck: BTreeMap::new(),
            writing: false,
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
        self.cells.get(id)?.entry.as_deref()
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&Arc<str>, &TxnEntry)> {
        let cells = self.cells.iter();
        cells.filter_map(|(id, cell)| Some((id, cell.entry.as_deref()?)))
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    pub(super) fn is_pending(&self, id: &str) -> bool {
        self.cells
            .get(id)
            .is_some_and(|cell| cell.pending.is_some())
    }

    /// Takes a change of an id that has none pending. `soft` changes are in force at once.
    pub(super) fn put(
        &mut self,
        id: &Arc<str>,
        change: Change,
        waiter: Option<Waiter>,
    ) -> Result<(), TxnError> {
        let cell = self.cells.get(id);
        let none = Extra::new();
        let extra = cell.map_or(&none, |cell| &cell.extra);
        let encoded = encode(change.next.as_ref(), extra)?;
        let before = cell.map_or(0, |cell| cell.encoded.len());
        let room = room(id);
        let after = encoded.as_ref().map_or(0, Bytes::len);
        let bytes = self.bytes + after + room;
        // What has begun can be ended: that adds little, and is never refused.
        let next = change.next.as_ref();
        let begins =
            next.is_some_and(|next| matches!(next.state, TxnState::Empty | TxnState::Ongoing));
        // Half of what can be read: changes that are pending at once are not counted together.
        let full = u64::try_from(bytes).unwrap_or(u64::MAX) > TxnSlotFile::LEN_MAX / 2;
        if begins && after > before && full {
            return Err(TxnError::CoordinatorNotAvailable);
        }
        let cell = self.cells.entry(id.clone()).or_default();
        cell.pending = Some(Box::new(Pending {
            change,
            encoded,
            waiter,
            taken: false,
        }));
        Ok(())
    }

    /// Puts a change into force that can be derived again from what is durable.
    pub(super) fn put_soft(&mut self, id: &str, next: TxnEntry) -> Result<(), TxnError> {
        let Some(cell) = self.cells.get_mut(id) else {
            return Err(TxnError::InvalidProducerIdMapping);
        };
        let encoded = encode(Some(&next), &cell.extra)?.unwrap_or_default();
        self.bytes = self.bytes + encoded.len() - cell.encoded.len().min(self.bytes);
        cell.encoded = encoded;
        cell.entry = Some(Box::new(next));
        self.soft = true;
        self.tell();
        Ok(())
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
        let cell = self.cells.get_mut(id);
        cell.is_some_and(|cell| !std::mem::replace(&mut cell.finishing, true))
    }

    pub(super) fn end_finish(&mut self, id: &str) {
        if let Some(cell) = self.cells.get_mut(id) {
            cell.finishing = false;
        }
        self.tell();
    }

    /// The decision of an id was tried to be carried out: why that failed, if it did.
    pub(super) fn tried(&mut self, id: &str, failed: Option<String>) {
        match (failed, self.cells.get_key_value(id)) {
            (Some(why), Some((id, _))) => drop(self.stuck.insert(id.clone(), why.into())),
            _ => drop(self.stuck.remove(id)),
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
                if !self.has_pending() && !self.asked.is_empty() {
                    return Some(Work::Check);
                }
                (self.soft || self.has_pending()).then(|| Work::Write(self.image()))
            }
            Phase::Lost => None,
        }
    }

    /// Whether there is something to do that can't wait.
    pub(super) fn wants_work(&self) -> bool {
        match self.phase {
            Phase::Claim | Phase::Reload | Phase::Rewrite => true,
            Phase::Ready => self.has_pending() || !self.sure.is_empty(),
            Phase::Damaged | Phase::Lost => false,
        }
    }

    fn has_pending(&self) -> bool {
        self.cells.values().any(|cell| cell.pending.is_some())
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
        self.phase == Phase::Ready && (self.soft || self.writing)
    }

    /// Whether something is in force that is not written.
    pub(super) fn is_soft(&self) -> bool {
        self.soft && self.phase == Phase::Ready
    }

    fn image(&mut self) -> Bytes {
        for pending in self
            .cells
            .values_mut()
            .filter_map(|cell| cell.pending.as_mut())
        {
            pending.taken = true;
        }
        self.soft = false;
        self.writing = true;
        let entries = self.cells.iter().filter_map(|(id, cell)| {
            let encoded = match &cell.pending {
                Some(pending) => pending.encoded.as_ref()?,
                None => cell.entry.as_ref().map(|_| &cell.encoded)?,
            };
            Some((&**id, encoded))
        });
        TxnSlotFile::join(entries)
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
        let mut cells = BTreeMap::new();
        self.bytes = 0;
        for (id, entry) in file.ids {
            let encoded = entry
                .encode()
                .map_err(|error| SlotFileError::Damaged(error.0))?;
            self.bytes += encoded.len() + room(&id);
            let (entry, extra) = entry.into_entry(now_ms);
            let cell = Cell {
                entry: Some(Box::new(entry)),
                extra,
                encoded,
                ..Cell::default()
            };
            cells.insert(Arc::from(id), cell);
        }
        self.cells = cells;
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
        self.writing = false;
        self.phase = Phase::Ready;
        self.owned();
        let mut gone = Vec::new();
        for (id, cell) in &mut self.cells {
            let Some(pending) = cell.pending.take_if(|pending| pending.taken) else {
                continue;
            };
            let room = room(id);
            if cell.entry.is_some() {
                self.bytes = self.bytes.saturating_sub(cell.encoded.len() + room);
            }
            cell.encoded = pending.encoded.unwrap_or_default();
            cell.entry = pending.change.next.map(Box::new);
            match cell.entry {
                Some(_) => self.bytes += cell.encoded.len() + room,
                None => gone.push(id.clone()),
            }
            answer(pending.waiter, Ok(()));
        }
        for id in gone {
            self.cells.remove(&id);
        }
        self.tell();
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
        self.cells.clear();
        self.stuck.clear();
    }

    fn drop_pending(&mut self, error: TxnError, only_taken: bool) {
        self.writing = false;
        if !only_taken {
            self.asked.append(&mut self.sure);
        }
        self.refuse_asked(error);
        for cell in self.cells.values_mut() {
            let dropped = cell.pending.take_if(|pending| pending.taken || !only_taken);
            if let Some(pending) = dropped {
                answer(pending.waiter, Err(error));
            }
        }
        self.cells
            .retain(|_, cell| cell.entry.is_some() || cell.pending.is_some());
        self.tell();
    }

    fn tell(&self) {
        self.moved.send_modify(|count| *count += 1);
    }
}

/// Bytes that an id takes in the file at most: each of its own may be written as six.
fn room(id: &str) -> usize {
    id.len() * 6 + 8
}

fn encode(next: Option<&TxnEntry>, extra: &Extra) -> Result<Option<Bytes>, TxnError> {
    let Some(next) = next else {
        return Ok(None);
    };
    match TxnEntryFile::of(next, extra).encode() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => {
            tracing::error!(%error, "a decision contradicts itself and was not taken");
            Err(TxnError::CoordinatorNotAvailable)
        }
    }
}

fn answer(waiter: Option<Waiter>, outcome: Result<(), TxnError>) {
    if let Some(waiter) = waiter
        && waiter.send(outcome).is_err()
    {
        tracing::trace!("nobody waits for this transition any more");
    }
}

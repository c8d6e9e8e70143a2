//! What is done without a client: carrying decisions out, timing out, forgetting. Whoever has a
//! clock asks what there is to do, and does it id by id.

use std::sync::Arc;
use std::time::Duration;

use store_adapter::ids::{BrokerId, ProducerEpoch};
use tokio::sync::watch;
use uuid::Uuid;

use super::ports::PortError;
use super::slot::Slot;
use super::{SlotCell, Txns};
use crate::machine::txn::{
    self, Change, Decision, Dispatch, EntryName, OwedEntry, Plan, Then, TxnEntry, TxnError,
};
use crate::service::marker_queue::QueueName;
use crate::volume::format::MarkerQueueFile;

/// An entry that must be in the queue of a broker until it is confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwedFile {
    /// Whose queue.
    pub broker: BrokerId,
    /// The epoch of the records.
    pub record_epoch: ProducerEpoch,
    /// Number of the transaction.
    pub txn_seq: u64,
    /// The content.
    pub file: MarkerQueueFile,
}

/// The decision of an id is being carried out. Whoever does may be dropped anywhere.
struct Finishing<'a> {
    slot: &'a SlotCell,
    id: &'a str,
}

impl<'a> Finishing<'a> {
    fn begin(slot: &'a SlotCell, id: &'a str) -> Option<Self> {
        let begun = slot.lock().begin_finish(id);
        begun.then_some(Self { slot, id })
    }
}

impl Drop for Finishing<'_> {
    fn drop(&mut self) {
        self.slot.lock().end_finish(self.id);
    }
}

fn seems_void(state: &Slot, name: QueueName, file: &MarkerQueueFile) -> bool {
    let id = &file.transactional_id;
    if state.check().is_err() || state.is_pending(id) {
        return false;
    }
    let Some(entry) = state.entry(id) else {
        return true;
    };
    let is = |pid, record_epoch, txn_seq| {
        (pid, record_epoch, Some(txn_seq)) == (name.pid, name.record_epoch, file.txn_seq)
    };
    let about_to = txn::owed_by(entry)
        .is_some_and(|decided| is(decided.pid, decided.record_epoch, decided.txn_seq));
    let owes = entry.owed.iter().any(|owed| {
        is(owed.producer_id, owed.record_epoch, owed.txn_seq) && owed.entries.contains_key(&name.to)
    });
    !about_to && !owes
}

/// What nobody has yet, or nobody can say who has.
fn homeless(what: &OwedEntry) -> String {
    let mut partitions = what.partitions.iter();
    let first = partitions.find_map(|(topic, numbers)| Some((topic, numbers.first()?)));
    match (first, what.groups.first()) {
        (Some((topic, number)), _) => format!("{topic}-{number} has no leader that is known"),
        (None, Some(group)) => format!("group {group:?} has no coordinator that is known"),
        (None, None) => "nobody is known to have a part of it".to_owned(),
    }
}

impl Txns {
    /// Open transactions that are past their timeout at `now_ms`, ms since the Unix epoch.
    pub fn overdue(&self, now_ms: i64) -> Vec<Arc<str>> {
        self.select(|entry| txn::is_overdue(entry, now_ms))
    }

    /// Decided transactions whose markers and decisions are not all carried out.
    pub fn unfinished(&self) -> Vec<Arc<str>> {
        self.select(|entry| entry.state.prepared().is_some())
    }

    /// Ids that are owed something by other brokers.
    pub fn owed(&self) -> Vec<Arc<str>> {
        self.select(TxnEntry::owes)
    }

    /// Ids that nobody has used for `transactional.id.expiration.ms`.
    pub fn expired(&self, now_ms: i64) -> Vec<Arc<str>> {
        let expiration_ms = self.shared.config.expiration_ms;
        self.select(|entry| txn::is_expired(entry, now_ms, expiration_ms))
    }

    fn select(&self, wanted: impl Fn(&TxnEntry) -> bool) -> Vec<Arc<str>> {
        let mut found = Vec::new();
        for slot in self.shared.slots.values() {
            let slot = slot.lock();
            if slot.check().is_ok() {
                let entries = slot.entries().filter(|(_, entry)| wanted(entry));
                found.extend(entries.map(|(id, _)| id.clone()));
            }
        }
        found
    }

    /// Aborts a transaction that is overdue by now; whether it was: nothing if it has ended. Nor
    /// while its session can't be fenced: it would be decided and not carried out, and its client,
    /// which may be alive, could not commit it any more.
    ///
    /// # Errors
    /// As EndTxn, and while no fence can be published.
    pub async fn reap(&self, id: &str) -> Result<bool, TxnError> {
        self.can_fence(id).await?;
        self.decide(id, |entry, ctx| match entry {
            Some(entry) => txn::time_out(entry, ctx),
            None => Decision::Answer(false),
        })
        .await
    }

    /// Carries a decision out, as far as can be now. Whether nothing is prepared any more.
    ///
    /// # Errors
    /// Where the slot can't be answered for.
    pub async fn reconcile(&self, id: &str) -> Result<bool, TxnError> {
        let slot = self.slot(id)?;
        if let Err(error) = self.finish(slot, id, true).await {
            tracing::warn!(%error, %id, "a transaction is decided and not finished yet");
        }
        let state = slot.lock();
        state.check()?;
        let entry = state.entry(id);
        Ok(entry.is_none_or(|entry| entry.state.prepared().is_none()))
    }

    /// Forgets an id that has expired by now; nothing if it has not.
    ///
    /// # Errors
    /// Where the slot can't be answered for or written.
    pub async fn expire(&self, id: &str) -> Result<(), TxnError> {
        let expiration_ms = self.shared.config.expiration_ms;
        self.decide(id, |entry, ctx| match entry {
            Some(entry) => txn::expire(entry, expiration_ms, ctx),
            None => Decision::Answer(()),
        })
        .await
    }

    /// Drops what a broker has carried out, as its done file says; whether anything of it was owed.
    /// Only then may the file go.
    ///
    /// # Errors
    /// Where the slot can't be answered for or written.
    pub async fn confirm(
        &self,
        id: &str,
        done: &EntryName,
        txn_seq: u64,
        what: &OwedEntry,
    ) -> Result<bool, TxnError> {
        self.amend(id, |entry| txn::confirm(entry, done, txn_seq, what))
            .await
    }

    /// Drops what is owed to topics that are proven to be gone; whether there was any.
    ///
    /// # Errors
    /// Where the slot can't be answered for or written.
    pub async fn forget_deleted(
        &self,
        id: &str,
        is_deleted: impl Fn(Uuid) -> bool,
    ) -> Result<bool, TxnError> {
        self.amend(id, |entry| txn::forget_deleted(entry, &is_deleted))
            .await
    }

    /// What an id is owed, as the entries that must be in the queues.
    ///
    /// # Errors
    /// Where the slot can't be answered for.
    pub fn owed_entries(&self, id: &str) -> Result<Vec<OwedFile>, TxnError> {
        let state = self.slot(id)?.lock();
        state.check()?;
        let ctx = self.ctx(&state, None);
        let mut entries = Vec::new();
        for owed in state.entry(id).iter().flat_map(|entry| &entry.owed) {
            for (broker, one) in &owed.entries {
                entries.push(OwedFile {
                    broker: *broker,
                    record_epoch: owed.record_epoch,
                    txn_seq: owed.txn_seq,
                    file: MarkerQueueFile::of(id, owed, one, ctx.slot_epoch, ctx.now_ms),
                });
            }
        }
        Ok(entries)
    }

    /// Gives what an id is owed to those who lead it now; whether anything moved. The entries of
    /// the new ones are to be put, before those that nobody is owed any more are removed.
    ///
    /// # Errors
    /// Where the slot can't be answered for or written.
    pub async fn reroute(&self, id: &str, own: BrokerId) -> Result<bool, TxnError> {
        let homes = &self.shared.ports.homes;
        self.amend(id, |entry| {
            let partition = |topic: &str, id, partition| homes.partition(topic, id, partition);
            let moved = txn::reroute(entry, own, partition, |group| homes.group(group));
            moved.map(|(change, _)| change)
        })
        .await
    }

    /// Whether a queue entry, or the done file of one, means nothing any more: its id is
    /// coordinated here, as the volume has it, and neither owed what it says nor about to be.
    pub async fn is_void(&self, name: QueueName, file: &MarkerQueueFile) -> bool {
        let Ok(slot) = self.slot(&file.transactional_id) else {
            return false;
        };
        let void = seems_void(&slot.lock(), name, file);
        // Of what was owed since another took over nothing is known here.
        void && self.owned(slot).await.is_ok()
    }

    async fn amend(
        &self,
        id: &str,
        amend: impl Fn(&TxnEntry) -> Option<Change>,
    ) -> Result<bool, TxnError> {
        self.decide(id, |entry, _| match entry.and_then(&amend) {
            Some(change) => Decision::Persist(Box::new(change), Then::Answer(true)),
            None => Decision::Answer(false),
        })
        .await
    }

    /// Has every slot written that holds what could be derived again.
    pub fn flush(&self) {
        for slot in self.shared.slots.values() {
            let mut state = slot.lock();
            if state.is_soft() {
                self.queue_slot(slot, &mut state);
            }
        }
    }

    /// The same, and waits until it is written, or `patience` is over.
    pub async fn flushed(&self, patience: Duration) {
        let late = self.shared.env.clock.sleep(patience);
        let written = async {
            for slot in self.shared.slots.values() {
                while let Some(mut moved) = self.flushing(slot) {
                    if moved.changed().await.is_err() {
                        return;
                    }
                }
            }
        };
        tokio::select! {
            biased;
            () = written => {}
            () = late => tracing::warn!("finished transactions are finished again when it starts"),
        }
    }

    /// What tells that a slot moved which has something to be written; `None` if it has not.
    fn flushing(&self, slot: &SlotCell) -> Option<watch::Receiver<u64>> {
        let mut state = slot.lock();
        if !state.is_unwritten() {
            return None;
        }
        self.queue_slot(slot, &mut state);
        Some(state.moved.subscribe())
    }

    /// Carries a decision out, as far as can be now; one at a time for each id: nothing while
    /// somebody else does.
    pub(super) async fn finish(
        &self,
        slot: &SlotCell,
        id: &str,
        again: bool,
    ) -> Result<(), PortError> {
        let Some(_finishing) = Finishing::begin(slot, id) else {
            return Ok(());
        };
        let outcome = self.carry_out(slot, id, again).await;
        let failed = outcome.as_ref().err().map(ToString::to_string);
        slot.lock().tried(id, failed);
        outcome
    }

    async fn carry_out(&self, slot: &SlotCell, id: &str, again: bool) -> Result<(), PortError> {
        let (owed, epoch) = {
            let state = slot.lock();
            let entry = state.entry(id).filter(|_| state.check().is_ok());
            let Some(owed) = entry.and_then(txn::owed_by) else {
                return Ok(());
            };
            (owed, self.ctx(&state, None).slot_epoch)
        };
        let ports = &self.shared.ports;
        // Whoever decided may have ended before it published.
        if let Some(fence) = owed.fence().filter(|_| again) {
            ports.fences.publish(vec![fence]).await?;
        }
        let plan = txn::plan(
            &owed,
            |topic, topic_id, partition| ports.homes.partition(topic, topic_id, partition),
            |group| ports.homes.group(group),
        );
        // What can't be carried out in one place holds no other up.
        let mut outcome = self.write_here(&owed, &plan.local, epoch).await;
        let now_ms = self.shared.env.clock.wall_ms();
        for (broker, entry) in &plan.remote {
            let queued = owed.owed(plan.remote.clone());
            let entry = MarkerQueueFile::of(id, &queued, entry, epoch, now_ms);
            let put = ports.queue.enqueue(*broker, owed.record_epoch, entry);
            outcome = outcome.and(put.await);
        }
        if !plan.homeless.is_empty() {
            outcome = outcome.and(Err(PortError(homeless(&plan.homeless))));
        }
        outcome?;
        self.completed(slot, id, &owed, &plan)
    }

    async fn write_here(
        &self,
        owed: &Dispatch,
        local: &OwedEntry,
        epoch: i32,
    ) -> Result<(), PortError> {
        let ports = &self.shared.ports;
        if !local.partitions.is_empty() {
            let order = Dispatch {
                partitions: local.partitions.clone(),
                topic_ids: local.topic_ids.clone(),
                groups: local.groups.clone(),
                ..owed.clone()
            };
            ports.markers.write(order, epoch).await?;
        }
        if !local.groups.is_empty() {
            // Behind the markers: offsets show when the records do.
            let groups = local.groups.clone();
            ports.groups.decide(groups, owed.end()).await?;
        }
        Ok(())
    }

    fn completed(
        &self,
        slot: &SlotCell,
        id: &str,
        owed: &Dispatch,
        plan: &Plan,
    ) -> Result<(), PortError> {
        let mut state = slot.lock();
        let ctx = self.ctx(&state, None);
        let entry = state.entry(id).filter(|_| state.check().is_ok());
        let same = entry.filter(|entry| txn::owed_by(entry).as_ref() == Some(owed));
        let Some(change) = same.and_then(|entry| txn::complete(entry, plan, &ctx)) else {
            // Somebody else was here, or the file is being read again.
            return Ok(());
        };
        if let Some(next) = change.next {
            let put = state.put_soft(id, next);
            put.map_err(|error| PortError(error.to_string()))?;
        }
        let number = state.number;
        drop(state);
        if let Some(transition) = &change.transition {
            self.shared.ports.history.record(number, id, transition);
        }
        Ok(())
    }
}

//! From a decision to its answer: taken under the lock of the slot, durable, carried out, answered.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use store_adapter::fault::{Fault, planted};
use store_adapter::ids::ProducerId;
use tokio::sync::{oneshot, watch};

use super::slot::Slot;
use super::{SLOT_IDS_MAX, SlotCell, Txns};
use crate::machine::txn::{self, Change, Ctx, Decision, END_WAIT_MS, Then, TxnEntry, TxnError};

/// How long to wait before a decision that could not be carried out is tried again; twice as long
/// each time, up to the second.
const FINISH_AGAIN: Duration = Duration::from_millis(10);
const FINISH_AGAIN_MAX: Duration = Duration::from_secs(1);
/// How long the task that decided tries.
const FINISH_FOR: Duration = Duration::from_secs(10);

enum Step<R> {
    Answer(R),
    NeedsId,
    /// A change of the id is being written.
    Busy,
    /// Decided on anew when the slot has moved.
    Wait(u64, TxnError),
    Persist(
        oneshot::Receiver<Result<(), TxnError>>,
        Box<Change>,
        Then<R>,
    ),
}

/// How long a request has waited for others.
#[derive(Debug, Default)]
struct Patience(Option<Duration>);

impl Txns {
    pub(super) async fn decide<R: Clone>(
        &self,
        id: &str,
        decide: impl Fn(Option<&TxnEntry>, &Ctx) -> Decision<R>,
    ) -> Result<R, TxnError> {
        self.run(id, |_| true, decide).await
    }

    /// `surely`: whether an answer that nothing is written for must be one of who owns the slot. A
    /// refusal must always be.
    pub(super) async fn run<R: Clone>(
        &self,
        id: &str,
        surely: impl Fn(&R) -> bool,
        decide: impl Fn(Option<&TxnEntry>, &Ctx) -> Decision<R>,
    ) -> Result<R, TxnError> {
        let slot = self.slot(id)?;
        let id: Arc<str> = id.into();
        let (mut busy, mut patience) = (Patience::default(), Patience::default());
        let mut spare = None;
        loop {
            let mut moved = slot.lock().moved.subscribe();
            let step = match self.step(slot, &id, spare, &surely, &decide) {
                Ok(step) => step,
                Err(error) => {
                    self.owned(slot).await?;
                    return Err(error);
                }
            };
            match step {
                Step::Answer(reply) => {
                    if surely(&reply) {
                        self.owned(slot).await?;
                    }
                    return Ok(reply);
                }
                Step::NeedsId => spare = Some(self.next_id().await?),
                Step::Busy => {
                    if !self.wait(&mut busy, &mut moved, END_WAIT_MS).await {
                        return Err(TxnError::ConcurrentTransactions);
                    }
                }
                Step::Wait(ms, late) => {
                    if !self.wait(&mut patience, &mut moved, ms).await {
                        return Err(late);
                    }
                }
                Step::Persist(durable, change, then) => {
                    let finish = !matches!(then, Then::Answer(_));
                    self.carry_on(slot, &id, durable, *change, finish).await?;
                    spare = None;
                    match then {
                        Then::Answer(reply) => return Ok(reply),
                        Then::Finish(reply, late) => {
                            return self.finished(slot, &id).await.then_some(reply).ok_or(late);
                        }
                        // Now it is in Prepare*, for which it waits.
                        Then::AskAgain(_) => {}
                    }
                }
            }
        }
    }

    /// An answer that rests on memory alone is an answer only of who still owns the slot: one that
    /// was taken over knows nothing of what came later, and would tell a client that a transaction
    /// has ended which is open.
    pub(super) async fn owned(&self, slot: &SlotCell) -> Result<(), TxnError> {
        let (waiter, owned) = oneshot::channel();
        {
            let mut state = slot.lock();
            state.check()?;
            state.ask_owner(waiter);
            self.queue_slot(slot, &mut state);
        }
        owned.await.unwrap_or(Err(TxnError::NotCoordinator))
    }

    /// Looks at an id once, under the lock of its slot. What is being written of it is waited for,
    /// but by what may be answered from memory: it only looks at what is open, and is judged again
    /// where it is used.
    fn step<R>(
        &self,
        slot: &SlotCell,
        id: &Arc<str>,
        spare: Option<ProducerId>,
        surely: impl Fn(&R) -> bool,
        decide: impl Fn(Option<&TxnEntry>, &Ctx) -> Decision<R>,
    ) -> Result<Step<R>, TxnError> {
        let mut state = slot.lock();
        state.check()?;
        let ctx = self.ctx(&state, spare);
        if state.is_pending(id) {
            return Ok(match decide(state.entry(id), &ctx) {
                Decision::Answer(reply) if !surely(&reply) => Step::Answer(reply),
                _ => Step::Busy,
            });
        }
        match decide(state.entry(id), &ctx) {
            Decision::Answer(reply) => Ok(Step::Answer(reply)),
            Decision::Refuse(error) => Err(error),
            Decision::NeedsId => Ok(Step::NeedsId),
            Decision::Wait(ms, late) => Ok(Step::Wait(ms, late)),
            Decision::Persist(change, then) => {
                if state.entry(id).is_none() && state.len() >= SLOT_IDS_MAX {
                    return Err(TxnError::CoordinatorNotAvailable);
                }
                let (waiter, durable) = oneshot::channel();
                state.put(id, change.next.as_ref(), Some(waiter))?;
                self.queue_slot(slot, &mut state);
                Ok(Step::Persist(durable, change, then))
            }
        }
    }

    pub(super) fn ctx(&self, slot: &Slot, spare: Option<ProducerId>) -> Ctx {
        Ctx {
            now_ms: self.shared.env.clock.wall_ms(),
            slot_epoch: i32::try_from(slot.epoch.assignment).unwrap_or(i32::MAX),
            version: self.shared.version.load(Ordering::Relaxed),
            max_timeout_ms: self.shared.config.max_timeout_ms,
            spare,
        }
    }

    pub(super) fn queue_slot(&self, slot: &SlotCell, state: &mut Slot) {
        if !std::mem::replace(&mut state.queued, true) {
            self.shared.queue.push(slot.clone());
        }
    }

    async fn next_id(&self) -> Result<ProducerId, TxnError> {
        let id = self.shared.ports.ids.next_id().await;
        id.map_err(|error| {
            tracing::warn!(%error, "no producer id for a transactional id");
            TxnError::CoordinatorLoading
        })
    }

    /// Runs what follows a change, in a task of its own, and waits until it is durable and its
    /// fences are published. A decision is carried out behind that.
    async fn carry_on(
        &self,
        slot: &SlotCell,
        id: &Arc<str>,
        durable: oneshot::Receiver<Result<(), TxnError>>,
        change: Change,
        finish: bool,
    ) -> Result<(), TxnError> {
        let (txns, slot, id) = (self.clone(), slot.clone(), id.clone());
        let (done, wait) = oneshot::channel();
        let task = async move {
            let outcome = txns.follow(&slot, &id, durable, change).await;
            done.send(outcome)
                .unwrap_or_else(|_| tracing::trace!("nobody waits for this transition any more"));
            if finish {
                // Also behind an error: it may be decided all the same, and then its records wait.
                txns.finish_soon(&slot, &id, outcome.is_err()).await;
            }
        };
        drop(self.shared.env.runtime.spawn("txn-effects", Box::pin(task)));
        wait.await.unwrap_or(Err(TxnError::NotCoordinator))
    }

    /// What follows a change when it is durable.
    async fn follow(
        &self,
        slot: &SlotCell,
        id: &str,
        durable: oneshot::Receiver<Result<(), TxnError>>,
        change: Change,
    ) -> Result<(), TxnError> {
        if !planted(Fault::PrepareBeforeDurable) {
            durable.await.unwrap_or(Err(TxnError::NotCoordinator))?;
        }
        if let Some(transition) = &change.transition {
            let number = slot.lock().number;
            self.shared.ports.history.record(number, id, transition);
        }
        self.publish(change.fences).await
    }

    /// Carries a decision out behind its change. What fails for a moment is tried again soon, for
    /// somebody waits for it; what lasts is left to the reconcile pass.
    ///
    /// `again`: its fences may not be published.
    async fn finish_soon(self, slot: &SlotCell, id: &str, again: bool) {
        let clock = self.shared.env.clock.clone();
        let end = clock.monotonic() + FINISH_FOR;
        // The service may end meanwhile.
        let weak = Arc::downgrade(&self.shared);
        let (mut txns, mut pause) = (self, FINISH_AGAIN);
        loop {
            let finished = txns.finish(slot, id, again).await;
            let is_left = slot.lock().is_unfinished(id);
            let next = clock.monotonic() + pause;
            match finished {
                Err(error) if pause == FINISH_AGAIN => {
                    tracing::warn!(%error, %id, "a transaction is decided and not finished yet");
                }
                Err(error) => tracing::debug!(%error, %id, "still not finished"),
                Ok(()) => {}
            }
            if !is_left || next > end {
                return;
            }
            drop(txns);
            clock.sleep(pause).await;
            pause = (pause * 2).min(FINISH_AGAIN_MAX);
            match weak.upgrade() {
                Some(shared) => txns = Self { shared },
                None => return,
            }
        }
    }

    async fn publish(&self, fences: Vec<txn::Fence>) -> Result<(), TxnError> {
        if fences.is_empty() {
            return Ok(());
        }
        let published = self.shared.ports.fences.publish(fences).await;
        published.map_err(|error| {
            tracing::warn!(%error, "fences are not published");
            TxnError::CoordinatorNotAvailable
        })
    }

    /// Waits until nothing is prepared of an id; whether that came in time.
    async fn finished(&self, slot: &SlotCell, id: &str) -> bool {
        let mut patience = Patience::default();
        loop {
            let mut moved = {
                let state = slot.lock();
                let entry = state.entry(id);
                let prepared = entry.is_some_and(|entry| entry.state.prepared().is_some());
                if state.check().is_ok() && !prepared {
                    return true;
                }
                state.moved.subscribe()
            };
            if !self.wait(&mut patience, &mut moved, END_WAIT_MS).await {
                return false;
            }
        }
    }

    /// Waits until the slot has moved; `false` when `ms` have passed since the first wait.
    async fn wait(
        &self,
        patience: &mut Patience,
        moved: &mut watch::Receiver<u64>,
        ms: u64,
    ) -> bool {
        let clock = &self.shared.env.clock;
        let now = clock.monotonic();
        let end = *patience.0.get_or_insert(now + Duration::from_millis(ms));
        let Some(left) = end.checked_sub(now).filter(|left| !left.is_zero()) else {
            return false;
        };
        tokio::select! {
            biased;
            changed = moved.changed() => changed.is_ok(),
            () = clock.sleep(left) => false,
        }
    }
}

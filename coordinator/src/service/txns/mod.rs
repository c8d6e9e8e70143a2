//! The transactional ids that this broker coordinates.
//!
//! Decisions are the machine's. One is taken under the lock of its slot, becomes durable with
//! whatever else waits for the slot's file, and only then is carried out and answered. What carries
//! it out runs in a task of its own: a request that is dropped cancels nothing.
//!
//! Complete* is derivable from Prepare* by doing it all again, so it is in force in memory at once
//! and is written with the next change of the slot, or by the next pass.

mod files;
mod look;
mod passes;
mod ports;
mod slot;
mod visit;
mod writers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI8, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use store_adapter::fault::{Fault, planted};
use store_adapter::ids::{OwnerEpoch, ProducerId};
use store_adapter::runtime::Env;
use tokio::sync::{oneshot, watch};

pub use self::files::{SlotFileError, SlotFiles};
pub use self::passes::OwedFile;
pub use self::ports::{
    Done, FenceSink, GroupDecisions, HistorySink, Homes, MarkerQueue, MarkerSink, PortError,
    ProducerIdSource, TxnPorts,
};
use self::slot::Slot;
pub use self::visit::{SlotGap, SlotState};
pub use self::writers::TxnCounters;
use self::writers::{WRITERS, WriteQueue, Writer};
use crate::machine::txn::{
    self, AddClass, Added, Change, Client, Ctx, Decision, END_WAIT_MS, EndReply, EndTxn,
    InitProducerId, InitReply, Named, Session, Then, TopicPartitions, TxnEntry, TxnError, Verified,
};
use crate::slot_hash::fnv1a32;

/// Ids of one slot in memory; a new one beyond them is answered as not available.
pub const SLOT_IDS_MAX: usize = 1 << 16;

/// What of the configuration transactions use.
#[derive(Debug, Clone)]
pub struct TxnConfig {
    /// `transaction.max.timeout.ms`.
    pub max_timeout_ms: i32,
    /// `transactional.id.expiration.ms`.
    pub expiration_ms: i64,
    /// The finalized `transaction.version`, 0 to 2.
    pub version: i8,
}

impl Default for TxnConfig {
    fn default() -> Self {
        Self {
            max_timeout_ms: 900_000,
            expiration_ms: 7 * 24 * 3_600_000,
            version: 2,
        }
    }
}

/// The service; clones share it. When the last one is dropped its io tasks end.
#[derive(Debug, Clone)]
pub struct Txns {
    shared: Arc<Shared>,
}

type SlotCell = Arc<Mutex<Slot>>;

#[derive(Debug)]
struct Shared {
    env: Env,
    config: TxnConfig,
    version: AtomicI8,
    ports: TxnPorts,
    /// How many slots the cluster has.
    count: u32,
    /// Those that this broker owns.
    slots: BTreeMap<u32, SlotCell>,
    queue: Arc<WriteQueue>,
    counters: Arc<TxnCounters>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// What one look at an id came to.
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
    /// Starts the service on the slots that this broker owns, of `count` that the cluster has.
    /// Their ids are answered with a retriable error until they are taken over and read.
    pub fn start(
        env: &Env,
        config: TxnConfig,
        files: &Arc<dyn SlotFiles>,
        ports: TxnPorts,
        count: u32,
        owned: Vec<(u32, OwnerEpoch)>,
    ) -> Self {
        let queue = Arc::new(WriteQueue::new());
        let counters = Arc::new(TxnCounters::default());
        let mut slots = BTreeMap::new();
        for (number, epoch) in owned {
            let mut slot = Slot::new(number, epoch);
            slot.queued = true;
            let slot = Arc::new(Mutex::new(slot));
            queue.push(slot.clone());
            slots.insert(number, slot);
        }
        let writer = Writer {
            env: env.clone(),
            files: files.clone(),
            queue: queue.clone(),
            counters: counters.clone(),
            slots: count,
        };
        for _ in 0..WRITERS {
            let task = Box::pin(writer.clone().run());
            drop(env.runtime.spawn_io("txn-slots", task));
        }
        let version = AtomicI8::new(config.version);
        let shared = Shared {
            env: env.clone(),
            config,
            version,
            ports,
            count,
            slots,
            queue,
            counters,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Counts of writes.
    pub fn counters(&self) -> &Arc<TxnCounters> {
        &self.shared.counters
    }

    /// The finalized `transaction.version` has changed.
    pub fn set_version(&self, version: i8) {
        self.shared.version.store(version, Ordering::Relaxed);
    }

    /// Slots that can't be answered for yet.
    pub fn slots_loading(&self) -> usize {
        let slots = self.shared.slots.values();
        let loading = |slot: &&SlotCell| slot.lock().check() == Err(TxnError::CoordinatorLoading);
        slots.filter(loading).count()
    }

    /// The slot of an id.
    ///
    /// # Errors
    /// [`TxnError::NotCoordinator`] if another broker has it.
    fn slot(&self, id: &str) -> Result<&SlotCell, TxnError> {
        let number = fnv1a32(id.as_bytes()).checked_rem(self.shared.count);
        let slot = number.and_then(|number| self.shared.slots.get(&number));
        slot.ok_or(TxnError::NotCoordinator)
    }

    /// What is known of an id; `None` if nothing is.
    ///
    /// # Errors
    /// Where its slot can't be answered for.
    pub fn describe(&self, id: &str) -> Result<Option<TxnEntry>, TxnError> {
        let slot = self.slot(id)?.lock();
        slot.check()?;
        Ok(slot.entry(id).cloned())
    }

    /// InitProducerId.
    ///
    /// # Errors
    /// As the machine's, and where the slot can't be answered for or written.
    pub async fn init_producer_id(
        &self,
        id: &str,
        request: &InitProducerId,
    ) -> Result<InitReply, TxnError> {
        if id.is_empty() {
            return Err(TxnError::InvalidRequest);
        }
        self.decide(id, |entry, ctx| txn::init_producer_id(entry, request, ctx))
            .await
    }

    /// Ends what is open and fences its session, as an administrator does.
    ///
    /// # Errors
    /// As [`Txns::init_producer_id`].
    pub async fn force_terminate(&self, id: &str) -> Result<InitReply, TxnError> {
        self.decide(id, txn::force_terminate).await
    }

    /// AddPartitionsToTxn of a client, and the addition that Produce implies.
    ///
    /// # Errors
    /// As [`Txns::init_producer_id`].
    pub async fn add_partitions(
        &self,
        id: &str,
        session: Session,
        named: &[Named],
        class: AddClass,
        client: Option<&Client>,
    ) -> Result<Added, TxnError> {
        self.decide(id, |entry, ctx| {
            txn::add_partitions(entry, session, named, class, client, ctx)
        })
        .await
    }

    /// AddOffsetsToTxn, and the addition that TxnOffsetCommit implies.
    ///
    /// # Errors
    /// As [`Txns::init_producer_id`].
    pub async fn add_groups(
        &self,
        id: &str,
        session: Session,
        group: &Arc<str>,
        class: AddClass,
        client: Option<&Client>,
    ) -> Result<Added, TxnError> {
        self.decide(id, |entry, ctx| {
            txn::add_groups(entry, session, group, class, client, ctx)
        })
        .await
    }

    /// Which of the partitions are not in the open transaction.
    ///
    /// # Errors
    /// As [`Txns::init_producer_id`].
    pub async fn verify_partitions(
        &self,
        id: &str,
        session: Session,
        asked: &TopicPartitions,
    ) -> Result<Verified, TxnError> {
        // For each first batch of a transaction on a partition: what an owner that was taken over
        // approves, the epoch of the markers refuses.
        let lacks = |verified: &Verified| !verified.missing.is_empty();
        self.run(id, lacks, |entry, _| {
            txn::verify_partitions(entry, session, asked)
        })
        .await
    }

    /// The number of the open transaction, if the group is in it.
    ///
    /// # Errors
    /// As [`Txns::init_producer_id`].
    pub async fn verify_group(
        &self,
        id: &str,
        session: Session,
        group: &str,
    ) -> Result<Option<u64>, TxnError> {
        self.run(id, Option::is_none, |entry, _| {
            txn::verify_group(entry, session, group)
        })
        .await
    }

    /// EndTxn: answered when every marker and decision is durable, here or queued.
    ///
    /// # Errors
    /// As [`Txns::init_producer_id`]; [`TxnError::CoordinatorNotAvailable`] if that takes longer
    /// than [`END_WAIT_MS`]: it stays decided, and is finished.
    pub async fn end_txn(&self, id: &str, request: &EndTxn) -> Result<EndReply, TxnError> {
        self.decide(id, |entry, ctx| txn::end_txn(entry, request, ctx))
            .await
    }

    async fn decide<R: Clone>(
        &self,
        id: &str,
        decide: impl Fn(Option<&TxnEntry>, &Ctx) -> Decision<R>,
    ) -> Result<R, TxnError> {
        self.run(id, |_| true, decide).await
    }

    /// `surely`: whether an answer that nothing is written for must be one of who owns the slot. A
    /// refusal must always be.
    async fn run<R: Clone>(
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
            let step = match self.step(slot, &id, spare, &decide) {
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
    async fn owned(&self, slot: &SlotCell) -> Result<(), TxnError> {
        if planted(Fault::OwnerNotAsked) {
            return Ok(());
        }
        let (waiter, owned) = oneshot::channel();
        {
            let mut state = slot.lock();
            state.check()?;
            state.ask_owner(waiter);
            self.queue_slot(slot, &mut state);
        }
        owned.await.unwrap_or(Err(TxnError::NotCoordinator))
    }

    /// Looks at an id once, under the lock of its slot.
    fn step<R>(
        &self,
        slot: &SlotCell,
        id: &Arc<str>,
        spare: Option<ProducerId>,
        decide: impl Fn(Option<&TxnEntry>, &Ctx) -> Decision<R>,
    ) -> Result<Step<R>, TxnError> {
        let mut state = slot.lock();
        state.check()?;
        if state.is_pending(id) {
            return Ok(Step::Busy);
        }
        let ctx = self.ctx(&state, spare);
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
                state.put(id, (*change).clone(), Some(waiter))?;
                self.queue_slot(slot, &mut state);
                Ok(Step::Persist(durable, change, then))
            }
        }
    }

    fn ctx(&self, slot: &Slot, spare: Option<ProducerId>) -> Ctx {
        Ctx {
            now_ms: self.shared.env.clock.wall_ms(),
            slot_epoch: i32::try_from(slot.epoch.assignment).unwrap_or(i32::MAX),
            version: self.shared.version.load(Ordering::Relaxed),
            max_timeout_ms: self.shared.config.max_timeout_ms,
            spare,
        }
    }

    fn queue_slot(&self, slot: &SlotCell, state: &mut Slot) {
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
        let after = async move {
            if !planted(Fault::PrepareBeforeDurable) {
                durable.await.unwrap_or(Err(TxnError::NotCoordinator))?;
            }
            if let Some(transition) = &change.transition {
                let number = slot.lock().number;
                txns.shared.ports.history.record(number, &id, transition);
            }
            txns.publish(change.fences).await?;
            Ok((txns, slot, id))
        };
        let (done, wait) = oneshot::channel();
        let task = async move {
            match after.await {
                Ok((txns, slot, id)) => {
                    let heard = done.send(Ok(()));
                    if finish {
                        txns.finish(&slot, &id, false).await;
                    }
                    heard
                }
                Err(error) => done.send(Err(error)),
            }
            .unwrap_or_else(|_| tracing::trace!("nobody waits for this transition any more"));
        };
        drop(self.shared.env.runtime.spawn("txn-effects", Box::pin(task)));
        wait.await.unwrap_or(Err(TxnError::NotCoordinator))
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

//! The transactional ids that this broker coordinates.
//!
//! Decisions are the machine's. One is taken under the lock of its slot, becomes durable with
//! whatever else waits for the slot's file, and only then is carried out and answered. What carries
//! it out runs in a task of its own: a request that is dropped cancels nothing.
//!
//! Complete* is derivable from Prepare* by doing it all again, so it is in force in memory at once
//! and is written with the next change of the slot, or by the next pass.

mod decide;
mod files;
mod ids;
mod passes;
mod ports;
mod slot;
mod visit;
mod writers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI8, Ordering};

use parking_lot::Mutex;
use store_adapter::fault::{Fault, planted};
use store_adapter::ids::OwnerEpoch;
use store_adapter::runtime::{BoxFuture, Env};
use tokio::sync::Notify;

pub use self::files::{SlotFileError, SlotFiles};
pub use self::passes::OwedFile;
pub use self::ports::{
    Done, FenceSink, GroupDecisions, HistorySink, Homes, MarkerQueue, MarkerSink, PortError,
    ProducerIdSource, TxnPorts,
};
use self::slot::Slot;
pub use self::visit::{SlotGap, SlotState, Undecided};
pub use self::writers::TxnCounters;
use self::writers::{WRITERS, WriteQueue, Writer};
use crate::machine::txn::{
    self, AddClass, Added, Client, EndReply, EndTxn, Home, InitProducerId, InitReply, Named,
    Session, TxnEntry, TxnError, Verified,
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
    /// A slot was read again: what was finished in memory may have to be finished again.
    reread: Arc<Notify>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// What one look at an id came to.
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
        let reread = Arc::new(Notify::new());
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
            reread: reread.clone(),
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
            reread,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Counts of writes.
    pub fn counters(&self) -> &Arc<TxnCounters> {
        &self.shared.counters
    }

    /// Completes when a slot has been read again behind a write of unknown outcome, since the last
    /// time: decisions that were carried out may have to be carried out again. For one who waits.
    pub fn reread(&self) -> BoxFuture<'static, ()> {
        let reread = Arc::clone(&self.shared.reread);
        Box::pin(async move { reread.notified().await })
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
        if !planted(Fault::UnreadShown) {
            slot.check()?;
        }
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
        self.can_fence(id).await?;
        self.decide(id, |entry, ctx| txn::init_producer_id(entry, request, ctx))
            .await
    }

    /// Whether the session before a new one could be fenced now. A client whose fence can't be
    /// published asks again, and each time would raise the epoch.
    async fn can_fence(&self, id: &str) -> Result<(), TxnError> {
        if self.slot(id)?.lock().entry(id).is_none() {
            return Ok(());
        }
        let ready = self.shared.ports.fences.ready().await;
        ready.map_err(|error| {
            tracing::warn!(%error, %id, "no session can be fenced");
            TxnError::CoordinatorNotAvailable
        })
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
            // A name may have got to another topic while this waited: the partitions of that one
            // stay.
            let named: Vec<Named> = named.iter().map(|one| self.still_there(one)).collect();
            txn::add_partitions(entry, session, &named, class, client, ctx)
        })
        .await
    }

    /// What a request names, without the id of a topic that is gone.
    fn still_there(&self, one: &Named) -> Named {
        let home = (self.shared.ports.homes).partition(&one.topic, one.topic_id, one.partition);
        Named {
            topic_id: one.topic_id.filter(|_| home != Home::Deleted),
            ..one.clone()
        }
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
        asked: &[Named],
    ) -> Result<Verified, TxnError> {
        // For each first batch of a transaction on a partition: what an owner that was taken over
        // approves, the partition refuses that has the marker of that number already.
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
    /// than [`txn::END_WAIT_MS`]: it stays decided, and is finished.
    pub async fn end_txn(&self, id: &str, request: &EndTxn) -> Result<EndReply, TxnError> {
        self.decide(id, |entry, ctx| txn::end_txn(entry, request, ctx))
            .await
    }
}

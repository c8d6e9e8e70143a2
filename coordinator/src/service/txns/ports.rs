//! What carries decisions out: markers, group decisions, fences, queue entries, history. All of it
//! may be asked for twice, and each does nothing the second time.

use std::fmt::Debug;
use std::sync::Arc;

use store_adapter::ids::{BrokerId, ProducerEpoch, ProducerId};
use store_adapter::runtime::BoxFuture;
use uuid::Uuid;

use crate::machine::group::GroupError;
use crate::machine::group::offsets::TxnEnd;
use crate::machine::txn::{Dispatch, Fence, Groups, Home, Transition};
use crate::service::groups::Offsets;
use crate::service::producer_ids::{ProducerIdError, ProducerIds};
use crate::volume::format::MarkerQueueFile;

/// Something was not done, or may not have been; it is asked for again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PortError(pub String);

/// What a port answers.
pub type Done<'a> = BoxFuture<'a, Result<(), PortError>>;

/// Producer ids that nobody ever had.
pub trait ProducerIdSource: Send + Sync + Debug + 'static {
    /// The next one.
    fn next_id(&self) -> BoxFuture<'_, Result<ProducerId, ProducerIdError>>;
}

/// Who has a partition, or a group.
pub trait Homes: Send + Sync + Debug + 'static {
    /// The leader of a partition of the topic with that id; by name, where it is not known.
    fn partition(&self, topic: &str, id: Option<Uuid>, partition: i32) -> Home;
    /// The coordinator of a group.
    fn group(&self, group: &str) -> Home;
}

/// Writes markers to partitions that this broker leads.
pub trait MarkerSink: Send + Sync + Debug + 'static {
    /// Done when the markers of all of `order.partitions` are durable. A partition that has a
    /// marker of that producer and number, or of a later one, has it already.
    fn write(&self, order: Dispatch, coordinator_epoch: i32) -> Done<'_>;
}

/// Decides staged offsets of groups that this broker coordinates.
pub trait GroupDecisions: Send + Sync + Debug + 'static {
    /// Done when the decision is durable in all of `groups`.
    fn decide(&self, groups: Groups, end: TxnEnd) -> Done<'_>;
}

/// Refuses data of producers everywhere.
pub trait FenceSink: Send + Sync + Debug + 'static {
    /// Whether fences can be published, as far as is known: after a failure that is tried.
    fn ready(&self) -> Done<'_>;
    /// Done when the fences are durable and in force here.
    fn publish(&self, fences: Vec<Fence>) -> Done<'_>;
}

/// Queues markers and group decisions for other brokers.
pub trait MarkerQueue: Send + Sync + Debug + 'static {
    /// Done when the entry is durable. It is named after the epoch of the records.
    fn enqueue(
        &self,
        to: BrokerId,
        record_epoch: ProducerEpoch,
        entry: MarkerQueueFile,
    ) -> Done<'_>;
}

/// Keeps what happened, for people. Never waited for.
pub trait HistorySink: Send + Sync + Debug + 'static {
    /// Takes one transition of an id, which is durable or can be derived.
    fn record(&self, slot: u32, transactional_id: &str, transition: &Transition);
}

/// All of them.
#[derive(Debug, Clone)]
pub struct TxnPorts {
    /// Producer ids.
    pub ids: Arc<dyn ProducerIdSource>,
    /// Leaders and coordinators.
    pub homes: Arc<dyn Homes>,
    /// Markers.
    pub markers: Arc<dyn MarkerSink>,
    /// Group decisions.
    pub groups: Arc<dyn GroupDecisions>,
    /// Fences.
    pub fences: Arc<dyn FenceSink>,
    /// The queues of other brokers.
    pub queue: Arc<dyn MarkerQueue>,
    /// History.
    pub history: Arc<dyn HistorySink>,
}

impl ProducerIdSource for ProducerIds {
    fn next_id(&self) -> BoxFuture<'_, Result<ProducerId, ProducerIdError>> {
        Box::pin(Self::next_id(self))
    }
}

impl GroupDecisions for Offsets {
    fn decide(&self, groups: Groups, end: TxnEnd) -> Done<'_> {
        Box::pin(async move {
            // Ordered first, so that they share what can be shared, then awaited. One that can't be
            // decided holds no other up.
            let mut outcome = Ok(());
            let mut waiting = Vec::new();
            for group in &groups {
                match Self::decide(self, group, end) {
                    Ok(Some(pending)) => waiting.push((group, pending)),
                    Ok(None) => {
                        let earlier = format!("group {group:?} has not decided the one before");
                        outcome = outcome.and(Err(PortError(earlier)));
                    }
                    Err(error) => outcome = outcome.and(Err(undecided(group, error))),
                }
            }
            for (group, pending) in waiting {
                let durable = pending.durable().await;
                outcome = outcome.and(durable.map_err(|error| undecided(group, error)));
            }
            outcome
        })
    }
}

fn undecided(group: &str, error: GroupError) -> PortError {
    PortError(format!("the offsets of group {group:?}: {error}"))
}

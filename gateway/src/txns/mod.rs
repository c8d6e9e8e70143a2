//! What carries out the decisions of the transaction coordinator on this broker: markers into the
//! partitions it leads, decisions of staged offsets, fences, the queues of other brokers, history.

pub mod history;
pub mod hold;
mod homes;
mod markers;
mod passes;
mod queue;
mod verify;

use std::sync::Arc;

use coordinator::service::fences::Fences;
use coordinator::service::producer_ids::ProducerIds;
use coordinator::service::txns::{HistorySink, TxnPorts};

pub use self::homes::NodeHomes;
pub use self::markers::LocalMarkers;
pub use self::passes::start_passes;
pub use self::queue::QueuePasses;
pub(crate) use self::verify::{Candidate, Looked, Question, Unverified, Verification, look};

/// The ports of a broker.
pub fn ports(
    ids: Arc<ProducerIds>,
    fences: Fences,
    passes: &QueuePasses,
    history: Arc<dyn HistorySink>,
) -> TxnPorts {
    TxnPorts {
        ids,
        homes: passes.homes.clone(),
        markers: passes.markers.clone(),
        groups: Arc::new(passes.offsets.clone()),
        fences: Arc::new(fences),
        queue: Arc::new(passes.queues.clone()),
        history,
    }
}

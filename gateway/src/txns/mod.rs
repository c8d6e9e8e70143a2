//! What carries out the decisions of the transaction coordinator on this broker: markers into the
//! partitions it leads, decisions of staged offsets, fences, the queues of other brokers, history.

mod homes;
mod markers;
mod passes;
mod verify;

use std::sync::Arc;

use coordinator::machine::txn::Transition;
use coordinator::service::cluster::ClusterNode;
use coordinator::service::fences::Fences;
use coordinator::service::groups::Offsets;
use coordinator::service::producer_ids::ProducerIds;
use coordinator::service::txns::{Done, HistorySink, MarkerQueue, PortError, TxnPorts};
use coordinator::volume::format::MarkerQueueFile;
use store_adapter::ids::BrokerId;

pub use self::homes::NodeHomes;
pub use self::markers::LocalMarkers;
pub use self::passes::start_passes;
pub(crate) use self::verify::{Candidate, Unverified, Verification, verify};

/// The ports of a broker.
pub fn ports(
    node: &ClusterNode,
    ids: Arc<ProducerIds>,
    offsets: Offsets,
    fences: Fences,
    markers: Arc<LocalMarkers>,
) -> TxnPorts {
    TxnPorts {
        ids,
        homes: Arc::new(NodeHomes(node.clone())),
        markers,
        groups: Arc::new(offsets),
        fences: Arc::new(fences),
        queue: Arc::new(Unwired),
        history: Arc::new(Unwired),
    }
}

/// Carries nothing out.
#[derive(Debug)]
struct Unwired;

fn unwired<'a>() -> Done<'a> {
    Box::pin(async { Err(PortError("not carried out yet".to_owned())) })
}

impl MarkerQueue for Unwired {
    fn enqueue(&self, _: BrokerId, _: MarkerQueueFile) -> Done<'_> {
        unwired()
    }
}

impl HistorySink for Unwired {
    fn record(&self, _: u32, _: &str, _: &Transition) {}
}

//! What carries out the decisions of the transaction coordinator on this broker: markers into the
//! partitions it leads, decisions of staged offsets, fences, the queues of other brokers, history.

pub mod history;
pub mod hold;

use std::sync::Arc;

use coordinator::machine::txn::{Dispatch, Fence, Home, Transition};
use coordinator::service::groups::Offsets;
use coordinator::service::producer_ids::ProducerIds;
use coordinator::service::txns::{
    Done, FenceSink, HistorySink, Homes, MarkerQueue, MarkerSink, PortError, TxnPorts,
};
use coordinator::volume::format::MarkerQueueFile;
use store_adapter::ids::BrokerId;
use uuid::Uuid;

/// The ports of a broker.
pub fn ports(ids: Arc<ProducerIds>, offsets: Offsets) -> TxnPorts {
    let unwired = Arc::new(Unwired);
    TxnPorts {
        ids,
        homes: unwired.clone(),
        markers: unwired.clone(),
        groups: Arc::new(offsets),
        fences: unwired.clone(),
        queue: unwired.clone(),
        history: unwired,
    }
}

/// Carries nothing out.
#[derive(Debug)]
struct Unwired;

fn unwired<'a>() -> Done<'a> {
    Box::pin(async { Err(PortError("not carried out yet".to_owned())) })
}

impl Homes for Unwired {
    fn partition(&self, _: &str, _: Option<Uuid>, _: i32) -> Home {
        Home::Unknown
    }

    fn group(&self, _: &str) -> Home {
        Home::Unknown
    }
}

impl MarkerSink for Unwired {
    fn write(&self, _: Dispatch, _: i32) -> Done<'_> {
        unwired()
    }
}

impl FenceSink for Unwired {
    fn publish(&self, _: Vec<Fence>) -> Done<'_> {
        unwired()
    }
}

impl MarkerQueue for Unwired {
    fn enqueue(&self, _: BrokerId, _: MarkerQueueFile) -> Done<'_> {
        unwired()
    }
}

impl HistorySink for Unwired {
    fn record(&self, _: u32, _: &str, _: &Transition) {}
}

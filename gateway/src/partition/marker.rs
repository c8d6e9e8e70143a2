//! Markers: the control batches by which a coordinator ends a transaction on the partition.

use std::sync::Arc;

use store_adapter::ids::{ProducerEpoch, ProducerId};

use super::{AppendError, Partition, Ticket};

/// The end of a transaction, as its coordinator orders it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    /// The producer.
    pub producer_id: ProducerId,
    /// The epoch that the marker carries.
    pub producer_epoch: ProducerEpoch,
    /// Commit, or abort.
    pub commit: bool,
    /// Epoch of the coordinator that decided.
    pub coordinator_epoch: i32,
    /// Number of the transaction within its transactional id; `None` for one that an administrator
    /// ends by WriteTxnMarkers.
    pub txn_seq: Option<u64>,
}

impl Partition {
    /// Queues a marker behind everything queued; answered when it is durable, also where the
    /// partition has a marker of that producer and number, or of a later one, already.
    pub fn append_marker(self: &Arc<Self>, _marker: Marker) -> Ticket {
        Ticket::Ready(Err(AppendError::Settling))
    }
}

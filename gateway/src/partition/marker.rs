//! Markers: the control batches by which a coordinator ends a transaction on the partition.

use std::sync::Arc;

use coordinator::machine::producer::{BatchMeta, MarkerInfo, MarkerVerdict};
use store_adapter::control::EndTxnMarker;
use store_adapter::fault::{Fault, planted};
use store_adapter::ids::{ProducerEpoch, ProducerId};

use super::{AppendError, Appended, Partition, Ticket};
use crate::admitted::Admitted;

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
    /// partition has a marker of that producer and number, or of a later one, already: then the
    /// offset of the answer is -1. Refused are an epoch below the producer's
    /// ([`AppendError::StaleEpoch`]) and one of a coordinator that was replaced
    /// ([`AppendError::CoordinatorFenced`]).
    pub fn append_marker(self: &Arc<Self>, marker: Marker) -> Ticket {
        let now_ms = self.deps.env.clock.wall_ms();
        let Marker {
            producer_id: id,
            producer_epoch: epoch,
            commit,
            coordinator_epoch,
            txn_seq,
        } = marker;
        let record = EndTxnMarker {
            commit,
            coordinator_epoch,
            txn_seq,
        };
        let info = MarkerInfo {
            commit,
            coordinator_epoch,
            txn_seq,
        };
        let batch = record.to_batch(id, epoch, now_ms);
        let mut state = self.state.lock();
        if let Err(error) = state.may_append() {
            return Ticket::Ready(Err(error));
        }
        if self.is_of_fenced_session(marker) {
            return self.refuse(AppendError::StaleEpoch, Admitted::default());
        }
        match state.producers.judge_marker(id, epoch, &info, now_ms) {
            MarkerVerdict::Append => {
                state.guards.marker(id, epoch);
                let stamped = batch.stamp(state.next_offset, self.epoch);
                let meta = BatchMeta::from_header(stamped.header(), now_ms, Some(info));
                self.queue(&mut state, stamped, meta, Admitted::default())
            }
            MarkerVerdict::Durable => Ticket::Ready(Ok(self.written_before())),
            MarkerVerdict::Queued => {
                self.wait_behind(&state, self.written_before(), Admitted::default())
            }
            MarkerVerdict::StaleEpoch => self.refuse(AppendError::StaleEpoch, Admitted::default()),
            MarkerVerdict::CoordinatorFenced => {
                self.refuse(AppendError::CoordinatorFenced, Admitted::default())
            }
        }
    }

    /// What no marker may be judged by: its records are of a session that a fence refuses.
    fn is_of_fenced_session(&self, marker: Marker) -> bool {
        let ended = ProducerEpoch(marker.producer_epoch.0.saturating_sub(1));
        let fences = &self.deps.fences;
        planted(Fault::FenceJudgesMarkers) && fences.is_stale(marker.producer_id, ended)
    }

    fn written_before(&self) -> Appended {
        Appended {
            base_offset: -1,
            log_start: self.visible().log_start,
            duplicate_of: None,
        }
    }
}

//! The append path under the partition lock: lead, order, dedupe, queue.

use std::sync::Arc;

use coordinator::machine::producer::{BatchMeta, Duplicate, Verdict};
use store_adapter::batch::{Batch, StampedBatch};
use store_adapter::store::{Append, Op};
use tokio::sync::oneshot;

use super::lane::{Entry, Work};
use super::{AppendError, Partition, State, Status};

/// A batch that is durable in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Offset of its first record.
    pub base_offset: i64,
    /// First offset of the log.
    pub log_start: i64,
    /// For a duplicate, the largest timestamp of the batch that is answered for.
    pub duplicate_of: Option<i64>,
}

/// An append after its first stage.
#[derive(Debug)]
pub enum Ticket {
    /// Decided.
    Ready(Result<Appended, AppendError>),
    /// Queued: the answer comes when the commit is known.
    Queued(oneshot::Receiver<Result<Appended, AppendError>>),
}

impl Ticket {
    /// The answer. A lane that ended without one may have appended the batch.
    pub async fn outcome(self) -> Result<Appended, AppendError> {
        match self {
            Self::Ready(outcome) => outcome,
            Self::Queued(answer) => answer.await.unwrap_or(Err(AppendError::Uncertain)),
        }
    }
}

impl Partition {
    /// Classifies `batch` and queues it for commit. Order of calls is order in the log. The batch
    /// was validated before; `leader_epoch` is the epoch under which the caller found this leader.
    pub fn append(self: &Arc<Self>, batch: &Batch) -> Ticket {
        let append_ms = self.deps.env.clock.wall_ms();
        let mut state = self.state.lock();
        if let Err(error) = state.may_append() {
            return Ticket::Ready(Err(error));
        }
        let stamped = batch.stamp(state.next_offset, self.epoch);
        let meta = BatchMeta::from_header(stamped.header(), append_ms, None);
        let verdict = state.producers.classify(&meta);
        self.deps.classified.count(&verdict);
        match verdict {
            Verdict::Accept => self.queue(&mut state, stamped, meta),
            Verdict::DuplicateDurable(of) => Ticket::Ready(Ok(self.duplicate(of))),
            Verdict::DuplicateQueued(of) => self.wait_behind(&state, self.duplicate(of)),
            Verdict::OutOfOrder => Ticket::Ready(Err(AppendError::OutOfOrderSequence)),
            Verdict::StaleEpoch => Ticket::Ready(Err(AppendError::StaleEpoch)),
            Verdict::InvalidTxnState => Ticket::Ready(Err(AppendError::InvalidTxnState)),
            Verdict::InvalidRecord => Ticket::Ready(Err(AppendError::InvalidRecord)),
        }
    }

    fn duplicate(&self, of: Duplicate) -> Appended {
        Appended {
            base_offset: of.base_offset,
            log_start: self.visible.borrow().log_start,
            duplicate_of: Some(of.timestamp),
        }
    }

    fn queue(
        self: &Arc<Self>,
        state: &mut State,
        stamped: StampedBatch,
        meta: BatchMeta,
    ) -> Ticket {
        let (base_offset, last_offset) = (meta.base_offset, meta.last_offset);
        let bytes = stamped.total_len() as u64;
        state.producers.queue(meta);
        state.next_offset = last_offset + 1;
        let commit = self.deps.store.submit(vec![Op::Append(Append {
            log: self.id,
            epoch: self.epoch,
            expect_end: base_offset,
            append_ms: meta.append_ms,
            batch: stamped,
        })]);
        let (answer, receive) = oneshot::channel();
        let entry = Entry {
            partition: self.clone(),
            generation: state.generation,
            work: Work::Append {
                commit,
                base_offset,
                last_offset,
                bytes,
            },
            answer,
        };
        match self.deps.lane.send(entry) {
            Ok(()) => Ticket::Queued(receive),
            // The lane ends only with the broker; the group may be written all the same.
            Err(_) => Ticket::Ready(Err(AppendError::Uncertain)),
        }
    }

    /// A duplicate of a queued batch is answered when that batch was decided.
    fn wait_behind(self: &Arc<Self>, state: &State, outcome: Appended) -> Ticket {
        let (answer, receive) = oneshot::channel();
        let entry = Entry {
            partition: self.clone(),
            generation: state.generation,
            work: Work::Duplicate(outcome),
            answer,
        };
        match self.deps.lane.send(entry) {
            Ok(()) => Ticket::Queued(receive),
            Err(_) => Ticket::Ready(Err(AppendError::Uncertain)),
        }
    }
}

impl State {
    fn may_append(&self) -> Result<(), AppendError> {
        match &self.status {
            Status::Open => Ok(()),
            Status::Settling => Err(AppendError::Settling),
            Status::Closed(reason) => Err(reason.clone()),
        }
    }
}

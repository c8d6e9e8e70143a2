//! The append path under the partition lock: lead, order, dedupe, queue.

use std::sync::Arc;

use coordinator::machine::producer::{BatchMeta, Duplicate, Verdict};
use store_adapter::batch::{Batch, StampedBatch};
use store_adapter::store::{Append, Op};
use tokio::sync::oneshot;

use super::lane::{Entry, Work};
use super::{AppendError, Opening, Partition, State, Status};
use crate::admitted::Admitted;

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
    /// was validated before. What `admitted` counts stays counted until the commit is known. It
    /// opens no transaction.
    pub fn append(self: &Arc<Self>, batch: &Batch, admitted: Admitted) -> Ticket {
        self.append_opening(batch, Opening::None, admitted)
    }

    /// As [`Partition::append`], for a batch that may open a transaction.
    pub fn append_opening(
        self: &Arc<Self>,
        batch: &Batch,
        opening: Opening<'_>,
        admitted: Admitted,
    ) -> Ticket {
        let append_ms = self.deps.env.clock.wall_ms();
        let header = batch.header();
        let mut state = self.state.lock();
        // Under the lock: what is ordered behind the publication of a fence is refused by it.
        let fences = &self.deps.fences;
        if fences.is_stale(header.producer_id, header.producer_epoch) {
            return Ticket::Ready(Err(AppendError::StaleEpoch));
        }
        let stamped = batch.stamp(state.next_offset, self.epoch);
        let meta = BatchMeta {
            implicit_add: matches!(opening, Opening::Verified(guard) if guard.is_implicit()),
            ..BatchMeta::from_header(stamped.header(), append_ms, None)
        };
        if let Err(error) = state.may_append() {
            // It will come again: until then nothing that was sent behind it may take its place.
            state.producers.refuse(&meta);
            return Ticket::Ready(Err(error));
        }
        let verdict = state.producers.classify(&meta);
        self.deps.classified.count(&verdict);
        let goes_on = matches!(
            verdict,
            Verdict::Accept | Verdict::OutOfOrder | Verdict::InvalidTxnState
        );
        // Behind repetition and epoch, before the sequence, as Kafka orders them.
        if goes_on && let Err(reason) = state.may_open(&meta, opening) {
            if reason == AppendError::Unverified {
                state.producers.refuse(&meta);
            }
            return self.refuse(reason, admitted);
        }
        match verdict {
            Verdict::Accept => self.queue(&mut state, stamped, meta, admitted),
            Verdict::DuplicateDurable(of) => Ticket::Ready(Ok(self.duplicate(of))),
            Verdict::DuplicateQueued(of) => self.wait_behind(&state, self.duplicate(of), admitted),
            Verdict::OutOfOrder => self.refuse(AppendError::OutOfOrderSequence, admitted),
            Verdict::StaleEpoch => self.refuse(AppendError::StaleEpoch, admitted),
            Verdict::InvalidTxnState => self.refuse(AppendError::InvalidTxnState, admitted),
            Verdict::InvalidRecord => Ticket::Ready(Err(AppendError::InvalidRecord)),
        }
    }

    /// A refusal that rests on what this broker knows of the producer and ends the producer's
    /// session. A broker that was taken over knows too little, and has nothing to refuse: whether
    /// it still leads is found out before the answer. What `admitted` counts stays counted until
    /// then.
    pub(super) fn refuse(self: &Arc<Self>, reason: AppendError, admitted: Admitted) -> Ticket {
        let (answer, receive) = oneshot::channel();
        let partition = self.clone();
        let task = Box::pin(async move {
            let store = &partition.deps.store;
            let led = store.acquire(partition.id, partition.epoch).await;
            let outcome = Err(led.err().map_or(reason, AppendError::from));
            drop(admitted);
            // A client that went away is not waiting.
            answer.send(outcome).unwrap_or_default();
        });
        drop(self.deps.env.runtime.spawn("refuse", task));
        Ticket::Queued(receive)
    }

    fn duplicate(&self, of: Duplicate) -> Appended {
        Appended {
            base_offset: of.base_offset,
            log_start: self.visible.borrow().log_start,
            duplicate_of: Some(of.timestamp),
        }
    }

    pub(super) fn queue(
        self: &Arc<Self>,
        state: &mut State,
        stamped: StampedBatch,
        meta: BatchMeta,
        admitted: Admitted,
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
        let work = Work::Append {
            commit,
            base_offset,
            last_offset,
            bytes,
            _admitted: admitted,
        };
        self.hand_over(state, work)
    }

    /// What a queued batch says already is answered when that batch was decided.
    pub(super) fn wait_behind(
        self: &Arc<Self>,
        state: &State,
        outcome: Appended,
        admitted: Admitted,
    ) -> Ticket {
        let work = Work::Duplicate {
            original: outcome,
            _admitted: admitted,
        };
        self.hand_over(state, work)
    }

    /// Puts work behind everything that the lane has of this partition: the order of the lock.
    fn hand_over(self: &Arc<Self>, state: &State, work: Work) -> Ticket {
        let (answer, receive) = oneshot::channel();
        let entry = Entry {
            partition: self.clone(),
            generation: state.generation,
            work,
            answer,
        };
        match self.deps.lane.send(entry) {
            Ok(()) => Ticket::Queued(receive),
            // The lane ends only with the broker; the group may be written all the same.
            Err(_) => Ticket::Ready(Err(AppendError::Uncertain)),
        }
    }
}

impl State {
    /// Whether a batch may open the transaction that it would open, if it would.
    fn may_open(&self, meta: &BatchMeta, opening: Opening<'_>) -> Result<(), AppendError> {
        if !meta.is_transactional || self.producers.is_in_txn(meta) {
            return Ok(());
        }
        match opening {
            Opening::Unverified => Ok(()),
            Opening::Verified(guard)
                if guard
                    .txn_seq()
                    .is_some_and(|txn_seq| self.producers.has_ended(meta, txn_seq)) =>
            {
                Err(AppendError::InvalidTxnState)
            }
            Opening::Verified(guard) if guard.stands(&self.guards) => Ok(()),
            Opening::Verified(_) => Err(AppendError::InvalidTxnState),
            // The transaction that it was to go on in has ended since that was looked at.
            Opening::None => Err(AppendError::Unverified),
        }
    }

    pub(super) fn may_append(&self) -> Result<(), AppendError> {
        match &self.status {
            Status::Open => Ok(()),
            Status::Settling => Err(AppendError::Settling),
            Status::Closed(reason) => Err(reason.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use store_adapter::ids::OwnerEpoch;
    use store_adapter::memory::MemoryStore;
    use store_adapter::store::LogStore;
    use tokio::sync::Semaphore;

    use super::super::testing::{LOG, SHARD, header, lead};
    use super::*;

    fn batch(sequence: i32) -> Batch {
        Batch::assemble(header(0, (7, 0, sequence)), &[12, 0, 0, 0, 1, 0, 0])
    }

    fn instance(instance: u64) -> OwnerEpoch {
        OwnerEpoch {
            assignment: 1,
            instance,
        }
    }

    #[tokio::test]
    async fn what_is_not_decided_stays_counted() {
        let store = Arc::new(MemoryStore::new());
        store.open_shard(SHARD, instance(1)).await.unwrap();
        store.create(LOG, "t", SHARD).await.unwrap();
        let led = lead(&store, 1).await;
        let budget = Arc::new(Semaphore::new(3));
        let admitted = || Admitted::from(Arc::clone(&budget).try_acquire_owned().unwrap());
        // Nothing else runs before the first is awaited.
        let first = led.append(&batch(0), admitted());
        let again = led.append(&batch(0), admitted());
        let gap = led.append(&batch(5), admitted());
        assert_eq!(budget.available_permits(), 0);
        assert_eq!(first.outcome().await.unwrap().duplicate_of, None);
        assert_eq!(again.outcome().await.unwrap().duplicate_of, Some(0));
        let gap = gap.outcome().await;
        assert_eq!(gap.unwrap_err(), AppendError::OutOfOrderSequence);
        assert_eq!(budget.available_permits(), 3);
    }

    #[tokio::test]
    async fn a_broker_that_was_taken_over_refuses_no_sequence() {
        let first = Arc::new(MemoryStore::new());
        let second = Arc::new(first.another_handle());
        first.open_shard(SHARD, instance(1)).await.unwrap();
        first.create(LOG, "t", SHARD).await.unwrap();
        let old = lead(&first, 1).await;
        old.append(&batch(0), Admitted::default())
            .outcome()
            .await
            .unwrap();
        let gap = old.append(&batch(2), Admitted::default()).outcome().await;
        assert_eq!(gap.unwrap_err(), AppendError::OutOfOrderSequence);

        second.open_shard(SHARD, instance(2)).await.unwrap();
        let new = lead(&second, 1).await;
        new.append(&batch(1), Admitted::default())
            .outcome()
            .await
            .unwrap();
        // Next in line, as the old one can't know.
        let next = old.append(&batch(2), Admitted::default()).outcome().await;
        assert_eq!(next.unwrap_err(), AppendError::NotLeader);
        new.append(&batch(2), Admitted::default())
            .outcome()
            .await
            .unwrap();
    }
}

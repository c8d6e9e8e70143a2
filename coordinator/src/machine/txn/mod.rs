//! The coordinator's decisions on one transactional id, one pure function a request.
//!
//! A decision says what is to be written; only when that is durable may its effects run and its
//! answer leave. Effects are not part of it: what a state still has to do is derived from the state
//! ([`owed_by`], [`plan`]), by the request that decided, its retries, the reconcile pass and a new
//! coordinator alike. Everything here may be done twice.

mod add;
mod dispatch;
mod end;
mod entry;
mod error;
mod init;
mod server;
mod shown;

#[cfg(test)]
mod matrix_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod vector_tests;

use std::sync::Arc;

use store_adapter::ids::{ProducerEpoch, ProducerId};
use uuid::Uuid;

pub use add::{AddClass, Added, GROUPS_MAX, PARTITIONS_MAX, Verified, add_groups, add_partitions};
pub use add::{partitions_of, verify_group, verify_partitions};
pub use dispatch::{Dispatch, EntryName, Home, Plan};
pub use dispatch::{confirm, forget_deleted, owed_by, plan, reroute};
pub use end::{EndReply, EndTxn, end_txn};
pub use entry::{
    Client, EPOCH_LAST, Groups, Owed, OwedEntry, TIMEOUT_DEFAULT_MS, TopicIds, TopicPartitions,
    TxnEntry, TxnState,
};
pub use error::TxnError;
pub use init::{InitProducerId, InitReply, Session, init_producer_id};
pub use server::{abort, complete, expire, is_expired, is_overdue, time_out};
pub use shown::{Outline, Shown, merge, outline, producers, shown, undecided};

/// How long a request may wait for a transaction that is not finished, ms: clients come back only
/// after 20 to 100 ms.
pub const GATE_WAIT_MS: u64 = 100;
/// How long EndTxn may wait for its markers, ms.
pub const END_WAIT_MS: u64 = 2_000;

/// What a decision is made with, besides the entry.
#[derive(Debug, Clone, Copy)]
pub struct Ctx {
    /// The time, ms since the Unix epoch.
    pub now_ms: i64,
    /// The epoch by which the slot is owned: the coordinator epoch of markers.
    pub slot_epoch: i32,
    /// The finalized `transaction.version`, 0 to 2: decides what the coordinator starts itself.
    pub version: i8,
    /// `transaction.max.timeout.ms`.
    pub max_timeout_ms: i32,
    /// A producer id that nobody ever had; unused ones are lost.
    pub spare: Option<ProducerId>,
}

/// Why a transition happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The client asked for it.
    Client,
    /// A new session began while a transaction was open.
    NewSession,
    /// The transaction was open for longer than its timeout.
    Reaper,
    /// An administrator asked for it.
    Admin,
    /// Every marker and decision is durable, or queued durably.
    Finished,
    /// Nobody used the id for `transactional.id.expiration.ms`.
    Expired,
}

impl Cause {
    /// As the history shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::NewSession => "new-session",
            Self::Reaper => "reaper",
            Self::Admin => "admin",
            Self::Finished => "finished",
            Self::Expired => "expired",
        }
    }
}

/// A line of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// When, ms since the Unix epoch.
    pub at_ms: i64,
    /// The producer id afterwards.
    pub pid: ProducerId,
    /// The epoch afterwards.
    pub epoch: ProducerEpoch,
    /// Number of the last transaction.
    pub txn_seq: u64,
    /// The state before.
    pub from: TxnState,
    /// The state afterwards.
    pub to: TxnState,
    /// Why.
    pub cause: Cause,
    /// Who asked.
    pub client: Option<Client>,
    /// Partitions of the transaction.
    pub partitions: TopicPartitions,
    /// Groups of it.
    pub groups: Groups,
}

/// Data batches of a producer below an epoch are to be refused everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence {
    /// The producer.
    pub pid: ProducerId,
    /// The lowest epoch that is still good.
    pub epoch: ProducerEpoch,
}

/// What is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The entry afterwards; `None` removes the id.
    pub next: Option<TxnEntry>,
    /// To be published, durably, behind the write and before the answer.
    pub fences: Vec<Fence>,
    /// For the history, once it is durable.
    pub transition: Option<Transition>,
}

/// When and what is answered to a request whose change is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then<R> {
    /// Now.
    Answer(R),
    /// When the decision has been carried out; the error after [`END_WAIT_MS`].
    Finish(R, TxnError),
    /// The request is decided on anew when the decision has been carried out; the error after
    /// [`GATE_WAIT_MS`].
    AskAgain(TxnError),
}

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision<R> {
    /// Answered, nothing changes.
    Answer(R),
    /// Refused, nothing changes.
    Refuse(TxnError),
    /// First this is made durable.
    Persist(Box<Change>, Then<R>),
    /// It is decided on anew when the state has moved; the error after so many ms.
    Wait(u64, TxnError),
    /// It is decided on anew with [`Ctx::spare`].
    NeedsId,
}

/// A partition that a request names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named {
    /// The topic.
    pub topic: Arc<str>,
    /// Its id; `None` if there is no such topic or partition.
    pub topic_id: Option<Uuid>,
    /// The partition.
    pub partition: i32,
}

fn transition(from: TxnState, next: &TxnEntry, cause: Cause, ctx: &Ctx) -> Transition {
    Transition {
        at_ms: ctx.now_ms,
        pid: next.pid,
        epoch: next.epoch,
        txn_seq: next.txn_seq,
        from,
        to: next.state,
        cause,
        client: next.client.clone(),
        partitions: next.partitions.clone(),
        groups: next.groups.clone(),
    }
}

fn persist<R>(
    from: TxnState,
    mut next: TxnEntry,
    fences: Vec<Fence>,
    cause: Cause,
    ctx: &Ctx,
    then: Then<R>,
) -> Decision<R> {
    next.last_update_ms = ctx.now_ms;
    let line = transition(from, &next, cause, ctx);
    let change = Change {
        next: Some(next),
        fences,
        transition: Some(line),
    };
    Decision::Persist(Box::new(change), then)
}

/// Whether a session was told, by an answer that a crash outran, what Complete* will begin with.
fn is_next(entry: &TxnEntry, session: Session) -> bool {
    entry.next_pid == Some(session.pid) && session.epoch.0 == 0
}

/// The pid and epoch of a request, against the current ones (kafka-contract 3.2).
fn check_session(
    entry: &TxnEntry,
    pid: ProducerId,
    epoch: ProducerEpoch,
    old: bool,
) -> Result<(), TxnError> {
    if entry.pid != pid {
        return Err(TxnError::InvalidProducerIdMapping);
    }
    if entry.epoch != epoch {
        return Err(TxnError::ProducerFenced.of_old(old));
    }
    Ok(())
}

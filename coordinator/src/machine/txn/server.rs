//! What the coordinator does by itself: finishing, timing out, forgetting.

use store_adapter::ids::ProducerEpoch;

use super::dispatch::Plan;
use super::end::{Doing, abort_open};
use super::{
    Cause, Change, Ctx, Decision, Session, Then, TxnEntry, TxnError, TxnState, check_session,
    dispatch, persist, transition,
};

/// Takes a decided transaction to Complete*, when every marker and decision of `plan` is durable
/// here, or queued durably at another broker: those stay owed. `None` where nothing is decided, or
/// something has no home yet.
pub fn complete(entry: &TxnEntry, plan: &Plan, ctx: &Ctx) -> Option<Change> {
    let decided = dispatch::owed_by(entry)?;
    if !plan.homeless.is_empty() {
        return None;
    }
    let mut next = entry.clone();
    next.state = TxnState::complete(decided.commit);
    next.clear_transaction();
    next.record_epoch = None;
    if let Some(pid) = next.next_pid.take() {
        next.prev_pid = Some(entry.pid);
        next.pid = pid;
        next.epoch = ProducerEpoch(0);
    }
    if !plan.remote.is_empty() {
        next.owed.push(decided.owed(plan.remote.clone()));
    }
    next.last_update_ms = ctx.now_ms;
    let mut line = transition(entry.state, &next, Cause::Finished, ctx);
    line.partitions.clone_from(&entry.partitions);
    line.groups.clone_from(&entry.groups);
    Some(Change {
        next: Some(next),
        fences: Vec::new(),
        transition: Some(line),
    })
}

/// Whether a transaction has been open for longer than its timeout. One whose beginning is not
/// known has.
pub fn is_overdue(entry: &TxnEntry, now_ms: i64) -> bool {
    let start_ms = entry.start_ms.unwrap_or(0);
    let end_ms = start_ms.saturating_add(entry.timeout_ms.into());
    entry.state == TxnState::Ongoing && end_ms < now_ms
}

/// Aborts a transaction that is overdue; whether it is.
pub fn time_out(entry: &TxnEntry, ctx: &Ctx) -> Decision<bool> {
    if !is_overdue(entry, ctx.now_ms) {
        return Decision::Answer(false);
    }
    let doing = Doing {
        cause: Cause::Reaper,
        client: entry.client.as_ref(),
    };
    let then = Then::Finish(true, TxnError::CoordinatorNotAvailable);
    abort_open(entry, doing, ctx, then)
}

/// Aborts an open transaction because an administrator asks for it, as the reaper would: its
/// session is fenced, and its client hears so. `expected` and `txn_seq` are the session and the
/// number of the transaction that the administrator looked at; with another one nothing happens:
/// the next transaction of a session may have the same epoch.
pub fn abort(
    entry: Option<&TxnEntry>,
    expected: Option<Session>,
    txn_seq: Option<u64>,
    ctx: &Ctx,
) -> Decision<()> {
    let Some(entry) = entry else {
        return Decision::Refuse(TxnError::InvalidProducerIdMapping);
    };
    let session = expected.unwrap_or(Session {
        pid: entry.pid,
        epoch: entry.epoch,
    });
    if let Err(error) = check_session(entry, session.pid, session.epoch, false) {
        return Decision::Refuse(error);
    }
    if entry.state.prepared().is_some() || entry.is_gated() {
        return Decision::Refuse(TxnError::ConcurrentTransactions);
    }
    let another = txn_seq.is_some_and(|txn_seq| txn_seq != entry.txn_seq);
    if entry.state != TxnState::Ongoing || another {
        return Decision::Refuse(TxnError::InvalidTxnState);
    }
    let doing = Doing {
        cause: Cause::Admin,
        client: entry.client.as_ref(),
    };
    let then = Then::Finish((), TxnError::CoordinatorNotAvailable);
    abort_open(entry, doing, ctx, then)
}

/// Whether nobody has used an id for `expiration_ms`, and nothing of it is open or owed.
pub fn is_expired(entry: &TxnEntry, now_ms: i64, expiration_ms: i64) -> bool {
    let idle = entry.state == TxnState::Empty || entry.state.completed().is_some();
    let age_ms = now_ms.saturating_sub(entry.last_update_ms);
    idle && !entry.is_gated() && age_ms >= expiration_ms
}

/// Forgets an id that has expired. Numbers of transactions count within a producer id, which is
/// never given out again, so a later life of the name may begin with any.
pub fn expire(entry: &TxnEntry, expiration_ms: i64, ctx: &Ctx) -> Decision<()> {
    if !is_expired(entry, ctx.now_ms, expiration_ms) {
        return Decision::Answer(());
    }
    let then = Then::Answer(());
    match persist(
        entry.state,
        entry.clone(),
        Vec::new(),
        Cause::Expired,
        ctx,
        then,
    ) {
        Decision::Persist(change, then) => {
            let gone = Change {
                next: None,
                ..*change
            };
            Decision::Persist(Box::new(gone), then)
        }
        other => other,
    }
}

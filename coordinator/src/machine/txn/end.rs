//! EndTxn (kafka-contract 3.2, 3.3), and the beginning of every abort.

use store_adapter::ids::ProducerEpoch;

use super::{
    Cause, Client, Ctx, Decision, END_WAIT_MS, EPOCH_LAST, Fence, GATE_WAIT_MS, Session, Then,
    TxnEntry, TxnError, TxnState, check_session, is_next, persist,
};

/// The request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndTxn {
    /// Version of the request, 0 to 5. From 5 on the epoch grows with every transaction.
    pub version: i16,
    /// Producer id and epoch of the session.
    pub session: Session,
    /// COMMIT, or ABORT.
    pub commit: bool,
    /// Who asks.
    pub client: Option<Client>,
}

/// What the session goes on with; `None` below version 5.
pub type EndReply = Option<Session>;

/// Who aborts, and why.
#[derive(Debug, Clone, Copy)]
pub(super) struct Doing<'a> {
    pub(super) cause: Cause,
    pub(super) client: Option<&'a Client>,
}

/// Ends a transaction.
pub fn end_txn(entry: Option<&TxnEntry>, request: &EndTxn, ctx: &Ctx) -> Decision<EndReply> {
    let Some(entry) = entry else {
        return Decision::Refuse(TxnError::InvalidProducerIdMapping);
    };
    if request.version < 5 {
        return end_v1(entry, request, ctx);
    }
    let Session { pid, epoch } = request.session;
    if is_next(entry, request.session) {
        return Decision::Wait(GATE_WAIT_MS, TxnError::ConcurrentTransactions);
    }
    if is_retry(entry, request.session) {
        return retried(entry, request.commit);
    }
    match check_session(entry, pid, epoch, false) {
        // Nobody has the epoch of a last fence.
        Ok(()) if epoch.0 > EPOCH_LAST => Decision::Refuse(TxnError::ProducerFenced),
        Ok(()) => end_v2(entry, request, ctx),
        Err(error) => Decision::Refuse(error),
    }
}

/// The epoch stays: a repeat can't be told from the request.
fn end_v1(entry: &TxnEntry, request: &EndTxn, ctx: &Ctx) -> Decision<EndReply> {
    let Session { pid, epoch } = request.session;
    if let Err(error) = check_session(entry, pid, epoch, request.version < 2) {
        return Decision::Refuse(error);
    }
    if entry.state == TxnState::Ongoing {
        let mut next = entry.clone();
        next.state = TxnState::prepare(request.commit);
        next.coordinator_epoch = Some(ctx.slot_epoch);
        next.txn_version = ctx.version.min(1);
        next.client.clone_from(&request.client);
        let then = Then::Finish(None, TxnError::CoordinatorNotAvailable);
        return persist(entry.state, next, Vec::new(), Cause::Client, ctx, then);
    }
    match (entry.state.prepared(), entry.state.completed()) {
        (Some(commit), _) => joined(commit == request.commit),
        (_, Some(commit)) if commit == request.commit => Decision::Answer(None),
        _ => Decision::Refuse(TxnError::InvalidTxnState),
    }
}

/// A request that carries the current epoch.
fn end_v2(entry: &TxnEntry, request: &EndTxn, ctx: &Ctx) -> Decision<EndReply> {
    match (entry.state.prepared(), entry.record_epoch) {
        // Decided by a request of an older version, which left the epoch.
        (Some(decided), None) => return joined(decided == request.commit),
        // The epoch was told by an answer that a crash outran.
        (Some(_), Some(_)) => {
            return Decision::Wait(GATE_WAIT_MS, TxnError::ConcurrentTransactions);
        }
        (None, _) => {}
    }
    if entry.state != TxnState::Ongoing {
        if request.commit {
            return Decision::Refuse(TxnError::InvalidTxnState);
        }
        // It would begin a new cycle.
        if entry.is_gated() {
            return Decision::Wait(GATE_WAIT_MS, TxnError::ConcurrentTransactions);
        }
    }
    let mut next = entry.clone();
    if entry.state != TxnState::Ongoing {
        next.clear_transaction();
        next.start_ms = Some(ctx.now_ms);
        next.txn_seq += 1;
    }
    next.client.clone_from(&request.client);
    let Some(mut next) = raised(next, 2, ctx) else {
        return Decision::NeedsId;
    };
    next.state = TxnState::prepare(request.commit);
    let reply = match next.next_pid {
        Some(pid) => Session {
            pid,
            epoch: ProducerEpoch(0),
        },
        None => Session {
            pid: next.pid,
            epoch: next.epoch,
        },
    };
    let fences = last_fence(&next);
    let then = Then::Finish(Some(reply), TxnError::CoordinatorNotAvailable);
    persist(entry.state, next, fences, Cause::Client, ctx, then)
}

/// Whether the request carries the session before the present one.
fn is_retry(entry: &TxnEntry, session: Session) -> bool {
    let before = i32::from(entry.epoch.0) - 1;
    let same =
        session.pid == entry.pid && session.epoch.0 >= 0 && i32::from(session.epoch.0) == before;
    let rotated =
        entry.prev_pid == Some(session.pid) && session.epoch.0 == EPOCH_LAST && entry.epoch.0 == 0;
    same || rotated
}

/// A request whose answer was lost, or of a session that was fenced meanwhile.
fn retried(entry: &TxnEntry, commit: bool) -> Decision<EndReply> {
    // Otherwise the epoch is another session's, or that of a fence, which nobody gets.
    let is_its_own = entry.last_epoch.is_some() && entry.epoch.0 <= EPOCH_LAST;
    match (entry.state.prepared(), entry.state.completed()) {
        (Some(decided), _) => joined(decided == commit),
        (_, Some(decided)) if decided != commit => Decision::Refuse(TxnError::InvalidTxnState),
        (_, Some(_)) if is_its_own => Decision::Answer(Some(Session {
            pid: entry.pid,
            epoch: entry.epoch,
        })),
        _ => Decision::Refuse(TxnError::ProducerFenced),
    }
}

/// A repeat of a decision waits for what it caused. Clients take 48 for fatal: never here.
fn joined(same: bool) -> Decision<EndReply> {
    if same {
        Decision::Wait(END_WAIT_MS, TxnError::CoordinatorNotAvailable)
    } else {
        Decision::Refuse(TxnError::ConcurrentTransactions)
    }
}

/// Aborts an open transaction at the next epoch, which is that of its markers: what comes of its
/// session afterwards is stale everywhere.
pub(super) fn abort_open<R>(
    entry: &TxnEntry,
    doing: Doing<'_>,
    ctx: &Ctx,
    then: Then<R>,
) -> Decision<R> {
    let mut next = entry.clone();
    next.client = doing.client.cloned();
    let Some(mut next) = raised(next, ctx.version, ctx) else {
        return Decision::NeedsId;
    };
    next.state = TxnState::PrepareAbort;
    let fences = vec![Fence {
        pid: next.pid,
        epoch: next.epoch,
    }];
    persist(entry.state, next, fences, doing.cause, ctx, then)
}

/// The entry at the next epoch. `None`: it is the last one, and a producer id is needed.
fn raised(mut next: TxnEntry, version: i8, ctx: &Ctx) -> Option<TxnEntry> {
    if version >= 2 && next.epoch.0 >= EPOCH_LAST {
        next.next_pid = Some(ctx.spare?);
    }
    let before = next.epoch;
    next.epoch = ProducerEpoch(before.0.saturating_add(1));
    next.record_epoch = Some(before);
    next.last_epoch = (version >= 2).then_some(before);
    next.coordinator_epoch = Some(ctx.slot_epoch);
    next.txn_version = version;
    Some(next)
}

/// The producer id that is given up is fenced for good.
fn last_fence(next: &TxnEntry) -> Vec<Fence> {
    let fence = next.next_pid.map(|_| Fence {
        pid: next.pid,
        epoch: ProducerEpoch(i16::MAX),
    });
    fence.into_iter().collect()
}

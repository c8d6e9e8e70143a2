//! InitProducerId of a transactional id (kafka-contract 2).

use store_adapter::fault::{Fault, planted};
use store_adapter::ids::{ProducerEpoch, ProducerId};

use super::end::{Doing, abort_open};
use super::{
    Cause, Client, Ctx, Decision, EPOCH_LAST, Fence, GATE_WAIT_MS, Then, TxnEntry, TxnError,
    TxnState, is_next, persist,
};

/// A producer id and epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Session {
    /// Producer id.
    pub pid: ProducerId,
    /// Producer epoch.
    pub epoch: ProducerEpoch,
}

/// What a new session gets.
pub type InitReply = Session;

/// The request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitProducerId {
    /// Version of the request, 0 to 5.
    pub version: i16,
    /// The transactional id is the empty string.
    pub id_is_empty: bool,
    /// `transaction.timeout.ms`.
    pub timeout_ms: i32,
    /// What the client claims to be (version 3 and later); -1 for none.
    pub claimed: Session,
    /// Who asks.
    pub client: Option<Client>,
}

impl InitProducerId {
    /// The claim, or that it is half of one.
    fn claim(&self) -> Result<Option<Session>, TxnError> {
        match (self.claimed.pid.0, self.claimed.epoch.0) {
            (-1, -1) => Ok(None),
            (-1, _) | (_, -1) => Err(TxnError::InvalidRequest),
            _ => Ok(Some(self.claimed)),
        }
    }
}

/// A new session, or one that goes on (KIP-360).
pub fn init_producer_id(
    entry: Option<&TxnEntry>,
    request: &InitProducerId,
    ctx: &Ctx,
) -> Decision<InitReply> {
    let claim = match request.claim() {
        Ok(claim) => claim,
        Err(error) => return Decision::Refuse(error),
    };
    if request.id_is_empty {
        return Decision::Refuse(TxnError::InvalidRequest);
    }
    if request.timeout_ms <= 0 || request.timeout_ms > ctx.max_timeout_ms {
        return Decision::Refuse(TxnError::InvalidTransactionTimeout);
    }
    let Some(entry) = entry else {
        return first(request, ctx);
    };
    let old = request.version < 4;
    match begin(entry, claim, request, ctx) {
        Decision::Refuse(error) => Decision::Refuse(error.of_old(old)),
        decision => decision,
    }
}

/// An id that is not known: whatever is claimed, it gets a producer id of its own.
fn first(request: &InitProducerId, ctx: &Ctx) -> Decision<InitReply> {
    let Some(pid) = ctx.spare else {
        return Decision::NeedsId;
    };
    let mut next = TxnEntry::new(pid, request.timeout_ms, ctx.now_ms);
    next.client.clone_from(&request.client);
    let reply = Session {
        pid,
        epoch: next.epoch,
    };
    let then = Then::Answer(reply);
    persist(TxnState::Empty, next, Vec::new(), Cause::Client, ctx, then)
}

fn begin(
    entry: &TxnEntry,
    claim: Option<Session>,
    request: &InitProducerId,
    ctx: &Ctx,
) -> Decision<InitReply> {
    let known = |claim: Session| {
        let rotated = entry.prev_pid == Some(claim.pid) && claim.epoch.0 >= EPOCH_LAST;
        claim.pid == entry.pid || rotated || is_next(entry, claim)
    };
    if claim.is_some_and(|claim| !known(claim)) {
        return Decision::Refuse(TxnError::ProducerFenced);
    }
    if entry.state.prepared().is_some() || entry.is_gated() {
        return Decision::Wait(GATE_WAIT_MS, TxnError::ConcurrentTransactions);
    }
    if entry.state == TxnState::Ongoing && !planted(Fault::RejoinWithoutAbort) {
        // Raising the epoch alone would let the new session commit what a dead one has written.
        let then = Then::AskAgain(TxnError::ConcurrentTransactions);
        let doing = Doing {
            cause: Cause::NewSession,
            client: request.client.as_ref(),
        };
        return abort_open(entry, doing, ctx, then);
    }
    match raise(entry, claim, ctx) {
        Ok(Some(raised)) => settle(entry, raised, request, ctx),
        Ok(None) => Decision::NeedsId,
        Err(error) => Decision::Refuse(error),
    }
}

/// The session that begins.
#[derive(Debug, Clone, Copy)]
struct Raised {
    session: Session,
    last_epoch: Option<ProducerEpoch>,
    prev_pid: Option<ProducerId>,
}

/// The rules of epochs (kafka-contract 2.2). `None`: a producer id is needed.
fn raise(entry: &TxnEntry, claim: Option<Session>, ctx: &Ctx) -> Result<Option<Raised>, TxnError> {
    let current = claim.is_none_or(|c| c.pid == entry.pid && c.epoch == entry.epoch);
    if entry.epoch.0 >= EPOCH_LAST {
        if !current {
            return Err(TxnError::UnknownServerError);
        }
        let raised = ctx.spare.map(|pid| Raised {
            session: Session {
                pid,
                epoch: ProducerEpoch(0),
            },
            last_epoch: claim.map(|_| entry.epoch),
            prev_pid: Some(entry.pid),
        });
        return Ok(raised);
    }
    let (epoch, last_epoch) = if current {
        let epoch = ProducerEpoch(entry.epoch.0 + 1);
        (epoch, claim.map(|_| entry.epoch))
    } else if claim.is_some_and(|claim| is_last(entry, claim)) {
        // The answer to this very request was lost.
        (entry.epoch, entry.last_epoch)
    } else {
        return Err(TxnError::ProducerFenced);
    };
    Ok(Some(Raised {
        session: Session {
            pid: entry.pid,
            epoch,
        },
        last_epoch,
        prev_pid: entry.prev_pid,
    }))
}

/// Whether a claim is the session before the present one: of the producer id before, if the epoch
/// began anew with another.
fn is_last(entry: &TxnEntry, claim: Session) -> bool {
    let rotated = entry.last_epoch.is_some_and(|last| last > entry.epoch);
    let pid = if rotated {
        entry.prev_pid
    } else {
        Some(entry.pid)
    };
    entry.last_epoch == Some(claim.epoch) && pid == Some(claim.pid)
}

fn settle(
    entry: &TxnEntry,
    raised: Raised,
    request: &InitProducerId,
    ctx: &Ctx,
) -> Decision<InitReply> {
    let mut next = entry.clone();
    next.pid = raised.session.pid;
    next.epoch = raised.session.epoch;
    next.last_epoch = raised.last_epoch;
    next.prev_pid = raised.prev_pid;
    next.state = TxnState::Empty;
    next.clear_transaction();
    next.start_ms = None;
    next.timeout_ms = request.timeout_ms;
    next.client.clone_from(&request.client);
    let mut fences = Vec::new();
    if raised.session.pid == entry.pid {
        if raised.session.epoch.0 > 0 {
            fences.push(Fence {
                pid: entry.pid,
                epoch: raised.session.epoch,
            });
        }
        // Whoever gave the last one up may have ended before it published.
        fences.extend(entry.prev_pid.map(|pid| Fence {
            pid,
            epoch: ProducerEpoch(i16::MAX),
        }));
    } else {
        fences.push(Fence {
            pid: entry.pid,
            epoch: ProducerEpoch(i16::MAX),
        });
    }
    let then = Then::Answer(raised.session);
    persist(entry.state, next, fences, Cause::Client, ctx, then)
}

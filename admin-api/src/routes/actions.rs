//! What can be done about transactions. Every request of these is audited, dry runs and refusals
//! too.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::State;
use axum::http::header::IF_MATCH;
use axum::http::{HeaderMap, HeaderValue, Uri};
use coordinator::machine::txn::{TxnEntry, TxnError};
use serde::Deserialize;
use utoipa::ToSchema;

use super::Answer;
use super::transactions::{find, states};
use crate::audit::Act;
use crate::body::{Body, reason};
use crate::model::{
    AbortOutcome, AbortPlan, Audit, MarkedPartition, PassOutcome, Source, Transaction, Unfinished,
    shown_state,
};
use crate::query::{Params, Segments};
use crate::views::Pass;
use crate::{App, Problem};

/// The body of an abort.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AbortRequest {
    /// The session that was looked at: its producer id.
    producer_id: Option<i64>,
    /// Its epoch.
    producer_epoch: Option<i16>,
    /// Why, for the audit log. Needed unless it is a dry run.
    reason: Option<String>,
}

/// The body of a pass.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunRequest {
    /// Why, for the audit log.
    reason: Option<String>,
}

/// Aborts the open transaction of an id, as its timeout would.
///
/// Its records are dropped everywhere, its staged offsets too, and its session is fenced. To abort
/// what the coordinator does not know, use `fencepost txn abort` on the partition.
#[utoipa::path(
    post,
    path = "/api/v1/transactions/{id}/abort",
    tag = "transactions",
    params(
        ("id" = String, Path, description = "the transactional id, percent-encoded"),
        ("dry_run" = Option<bool>, Query, description = "only say what would be done"),
        ("If-Match" = Option<String>, Header, description = "the ETag that was looked at")
    ),
    request_body = AbortRequest,
    responses(
        (status = 200, body = AbortOutcome),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 409, body = Problem, content_type = "application/problem+json",
            description = "nothing is open, or it is decided already"),
        (status = 412, body = Problem, content_type = "application/problem+json",
            description = "the session or the ETag is another one by now"),
        (status = 503, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn abort(
    State(app): State<App>,
    Segments(id): Segments<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Body<AbortRequest>,
) -> Answer<AbortOutcome> {
    let dry_run = Params::read(&uri, &["dry_run"])?.flag("dry_run")?;
    let mut act = Act {
        who: body.who,
        action: if dry_run { "abort-dry-run" } else { "abort" },
        target: Some(id.clone()),
        reason: reason(body.content.reason.clone())?,
        ..Act::default()
    };
    let done = abort_audited(&app, &id, dry_run, &headers, &body.content, &mut act).await;
    let (status, outcome) = match &done {
        Ok(done) => (200, done.outcome.to_owned()),
        Err(problem) => (problem.status(), problem.detail().to_owned()),
    };
    app.audit.note(app.txns.now_ms(), act, status, &outcome);
    done.map(Json)
}

async fn abort_audited(
    app: &App,
    id: &str,
    dry_run: bool,
    headers: &HeaderMap,
    body: &AbortRequest,
    act: &mut Act,
) -> Result<AbortOutcome, Problem> {
    if !dry_run && act.reason.is_none() {
        return Err(Problem::invalid("reason", "say why, for the audit log"));
    }
    let entry = find(app, id)?;
    let source = Source::owner(&*app.txns);
    let shown = |entry: &TxnEntry| {
        let slot = app.txns.slot_of(id);
        Transaction::of(id, entry, slot, source.broker, source.as_of_ms)
    };
    let before = shown(&entry);
    act.before = Some(shown_state(&entry).name().to_owned());
    let session = (
        body.producer_id.unwrap_or(entry.pid.0),
        body.producer_epoch.unwrap_or(entry.epoch.0),
    );
    let etag = headers.get(IF_MATCH).map(HeaderValue::as_bytes);
    if etag.is_some_and(|etag| etag != b"*" && etag != before.etag.as_bytes()) {
        return Err(Problem::changed(
            "the id has changed since it was looked at",
        ));
    }
    let plan = plan(app, &entry);
    let (outcome, after) = if dry_run {
        would(app, &entry, session)?;
        ("would-abort", None)
    } else {
        let aborted = app.txns.abort(id, session).await;
        let after = app.txns.transaction(id).ok().flatten();
        act.after = after
            .as_ref()
            .map(|entry| shown_state(entry).name().to_owned());
        let outcome = match aborted {
            Ok(()) => "aborted",
            // Decided for good, and not carried out yet: that is no failure.
            Err(TxnError::CoordinatorNotAvailable) if is_decided(&entry, after.as_ref()) => {
                "deciding"
            }
            Err(error) => return Err(refused(app, error)),
        };
        (outcome, after.as_ref().map(shown))
    };
    Ok(AbortOutcome {
        source,
        dry_run,
        outcome,
        plan,
        before,
        after,
    })
}

/// Whether the transaction that was looked at is decided now.
fn is_decided(before: &TxnEntry, after: Option<&TxnEntry>) -> bool {
    after.is_some_and(|after| {
        after.txn_seq == before.txn_seq && after.state.prepared() == Some(false)
    })
}

/// What an abort would be refused for.
fn would(app: &App, entry: &TxnEntry, session: (i64, i16)) -> Result<(), Problem> {
    let error = if session.0 != entry.pid.0 {
        TxnError::InvalidProducerIdMapping
    } else if session.1 != entry.epoch.0 {
        TxnError::ProducerFenced
    } else if shown_state(entry).prepared().is_some() {
        TxnError::ConcurrentTransactions
    } else if entry.state != coordinator::machine::txn::TxnState::Ongoing {
        TxnError::InvalidTxnState
    } else {
        return Ok(());
    };
    Err(refused(app, error))
}

fn refused(app: &App, error: TxnError) -> Problem {
    let detail = match error {
        TxnError::InvalidTxnState => "no transaction of this id is open".to_owned(),
        TxnError::ConcurrentTransactions => {
            "it is decided already, and its markers are being written".to_owned()
        }
        error => error.to_string(),
    };
    Problem::transaction(error, app.txns.kafka_code(error), detail)
}

fn plan(app: &App, entry: &TxnEntry) -> AbortPlan {
    let (states, _) = states(&*app.txns, entry);
    let partitions = states.into_iter().map(|state| MarkedPartition {
        topic: state.topic,
        partition: state.partition,
        first_offset: state.first_offset,
        holds_last_stable_offset: state.holds_last_stable_offset,
    });
    AbortPlan {
        partitions: partitions.collect(),
        partition_count: entry.partitions.values().map(BTreeSet::len).sum(),
        groups: entry.groups.iter().map(ToString::to_string).collect(),
        fenced_producer_id: entry.pid.0,
        fenced_producer_epoch: entry.epoch.0,
    }
}

/// Aborts every transaction that is past its timeout now, instead of within 10 s.
#[utoipa::path(
    post,
    path = "/api/v1/reaper/run",
    tag = "passes",
    request_body = RunRequest,
    responses(
        (status = 200, body = PassOutcome),
        (status = 415, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn reaper_run(
    State(app): State<App>,
    uri: Uri,
    body: Body<RunRequest>,
) -> Answer<PassOutcome> {
    Params::read(&uri, &[])?;
    let act = act_of("reaper-run", body)?;
    let pass = app.txns.reap().await;
    Ok(ran(&app, act, pass))
}

/// Tries again now, instead of within 10 s, to carry out what is decided.
#[utoipa::path(
    post,
    path = "/api/v1/reconcile/run",
    tag = "passes",
    request_body = RunRequest,
    responses(
        (status = 200, body = PassOutcome),
        (status = 415, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn reconcile_run(
    State(app): State<App>,
    uri: Uri,
    body: Body<RunRequest>,
) -> Answer<PassOutcome> {
    Params::read(&uri, &[])?;
    let act = act_of("reconcile-run", body)?;
    let pass = app.txns.reconcile().await;
    Ok(ran(&app, act, pass))
}

fn act_of(action: &'static str, body: Body<RunRequest>) -> Result<Act, Problem> {
    Ok(Act {
        who: body.who,
        action,
        reason: reason(body.content.reason)?,
        ..Act::default()
    })
}

fn ran(app: &App, act: Act, pass: Pass) -> Json<PassOutcome> {
    let outcome = format!(
        "{} done, {} not finished, {} left",
        pass.done.len(),
        pass.failed.len(),
        pass.remaining
    );
    app.audit.note(app.txns.now_ms(), act, 200, &outcome);
    let failed = pass.failed.into_iter();
    let unfinished = failed.map(|(transactional_id, reason)| Unfinished {
        transactional_id,
        reason,
    });
    Json(PassOutcome {
        source: Source::owner(&*app.txns),
        done: pass.done,
        unfinished: unfinished.collect(),
        remaining: pass.remaining,
    })
}

/// Requests that changed something, or were to.
#[utoipa::path(
    get,
    path = "/api/v1/audit",
    tag = "audit",
    responses((status = 200, body = Audit))
)]
pub(crate) async fn audit(State(app): State<App>, uri: Uri) -> Answer<Audit> {
    Params::read(&uri, &[])?;
    let (entries, forgotten) = app.audit.list();
    Ok(Json(Audit {
        source: Source::owner(&*app.txns),
        entries,
        forgotten,
    }))
}

//! What can be done about transactions. Every request of these is audited, dry runs and refusals
//! too.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::State;
use axum::http::header::IF_MATCH;
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::response::Response;
use coordinator::machine::txn::{TxnEntry, TxnError, shown};
use serde::Deserialize;
use utoipa::ToSchema;

use super::Answer;
use super::transactions::{find, states};
use crate::audit::{Act, Effect};
use crate::body::{Body, reason};
use crate::model::{
    AbortOutcome, AbortPlan, Audit, MarkedPartition, PassOutcome, Source, Transaction, Unfinished,
    shown_state,
};
use crate::query::{Key, Page, Params, Segments, listed};
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
    /// The number of the transaction that was looked at. Without it, and without `If-Match`, it is
    /// the one that is open when the request comes.
    txn_seq: Option<u64>,
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
        (status = 400, body = Problem, content_type = "application/problem+json"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 409, body = Problem, content_type = "application/problem+json",
            description = "nothing is open, or it is decided already"),
        (status = 412, body = Problem, content_type = "application/problem+json",
            description = "the session, the transaction or the ETag is another one by now"),
        (status = 413, body = Problem, content_type = "application/problem+json"),
        (status = 415, body = Problem, content_type = "application/problem+json"),
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
    let act = Act {
        who: body.who,
        action: if dry_run { "abort-dry-run" } else { "abort" },
        target: Some(id.clone()),
        reason: reason(body.content.reason.clone())?,
        ..Act::default()
    };
    let abort = Abort {
        id,
        dry_run,
        headers,
        asked: body.content,
    };
    let within = app.clone();
    let audited = async move { abort.audited(&within, act).await };
    app.to_the_end(audited).await?.map(Json)
}

/// An abort that is asked for.
struct Abort {
    id: String,
    dry_run: bool,
    headers: HeaderMap,
    asked: AbortRequest,
}

impl Abort {
    async fn audited(&self, app: &App, mut act: Act) -> Result<AbortOutcome, Problem> {
        let done = self.done(app, &mut act).await;
        let (effect, status, outcome) = match &done {
            Ok(done) => (Effect::Changed, 200, done.outcome.to_owned()),
            Err(problem) => {
                let status = problem.status();
                // The coordinator was asked, and can't say.
                let unknown = status >= 500 && act.before.is_some();
                let effect = if unknown {
                    Effect::Unknown
                } else {
                    Effect::Nothing
                };
                (effect, status, problem.detail().to_owned())
            }
        };
        let effect = if self.dry_run {
            Effect::Nothing
        } else {
            effect
        };
        app.audit
            .note(app.txns.now_ms(), act, effect, status, &outcome);
        done
    }

    async fn done(&self, app: &App, act: &mut Act) -> Result<AbortOutcome, Problem> {
        if !self.dry_run && act.reason.is_none() {
            return Err(Problem::invalid("reason", "say why, for the audit log"));
        }
        let entry = find(app, &self.id)?;
        act.before = Some(shown_state(&entry).name().to_owned());
        let source = Source::owner(&*app.txns);
        let before = self.shown(app, &source, &entry);
        if !self.is_meant(&entry, &before.etag) {
            return Err(Problem::changed(
                "the id has changed since it was looked at",
            ));
        }
        let plan = plan(app, &entry);
        let (outcome, after) = if self.dry_run {
            would(app, &entry, self.session(&entry))?;
            ("would-abort", None)
        } else {
            self.carried_out(app, &entry, act).await?
        };
        let after = after.map(|entry| self.shown(app, &source, &entry));
        Ok(AbortOutcome {
            source,
            dry_run: self.dry_run,
            outcome,
            plan,
            before,
            after,
        })
    }

    /// The session that is to be aborted.
    fn session(&self, entry: &TxnEntry) -> (i64, i16) {
        (
            self.asked.producer_id.unwrap_or(entry.pid.0),
            self.asked.producer_epoch.unwrap_or(entry.epoch.0),
        )
    }

    /// Whether the id is as the caller says it has seen it.
    fn is_meant(&self, entry: &TxnEntry, etag: &str) -> bool {
        let seq = self.asked.txn_seq;
        let mut tags = self.headers.get_all(IF_MATCH).iter().peekable();
        let tag = |tag: &[u8]| tag == b"*" || tag == etag.as_bytes();
        let any = |value: &HeaderValue| {
            let mut tags = value.as_bytes().split(|byte| *byte == b',');
            tags.any(|one| tag(one.trim_ascii()))
        };
        seq.is_none_or(|seq| seq == entry.txn_seq) && (tags.peek().is_none() || tags.any(any))
    }

    fn shown(&self, app: &App, source: &Source, entry: &TxnEntry) -> Transaction {
        Transaction::of(&*app.txns, source, &self.id, entry)
    }

    /// Aborts the transaction of `entry` and no other, not even the next one of its session.
    async fn carried_out(
        &self,
        app: &App,
        entry: &TxnEntry,
        act: &mut Act,
    ) -> Result<(&'static str, Option<TxnEntry>), Problem> {
        let (session, txn_seq) = (self.session(entry), entry.txn_seq);
        let aborted = app.txns.abort(&self.id, session, txn_seq).await;
        let looked = app.txns.transaction(&self.id);
        let is_known = looked.is_ok();
        let after = looked.ok().flatten();
        let state = after.as_ref().map(|after| shown_state(after).name());
        act.after = state.map(str::to_owned);
        let another = after.as_ref().is_some_and(|after| after.txn_seq != txn_seq);
        match aborted {
            Ok(()) => Ok(("aborted", after)),
            // Decided for good, and not carried out yet: that is no failure.
            Err(TxnError::CoordinatorNotAvailable) if is_decided(entry, after.as_ref()) => {
                Ok(("deciding", after))
            }
            // Written or not: nobody can say before the slot is read again.
            Err(TxnError::CoordinatorNotAvailable) if !is_known => Err(Problem::later(
                "it is not known whether the transaction is aborted; look at it again",
            )),
            Err(TxnError::InvalidTxnState) if another => Err(Problem::changed(
                "the transaction that was looked at has ended; the next one is not touched",
            )),
            Err(error) => Err(refused(app, error)),
        }
    }
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
        TxnError::CoordinatorNotAvailable => format!("{error}; /readyz?verbose says what fails"),
        error => error.to_string(),
    };
    Problem::transaction(error, app.txns.kafka_code(error), detail)
}

fn plan(app: &App, entry: &TxnEntry) -> AbortPlan {
    let (states, _) = states(&*app.txns, &shown(entry));
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

/// A pass that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Reaper,
    Reconcile,
}

/// Aborts every transaction that is past its timeout now, instead of with the reaper's next pass.
#[utoipa::path(
    post,
    path = "/api/v1/reaper/run",
    tag = "passes",
    request_body = RunRequest,
    responses(
        (status = 200, body = PassOutcome),
        (status = 400, body = Problem, content_type = "application/problem+json"),
        (status = 413, body = Problem, content_type = "application/problem+json"),
        (status = 415, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn reaper_run(
    State(app): State<App>,
    uri: Uri,
    body: Body<RunRequest>,
) -> Answer<PassOutcome> {
    run(app, &uri, body, Which::Reaper).await
}

/// Tries again now, instead of with the next pass, to carry out what is decided.
#[utoipa::path(
    post,
    path = "/api/v1/reconcile/run",
    tag = "passes",
    request_body = RunRequest,
    responses(
        (status = 200, body = PassOutcome),
        (status = 400, body = Problem, content_type = "application/problem+json"),
        (status = 413, body = Problem, content_type = "application/problem+json"),
        (status = 415, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn reconcile_run(
    State(app): State<App>,
    uri: Uri,
    body: Body<RunRequest>,
) -> Answer<PassOutcome> {
    run(app, &uri, body, Which::Reconcile).await
}

async fn run(app: App, uri: &Uri, body: Body<RunRequest>, which: Which) -> Answer<PassOutcome> {
    Params::read(uri, &[])?;
    let action = match which {
        Which::Reaper => "reaper-run",
        Which::Reconcile => "reconcile-run",
    };
    let act = Act {
        who: body.who,
        action,
        reason: reason(body.content.reason)?,
        ..Act::default()
    };
    let within = app.clone();
    let run = async move {
        let pass = match which {
            Which::Reaper => within.txns.reap().await,
            Which::Reconcile => within.txns.reconcile().await,
        };
        ran(&within, act, pass)
    };
    app.to_the_end(run).await.map(Json)
}

fn ran(app: &App, act: Act, pass: Pass) -> PassOutcome {
    let outcome = format!(
        "{} done, {} not finished, {} left",
        pass.done.len(),
        pass.failed.len(),
        pass.remaining
    );
    let effect = match (pass.done.is_empty(), pass.failed.is_empty()) {
        (false, _) => Effect::Changed,
        // What fails may have been decided.
        (true, false) => Effect::Unknown,
        (true, true) => Effect::Nothing,
    };
    app.audit
        .note(app.txns.now_ms(), act, effect, 200, &outcome);
    let failed = pass.failed.into_iter();
    let unfinished = failed.map(|(transactional_id, reason)| Unfinished {
        transactional_id,
        reason,
    });
    PassOutcome {
        source: Source::owner(&*app.txns),
        done: pass.done,
        unfinished: unfinished.collect(),
        remaining: pass.remaining,
    }
}

/// Requests that changed something, or were to, the newest first.
///
/// The last 1,000 since the process began: each is a line of its log, which keeps them.
#[utoipa::path(
    get,
    path = "/api/v1/audit",
    tag = "audit",
    params(
        ("page_size" = Option<usize>, Query, description = "1 to 1000; 100 without it"),
        ("page_token" = Option<String>, Query, description = "`nextPageToken` of the page before")
    ),
    responses(
        (status = 200, body = Audit),
        (status = 400, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn audit(State(app): State<App>, uri: Uri) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["page_size", "page_token"])?;
    let mut page = Page::new(params.page("audit")?);
    let forgotten = app.audit.visit(|entry| {
        let newest_first = i64::try_from(entry.seq).map_or(i64::MIN, |seq| -seq);
        page.offer(Key(newest_first, String::new()), || entry.clone());
    });
    let (entries, next_page_token) = page.take("audit");
    let audit = Audit {
        source: Source::owner(&*app.txns),
        entries,
        forgotten,
        next_page_token,
    };
    Ok(listed(&uri, audit.next_page_token.as_ref(), &audit))
}

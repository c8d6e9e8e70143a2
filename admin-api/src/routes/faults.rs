//! Faults that are injected on purpose. Nothing of this is there without `--enable-faults`.

use axum::Json;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use serde::Deserialize;
use utoipa::ToSchema;

use super::Answer;
use crate::audit::{self, Act, Effect};
use crate::body::{Body, reason};
use crate::model::{Fault, FaultList, Source};
use crate::query::{Params, Segments};
use crate::views::HoldView;
use crate::{App, Problem};

/// What fault is to be injected.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct FaultRequest {
    /// `hold-markers`: markers and decisions of staged offsets wait until it is released, so that
    /// Prepare* can be watched.
    kind: String,
    /// The transactional id; all without it. It need not exist yet.
    transactional_id: Option<String>,
    /// Why, for the audit log.
    reason: Option<String>,
}

impl From<HoldView> for Fault {
    fn from(hold: HoldView) -> Self {
        Self {
            id: hold.number,
            kind: "hold-markers",
            transactional_id: hold.transactional_id,
            since_ms: hold.since_ms,
            fired: hold.orders,
        }
    }
}

fn enabled(app: &App) -> Result<(), Problem> {
    if app.faults {
        return Ok(());
    }
    Err(Problem::no_such("faults need --enable-faults at start"))
}

/// The faults that are in force.
#[utoipa::path(
    get,
    path = "/api/v1/faults",
    tag = "faults",
    responses(
        (status = 200, body = FaultList),
        (status = 404, body = Problem, content_type = "application/problem+json",
            description = "faults are not enabled")
    )
)]
pub(crate) async fn list(State(app): State<App>, uri: Uri) -> Answer<FaultList> {
    enabled(&app)?;
    Params::read(&uri, &[])?;
    Ok(Json(FaultList {
        source: Source::owner(&*app.txns),
        faults: app.txns.holds().into_iter().map(Fault::from).collect(),
    }))
}

/// Injects a fault.
#[utoipa::path(
    post,
    path = "/api/v1/faults",
    tag = "faults",
    request_body = FaultRequest,
    responses(
        (status = 201, body = Fault),
        (status = 400, body = Problem, content_type = "application/problem+json"),
        (status = 404, body = Problem, content_type = "application/problem+json",
            description = "faults are not enabled")
    )
)]
pub(crate) async fn add(
    State(app): State<App>,
    uri: Uri,
    body: Body<FaultRequest>,
) -> Result<(StatusCode, Json<Fault>), Problem> {
    enabled(&app)?;
    Params::read(&uri, &[])?;
    let asked = body.content;
    if asked.kind != "hold-markers" {
        return Err(Problem::invalid("kind", "hold-markers is what there is"));
    }
    let act = Act {
        who: body.who,
        action: "fault-add",
        target: asked.transactional_id.clone(),
        reason: reason(asked.reason)?,
        ..Act::default()
    };
    let hold = app.txns.hold(asked.transactional_id.as_deref());
    let hold = hold.ok_or_else(|| Problem::conflict("too many faults are in force"))?;
    let outcome = format!("fault {} holds markers", hold.number);
    app.audit
        .note(app.txns.now_ms(), act, Effect::Changed, 201, &outcome);
    Ok((StatusCode::CREATED, Json(hold.into())))
}

/// Releases a fault: what it held is carried out at once.
#[utoipa::path(
    delete,
    path = "/api/v1/faults/{id}",
    tag = "faults",
    params(("id" = u64, Path, description = "the number of the fault")),
    responses(
        (status = 204),
        (status = 404, body = Problem, content_type = "application/problem+json")
    )
)]
pub(crate) async fn release(
    State(app): State<App>,
    Segments(id): Segments<u64>,
    parts: Parts,
) -> Result<StatusCode, Problem> {
    enabled(&app)?;
    Params::read(&parts.uri, &[])?;
    let found = app.txns.release(id);
    let (effect, status, outcome) = if found {
        (Effect::Changed, StatusCode::NO_CONTENT, "released")
    } else {
        let outcome = "there is no such fault";
        (Effect::Nothing, StatusCode::NOT_FOUND, outcome)
    };
    let act = Act {
        who: audit::caller(&parts),
        action: "fault-release",
        target: Some(id.to_string()),
        ..Act::default()
    };
    app.audit
        .note(app.txns.now_ms(), act, effect, status.as_u16(), outcome);
    if found {
        Ok(status)
    } else {
        Err(Problem::no_such(outcome))
    }
}

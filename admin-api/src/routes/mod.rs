//! The resources, one a file.

pub(crate) mod actions;
pub(crate) mod faults;
pub(crate) mod groups;
pub(crate) mod partitions;
pub(crate) mod shared;
pub(crate) mod transactions;

use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use utoipa::openapi::{Info, License, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::query::Params;
use crate::{App, Problem};

/// Every documented route, and the document.
fn documented() -> (Router<App>, OpenApi) {
    let mut info = Info::new("Fencepost", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "What a Fencepost broker shows of transactions, and what can be done about them."
            .to_owned(),
    );
    info.license = Some(License::new("Apache-2.0"));
    let (router, mut document) = OpenApiRouter::<App>::new()
        .routes(routes!(transactions::list))
        .routes(routes!(transactions::one))
        .routes(routes!(transactions::history))
        .routes(routes!(actions::abort))
        .routes(routes!(partitions::lso))
        .routes(routes!(partitions::producers))
        .routes(routes!(shared::marker_queue))
        .routes(routes!(shared::fences))
        .routes(routes!(shared::producer_ids))
        .routes(routes!(groups::offsets))
        .routes(routes!(actions::reaper_run))
        .routes(routes!(actions::reconcile_run))
        .routes(routes!(faults::list, faults::add))
        .routes(routes!(faults::release))
        .routes(routes!(actions::audit))
        .split_for_parts();
    document.info = info;
    (router, document)
}

/// The routes of the API.
pub(crate) fn router() -> Router<App> {
    documented()
        .0
        .route("/openapi.json", axum::routing::get(openapi))
}

/// The OpenAPI document of the routes: JSON, of many lines.
///
/// # Errors
/// If it can't be written.
pub fn document() -> Result<String, String> {
    let mut text = documented().1.to_pretty_json();
    if let Ok(text) = &mut text {
        text.push('\n');
    }
    text.map_err(|error| error.to_string())
}

async fn openapi(State(_): State<App>, uri: Uri) -> Result<Response, Problem> {
    Params::read(&uri, &[])?;
    Ok(Json(documented().1).into_response())
}

/// What an answer of the API is.
pub(crate) type Answer<T> = Result<Json<T>, Problem>;

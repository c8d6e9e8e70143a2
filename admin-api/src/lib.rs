//! The admin HTTP surface: health, metrics, transactions.
//!
//! What it shows and does comes through [`Views`] and [`TxnViews`], which the process implements.
//! It is served on loopback, or asks for a token; its caller sees to which. Errors are
//! `application/problem+json` (RFC 9457). The routes of `/api/v1` and their document come from one
//! list (`routes`).

mod access;
mod audit;
mod body;
mod explain;
mod health;
mod jobs;
mod listener;
mod model;
mod page;
mod problem;
mod query;
mod remedy;
mod routes;
pub mod views;

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRef, State};
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Semaphore;

pub use access::{TOKEN_LEN_MAX, TOKEN_LEN_MIN, Token};
pub use health::Check;
pub use listener::Sleep;
pub use problem::Problem;
pub use routes::document;
pub use views::{TxnViews, Views};

use audit::{AuditLog, Caller};
use listener::Bounded;

/// What the surface is made of.
#[derive(Clone)]
pub struct Parts {
    /// Health and metrics.
    pub views: Arc<dyn Views>,
    /// Transactions.
    pub txns: Arc<dyn TxnViews>,
    /// What a caller has to show; nothing without it.
    pub token: Option<Token>,
    /// Whether faults may be injected.
    pub faults: bool,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("token", &self.token)
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

/// What every handler may use.
#[derive(Clone)]
pub(crate) struct App {
    views: Arc<dyn Views>,
    txns: Arc<dyn TxnViews>,
    token: Option<Token>,
    faults: bool,
    audit: Arc<AuditLog>,
    /// Places of requests that are answered at a time.
    answering: Arc<Semaphore>,
}

impl FromRef<App> for Arc<dyn Views> {
    fn from_ref(app: &App) -> Self {
        Arc::clone(&app.views)
    }
}

/// The routes.
pub fn router(parts: Parts) -> Router {
    let app = App {
        views: parts.views,
        txns: parts.txns,
        token: parts.token,
        faults: parts.faults,
        audit: Arc::default(),
        answering: Arc::new(Semaphore::new(access::ANSWERING_MAX)),
    };
    routes::router()
        .route("/", get(page::page))
        .route("/problems/{kind}", get(problem::kind))
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(metrics))
        .fallback(|| async { Problem::not_found() })
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
        .layer(from_fn_with_state(app.clone(), access::guard))
        .with_state(app)
}

/// Serves until `stop` completes, then finishes the requests that have begun.
///
/// # Errors
/// If the socket cannot be used.
pub async fn serve(
    listener: TcpListener,
    parts: Parts,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let txns = Arc::clone(&parts.txns);
    let listener = bounded(listener, Arc::new(move |time| txns.sleep(time)))?;
    let service = router(parts).into_make_service_with_connect_info::<Caller>();
    axum::serve(listener, service)
        .with_graceful_shutdown(stop)
        .await
}

/// The routes while there is no broker yet: health, and everything else may be tried again later.
fn router_starting(views: Arc<dyn Views>, token: Option<Token>) -> Router {
    Router::new()
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .fallback(|| async { Problem::later("the broker has not started yet; see /readyz") })
        .layer(from_fn_with_state(token, access::know))
        .with_state(views)
}

/// Serves health while there is no broker yet. Ends as [`serve`] does.
///
/// # Errors
/// If the socket cannot be used.
pub async fn serve_starting(
    listener: TcpListener,
    views: Arc<dyn Views>,
    token: Option<Token>,
    sleep: Sleep,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let router = router_starting(views, token);
    axum::serve(bounded(listener, sleep)?, router.into_make_service())
        .with_graceful_shutdown(stop)
        .await
}

fn bounded(listener: TcpListener, sleep: Sleep) -> io::Result<Bounded> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    Ok(Bounded::new(listener, sleep))
}

async fn metrics(State(views): State<Arc<dyn Views>>, uri: Uri) -> Result<Response, Problem> {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    query::Params::read(&uri, &[])?;
    let text = views.metrics().map_err(Problem::internal)?;
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}

#[cfg(test)]
mod tests;

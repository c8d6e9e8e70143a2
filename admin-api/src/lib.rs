//! The admin HTTP surface: health and metrics.
//!
//! It only looks: what it shows comes through [`Views`], which the process implements. There is no
//! authentication, so it is served on loopback only, which its caller sees to. Errors are
//! `application/problem+json` (RFC 9457).

mod health;
mod listener;
mod problem;

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

pub use health::Check;
pub use problem::Problem;

use listener::Bounded;

/// What the process shows of itself. Called on the thread of the admin surface: no method may wait.
pub trait Views: Send + Sync + 'static {
    /// Whether the process makes progress; the text says why not.
    ///
    /// # Errors
    /// If it does not.
    fn live(&self) -> Result<(), String>;
    /// What readiness depends on, each with its state; ready is when all hold.
    fn checks(&self) -> Vec<Check>;
    /// The OpenMetrics text.
    ///
    /// # Errors
    /// If it cannot be made.
    fn metrics(&self) -> Result<String, String>;
}

/// The routes.
pub fn router(views: Arc<dyn Views>) -> Router {
    Router::new()
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(metrics))
        .fallback(|| async { Problem::not_found() })
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
        .with_state(views)
}

/// Serves until `stop` completes, then finishes the requests that have begun.
///
/// # Errors
/// If the socket cannot be used.
pub async fn serve(
    listener: TcpListener,
    views: Arc<dyn Views>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = Bounded::new(tokio::net::TcpListener::from_std(listener)?);
    axum::serve(listener, router(views))
        .with_graceful_shutdown(stop)
        .await
}

async fn metrics(State(views): State<Arc<dyn Views>>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match views.metrics() {
        Ok(text) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(why) => Problem::internal(why).into_response(),
    }
}

#[cfg(test)]
mod tests;

//! The admin surface of an instance: the router that production serves, asked without a socket.

use std::sync::Arc;

use admin_api::{Check, Parts, Views};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use gateway::boot::Running;
use serde_json::Value;
use store_adapter::runtime::Env;
use tower::ServiceExt;

/// Longest answer that is read, bytes.
const ANSWER_MAX: usize = 1 << 20;

/// Health is not simulated.
struct Untold;

impl Views for Untold {
    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    fn checks(&self) -> Vec<Check> {
        Vec::new()
    }

    fn metrics(&self) -> Result<String, String> {
        Err("there are no metrics".to_owned())
    }
}

/// What an instance serves.
pub(crate) fn router(env: &Env, running: &Running) -> Router {
    admin_api::router(Parts {
        views: Arc::new(Untold),
        txns: running.txn_views(env),
        token: None,
        faults: false,
    })
}

/// Status and body of a GET; null where the body is no JSON.
pub(crate) async fn get(router: Router, path: &str) -> (u16, Value) {
    let request = Request::get(path).body(Body::empty());
    let response = match request {
        Ok(request) => router.oneshot(request).await,
        Err(error) => return (0, Value::String(error.to_string())),
    };
    let Ok(response) = response;
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), ANSWER_MAX).await;
    let body = body.map(|bytes| serde_json::from_slice(&bytes).unwrap_or(Value::Null));
    (status, body.unwrap_or(Value::Null))
}

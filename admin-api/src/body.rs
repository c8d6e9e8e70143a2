//! The body of a request that changes something, and who sends it.

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use serde::de::DeserializeOwned;

use crate::{Problem, audit};

/// Longest body, bytes.
pub(crate) const BODY_MAX: usize = 64 << 10;
/// Longest reason that is taken, bytes.
pub(crate) const REASON_MAX: usize = 1024;

/// A JSON body and the address of its sender. An empty body is that of `{}`.
///
/// Its type must be named: a browser asks before it sends such a body for another site's page.
#[derive(Debug)]
pub(crate) struct Body<T> {
    pub(crate) content: T,
    pub(crate) who: Option<String>,
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let named = parts.headers.get(CONTENT_TYPE);
        let named = named.and_then(|value| value.to_str().ok()).unwrap_or("");
        let essence = named.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            return Err(Problem::unsupported_media());
        }
        let bytes: Bytes = to_bytes(body, BODY_MAX)
            .await
            .map_err(|_| Problem::too_large())?;
        let text = if bytes.is_empty() { &b"{}"[..] } else { &bytes };
        let content = serde_json::from_slice(text);
        let content = content.map_err(|error| Problem::bad_request(format!("body: {error}")))?;
        Ok(Self {
            content,
            who: audit::caller(&parts),
        })
    }
}

/// A reason for the audit log.
pub(crate) fn reason(given: Option<String>) -> Result<Option<String>, Problem> {
    let given = given.filter(|reason| !reason.trim().is_empty());
    if given
        .as_ref()
        .is_some_and(|reason| reason.len() > REASON_MAX)
    {
        let allowed = format!("at most {REASON_MAX} bytes");
        return Err(Problem::invalid("reason", allowed));
    }
    Ok(given)
}

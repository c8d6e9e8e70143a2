//! The one form of an error: problem details (RFC 9457).

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// An error of the admin surface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The HTTP status.
    status: u16,
    /// What kind of problem.
    title: &'static str,
    /// What is wrong this time.
    detail: String,
}

impl Problem {
    /// Such a path is not served.
    pub fn not_found() -> Self {
        Self {
            status: StatusCode::NOT_FOUND.as_u16(),
            title: "Not found",
            detail: "served are /livez, /readyz and /metrics".to_owned(),
        }
    }

    /// Only GET is served.
    pub fn method_not_allowed() -> Self {
        Self {
            status: StatusCode::METHOD_NOT_ALLOWED.as_u16(),
            title: "Method not allowed",
            detail: "this can only be read: GET or HEAD".to_owned(),
        }
    }

    /// The process cannot do its work now.
    pub fn unavailable(title: &'static str, detail: String) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE.as_u16(),
            title,
            detail,
        }
    }

    /// A defect.
    pub fn internal(detail: String) -> Self {
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR.as_u16(),
            title: "Internal error",
            detail,
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let content_type = [(CONTENT_TYPE, "application/problem+json")];
        (status, content_type, Json(self)).into_response()
    }
}

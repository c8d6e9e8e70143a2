//! The one form of an error: problem details (RFC 9457).

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use coordinator::machine::group::GroupError;
use coordinator::machine::txn::TxnError;
use serde::Serialize;
use utoipa::ToSchema;

use crate::query::Segments;
use crate::views::{KafkaCode, NoPartition};

/// An error of the admin surface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// What kind of problem: where that is explained.
    #[serde(rename = "type")]
    kind: String,
    /// The HTTP status.
    status: u16,
    /// What kind of problem.
    #[schema(value_type = String)]
    title: &'static str,
    /// What is wrong this time.
    detail: String,
    /// The code that a Kafka client would be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    kafka_error_code: Option<i16>,
    /// The name of that code.
    #[serde(skip_serializing_if = "Option::is_none")]
    kafka_error_name: Option<String>,
    /// Whether the same request may succeed later.
    #[serde(skip_serializing_if = "Option::is_none")]
    retriable: Option<bool>,
    /// Parameters that are not allowed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    invalid_params: Vec<InvalidParam>,
    #[serde(skip)]
    also: Also,
}

/// Every kind of problem: its title, and what it means.
const KINDS: [(&str, &str); 15] = [
    (
        "Bad request",
        "The request can't be understood; the detail says where. Nothing was done.",
    ),
    (
        "Body too large",
        "A body has at most 64 KiB. Nothing was done.",
    ),
    (
        "Conflict",
        "What is asked for does not fit what is: nothing is open, or it is decided already.",
    ),
    (
        "Damaged",
        "A file on the volume is damaged and has to be repaired; /readyz?verbose names it.",
    ),
    (
        "Forbidden",
        "Without a token only requests that name a loopback host are answered.",
    ),
    (
        "Internal error",
        "A defect of the broker. Its log has more.",
    ),
    (
        "Invalid parameter",
        "A parameter or field has a value that is not allowed, or is not known.",
    ),
    (
        "Method not allowed",
        "The path does not have that method; /openapi.json lists what it has.",
    ),
    (
        "Not available now",
        "It passes by itself, as a slot that is being read. Try again.",
    ),
    (
        "Not found",
        "There is no such path, transactional id, topic, partition, group or fault.",
    ),
    (
        "Not live",
        "The process makes no progress and should be restarted.",
    ),
    ("Not ready", "The process can't serve anything now."),
    (
        "Precondition failed",
        "What the caller looked at has changed. Look again before acting.",
    ),
    (
        "Unauthorized",
        "The token of --admin-token-file is needed: Authorization: Bearer TOKEN.",
    ),
    (
        "Unsupported media type",
        "A body must be JSON and say so: Content-Type: application/json.",
    ),
];

/// The last segment of the path of a kind.
fn slug(title: &str) -> String {
    title.to_ascii_lowercase().replace(' ', "-")
}

/// What a kind of problem means.
pub(crate) async fn kind(Segments(kind): Segments<String>) -> Result<String, Problem> {
    let found = KINDS.iter().find(|(title, _)| slug(title) == kind);
    let (title, text) =
        found.ok_or_else(|| Problem::no_such("there is no such kind of problem"))?;
    Ok(format!("{title}\n\n{text}\n"))
}

/// What an answer says in a header besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Also {
    Nothing,
    Authenticate,
    RetryAfter,
}

/// A parameter that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct InvalidParam {
    /// Its name.
    name: String,
    /// What is allowed.
    reason: String,
}

impl Problem {
    fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("/problems/{}", slug(title)),
            status: status.as_u16(),
            title,
            detail: detail.into(),
            kafka_error_code: None,
            kafka_error_name: None,
            retriable: None,
            invalid_params: Vec::new(),
            also: Also::Nothing,
        }
    }

    /// Such a path is not served.
    pub fn not_found() -> Self {
        let detail = "served are /, /api/v1/..., /openapi.json, /livez, /readyz and /metrics";
        Self::no_such(detail)
    }

    /// There is no such thing.
    pub fn no_such(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "Not found", detail)
    }

    /// The path does not have that method.
    pub fn method_not_allowed() -> Self {
        let detail = "this path does not have that method; /openapi.json lists what it has";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed", detail)
    }

    /// The request can't be understood.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Bad request", detail)
    }

    /// A parameter has a value that is not allowed.
    pub fn invalid(name: &str, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        let detail = format!("{name}: {reason}");
        let mut problem = Self::new(StatusCode::BAD_REQUEST, "Invalid parameter", detail);
        problem.invalid_params.push(InvalidParam {
            name: name.to_owned(),
            reason,
        });
        problem
    }

    /// The request has not shown that it may.
    pub fn unauthorized() -> Self {
        let detail = "the token of --admin-token-file is needed: Authorization: Bearer TOKEN";
        let mut problem = Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", detail);
        problem.also = Also::Authenticate;
        problem
    }

    /// The request comes from where it may not.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", detail)
    }

    /// The body is longer than is read.
    pub fn too_large() -> Self {
        let detail = "the body is longer than 64 KiB";
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "Body too large", detail)
    }

    /// The body is not JSON.
    pub fn unsupported_media() -> Self {
        let detail = "a POST must say Content-Type: application/json, also without a body";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(status, "Unsupported media type", detail)
    }

    /// The request does not fit what is.
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "Conflict", detail)
    }

    /// What the caller looked at has changed.
    pub fn changed(detail: impl Into<String>) -> Self {
        let status = StatusCode::PRECONDITION_FAILED;
        Self::new(status, "Precondition failed", detail)
    }

    /// The process cannot do its work now.
    pub fn unavailable(title: &'static str, detail: String) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, title, detail)
    }

    /// The same, and it is worth trying again.
    pub fn later(detail: impl Into<String>) -> Self {
        let mut problem = Self::unavailable("Not available now", detail.into());
        problem.retriable = Some(true);
        problem.also = Also::RetryAfter;
        problem
    }

    /// A defect.
    pub fn internal(detail: String) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new(status, "Internal error", detail)
    }

    /// What the coordinator of a transactional id refuses. `detail` says it for this request.
    pub fn transaction(error: TxnError, code: KafkaCode, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let mut problem = match error {
            TxnError::InvalidRequest | TxnError::TooLarge | TxnError::InvalidTransactionTimeout => {
                Self::bad_request(detail)
            }
            TxnError::InvalidProducerIdMapping
            | TxnError::ProducerFenced
            | TxnError::InvalidProducerEpoch => Self::changed(detail),
            TxnError::ConcurrentTransactions
            | TxnError::InvalidTxnState
            | TxnError::UnknownServerError => Self::conflict(detail),
            TxnError::CoordinatorLoading
            | TxnError::CoordinatorNotAvailable
            | TxnError::NotCoordinator => Self::later(detail),
        };
        problem.kafka_error_code = Some(code.code);
        problem.kafka_error_name = Some(code.name);
        problem.retriable = Some(code.retriable);
        problem
    }

    /// Why the offsets of a group can't be shown.
    pub fn group(error: GroupError) -> Self {
        match error {
            GroupError::CoordinatorLoading
            | GroupError::CoordinatorNotAvailable
            | GroupError::NotCoordinator => Self::later(error.to_string()),
            error => Self::bad_request(error.to_string()),
        }
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// What is wrong this time.
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl From<NoPartition> for Problem {
    fn from(reason: NoPartition) -> Self {
        match reason {
            NoPartition::UnknownTopic => Self::no_such("there is no such topic"),
            NoPartition::UnknownPartition => {
                Self::no_such("the topic has no partition of that number")
            }
            NoPartition::Damaged => Self::unavailable(
                "Damaged",
                "the topic's files are damaged; /readyz?verbose names them".to_owned(),
            ),
            NoPartition::Unavailable(why) => Self::later(why),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let content_type = [(CONTENT_TYPE, "application/problem+json")];
        let header = match self.also {
            Also::Nothing => None,
            Also::Authenticate => Some([(WWW_AUTHENTICATE, "Bearer")]),
            Also::RetryAfter => Some([(RETRY_AFTER, "1")]),
        };
        match header {
            Some(header) => (status, content_type, header, Json(self)).into_response(),
            None => (status, content_type, Json(self)).into_response(),
        }
    }
}

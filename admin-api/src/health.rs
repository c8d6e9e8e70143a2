//! `/livez` and `/readyz`, in the form that Kubernetes gave them.
//!
//! `?verbose` lists every check, `?exclude=NAME` leaves one out. A process of which a part does
//! not serve is ready and says that it is degraded: taking it away would not help the part. Reasons
//! are told to who may see the rest of the surface (`access`).

use std::fmt::Write;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::access::Trusted;
use crate::{Problem, Views};

/// What stands for a reason that the caller may not know.
const WITHHELD: &str = "why is told to who may ask";

/// One thing that readiness depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Its name, for `?exclude=`.
    pub name: &'static str,
    /// Why it does not hold; `None` if it does.
    pub failed: Option<String>,
    /// What is not as it should be though the process is ready; `None` if nothing is.
    pub degraded: Option<String>,
}

impl Check {
    /// A check that holds if `result` is fine.
    pub fn new(name: &'static str, result: Result<(), String>) -> Self {
        Self {
            name,
            failed: result.err(),
            degraded: None,
        }
    }

    /// A check that holds; `degraded` says what is not as it should be.
    pub fn degraded(name: &'static str, degraded: Option<String>) -> Self {
        Self {
            name,
            failed: None,
            degraded,
        }
    }
}

pub(crate) async fn livez(State(views): State<Arc<dyn Views>>) -> Response {
    match views.live() {
        Ok(()) => "ok".into_response(),
        Err(why) => Problem::unavailable("Not live", why).into_response(),
    }
}

pub(crate) async fn readyz(
    State(views): State<Arc<dyn Views>>,
    Extension(Trusted(trusted)): Extension<Trusted>,
    RawQuery(query): RawQuery,
) -> Response {
    let query = query.unwrap_or_default();
    let words: Vec<&str> = query.split('&').collect();
    let verbose = words
        .iter()
        .any(|word| *word == "verbose" || word.starts_with("verbose="));
    let excluded = |check: &Check| {
        let excludes = words
            .iter()
            .filter_map(|word| word.strip_prefix("exclude="));
        excludes.into_iter().any(|name| name == check.name)
    };
    let mut checks = views.checks();
    checks.retain(|check| !excluded(check));
    if !trusted {
        let reasons = checks
            .iter_mut()
            .flat_map(|check| [&mut check.failed, &mut check.degraded]);
        reasons
            .flatten()
            .for_each(|reason| WITHHELD.clone_into(reason));
    }
    let failed: Vec<_> = checks.iter().filter_map(reason).collect();
    if verbose {
        let status = if failed.is_empty() {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        return (status, list(&checks, failed.is_empty())).into_response();
    }
    if failed.is_empty() {
        let degraded = checks.iter().filter_map(|check| {
            let why = check.degraded.as_ref()?;
            Some(format!("\n{}: {why}", check.name))
        });
        let degraded: String = degraded.collect();
        match degraded.as_str() {
            "" => "ok".into_response(),
            degraded => format!("ok, degraded{degraded}").into_response(),
        }
    } else {
        Problem::unavailable("Not ready", failed.join("; ")).into_response()
    }
}

fn reason(check: &Check) -> Option<String> {
    let why = check.failed.as_ref()?;
    Some(format!("{}: {why}", check.name))
}

fn list(checks: &[Check], ready: bool) -> String {
    let mut text = String::new();
    for check in checks {
        let line = match (&check.failed, &check.degraded) {
            (None, None) => writeln!(text, "[+]{} ok", check.name),
            (None, Some(why)) => writeln!(text, "[~]{} degraded: {why}", check.name),
            (Some(why), _) => writeln!(text, "[-]{} failed: {why}", check.name),
        };
        // Writing to a string cannot fail.
        line.unwrap_or_default();
    }
    text.push_str(if ready { "ready\n" } else { "not ready\n" });
    text
}

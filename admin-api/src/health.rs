//! `/livez` and `/readyz`, in the form that Kubernetes gave them.
//!
//! `?verbose` lists every check, `?exclude=NAME` leaves one out. Another parameter is an error. A
//! check of another name is only told, as by Kubernetes: the probes of a deployment are older or
//! younger than its checks, and must not fail for it. A process of which a part does not serve is
//! ready and says that it is degraded: taking it away would not help the part. Reasons are told to
//! who may see the rest of the surface (`access`).

use std::fmt::Write;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use crate::access::Trusted;
use crate::query::Params;
use crate::{Problem, Views};

/// What stands for a reason that the caller may not know.
const WITHHELD: &str = "why is told to who may ask";

/// What is said of a name that is to be left out.
const NO_CHECK: &str = "no such check, nothing is left out";

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

pub(crate) async fn livez(
    State(views): State<Arc<dyn Views>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let verbose = Params::read(&uri, &["verbose"])?.one("verbose")?.is_some();
    match views.live() {
        Ok(()) if verbose => Ok("[+]workers ok\nlive\n".into_response()),
        Ok(()) => Ok("ok".into_response()),
        Err(why) => Err(Problem::unavailable("Not live", why)),
    }
}

pub(crate) async fn readyz(
    State(views): State<Arc<dyn Views>>,
    Extension(Trusted(trusted)): Extension<Trusted>,
    uri: Uri,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["verbose", "exclude"])?;
    let verbose = params.one("verbose")?.is_some();
    let mut checks = views.checks();
    let unknown: Vec<&str> = params
        .all("exclude")
        .filter(|name| checks.iter().all(|check| check.name != *name))
        .collect();
    checks.retain(|check| params.all("exclude").all(|name| name != check.name));
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
        let list = list(&checks, &unknown, failed.is_empty());
        return Ok((status, list).into_response());
    }
    if !failed.is_empty() {
        return Err(Problem::unavailable("Not ready", failed.join("; ")));
    }
    let degraded = checks.iter().filter_map(|check| {
        let why = check.degraded.as_ref()?;
        Some(format!("\n{}: {why}", check.name))
    });
    let degraded: String = degraded.collect();
    let unknown = unknown.iter().map(|name| format!("\n{name}: {NO_CHECK}"));
    let unknown: String = unknown.collect();
    let said = match degraded.as_str() {
        "" => format!("ok{unknown}"),
        degraded => format!("ok, degraded{degraded}{unknown}"),
    };
    Ok(said.into_response())
}

fn reason(check: &Check) -> Option<String> {
    let why = check.failed.as_ref()?;
    Some(format!("{}: {why}", check.name))
}

fn list(checks: &[Check], unknown: &[&str], ready: bool) -> String {
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
    for name in unknown {
        writeln!(text, "[?]{name}: {NO_CHECK}").unwrap_or_default();
    }
    text.push_str(if ready { "ready\n" } else { "not ready\n" });
    text
}

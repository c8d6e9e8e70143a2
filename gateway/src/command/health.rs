//! `fencepost health`: what `/livez` and `/readyz` say, for whoever has no HTTP client at hand.

use std::time::Duration;

use clap::Args;
use gateway::config::{Settings, read_environment};
use serde::Serialize;

use super::http::{self, Answer};
use super::output::{Failure, Format, Row, help, or_dash, render};

/// Arguments of `fencepost health`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Health {
    /// Whether it can serve clients, and what is not as it should be; without, only whether it
    /// makes progress
    #[arg(long)]
    ready: bool,
    /// The admin port [default: FENCEPOST_ADMIN_LISTEN, else 127.0.0.1:9644]
    #[arg(long, value_name = "HOST:PORT")]
    admin: Option<String>,
    /// How long to wait for an answer, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    timeout: u64,
    /// How the outcome is printed
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    #[default]
    Ok,
    Degraded,
    Failed,
}

impl State {
    /// The word for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }
}

/// Something that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Checked {
    pub(super) check: String,
    pub(super) state: State,
    pub(super) reason: Option<String>,
}

impl Row for Checked {
    const HEADINGS: &'static [&'static str] = &["CHECK", "STATE", "REASON"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.check.clone(),
            self.state.word().to_owned(),
            or_dash(self.reason.as_ref()),
        ]
    }
}

impl Health {
    /// Runs the command.
    pub(crate) async fn run(self) -> Result<String, Failure> {
        if self.format == Format::Help {
            return help::<Checked>();
        }
        let address = self.admin.clone().unwrap_or_else(own);
        let patience = Duration::from_millis(self.timeout);
        let checks = if self.ready {
            ready(&address, patience).await?
        } else {
            live(&address, patience).await?
        };
        let shown = render(&checks, self.format)?;
        if checks.iter().any(|check| check.state == State::Failed) {
            let what = if self.ready { "ready" } else { "live" };
            return Err(Failure::Refused(format!("{address} is not {what}")).after(shown));
        }
        Ok(shown)
    }
}

/// The admin port of a broker with this environment.
fn own() -> String {
    let mut settings = Settings::default();
    read_environment(&mut settings, std::env::vars());
    let bound = settings.get("admin.listen").value;
    // An address that is bound, but names no host.
    for (any, loopback) in [("0.0.0.0:", "127.0.0.1:"), ("[::]:", "[::1]:")] {
        if let Some(port) = bound.strip_prefix(any) {
            return format!("{loopback}{port}");
        }
    }
    bound
}

async fn live(address: &str, patience: Duration) -> Result<Vec<Checked>, Failure> {
    let answer = http::get(address, "/livez", patience).await?;
    let (state, reason) = match answer.status {
        200 => (State::Ok, None),
        503 => (State::Failed, Some(detail(&answer))),
        _ => return Err(foreign(address, &answer)),
    };
    Ok(vec![Checked {
        check: "live".to_owned(),
        state,
        reason,
    }])
}

/// The checks that `/readyz` has made.
pub(super) async fn ready(address: &str, patience: Duration) -> Result<Vec<Checked>, Failure> {
    let answer = http::get(address, "/readyz?verbose", patience).await?;
    let checks: Vec<Checked> = answer.body.lines().filter_map(line).collect();
    if !matches!(answer.status, 200 | 503) || checks.is_empty() {
        return Err(foreign(address, &answer));
    }
    Ok(checks)
}

/// A line such as `[-]store failed: disk full`.
fn line(line: &str) -> Option<Checked> {
    let (state, rest) = match line.split_at_checked(3)? {
        ("[+]", rest) => (State::Ok, rest),
        ("[~]", rest) => (State::Degraded, rest),
        ("[-]", rest) => (State::Failed, rest),
        _ => return None,
    };
    let (check, rest) = rest.split_once(' ')?;
    let reason = rest.split_once(": ").map(|(_, reason)| reason.to_owned());
    Some(Checked {
        check: check.to_owned(),
        state,
        reason,
    })
}

/// What a problem says in detail.
fn detail(answer: &Answer) -> String {
    let problem: Option<serde_json::Value> = serde_json::from_str(&answer.body).ok();
    let detail = problem
        .as_ref()
        .and_then(|problem| problem["detail"].as_str());
    detail.map_or_else(|| answer.body.trim().to_owned(), str::to_owned)
}

fn foreign(address: &str, answer: &Answer) -> Failure {
    let status = answer.status;
    Failure::Refused(format!(
        "{address} answers {status}: is this the admin port of a fencepost?"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_readyz_are_read() {
        let check = |name: &str, state, reason: Option<&str>| {
            Some(Checked {
                check: name.to_owned(),
                state,
                reason: reason.map(str::to_owned),
            })
        };
        assert_eq!(line("[+]store ok"), check("store", State::Ok, None));
        let degraded = check("partitions", State::Degraded, Some("1 of 3: is offline"));
        assert_eq!(line("[~]partitions degraded: 1 of 3: is offline"), degraded);
        let failed = check("store", State::Failed, Some("disk full"));
        assert_eq!(line("[-]store failed: disk full"), failed);
        for none in ["ready", "not ready", "", "[+]", "[+]x"] {
            assert_eq!(line(none), None, "{none}");
        }
    }
}

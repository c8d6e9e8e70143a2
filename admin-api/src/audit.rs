//! Who changed what: the newest in memory, all of them in the log.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::ConnectInfo;
use axum::extract::connect_info::Connected;
use axum::http::request::Parts;
use axum::serve::IncomingStream;
use coordinator::volume::format::rfc3339;
use parking_lot::Mutex;

use crate::listener::{Bounded, Line};
use crate::model::AuditEntry;

/// Entries that are kept.
const KEPT_MAX: usize = 1000;

/// The address of a caller, and its connection.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    address: SocketAddr,
    pub(crate) line: Arc<Line>,
}

impl Connected<IncomingStream<'_, Bounded>> for Caller {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        Self {
            address: *stream.remote_addr(),
            line: Arc::clone(stream.io().line()),
        }
    }
}

/// The address that a request comes from, where it is known.
pub(crate) fn caller(parts: &Parts) -> Option<String> {
    let known = parts.extensions.get::<ConnectInfo<Caller>>();
    known.map(|ConnectInfo(caller)| caller.address.to_string())
}

/// What is to be remembered of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Act {
    pub(crate) who: Option<String>,
    pub(crate) action: &'static str,
    pub(crate) target: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
}

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Changed,
    /// A dry run, or a refusal.
    Nothing,
    /// Written or not: nobody can say.
    Unknown,
}

impl Effect {
    fn text(self) -> &'static str {
        match self {
            Self::Changed => "a request changed something",
            Self::Nothing => "a request changed nothing",
            Self::Unknown => "a request may have changed something",
        }
    }
}

/// The memory.
#[derive(Debug, Default)]
pub(crate) struct AuditLog(Mutex<(u64, VecDeque<AuditEntry>)>);

impl AuditLog {
    /// Remembers and logs what came of a request.
    pub(crate) fn note(&self, now_ms: i64, act: Act, effect: Effect, status: u16, outcome: &str) {
        tracing::info!(
            action = act.action,
            who = act.who.as_deref().unwrap_or("unknown"),
            target_of_it = act.target.as_deref().unwrap_or("-"),
            reason = act.reason.as_deref().unwrap_or("-"),
            status,
            outcome,
            "{}",
            effect.text()
        );
        let mut log = self.0.lock();
        let (seq, entries) = &mut *log;
        *seq += 1;
        entries.push_front(AuditEntry {
            seq: *seq,
            at: rfc3339(now_ms),
            at_ms: now_ms,
            who: act.who,
            action: act.action,
            target: act.target,
            reason: act.reason,
            status,
            outcome: outcome.to_owned(),
            before: act.before,
            after: act.after,
        });
        entries.truncate(KEPT_MAX);
    }

    /// Shows the entries, the newest first; how many are not kept any more.
    pub(crate) fn visit(&self, look: impl FnMut(&AuditEntry)) -> u64 {
        let log = self.0.lock();
        let (seq, entries) = &*log;
        entries.iter().for_each(look);
        let kept = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        seq.saturating_sub(kept)
    }
}

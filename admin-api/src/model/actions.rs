//! What was done, and what would be.

use serde::Serialize;
use utoipa::ToSchema;

use super::{Source, Transaction};

/// A partition that gets a marker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MarkedPartition {
    /// The topic.
    pub(crate) topic: String,
    /// The partition.
    pub(crate) partition: i32,
    /// Offset of the transaction's first record there, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_offset: Option<i64>,
    /// Whether it holds the last stable offset there.
    pub(crate) holds_last_stable_offset: bool,
}

/// What an abort does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AbortPlan {
    /// Partitions that get an abort marker; at most 1,000 are listed.
    pub(crate) partitions: Vec<MarkedPartition>,
    /// How many partitions get one.
    pub(crate) partition_count: usize,
    /// Groups that drop the offsets it has staged.
    pub(crate) groups: Vec<String>,
    /// The session that is fenced: its client has to begin anew.
    pub(crate) fenced_producer_id: i64,
    /// Its epoch.
    pub(crate) fenced_producer_epoch: i16,
}

/// What came of an abort.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AbortOutcome {
    #[serde(flatten)]
    pub(crate) source: Source,
    /// Whether nothing was done.
    pub(crate) dry_run: bool,
    /// `aborted`; `deciding`: it is decided, and its markers are still being written; `would-abort`
    /// in a dry run.
    #[schema(value_type = String)]
    pub(crate) outcome: &'static str,
    /// What is done.
    pub(crate) plan: AbortPlan,
    /// The id before.
    pub(crate) before: Transaction,
    /// The id afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<Transaction>,
}

/// An id that a pass did not finish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Unfinished {
    /// The id.
    pub(crate) transactional_id: String,
    /// Why not.
    pub(crate) reason: String,
}

/// What a pass came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PassOutcome {
    #[serde(flatten)]
    pub(crate) source: Source,
    /// Ids that it took care of.
    pub(crate) done: Vec<String>,
    /// Ids that it did not finish: the next pass tries again.
    pub(crate) unfinished: Vec<Unfinished>,
    /// Ids that are left for the next pass.
    pub(crate) remaining: usize,
}

/// A fault that is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fault {
    /// Its number.
    pub(crate) id: u64,
    /// `hold-markers`.
    #[schema(value_type = String)]
    pub(crate) kind: &'static str,
    /// The transactional id that it concerns; absent for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transactional_id: Option<String>,
    /// Since when, ms since the Unix epoch.
    pub(crate) since_ms: i64,
    /// How often it held something.
    pub(crate) fired: u64,
}

/// The faults that are in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FaultList {
    #[serde(flatten)]
    pub(crate) source: Source,
    /// The faults, in order of numbers.
    pub(crate) faults: Vec<Fault>,
}

/// A request that changed something, or was to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuditEntry {
    /// Its number, from 1.
    pub(crate) seq: u64,
    /// When, RFC 3339.
    pub(crate) at: String,
    /// The same, ms since the Unix epoch.
    pub(crate) at_ms: i64,
    /// The address that asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) who: Option<String>,
    /// `abort`, `reaper-run`, `reconcile-run`, `fault-add` or `fault-release`.
    #[schema(value_type = String)]
    pub(crate) action: &'static str,
    /// What it was about: a transactional id, or the number of a fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    /// What the caller gave as the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The HTTP status of the answer.
    pub(crate) status: u16,
    /// What came of it.
    pub(crate) outcome: String,
    /// State before, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<String>,
    /// State afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<String>,
}

/// Requests that changed something, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Audit {
    #[serde(flatten)]
    pub(crate) source: Source,
    /// Those of this page. The newest 1,000 since the process began are kept; the log has all.
    pub(crate) entries: Vec<AuditEntry>,
    /// Older ones that are only in the log.
    pub(crate) forgotten: u64,
    /// Asks for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page_token: Option<String>,
}

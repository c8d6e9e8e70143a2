//! The offsets of a group.

use serde::Serialize;
use utoipa::ToSchema;

use super::Source;

/// A committed offset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GroupOffset {
    /// The topic.
    pub(crate) topic: String,
    /// The partition.
    pub(crate) partition: i32,
    /// The offset.
    pub(crate) offset: i64,
    /// Leader epoch of the record before it, where the client gave one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) leader_epoch: Option<i32>,
    /// The client's metadata.
    pub(crate) metadata: String,
    /// When it was committed, ms since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) commit_ms: Option<i64>,
    /// Offsets up to the high watermark. Markers have offsets too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lag: Option<i64>,
    /// Offsets up to the last stable offset: what a reader of committed records can read now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lag_to_last_stable: Option<i64>,
    /// Whether a transaction has a later offset of it staged.
    pub(crate) pending: bool,
}

/// An offset that waits for the end of its transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PendingOffset {
    /// The topic.
    pub(crate) topic: String,
    /// The partition.
    pub(crate) partition: i32,
    /// The offset.
    pub(crate) offset: i64,
    /// Leader epoch of the record before it, where the client gave one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) leader_epoch: Option<i32>,
    /// The client's metadata.
    pub(crate) metadata: String,
}

/// The offsets of one open transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PendingTxn {
    /// Its producer.
    pub(crate) producer_id: i64,
    /// Epoch of the producer that staged last.
    pub(crate) producer_epoch: i16,
    /// Its transactional id.
    pub(crate) transactional_id: String,
    /// Its number.
    pub(crate) txn_seq: u64,
    /// What it has staged.
    pub(crate) offsets: Vec<PendingOffset>,
}

/// The offsets of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GroupOffsets {
    #[serde(flatten)]
    pub(crate) source: Source,
    /// The group.
    pub(crate) group: String,
    /// How many committed offsets it has.
    pub(crate) matched: usize,
    /// Those of this page, by topic and partition.
    pub(crate) offsets: Vec<GroupOffset>,
    /// Asks for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page_token: Option<String>,
    /// How many open transactions have staged offsets of the group.
    pub(crate) pending_count: usize,
    /// Their staged offsets, by producer: invisible until they are decided. At most 1,000.
    pub(crate) pending: Vec<PendingTxn>,
}

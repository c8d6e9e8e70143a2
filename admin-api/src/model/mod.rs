//! What is answered, as JSON. Names and meanings of fields are stable.

#![allow(
    clippy::struct_field_names,
    reason = "fields have the names of the API"
)]

mod actions;
mod groups;
mod partitions;
mod shared;
mod transactions;

use coordinator::volume::format::rfc3339;
use serde::Serialize;
use utoipa::ToSchema;

pub(crate) use actions::{
    AbortOutcome, AbortPlan, Audit, AuditEntry, Fault, FaultList, MarkedPartition, PassOutcome,
    Unfinished,
};
pub(crate) use groups::{GroupOffset, GroupOffsets, PendingOffset, PendingTxn};
pub(crate) use partitions::{LsoView, OpenTxn, Producer, Producers, Remedy};
pub(crate) use shared::{FenceFile, Fences, IdBlock, MarkerEntry, MarkerQueue, ProducerIds};
pub(crate) use transactions::{
    History, HistoryEntry, MissingPartition, Next, PartitionState, SlotGapView, StagedGroup,
    Transaction, TransactionDetail, TransactionList, client_of, next, once, shown_state,
};

use crate::views::TxnViews;

/// Where an answer comes from, and of when it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Source {
    /// The broker that answers.
    pub(crate) broker: i32,
    /// `owner`: from what the broker that owns the data knows. `file`: from files on the volume.
    #[schema(value_type = String)]
    pub(crate) source: &'static str,
    /// When it was looked at, RFC 3339.
    pub(crate) as_of: String,
    /// The same, ms since the Unix epoch.
    pub(crate) as_of_ms: i64,
    /// How old it may be, ms.
    pub(crate) staleness_ms: i64,
}

impl Source {
    fn new(views: &dyn TxnViews, source: &'static str) -> Self {
        let now_ms = views.now_ms();
        Self {
            broker: views.broker(),
            source,
            as_of: rfc3339(now_ms),
            as_of_ms: now_ms,
            staleness_ms: 0,
        }
    }

    /// What the owner knows.
    pub(crate) fn owner(views: &dyn TxnViews) -> Self {
        Self::new(views, "owner")
    }

    /// What files say.
    pub(crate) fn file(views: &dyn TxnViews) -> Self {
        Self::new(views, "file")
    }
}

/// How long ago something was, ms; nothing, where the clock has stepped back since.
pub(crate) fn age(at_ms: i64, now_ms: i64) -> i64 {
    now_ms.saturating_sub(at_ms).max(0)
}

/// Partitions of one topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct TopicPartitions {
    /// The topic.
    pub(crate) topic: String,
    /// Partition numbers.
    pub(crate) partitions: Vec<i32>,
}

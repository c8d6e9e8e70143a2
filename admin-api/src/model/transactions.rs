//! Transactional ids and their past.

use std::collections::{BTreeMap, BTreeSet};

use coordinator::machine::txn::{Client, TopicPartitions as Partitions, TxnEntry, TxnState, shown};
use coordinator::service::txns::{SlotGap, SlotState};
use coordinator::volume::format::{HistoryLine, rfc3339};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Source, TopicPartitions, age};
use crate::views::TxnViews;

/// Who asked for the last change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ClientView {
    /// `client.id`.
    pub(crate) id: String,
    /// Address of its connection.
    pub(crate) address: String,
    /// Name and version of its software; may be empty.
    pub(crate) software: String,
}

/// What happens next by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Next {
    /// `nothing`, `abort-by-timeout`, `write-markers`, `await-brokers` or `expire`.
    #[schema(value_type = String)]
    pub(crate) action: &'static str,
    /// When, ms since the Unix epoch, where that is known: the next pass behind it sees to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at_ms: Option<i64>,
    /// The same for people.
    pub(crate) text: String,
}

impl Next {
    /// Nothing does.
    pub(crate) fn nothing(text: &str) -> Self {
        Self {
            action: "nothing",
            at_ms: None,
            text: text.to_owned(),
        }
    }
}

/// What another broker still has to confirm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OwedView {
    /// The broker.
    pub(crate) broker: i32,
    /// Number of the transaction.
    pub(crate) txn_seq: u64,
    /// Its producer.
    pub(crate) producer_id: i64,
    /// The epoch that its markers carry.
    pub(crate) producer_epoch: i16,
    /// Commit, or abort.
    pub(crate) commit: bool,
    /// Partitions whose marker is queued.
    pub(crate) partitions: Vec<TopicPartitions>,
    /// Groups whose decision is queued.
    pub(crate) groups: Vec<String>,
}

/// A transactional id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Transaction {
    /// The id.
    pub(crate) transactional_id: String,
    /// Its coordinator.
    pub(crate) coordinator: i32,
    /// The slot file that has it.
    pub(crate) slot: u32,
    /// Kafka's name of the state. Prepare* while a broker still owes markers.
    #[schema(value_type = String)]
    pub(crate) state: &'static str,
    /// The state that the slot file has.
    #[schema(value_type = String)]
    pub(crate) slot_state: &'static str,
    /// Producer id.
    pub(crate) producer_id: i64,
    /// Producer epoch.
    pub(crate) producer_epoch: i16,
    /// Number of the last transaction that began; 0 before the first.
    pub(crate) txn_seq: u64,
    /// `transaction.timeout.ms` of the producer.
    pub(crate) timeout_ms: i32,
    /// When the transaction began, ms since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) start_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<String>,
    /// For how long it has been open or decided, ms; absent when it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_ms: Option<i64>,
    /// When an open one times out, ms since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline_ms: Option<i64>,
    /// When the id last changed, ms since the Unix epoch.
    pub(crate) last_update_ms: i64,
    /// Partitions of the open or decided transaction.
    pub(crate) partitions: Vec<TopicPartitions>,
    /// Groups whose offsets it commits.
    pub(crate) groups: Vec<String>,
    /// Who asked for the last change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client: Option<ClientView>,
    /// Transaction protocol of the last request: 2 if the epoch grows with every transaction.
    pub(crate) transaction_version: i8,
    /// What other brokers have not confirmed.
    pub(crate) owed: Vec<OwedView>,
    /// What happens next by itself.
    pub(crate) next: Next,
    /// Changes with every change of the id; also sent as ETag.
    pub(crate) etag: String,
}

/// The state that people are shown: a decision that other brokers have not carried out is not
/// complete, whatever the slot says.
pub(crate) fn shown_state(entry: &TxnEntry) -> TxnState {
    // As `shown` has it, without its copies.
    match entry.owed.first() {
        Some(owed) if owed.commit => TxnState::PrepareCommit,
        Some(_) => TxnState::PrepareAbort,
        None => entry.state,
    }
}

/// Partitions by topic, as lists.
pub(crate) fn partitions_of(partitions: &Partitions) -> Vec<TopicPartitions> {
    let one = partitions.iter().map(|(topic, numbers)| TopicPartitions {
        topic: topic.to_string(),
        partitions: numbers.iter().copied().collect(),
    });
    one.collect()
}

/// A client for people.
pub(crate) fn client_of(client: &Client) -> ClientView {
    ClientView {
        id: client.id.to_string(),
        address: client.address.to_string(),
        software: client.software.to_string(),
    }
}

impl Transaction {
    /// What an entry says, as `source` is of.
    pub(crate) fn of(views: &dyn TxnViews, source: &Source, id: &str, entry: &TxnEntry) -> Self {
        let now_ms = source.as_of_ms;
        let shown = shown(entry);
        let active = shown.state == TxnState::Ongoing || shown.state.prepared().is_some();
        let deadline_ms = deadline_ms(entry);
        let age_ms = entry.start_ms.map(|start| age(start, now_ms));
        let owed = entry.owed.iter().flat_map(|owed| {
            owed.entries.iter().map(|(broker, one)| OwedView {
                broker: broker.0,
                txn_seq: owed.txn_seq,
                producer_id: owed.producer_id.0,
                producer_epoch: owed.marker_epoch.0,
                commit: owed.commit,
                partitions: partitions_of(&one.partitions),
                groups: one.groups.iter().map(ToString::to_string).collect(),
            })
        });
        Self {
            transactional_id: id.to_owned(),
            coordinator: source.broker,
            slot: views.slot_of(id),
            state: shown.state.name(),
            slot_state: entry.state.name(),
            producer_id: shown.pid.0,
            producer_epoch: shown.epoch.0,
            txn_seq: entry.txn_seq,
            timeout_ms: entry.timeout_ms,
            start_ms: entry.start_ms,
            start: entry.start_ms.map(rfc3339),
            age_ms: age_ms.filter(|_| active),
            deadline_ms,
            last_update_ms: entry.last_update_ms,
            partitions: partitions_of(&shown.partitions),
            groups: shown.groups.iter().map(ToString::to_string).collect(),
            client: entry.client.as_ref().map(client_of),
            transaction_version: entry.txn_version,
            owed: owed.collect(),
            next: next(views, id, entry, now_ms),
            etag: etag(entry),
        }
    }
}

/// When an open transaction times out.
fn deadline_ms(entry: &TxnEntry) -> Option<i64> {
    let open = entry.state == TxnState::Ongoing;
    let start = entry.start_ms.filter(|_| open)?;
    Some(start.saturating_add(entry.timeout_ms.into()))
}

/// What happens next by itself to an id.
pub(crate) fn next(views: &dyn TxnViews, id: &str, entry: &TxnEntry, now_ms: i64) -> Next {
    let (action, at_ms, text) = if entry.state.prepared().is_some() {
        let again = "what fails is tried again by every reconcile pass";
        let holds = views.holds();
        let held = holds.iter().find(|hold| hold.holds(Some(id)));
        let text = match (held.map(|hold| hold.number), views.why_stuck(id)) {
            (Some(fault), _) => {
                format!("its markers are held by fault {fault}, until it is released")
            }
            (None, Some(why)) => format!("it is not carried out: {why}; {again}"),
            (None, None) => format!("its markers are being written; {again}"),
        };
        ("write-markers", None, text)
    } else if entry.is_gated() {
        let brokers: Vec<String> = entry
            .owed
            .iter()
            .flat_map(|owed| owed.entries.keys())
            .map(|broker| broker.0.to_string())
            .collect();
        let text = format!("broker {} has yet to write its markers", brokers.join(", "));
        ("await-brokers", None, text)
    } else if entry.state == TxnState::Ongoing {
        let at_ms = deadline_ms(entry).unwrap_or(now_ms);
        let text = if at_ms < now_ms {
            "it is past its timeout: the next pass of the reaper aborts it".to_owned()
        } else {
            let after = (at_ms - now_ms).div_euclid(1000);
            format!("unless its client ends it, it is aborted by timeout in {after} s")
        };
        ("abort-by-timeout", Some(at_ms), text)
    } else {
        let text = "nothing is open; the id is forgotten when nobody has used it for long";
        ("expire", None, text.to_owned())
    };
    Next {
        action,
        at_ms,
        text,
    }
}

fn etag(entry: &TxnEntry) -> String {
    // Partitions and groups are added within a millisecond, too.
    let partitions: usize = entry.partitions.values().map(BTreeSet::len).sum();
    format!(
        "\"{}-{}-{}-{}-{}-{}-{}-{}\"",
        entry.pid.0,
        entry.epoch.0,
        entry.txn_seq,
        entry.state.name(),
        entry.last_update_ms,
        partitions,
        entry.groups.len(),
        entry.owed.len()
    )
}

/// A slot of which nothing is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct SlotGapView {
    /// Its number.
    pub(crate) slot: u32,
    /// `loading` passes; `damaged` has to be repaired; `elsewhere`: another broker has it.
    #[schema(value_type = String)]
    pub(crate) state: &'static str,
}

impl From<SlotGap> for SlotGapView {
    fn from(gap: SlotGap) -> Self {
        let state = match gap.state {
            SlotState::Loading => "loading",
            SlotState::Damaged => "damaged",
            SlotState::Elsewhere => "elsewhere",
        };
        Self {
            slot: gap.slot,
            state,
        }
    }
}

/// A page of transactional ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TransactionList {
    #[serde(flatten)]
    pub(crate) source: Source,
    /// How many ids the filters let through, on all pages.
    pub(crate) matched: usize,
    /// The same by state.
    pub(crate) by_state: BTreeMap<String, usize>,
    /// Those of this page.
    pub(crate) transactions: Vec<Transaction>,
    /// Asks for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page_token: Option<String>,
    /// Slots whose ids are not in the list.
    pub(crate) missing_slots: Vec<SlotGapView>,
}

/// A partition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PartitionState {
    /// The topic.
    pub(crate) topic: String,
    /// The partition.
    pub(crate) partition: i32,
    /// Whether the transaction is open there: its first record is durable, its marker is not.
    pub(crate) open: bool,
    /// Offset of its first record there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_offset: Option<i64>,
    /// Whether readers of committed records wait there because of this transaction.
    pub(crate) holds_last_stable_offset: bool,
    /// Last stable offset of the partition.
    pub(crate) last_stable_offset: i64,
    /// High watermark of the partition.
    pub(crate) high_watermark: i64,
}

/// A partition of a transaction that can't be shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct MissingPartition {
    /// The topic.
    pub(crate) topic: String,
    /// The partition.
    pub(crate) partition: i32,
    /// Why not.
    pub(crate) reason: String,
}

/// Offsets that wait for the end of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct StagedGroup {
    /// The group.
    pub(crate) group: String,
    /// How many offsets; absent where that can't be said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) offsets: Option<usize>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// A transactional id with what it does elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TransactionDetail {
    #[serde(flatten)]
    pub(crate) source: Source,
    #[serde(flatten)]
    pub(crate) transaction: Transaction,
    /// Its partitions as their leader sees them; at most 1,000.
    pub(crate) partition_states: Vec<PartitionState>,
    /// Those that can't be shown.
    pub(crate) partitions_missing: Vec<MissingPartition>,
    /// What it has staged.
    pub(crate) staged: Vec<StagedGroup>,
}

/// One transition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HistoryEntry {
    /// When, ms since the Unix epoch.
    pub(crate) at_ms: i64,
    /// The same, RFC 3339.
    pub(crate) at: String,
    /// The state before.
    #[schema(value_type = String)]
    pub(crate) from: &'static str,
    /// The state afterwards.
    #[schema(value_type = String)]
    pub(crate) to: &'static str,
    /// `client`, `new-session`, `reaper`, `admin`, `finished` or `expired`.
    pub(crate) cause: String,
    /// Producer id afterwards.
    pub(crate) producer_id: i64,
    /// Producer epoch afterwards.
    pub(crate) producer_epoch: i16,
    /// Number of the last transaction.
    pub(crate) txn_seq: u64,
    /// Who asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client: Option<ClientView>,
    /// Partitions of the transaction.
    pub(crate) partitions: Vec<TopicPartitions>,
    /// Groups of it.
    pub(crate) groups: Vec<String>,
    /// Whether transitions before this one are not kept.
    pub(crate) gap_before: bool,
}

impl HistoryEntry {
    /// A line behind another one of the same id.
    pub(crate) fn of(line: &HistoryLine, before: Option<&HistoryLine>) -> Self {
        let partitions = line.partitions.iter().map(|topic| TopicPartitions {
            topic: topic.topic.clone(),
            partitions: topic.partitions.clone(),
        });
        Self {
            at_ms: line.ts,
            at: rfc3339(line.ts),
            from: line.from.name(),
            to: line.to.name(),
            cause: line.cause.clone(),
            producer_id: line.pid,
            producer_epoch: line.epoch,
            txn_seq: line.txn_seq,
            client: line.client.as_ref().map(|client| ClientView {
                id: client.id.clone(),
                address: client.address.clone(),
                software: client.software.clone(),
            }),
            partitions: partitions.collect(),
            groups: line.groups.clone(),
            gap_before: is_gap(line, before),
        }
    }
}

/// Leaves each transition once. Complete* is in force before it is written: a crash in between has
/// it done, and its line written, again.
pub(crate) fn once(lines: &mut Vec<HistoryLine>) {
    let step = |line: &HistoryLine| (line.from, line.to, line.pid, line.epoch, line.txn_seq);
    lines.dedup_by(|line, before| line.from.prepared().is_some() && step(line) == step(before));
}

/// Whether a line can't follow another one. A new life of an id that had expired is no gap.
fn is_gap(line: &HistoryLine, before: Option<&HistoryLine>) -> bool {
    let Some(before) = before else {
        return line.from != TxnState::Empty;
    };
    let reborn = before.cause == "expired" && line.from == TxnState::Empty;
    before.to != line.from && !reborn
}

/// What became of an id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct History {
    #[serde(flatten)]
    pub(crate) source: Source,
    /// The id.
    pub(crate) transactional_id: String,
    /// Transitions, oldest first; the newest if there are more than were asked for.
    pub(crate) transitions: Vec<HistoryEntry>,
    /// Whether older ones were left out.
    pub(crate) truncated: bool,
    /// Asks for the page of those before; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page_token: Option<String>,
    /// Lines and files of the slot that can't be read: a crash tears the end of a file.
    pub(crate) unreadable: usize,
    /// Transitions of any id that were not kept since the process began.
    pub(crate) lost: u64,
}

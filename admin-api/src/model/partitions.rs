//! A partition: who holds its last stable offset, and its producers.

use coordinator::machine::producer::{BatchMetadata, ProducerEntry};
use serde::Serialize;
use utoipa::ToSchema;

use super::transactions::ClientView;
use super::{Next, SlotGapView, Source};

/// A transaction that is open on a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OpenTxn {
    /// Its producer.
    pub(crate) producer_id: i64,
    /// The producer's epoch on the partition.
    pub(crate) producer_epoch: i16,
    /// Offset of its first record there.
    pub(crate) first_offset: i64,
    /// Timestamp of its last record there, ms since the Unix epoch.
    pub(crate) last_timestamp_ms: i64,
    /// `ongoing`: its client may still end it. `deciding`: its marker is being written. `queued`:
    /// its marker is queued for a broker. `hanging`: nobody will ever end it. `unknown`: its
    /// coordinator can't be asked.
    #[schema(value_type = String)]
    pub(crate) standing: &'static str,
    /// Its transactional id, where the coordinator knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transactional_id: Option<String>,
    /// Kafka's name of its state there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) state: Option<&'static str>,
    /// When it began, ms since the Unix epoch, where the coordinator knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) start_ms: Option<i64>,
    /// The same, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<String>,
    /// For how long it has been open, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_ms: Option<i64>,
    /// Its timeout, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_ms: Option<i32>,
    /// Who asked last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client: Option<ClientView>,
    /// What happens next by itself.
    pub(crate) next: Next,
}

/// Something that can be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Remedy {
    /// What it does, for people.
    pub(crate) text: String,
    /// The request that does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<String>,
    /// The body of the request, with WHY for what the audit log is to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
    /// The command that does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
}

/// What readers of committed records see of a partition, and why not more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LsoView {
    #[serde(flatten)]
    pub(crate) source: Source,
    /// The topic.
    pub(crate) topic: String,
    /// Its id.
    pub(crate) topic_id: String,
    /// The partition.
    pub(crate) partition: i32,
    /// Epoch of its leader.
    pub(crate) leader_epoch: u32,
    /// First offset.
    pub(crate) log_start_offset: i64,
    /// Readers of committed records see what is below this.
    pub(crate) last_stable_offset: i64,
    /// Other readers see what is below this.
    pub(crate) high_watermark: i64,
    /// Offsets that readers of committed records don't see yet. Markers have offsets too.
    pub(crate) held_back: i64,
    /// In one sentence, who holds the last stable offset, since when, and what happens next.
    pub(crate) summary: String,
    /// The transaction that holds it: the one that began first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<OpenTxn>,
    /// What can be done about it.
    pub(crate) remedies: Vec<Remedy>,
    /// How many transactions are open.
    pub(crate) open_count: usize,
    /// The open transactions in order of first offsets; at most 1,000.
    pub(crate) open_transactions: Vec<OpenTxn>,
    /// Slots of transactional ids that can't be asked.
    pub(crate) missing_slots: Vec<SlotGapView>,
}

/// A batch that a producer has appended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BatchView {
    /// Sequence of its first record.
    pub(crate) first_sequence: i32,
    /// Sequence of its last record.
    pub(crate) last_sequence: i32,
    /// Offset of its first record.
    pub(crate) base_offset: i64,
    /// Offset of its last record.
    pub(crate) last_offset: i64,
    /// Its largest timestamp, ms.
    pub(crate) timestamp_ms: i64,
}

/// What a partition knows of a producer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Producer {
    /// Producer id.
    pub(crate) producer_id: i64,
    /// Highest epoch that was seen.
    pub(crate) producer_epoch: i16,
    /// The batches by which a repeat is told, oldest first; at most 5.
    pub(crate) window: Vec<BatchView>,
    /// Sequence of the last record, -1 for none.
    pub(crate) last_sequence: i32,
    /// Timestamp of the last batch, ms.
    pub(crate) last_timestamp_ms: i64,
    /// When it last appended, ms since the Unix epoch.
    pub(crate) last_append_ms: i64,
    /// When it counts as unknown, ms since the Unix epoch; never with an open transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_ms: Option<i64>,
    /// First offset of its open transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current_txn_start_offset: Option<i64>,
    /// Coordinator epoch of its last marker, -1 for none.
    pub(crate) coordinator_epoch: i32,
    /// Number of the last transaction that a marker ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_ended_txn_seq: Option<u64>,
    /// Whether that was committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_ended_committed: Option<bool>,
}

impl Producer {
    /// An entry for people; `expiration_ms` is `producer.id.expiration.ms`.
    pub(crate) fn of(producer_id: i64, entry: &ProducerEntry, expiration_ms: i64) -> Self {
        let open = entry.current_txn_first_offset;
        let expires_ms = entry.last_append_ms.saturating_add(expiration_ms);
        Self {
            producer_id,
            producer_epoch: entry.epoch.0,
            window: entry.window.batches().iter().map(BatchView::from).collect(),
            last_sequence: entry.window.last_seq().map_or(-1, |sequence| sequence.0),
            last_timestamp_ms: entry.last_timestamp,
            last_append_ms: entry.last_append_ms,
            expires_ms: open.is_none().then_some(expires_ms),
            current_txn_start_offset: open,
            coordinator_epoch: entry.coordinator_epoch,
            last_ended_txn_seq: entry.last_marker.map(|marker| marker.txn_seq),
            last_ended_committed: entry.last_marker.map(|marker| marker.commit),
        }
    }
}

/// The producers of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Producers {
    #[serde(flatten)]
    pub(crate) source: Source,
    /// The topic.
    pub(crate) topic: String,
    /// The partition.
    pub(crate) partition: i32,
    /// How many producers it knows.
    pub(crate) matched: usize,
    /// Those of this page, in order of their ids.
    pub(crate) producers: Vec<Producer>,
    /// Asks for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page_token: Option<String>,
}

impl From<&BatchMetadata> for BatchView {
    fn from(batch: &BatchMetadata) -> Self {
        Self {
            first_sequence: batch.first_seq.0,
            last_sequence: batch.last_seq.0,
            base_offset: batch.base_offset,
            last_offset: batch.last_offset(),
            timestamp_ms: batch.timestamp,
        }
    }
}

//! Files that brokers write for each other.

use coordinator::machine::producer::id_block::BLOCK_LEN;
use coordinator::service::cluster::{Found, QueuedMarkers};
use coordinator::volume::format::{FencesFile, IdBlockFile};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Source, TopicPartitions, age};

/// A producer that is refused everywhere below an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FenceEntry {
    /// The producer.
    pub(crate) producer_id: i64,
    /// The lowest epoch that is not refused.
    pub(crate) producer_epoch: i16,
    /// When it was last raised or used, ms since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seen_ms: Option<i64>,
}

/// The fences that one broker has published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FenceFile {
    /// The broker.
    pub(crate) broker: i32,
    /// Why the file can't be read; absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// How many fences it has.
    pub(crate) count: usize,
    /// Those of this page, by producer.
    pub(crate) fences: Vec<FenceEntry>,
}

/// The fences of every broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fences {
    #[serde(flatten)]
    pub(crate) source: Source,
    /// One file a broker.
    pub(crate) brokers: Vec<FenceFile>,
    /// Asks for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page_token: Option<String>,
}

impl FenceFile {
    /// A file for people, with the fences of the producers `shown`.
    pub(crate) fn of(found: &Found<FencesFile>, shown: impl Iterator<Item = i64>) -> Self {
        let broker = found.broker.0;
        let file = match &found.content {
            Ok(file) => file,
            Err(error) => {
                return Self {
                    broker,
                    error: Some(error.clone()),
                    count: 0,
                    fences: Vec::new(),
                };
            }
        };
        let fences = shown.filter_map(|producer_id| {
            Some(FenceEntry {
                producer_id,
                producer_epoch: *file.fences.get(&producer_id)?,
                seen_ms: file.seen_ms.get(&producer_id).copied(),
            })
        });
        Self {
            broker,
            error: None,
            count: file.fences.len(),
            fences: fences.collect(),
        }
    }
}

/// Markers that a broker is to write, or has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MarkerEntry {
    /// The broker that is to write them.
    pub(crate) to: i32,
    /// The producer.
    pub(crate) producer_id: i64,
    /// The epoch of its records.
    pub(crate) record_epoch: i16,
    /// Whether the broker has confirmed them.
    pub(crate) done: bool,
    /// Why the entry can't be read; absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The transactional id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transactional_id: Option<String>,
    /// The epoch that the markers carry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) marker_epoch: Option<i16>,
    /// Number of the transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) txn_seq: Option<u64>,
    /// Commit, or abort.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) commit: Option<bool>,
    /// Where markers are to be written.
    pub(crate) partitions: Vec<TopicPartitions>,
    /// Groups whose offsets are to be decided.
    pub(crate) groups: Vec<String>,
    /// For how long it has been queued, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_ms: Option<i64>,
}

impl MarkerEntry {
    /// An entry for people.
    pub(crate) fn of(entry: QueuedMarkers, now_ms: i64) -> Self {
        let mut shown = Self {
            to: entry.to.0,
            producer_id: entry.pid.0,
            record_epoch: entry.epoch.0,
            done: entry.done.is_some(),
            error: None,
            transactional_id: None,
            marker_epoch: None,
            txn_seq: entry.done,
            commit: None,
            partitions: Vec::new(),
            groups: Vec::new(),
            age_ms: None,
        };
        match entry.content {
            Err(error) => shown.error = Some(error),
            Ok(file) => {
                shown.transactional_id = Some(file.transactional_id);
                shown.marker_epoch = Some(file.producer_epoch);
                shown.txn_seq = shown.txn_seq.or(file.txn_seq);
                shown.commit = Some(file.commit);
                let partitions = file.partitions.into_iter().map(|topic| TopicPartitions {
                    topic: topic.topic,
                    partitions: topic.partitions,
                });
                shown.partitions = partitions.collect();
                shown.groups = file.groups;
                shown.age_ms = file.enqueued_ms.map(|at_ms| age(at_ms, now_ms));
            }
        }
        shown
    }
}

/// The queues of every broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MarkerQueue {
    #[serde(flatten)]
    pub(crate) source: Source,
    /// Entries that wait to be written.
    pub(crate) waiting: usize,
    /// Entries that are written and not yet taken note of.
    pub(crate) confirmed: usize,
    /// Entries that are there and not shown.
    pub(crate) not_shown: usize,
    /// Those of this page, by broker and producer.
    pub(crate) entries: Vec<MarkerEntry>,
    /// Asks for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page_token: Option<String>,
}

/// The producer ids of a broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IdBlock {
    /// The broker.
    pub(crate) broker: i32,
    /// Why the file can't be read; absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Its first producer id.
    pub(crate) first_producer_id: i64,
    /// The first that is not reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_producer_id: Option<i64>,
    /// How many are reserved; those of a block that was not used up are lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reserved: Option<i64>,
    /// Ids that are reserved at a time.
    pub(crate) block_length: i64,
}

/// The producer ids of every broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ProducerIds {
    #[serde(flatten)]
    pub(crate) source: Source,
    /// One file a broker.
    pub(crate) brokers: Vec<IdBlock>,
}

impl From<Found<IdBlockFile>> for IdBlock {
    fn from(found: Found<IdBlockFile>) -> Self {
        let broker = found.broker.0;
        let first = (i64::from(broker) + 1).saturating_mul(1 << 40);
        let (reserved, error) = match found.content {
            Ok(file) => (Some(file.next_block), None),
            Err(error) => (None, Some(error)),
        };
        Self {
            broker,
            error,
            first_producer_id: first,
            next_producer_id: reserved.map(|reserved| first.saturating_add(reserved)),
            reserved,
            block_length: BLOCK_LEN,
        }
    }
}

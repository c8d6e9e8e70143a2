//! `txn_state/slot-<n>.json`: the transactional ids of one slot, and how an entry of the file and
//! [`TxnEntry`] become each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use store_adapter::fault::{Fault, planted};
use store_adapter::ids::{BrokerId, ProducerEpoch, ProducerId};
use uuid::Uuid;

use super::{Extra, Format, FormatError, broker_name};
use crate::machine::txn::{
    Client, Groups, Owed, OwedEntry, TIMEOUT_DEFAULT_MS, TopicIds, TopicPartitions, TxnEntry,
    TxnState,
};

/// What most fields of the file are shorter than, bytes.
const FIELD_BYTES: usize = 512;

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TxnSlotFile {
    /// What is known of each transactional id.
    pub ids: BTreeMap<String, TxnEntryFile>,
}

/// Partitions of one topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicPartitionsEntry {
    /// The topic.
    pub topic: String,
    /// Its partitions.
    pub partitions: Vec<i32>,
}

/// Who asked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClientEntry {
    /// `client.id`.
    #[serde(default)]
    pub id: String,
    /// Address of the connection.
    #[serde(default)]
    pub address: String,
    /// Name and version of the client's software.
    #[serde(default)]
    pub software: String,
}

/// What one broker has not confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwedBrokerEntry {
    /// The broker.
    #[serde(with = "broker_name")]
    pub broker: BrokerId,
    /// Partitions whose marker is queued.
    pub partitions: Vec<TopicPartitionsEntry>,
    /// Groups whose decision is queued.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The ids of the topics.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topic_ids: BTreeMap<String, Uuid>,
}

/// What is owed of one decided transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwedFile {
    /// Its number.
    pub txn_seq: u64,
    /// The epoch of its markers.
    pub marker_epoch: i16,
    /// The decision.
    pub commit: bool,
    /// Its producer id, where it is not the entry's any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer_id: Option<i64>,
    /// The epoch of its records, where it is not that of the markers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_epoch: Option<i16>,
    /// By broker.
    pub entries: Vec<OwedBrokerEntry>,
}

/// One transactional id.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TxnEntryFile {
    /// Producer id.
    pub pid: i64,
    /// Producer epoch.
    pub epoch: i16,
    /// Partitions of the open or decided transaction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<TopicPartitionsEntry>,
    /// When it began, ms since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ongoing_since_ms: Option<i64>,
    /// Its timeout, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction_timeout_ms: Option<i32>,
    /// The state.
    #[serde(default, skip_serializing_if = "is_empty_state", with = "state_name")]
    pub state: TxnState,
    /// Groups of the transaction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Number of the last transaction.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub txn_seq: u64,
    /// The last change, ms since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_ms: Option<i64>,
    /// Who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientEntry>,
    /// The slot's epoch at the last decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator_epoch: Option<i32>,
    /// Transaction protocol of the last request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_version: Option<i8>,
    /// The epoch before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_epoch: Option<i16>,
    /// The producer id before the last rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev_pid: Option<i64>,
    /// The producer id that Complete* takes over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_pid: Option<i64>,
    /// What other brokers have not confirmed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owed: Vec<OwedFile>,
    /// In Prepare* the epoch of the records, where it is not that of the markers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_epoch: Option<i16>,
    /// The ids that topics had when their partitions were added.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topic_ids: BTreeMap<String, Uuid>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_empty_state(state: &TxnState) -> bool {
    *state == TxnState::Empty
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// A state by Kafka's name.
pub(super) mod state_name {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::machine::txn::TxnState;

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(in super::super) fn serialize<S: Serializer>(
        state: &TxnState,
        out: S,
    ) -> Result<S::Ok, S::Error> {
        out.serialize_str(state.name())
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        input: D,
    ) -> Result<TxnState, D::Error> {
        let name = String::deserialize(input)?;
        TxnState::from_name(&name)
            .ok_or_else(|| D::Error::custom(format!("{name:?} is no state of a transaction")))
    }
}

impl Format for TxnSlotFile {
    const LEN_MAX: u64 = 64 << 20;

    fn check(&self) -> Result<(), FormatError> {
        for (id, entry) in &self.ids {
            if let Some(why) = entry.contradiction() {
                return Err(FormatError(format!("{id:?}: {why}")));
            }
        }
        Ok(())
    }
}

impl TxnEntryFile {
    /// The entry as a field of the file of its slot: see [`SlotText`](super::SlotText).
    ///
    /// # Errors
    /// What a reader would take for damage.
    pub fn field(&self, id: &str) -> Result<Vec<u8>, FormatError> {
        if let Some(why) = self.contradiction() {
            return Err(FormatError(why));
        }
        let mut field = Vec::with_capacity(FIELD_BYTES);
        field.push(b',');
        serde_json::to_writer(&mut field, id)
            .and_then(|()| {
                field.push(b':');
                serde_json::to_writer(&mut field, self)
            })
            .map_err(|error| FormatError(error.to_string()))?;
        Ok(field)
    }

    fn contradiction(&self) -> Option<String> {
        if self.pid < 0 || self.epoch < 0 {
            return Some(format!("producer {}, epoch {}", self.pid, self.epoch));
        }
        let negative = |list: &[TopicPartitionsEntry]| {
            let mut all = list.iter().flat_map(|topic| &topic.partitions);
            all.any(|partition| *partition < 0)
        };
        if negative(&self.partitions) {
            return Some("a negative partition".to_owned());
        }
        let prepared = self.state.prepared().is_some();
        if !prepared && (self.next_pid.is_some() || self.record_epoch.is_some()) {
            return Some(format!(
                "{}, with what only Prepare* has",
                self.state.name()
            ));
        }
        let pids = self.next_pid.iter().chain(&self.prev_pid);
        if let Some(pid) = pids.copied().find(|pid| *pid < 0 || *pid == self.pid) {
            return Some(format!("producer {pid} beside {}", self.pid));
        }
        let begun = prepared || self.state == TxnState::Ongoing;
        if begun && !self.owed.is_empty() && !planted(Fault::GateLeftOut) {
            return Some(format!("{}, though one before is owed", self.state.name()));
        }
        for owed in &self.owed {
            if owed.txn_seq > self.txn_seq || owed.marker_epoch < 0 || owed.entries.is_empty() {
                return Some(format!("transaction {} can't be owed", owed.txn_seq));
            }
            if owed.entries.iter().any(|entry| negative(&entry.partitions)) {
                return Some("a negative partition is owed".to_owned());
            }
        }
        None
    }

    /// The entry of a transactional id.
    pub fn of(entry: &TxnEntry, extra: &Extra) -> Self {
        Self {
            pid: entry.pid.0,
            epoch: entry.epoch.0,
            partitions: list(&entry.partitions),
            ongoing_since_ms: entry.start_ms,
            transaction_timeout_ms: Some(entry.timeout_ms),
            state: entry.state,
            groups: entry.groups.iter().map(ToString::to_string).collect(),
            txn_seq: entry.txn_seq,
            last_update_ms: Some(entry.last_update_ms),
            client: entry.client.as_ref().map(ClientEntry::of),
            coordinator_epoch: entry.coordinator_epoch,
            txn_version: (entry.txn_version != 0).then_some(entry.txn_version),
            last_epoch: entry.last_epoch.map(|epoch| epoch.0),
            prev_pid: entry.prev_pid.map(|pid| pid.0),
            next_pid: entry.next_pid.map(|pid| pid.0),
            owed: entry
                .owed
                .iter()
                .map(|owed| OwedFile::of(owed, entry.pid))
                .collect(),
            record_epoch: entry.record_epoch.map(|epoch| epoch.0),
            topic_ids: ids(&entry.topic_ids),
            extra: extra.clone(),
        }
    }

    /// The state of a transactional id, and what is to be written back beside it. What an older
    /// file does not date is dated `now_ms`, ms since the Unix epoch: it expires later.
    pub fn into_entry(self, now_ms: i64) -> (TxnEntry, Extra) {
        let timeout = self.transaction_timeout_ms.filter(|timeout| *timeout > 0);
        let pid = ProducerId(self.pid);
        let entry = TxnEntry {
            pid,
            epoch: ProducerEpoch(self.epoch),
            last_epoch: self.last_epoch.map(ProducerEpoch),
            record_epoch: self.record_epoch.map(ProducerEpoch),
            prev_pid: self.prev_pid.map(ProducerId),
            next_pid: self.next_pid.map(ProducerId),
            state: self.state,
            partitions: sets(self.partitions),
            topic_ids: names(self.topic_ids),
            groups: group_set(self.groups),
            start_ms: self.ongoing_since_ms,
            timeout_ms: timeout.unwrap_or(TIMEOUT_DEFAULT_MS),
            txn_seq: self.txn_seq,
            last_update_ms: self.last_update_ms.unwrap_or(now_ms),
            client: self.client.map(Client::from),
            coordinator_epoch: self.coordinator_epoch,
            txn_version: self.txn_version.unwrap_or(0),
            owed: self
                .owed
                .into_iter()
                .map(|owed| owed.into_owed(pid))
                .collect(),
        };
        (entry, self.extra)
    }
}

impl ClientEntry {
    pub(super) fn of(client: &Client) -> Self {
        Self {
            id: client.id.to_string(),
            address: client.address.to_string(),
            software: client.software.to_string(),
        }
    }
}

impl From<ClientEntry> for Client {
    fn from(client: ClientEntry) -> Self {
        Self {
            id: client.id.into(),
            address: client.address.into(),
            software: client.software.into(),
        }
    }
}

impl OwedFile {
    fn of(owed: &Owed, pid: ProducerId) -> Self {
        let entries = owed.entries.iter().map(|(broker, entry)| OwedBrokerEntry {
            broker: *broker,
            partitions: list(&entry.partitions),
            groups: entry.groups.iter().map(ToString::to_string).collect(),
            topic_ids: ids(&entry.topic_ids),
        });
        Self {
            txn_seq: owed.txn_seq,
            marker_epoch: owed.marker_epoch.0,
            commit: owed.commit,
            producer_id: (owed.producer_id != pid).then_some(owed.producer_id.0),
            record_epoch: (owed.record_epoch != owed.marker_epoch).then_some(owed.record_epoch.0),
            entries: entries.collect(),
        }
    }

    fn into_owed(self, pid: ProducerId) -> Owed {
        let entries = self.entries.into_iter().map(|entry| {
            let owed = OwedEntry {
                partitions: sets(entry.partitions),
                topic_ids: names(entry.topic_ids),
                groups: group_set(entry.groups),
            };
            (entry.broker, owed)
        });
        Owed {
            txn_seq: self.txn_seq,
            producer_id: self.producer_id.map_or(pid, ProducerId),
            record_epoch: ProducerEpoch(self.record_epoch.unwrap_or(self.marker_epoch)),
            marker_epoch: ProducerEpoch(self.marker_epoch),
            commit: self.commit,
            entries: entries.collect(),
        }
    }
}

/// Partitions as files list them.
pub(super) fn list(partitions: &TopicPartitions) -> Vec<TopicPartitionsEntry> {
    let topics = partitions.iter();
    topics
        .map(|(topic, partitions)| TopicPartitionsEntry {
            topic: topic.to_string(),
            partitions: partitions.iter().copied().collect(),
        })
        .collect()
}

/// Partitions as a machine has them. A topic or partition that is listed twice counts once.
pub(super) fn sets(list: Vec<TopicPartitionsEntry>) -> TopicPartitions {
    let mut sets = TopicPartitions::new();
    for entry in list {
        let known: &mut BTreeSet<i32> = sets.entry(Arc::from(entry.topic)).or_default();
        known.extend(entry.partitions);
    }
    sets
}

pub(super) fn ids(known: &TopicIds) -> BTreeMap<String, Uuid> {
    known
        .iter()
        .map(|(topic, id)| (topic.to_string(), *id))
        .collect()
}

pub(super) fn names(ids: BTreeMap<String, Uuid>) -> TopicIds {
    ids.into_iter()
        .map(|(topic, id)| (topic.into(), id))
        .collect()
}

pub(super) fn group_set(groups: Vec<String>) -> Groups {
    groups.into_iter().map(Arc::from).collect()
}

#[cfg(test)]
#[path = "txn_slot_tests.rs"]
mod tests;

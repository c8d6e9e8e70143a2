//! `__consumer_offsets/<group>.json`: the offsets of one group, committed and staged, and how the
//! file and [`OffsetTable`] become each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use store_adapter::fault::{Fault, planted};
use store_adapter::ids::{ProducerEpoch, ProducerId};
use uuid::Uuid;

use super::{Extra, Format, FormatError};
use crate::machine::group::offsets::{
    Applied, BYTES_MAX, Committed, OffsetTable, StagedOffset, StagedTxn, TableParts, TxnNumber,
};

/// A map by `topic/partition`. A topic's name may hold no `/`; keys are split from the right.
type ByKey<T> = BTreeMap<String, T>;

/// The file. A deleted group leaves one that has `group` and `deleted` only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupOffsetsFile {
    /// Committed offsets; absent only of a deleted group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offsets: Option<ByKey<i64>>,
    /// Metadata, where there is some.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: ByKey<String>,
    /// Leader epoch of the record before the offset, where it is known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub leader_epoch: ByKey<i32>,
    /// When it was committed, ms since the Unix epoch.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub commit_ts: ByKey<i64>,
    /// When it expires, where the client said so, ms since the Unix epoch.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expire_ts: ByKey<i64>,
    /// A stamp of other writers; kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Value>,
    /// The group; absent on older volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The group was deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// The next commit number; absent on older volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Number of the commit of each offset.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub offset_seq: ByKey<u64>,
    /// Offsets of open transactions, by producer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub staged: Vec<StagedEntry>,
    /// The last decided transaction of each producer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub applied_txn: BTreeMap<String, u64>,
    /// The epoch of its records; absent on older volumes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub applied_epoch: BTreeMap<String, i16>,
    /// The ids that topics had when offsets were committed to them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topic_ids: BTreeMap<String, Uuid>,
    /// Protocol type of the group's last members; absent when it never had any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_type: Option<String>,
    /// Since when the group has no members, ms since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_since_ms: Option<i64>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The offsets of one open transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StagedEntry {
    /// Its producer.
    pub producer_id: i64,
    /// The producer's epoch.
    pub producer_epoch: i16,
    /// Its transactional id.
    pub transactional_id: String,
    /// Its number within the transactional id.
    pub txn_seq: u64,
    /// The offsets.
    pub offsets: ByKey<StagedOffsetEntry>,
}

/// One staged offset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StagedOffsetEntry {
    /// The offset.
    pub offset: i64,
    /// Metadata, where there is some.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub metadata: String,
    /// Leader epoch of the record before the offset, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_epoch: Option<i32>,
    /// Number of its commit within the group.
    pub seq: u64,
}

/// What a file has that a table does not: written back as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kept {
    /// The stamp of other writers.
    pub fence: Option<Value>,
    /// Unknown fields.
    pub extra: Extra,
}

impl Format for GroupOffsetsFile {
    // What a table may become, with room for what other writers add.
    const LEN_MAX: u64 = 2 * BYTES_MAX as u64;

    fn check(&self) -> Result<(), FormatError> {
        self.contradiction()
            .map_or(Ok(()), |why| Err(FormatError(why)))
    }
}

impl GroupOffsetsFile {
    fn contradiction(&self) -> Option<String> {
        let Some(offsets) = &self.offsets else {
            let bare = Self {
                group: self.group.clone(),
                deleted: true,
                extra: self.extra.clone(),
                ..Self::default()
            };
            return (*self != bare).then(|| "no offsets, and not a deleted group".to_owned());
        };
        if self.deleted {
            return Some("a deleted group with offsets".to_owned());
        }
        if let Some(key) = offsets.keys().find(|key| split(key).is_none()) {
            return Some(format!("{key:?} is not topic/partition"));
        }
        let beside = self.metadata.keys().chain(self.leader_epoch.keys());
        let beside = beside
            .chain(self.commit_ts.keys())
            .chain(self.expire_ts.keys());
        let mut beside = beside.chain(self.offset_seq.keys());
        if let Some(key) = beside.find(|key| !offsets.contains_key(*key)) {
            return Some(format!("something of {key:?}, but no offset"));
        }
        let next = self.seq.unwrap_or(0);
        if let Some((key, seq)) = self.offset_seq.iter().find(|(_, seq)| **seq >= next) {
            return Some(format!(
                "offset {key:?} has number {seq}, the next is {next}"
            ));
        }
        self.staged_contradiction(next).or_else(|| {
            let bad = |text: &&String| producer_id(text).is_none();
            let bad = self.applied_txn.keys().find(bad)?;
            Some(format!("{bad:?} is not a producer id"))
        })
    }

    fn staged_contradiction(&self, next: u64) -> Option<String> {
        let mut seen = BTreeSet::new();
        for txn in &self.staged {
            let id = txn.producer_id;
            if id < 0 || txn.producer_epoch < 0 {
                return Some(format!(
                    "staged: producer {id}, epoch {}",
                    txn.producer_epoch
                ));
            }
            if !seen.insert(id) {
                return Some(format!("producer {id} has staged twice"));
            }
            let number = TxnNumber {
                epoch: ProducerEpoch(txn.producer_epoch),
                txn_seq: txn.txn_seq,
            };
            let applied = self.applied(&id.to_string(), 0);
            if applied.is_some_and(|applied| applied.covers(number)) {
                return Some(format!("producer {id}: staged, though decided"));
            }
            for (key, staged) in &txn.offsets {
                if split(key).is_none() {
                    return Some(format!("{key:?} is not topic/partition"));
                }
                if staged.seq >= next {
                    return Some(format!("staged {key:?} has number {}", staged.seq));
                }
            }
        }
        None
    }

    fn applied(&self, id: &str, touched_ms: i64) -> Option<Applied> {
        Some(Applied {
            epoch: self.applied_epoch.get(id).copied().map(ProducerEpoch),
            txn_seq: *self.applied_txn.get(id)?,
            touched_ms,
        })
    }

    /// The file of a group's table.
    pub fn of(group: &str, table: &OffsetTable, kept: &Kept) -> Self {
        let mut file = Self {
            group: Some(group.to_owned()),
            deleted: table.is_deleted(),
            extra: kept.extra.clone(),
            ..Self::default()
        };
        if file.deleted {
            return file;
        }
        let mut offsets = BTreeMap::new();
        for (topic, partition, committed) in flat(table.committed()) {
            let key = key(topic, partition);
            offsets.insert(key.clone(), committed.offset);
            if !committed.metadata.is_empty() {
                file.metadata
                    .insert(key.clone(), committed.metadata.to_string());
            }
            insert(&mut file.leader_epoch, &key, committed.leader_epoch);
            insert(&mut file.commit_ts, &key, committed.commit_ms);
            insert(&mut file.expire_ts, &key, committed.expire_ms);
            insert(&mut file.offset_seq, &key, committed.seq);
        }
        file.offsets = Some(offsets);
        file.fence.clone_from(&kept.fence);
        file.seq = Some(table.next_seq());
        let staged = table.staged().iter();
        file.staged = staged
            .filter(|_| !planted(Fault::StagedInMemory))
            .map(|(id, txn)| staged_entry(*id, txn))
            .collect();
        for (id, last) in table.applied() {
            let id = id.0.to_string();
            if let Some(epoch) = last.epoch {
                file.applied_epoch.insert(id.clone(), epoch.0);
            }
            file.applied_txn.insert(id, last.txn_seq);
        }
        let ids = table.topic_ids().iter();
        file.topic_ids = ids.map(|(topic, id)| (topic.to_string(), *id)).collect();
        file.protocol_type = table.protocol_type().map(ToString::to_string);
        file.empty_since_ms = table.empty_since_ms();
        file
    }

    /// The table, and what is to be written back beside it. What an older file does not date is
    /// dated `now_ms`, ms since the Unix epoch: it expires later, never earlier.
    pub fn into_table(self, now_ms: i64) -> (OffsetTable, Kept) {
        let ids = self.applied_txn.keys();
        let applied: Vec<(String, Applied)> = ids
            .filter_map(|id| Some((id.clone(), self.applied(id, now_ms)?)))
            .collect();
        let mut parts = TableParts {
            deleted: self.deleted,
            next_seq: self.seq.unwrap_or(0),
            protocol_type: self.protocol_type.map(Arc::from),
            empty_since_ms: self.empty_since_ms,
            ..TableParts::default()
        };
        let mut names = Names::default();
        let mut metadata = self.metadata;
        for (key, offset) in self.offsets.into_iter().flatten() {
            let Some((topic, partition)) = split(&key) else {
                continue;
            };
            let committed = Committed {
                offset,
                leader_epoch: self.leader_epoch.get(&key).copied(),
                metadata: metadata.remove(&key).unwrap_or_default().into(),
                commit_ms: Some(self.commit_ts.get(&key).copied().unwrap_or(now_ms)),
                expire_ms: self.expire_ts.get(&key).copied(),
                seq: self.offset_seq.get(&key).copied(),
            };
            let partitions = parts.committed.entry(names.get(topic)).or_default();
            partitions.insert(partition, committed);
        }
        for entry in self.staged {
            let id = ProducerId(entry.producer_id);
            parts.staged.insert(id, staged_txn(entry, &mut names));
        }
        for (id, applied) in applied {
            parts
                .applied
                .extend(producer_id(&id).map(|id| (id, applied)));
        }
        let ids = self.topic_ids.into_iter();
        parts.topic_ids = ids.map(|(topic, id)| (names.get(&topic), id)).collect();
        let kept = Kept {
            fence: self.fence,
            extra: self.extra,
        };
        (parts.into(), kept)
    }
}

/// One string for each topic.
#[derive(Debug, Default)]
struct Names(BTreeSet<Arc<str>>);

impl Names {
    fn get(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.0.insert(name.clone());
        name
    }
}

fn staged_entry(id: ProducerId, txn: &StagedTxn) -> StagedEntry {
    let offsets = flat(&txn.offsets).map(|(topic, partition, staged)| {
        let entry = StagedOffsetEntry {
            offset: staged.offset,
            metadata: staged.metadata.to_string(),
            leader_epoch: staged.leader_epoch,
            seq: staged.seq,
        };
        (key(topic, partition), entry)
    });
    StagedEntry {
        producer_id: id.0,
        producer_epoch: txn.producer_epoch.0,
        transactional_id: txn.transactional_id.clone(),
        txn_seq: txn.txn_seq,
        offsets: offsets.collect(),
    }
}

fn staged_txn(entry: StagedEntry, names: &mut Names) -> StagedTxn {
    let mut offsets: BTreeMap<Arc<str>, BTreeMap<i32, StagedOffset>> = BTreeMap::new();
    for (key, staged) in entry.offsets {
        let Some((topic, partition)) = split(&key) else {
            continue;
        };
        let offset = StagedOffset {
            offset: staged.offset,
            leader_epoch: staged.leader_epoch,
            metadata: staged.metadata.into(),
            seq: staged.seq,
        };
        let partitions = offsets.entry(names.get(topic)).or_default();
        partitions.insert(partition, offset);
    }
    StagedTxn {
        producer_epoch: ProducerEpoch(entry.producer_epoch),
        transactional_id: entry.transactional_id,
        txn_seq: entry.txn_seq,
        offsets,
    }
}

fn flat<T>(topics: &BTreeMap<Arc<str>, BTreeMap<i32, T>>) -> impl Iterator<Item = (&str, i32, &T)> {
    topics.iter().flat_map(|(topic, partitions)| {
        partitions
            .iter()
            .map(move |(partition, of)| (&**topic, *partition, of))
    })
}

fn insert<T>(map: &mut ByKey<T>, key: &str, value: Option<T>) {
    if let Some(value) = value {
        map.insert(key.to_owned(), value);
    }
}

fn key(topic: &str, partition: i32) -> String {
    format!("{topic}/{partition}")
}

/// Topic and partition of a key; `None` unless it is written as [`key`] writes it.
fn split(text: &str) -> Option<(&str, i32)> {
    let (topic, number) = text.rsplit_once('/')?;
    let partition: i32 = number.parse().ok()?;
    let canonical = partition >= 0 && partition.to_string() == number && !topic.is_empty();
    canonical.then_some((topic, partition))
}

fn producer_id(text: &str) -> Option<ProducerId> {
    let id: i64 = text.parse().ok()?;
    (id >= 0 && id.to_string() == text).then_some(ProducerId(id))
}

#[cfg(test)]
#[path = "group_offsets_tests.rs"]
mod tests;

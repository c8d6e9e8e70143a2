//! `producer-state.snapshot` and `txn-index.snapshot` of a partition, and how they and the machine
//! of producer state become each other.
//!
//! A snapshot describes durable state only and says up to where; it is used only if its last batch
//! is in the log with that CRC. A file of 0 bytes means that there is no snapshot. The index is
//! written before the producer state, so that a crash between the two leaves an index that covers
//! at least as much.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use store_adapter::ids::{LeaderEpoch, ProducerEpoch, ProducerId, Sequence};
use uuid::Uuid;

use super::{Format, FormatError};
use crate::machine::producer as machine;
use crate::machine::producer::{
    AbortedTxn, BatchMetadata, BatchProof, Image, LastMarker, WINDOW_LEN, Window,
};

/// The only version of both snapshots.
pub const SNAPSHOT_VERSION: u32 = 1;
const SNAPSHOT_LEN_MAX: u64 = 256 << 20;

/// The last batch that a snapshot covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastBatch {
    /// Its first offset.
    pub base_offset: i64,
    /// Its CRC-32C as stored.
    pub crc: u32,
}

/// The dedupe windows of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducerSnapshot {
    /// Always 1.
    pub version: u32,
    /// Producers, by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<ProducerEntry>,
    /// Offset behind the last batch that is covered. Absent in older volumes: not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_end_offset: Option<i64>,
    /// Leader epoch of the writer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_epoch: Option<u32>,
    /// The last batch that is covered; absent for an empty log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_batch: Option<LastBatch>,
    /// The topic that it is about; absent in older volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic_id: Option<Uuid>,
}

/// One producer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducerEntry {
    /// Producer id.
    pub producer_id: i64,
    /// Its epoch.
    pub epoch: i16,
    /// Its last batches, oldest first, at most five.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<RecentBatch>,
    /// Largest record timestamp of its last batch, ms.
    #[serde(default)]
    pub last_timestamp: i64,
    /// When its last batch was appended, ms; expiry counts from here.
    #[serde(default)]
    pub last_append_ms: i64,
    /// First offset of its open transaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_txn_first_offset: Option<i64>,
    /// Coordinator epoch of its last marker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator_epoch: Option<i32>,
    /// Its last numbered marker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_marker: Option<MarkerEntry>,
}

/// One remembered batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentBatch {
    /// First sequence.
    pub first_seq: i32,
    /// Last sequence.
    pub last_seq: i32,
    /// First offset.
    pub base_offset: i64,
    /// Last offset. Absent in older volumes: follows from the sequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_offset: Option<i64>,
    /// Largest record timestamp, ms.
    #[serde(default)]
    pub timestamp: i64,
    /// CRC-32C as stored.
    #[serde(default)]
    pub crc: u32,
}

/// The last marker of a producer on a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkerEntry {
    /// Producer epoch that it carries.
    pub epoch: i16,
    /// Transaction that it ended.
    pub txn_seq: u64,
    /// Commit, otherwise abort.
    pub commit: bool,
}

/// The open and aborted transactions of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxnIndexSnapshot {
    /// Always 1.
    pub version: u32,
    /// Open transactions, by first offset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<OpenEntry>,
    /// Aborted transactions, by last offset.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aborted: Vec<AbortedEntry>,
    /// Offset behind the last batch that is covered. Absent in older volumes: not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_end_offset: Option<i64>,
    /// Leader epoch of the writer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_epoch: Option<u32>,
    /// The last batch that is covered; absent for an empty log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_batch: Option<LastBatch>,
    /// The topic that it is about; absent in older volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic_id: Option<Uuid>,
}

/// One open transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenEntry {
    /// Producer id.
    pub producer_id: i64,
    /// Its first offset.
    pub first_offset: i64,
}

/// One aborted transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortedEntry {
    /// Producer id.
    pub producer_id: i64,
    /// Its first offset.
    pub first_offset: i64,
    /// Offset of its marker.
    pub last_offset: i64,
    /// Last stable offset behind its marker; absent in older volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_stable_offset: Option<i64>,
}

impl Format for ProducerSnapshot {
    const LEN_MAX: u64 = SNAPSHOT_LEN_MAX;

    fn check(&self) -> Result<(), FormatError> {
        check_head(self.version, self.log_end_offset, self.last_batch)?;
        let end = self.log_end_offset.unwrap_or(i64::MAX);
        let mut seen = BTreeSet::new();
        for entry in &self.entries {
            let id = entry.producer_id;
            check_entry(entry, end).map_err(|why| FormatError(format!("producer {id}: {why}")))?;
            if !seen.insert(id) {
                return Err(FormatError(format!("producer {id} is listed twice")));
            }
        }
        let open: Vec<i64> = open_offsets(&self.entries)
            .map(|(first, _)| first)
            .collect();
        if open.iter().collect::<BTreeSet<_>>().len() != open.len() {
            return Err(FormatError(
                "two transactions begin at one offset".to_owned(),
            ));
        }
        Ok(())
    }
}

impl Format for TxnIndexSnapshot {
    const LEN_MAX: u64 = SNAPSHOT_LEN_MAX;

    fn check(&self) -> Result<(), FormatError> {
        check_head(self.version, self.log_end_offset, self.last_batch)?;
        let end = self.log_end_offset.unwrap_or(i64::MAX);
        for open in &self.open {
            if open.producer_id < 0 || !(0..end).contains(&open.first_offset) {
                return Err(FormatError(format!(
                    "open transaction {open:?} is not in the log"
                )));
            }
        }
        let mut before = -1;
        for txn in &self.aborted {
            let ordered = before < txn.last_offset && txn.last_offset < end;
            let within = (0..txn.last_offset).contains(&txn.first_offset);
            if txn.producer_id < 0 || !ordered || !within {
                return Err(FormatError(format!(
                    "aborted transaction {txn:?} contradicts"
                )));
            }
            before = txn.last_offset;
        }
        Ok(())
    }
}

fn check_head(version: u32, end: Option<i64>, last: Option<LastBatch>) -> Result<(), FormatError> {
    if version != SNAPSHOT_VERSION {
        return Err(FormatError(format!("snapshot version {version}, not 1")));
    }
    match (end, last) {
        (Some(end), _) if end < 0 => Err(FormatError(format!("log_end_offset {end}"))),
        (Some(end), Some(last)) if !(0..end).contains(&last.base_offset) => {
            Err(FormatError(format!(
                "last batch at {} of a log that ends at {end}",
                last.base_offset
            )))
        }
        _ => Ok(()),
    }
}

fn check_entry(entry: &ProducerEntry, end: i64) -> Result<(), String> {
    if entry.producer_id < 0 || entry.epoch < 0 {
        return Err(format!("epoch {}", entry.epoch));
    }
    if entry.recent.len() > WINDOW_LEN {
        return Err(format!("{} batches in its window", entry.recent.len()));
    }
    if let Some(first) = entry.current_txn_first_offset
        && !(0..end).contains(&first)
    {
        return Err(format!(
            "its transaction begins at {first}, the log ends at {end}"
        ));
    }
    let mut before = -1;
    for batch in &entry.recent {
        let last_offset = last_offset(batch);
        let ordered = before < batch.base_offset && batch.base_offset <= last_offset;
        if batch.first_seq < 0 || batch.last_seq < 0 || !ordered || last_offset >= end {
            return Err(format!("batch {batch:?} contradicts"));
        }
        before = last_offset;
    }
    Ok(())
}

fn last_offset(batch: &RecentBatch) -> i64 {
    batch.last_offset.unwrap_or_else(|| {
        let records = (i64::from(batch.last_seq) - i64::from(batch.first_seq)) & 0x7fff_ffff;
        batch.base_offset.saturating_add(records)
    })
}

fn open_offsets(entries: &[ProducerEntry]) -> impl Iterator<Item = (i64, i64)> + '_ {
    entries
        .iter()
        .filter_map(|entry| Some((entry.current_txn_first_offset?, entry.producer_id)))
}

/// Who writes a snapshot, and of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    /// The epoch under which the partition is led.
    pub leader_epoch: LeaderEpoch,
    /// The partition's topic.
    pub topic_id: Uuid,
}

impl ProducerSnapshot {
    /// The producers of an image.
    pub fn of(image: &Image, writer: Writer) -> Self {
        Self {
            version: SNAPSHOT_VERSION,
            entries: image.entries.iter().map(write_entry).collect(),
            log_end_offset: Some(image.log_end_offset),
            leader_epoch: Some(writer.leader_epoch.0),
            last_batch: image.last_batch.map(write_proof),
            topic_id: Some(writer.topic_id),
        }
    }
}

impl TxnIndexSnapshot {
    /// The transactions of an image.
    pub fn of(image: &Image, writer: Writer) -> Self {
        let mut open: Vec<OpenEntry> = image
            .entries
            .iter()
            .filter_map(|(id, entry)| {
                Some(OpenEntry {
                    producer_id: id.0,
                    first_offset: entry.current_txn_first_offset?,
                })
            })
            .collect();
        open.sort_by_key(|txn| txn.first_offset);
        let aborted = image.aborted.iter().map(|txn| AbortedEntry {
            producer_id: txn.producer_id.0,
            first_offset: txn.first_offset,
            last_offset: txn.last_offset,
            last_stable_offset: txn.last_stable_offset,
        });
        Self {
            version: SNAPSHOT_VERSION,
            open,
            aborted: aborted.collect(),
            log_end_offset: Some(image.log_end_offset),
            leader_epoch: Some(writer.leader_epoch.0),
            last_batch: image.last_batch.map(write_proof),
            topic_id: Some(writer.topic_id),
        }
    }
}

fn write_proof(proof: BatchProof) -> LastBatch {
    LastBatch {
        base_offset: proof.base_offset,
        crc: proof.crc,
    }
}

fn write_entry((id, entry): (&ProducerId, &machine::ProducerEntry)) -> ProducerEntry {
    let recent = entry.window.batches().iter().map(|batch| RecentBatch {
        first_seq: batch.first_seq.0,
        last_seq: batch.last_seq.0,
        base_offset: batch.base_offset,
        last_offset: Some(batch.last_offset()),
        timestamp: batch.timestamp,
        crc: batch.crc,
    });
    ProducerEntry {
        producer_id: id.0,
        epoch: entry.epoch.0,
        recent: recent.collect(),
        last_timestamp: entry.last_timestamp,
        last_append_ms: entry.last_append_ms,
        current_txn_first_offset: entry.current_txn_first_offset,
        coordinator_epoch: Some(entry.coordinator_epoch).filter(|epoch| *epoch != -1),
        last_marker: entry.last_marker.map(|marker| MarkerEntry {
            epoch: marker.epoch.0,
            txn_seq: marker.txn_seq,
            commit: marker.commit,
        }),
    }
}

/// What two snapshots amount to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// State up to `image.log_end_offset`; replay goes on there.
    pub image: Image,
    /// Every batch here must be in the log, at its offset and with its CRC, before the image is
    /// used. One that lies below the log's start can't be looked up; the trim that removed it wrote
    /// a snapshot first.
    pub proofs: Vec<BatchProof>,
}

/// Puts the two snapshots of a partition together. `None` when they cannot be used, so that the
/// whole log is replayed: they do not say what they cover (older volumes), are about another
/// topic, or the index covers less than the producer state. Contradictions are damage.
pub fn restore(
    producers: &ProducerSnapshot,
    index: &TxnIndexSnapshot,
    topic_id: Uuid,
) -> Result<Option<Restored>, FormatError> {
    producers.check()?;
    index.check()?;
    let (Some(end), Some(index_end)) = (producers.log_end_offset, index.log_end_offset) else {
        return Ok(None);
    };
    let ours = Some(topic_id);
    if producers.topic_id != ours || index.topic_id != ours || index_end < end {
        return Ok(None);
    }
    if index_end == end {
        let of_producers: BTreeMap<i64, i64> = open_offsets(&producers.entries).collect();
        let of_index = index
            .open
            .iter()
            .map(|open| (open.first_offset, open.producer_id));
        if of_index.collect::<BTreeMap<_, _>>() != of_producers {
            return Err(FormatError(
                "the snapshots differ in open transactions".to_owned(),
            ));
        }
    }
    let aborted = index.aborted.iter().take_while(|txn| txn.last_offset < end);
    let image = Image {
        entries: producers.entries.iter().map(read_entry).collect(),
        aborted: aborted.map(read_aborted).collect(),
        log_end_offset: end,
        last_batch: producers.last_batch.map(read_proof),
    };
    let mut proofs: Vec<BatchProof> = image.last_batch.into_iter().collect();
    if index.last_batch != producers.last_batch {
        proofs.extend(index.last_batch.map(read_proof));
    }
    Ok(Some(Restored { image, proofs }))
}

fn read_proof(last: LastBatch) -> BatchProof {
    BatchProof {
        base_offset: last.base_offset,
        crc: last.crc,
    }
}

fn read_aborted(txn: &AbortedEntry) -> AbortedTxn {
    AbortedTxn {
        producer_id: ProducerId(txn.producer_id),
        first_offset: txn.first_offset,
        last_offset: txn.last_offset,
        last_stable_offset: txn.last_stable_offset,
    }
}

fn read_entry(entry: &ProducerEntry) -> (ProducerId, machine::ProducerEntry) {
    let mut window = Window::default();
    for batch in &entry.recent {
        let delta = last_offset(batch).saturating_sub(batch.base_offset);
        window.push(BatchMetadata {
            first_seq: Sequence(batch.first_seq),
            last_seq: Sequence(batch.last_seq),
            offset_delta: i32::try_from(delta).unwrap_or(i32::MAX),
            crc: batch.crc,
            base_offset: batch.base_offset,
            timestamp: batch.timestamp,
        });
    }
    let state = machine::ProducerEntry {
        epoch: ProducerEpoch(entry.epoch),
        window,
        last_timestamp: entry.last_timestamp,
        last_append_ms: entry.last_append_ms,
        current_txn_first_offset: entry.current_txn_first_offset,
        coordinator_epoch: entry.coordinator_epoch.unwrap_or(-1),
        last_marker: entry.last_marker.map(|marker| LastMarker {
            epoch: ProducerEpoch(marker.epoch),
            txn_seq: marker.txn_seq,
            commit: marker.commit,
        }),
    };
    (ProducerId(entry.producer_id), state)
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;

//! `producer-state.snapshot` and `txn-index.snapshot` of a partition.
//!
//! A snapshot describes durable state only and says up to where; it is used only if its last batch
//! is in the log with that CRC. A file of 0 bytes means that there is no snapshot.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Format, FormatError};

/// The only version of both snapshots.
pub const SNAPSHOT_VERSION: u32 = 1;
/// Batches that a window remembers.
const WINDOW_LEN: usize = 5;
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
    /// Highest coordinator epoch that wrote a marker for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator_epoch: Option<i32>,
    /// Its last marker.
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
    /// Last offset.
    #[serde(default)]
    pub last_offset: i64,
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

impl Format for ProducerSnapshot {
    const LEN_MAX: u64 = SNAPSHOT_LEN_MAX;

    fn check(&self) -> Result<(), FormatError> {
        check_version(self.version)?;
        match self.entries.iter().find(|e| e.recent.len() > WINDOW_LEN) {
            Some(entry) => Err(FormatError(format!(
                "producer {} has {} batches",
                entry.producer_id,
                entry.recent.len()
            ))),
            None => Ok(()),
        }
    }
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
    /// Last stable offset when the marker was appended.
    #[serde(default)]
    pub last_stable_offset: i64,
}

impl Format for TxnIndexSnapshot {
    const LEN_MAX: u64 = SNAPSHOT_LEN_MAX;

    fn check(&self) -> Result<(), FormatError> {
        check_version(self.version)
    }
}

fn check_version(version: u32) -> Result<(), FormatError> {
    if version == SNAPSHOT_VERSION {
        Ok(())
    } else {
        Err(FormatError(format!("snapshot version {version}, not 1")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::super::tests::golden;
    use super::*;

    const STATE: &str = concat!(
        r#"{"version":1,"entries":[{"producer_id":1099511627776,"epoch":0,"#,
        r#""recent":[{"first_seq":0,"last_seq":9,"base_offset":90,"last_offset":99,"#,
        r#""timestamp":1790000000000,"crc":305419896}],"last_timestamp":1790000000000,"#,
        r#""last_append_ms":1790000000005}],"log_end_offset":100,"leader_epoch":0,"#,
        r#""last_batch":{"base_offset":90,"crc":305419896},"#,
        r#""topic_id":"12345678-9abc-4def-8123-456789abcdef"}"#
    );
    const INDEX: &str = concat!(
        r#"{"version":1,"open":[{"producer_id":1099511627776,"first_offset":80}],"#,
        r#""aborted":[{"producer_id":1099511627777,"first_offset":10,"last_offset":20,"#,
        r#""last_stable_offset":21}],"log_end_offset":100,"leader_epoch":0,"#,
        r#""last_batch":{"base_offset":90,"crc":305419896},"#,
        r#""topic_id":"12345678-9abc-4def-8123-456789abcdef"}"#
    );

    const LAST: LastBatch = LastBatch {
        base_offset: 90,
        crc: 0x1234_5678,
    };

    #[test]
    fn samples() {
        let topic_id = Some(Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef));
        let state = ProducerSnapshot {
            version: 1,
            entries: vec![ProducerEntry {
                producer_id: 1_099_511_627_776,
                epoch: 0,
                recent: vec![RecentBatch {
                    first_seq: 0,
                    last_seq: 9,
                    base_offset: 90,
                    last_offset: 99,
                    timestamp: 1_790_000_000_000,
                    crc: 0x1234_5678,
                }],
                last_timestamp: 1_790_000_000_000,
                last_append_ms: 1_790_000_000_005,
                current_txn_first_offset: None,
                coordinator_epoch: None,
                last_marker: None,
            }],
            log_end_offset: Some(100),
            leader_epoch: Some(0),
            last_batch: Some(LAST),
            topic_id,
        };
        golden(STATE, &state);
        let index = TxnIndexSnapshot {
            version: 1,
            open: vec![OpenEntry {
                producer_id: 1_099_511_627_776,
                first_offset: 80,
            }],
            aborted: vec![AbortedEntry {
                producer_id: 1_099_511_627_777,
                first_offset: 10,
                last_offset: 20,
                last_stable_offset: 21,
            }],
            log_end_offset: Some(100),
            leader_epoch: Some(0),
            last_batch: Some(LAST),
            topic_id,
        };
        golden(INDEX, &index);
    }

    #[test]
    fn older_and_later_fields_are_tolerated() {
        let old = r#"{"version":1,"entries":[{"producer_id":7,"epoch":1,
            "recent":[{"first_seq":0,"last_seq":0,"base_offset":0,"x":1}],"y":2}],"z":3}"#;
        let read: ProducerSnapshot = decode(old.as_bytes()).unwrap();
        assert_eq!(read.log_end_offset, None);
        assert!(decode::<ProducerSnapshot>(br#"{"version":2}"#).is_err());
        assert!(decode::<TxnIndexSnapshot>(br#"{"version":1}"#).is_ok());
    }

    #[test]
    fn a_window_of_six_is_damage() {
        let batch = r#"{"first_seq":0,"last_seq":0,"base_offset":0}"#;
        let six = format!(
            r#"{{"version":1,"entries":[{{"producer_id":7,"epoch":1,"recent":[{}]}}]}}"#,
            [batch; 6].join(",")
        );
        assert!(decode::<ProducerSnapshot>(six.as_bytes()).is_err());
    }
}

//! The JSON shapes of the volume's files, one module a file.
//!
//! Compact JSON, fields in the order in which the structs list them, maps sorted. Fields that a
//! reader does not know are kept in `extra` and written back by files that are updated; snapshots
//! are made anew from the log each time and keep nothing.

mod assignment;
mod broker;
mod cluster;
mod fences;
mod group_offsets;
mod id_block;
mod manifest;
mod marker_queue;
mod slot_text;
mod snapshot;
mod time;
mod tombstone;
mod topic;
mod txn_history;
mod txn_slot;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use store_adapter::volume::sum::check_sum;

pub use assignment::{AssignmentFile, BrokerEntry, Health, PartitionEntry, Role, SlotEntry};
pub use broker::{Listener, Registration};
pub use cluster::{CLUSTER_VERSION, ClusterFile, GROUP_SLOTS, TXN_SLOTS};
pub use fences::{FENCES_MAX, FencesFile};
pub use group_offsets::{GroupOffsetsFile, Kept, StagedEntry, StagedOffsetEntry};
pub use id_block::IdBlockFile;
pub use manifest::Manifest;
pub use marker_queue::MarkerQueueFile;
pub use slot_text::{SlotEdit, SlotText};
pub use snapshot::{
    AbortedEntry, LastBatch, MarkerEntry, OpenEntry, ProducerEntry, ProducerSnapshot, RecentBatch,
    Restored, SNAPSHOT_VERSION, TxnIndexSnapshot, Writer, restore,
};
pub use time::rfc3339;
pub use tombstone::TopicTombstone;
pub use topic::{TopicConfigFile, TopicIdFile};
pub use txn_history::{HISTORY_LINE_MAX, HistoryLine};
pub use txn_slot::{
    ClientEntry, OwedBrokerEntry, OwedFile, TopicPartitionsEntry, TxnEntryFile, TxnSlotFile,
};

/// Fields that this version does not know, kept on rewrite.
pub type Extra = BTreeMap<String, serde_json::Value>;

/// Why bytes are not the file they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FormatError(pub String);

/// The shape of one file.
pub trait Format: Serialize + DeserializeOwned {
    /// Longest file that is read, bytes.
    const LEN_MAX: u64;

    /// Refuses contradictory content, which counts as damage.
    fn check(&self) -> Result<(), FormatError> {
        Ok(())
    }
}

/// Reads a file's bytes; a checksum behind them must be right. Never panics; memory is bounded by
/// the input's length.
pub fn decode<T: Format>(bytes: &[u8]) -> Result<T, FormatError> {
    check_sum(bytes).map_err(|error| FormatError(error.to_string()))?;
    let value: T = serde_json::from_slice(bytes).map_err(|error| FormatError(error.to_string()))?;
    value.check()?;
    Ok(value)
}

/// Writes a file's content: compact, without a line end, and without the checksum that goes behind
/// it on the volume. What [`decode`] would refuse is refused.
pub fn encode<T: Format>(value: &T) -> Result<Bytes, FormatError> {
    value.check()?;
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|error| FormatError(error.to_string()))
}

/// A broker's id as the files write it, `kaas-<id>`.
mod broker_name {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use store_adapter::ids::BrokerId;

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(id: &BrokerId, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&id.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<BrokerId, D::Error> {
        let name = String::deserialize(input)?;
        BrokerId::from_name(&name)
            .ok_or_else(|| D::Error::custom(format!("{name:?} is not a broker's name")))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    /// Checks that `sample` is exactly what is written for what is read from it.
    pub(super) fn golden<T: Format + Debug + PartialEq>(sample: &str, value: &T) {
        let read: T = decode(sample.as_bytes()).unwrap();
        assert_eq!(&read, value);
        assert_eq!(encode(value).unwrap(), sample.as_bytes());
    }

    /// Checks that a field nobody knows survives a rewrite, at the end.
    pub(super) fn keeps_unknown<T: Format + Debug>(sample: &str) {
        let with = format!(
            "{},\"zzFuture\":{{\"a\":[1,null]}}}}",
            sample.strip_suffix('}').unwrap()
        );
        let read: T = decode(with.as_bytes()).unwrap();
        assert_eq!(encode(&read).unwrap(), with.as_bytes());
    }

    #[test]
    fn garbage_is_an_error_and_never_a_panic() {
        let deep = "[".repeat(100_000);
        for bytes in [
            &b""[..],
            b"\0\0",
            b"{",
            b"[]",
            b"\xff",
            b"{}x",
            deep.as_bytes(),
        ] {
            assert!(decode::<ClusterFile>(bytes).is_err());
            assert!(decode::<AssignmentFile>(bytes).is_err());
            assert!(decode::<Registration>(bytes).is_err());
            assert!(decode::<TopicIdFile>(bytes).is_err());
            assert!(decode::<TopicTombstone>(bytes).is_err());
            assert!(decode::<Manifest>(bytes).is_err());
            assert!(decode::<IdBlockFile>(bytes).is_err());
            assert!(decode::<ProducerSnapshot>(bytes).is_err());
            assert!(decode::<TxnIndexSnapshot>(bytes).is_err());
            assert!(decode::<MarkerQueueFile>(bytes).is_err());
            assert!(decode::<TxnSlotFile>(bytes).is_err());
            assert!(decode::<FencesFile>(bytes).is_err());
        }
    }
}

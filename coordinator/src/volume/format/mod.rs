//! The JSON shapes of the volume's files, one module a file.
//!
//! Compact JSON, fields in the order in which the structs list them, maps sorted. Fields that a
//! reader does not know are kept in `extra` and written back by files that are updated; snapshots
//! are made anew from the log each time and keep nothing.

mod snapshot;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use snapshot::{
    AbortedEntry, LastBatch, MarkerEntry, OpenEntry, ProducerEntry, ProducerSnapshot, RecentBatch,
    Restored, SNAPSHOT_VERSION, TxnIndexSnapshot, Writer, restore,
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

/// Reads a file's bytes. Never panics; memory is bounded by the input's length.
pub fn decode<T: Format>(bytes: &[u8]) -> Result<T, FormatError> {
    let value: T = serde_json::from_slice(bytes).map_err(|error| FormatError(error.to_string()))?;
    value.check()?;
    Ok(value)
}

/// Writes a file's bytes: compact, without a line end.
pub fn encode<T: Format>(value: &T) -> Result<Bytes, FormatError> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|error| FormatError(error.to_string()))
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
}

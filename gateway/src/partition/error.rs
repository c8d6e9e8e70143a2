//! Why a partition did not append or read. Reasons, never numbers: `error_code` maps them.

use store_adapter::store::StoreError;

/// Why a batch was not appended, or is not known to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The sequence does not continue what the partition knows of the producer.
    #[error("out of order sequence")]
    OutOfOrderSequence,
    /// The epoch is older than the partition's, or than a fence.
    #[error("stale producer epoch")]
    StaleEpoch,
    /// Not what the producer's open transaction on the partition allows.
    #[error("invalid transaction state")]
    InvalidTxnState,
    /// Producer fields that contradict each other.
    #[error("producer id, epoch and flags contradict each other")]
    InvalidRecord,
    /// It would open a transaction, and nobody asked the coordinator: it is to be sent again.
    #[error("the transaction is not verified")]
    Unverified,
    /// A later coordinator has ended a transaction of the producer.
    #[error("the coordinator was replaced")]
    CoordinatorFenced,
    /// Another broker, or another instance of this one, leads the partition.
    #[error("not the leader")]
    NotLeader,
    /// The partition is finding out what became of an earlier append.
    #[error("settling an earlier append")]
    Settling,
    /// It may have been appended.
    #[error("the outcome is not known")]
    Uncertain,
    /// The answer did not come within the request's timeout; the batch may be appended.
    #[error("timed out")]
    TimedOut,
    /// The batch is larger than the store takes.
    #[error("too large for the store")]
    TooLarge,
    /// The disk is full; nothing was appended.
    #[error("no space left")]
    Full,
    /// The partition's storage is damaged.
    #[error("storage: {0}")]
    Storage(String),
    /// The partition's storage does not serve now; it is opened again in the background.
    #[error("storage: {0}")]
    Offline(String),
}

impl AppendError {
    /// Whether the partition's storage is the reason, and not who leads it or what was sent.
    pub fn is_of_storage(&self) -> bool {
        self.may_pass() || matches!(self, Self::Storage(_))
    }

    /// Whether what the storage says now it may not say later.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Full | Self::Offline(_) | Self::Settling | Self::Uncertain
        )
    }
}

impl From<StoreError> for AppendError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Fenced
            | StoreError::EndMismatch { .. }
            | StoreError::Uncertain { fenced: true } => Self::NotLeader,
            StoreError::Uncertain { fenced: false } => Self::Uncertain,
            StoreError::TooLarge { .. } => Self::TooLarge,
            StoreError::Full { .. } => Self::Full,
            StoreError::Unavailable(_) => Self::Settling,
            StoreError::NotFound
            | StoreError::OutOfRange { .. }
            | StoreError::Corrupt { .. }
            | StoreError::Unsupported(_) => Self::Storage(error.to_string()),
            StoreError::Offline(_) => Self::Offline(error.to_string()),
        }
    }
}

/// Why a partition could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The offset lies outside the log.
    #[error("offset out of range")]
    OffsetOutOfRange,
    /// The client's leader epoch is older than ours.
    #[error("fenced leader epoch")]
    FencedLeaderEpoch,
    /// The client's leader epoch is newer than ours.
    #[error("unknown leader epoch")]
    UnknownLeaderEpoch,
    /// Another broker leads the partition.
    #[error("not the leader")]
    NotLeader,
    /// The partition's storage does not serve.
    #[error("storage: {0}")]
    Storage(String),
}

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::OutOfRange { .. } => Self::OffsetOutOfRange,
            StoreError::Fenced | StoreError::NotFound => Self::NotLeader,
            other => Self::Storage(other.to_string()),
        }
    }
}

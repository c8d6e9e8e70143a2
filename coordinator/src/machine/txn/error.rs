//! Why a request of a transaction is refused. Numbers are chosen at the wire.

/// A reason, by Kafka's name of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum TxnError {
    /// The request contradicts itself, or asks for more than a transaction can have.
    #[error("the request is not valid")]
    InvalidRequest,
    /// The transaction would have more partitions or groups than one may have; its client can
    /// abort it and go on.
    #[error("a transaction cannot have so many partitions or groups")]
    TooLarge,
    /// The timeout is not positive, or above `transaction.max.timeout.ms`.
    #[error("the transaction timeout is outside of the allowed range")]
    InvalidTransactionTimeout,
    /// A transaction of this id is not finished; retriable.
    #[error("another transaction of this transactional id is not finished yet")]
    ConcurrentTransactions,
    /// A newer session has taken the id over.
    #[error("a newer session of the producer has begun")]
    ProducerFenced,
    /// The same, as older versions of requests and other APIs call it.
    #[error("the producer's epoch is not the current one")]
    InvalidProducerEpoch,
    /// The request does not fit the state of the transaction.
    #[error("the request does not fit the state of the transaction")]
    InvalidTxnState,
    /// The id is unknown, or has another producer id.
    #[error("the transactional id has another producer id")]
    InvalidProducerIdMapping,
    /// What Kafka answers to a claim of another epoch when the epoch is exhausted.
    #[error("the epoch is exhausted, and the request claims another one")]
    UnknownServerError,
    /// The slot is being taken over; retriable.
    #[error("the transactional id is being loaded")]
    CoordinatorLoading,
    /// It can't be served now; retriable.
    #[error("the transactional id cannot be served now")]
    CoordinatorNotAvailable,
    /// Another broker coordinates the id.
    #[error("another broker coordinates the transactional id")]
    NotCoordinator,
}

impl TxnError {
    /// How a request that knows no fencing says it: InitProducerId below version 4,
    /// AddPartitionsToTxn, AddOffsetsToTxn and EndTxn below version 2, Produce and TxnOffsetCommit
    /// always.
    pub(super) fn of_old(self, old: bool) -> Self {
        if old && self == Self::ProducerFenced {
            Self::InvalidProducerEpoch
        } else {
            self
        }
    }
}

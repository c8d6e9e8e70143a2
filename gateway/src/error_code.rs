//! From reasons to Kafka's codes, given api and version. The only place that chooses a code for a
//! domain error: every match is exhaustive, so a new reason cannot be forgotten.

mod groups;
mod txns;
mod validation;
mod verification;

use kafka_protocol::error::ResponseError;

pub use groups::{NO_CONSUMER_PROTOCOL, group};
pub use txns::{marker, not_in_txn, stage, txn, txn_group, txn_of_broker, txn_offsets, undecided};
pub use validation::{validate, validate_has_log_start};
pub(crate) use verification::unverified;

use crate::broker::{NoTopic, TopicError};
use crate::partition::{AppendError, ReadError, TrimError};

/// Produce. A code must be one that a client of that version knows, and librdkafka has an action
/// for: never 89, and 51 only from v12 on.
pub fn append(error: &AppendError, version: i16) -> ResponseError {
    debug_assert!((0..=13).contains(&version), "Produce v{version}");
    match error {
        AppendError::OutOfOrderSequence => ResponseError::OutOfOrderSequenceNumber,
        // Never 90 on Produce: it kills a Java producer.
        AppendError::StaleEpoch => ResponseError::InvalidProducerEpoch,
        AppendError::InvalidTxnState => ResponseError::InvalidTxnState,
        AppendError::InvalidRecord => ResponseError::InvalidRecord,
        AppendError::Unverified => ResponseError::NotEnoughReplicas,
        // Of markers only.
        AppendError::CoordinatorFenced => ResponseError::TransactionCoordinatorFenced,
        AppendError::NotLeader => ResponseError::NotLeaderOrFollower,
        AppendError::Settling | AppendError::Uncertain | AppendError::TimedOut => {
            ResponseError::RequestTimedOut
        }
        AppendError::TooLarge => ResponseError::MessageTooLarge,
        AppendError::Full | AppendError::Storage(_) | AppendError::Offline(_) => {
            ResponseError::KafkaStorageError
        }
    }
}

/// Whether an error answer of Produce carries the real log start: those raised while appending do.
pub fn has_log_start(error: &AppendError) -> bool {
    match error {
        AppendError::OutOfOrderSequence
        | AppendError::StaleEpoch
        | AppendError::InvalidTxnState
        | AppendError::InvalidRecord => true,
        AppendError::Unverified
        | AppendError::CoordinatorFenced
        | AppendError::NotLeader
        | AppendError::Settling
        | AppendError::Uncertain
        | AppendError::TimedOut
        | AppendError::TooLarge
        | AppendError::Full
        | AppendError::Storage(_)
        | AppendError::Offline(_) => false,
    }
}

/// Fetch and ListOffsets.
pub fn read(error: &ReadError) -> ResponseError {
    match error {
        ReadError::OffsetOutOfRange => ResponseError::OffsetOutOfRange,
        ReadError::FencedLeaderEpoch => ResponseError::FencedLeaderEpoch,
        ReadError::UnknownLeaderEpoch => ResponseError::UnknownLeaderEpoch,
        ReadError::NotLeader => ResponseError::NotLeaderOrFollower,
        ReadError::Storage(_) => ResponseError::KafkaStorageError,
    }
}

/// DeleteRecords.
pub fn delete_records(error: &TrimError) -> ResponseError {
    match error {
        TrimError::OffsetOutOfRange => ResponseError::OffsetOutOfRange,
        TrimError::NotLeader => ResponseError::NotLeaderOrFollower,
        TrimError::Unavailable(_) => ResponseError::RequestTimedOut,
        TrimError::Storage(_) => ResponseError::KafkaStorageError,
    }
}

/// A partition that exists but is not open: in Metadata, Fetch and ListOffsets.
pub fn unavailable_partition(error: &AppendError) -> ResponseError {
    match error {
        AppendError::Storage(_) | AppendError::Offline(_) | AppendError::Full => {
            ResponseError::KafkaStorageError
        }
        AppendError::OutOfOrderSequence
        | AppendError::StaleEpoch
        | AppendError::InvalidTxnState
        | AppendError::InvalidRecord
        | AppendError::Unverified
        | AppendError::CoordinatorFenced
        | AppendError::NotLeader
        | AppendError::Settling
        | AppendError::Uncertain
        | AppendError::TimedOut
        | AppendError::TooLarge => ResponseError::NotLeaderOrFollower,
    }
}

/// CreateTopics, DeleteTopics, CreatePartitions, and the configs of topics.
pub fn topic(error: &TopicError) -> ResponseError {
    match error {
        TopicError::InvalidName(_) => ResponseError::InvalidTopicException,
        TopicError::Exists(_) => ResponseError::TopicAlreadyExists,
        TopicError::Unknown => ResponseError::UnknownTopicOrPartition,
        TopicError::TooManyPartitions { .. }
        | TopicError::NotMorePartitions(_)
        | TopicError::NoRoom(_) => ResponseError::InvalidPartitions,
        TopicError::InvalidConfig(_) => ResponseError::InvalidConfig,
        // Not 40, as it is of a topic (KAFKA-13609).
        TopicError::NotDynamic(_) => ResponseError::InvalidRequest,
        TopicError::NotController => ResponseError::NotController,
        TopicError::Damaged(_) => ResponseError::KafkaStorageError,
        TopicError::Unavailable(_) => ResponseError::RequestTimedOut,
    }
}

/// A name without a topic: in Metadata. A damaged topic makes clients look again.
pub fn no_topic_in_metadata(reason: NoTopic) -> ResponseError {
    match reason {
        NoTopic::Unknown => ResponseError::UnknownTopicOrPartition,
        NoTopic::Damaged => ResponseError::LeaderNotAvailable,
    }
}

/// A name without a topic: in requests for its data, and in DeleteTopics.
pub fn no_topic(reason: NoTopic) -> ResponseError {
    match reason {
        NoTopic::Unknown => ResponseError::UnknownTopicOrPartition,
        NoTopic::Damaged => ResponseError::KafkaStorageError,
    }
}

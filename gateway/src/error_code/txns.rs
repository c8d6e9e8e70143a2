//! Codes of transactional ids.

use coordinator::machine::group::GroupError;
use coordinator::machine::group::offsets::{PrepareError, StageError};
use coordinator::machine::txn::TxnError;
use kafka_protocol::error::ResponseError;

use crate::partition::AppendError;

/// InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, DescribeTransactions and
/// ListTransactions. What older versions know by another code the machine has named already.
pub fn txn(error: TxnError) -> ResponseError {
    match error {
        TxnError::InvalidRequest => ResponseError::InvalidRequest,
        TxnError::TooLarge => ResponseError::TransactionAbortable,
        TxnError::InvalidTransactionTimeout => ResponseError::InvalidTransactionTimeout,
        TxnError::ConcurrentTransactions => ResponseError::ConcurrentTransactions,
        TxnError::ProducerFenced => ResponseError::ProducerFenced,
        TxnError::InvalidProducerEpoch => ResponseError::InvalidProducerEpoch,
        TxnError::InvalidTxnState => ResponseError::InvalidTxnState,
        TxnError::InvalidProducerIdMapping => ResponseError::InvalidProducerIdMapping,
        TxnError::UnknownServerError => ResponseError::UnknownServerError,
        TxnError::CoordinatorLoading => ResponseError::CoordinatorLoadInProgress,
        TxnError::CoordinatorNotAvailable => ResponseError::CoordinatorNotAvailable,
        TxnError::NotCoordinator => ResponseError::NotCoordinator,
    }
}

/// AddPartitionsToTxn between brokers (version 4 and later): who asks translates for its client,
/// so the newer code is told.
pub fn txn_of_broker(error: TxnError) -> ResponseError {
    match error {
        TxnError::InvalidProducerEpoch => ResponseError::ProducerFenced,
        error => txn(error),
    }
}

/// TxnOffsetCommit, while the transaction is looked at. Never 90; and 14, which the first versions
/// did not know, is 15 in them.
pub fn txn_offsets(error: TxnError, version: i16) -> ResponseError {
    let code = match error {
        TxnError::ProducerFenced => ResponseError::InvalidProducerEpoch,
        error => txn(error),
    };
    of_first_versions(code, version)
}

/// TxnOffsetCommit, for a transaction that the group is not in, or that has ended.
pub fn not_in_txn(version: i16) -> ResponseError {
    if version >= 4 {
        ResponseError::TransactionAbortable
    } else {
        ResponseError::InvalidTxnState
    }
}

/// TxnOffsetCommit, while offsets are staged.
pub fn stage(error: StageError, version: i16) -> ResponseError {
    match error {
        StageError::Prepare(PrepareError::Unsettled) => {
            of_first_versions(ResponseError::CoordinatorLoadInProgress, version)
        }
        StageError::Prepare(PrepareError::TooLarge) => ResponseError::InvalidCommitOffsetSize,
        StageError::Decided => not_in_txn(version),
        StageError::StaleEpoch => ResponseError::InvalidProducerEpoch,
        StageError::EarlierOpen => ResponseError::ConcurrentTransactions,
        StageError::TopicGone => ResponseError::UnknownTopicOrPartition,
    }
}

/// TxnOffsetCommit, for what the group refuses.
pub fn txn_group(error: GroupError, version: i16) -> ResponseError {
    of_first_versions(super::group(error), version)
}

fn of_first_versions(code: ResponseError, version: i16) -> ResponseError {
    match code {
        ResponseError::CoordinatorLoadInProgress if version <= 1 => {
            ResponseError::CoordinatorNotAvailable
        }
        code => code,
    }
}

/// WriteTxnMarkers, while coordinators are asked what they have not finished. Who sends it asks a
/// leader, and takes 6 for what passes; 14 it has never heard of here, and gives up.
pub fn undecided(error: TxnError) -> ResponseError {
    match error {
        TxnError::CoordinatorLoading => ResponseError::NotLeaderOrFollower,
        error => txn(error),
    }
}

/// WriteTxnMarkers.
pub fn marker(error: &AppendError) -> ResponseError {
    // Who writes markers knows every code of the newest Produce.
    super::append(error, 13)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_kafkas() {
        for (error, code) in [
            (TxnError::InvalidRequest, 42),
            (TxnError::TooLarge, 120),
            (TxnError::InvalidTransactionTimeout, 50),
            (TxnError::ConcurrentTransactions, 51),
            (TxnError::ProducerFenced, 90),
            (TxnError::InvalidProducerEpoch, 47),
            (TxnError::InvalidTxnState, 48),
            (TxnError::InvalidProducerIdMapping, 49),
            (TxnError::UnknownServerError, -1),
            (TxnError::CoordinatorLoading, 14),
            (TxnError::CoordinatorNotAvailable, 15),
            (TxnError::NotCoordinator, 16),
        ] {
            assert_eq!(txn(error).code(), code, "{error}");
        }
        let between_brokers = txn_of_broker(TxnError::InvalidProducerEpoch);
        assert_eq!(between_brokers.code(), 90);
        for (error, code) in [
            (TxnError::CoordinatorLoading, 6),
            (TxnError::CoordinatorNotAvailable, 15),
            (TxnError::ConcurrentTransactions, 51),
        ] {
            assert_eq!(undecided(error).code(), code, "{error}");
        }
    }

    #[test]
    fn txn_offset_commit_knows_no_fencing() {
        for version in 0..=5 {
            for error in [TxnError::ProducerFenced, TxnError::InvalidProducerEpoch] {
                assert_eq!(txn_offsets(error, version).code(), 47);
            }
            let loading = if version <= 1 { 15 } else { 14 };
            let codes = [
                txn_offsets(TxnError::CoordinatorLoading, version),
                txn_group(GroupError::CoordinatorLoading, version),
                stage(StageError::Prepare(PrepareError::Unsettled), version),
            ];
            assert!(codes.iter().all(|code| code.code() == loading));
            let outside = if version <= 3 { 48 } else { 120 };
            assert_eq!(not_in_txn(version).code(), outside);
            assert_eq!(stage(StageError::Decided, version).code(), outside);
            assert_eq!(stage(StageError::TopicGone, version).code(), 3);
        }
    }
}

//! The first batch of a transaction that the coordinator does not let through (Produce).

use coordinator::machine::txn::TxnError;
use kafka_protocol::error::ResponseError;

use crate::txns::Unverified;

/// The code of a batch that is not verified (kafka-contract 1.5).
pub(crate) fn unverified(why: Unverified, version: i16) -> ResponseError {
    // From v12 on clients know that a transaction before may still be under way.
    let busy = if version >= 12 {
        ResponseError::ConcurrentTransactions
    } else {
        ResponseError::NotEnoughReplicas
    };
    let error = match why {
        Unverified::NotInTxn if version >= 11 => return ResponseError::TransactionAbortable,
        Unverified::NotInTxn => return ResponseError::InvalidTxnState,
        Unverified::Late => return busy,
        Unverified::Refused(error) => error,
    };
    match error {
        TxnError::ConcurrentTransactions => busy,
        TxnError::CoordinatorLoading
        | TxnError::CoordinatorNotAvailable
        | TxnError::NotCoordinator => ResponseError::NotEnoughReplicas,
        TxnError::ProducerFenced | TxnError::InvalidProducerEpoch => {
            ResponseError::InvalidProducerEpoch
        }
        TxnError::InvalidProducerIdMapping => ResponseError::InvalidProducerIdMapping,
        TxnError::InvalidTxnState => ResponseError::InvalidTxnState,
        TxnError::InvalidRequest | TxnError::TooLarge => ResponseError::TransactionAbortable,
        TxnError::InvalidTransactionTimeout | TxnError::UnknownServerError => {
            ResponseError::UnknownServerError
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_kafkas() {
        use TxnError::{
            ConcurrentTransactions, CoordinatorLoading, CoordinatorNotAvailable,
            InvalidProducerEpoch, InvalidProducerIdMapping, NotCoordinator, ProducerFenced,
        };
        let refused = Unverified::Refused;
        let rows = [
            (Unverified::NotInTxn, [48, 120, 120]),
            (Unverified::Late, [19, 19, 51]),
            (refused(ConcurrentTransactions), [19, 19, 51]),
            (refused(InvalidProducerIdMapping), [49, 49, 49]),
            (refused(InvalidProducerEpoch), [47, 47, 47]),
            (refused(ProducerFenced), [47, 47, 47]),
            (refused(CoordinatorLoading), [19, 19, 19]),
            (refused(CoordinatorNotAvailable), [19, 19, 19]),
            (refused(NotCoordinator), [19, 19, 19]),
        ];
        for (why, codes) in rows {
            let found = [10, 11, 12].map(|version| unverified(why, version).code());
            assert_eq!(found, codes, "{why:?}");
        }
    }
}

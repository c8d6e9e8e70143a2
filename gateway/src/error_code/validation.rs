//! A batch that is refused before it is classified (Produce).

use kafka_protocol::error::ResponseError;

use crate::partition::validate::ValidateError;

/// The code of a refused batch; the same in every version of Produce.
pub fn validate(error: &ValidateError) -> ResponseError {
    match error {
        ValidateError::InvalidRecord(_) | ValidateError::InvalidRecords(_) => {
            ResponseError::InvalidRecord
        }
        ValidateError::InvalidTimestamp(_) => ResponseError::InvalidTimestamp,
        ValidateError::Corrupt(_) => ResponseError::CorruptMessage,
        ValidateError::TooLarge(..) => ResponseError::MessageTooLarge,
        ValidateError::LargerThanSegment(..) => ResponseError::RecordListTooLarge,
        ValidateError::UnsupportedCompression => ResponseError::UnsupportedCompressionType,
    }
}

/// Whether the answer carries the real log start, if the batch came as far as its partition: Kafka
/// leaves it at -1 for damaged and for too large batches.
pub fn validate_has_log_start(error: &ValidateError) -> bool {
    match error {
        ValidateError::InvalidRecord(_)
        | ValidateError::InvalidRecords(_)
        | ValidateError::InvalidTimestamp(_) => true,
        ValidateError::Corrupt(_)
        | ValidateError::TooLarge(..)
        | ValidateError::LargerThanSegment(..)
        | ValidateError::UnsupportedCompression => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::validate::{CorruptBatch, InvalidRecord};

    #[test]
    fn codes_are_kafkas() {
        use store_adapter::batch::BatchError;
        let rows = [
            (ValidateError::InvalidRecord(InvalidRecord::Null), 87, true),
            (ValidateError::InvalidRecords(Vec::new()), 87, true),
            (ValidateError::InvalidTimestamp(Vec::new()), 32, true),
            (
                ValidateError::Corrupt(CorruptBatch::Batch(BatchError::Crc)),
                2,
                false,
            ),
            (ValidateError::TooLarge(2, 1), 10, false),
            (ValidateError::LargerThanSegment(2, 1), 18, false),
            (ValidateError::UnsupportedCompression, 76, false),
        ];
        for (error, code, log_start) in rows {
            assert_eq!(validate(&error).code(), code, "{error}");
            assert_eq!(validate_has_log_start(&error), log_start, "{error}");
        }
    }
}

//! What one partition is answered with.

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::produce_response::{
    BatchIndexAndErrorMessage, PartitionProduceResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::{Refusal, Timestamp};
use crate::error_code;
use crate::partition::{AppendError, Appended, Partition};

pub(super) fn failed(code: ResponseError, log_start: Option<i64>) -> PartitionProduceResponse {
    let mut response = PartitionProduceResponse::default();
    response.error_code = code.code();
    response.base_offset = -1;
    response.log_append_time_ms = -1;
    response.log_start_offset = log_start.unwrap_or(-1);
    response
}

pub(super) fn refused(refusal: Refusal) -> PartitionProduceResponse {
    match refusal {
        Refusal::Code(code) => failed(code, None),
        Refusal::Invalid(error, log_start) => {
            let mut response = failed(error_code::validate(&error), log_start);
            response.error_message = Some(StrBytes::from_string(error.to_string()));
            response.record_errors = error
                .record_errors()
                .map(|(index, message)| {
                    let mut entry = BatchIndexAndErrorMessage::default();
                    entry.batch_index = index;
                    entry.batch_index_error_message = Some(StrBytes::from_string(message));
                    entry
                })
                .collect();
            response
        }
    }
}

pub(super) fn appended(
    outcome: Result<Appended, AppendError>,
    timestamp: Timestamp,
    partition: &Partition,
    version: i16,
) -> PartitionProduceResponse {
    let appended = match outcome {
        Ok(appended) => appended,
        Err(error) => {
            let log_start =
                error_code::has_log_start(&error).then(|| partition.visible().log_start);
            return failed(error_code::append(&error, version), log_start);
        }
    };
    let mut response = PartitionProduceResponse::default();
    response.base_offset = appended.base_offset;
    response.log_start_offset = appended.log_start;
    response.log_append_time_ms = match (appended.duplicate_of, timestamp) {
        (Some(max_timestamp), _) => max_timestamp,
        (None, Timestamp::LogAppend(ms)) => ms,
        (None, Timestamp::Create) => -1,
    };
    response
}

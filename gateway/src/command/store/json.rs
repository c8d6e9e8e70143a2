//! Batches and records as JSON.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use store_adapter::batch::{BatchHeader, HEADER_LEN};
use store_adapter::compression::{UNPACKED_MAX, unpack};
use store_adapter::control::EndTxnMarker;
use store_adapter::records::{Record, Records};
use store_adapter::store::StoredBatch;

use super::super::bytes::put;

fn record(header: &BatchHeader, found: &Record<'_>) -> Value {
    let mut shown = Map::new();
    let offset = header
        .base_offset
        .saturating_add(i64::from(found.offset_delta));
    shown.insert("offset".to_owned(), offset.into());
    // The log's clock stamps the batch, not its records.
    let time = if header.attributes & 0x08 != 0 {
        header.max_timestamp
    } else {
        found.timestamp
    };
    shown.insert("timestamp".to_owned(), time.into());
    put(&mut shown, "key", found.key);
    put(&mut shown, "value", found.value);
    let headers = found.headers().map(|(key, value)| {
        let mut header = Map::new();
        put(&mut header, "key", Some(key));
        put(&mut header, "value", value);
        Value::Object(header)
    });
    let headers: Vec<Value> = headers.collect();
    if !headers.is_empty() {
        shown.insert("headers".to_owned(), headers.into());
    }
    Value::Object(shown)
}

/// The records of a batch that is no marker.
///
/// # Errors
/// What does not decode.
pub(super) fn records(stored: &StoredBatch) -> Result<Vec<Value>, String> {
    let header = BatchHeader::read(&stored.bytes).map_err(|error| error.to_string())?;
    let packed: Bytes = stored.bytes.slice(HEADER_LEN.min(stored.bytes.len())..);
    let plain = unpack(&header, &packed, UNPACKED_MAX).map_err(|error| error.to_string())?;
    let found = Records::unpacked(&header, &plain).map_err(|error| error.to_string())?;
    let shown = found.map(|found| found.map(|found| record(&header, &found)));
    let shown: Result<Vec<Value>, _> = shown.collect();
    shown.map_err(|error| error.to_string())
}

/// A batch; with its records if `with_records`.
pub(super) fn batch(stored: &StoredBatch, with_records: bool) -> Value {
    let Ok(header) = BatchHeader::read(&stored.bytes) else {
        return json!({ "baseOffset": stored.base_offset, "error": "its header does not decode" });
    };
    let mut shown = json!({
        "baseOffset": stored.base_offset,
        "lastOffset": stored.last_offset,
        "records": header.records_count,
        "bytes": stored.bytes.len(),
        "appendMs": stored.append_ms,
        "maxTimestamp": header.max_timestamp,
        "leaderEpoch": header.leader_epoch,
        "compression": header.attributes & 0x07,
        "transactional": header.attributes & 0x10 != 0,
        "control": header.is_control(),
        "producerId": header.producer_id.0,
        "producerEpoch": header.producer_epoch.0,
        "baseSequence": header.base_sequence.0,
    });
    if let Some(horizon) = header.delete_horizon() {
        shown["deleteHorizonMs"] = horizon.into();
    }
    if let Some(marker) = EndTxnMarker::read(&stored.bytes).filter(|_| header.is_control()) {
        shown["marker"] = json!({
            "type": if marker.commit { "COMMIT" } else { "ABORT" },
            "coordinatorEpoch": marker.coordinator_epoch,
            "txnSeq": marker.txn_seq,
        });
    } else if with_records {
        match records(stored) {
            Ok(records) => shown["content"] = records.into(),
            Err(error) => shown["error"] = error.into(),
        }
    }
    shown
}

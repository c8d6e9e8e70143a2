//! The Fetch response: stored bytes are sent as they are, by reference.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

/// A Fetch response before encoding.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FetchReply {
    /// Top-level error code (70, 71, 106 of sessions), or 0.
    pub error_code: i16,
    /// Session id, 0 for none.
    pub session_id: i32,
    /// Topics, in the order in which they are answered.
    pub topics: Vec<FetchTopicReply>,
    /// Leaders named by `current_leader` (v16+): broker id, host, port.
    pub node_endpoints: Vec<(i32, StrBytes, i32)>,
}

/// One topic of the response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FetchTopicReply {
    /// Name, on the wire up to v12.
    pub name: StrBytes,
    /// Topic id, on the wire from v13.
    pub topic_id: Uuid,
    /// Partitions.
    pub partitions: Vec<FetchPartitionReply>,
}

/// One partition of the response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchPartitionReply {
    /// Partition number.
    pub partition: i32,
    /// Error code, or 0.
    pub error_code: i16,
    /// High watermark, -1 on error.
    pub high_watermark: i64,
    /// Last stable offset, -1 on error.
    pub last_stable_offset: i64,
    /// First offset, -1 on error.
    pub log_start_offset: i64,
    /// Diverging epoch and its end offset (v12+).
    pub diverging_epoch: Option<(i32, i64)>,
    /// Current leader id and epoch (v12+), on error 6 or 74.
    pub current_leader: Option<(i32, i32)>,
    /// Aborted transactions, producer id and first offset: `None` for read_uncommitted, a list
    /// otherwise, empty when there are none.
    pub aborted_transactions: Option<Vec<(i64, i64)>>,
    /// Whole batches, exactly as stored.
    pub records: Vec<Bytes>,
}

//! Fetch at one version, and the batches in its answers.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{BrokerId, FetchRequest};

use super::RawClient;
use super::batch::{CRC_AT, CRC_FROM, HEADER_LEN};
use super::ops::topic_name;

/// Version of Fetch for [`request`].
pub const FETCH_VERSION: i16 = 12;

/// What a Fetch answered for one partition.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// Which.
    pub partition: i32,
    /// 0, or why there is nothing.
    pub error_code: i16,
    /// Offset behind what may be seen.
    pub high_watermark: i64,
    /// First offset, -1 where it was not told.
    pub log_start_offset: i64,
    /// Whole batches, one behind the other.
    pub records: Bytes,
}

/// A batch as it is stored.
#[derive(Debug, Clone)]
pub struct Stored {
    /// First offset.
    pub base: i64,
    /// Last offset.
    pub last: i64,
    /// Timestamp of its first record, ms.
    pub timestamp_ms: i64,
    /// The CRC that it carries, which is that of its bytes.
    pub crc: u32,
    /// Whether it is a marker.
    pub control: bool,
    /// All of it.
    pub bytes: Bytes,
}

/// A full Fetch without session: partitions with their offsets. It waits at most `max_wait_ms` for
/// the first byte, and asks for `max_bytes` of each partition.
pub fn request(
    topic: &str,
    partitions: &[(i32, i64)],
    max_wait_ms: i32,
    max_bytes: i32,
) -> FetchRequest {
    let wanted = partitions.iter().map(|(partition, offset)| {
        FetchPartition::default()
            .with_partition(*partition)
            .with_current_leader_epoch(-1)
            .with_fetch_offset(*offset)
            .with_last_fetched_epoch(-1)
            .with_log_start_offset(-1)
            .with_partition_max_bytes(max_bytes)
    });
    let topic = FetchTopic::default()
        .with_topic(topic_name(topic))
        .with_partitions(wanted.collect());
    FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(max_wait_ms)
        .with_min_bytes(1)
        .with_max_bytes(50 << 20)
        .with_session_id(0)
        .with_session_epoch(-1)
        .with_topics(vec![topic])
}

/// Sends [`request`]; every partition's answer, in order.
pub async fn fetch(
    client: &mut RawClient,
    topic: &str,
    partitions: &[(i32, i64)],
    max_wait_ms: i32,
    max_bytes: i32,
) -> Result<Vec<Fetched>> {
    let request = request(topic, partitions, max_wait_ms, max_bytes);
    let response = client.call(&request, FETCH_VERSION).await?;
    ensure!(
        response.error_code == 0,
        "Fetch {topic}: {}",
        response.error_code
    );
    let answers = response.responses.into_iter();
    let answers = answers.flat_map(|topic| topic.partitions);
    let answers = answers.map(|answer| Fetched {
        partition: answer.partition_index,
        error_code: answer.error_code,
        high_watermark: answer.high_watermark,
        log_start_offset: answer.log_start_offset,
        records: answer.records.unwrap_or_default(),
    });
    Ok(answers.collect())
}

/// The batches of an answer, each with its CRC checked. A part of one at the end is an error: the
/// brokers of the suites send whole ones.
pub fn batches(records: &Bytes) -> Result<Vec<Stored>> {
    let mut found = Vec::new();
    let mut rest = records.clone();
    while !rest.is_empty() {
        ensure!(
            rest.len() >= HEADER_LEN,
            "{} bytes are no batch",
            rest.len()
        );
        let len = i32::from_be_bytes(rest[8..12].try_into()?);
        let len = usize::try_from(len).context("a negative length")? + 12;
        ensure!(
            (HEADER_LEN..=rest.len()).contains(&len),
            "a batch of {len} bytes in {}",
            rest.len()
        );
        let bytes = rest.split_to(len);
        let base = i64::from_be_bytes(bytes[..8].try_into()?);
        let crc = u32::from_be_bytes(bytes[CRC_AT..CRC_FROM].try_into()?);
        ensure!(
            crc == crc32c::crc32c(&bytes[CRC_FROM..]),
            "the batch at {base} has another CRC"
        );
        found.push(Stored {
            base,
            last: base + i64::from(i32::from_be_bytes(bytes[23..27].try_into()?)),
            timestamp_ms: i64::from_be_bytes(bytes[27..35].try_into()?),
            crc,
            control: bytes[22] & 0x20 != 0,
            bytes,
        });
    }
    Ok(found)
}

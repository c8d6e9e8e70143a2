//! The Fetch response: stored bytes are sent as they are, by reference.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::protocol::StrBytes;
use smallvec::SmallVec;
use uuid::Uuid;

use super::segment::Segment;
use crate::answer_budget::AnswerRoom;

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
    /// What the records hold of the budget for answers.
    pub room: AnswerRoom,
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
    pub records: Vec<Segment>,
}

/// Batches of at least so many bytes are sent by reference; smaller ones are copied, because an
/// entry of a vectored write costs about as much as copying that much.
const REFERENCE_MIN: usize = 4096;
/// First version with compact lengths and tagged fields.
const FLEXIBLE_FROM: i16 = 12;
/// First version with topic ids instead of names.
const TOPIC_IDS_FROM: i16 = 13;
/// First version with `node_endpoints`.
const NODE_ENDPOINTS_FROM: i16 = 16;
/// Upper bound of the fixed-size fields of the response, a topic, a partition, a node endpoint.
const FIXED_MAX: usize = 96;
/// Upper bound of one aborted transaction.
const ABORTED_MAX: usize = 17;

/// Encodes a Fetch response of versions 4 to 18: length, header and body. Large batches are in
/// the result by reference, as all that is in files; everything between is in one buffer.
///
/// # Errors
/// If a length does not fit its field.
pub(super) fn encode(
    reply: &FetchReply,
    version: i16,
    correlation_id: i32,
) -> anyhow::Result<SmallVec<[Segment; 4]>> {
    let mut encoder = Encoder {
        version,
        flexible: version >= FLEXIBLE_FROM,
        buffer: BytesMut::with_capacity(copied_len_max(reply)),
        references: SmallVec::new(),
        referenced_len: 0,
    };
    encoder.buffer.put_u32(0);
    encoder.buffer.put_i32(correlation_id);
    encoder.no_tags();
    encoder.response(reply)?;
    encoder.finish()
}

/// What the buffer must hold at most, so that it never grows.
fn copied_len_max(reply: &FetchReply) -> usize {
    let endpoint = |(_, host, _): &(i32, StrBytes, i32)| FIXED_MAX + host.len();
    let mut len = FIXED_MAX + reply.node_endpoints.iter().map(endpoint).sum::<usize>();
    for topic in &reply.topics {
        len += FIXED_MAX + topic.name.len();
        for partition in &topic.partitions {
            let aborted = partition.aborted_transactions.as_ref().map_or(0, Vec::len);
            let read = partition.records.iter().filter_map(Segment::bytes);
            let small = read.map(Bytes::len).filter(|len| *len < REFERENCE_MIN);
            let copied: usize = small.sum();
            len += FIXED_MAX + aborted * ABORTED_MAX + copied;
        }
    }
    len
}

struct Encoder {
    version: i16,
    flexible: bool,
    buffer: BytesMut,
    /// Bytes that go out between two parts of the buffer, with the position of the cut.
    references: SmallVec<[(usize, Segment); 4]>,
    referenced_len: usize,
}

impl Encoder {
    fn finish(mut self) -> anyhow::Result<SmallVec<[Segment; 4]>> {
        let len = u32::try_from(self.buffer.len() - 4 + self.referenced_len)?;
        self.buffer[..4].copy_from_slice(&len.to_be_bytes());
        let mut rest = self.buffer.freeze();
        let mut segments = SmallVec::with_capacity(2 * self.references.len() + 1);
        let mut taken = 0;
        for (cut, reference) in self.references {
            if cut > taken {
                segments.push(rest.split_to(cut - taken).into());
                taken = cut;
            }
            segments.push(reference);
        }
        if !rest.is_empty() {
            segments.push(rest.into());
        }
        Ok(segments)
    }

    fn response(&mut self, reply: &FetchReply) -> anyhow::Result<()> {
        self.buffer.put_i32(0); // throttle_time_ms
        if self.version >= 7 {
            self.buffer.put_i16(reply.error_code);
            self.buffer.put_i32(reply.session_id);
        }
        self.array_len(reply.topics.len())?;
        for topic in &reply.topics {
            self.topic(topic)?;
        }
        if self.version >= NODE_ENDPOINTS_FROM && !reply.node_endpoints.is_empty() {
            self.buffer.put_u8(1);
            self.node_endpoints(&reply.node_endpoints)?;
        } else {
            self.no_tags();
        }
        Ok(())
    }

    fn topic(&mut self, topic: &FetchTopicReply) -> anyhow::Result<()> {
        if self.version >= TOPIC_IDS_FROM {
            self.buffer.put_slice(topic.topic_id.as_bytes());
        } else {
            self.string(&topic.name)?;
        }
        self.array_len(topic.partitions.len())?;
        for partition in &topic.partitions {
            self.partition(partition)?;
        }
        self.no_tags();
        Ok(())
    }

    fn partition(&mut self, partition: &FetchPartitionReply) -> anyhow::Result<()> {
        self.buffer.put_i32(partition.partition);
        self.buffer.put_i16(partition.error_code);
        self.buffer.put_i64(partition.high_watermark);
        self.buffer.put_i64(partition.last_stable_offset);
        if self.version >= 5 {
            self.buffer.put_i64(partition.log_start_offset);
        }
        self.aborted(partition.aborted_transactions.as_deref())?;
        if self.version >= 11 {
            self.buffer.put_i32(-1); // preferred_read_replica
        }
        self.records(&partition.records)?;
        if self.flexible {
            self.partition_tags(partition);
        }
        Ok(())
    }

    fn aborted(&mut self, aborted: Option<&[(i64, i64)]>) -> anyhow::Result<()> {
        let Some(aborted) = aborted else {
            if self.flexible {
                self.buffer.put_u8(0);
            } else {
                self.buffer.put_i32(-1);
            }
            return Ok(());
        };
        self.array_len(aborted.len())?;
        for (producer_id, first_offset) in aborted {
            self.buffer.put_i64(*producer_id);
            self.buffer.put_i64(*first_offset);
            self.no_tags();
        }
        Ok(())
    }

    fn records(&mut self, records: &[Segment]) -> anyhow::Result<()> {
        self.array_len(records.iter().map(Segment::len).sum())?;
        for batch in records {
            let small = batch.bytes().filter(|bytes| bytes.len() < REFERENCE_MIN);
            if let Some(small) = small {
                self.buffer.put_slice(small);
            } else {
                self.referenced_len += batch.len();
                self.references.push((self.buffer.len(), batch.clone()));
            }
        }
        Ok(())
    }

    /// Tag 0 `diverging_epoch`, tag 1 `current_leader`; their defaults are left out.
    fn partition_tags(&mut self, partition: &FetchPartitionReply) {
        let diverging = partition.diverging_epoch.filter(|tag| *tag != (-1, -1));
        let leader = partition.current_leader.filter(|tag| *tag != (-1, -1));
        let count = u8::from(diverging.is_some()) + u8::from(leader.is_some());
        self.buffer.put_u8(count);
        if let Some((epoch, end_offset)) = diverging {
            self.buffer.put_slice(&[0, 13]);
            self.buffer.put_i32(epoch);
            self.buffer.put_i64(end_offset);
            self.no_tags();
        }
        if let Some((leader_id, leader_epoch)) = leader {
            self.buffer.put_slice(&[1, 9]);
            self.buffer.put_i32(leader_id);
            self.buffer.put_i32(leader_epoch);
            self.no_tags();
        }
    }

    /// Tag 0 of the response. Its size stands before it, so it is computed first.
    fn node_endpoints(&mut self, endpoints: &[(i32, StrBytes, i32)]) -> anyhow::Result<()> {
        let mut size = varint_len(compact(endpoints.len())?);
        for (_, host, _) in endpoints {
            size += 4 + varint_len(compact(host.len())?) + host.len() + 4 + 1 + 1;
        }
        self.buffer.put_u8(0);
        self.varint(u32::try_from(size)?);
        self.array_len(endpoints.len())?;
        for (node_id, host, port) in endpoints {
            self.buffer.put_i32(*node_id);
            self.string(host)?;
            self.buffer.put_i32(*port);
            self.buffer.put_u8(0); // rack: null
            self.no_tags();
        }
        Ok(())
    }

    /// The length of an array or of bytes.
    fn array_len(&mut self, len: usize) -> anyhow::Result<()> {
        if self.flexible {
            self.varint(compact(len)?);
        } else {
            self.buffer.put_i32(i32::try_from(len)?);
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> anyhow::Result<()> {
        let len = i16::try_from(text.len())?;
        if self.flexible {
            self.varint(compact(text.len())?);
        } else {
            self.buffer.put_i16(len);
        }
        self.buffer.put_slice(text.as_bytes());
        Ok(())
    }

    fn varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.buffer.put_u8(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.buffer.put_u8(value.to_le_bytes()[0]);
    }

    fn no_tags(&mut self) {
        if self.flexible {
            self.buffer.put_u8(0);
        }
    }
}

/// The number that stands for a compact length.
fn compact(len: usize) -> anyhow::Result<u32> {
    Ok(u32::try_from(len + 1)?)
}

fn varint_len(value: u32) -> usize {
    match value {
        0..=0x7f => 1,
        0x80..=0x3fff => 2,
        0x4000..=0x1f_ffff => 3,
        0x20_0000..=0xfff_ffff => 4,
        _ => 5,
    }
}

#[cfg(test)]
mod tests;

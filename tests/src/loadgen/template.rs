//! A Produce request encoded once, patched per send.
//!
//! The bytes of a request alternate between *glue* (frame header, partition index, batch header:
//! owned and patched) and the *tail* (the records: shared by every request of the run). Where the
//! glue is cut is the same for every request of a template.

use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::{BufMut, Bytes, BytesMut};

use crate::raw::CLIENT_ID;
use crate::raw::batch::{BatchSpec, CRC_AT, CRC_FROM, HEADER_LEN, PRODUCER_ID_AT, Record};

/// Version of Produce that is sent: the newest with topic names that implies nothing of the
/// second transaction protocol.
pub(super) const PRODUCE_VERSION: i16 = 11;

const PRODUCE_KEY: i16 = 0;
const TIMEOUT_MS: i32 = 30_000;
/// Where the correlation id lies in a frame with its length in front.
const CORRELATION_ID_AT: usize = 8;

/// The records of a batch, with what the CRC of a whole batch can be combined from.
#[derive(Debug)]
pub(super) struct Tail {
    /// Everything after the batch header.
    pub(super) bytes: Bytes,
    /// How many records they are.
    pub(super) records: i32,
    /// A batch header with true length, deltas, timestamps and count.
    header: [u8; HEADER_LEN],
    crc: u32,
    /// Column `i`: what bit `i` of the CRC of the bytes before becomes behind `bytes`.
    shift: [u32; 32],
}

impl Tail {
    /// Random records of `record_bytes` each, as many as fit a batch of `batch_bytes`.
    pub(super) fn new(batch_bytes: usize, record_bytes: usize, timestamp_ms: i64) -> Result<Self> {
        let mut random = fastrand::Rng::with_seed(0x5EED);
        let mut spec = BatchSpec {
            timestamp_ms,
            ..BatchSpec::default()
        };
        // A record's overhead is at most 16 bytes: length, attributes, deltas, key, headers.
        let mut room = batch_bytes - HEADER_LEN;
        while room >= record_bytes + 16 {
            let mut value = vec![0; record_bytes];
            random.fill(&mut value);
            spec.records.push(Record::value(value));
            room -= record_bytes + 16;
        }
        let records = i32::try_from(spec.records.len()).context("too many records in a batch")?;
        let batch = spec.build();
        let header = batch
            .first_chunk::<HEADER_LEN>()
            .context("a batch without header")?;
        let bytes = batch.slice(HEADER_LEN..);
        let mut shift = [0; 32];
        for (bit, column) in shift.iter_mut().enumerate() {
            *column = crc32c::crc32c_combine(1 << bit, 0, bytes.len());
        }
        Ok(Self {
            crc: crc32c::crc32c(&bytes),
            header: *header,
            bytes,
            records,
            shift,
        })
    }

    /// Length of a whole batch.
    pub(super) fn batch_len(&self) -> usize {
        HEADER_LEN + self.bytes.len()
    }

    /// Writes the CRC into a batch header whose other bytes are final.
    fn seal(&self, header: &mut [u8]) {
        let mut before = crc32c::crc32c(&header[CRC_FROM..HEADER_LEN]);
        let mut crc = self.crc;
        while before != 0 {
            crc ^= self.shift[before.trailing_zeros() as usize];
            before &= before - 1;
        }
        header[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
    }
}

/// Where one batch of the request goes and how it is stamped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    pub(super) partition: i32,
    pub(super) producer_id: i64,
    pub(super) producer_epoch: i16,
    pub(super) base_sequence: i32,
}

/// Glue of a request with a fixed number of batches.
#[derive(Debug)]
pub(super) struct Template {
    glue: Vec<u8>,
    /// Positions in the glue behind which a tail goes; each is the end of a batch header.
    cuts: Vec<usize>,
    /// For each batch, where its partition index lies.
    partition_at: Vec<usize>,
    pub(super) tail: Arc<Tail>,
}

impl Template {
    /// Encodes a request of `batches` batches of `tail` to `topic`.
    pub(super) fn new(topic: &str, acks: i16, batches: usize, tail: Arc<Tail>) -> Result<Self> {
        let mut glue = BytesMut::new();
        glue.put_i32(0);
        glue.put_i16(PRODUCE_KEY);
        glue.put_i16(PRODUCE_VERSION);
        glue.put_i32(0);
        glue.put_i16(i16::try_from(CLIENT_ID.len())?);
        glue.put_slice(CLIENT_ID.as_bytes());
        glue.put_u8(0);
        put_compact_len(&mut glue, None);
        glue.put_i16(acks);
        glue.put_i32(TIMEOUT_MS);
        put_compact_len(&mut glue, Some(1));
        put_compact_len(&mut glue, Some(topic.len()));
        glue.put_slice(topic.as_bytes());
        put_compact_len(&mut glue, Some(batches));
        let (mut cuts, mut partition_at) = (Vec::new(), Vec::new());
        for _ in 0..batches {
            partition_at.push(glue.len());
            glue.put_i32(0);
            put_compact_len(&mut glue, Some(tail.batch_len()));
            glue.put_slice(&tail.header);
            cuts.push(glue.len());
            // Tagged fields of the partition, behind the tail.
            glue.put_u8(0);
        }
        // Tagged fields of the topic and of the request.
        glue.put_slice(&[0, 0]);
        let len = glue.len() - 4 + batches * tail.bytes.len();
        let len = i32::try_from(len).context("the request is too long for a frame")?;
        glue[..4].copy_from_slice(&len.to_be_bytes());
        Ok(Self {
            glue: glue.to_vec(),
            cuts,
            partition_at,
            tail,
        })
    }

    /// Batches in a request.
    pub(super) fn batches(&self) -> usize {
        self.cuts.len()
    }

    /// Positions in the glue behind which a tail goes.
    pub(super) fn cuts(&self) -> &[usize] {
        &self.cuts
    }

    /// Bytes of all batches in a request.
    pub(super) fn batch_bytes(&self) -> usize {
        self.batches() * self.tail.batch_len()
    }

    /// Fills `glue` with a request; `stamps` are as many as the template has batches.
    pub(super) fn patch(&self, glue: &mut Vec<u8>, correlation_id: i32, stamps: &[Stamp]) {
        glue.clear();
        glue.extend_from_slice(&self.glue);
        glue[CORRELATION_ID_AT..CORRELATION_ID_AT + 4]
            .copy_from_slice(&correlation_id.to_be_bytes());
        for ((stamp, &cut), &at) in stamps.iter().zip(&self.cuts).zip(&self.partition_at) {
            glue[at..at + 4].copy_from_slice(&stamp.partition.to_be_bytes());
            let header = &mut glue[cut - HEADER_LEN..cut];
            let mut field = &mut header[PRODUCER_ID_AT..];
            field.put_i64(stamp.producer_id);
            field.put_i16(stamp.producer_epoch);
            field.put_i32(stamp.base_sequence);
            self.tail.seal(header);
        }
    }
}

/// Length of a compact array, string or bytes: one more than it is, 0 for null.
fn put_compact_len(out: &mut BytesMut, len: Option<usize>) {
    let mut value = len.map_or(0, |len| len + 1);
    while value >= 0x80 {
        out.put_u8(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.put_u8(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::{ProduceRequest, RequestHeader};
    use kafka_protocol::protocol::Decodable;

    use super::*;
    use crate::raw::batch::seal;

    fn assemble(template: &Template, glue: &[u8]) -> Bytes {
        let mut frame = BytesMut::new();
        let mut from = 0;
        for &cut in template.cuts() {
            frame.put_slice(&glue[from..cut]);
            frame.put_slice(&template.tail.bytes);
            from = cut;
        }
        frame.put_slice(&glue[from..]);
        frame.freeze()
    }

    #[test]
    fn the_crate_decodes_a_patched_request_and_every_crc_is_true() {
        let tail = Arc::new(Tail::new(4_000, 100, 1_700_000_000_000).unwrap());
        let template = Template::new("t", -1, 3, Arc::clone(&tail)).unwrap();
        let stamp = |i: i32| Stamp {
            partition: i,
            producer_id: 1 << 40,
            producer_epoch: 2,
            base_sequence: i * 1000,
        };
        let mut glue = vec![9; 7];
        template.patch(&mut glue, 77, &[stamp(5), stamp(6), stamp(7)]);
        let mut frame = assemble(&template, &glue);
        let len = frame.split_to(4);
        assert_eq!(
            u32::from_be_bytes(len[..].try_into().unwrap()) as usize,
            frame.len()
        );
        let header = RequestHeader::decode(&mut frame, 2).unwrap();
        assert_eq!(
            (header.request_api_key, header.request_api_version),
            (0, PRODUCE_VERSION)
        );
        assert_eq!(header.correlation_id, 77);
        let request = ProduceRequest::decode(&mut frame, PRODUCE_VERSION).unwrap();
        assert!(frame.is_empty());
        assert_eq!(request.acks, -1);
        let topic = &request.topic_data[0];
        assert_eq!(&**topic.name, "t");
        for (i, partition) in (5..).zip(&topic.partition_data) {
            assert_eq!(partition.index, i);
            let batch = partition.records.clone().unwrap();
            let mut sealed = batch.to_vec();
            seal(&mut sealed);
            assert_eq!(sealed, batch, "length and CRC of partition {i}");
            assert_eq!(batch[53..57], (i * 1000).to_be_bytes());
        }
        assert_eq!(topic.partition_data.len(), 3);
    }

    #[test]
    fn a_batch_is_as_long_as_asked_for_within_a_record() {
        for (batch, record) in [
            (65_536, 1_024),
            (1_048_576, 1_024),
            (200, 100),
            (16_384, 100),
        ] {
            let tail = Tail::new(batch, record, 0).unwrap();
            assert!(
                tail.batch_len() <= batch && tail.records >= 1,
                "{batch} {record}"
            );
        }
    }
}

//! Record batches of one partition, and which partition a key belongs to: pure.

use bytes::{BufMut, BytesMut};
use store_adapter::batch::{Batch, BatchHeader};
use store_adapter::ids::{ProducerEpoch, ProducerId, Sequence};
use store_adapter::records::Records;

/// Transactional.
const ATTRIBUTE_TRANSACTIONAL: i16 = 0x10;

/// Name and value of a header.
pub(in crate::command) type Header = (Vec<u8>, Option<Vec<u8>>);

/// Records on their way into one batch.
#[derive(Debug, Clone, Default)]
pub(in crate::command) struct Pending {
    records: BytesMut,
    scratch: BytesMut,
    /// How many records there are.
    pub(super) count: i32,
    /// Number of the first one in the input, from 1.
    pub(super) first: u64,
    /// Number of the last one.
    pub(super) last: u64,
    base_timestamp: i64,
    max_timestamp: i64,
}

/// Who writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::command) struct Producer {
    pub(in crate::command) id: ProducerId,
    pub(in crate::command) epoch: ProducerEpoch,
    pub(in crate::command) is_transactional: bool,
}

impl Pending {
    /// Bytes of the records.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Adds record `number` of the input.
    pub(in crate::command) fn push(
        &mut self,
        number: u64,
        timestamp: i64,
        (key, value): (Option<&[u8]>, Option<&[u8]>),
        headers: &[Header],
    ) {
        if self.count == 0 {
            (self.first, self.base_timestamp) = (number, timestamp);
            self.max_timestamp = timestamp;
        }
        self.last = number;
        let body = &mut self.scratch;
        body.clear();
        body.put_i8(0);
        put_varint(body, timestamp - self.base_timestamp);
        put_varint(body, i64::from(self.count));
        put_nullable(body, key);
        put_nullable(body, value);
        put_varint(body, length(headers.len()));
        for (name, value) in headers {
            put_nullable(body, Some(name));
            put_nullable(body, value.as_deref());
        }
        put_varint(&mut self.records, length(body.len()));
        self.records.put_slice(body);
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.count += 1;
    }

    /// The batch as it is sent.
    pub(in crate::command) fn batch(&self, producer: Producer, sequence: Sequence) -> Batch {
        let attributes = if producer.is_transactional {
            ATTRIBUTE_TRANSACTIONAL
        } else {
            0
        };
        let header = BatchHeader {
            base_offset: 0,
            batch_length: 0,
            leader_epoch: -1,
            magic: 2,
            crc: 0,
            attributes,
            last_offset_delta: self.count - 1,
            base_timestamp: self.base_timestamp,
            max_timestamp: self.max_timestamp,
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            base_sequence: sequence,
            records_count: self.count,
        };
        Batch::assemble(header, &self.records)
    }

    /// The first and the second half of the records; `None` of a single one.
    pub(super) fn halves(&self, producer: Producer) -> Option<(Self, Self)> {
        if self.count < 2 {
            return None;
        }
        let batch = self.batch(producer, Sequence(0));
        let records = Records::new(batch.header(), &self.records).ok()?;
        let (mut one, mut two) = (Self::default(), Self::default());
        for (number, record) in (self.first..).zip(records) {
            let record = record.ok()?;
            let headers = record.headers();
            let headers: Vec<Header> = headers
                .map(|(name, value)| (name.to_vec(), value.map(<[u8]>::to_vec)))
                .collect();
            let half = if record.offset_delta < self.count / 2 {
                &mut one
            } else {
                &mut two
            };
            half.push(
                number,
                record.timestamp,
                (record.key, record.value),
                &headers,
            );
        }
        Some((one, two))
    }
}

fn length(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

fn put_nullable(out: &mut BytesMut, bytes: Option<&[u8]>) {
    match bytes {
        None => put_varint(out, -1),
        Some(bytes) => {
            put_varint(out, length(bytes.len()));
            out.put_slice(bytes);
        }
    }
}

/// Appends a zigzag varint.
fn put_varint(out: &mut BytesMut, value: i64) {
    let mut zigzag = (value << 1).cast_unsigned() ^ (value >> 63).cast_unsigned();
    while zigzag >= 0x80 {
        let [low, ..] = zigzag.to_le_bytes();
        out.put_u8(low | 0x80);
        zigzag >>= 7;
    }
    let [low, ..] = zigzag.to_le_bytes();
    out.put_u8(low);
}

/// The partition of a key, as Kafka's producer has it: murmur2, without the sign.
pub(super) fn partition_of(key: &[u8], partitions: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % partitions.max(1)
}

fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    let mix = |k: u32| {
        let k = k.wrapping_mul(M);
        (k ^ (k >> 24)).wrapping_mul(M)
    };
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let (words, tail) = data.as_chunks::<4>();
    let mut hash = words.iter().fold(SEED ^ length, |hash, word| {
        hash.wrapping_mul(M) ^ mix(u32::from_le_bytes(*word))
    });
    if !tail.is_empty() {
        let mut word = [0; 4];
        word.iter_mut().zip(tail).for_each(|(to, from)| *to = *from);
        hash = (hash ^ u32::from_le_bytes(word)).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const NOBODY: Producer = Producer {
        id: ProducerId(7),
        epoch: ProducerEpoch(1),
        is_transactional: false,
    };

    /// The values that Kafka's own test has.
    #[test]
    fn keys_are_hashed_as_kafka_does() {
        for (key, expected) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), expected, "{key}");
        }
    }

    #[test]
    fn a_batch_holds_what_was_pushed_and_so_do_its_halves() {
        let headers = [(b"h".to_vec(), Some(b"v".to_vec())), (b"n".to_vec(), None)];
        let mut pending = Pending::default();
        for number in 10..13_u64 {
            let value = vec![b'x'; usize::try_from(number).unwrap() * 20];
            let timestamp = 1_000 - i64::try_from(number).unwrap();
            pending.push(number, timestamp, (None, Some(&value)), &headers);
        }
        let batch = pending.batch(NOBODY, Sequence(5));
        let batch = Batch::parse(batch.bytes().clone()).unwrap();
        assert_eq!(batch.header().max_timestamp, 990);
        let (one, two) = pending.halves(NOBODY).unwrap();
        assert_eq!((one.first, one.last, one.count), (10, 10, 1));
        assert_eq!((two.first, two.last, two.count), (11, 12, 2));
        assert!(one.halves(NOBODY).is_none());
        let mut seen = Vec::new();
        for half in [&one, &two] {
            let batch = half.batch(NOBODY, Sequence(0));
            let body: Bytes = batch.bytes().slice(store_adapter::batch::HEADER_LEN..);
            for record in Records::new(batch.header(), &body).unwrap() {
                let record = record.unwrap();
                assert_eq!(record.headers().count(), 2);
                seen.push((record.timestamp, record.value.unwrap().len()));
            }
        }
        assert_eq!(seen, [(990, 200), (989, 220), (988, 240)]);
    }
}

//! What a batch must be before it is classified and queued: `ProduceRequest.validateRecords`,
//! `UnifiedLog.analyzeAndValidateRecords` and `LogValidator` of Kafka, as pure functions.
//!
//! Uncompressed batches are walked record by record; compressed ones are judged by their header
//! and their first bytes unless the topic's rules want them unpacked, as compaction does, which
//! needs keys. Where Kafka fails without a good reason, this refuses: undefined codecs, offset
//! deltas that are not 0, 1, 2 and so on, producer fields that contradict each other.

mod packed;

use bytes::Bytes;
use store_adapter::batch::{Batch, BatchError, BatchHeader, HEADER_LEN};
use store_adapter::blob::{Batches, BlobError, single_batch as split};
use store_adapter::compression::{UNPACKED_MAX, UnpackError, unpack};
use store_adapter::records::{RecordError, Records};

use super::{CompactionRules, RetentionRules};

/// First version of Produce that has zstd.
const ZSTD_FROM: i16 = 7;
/// zstd is the last codec that is defined.
const CODEC_MAX: u8 = 4;
const NO_TIMESTAMP: i64 = -1;
/// Records that an answer names one by one; a batch may claim more than its bytes can hold.
const RECORD_ERRORS_MAX: usize = 65_536;

/// Who sets timestamps (`message.timestamp.type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer.
    CreateTime,
    /// The log, at append.
    LogAppendTime,
}

/// The configs of a topic that decide about a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicRules {
    /// `max.message.bytes`: largest batch in bytes, as sent, header included.
    pub max_message_bytes: i64,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`: how far a timestamp may lie in the past.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`: how far a timestamp may lie in the future.
    pub timestamp_after_max_ms: i64,
    /// `cleanup.policy` contains compact: every record needs a key.
    pub compact: bool,
    /// `validate` is full: compressed batches are unpacked and their records looked at. Those of a
    /// compacted topic always are.
    pub unpack: bool,
    /// `cleanup.policy` contains delete: old records go.
    pub delete: bool,
    /// When records go.
    pub retention: RetentionRules,
    /// When records that are not the newest of their key go, if `compact`.
    pub compaction: CompactionRules,
}

impl TopicRules {
    /// Whether the records of compressed batches have to be looked at.
    pub fn look_inside(&self) -> bool {
        self.unpack || self.compact
    }
}

impl Default for TopicRules {
    /// Kafka's defaults.
    fn default() -> Self {
        Self {
            max_message_bytes: 1_048_588,
            timestamp_type: TimestampType::CreateTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 3_600_000,
            compact: false,
            unpack: false,
            delete: true,
            retention: RetentionRules::default(),
            compaction: CompactionRules::default(),
        }
    }
}

/// What is wrong with a batch as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRecord {
    /// The records are null.
    #[error("records are null")]
    Null,
    /// Not exactly one whole batch of magic 2.
    #[error("{0}")]
    Blob(BlobError),
    /// A client's batch starts at offset 0.
    #[error("base offset {0}, must be 0")]
    BaseOffset(i64),
    /// A client cannot write control batches.
    #[error("control batch from a client")]
    Control,
    /// The count is not positive, or is not the offset range.
    #[error("record count {count} with last offset delta {last_offset_delta}")]
    Count {
        /// Count of the header.
        count: i32,
        /// Last offset delta of the header.
        last_offset_delta: i32,
    },
    /// A compression codec that is not defined.
    #[error("compression codec {0} is not defined")]
    Codec(u8),
    /// Producer id, epoch, sequence and transactional bit contradict each other.
    #[error("producer id, epoch, sequence and attributes contradict each other")]
    ProducerFields,
    /// A compressed batch with records but without a byte of them.
    #[error("compressed batch without records")]
    NoRecords,
    /// Compressed records that do not begin as those of their codec.
    #[error("the records are not of the batch's codec")]
    Foreign,
    /// Compressed records that can't be unpacked.
    #[error("{0}")]
    Packed(UnpackError),
    /// A record that does not decode.
    #[error("{0}")]
    Record(RecordError),
    /// A record whose offset does not follow the one before it.
    #[error("record {index}: offset delta {offset_delta}")]
    OffsetDelta {
        /// Index of the record.
        index: i32,
        /// What it says.
        offset_delta: i32,
    },
}

/// One record of a batch that is refused because of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedRecord {
    /// Index of the record in the batch.
    pub index: i32,
    /// Why.
    pub why: RecordRefusal,
}

/// Why a single record is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordRefusal {
    /// A topic that is compacted needs keys.
    #[error("a record without key cannot go to a compacted topic")]
    NullKey,
    /// Too far in the past or in the future.
    #[error("timestamp {0} is too far from the broker's time")]
    Timestamp(i64),
    /// Only the log sets LogAppendTime.
    #[error("a producer cannot set timestamp type LogAppendTime")]
    TimestampType,
}

/// Why a batch is refused. Reasons, never numbers: `error_code` maps them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValidateError {
    /// The batch breaks a rule as a whole.
    #[error("invalid record: {0}")]
    InvalidRecord(InvalidRecord),
    /// Records without key for a compacted topic, and no other fault.
    #[error("{} records are refused", .0.len())]
    InvalidRecords(Vec<RefusedRecord>),
    /// At least one timestamp is refused.
    #[error("invalid timestamp")]
    InvalidTimestamp(Vec<RefusedRecord>),
    /// The bytes are damaged: length, magic or CRC.
    #[error("corrupt batch: {0}")]
    Corrupt(CorruptBatch),
    /// Larger than `max.message.bytes`: bytes of the batch as sent, and what the topic allows.
    #[error("batch of {0} bytes, max.message.bytes is {1}")]
    TooLarge(usize, i64),
    /// Larger than `segment.bytes`: the same.
    #[error("batch of {0} bytes, segment.bytes is {1}")]
    LargerThanSegment(usize, i64),
    /// A codec that this version of Produce does not have.
    #[error("zstd needs Produce v7")]
    UnsupportedCompression,
}

/// How a batch is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptBatch {
    /// Length field or magic.
    #[error("{0}")]
    Blob(BlobError),
    /// The header does not fit, or the CRC does not match.
    #[error("{0}")]
    Batch(BatchError),
}

impl ValidateError {
    /// The records that are named one by one: index and message.
    pub fn record_errors(&self) -> impl Iterator<Item = (i32, String)> + '_ {
        let records: &[RefusedRecord] = match self {
            Self::InvalidRecords(records) | Self::InvalidTimestamp(records) => records,
            Self::InvalidRecord(_)
            | Self::Corrupt(_)
            | Self::TooLarge(..)
            | Self::LargerThanSegment(..)
            | Self::UnsupportedCompression => &[],
        };
        records
            .iter()
            .map(|record| (record.index, record.why.to_string()))
    }
}

impl From<InvalidRecord> for ValidateError {
    fn from(why: InvalidRecord) -> Self {
        Self::InvalidRecord(why)
    }
}

impl From<BlobError> for ValidateError {
    fn from(error: BlobError) -> Self {
        match error {
            BlobError::BadLength(_) | BlobError::UnknownMagic(_) => {
                Self::Corrupt(CorruptBatch::Blob(error))
            }
            BlobError::Zstd => Self::UnsupportedCompression,
            BlobError::Empty
            | BlobError::Truncated
            | BlobError::OldMagic(_)
            | BlobError::NoHeader(_)
            | BlobError::SeveralBatches => Self::InvalidRecord(InvalidRecord::Blob(error)),
        }
    }
}

impl From<BatchError> for ValidateError {
    fn from(error: BatchError) -> Self {
        Self::Corrupt(CorruptBatch::Batch(error))
    }
}

/// What the records of one partition mean for the whole request, before any partition is looked
/// up: Kafka reads the first batch of each for the transactional bit and fails the request when it
/// cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peek {
    /// A length or a magic that no batch has: every partition of the request is refused.
    Corrupt,
    /// A transactional batch; both are -1 if it has no producer.
    Transactional {
        /// Producer id.
        producer_id: i64,
        /// Producer epoch.
        producer_epoch: i16,
    },
    /// Anything else.
    Plain,
}

/// Looks at the first batch of a partition's records.
pub fn peek(records: &[u8]) -> Peek {
    match Batches::new(records).next() {
        Some(Err(_)) => Peek::Corrupt,
        Some(Ok(batch)) => match BatchHeader::read(batch) {
            Ok(header) if header.magic == 2 && header.is_transactional() => Peek::Transactional {
                producer_id: header.producer_id.0,
                producer_epoch: header.producer_epoch.0,
            },
            _ => Peek::Plain,
        },
        None => Peek::Plain,
    }
}

/// The one batch that a partition was sent, its CRC not yet checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Single(Bytes);

impl Single {
    /// Whether it belongs to a transaction of a producer. Without a producer id the transactional
    /// bit is a contradiction, which [`batch`] refuses.
    pub fn is_transactional(&self) -> bool {
        matches!(peek(&self.0), Peek::Transactional { producer_id, .. } if producer_id >= 0)
    }

    /// Whether its records are compressed.
    pub fn is_compressed(&self) -> bool {
        BatchHeader::read(&self.0).is_ok_and(|header| header.compression() != 0)
    }

    /// The batch as sent.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

/// Finds the one batch in the records of a partition, for a Produce of `version`. Shares bytes.
pub fn single_batch(records: Option<&Bytes>, version: i16) -> Result<Single, ValidateError> {
    let records = records.ok_or(InvalidRecord::Null)?;
    let batch = split(records, version >= ZSTD_FROM)?;
    Ok(Single(records.slice_ref(batch)))
}

/// A batch that may be appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Valid {
    /// The batch, with timestamps as the topic wants them; the bytes as sent if it wants nothing.
    pub batch: Batch,
    /// The append time if the log sets timestamps.
    pub log_append_time: Option<i64>,
}

/// Checks a batch against the rules of its topic. The first check that fails decides.
pub fn batch(single: Single, rules: &TopicRules, now_ms: i64) -> Result<Valid, ValidateError> {
    batch_within(single, rules, now_ms, &mut { UNPACKED_MAX })
}

/// The same if its records unpack to no more than `room`, from which they are taken.
pub(super) fn batch_within(
    single: Single,
    rules: &TopicRules,
    now_ms: i64,
    room: &mut usize,
) -> Result<Valid, ValidateError> {
    let Single(bytes) = single;
    let header = BatchHeader::read(&bytes)?;
    if header.base_offset != 0 {
        return Err(InvalidRecord::BaseOffset(header.base_offset).into());
    }
    let (len, max) = (bytes.len(), rules.max_message_bytes);
    if i64::try_from(len).is_ok_and(|len| len > max) {
        return Err(ValidateError::TooLarge(len, max));
    }
    let batch = Batch::parse(bytes)?;
    check_header(&batch)?;
    let check = RecordCheck::new(rules, &header, now_ms);
    let records = batch.bytes().slice(HEADER_LEN..);
    let max_timestamp = match header.compression() {
        0 => check.records(&header, &records)?,
        _ if rules.look_inside() => {
            let unpacked = unpack(&header, &records, *room);
            let unpacked = unpacked.map_err(InvalidRecord::Packed)?;
            *room = room.saturating_sub(unpacked.len());
            check.records(&header, &unpacked)?
        }
        codec if packed::may_be(codec, &records) => check.header_only(&header)?,
        _ => return Err(InvalidRecord::Foreign.into()),
    };
    let (len, max) = (batch.bytes().len(), rules.retention.segment_bytes);
    if i64::try_from(len).is_ok_and(|len| len > max) {
        return Err(ValidateError::LargerThanSegment(len, max));
    }
    Ok(match rules.timestamp_type {
        TimestampType::CreateTime => Valid {
            batch: batch.with_create_time(max_timestamp),
            log_append_time: None,
        },
        TimestampType::LogAppendTime => Valid {
            batch: batch.with_log_append_time(now_ms),
            log_append_time: Some(now_ms),
        },
    })
}

fn check_header(batch: &Batch) -> Result<(), InvalidRecord> {
    let header = batch.header();
    if header.is_control() {
        return Err(InvalidRecord::Control);
    }
    let (count, last_offset_delta) = (header.records_count, header.last_offset_delta);
    if count <= 0 || last_offset_delta != count - 1 {
        return Err(InvalidRecord::Count {
            count,
            last_offset_delta,
        });
    }
    if header.compression() > CODEC_MAX {
        return Err(InvalidRecord::Codec(header.compression()));
    }
    if header.compression() != 0 && batch.bytes().len() == HEADER_LEN {
        return Err(InvalidRecord::NoRecords);
    }
    let agree = match header.producer_id.0 {
        -1 => !header.is_transactional(),
        id => id >= 0 && header.producer_epoch.0 >= 0 && header.base_sequence.0 >= 0,
    };
    if agree {
        Ok(())
    } else {
        Err(InvalidRecord::ProducerFields)
    }
}

/// The rules that concern single records.
struct RecordCheck<'a> {
    rules: &'a TopicRules,
    now_ms: i64,
    /// The batch claims that the log set its timestamps.
    claims_append_time: bool,
    refused: Vec<RefusedRecord>,
    timestamp_refused: bool,
}

impl<'a> RecordCheck<'a> {
    fn new(rules: &'a TopicRules, header: &BatchHeader, now_ms: i64) -> Self {
        Self {
            rules,
            now_ms,
            claims_append_time: header.is_log_append_time(),
            refused: Vec::new(),
            timestamp_refused: false,
        }
    }

    /// Walks the records. Returns the largest timestamp, -1 if there is none.
    fn records(mut self, header: &BatchHeader, records: &[u8]) -> Result<i64, ValidateError> {
        let mut header = *header;
        // The records' own timestamps, whatever the header claims.
        header.attributes &= !0x08;
        let records = Records::unpacked(&header, records).map_err(InvalidRecord::Record)?;
        let mut max_timestamp = NO_TIMESTAMP;
        for (index, record) in (0..).zip(records) {
            let record = record.map_err(InvalidRecord::Record)?;
            if record.offset_delta != index {
                return Err(InvalidRecord::OffsetDelta {
                    index,
                    offset_delta: record.offset_delta,
                }
                .into());
            }
            max_timestamp = max_timestamp.max(record.timestamp);
            if self.rules.compact && record.key.is_none() {
                self.refuse(index, RecordRefusal::NullKey);
            } else if let Some(why) = self.timestamp(record.timestamp) {
                self.refuse(index, why);
            }
        }
        self.finish()?;
        Ok(max_timestamp)
    }

    /// A compressed batch: the first record's timestamp and the largest are known, keys are not.
    fn header_only(mut self, header: &BatchHeader) -> Result<i64, ValidateError> {
        match self.timestamp(header.max_timestamp) {
            Some(RecordRefusal::TimestampType) => {
                // Every record has it.
                for index in 0..header.records_count {
                    self.refuse(index, RecordRefusal::TimestampType);
                    if self.refused.len() == RECORD_ERRORS_MAX {
                        break;
                    }
                }
            }
            // Which record has it is not known.
            Some(_) => self.timestamp_refused = true,
            None => {
                if let Some(why) = self.timestamp(header.base_timestamp) {
                    self.refuse(0, why);
                }
            }
        }
        self.finish()?;
        Ok(header.max_timestamp)
    }

    fn timestamp(&self, timestamp: i64) -> Option<RecordRefusal> {
        let create_time = self.rules.timestamp_type == TimestampType::CreateTime;
        if !create_time || timestamp == NO_TIMESTAMP {
            return self
                .claims_append_time
                .then_some(RecordRefusal::TimestampType);
        }
        let age = self.now_ms.saturating_sub(timestamp);
        let ahead = timestamp.saturating_sub(self.now_ms);
        let refused =
            age > self.rules.timestamp_before_max_ms || ahead > self.rules.timestamp_after_max_ms;
        refused.then_some(RecordRefusal::Timestamp(timestamp))
    }

    fn refuse(&mut self, index: i32, why: RecordRefusal) {
        self.timestamp_refused |= why != RecordRefusal::NullKey;
        if self.refused.len() < RECORD_ERRORS_MAX {
            self.refused.push(RefusedRecord { index, why });
        }
    }

    fn finish(self) -> Result<(), ValidateError> {
        if self.timestamp_refused {
            Err(ValidateError::InvalidTimestamp(self.refused))
        } else if self.refused.is_empty() {
            Ok(())
        } else {
            Err(ValidateError::InvalidRecords(self.refused))
        }
    }
}

#[cfg(test)]
mod tests;

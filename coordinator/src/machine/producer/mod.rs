//! Producer state of one partition: dedupe window, open transactions, aborted index; and the
//! arithmetic of producer-id blocks.
//!
//! Durable state is a function of the log alone: folding [`states::ProducerStates::replay`] over
//! the batches of a log gives what the partition had when it wrote them. Beside it stands the
//! *queued tail*, batches that have offsets and no durable commit yet.

pub mod entry;
pub mod id_block;
pub mod refused;
mod states;
pub mod txn_index;
pub mod window;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod vector_tests;

pub use entry::{LastMarker, ProducerEntry};
pub use states::{BatchProof, Image, ProducerStates};
pub use txn_index::{AbortedTxn, TxnIndex};
pub use window::{BatchMetadata, WINDOW_LEN, Window};

use store_adapter::batch::BatchHeader;
use store_adapter::ids::{ProducerEpoch, ProducerId, Sequence};

/// What a marker (end-of-transaction control record) says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkerInfo {
    /// COMMIT, or ABORT.
    pub commit: bool,
    /// Epoch of the transaction slot's owner.
    pub coordinator_epoch: i32,
    /// Number of the transaction within its transactional id; `None` in markers of other systems.
    pub txn_seq: Option<u64>,
}

/// What producer state needs to know of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchMeta {
    /// Producer id, -1 for none.
    pub producer_id: ProducerId,
    /// Producer epoch, -1 for none.
    pub producer_epoch: ProducerEpoch,
    /// Sequence of the first record, -1 for none.
    pub first_seq: Sequence,
    /// Sequence of the last record, -1 for none.
    pub last_seq: Sequence,
    /// Offset of the first record: assigned when the batch is queued.
    pub base_offset: i64,
    /// Offset of the last record.
    pub last_offset: i64,
    /// Largest record timestamp, ms.
    pub max_timestamp: i64,
    /// Time of the append, ms since the Unix epoch, as the store keeps it.
    pub append_ms: i64,
    /// CRC-32C of the batch header.
    pub crc: u32,
    /// Transactional bit.
    pub is_transactional: bool,
    /// Control bit.
    pub is_control: bool,
    /// Whether the batch came through the implicit add of Produce v12+ (TV2, KIP-890). Matters to
    /// [`ProducerStates::classify`] only.
    pub implicit_add: bool,
    /// The marker in a control batch; `None` for data and for control records of other types.
    pub marker: Option<MarkerInfo>,
}

impl BatchMeta {
    /// Reads the header of a batch that has its offsets. `marker` is what its control record says.
    pub fn from_header(header: &BatchHeader, append_ms: i64, marker: Option<MarkerInfo>) -> Self {
        Self {
            producer_id: header.producer_id,
            producer_epoch: header.producer_epoch,
            first_seq: header.base_sequence,
            last_seq: header.last_sequence(),
            base_offset: header.base_offset,
            last_offset: header.last_offset(),
            max_timestamp: header.max_timestamp,
            append_ms,
            crc: header.crc,
            is_transactional: header.is_transactional(),
            is_control: header.is_control(),
            implicit_add: false,
            marker,
        }
    }
}

/// A batch that the log holds, or is about to hold, already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duplicate {
    /// Offset of its first record.
    pub base_offset: i64,
    /// Offset of its last record.
    pub last_offset: i64,
    /// Its largest timestamp, ms: `log_append_time_ms` of the answer, whatever the topic's
    /// timestamp type.
    pub timestamp: i64,
}

/// How a batch of a client relates to the state of its producer (kafka-contract 1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Give it offsets and queue it.
    Accept,
    /// A durable batch of the window, to be answered from it.
    DuplicateDurable(Duplicate),
    /// A queued batch of the window: the answer waits for that batch's commit.
    DuplicateQueued(Duplicate),
    /// Neither the next sequence nor in the window: OUT_OF_ORDER_SEQUENCE_NUMBER.
    OutOfOrder,
    /// Epoch below the producer's: INVALID_PRODUCER_EPOCH on Produce.
    StaleEpoch,
    /// Not transactional while the producer has an open transaction: INVALID_TXN_STATE.
    InvalidTxnState,
    /// Producer fields that contradict each other, or a control batch: INVALID_RECORD.
    InvalidRecord,
}

/// How a marker relates to the state of its producer (kafka-contract 3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkerVerdict {
    /// Give it an offset and queue it.
    Append,
    /// The durable log has what it would say, or something later.
    Durable,
    /// A queued batch says it: the answer waits for that batch's commit.
    Queued,
    /// Its epoch is below the producer's: INVALID_PRODUCER_EPOCH.
    StaleEpoch,
    /// It has no number, and a later coordinator has written a marker of the producer:
    /// TRANSACTION_COORDINATOR_FENCED.
    CoordinatorFenced,
}

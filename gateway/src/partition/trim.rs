//! The log's start: it moves forward, durably, and never past the newest durable snapshot.

use store_adapter::store::{Op, StoreError};

use super::{AppendError, Partition, Status, Visible};

/// The offset that stands for the high watermark.
const HIGH_WATERMARK: i64 = -1;

/// Why records were not deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrimError {
    /// The offset lies behind the high watermark, or is none.
    #[error("offset out of range")]
    OffsetOutOfRange,
    /// Another broker, or another instance of this one, leads the partition.
    #[error("not the leader")]
    NotLeader,
    /// It did not happen, or may have; asking again finds out.
    #[error("not known to be durable: {0}")]
    Unavailable(String),
    /// The partition's storage does not serve.
    #[error("storage: {0}")]
    Storage(String),
}

impl From<StoreError> for TrimError {
    fn from(error: StoreError) -> Self {
        let text = error.to_string();
        match error {
            StoreError::Fenced | StoreError::NotFound | StoreError::Uncertain { fenced: true } => {
                Self::NotLeader
            }
            StoreError::OutOfRange { .. } => Self::OffsetOutOfRange,
            StoreError::Unavailable(_) | StoreError::Uncertain { fenced: false } => {
                Self::Unavailable(text)
            }
            StoreError::EndMismatch { .. }
            | StoreError::TooLarge { .. }
            | StoreError::Full { .. }
            | StoreError::Corrupt { .. }
            | StoreError::Offline(_)
            | StoreError::Unsupported(_) => Self::Storage(text),
        }
    }
}

impl Partition {
    /// Deletes the records below `offset`; -1 is the high watermark. The log's start afterwards,
    /// which is durable; it stays where it is when it lies behind `offset` already.
    ///
    /// # Errors
    /// See [`TrimError`]; after [`TrimError::Unavailable`] the records may be gone or not.
    pub async fn delete_records(&self, offset: i64) -> Result<i64, TrimError> {
        if let Status::Closed(reason) = &self.state.lock().status {
            return Err(closed(reason));
        }
        let Visible {
            log_start,
            high_watermark,
            ..
        } = self.visible();
        let start = match offset {
            HIGH_WATERMARK => high_watermark,
            offset if (0..=high_watermark).contains(&offset) => offset,
            _ => return Err(TrimError::OffsetOutOfRange),
        };
        if start <= log_start {
            return Ok(log_start);
        }
        if let Some(space) = &self.deps.space {
            space.make_way().await;
        }
        // What is replayed at the next start begins behind it: without a snapshot, what the
        // deleted batches say of their producers would be lost.
        self.write_snapshot()
            .await
            .map_err(TrimError::Unavailable)?;
        let trim = Op::Trim {
            log: self.id,
            epoch: self.epoch,
            start,
        };
        let trimmed = self.deps.store.submit(vec![trim]).await;
        // Also after an error: the store knows what became of it.
        self.follow_log_start();
        trimmed?;
        Ok(self.visible().log_start)
    }

    /// Shows readers the log's start as the store has it.
    pub(super) fn follow_log_start(&self) {
        let Some(bounds) = self.deps.store.bounds(self.id) else {
            return;
        };
        let mut state = self.state.lock();
        state.producers.trim(bounds.start);
        self.visible.send_modify(|visible| {
            visible.log_start = visible.log_start.max(bounds.start);
            visible.last_stable = visible.last_stable.max(visible.log_start);
        });
    }
}

fn closed(reason: &AppendError) -> TrimError {
    match reason {
        AppendError::Full | AppendError::Storage(_) | AppendError::Offline(_) => {
            TrimError::Storage(reason.to_string())
        }
        AppendError::OutOfOrderSequence
        | AppendError::StaleEpoch
        | AppendError::InvalidTxnState
        | AppendError::InvalidRecord
        | AppendError::Unverified
        | AppendError::CoordinatorFenced
        | AppendError::NotLeader
        | AppendError::Settling
        | AppendError::Uncertain
        | AppendError::TimedOut
        | AppendError::TooLarge => TrimError::NotLeader,
    }
}

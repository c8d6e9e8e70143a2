//! The files of transaction slots, as the service needs them.

use std::fmt::Debug;

use store_adapter::ids::OwnerEpoch;
use store_adapter::runtime::BoxFuture;

use crate::volume::format::{SlotText, TxnSlotFile};

/// Why a slot was not taken over, read or replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SlotFileError {
    /// Another process owns the slot.
    #[error("another broker process owns the transaction slot")]
    Stale,
    /// The file can't be what was written. It was reported and is left as it is.
    #[error("damaged: {0}")]
    Damaged(String),
    /// It did not happen; may be tried again.
    #[error("{0}")]
    NotApplied(String),
    /// It may have happened: read the file again.
    #[error("the outcome is not known: {0}")]
    MaybeApplied(String),
}

/// The slot files on the volume. Its futures are awaited in io tasks only. Different slots may be
/// read and replaced at the same time, one slot not.
pub trait SlotFiles: Send + Sync + Debug + 'static {
    /// Takes a slot over by `epoch`, reads it, and keeps what it was before it is first replaced.
    /// Repeating it with the same epoch is no harm.
    fn claim(
        &self,
        slot: u32,
        epoch: OwnerEpoch,
    ) -> BoxFuture<'_, Result<TxnSlotFile, SlotFileError>>;
    /// Reads a slot that was taken over; empty if it was never written.
    fn load(&self, slot: u32) -> BoxFuture<'_, Result<TxnSlotFile, SlotFileError>>;
    /// Whether a slot that was taken over is still owned, asked of the volume.
    fn check(&self, slot: u32) -> BoxFuture<'_, Result<(), SlotFileError>>;
    /// Replaces a slot's file; durable when it returns `Ok`.
    fn replace(&self, slot: u32, text: SlotText) -> BoxFuture<'_, Result<(), SlotFileError>>;
}

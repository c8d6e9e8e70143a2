//! The files of marker queues, as the service needs them.

use std::fmt::Debug;

use store_adapter::ids::{BrokerId, ProducerEpoch, ProducerId};
use store_adapter::runtime::BoxFuture;

use super::Received;
use crate::volume::format::MarkerQueueFile;

/// Why a file of a queue was not written, read, renamed or removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueFileError {
    /// Another process owns the slot of the transactional id.
    #[error("another broker process owns the transaction slot")]
    Stale,
    /// The name is taken by an entry of another transaction, which was reported.
    #[error("an entry of transaction {found:?} is in the way of that of {txn_seq:?}")]
    Taken {
        /// The number of the one that is there.
        found: Option<u64>,
        /// The number of the one that was to be put.
        txn_seq: Option<u64>,
    },
    /// The broker has not carried out yet what it was asked for before. What it need not do any
    /// more was taken back; the rest is to be put when it has.
    #[error("what the broker was asked for before comes first")]
    Waits,
    /// It failed, or may have happened.
    #[error("marker queue: {0}")]
    Unavailable(String),
}

/// What names an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueName {
    /// Whose queue it is in.
    pub to: BrokerId,
    /// The producer.
    pub pid: ProducerId,
    /// The epoch of the records.
    pub record_epoch: ProducerEpoch,
}

/// What became of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It waits for the receiver.
    Queued,
    /// The receiver has carried out what this file asks for, which may be less.
    Done(Box<MarkerQueueFile>),
    /// It is not there, asks for something else, or is damaged or another, which was reported: it
    /// is to be put again.
    Missing,
}

/// An entry or done file that was found in a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    /// The name of the entry.
    pub name: QueueName,
    /// For a done file, the number in its name.
    pub done: Option<u64>,
    /// The content; `None` if it can't be understood.
    pub file: Option<MarkerQueueFile>,
}

/// `marker_queue/*`. Its futures are awaited in an io task only.
pub trait QueueFiles: Send + Sync + Debug + 'static {
    /// Puts an entry into a queue, over one of the same decision; durable when it returns `Ok`. The
    /// receiver renames whatever is there when it has carried out what it read: so an entry is
    /// replaced only by one that asks for no more.
    fn put<'a>(
        &'a self,
        name: QueueName,
        entry: &'a MarkerQueueFile,
    ) -> BoxFuture<'a, Result<(), QueueFileError>>;
    /// The entries of the own queue.
    fn received(&self) -> BoxFuture<'_, Result<Vec<Received>, QueueFileError>>;
    /// Renames an entry of the own queue that was carried out to its done file, durably; one
    /// without a number, which nobody waits for, is removed. One that asks for more by now is left.
    fn done<'a>(&'a self, one: &'a Received) -> BoxFuture<'a, Result<(), QueueFileError>>;
    /// What became of an entry that is to ask for what `wanted` does. `txn_seq` is its number.
    fn look<'a>(
        &'a self,
        name: QueueName,
        txn_seq: u64,
        wanted: &'a MarkerQueueFile,
    ) -> BoxFuture<'a, Result<Standing, QueueFileError>>;
    /// Removes a done file.
    fn remove_done(
        &self,
        name: QueueName,
        txn_seq: u64,
    ) -> BoxFuture<'_, Result<(), QueueFileError>>;
    /// Every entry and done file of every queue.
    fn all(&self) -> BoxFuture<'_, Result<Vec<Stray>, QueueFileError>>;
    /// Removes one of them.
    fn remove<'a>(&'a self, stray: &'a Stray) -> BoxFuture<'a, Result<(), QueueFileError>>;
}

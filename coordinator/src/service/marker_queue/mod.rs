//! Marker queues: what brokers tell each other of decided transactions, as files.
//!
//! A coordinator puts an entry into the queue of a broker that leads partitions of a decided
//! transaction, or has groups of it. The receiver carries it out and renames the entry to a done
//! file, by which the coordinator learns of it; nothing is concluded from a file that is missing.
//! Only the owner of the transactional id's slot makes and removes entries.
//!
//! All file work is one io task behind a channel.

mod files;
mod owner;

use std::sync::Arc;

use store_adapter::ids::{BrokerId, ProducerEpoch, ProducerId};
use store_adapter::runtime::{BoxFuture, Env};
use tokio::sync::{mpsc, oneshot};

pub use self::files::{QueueFileError, QueueFiles, QueueName, Standing, Stray};
pub use self::owner::SettleError;

use crate::service::txns::{Done, MarkerQueue, PortError};
use crate::volume::format::MarkerQueueFile;

/// Works on the files, in the io task.
type Work = Box<dyn FnOnce(Arc<dyn QueueFiles>) -> BoxFuture<'static, ()> + Send>;

/// The service; clones share it. When the last one is dropped its io task ends.
#[derive(Clone)]
pub struct MarkerQueues {
    work: mpsc::UnboundedSender<Work>,
}

impl std::fmt::Debug for MarkerQueues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MarkerQueues").finish_non_exhaustive()
    }
}

/// An entry of the own queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The producer that names it.
    pub pid: ProducerId,
    /// The epoch of the records.
    pub record_epoch: ProducerEpoch,
    /// What is to be done.
    pub file: MarkerQueueFile,
}

impl MarkerQueues {
    /// Starts the service.
    pub fn start(env: &Env, files: Arc<dyn QueueFiles>) -> Self {
        let (work, mut queue) = mpsc::unbounded_channel::<Work>();
        let task = Box::pin(async move {
            while let Some(work) = queue.recv().await {
                work(files.clone()).await;
            }
        });
        drop(env.runtime.spawn_io("marker-queue", task));
        Self { work }
    }

    /// Puts an entry into the queue of a broker; durable when it returns.
    ///
    /// # Errors
    /// See [`QueueFileError`]; [`QueueFileError::Waits`] passes when the broker has done its part.
    pub async fn put(&self, name: QueueName, entry: MarkerQueueFile) -> Result<(), QueueFileError> {
        self.run(async move |files| files.put(name, &entry).await)
            .await
    }

    /// The entries of the own queue, in the order in which they are to be carried out. Damaged
    /// ones were reported and are left out: whoever made them makes them again.
    ///
    /// # Errors
    /// If the queue can't be read.
    pub async fn received(&self) -> Result<Vec<Received>, QueueFileError> {
        let mut received = self.run(async move |files| files.received().await).await?;
        received.sort_by_key(|one| (one.pid, one.record_epoch, one.file.txn_seq));
        Ok(received)
    }

    /// Says that an entry of the own queue is carried out; durable when it returns.
    ///
    /// # Errors
    /// See [`QueueFileError`]; it may be said all the same.
    pub async fn done(&self, one: &Received) -> Result<(), QueueFileError> {
        let one = one.clone();
        self.run(async move |files| files.done(&one).await).await
    }

    /// What became of an entry that is to be in a queue.
    ///
    /// # Errors
    /// If it could not be looked at.
    pub async fn look(
        &self,
        name: QueueName,
        txn_seq: u64,
        wanted: MarkerQueueFile,
    ) -> Result<Standing, QueueFileError> {
        self.run(async move |files| files.look(name, txn_seq, &wanted).await)
            .await
    }

    /// Removes a done file whose message was taken.
    ///
    /// # Errors
    /// See [`QueueFileError`].
    pub async fn remove_done(&self, name: QueueName, txn_seq: u64) -> Result<(), QueueFileError> {
        self.run(async move |files| files.remove_done(name, txn_seq).await)
            .await
    }

    /// Every entry and done file of every queue.
    ///
    /// # Errors
    /// If a queue can't be read.
    pub async fn all(&self) -> Result<Vec<Stray>, QueueFileError> {
        self.run(async move |files| files.all().await).await
    }

    /// Removes a file that nobody is owed any more.
    ///
    /// # Errors
    /// See [`QueueFileError`].
    pub async fn remove(&self, stray: Stray) -> Result<(), QueueFileError> {
        self.run(async move |files| files.remove(&stray).await)
            .await
    }

    async fn run<T, F>(
        &self,
        work: impl FnOnce(Arc<dyn QueueFiles>) -> F + Send + 'static,
    ) -> Result<T, QueueFileError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, QueueFileError>> + Send + 'static,
    {
        let stopped = || QueueFileError::Unavailable("its task has stopped".to_owned());
        let (reply, answer) = oneshot::channel();
        let work: Work = Box::new(move |files| {
            Box::pin(async move {
                // Whoever asked may have gone.
                drop(reply.send(work(files).await));
            })
        });
        self.work.send(work).map_err(|_| stopped())?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }
}

impl MarkerQueue for MarkerQueues {
    fn enqueue(
        &self,
        to: BrokerId,
        record_epoch: ProducerEpoch,
        entry: MarkerQueueFile,
    ) -> Done<'_> {
        Box::pin(async move {
            let name = QueueName {
                to,
                pid: ProducerId(entry.producer_id),
                record_epoch,
            };
            let put = self.put(name, entry).await;
            put.map_err(|error| PortError(error.to_string()))
        })
    }
}

//! Fences: producers whose older sessions append nowhere any more.
//!
//! A broker publishes the fences that its transactional ids make in a file of its own, and knows
//! those of every broker. One is in force here when its file is durable, and not before its
//! publication is answered; elsewhere with the next look at the files. The table judges data
//! batches only: it never changes what a partition knows of a producer, and never judges a marker.

mod keeper;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use store_adapter::ids::{BrokerId, ProducerId};
use store_adapter::runtime::{BoxFuture, Env};
use tokio::sync::{mpsc, oneshot};

pub use self::table::FenceTable;

use self::keeper::{Ask, Keeper};
use crate::machine::txn::Fence;
use crate::service::txns::{Done, FenceSink, PortError};
use crate::volume::format::{FENCES_MAX, FencesFile};

/// Why a file of fences was not read or replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FenceFileError {
    /// What the own file says is not to be believed; it was reported and is left as it is.
    #[error("the file of fences is damaged: {0}")]
    Damaged(String),
    /// Not reached, full, or owned by a later process by now. A replacement may have happened.
    #[error("the file of fences: {0}")]
    Unavailable(String),
}

/// `producer_fences/from-*.json`. Its futures are awaited in an io task only.
pub trait FenceFiles: Send + Sync + Debug + 'static {
    /// What this broker has published; empty if it never did.
    fn own(&self) -> BoxFuture<'_, Result<FencesFile, FenceFileError>>;
    /// Replaces it; durable when it returns `Ok`.
    fn replace<'a>(&'a self, file: &'a FencesFile) -> BoxFuture<'a, Result<(), FenceFileError>>;
    /// What the other brokers have published. Of a file that can't be read or believed, what it
    /// said before.
    fn others(&self) -> BoxFuture<'_, Vec<(BrokerId, Arc<FencesFile>)>>;
}

/// Knows who uses producer ids.
pub trait LastUse: Send + Sync + Debug + 'static {
    /// When those of `producers` that a transactional id has were used last, ms since the Unix
    /// epoch; `None` while that can't be said. Never waits.
    fn last_use(&self, producers: &BTreeSet<ProducerId>) -> Option<BTreeMap<ProducerId, i64>>;
}

/// The service; clones share it. When the last one is dropped its io task ends.
#[derive(Debug, Clone)]
pub struct Fences {
    table: Arc<FenceTable>,
    asks: mpsc::UnboundedSender<Ask>,
    failing: Arc<AtomicBool>,
}

impl Fences {
    /// Starts the service. A fence that nobody has used for `expiration_ms`
    /// (`producer.id.expiration.ms`) is dropped: its producer id has expired everywhere.
    pub fn start(env: &Env, files: Arc<dyn FenceFiles>, expiration_ms: i64) -> Self {
        Self::start_bounded(env, files, expiration_ms, FENCES_MAX)
    }

    /// The same with at most `fences_max` fences of the own, of which the oldest give way.
    fn start_bounded(
        env: &Env,
        files: Arc<dyn FenceFiles>,
        expiration_ms: i64,
        fences_max: usize,
    ) -> Self {
        let (asks, asked) = mpsc::unbounded_channel();
        let table = Arc::new(FenceTable::default());
        let failing = Arc::<AtomicBool>::default();
        let keeper = Keeper::new(
            env.clock.clone(),
            files,
            table.clone(),
            expiration_ms,
            fences_max,
            failing.clone(),
        );
        let task = Box::pin(keeper.run(asked));
        drop(env.runtime.spawn_io("fences", task));
        Self {
            table,
            asks,
            failing,
        }
    }

    /// What is in force here.
    pub fn table(&self) -> &Arc<FenceTable> {
        &self.table
    }

    /// Reads every file that has changed.
    ///
    /// # Errors
    /// Where the own file is damaged, or can't be read or replaced; of the others all is in force.
    pub async fn load(&self) -> Result<(), FenceFileError> {
        self.ask(|reply| Ask::Poll(None, reply)).await
    }

    /// The same, and drops what has expired: it was raised that long ago, and the transactional id
    /// of this broker that has the producer, if one has, was used that long ago too.
    ///
    /// # Errors
    /// As [`Fences::load`].
    pub async fn poll(&self, uses: Arc<dyn LastUse>) -> Result<(), FenceFileError> {
        self.ask(|reply| Ask::Poll(Some(uses), reply)).await
    }

    /// Publishes fences: durable and in force here when it returns. All that are published
    /// meanwhile share a write.
    ///
    /// # Errors
    /// Where the own file is damaged, or can't be read or replaced; it may have been replaced.
    pub async fn publish(&self, fences: Vec<Fence>) -> Result<(), FenceFileError> {
        self.ask(|reply| Ask::Publish(fences, reply)).await
    }

    async fn ask(
        &self,
        ask: impl FnOnce(oneshot::Sender<Result<(), FenceFileError>>) -> Ask,
    ) -> Result<(), FenceFileError> {
        let stopped = || FenceFileError::Unavailable("its task has stopped".to_owned());
        let (reply, answer) = oneshot::channel();
        self.asks.send(ask(reply)).map_err(|_| stopped())?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }
}

impl FenceSink for Fences {
    fn ready(&self) -> Done<'_> {
        if !self.failing.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(Ok(())));
        }
        // It may be well again.
        FenceSink::publish(self, Vec::new())
    }

    fn publish(&self, fences: Vec<Fence>) -> Done<'_> {
        Box::pin(async move {
            let published = Self::publish(self, fences).await;
            published.map_err(|error| PortError(error.to_string()))
        })
    }
}

#[cfg(test)]
mod tests;

//! What the writer of a shard shares with everybody else: the queue, and what is published.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;

use super::extents::LogIndex;
use super::queue::Queue;
use super::sift::Rewrites;
use crate::ids::{LogId, ShardId};
use crate::store::{Bounds, StoreError};

/// A shard that is open, or was.
#[derive(Debug)]
pub(crate) struct Shard {
    /// Its number.
    pub(crate) id: ShardId,
    /// What waits for its writer; closed with the shard.
    pub(crate) queue: Queue,
    /// What waits for whoever gives space back.
    pub(crate) rewrites: Rewrites,
}

impl Shard {
    /// Why the shard serves nothing, if it does not.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.queue.closed().map_or(Ok(()), Err)
    }
}

/// A log as it is published.
#[derive(Debug)]
pub(crate) struct Log {
    /// Its id.
    pub(crate) id: LogId,
    /// The topic's name.
    pub(crate) name: Arc<str>,
    /// Its shard.
    pub(crate) shard: Arc<Shard>,
    /// Start and durable end.
    pub(crate) bounds: watch::Sender<Bounds>,
    /// Where its batches lie.
    pub(crate) index: RwLock<LogIndex>,
    /// Why it can't be served.
    pub(crate) damaged: Option<StoreError>,
}

impl Log {
    /// Whether the log can be read.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.shard.check()?;
        self.damaged.clone().map_or(Ok(()), Err)
    }
}

/// The logs of all shards that were opened.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    logs: RwLock<BTreeMap<LogId, Arc<Log>>>,
}

impl Registry {
    /// The log.
    pub(crate) fn get(&self, id: LogId) -> Option<Arc<Log>> {
        self.logs.read().get(&id).cloned()
    }

    /// All logs, in order of their ids.
    pub(crate) fn all(&self) -> Vec<Arc<Log>> {
        self.logs.read().values().cloned().collect()
    }

    /// Publishes logs, in place of older ones of the same ids.
    pub(crate) fn insert(&self, logs: impl IntoIterator<Item = Arc<Log>>) {
        let mut held = self.logs.write();
        for log in logs {
            held.insert(log.id, log);
        }
    }

    /// Forgets a log of `shard`.
    pub(crate) fn remove(&self, id: LogId, shard: ShardId) {
        let mut held = self.logs.write();
        if held.get(&id).is_some_and(|log| log.shard.id == shard) {
            held.remove(&id);
        }
    }

    /// Forgets all logs of `shard`.
    pub(crate) fn remove_shard(&self, shard: ShardId) {
        self.logs.write().retain(|_, log| log.shard.id != shard);
    }
}

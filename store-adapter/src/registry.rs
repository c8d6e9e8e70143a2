//! The logs of a store, found without its writers.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::ids::{LogId, ShardId};

/// What a log says of itself to be found.
pub(crate) trait Registered {
    /// Its id.
    fn id(&self) -> LogId;
    /// The shard that it lies in.
    fn shard_id(&self) -> ShardId;
}

/// The logs of all shards that were opened.
#[derive(Debug)]
pub(crate) struct Registry<L> {
    logs: RwLock<BTreeMap<LogId, Arc<L>>>,
}

impl<L> Default for Registry<L> {
    fn default() -> Self {
        Self {
            logs: RwLock::default(),
        }
    }
}

impl<L: Registered> Registry<L> {
    /// The log.
    pub(crate) fn get(&self, id: LogId) -> Option<Arc<L>> {
        self.logs.read().get(&id).cloned()
    }

    /// All logs, in order of their ids.
    pub(crate) fn all(&self) -> Vec<Arc<L>> {
        self.logs.read().values().cloned().collect()
    }

    /// Publishes logs, in place of older ones of the same ids.
    pub(crate) fn insert(&self, logs: impl IntoIterator<Item = Arc<L>>) {
        let mut held = self.logs.write();
        for log in logs {
            held.insert(log.id(), log);
        }
    }

    /// Forgets a log of `shard`.
    pub(crate) fn remove(&self, id: LogId, shard: ShardId) {
        let mut held = self.logs.write();
        if held.get(&id).is_some_and(|log| log.shard_id() == shard) {
            held.remove(&id);
        }
    }

    /// Forgets all logs of `shard`.
    pub(crate) fn remove_shard(&self, shard: ShardId) {
        self.logs.write().retain(|_, log| log.shard_id() != shard);
    }
}

//! What the writer of a shard shares with everybody else: the queue, and what is published.

use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;

use super::asked::Rewrites;
use super::extents::LogIndex;
use super::files::shard_dir;
use super::queue::Queue;
use crate::ids::{LogId, ShardId};
use crate::registry::Registered;
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
    /// Stands for a shard while it is opened: refuses everything, for now.
    pub(crate) fn being_opened(id: ShardId) -> Arc<Self> {
        let queue = Queue::new(0);
        queue.close(&StoreError::Offline(format!(
            "{}: the shard is being opened",
            shard_dir(id)
        )));
        Arc::new(Self {
            id,
            queue,
            rewrites: Rewrites::default(),
        })
    }

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

impl Registered for Log {
    fn id(&self) -> LogId {
        self.id
    }

    fn shard_id(&self) -> ShardId {
        self.shard.id
    }
}

/// The logs of all shards that were opened.
pub(crate) type Registry = crate::registry::Registry<Log>;

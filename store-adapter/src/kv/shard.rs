//! What the writer of a shard shares with everybody else: the queue, and what is published.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::db::Db;
use super::state::Entry;
use crate::ids::{LogId, ShardId};
use crate::journal::queue::Queue;
use crate::registry::Registered;
use crate::store::{Bounds, Size, StoreError};

/// A shard that is open, or was.
#[derive(Debug)]
pub(super) struct Shard {
    /// Its number.
    pub(super) id: ShardId,
    /// What waits for its writer; closed with the shard.
    pub(super) queue: Queue,
    /// Its database, while it is open. Used and let go of by io tasks only.
    pub(super) db: Mutex<Option<Arc<Db>>>,
}

impl Shard {
    /// A shard that takes commands.
    pub(super) fn new(id: ShardId, queue_bytes: usize) -> Self {
        Self {
            id,
            queue: Queue::new(queue_bytes),
            db: Mutex::default(),
        }
    }

    /// Why the shard serves nothing, if it does not.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.queue.closed().map_or(Ok(()), Err)
    }

    /// The database.
    pub(super) fn db(&self) -> Result<Arc<Db>, StoreError> {
        self.check()?;
        let closed = || StoreError::Offline("the shard is being closed".to_owned());
        self.db.lock().clone().ok_or_else(closed)
    }

    /// Closes the shard for what is damaged or can't be read.
    pub(super) fn refuse(&self, error: &StoreError) {
        if self.check().is_ok() {
            tracing::error!(shard = self.id.0, %error, "the shard is offline");
            self.queue.close(error);
        }
    }
}

/// A log as it is published.
#[derive(Debug)]
pub(super) struct Log {
    /// Its id.
    pub(super) id: LogId,
    /// The topic's name.
    pub(super) name: Arc<str>,
    /// The number of its creation.
    pub(super) birth: u64,
    /// Its shard.
    pub(super) shard: Arc<Shard>,
    /// Start and durable end.
    pub(super) bounds: watch::Sender<Bounds>,
    size: Mutex<Size>,
    /// How often batches of it were replaced, twice; odd while they are.
    replaced: AtomicU64,
}

impl Log {
    /// A log of `shard`.
    pub(super) fn new(id: LogId, entry: &Entry, shard: &Arc<Shard>) -> Arc<Self> {
        Arc::new(Self {
            id,
            name: Arc::clone(&entry.name),
            birth: entry.birth,
            shard: Arc::clone(shard),
            bounds: watch::Sender::new(entry.bounds),
            size: Mutex::new(size(entry)),
            replaced: AtomicU64::new(0),
        })
    }

    /// Changes whenever batches of it begin to be replaced, and again when they are; odd between.
    pub(super) fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::SeqCst)
    }

    /// Batches of it begin, or end, to be replaced.
    pub(super) fn replaces(&self) {
        self.replaced.fetch_add(1, Ordering::SeqCst);
    }

    /// Shows what is durable.
    pub(super) fn publish(&self, entry: &Entry) {
        *self.size.lock() = size(entry);
        self.bounds
            .send_if_modified(|bounds| std::mem::replace(bounds, entry.bounds) != entry.bounds);
    }

    /// Bytes from the start on.
    pub(super) fn size(&self) -> Size {
        *self.size.lock()
    }

    /// The bounds, if `from` lies in them.
    pub(super) fn bounds_for(&self, from: i64) -> Result<Bounds, StoreError> {
        self.shard.check()?;
        let bounds = *self.bounds.borrow();
        if from < bounds.start || from > bounds.end {
            return Err(StoreError::OutOfRange {
                start: bounds.start,
                end: bounds.end,
            });
        }
        Ok(bounds)
    }
}

fn size(entry: &Entry) -> Size {
    Size {
        bytes: entry
            .total
            .saturating_sub(entry.before)
            .saturating_add_signed(entry.gone.saturating_neg()),
        from: entry.bounds.start,
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
pub(super) type Registry = crate::registry::Registry<Log>;

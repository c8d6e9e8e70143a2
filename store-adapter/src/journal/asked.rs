//! Rewrites that were asked for, and wait for whoever gives the space of a shard back.

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::queue::{Reply, answer};
use crate::store::{Rewrite, Rewritten, StoreError};

/// Rewrites that wait for one shard before further ones are refused.
const WAITING_MAX: usize = 1024;

/// A rewrite that was asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(super) rewrite: Rewrite,
    pub(super) reply: Reply<Rewritten>,
}

/// The shard has ended.
pub(super) fn closed() -> StoreError {
    StoreError::Offline("the shard is closed".to_owned())
}

/// The rewrites that wait for whoever gives the space of a shard back.
#[derive(Debug, Default)]
pub(crate) struct Rewrites {
    /// `None` once nobody takes them any more.
    waiting: Mutex<Option<Vec<Asked>>>,
    pushed: Notify,
}

impl Rewrites {
    /// Nothing waits, and what comes is taken.
    pub(crate) fn new() -> Self {
        Self {
            waiting: Mutex::new(Some(Vec::new())),
            pushed: Notify::new(),
        }
    }

    /// Adds one, or refuses it at once.
    pub(crate) fn push(&self, rewrite: Rewrite, reply: Reply<Rewritten>) {
        let refused = match &mut *self.waiting.lock() {
            None => Some((reply, closed())),
            Some(waiting) if waiting.len() >= WAITING_MAX => {
                let full = "too many logs wait for compaction".to_owned();
                Some((reply, StoreError::Unavailable(full)))
            }
            Some(waiting) => {
                waiting.push(Asked { rewrite, reply });
                None
            }
        };
        match refused {
            Some((reply, error)) => answer(reply, Err(error)),
            None => self.pushed.notify_one(),
        }
    }

    /// Completes when something was added.
    pub(super) async fn pushed(&self) {
        self.pushed.notified().await;
    }

    /// What waits.
    pub(super) fn take(&self) -> Vec<Asked> {
        self.waiting
            .lock()
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Refuses what waits and what comes.
    pub(super) fn close(&self) {
        for asked in self.waiting.lock().take().unwrap_or_default() {
            answer(asked.reply, Err(closed()));
        }
    }
}

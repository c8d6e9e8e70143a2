//! Who comes first among requests of a connection that overlap (`crate::order`).
//!
//! What concerns one transactional id, producer or group keeps its order: a request takes a turn
//! for what it concerns until it is settled, and one behind it that concerns the same waits. The
//! first batch of a transaction on a partition is ordered when its coordinator has answered
//! (KIP-890), so Produce takes a turn until then. Requests of others go on meanwhile, side by side,
//! and share the writes of their coordinators.

use std::collections::BTreeSet;
use std::sync::Arc;

use smallvec::SmallVec;
use store_adapter::ids::ProducerId;
use tokio::sync::watch;

use crate::api::ConnectionContext;

/// What a request concerns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// A transactional id.
    Transaction(Arc<str>),
    /// A producer.
    Producer(ProducerId),
    /// The offsets of a group.
    Group(Arc<str>),
    /// Batches that are of no transaction, in a Produce beside some that are.
    OtherBatches,
}

/// What one request concerns.
pub(crate) type Keys = SmallVec<[Key; 3]>;

/// The turns that are taken on a connection: one for each key.
#[derive(Debug)]
pub struct Turns(watch::Sender<BTreeSet<Key>>);

impl Default for Turns {
    fn default() -> Self {
        Self(watch::channel(BTreeSet::new()).0)
    }
}

impl Turns {
    /// Waits until no turn is taken.
    pub(crate) async fn none(&self) {
        self.until(BTreeSet::is_empty).await;
    }

    /// Waits until no turn is taken for what `keys` says.
    pub(crate) async fn free(&self, keys: impl FnOnce() -> Keys) {
        if self.0.borrow().is_empty() {
            return;
        }
        let keys = keys();
        self.until(|taken| keys.iter().all(|key| !taken.contains(key)))
            .await;
    }

    async fn until(&self, is_reached: impl Fn(&BTreeSet<Key>) -> bool) {
        if is_reached(&self.0.borrow()) {
            return;
        }
        let mut taken = self.0.subscribe();
        let reached = taken.wait_for(|taken| is_reached(taken)).await;
        // The sender is here.
        debug_assert!(reached.is_ok(), "closed");
    }
}

/// A turn. Whatever comes behind it and concerns the same waits until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    connection: Arc<ConnectionContext>,
    keys: Keys,
}

impl Turn {
    /// Takes a turn that is free.
    pub(crate) fn take(connection: &Arc<ConnectionContext>, keys: Keys) -> Self {
        connection.turns.0.send_modify(|taken| {
            for key in &keys {
                let fresh = taken.insert(key.clone());
                debug_assert!(fresh, "{key:?} has a turn already");
            }
        });
        Self {
            connection: connection.clone(),
            keys,
        }
    }

    /// Waits until it is free, and takes it.
    pub(crate) async fn next(connection: &Arc<ConnectionContext>, keys: Keys) -> Self {
        connection.turns.free(|| keys.clone()).await;
        Self::take(connection, keys)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.connection.turns.0.send_modify(|taken| {
            for key in &self.keys {
                taken.remove(key);
            }
        });
    }
}

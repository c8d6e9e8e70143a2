//! Who waits on a connection for a coordinator's word (KIP-890).
//!
//! The first batch of a transaction on a partition is ordered when its coordinator has answered.
//! That concerns one producer: requests of others go on meanwhile, side by side, and share the
//! writes of their coordinators. Everything else keeps its place behind them.

use std::collections::BTreeSet;
use std::sync::Arc;

use store_adapter::ids::ProducerId;
use tokio::sync::watch;

use crate::api::ConnectionContext;

/// The producers of a connection that have a Produce which is not ordered yet: one each.
#[derive(Debug)]
pub struct Verifying(watch::Sender<BTreeSet<ProducerId>>);

impl Default for Verifying {
    fn default() -> Self {
        Self(watch::channel(BTreeSet::new()).0)
    }
}

impl Verifying {
    /// Waits until everything that came before is ordered.
    pub(crate) async fn all(&self) {
        self.until(BTreeSet::is_empty).await;
    }

    /// Waits until everything of a producer that came before is ordered.
    pub(crate) async fn of(&self, id: ProducerId) {
        self.until(|waiting| !waiting.contains(&id)).await;
    }

    async fn until(&self, is_ordered: impl Fn(&BTreeSet<ProducerId>) -> bool) {
        if is_ordered(&self.0.borrow()) {
            return;
        }
        let mut waiting = self.0.subscribe();
        let ordered = waiting.wait_for(|waiting| is_ordered(waiting)).await;
        // The sender is here.
        debug_assert!(ordered.is_ok(), "closed");
    }
}

/// A Produce that is not ordered yet. Whatever of its producer comes behind it waits until this is
/// dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    connection: Arc<ConnectionContext>,
    id: ProducerId,
}

impl Turn {
    /// Takes the turn of a producer that has none.
    pub(crate) fn take(connection: &Arc<ConnectionContext>, id: ProducerId) -> Self {
        connection.verifying.0.send_modify(|waiting| {
            let fresh = waiting.insert(id);
            debug_assert!(fresh, "{id:?} waits already");
        });
        Self {
            connection: connection.clone(),
            id,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.connection.verifying.0.send_modify(|waiting| {
            waiting.remove(&self.id);
        });
    }
}

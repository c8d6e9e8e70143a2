//! Who comes first among requests of a connection that overlap (`crate::order`).
//!
//! What concerns one transactional id, producer or group keeps its order: a request takes a turn
//! for what it concerns until it is settled, and one behind it that concerns the same waits. The
//! first batch of a transaction on a partition is ordered when its coordinator has answered
//! (KIP-890), so Produce takes a turn until then. Requests of others go on meanwhile, side by side,
//! and share the writes of their coordinators.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;

use futures_util::FutureExt;
use smallvec::SmallVec;
use store_adapter::ids::ProducerId;
use store_adapter::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::admitted::Admitted;
use crate::api::{ApiResponse, CloseReason, ConnectionContext, Staged};

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
pub struct Turns {
    taken: watch::Sender<BTreeSet<Key>>,
    /// Cancelled when the connection is over.
    over: CancellationToken,
}

impl Default for Turns {
    fn default() -> Self {
        Self::of(CancellationToken::new())
    }
}

impl Turns {
    /// Of a connection that is over when `over` is cancelled. Who waits then is not ordered: a turn
    /// may take as long as a disk, and what would come behind it nobody answers any more.
    pub fn of(over: CancellationToken) -> Self {
        let taken = watch::channel(BTreeSet::new()).0;
        Self { taken, over }
    }

    /// Waits until no turn is taken.
    ///
    /// # Errors
    /// If the connection is over before.
    pub(crate) async fn none(&self) -> Result<(), CloseReason> {
        self.until(BTreeSet::is_empty).await
    }

    /// Waits until no turn is taken for what `keys` says.
    ///
    /// # Errors
    /// If the connection is over before.
    pub(crate) async fn free(&self, keys: impl FnOnce() -> Keys) -> Result<(), CloseReason> {
        if self.taken.borrow().is_empty() {
            return Ok(());
        }
        let keys = keys();
        self.until(|taken| keys.iter().all(|key| !taken.contains(key)))
            .await
    }

    async fn until(&self, is_reached: impl Fn(&BTreeSet<Key>) -> bool) -> Result<(), CloseReason> {
        if is_reached(&self.taken.borrow()) {
            return Ok(());
        }
        let mut taken = self.taken.subscribe();
        tokio::select! {
            biased;
            () = self.over.cancelled() => Err(CloseReason::Over),
            reached = taken.wait_for(|taken| is_reached(taken)) => {
                // The sender is here.
                debug_assert!(reached.is_ok(), "closed");
                Ok(())
            }
        }
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
        connection.turns.taken.send_modify(|taken| {
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
    ///
    /// # Errors
    /// If the connection is over before.
    pub(crate) async fn next(
        connection: &Arc<ConnectionContext>,
        keys: Keys,
    ) -> Result<Self, CloseReason> {
        connection.turns.free(|| keys.clone()).await?;
        Ok(Self::take(connection, keys))
    }

    /// Keeps the turn until the request is settled, which it is whether or not anybody waits for
    /// the answer. `admitted` is what counts its bytes.
    pub(crate) fn keep(
        self,
        runtime: &dyn Runtime,
        admitted: Admitted,
        staged: Staged<ApiResponse>,
    ) -> Staged<ApiResponse> {
        let answer = match staged {
            Staged::Later(answer) => answer,
            settled => return settled,
        };
        let (settled, answered) = oneshot::channel();
        let task = async move {
            let answer = AssertUnwindSafe(answer).catch_unwind().await;
            drop((self, admitted));
            // Its connection may be gone.
            settled.send(answer).unwrap_or_default();
        };
        drop(runtime.spawn("settle", Box::pin(task)));
        Staged::Later(Box::pin(async move {
            match answered.await {
                Ok(Ok(answer)) => answer,
                Ok(Err(panic)) => resume_unwind(panic),
                // The process ends.
                Err(_) => std::future::pending().await,
            }
        }))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.connection.turns.taken.send_modify(|taken| {
            for key in &self.keys {
                taken.remove(key);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use smallvec::smallvec;
    use store_adapter::runtime::Env;

    use super::*;
    use crate::layers::rescue::second_stage;

    fn connection(over: &CancellationToken) -> Arc<ConnectionContext> {
        Arc::new(ConnectionContext {
            id: 1,
            peer: None,
            local: None,
            listener: 0,
            software: OnceLock::new(),
            turns: Turns::of(over.clone()),
        })
    }

    fn keys() -> Keys {
        smallvec![Key::Transaction("t".into()), Key::Producer(ProducerId(7))]
    }

    #[tokio::test]
    async fn what_is_ordered_is_settled_without_its_connection() {
        let connection = connection(&CancellationToken::new());
        let turn = Turn::next(&connection, keys()).await.unwrap();
        let (go, goes) = oneshot::channel();
        let (done, is_done) = oneshot::channel();
        let answer = Box::pin(async move {
            goes.await.unwrap();
            done.send(()).unwrap();
            ApiResponse::Heartbeat(Box::default())
        });
        let runtime = Env::real().runtime;
        drop(turn.keep(&*runtime, Admitted::default(), Staged::Later(answer)));
        assert!(connection.turns.free(keys).now_or_never().is_none());
        go.send(()).unwrap();
        is_done.await.unwrap();
        connection.turns.free(keys).await.unwrap();
    }

    #[tokio::test]
    async fn who_waits_for_a_turn_gives_up_when_the_connection_is_over() {
        let over = CancellationToken::new();
        let connection = connection(&over);
        let turn = Turn::next(&connection, keys()).await.unwrap();
        let mut next = Box::pin(Turn::next(&connection, keys()));
        assert!(next.as_mut().now_or_never().is_none());
        over.cancel();
        assert_eq!(next.await.unwrap_err(), CloseReason::Over);
        assert_eq!(connection.turns.none().await, Err(CloseReason::Over));
        drop(turn);
        connection.turns.none().await.unwrap();
    }

    #[tokio::test]
    async fn a_panic_reaches_who_waits_and_gives_the_turn_back() {
        let connection = connection(&CancellationToken::new());
        let turn = Turn::next(&connection, keys()).await.unwrap();
        let panics = Box::pin(async {
            let lazy: fn() -> ApiResponse = || panic!("a defect");
            lazy()
        });
        let runtime = Env::real().runtime;
        let kept = turn.keep(&*runtime, Admitted::default(), Staged::Later(panics));
        let Staged::Later(mut answer) = kept else {
            panic!("{kept:?}");
        };
        let answered = second_stage(&mut answer).await;
        assert_eq!(answered.unwrap_err(), CloseReason::Internal);
        connection.turns.none().await.unwrap();
    }
}

//! Who is asked about a transaction (KIP-890): the coordinator here, or the one at another broker.
//!
//! A partition or group may be served by another broker than the one that coordinates the
//! transactional id. What is asked of it is asked here first; who does not coordinate it says so.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use coordinator::machine::txn::{AddClass, Added, Client, Named, Session, TxnError, Verified};
use coordinator::service::txns::{Txns, Undecided};
use store_adapter::fault::{Fault, planted};
use store_adapter::ids::ProducerId;
use store_adapter::runtime::BoxFuture;

/// Coordinators at other brokers. A question that may not have been heard is answered with
/// [`TxnError::CoordinatorNotAvailable`], within a bounded time.
pub trait Peers: Send + Sync + Debug + 'static {
    /// As [`Txns::verify_partitions`].
    fn verify_partitions(
        &self,
        id: &str,
        session: Session,
        asked: &[Named],
    ) -> BoxFuture<'static, Result<Verified, TxnError>>;
    /// As [`Txns::add_partitions`], by Produce.
    fn add_partitions(
        &self,
        id: &str,
        session: Session,
        asked: &[Named],
        client: Option<&Client>,
    ) -> BoxFuture<'static, Result<Added, TxnError>>;
    /// As [`Txns::verify_group`].
    fn verify_group(
        &self,
        id: &str,
        session: Session,
        group: &str,
    ) -> BoxFuture<'static, Result<Option<u64>, TxnError>>;
    /// As [`Txns::undecided`], of every other broker.
    fn undecided(
        &self,
        producers: &BTreeSet<ProducerId>,
    ) -> BoxFuture<'static, Result<Undecided, TxnError>>;
    /// As [`Txns::add_groups`], by TxnOffsetCommit.
    fn add_groups(
        &self,
        id: &str,
        session: Session,
        group: &Arc<str>,
        client: Option<&Client>,
    ) -> BoxFuture<'static, Result<Added, TxnError>>;
}

/// Those of a lone broker: there are none.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPeers;

fn nobody<T: Send + 'static>() -> BoxFuture<'static, Result<T, TxnError>> {
    Box::pin(std::future::ready(Err(TxnError::NotCoordinator)))
}

impl Peers for NoPeers {
    fn undecided(
        &self,
        _: &BTreeSet<ProducerId>,
    ) -> BoxFuture<'static, Result<Undecided, TxnError>> {
        Box::pin(std::future::ready(Ok(Undecided::default())))
    }

    fn verify_partitions(
        &self,
        _: &str,
        _: Session,
        _: &[Named],
    ) -> BoxFuture<'static, Result<Verified, TxnError>> {
        nobody()
    }

    fn add_partitions(
        &self,
        _: &str,
        _: Session,
        _: &[Named],
        _: Option<&Client>,
    ) -> BoxFuture<'static, Result<Added, TxnError>> {
        nobody()
    }

    fn verify_group(
        &self,
        _: &str,
        _: Session,
        _: &str,
    ) -> BoxFuture<'static, Result<Option<u64>, TxnError>> {
        nobody()
    }

    fn add_groups(
        &self,
        _: &str,
        _: Session,
        _: &Arc<str>,
        _: Option<&Client>,
    ) -> BoxFuture<'static, Result<Added, TxnError>> {
        nobody()
    }
}

/// The coordinator of a transactional id, wherever it is.
#[derive(Debug)]
pub struct Coordinators {
    here: Txns,
    peers: Arc<dyn Peers>,
}

impl Coordinators {
    pub(super) fn new(here: Txns, peers: Arc<dyn Peers>) -> Self {
        Self { here, peers }
    }

    /// The one of this broker.
    pub(super) fn here(&self) -> &Txns {
        &self.here
    }

    /// Which of the partitions are not in the open transaction.
    ///
    /// # Errors
    /// As [`Txns::verify_partitions`].
    pub async fn verify_partitions(
        &self,
        id: &str,
        session: Session,
        asked: &[Named],
    ) -> Result<Verified, TxnError> {
        match self.here.verify_partitions(id, session, asked).await {
            Err(TxnError::NotCoordinator) => {
                let there = self.peers.verify_partitions(id, session, asked);
                there.await
            }
            answer => answer,
        }
    }

    /// The addition that Produce implies.
    ///
    /// # Errors
    /// As [`Txns::add_partitions`].
    pub async fn add_partitions(
        &self,
        id: &str,
        session: Session,
        asked: &[Named],
        client: Option<&Client>,
    ) -> Result<Added, TxnError> {
        let class = AddClass::Implicit;
        let here = self.here.add_partitions(id, session, asked, class, client);
        match here.await {
            Err(TxnError::NotCoordinator) => {
                let there = self.peers.add_partitions(id, session, asked, client);
                there.await
            }
            answer => answer,
        }
    }

    /// The number of the open transaction, if the group is in it.
    ///
    /// # Errors
    /// As [`Txns::verify_group`].
    pub async fn verify_group(
        &self,
        id: &str,
        session: Session,
        group: &str,
    ) -> Result<Option<u64>, TxnError> {
        match self.here.verify_group(id, session, group).await {
            Err(TxnError::NotCoordinator) => {
                let there = self.peers.verify_group(id, session, group);
                there.await
            }
            answer => answer,
        }
    }

    /// What is undecided of these producers, wherever it was decided: by who coordinates the
    /// transaction, which may be told to other brokers later.
    ///
    /// # Errors
    /// As [`Txns::undecided`]; [`TxnError::CoordinatorNotAvailable`] where nobody answers for a
    /// slot, which may have decided anything.
    pub async fn undecided(&self, producers: &BTreeSet<ProducerId>) -> Result<Undecided, TxnError> {
        let there = if planted(Fault::OthersNotAsked) {
            Undecided {
                slots: (0..self.here.slot_count()).collect(),
                ..Undecided::default()
            }
        } else {
            self.peers.undecided(producers).await?
        };
        // Last, so that nothing is decided here meanwhile.
        let here = self.here.undecided(producers).await?;
        let found = here.and(there);
        if (0..self.here.slot_count()).any(|slot| !found.slots.contains(&slot)) {
            return Err(TxnError::CoordinatorNotAvailable);
        }
        Ok(found)
    }

    /// The addition that TxnOffsetCommit implies.
    ///
    /// # Errors
    /// As [`Txns::add_groups`].
    pub async fn add_groups(
        &self,
        id: &str,
        session: Session,
        group: &Arc<str>,
        client: Option<&Client>,
    ) -> Result<Added, TxnError> {
        let class = AddClass::Implicit;
        let here = self.here.add_groups(id, session, group, class, client);
        match here.await {
            Err(TxnError::NotCoordinator) => {
                let there = self.peers.add_groups(id, session, group, client);
                there.await
            }
            answer => answer,
        }
    }
}

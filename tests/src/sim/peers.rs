//! What one broker asks of the coordinator at another one, cut at the decoded question: delayed,
//! and lost, as everything in a network.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use coordinator::machine::txn::{AddClass, Added, Client, Named, Session, TxnError, Verified};
use coordinator::service::txns::{Txns, Undecided};
use gateway::broker::Peers;
use store_adapter::ids::{BrokerId, ProducerId};
use store_adapter::runtime::{BoxFuture, Env};
use tokio::sync::oneshot;

use super::net::Network;

/// How long a broker waits for another one.
const PATIENCE: Duration = Duration::from_millis(500);

/// The answer to a question.
type Answer<T> = BoxFuture<'static, Result<T, TxnError>>;

/// The other broker, as one of them reaches it.
#[derive(Debug)]
pub(crate) struct OtherBroker {
    pub(crate) own: BrokerId,
    pub(crate) env: Env,
    pub(crate) net: Arc<Network>,
}

impl OtherBroker {
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(Txns) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let (net, env, own) = (self.net.clone(), self.env.clone(), self.own);
        Box::pin(async move {
            let unheard = Err(TxnError::CoordinatorNotAvailable);
            let Some(server) = net.other_than(own) else {
                return unheard;
            };
            let (reply, answer) = oneshot::channel();
            let runtime = server.env.runtime.clone();
            let task = async move {
                net.delay(&server.env).await;
                if net.unlucky(net.rates.lose_request) {
                    return;
                }
                let outcome = question(server.broker.txns().clone()).await;
                net.delay(&server.env).await;
                if !net.unlucky(net.rates.lose_answer) {
                    // Who asked may have given up.
                    drop(reply.send(outcome));
                }
            };
            drop(runtime.spawn("peer", Box::pin(task)));
            tokio::select! {
                biased;
                answer = answer => answer.unwrap_or(unheard),
                () = env.clock.sleep(PATIENCE) => unheard,
            }
        })
    }
}

impl Peers for OtherBroker {
    fn verify_partitions(&self, id: &str, session: Session, asked: &[Named]) -> Answer<Verified> {
        let (id, asked) = (id.to_owned(), asked.to_vec());
        self.ask(move |txns| {
            Box::pin(async move { txns.verify_partitions(&id, session, &asked).await })
        })
    }

    fn add_partitions(
        &self,
        id: &str,
        session: Session,
        asked: &[Named],
        client: Option<&Client>,
    ) -> Answer<Added> {
        let (id, asked, client) = (id.to_owned(), asked.to_vec(), client.cloned());
        self.ask(move |txns| {
            Box::pin(async move {
                let (class, client) = (AddClass::Implicit, client.as_ref());
                let added = txns.add_partitions(&id, session, &asked, class, client);
                added.await
            })
        })
    }

    fn verify_group(&self, id: &str, session: Session, group: &str) -> Answer<Option<u64>> {
        let (id, group) = (id.to_owned(), group.to_owned());
        self.ask(move |txns| Box::pin(async move { txns.verify_group(&id, session, &group).await }))
    }

    fn undecided(&self, producers: &BTreeSet<ProducerId>) -> Answer<Undecided> {
        let producers = producers.clone();
        self.ask(move |txns| Box::pin(async move { txns.undecided(&producers).await }))
    }

    fn add_groups(
        &self,
        id: &str,
        session: Session,
        group: &Arc<str>,
        client: Option<&Client>,
    ) -> Answer<Added> {
        let (id, group, client) = (id.to_owned(), group.clone(), client.cloned());
        self.ask(move |txns| {
            Box::pin(async move {
                let (class, client) = (AddClass::Implicit, client.as_ref());
                let added = txns.add_groups(&id, session, &group, class, client);
                added.await
            })
        })
    }
}

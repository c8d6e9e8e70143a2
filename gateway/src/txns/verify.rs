//! The first batch of a transaction on a partition (KIP-890): before it opens the transaction the
//! coordinator is asked, with no lock held. Below Produce v12 whether the partition is in the
//! transaction; from v12 on it is added.

use std::sync::Arc;
use std::time::Duration;

use coordinator::machine::txn::{
    Added, Client, GATE_WAIT_MS, Named, Session, TopicPartitions, TxnError, Verified, partitions_of,
};
use store_adapter::batch::BatchHeader;
use store_adapter::fault::{Fault, planted};

use crate::api::RequestContext;
use crate::broker::{Broker, HostedTopic};
use crate::partition::{Guard, Opening, Partition};

/// First version of Produce whose batches add their partitions themselves (TV2).
const IMPLICIT_FROM: i16 = 12;

/// Why a first batch is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unverified {
    /// Its partition is not in the open transaction.
    NotInTxn,
    /// The coordinator refused.
    Refused(TxnError),
    /// The coordinator did not answer in time.
    Late,
}

impl Unverified {
    /// Whether the client sends the batch again.
    fn comes_again(self) -> bool {
        match self {
            Self::Late => true,
            Self::NotInTxn => false,
            Self::Refused(error) => matches!(
                error,
                TxnError::ConcurrentTransactions
                    | TxnError::CoordinatorLoading
                    | TxnError::CoordinatorNotAvailable
                    | TxnError::NotCoordinator
            ),
        }
    }
}

/// A transactional batch that was sent to a partition.
pub(crate) struct Candidate {
    pub(crate) topic: Arc<HostedTopic>,
    pub(crate) partition: Arc<Partition>,
    pub(crate) header: BatchHeader,
}

/// What is known of one candidate.
#[derive(Debug)]
pub(crate) enum Verification {
    /// Nobody had to be asked: it goes on in an open transaction, or opens none.
    NotNeeded,
    /// Nobody is asked, by configuration.
    Off,
    /// The coordinator knows of it.
    Passed(Guard),
    /// It is refused.
    Failed(Unverified),
}

impl Verification {
    /// By what right the batch is appended.
    pub(crate) fn opening(&self) -> Result<Opening<'_>, Unverified> {
        match self {
            Self::NotNeeded => Ok(Opening::None),
            Self::Off => Ok(Opening::Unverified),
            Self::Passed(guard) => Ok(Opening::Verified(guard)),
            Self::Failed(why) => Err(*why),
        }
    }
}

/// What is known of the transactional batches of one request, in their order.
pub(crate) enum Looked {
    /// Everything.
    Known(Vec<Verification>),
    /// What their coordinator has to be asked.
    Asks(Question),
}

/// What is to be asked of a coordinator. The guards stand already.
pub(crate) struct Question {
    candidates: Vec<Candidate>,
    guards: Vec<Option<Guard>>,
    asked: Vec<Named>,
    session: Session,
    implicit: bool,
}

/// Looks at the transactional batches of one request, all of one producer and session.
pub(crate) fn look(broker: &Broker, version: i16, candidates: Vec<Candidate>) -> Looked {
    let implicit = version >= IMPLICIT_FROM;
    let off = !implicit && !broker.config().txn_partition_verification;
    let off = off || planted(Fault::NotVerified);
    if off {
        return Looked::Known(candidates.iter().map(|_| Verification::Off).collect());
    }
    let guards: Vec<Option<Guard>> = candidates
        .iter()
        .map(|one| one.partition.guard(&one.header, implicit))
        .collect();
    let mut asked = Vec::new();
    for (one, _) in candidates.iter().zip(&guards).filter(|(_, g)| g.is_some()) {
        asked.push(Named {
            topic: one.topic.name.as_str().into(),
            topic_id: Some(one.topic.id),
            partition: one.number(),
        });
    }
    let Some(first) = candidates.first().filter(|_| !asked.is_empty()) else {
        return Looked::Known(candidates.iter().map(|_| Verification::NotNeeded).collect());
    };
    let session = Session {
        pid: first.header.producer_id,
        epoch: first.header.producer_epoch,
    };
    Looked::Asks(Question {
        candidates,
        guards,
        asked,
        session,
        implicit,
    })
}

impl Question {
    /// Asks, at most [`GATE_WAIT_MS`].
    pub(crate) async fn ask(
        self,
        broker: &Broker,
        context: &RequestContext,
        transactional_id: &str,
    ) -> Vec<Verification> {
        let verified = within(broker, self.verified(broker, context, transactional_id)).await;
        let candidates = self.candidates.iter().zip(self.guards);
        let outcomes = candidates.map(|(one, guard)| {
            let Some(mut guard) = guard else {
                return Verification::NotNeeded;
            };
            let why = match &verified {
                Ok(verified) if !one.is_in(&verified.missing) => {
                    guard.approved_for(verified.txn_seq);
                    return Verification::Passed(guard);
                }
                Ok(_) => Unverified::NotInTxn,
                Err(why) => *why,
            };
            if why.comes_again() {
                one.partition.refuse_first(&one.header);
            }
            Verification::Failed(why)
        });
        outcomes.collect()
    }

    /// The transaction, and which of the partitions are not in it.
    async fn verified(
        &self,
        broker: &Broker,
        context: &RequestContext,
        id: &str,
    ) -> Result<Verified, TxnError> {
        let (coordinators, session) = (broker.coordinators(), self.session);
        if !self.implicit {
            return coordinators
                .verify_partitions(id, session, &self.asked)
                .await;
        }
        let client = client(context);
        let added = coordinators.add_partitions(id, session, &self.asked, Some(&client));
        let (txn_seq, missing) = match added.await? {
            Added::InTxn(txn_seq) => (txn_seq, TopicPartitions::new()),
            // Then none of the others is added either.
            Added::Missing(_) => (0, partitions_of(self.asked.iter())),
        };
        Ok(Verified { txn_seq, missing })
    }
}

impl Candidate {
    fn number(&self) -> i32 {
        i32::try_from(self.partition.id().partition).unwrap_or(i32::MAX)
    }

    fn is_in(&self, partitions: &TopicPartitions) -> bool {
        let known = partitions.get(self.topic.name.as_str());
        known.is_some_and(|numbers| numbers.contains(&self.number()))
    }
}

/// At most [`GATE_WAIT_MS`]. What was begun goes on: a partition that is added too late is in the
/// transaction without a record.
async fn within(
    broker: &Broker,
    ask: impl Future<Output = Result<Verified, TxnError>>,
) -> Result<Verified, Unverified> {
    let late = broker
        .env()
        .clock
        .sleep(Duration::from_millis(GATE_WAIT_MS));
    tokio::select! {
        biased;
        answer = ask => answer.map_err(Unverified::Refused),
        () = late => Err(Unverified::Late),
    }
}

/// Who asks, as inspection shows it.
fn client(context: &RequestContext) -> Client {
    let id = context.client_id.as_ref().map_or("", |id| id.as_str());
    let address = context.connection.peer.map(|peer| peer.to_string());
    let software = context.connection.software.get();
    let software = software.map(|(name, version)| format!("{} {}", &**name, &**version));
    Client {
        id: id.into(),
        address: address.unwrap_or_default().into(),
        software: software.unwrap_or_default().into(),
    }
}

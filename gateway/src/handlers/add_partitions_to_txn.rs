//! AddPartitionsToTxn (key 24), versions 0 to 5. v2 knows fencing (90, before 47). v4 and v5 are
//! for brokers: several transactions, and a check that adds nothing.
//!
//! If a partition is not there (3) nothing is added, and the others are 55.

use std::sync::Arc;

use coordinator::machine::txn::{
    AddClass, Added, Client, Named, Session, TopicPartitions, TxnError, partitions_of,
};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, TopicName, TransactionalId,
};

use super::{shared_text, text, txn_request};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

/// What is asked of one transaction.
struct Asked {
    id: Arc<str>,
    session: Session,
    class: Class,
    topics: Vec<AddPartitionsToTxnTopic>,
}

/// Who asks, and for what.
#[derive(Clone, Copy)]
enum Class {
    /// A client, by this version.
    Client(i16),
    /// A broker, to add what its client's Produce implies.
    Add,
    /// A broker, to be told what is in the transaction.
    Verify,
}

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: AddPartitionsToTxnRequest,
) -> Staged<ApiResponse> {
    let (broker, client) = (broker.clone(), txn_request::client(context));
    if context.version < 4 {
        let (pid, epoch) = (
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
        );
        let asked = Asked {
            id: txn_request::shared_id(&request.v3_and_below_transactional_id),
            session: txn_request::session(pid, epoch),
            class: Class::Client(context.version),
            topics: request.v3_and_below_topics,
        };
        return txn_request::begun(async move {
            let topics = results(&broker, &asked, &client).await;
            let response =
                AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(topics);
            ApiResponse::AddPartitionsToTxn(Box::new(response))
        });
    }
    if !txn_request::is_from_cluster(context) {
        let code = ResponseError::ClusterAuthorizationFailed.code();
        let response = AddPartitionsToTxnResponse::default().with_error_code(code);
        return Staged::Now(ApiResponse::AddPartitionsToTxn(Box::new(response)));
    }
    txn_request::begun(async move {
        let mut response = AddPartitionsToTxnResponse::default();
        for transaction in request.transactions {
            let (pid, epoch) = (transaction.producer_id, transaction.producer_epoch);
            let asked = Asked {
                id: txn_request::shared_id(&transaction.transactional_id),
                session: txn_request::session(pid, epoch),
                class: if transaction.verify_only {
                    Class::Verify
                } else {
                    Class::Add
                },
                topics: transaction.topics,
            };
            let topics = results(&broker, &asked, &client).await;
            let result = AddPartitionsToTxnResult::default()
                .with_transactional_id(TransactionalId(text(&asked.id)))
                .with_topic_results(topics);
            response.results_by_transaction.push(result);
        }
        ApiResponse::AddPartitionsToTxn(Box::new(response))
    })
}

async fn results(
    broker: &Broker,
    asked: &Asked,
    client: &Client,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let topics = &asked.topics;
    let partitions: Vec<Named> = topics
        .iter()
        .flat_map(|topic| named(broker, topic))
        .collect();
    if partitions.iter().any(|one| one.topic_id.is_none()) {
        let missing = partitions_of(partitions.iter().filter(|one| one.topic_id.is_none()));
        let code = |topic: &str, partition| {
            if has(&missing, topic, partition) {
                ResponseError::UnknownTopicOrPartition.code()
            } else {
                ResponseError::OperationNotAttempted.code()
            }
        };
        return answer(topics, code);
    }
    match outside(broker, asked, client, &partitions).await {
        Ok(outside) => answer(topics, |topic, partition| {
            if has(&outside, topic, partition) {
                ResponseError::TransactionAbortable.code()
            } else {
                0
            }
        }),
        Err(error) => {
            let code = match asked.class {
                Class::Client(_) => error_code::txn(error),
                Class::Add | Class::Verify => error_code::txn_of_broker(error),
            };
            answer(topics, |_, _| code.code())
        }
    }
}

/// Adds the partitions, or finds those that are not in the transaction.
async fn outside(
    broker: &Broker,
    asked: &Asked,
    client: &Client,
    partitions: &[Named],
) -> Result<TopicPartitions, TxnError> {
    let (id, session, txns) = (&asked.id, asked.session, broker.txns());
    if id.is_empty() {
        return Err(TxnError::InvalidRequest);
    }
    let (class, client) = match asked.class {
        Class::Verify => {
            let verified = txns.verify_partitions(id, session, partitions).await?;
            return Ok(verified.missing);
        }
        Class::Client(version) => (AddClass::Client(version), Some(client)),
        // The client is the other broker's.
        Class::Add => (AddClass::Implicit, None),
    };
    let added = txns.add_partitions(id, session, partitions, class, client);
    match added.await? {
        Added::InTxn(_) => Ok(TopicPartitions::new()),
        Added::Missing(missing) => Ok(missing),
    }
}

/// The partitions of one topic of the request; they share its name.
fn named<'a>(
    broker: &Broker,
    topic: &'a AddPartitionsToTxnTopic,
) -> impl Iterator<Item = Named> + use<'a> {
    let hosted = broker.topic_by_name(&topic.name);
    let name = shared_text(&topic.name);
    topic.partitions.iter().map(move |partition| {
        let hosted = hosted.as_ref();
        let hosted = hosted.filter(|hosted| hosted.any_partition(*partition).is_some());
        Named {
            topic: name.clone(),
            topic_id: hosted.map(|hosted| hosted.id),
            partition: *partition,
        }
    })
}

fn has(partitions: &TopicPartitions, topic: &str, partition: i32) -> bool {
    let known = partitions.get(topic);
    known.is_some_and(|known| known.contains(&partition))
}

/// One result for each partition of the request.
fn answer(
    topics: &[AddPartitionsToTxnTopic],
    code: impl Fn(&str, i32) -> i16,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let topics = topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(*partition)
                .with_partition_error_code(code(&topic.name, *partition))
        });
        AddPartitionsToTxnTopicResult::default()
            .with_name(TopicName(text(&topic.name)))
            .with_results_by_partition(partitions.collect())
    });
    topics.collect()
}

//! Transactional ids on the wire: the vectors of the coordinator, and what can be seen of them.

mod adding;
mod ending;
mod exhausted;
mod features;
mod inspecting;
mod markers;
mod sessions;
mod staging;
mod time;
mod tools;

use std::time::Duration;

use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::describe_transactions_response::TransactionState;
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, DescribeTransactionsRequest, EndTxnRequest,
    EndTxnResponse, FindCoordinatorRequest, InitProducerIdRequest, ProduceRequest, ProducerId,
    TransactionalId,
};
use tests::raw::{RawClient, ops};

use crate::groups::group_id;
use crate::kit::{Target, answers, text};

/// What passes by itself: a coordinator that is not ready or whose disk is slow, a transaction that
/// is not finished.
const PASSES: [i16; 4] = [14, 15, 16, 51];
/// The same of a transactional batch, whose coordinator is asked by its partition.
pub(crate) const BATCH_PASSES: [i16; 2] = [19, 51];

/// A producer id and epoch.
pub(crate) type Session = (i64, i16);

pub(crate) fn id_of(id: &str) -> TransactionalId {
    TransactionalId(text(id))
}

/// A connection, once the transactional id has a coordinator: Kafka makes the topic behind it when
/// it is first asked.
pub(crate) async fn connect(target: &Target, id: &str) -> RawClient {
    let mut client = target.connect().await;
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..1800 {
        pace.tick().await;
        let request = FindCoordinatorRequest::default()
            .with_key(text(id))
            .with_key_type(1);
        let found = client.call(&request, 2).await.unwrap();
        if found.error_code == 0 && !PASSES.contains(&describe(&mut client, id).await.error_code) {
            return client;
        }
    }
    panic!("no coordinator for {id}");
}

/// An InitProducerId. Its transactions stay open for as long as brokers allow: slow tests must not
/// find them aborted.
pub(crate) fn init_request(id: &str, claim: Session) -> InitProducerIdRequest {
    InitProducerIdRequest::default()
        .with_transactional_id(Some(id_of(id)))
        .with_transaction_timeout_ms(900_000)
        .with_producer_id(ProducerId(claim.0))
        .with_producer_epoch(claim.1)
}

/// Code, producer id and epoch of an InitProducerId, once what passes has passed.
async fn init(client: &mut RawClient, id: &str, claim: Session, v: i16) -> (i16, i64, i16) {
    init_by(client, &init_request(id, claim), v).await
}

pub(crate) async fn init_by(
    client: &mut RawClient,
    request: &InitProducerIdRequest,
    v: i16,
) -> (i16, i64, i16) {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let mut code = 0;
    for _ in 0..600 {
        pace.tick().await;
        let answer = client.call(request, v).await.unwrap();
        code = answer.error_code;
        if !PASSES.contains(&code) {
            return (code, answer.producer_id.0, answer.producer_epoch);
        }
    }
    panic!("InitProducerId still answers {code}");
}

/// A new session of an id, which claims nothing.
pub(crate) async fn begin(client: &mut RawClient, id: &str) -> Session {
    let (code, pid, epoch) = init(client, id, (-1, -1), 4).await;
    assert_eq!(code, 0, "{id}");
    (pid, epoch)
}

/// The topics and partitions of an AddPartitionsToTxn.
fn topics(of: &[(&str, &[i32])]) -> Vec<AddPartitionsToTxnTopic> {
    let topics = of.iter().map(|(topic, partitions)| {
        AddPartitionsToTxnTopic::default()
            .with_name(ops::topic_name(topic))
            .with_partitions(partitions.to_vec())
    });
    topics.collect()
}

/// Codes of an AddPartitionsToTxn up to v3 by topic and partition, in the order of names.
pub(crate) async fn add_once(
    client: &mut RawClient,
    id: &str,
    session: Session,
    of: &[(&str, &[i32])],
    v: i16,
) -> Vec<i16> {
    let request = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(id_of(id))
        .with_v3_and_below_producer_id(ProducerId(session.0))
        .with_v3_and_below_producer_epoch(session.1)
        .with_v3_and_below_topics(topics(of));
    let answer = client.call(&request, v).await.unwrap();
    let mut topics = answer.results_by_topic_v3_and_below;
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    for topic in &mut topics {
        topic
            .results_by_partition
            .sort_by_key(|partition| partition.partition_index);
    }
    let partitions = topics.iter().flat_map(|topic| &topic.results_by_partition);
    partitions.map(|p| p.partition_error_code).collect()
}

/// The same once what passes has passed.
pub(crate) async fn add(
    client: &mut RawClient,
    id: &str,
    session: Session,
    of: &[(&str, &[i32])],
    v: i16,
) -> Vec<i16> {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..600 {
        pace.tick().await;
        let codes = add_once(client, id, session, of, v).await;
        if !codes.iter().any(|code| PASSES.contains(code)) {
            return codes;
        }
    }
    panic!("AddPartitionsToTxn still asks for a retry");
}

/// Answers to the batches of a transaction, once what passes has passed. What was taken before is
/// a repeat then, and answered for.
pub(crate) async fn produce(
    client: &mut RawClient,
    request: &ProduceRequest,
    v: i16,
) -> Vec<PartitionProduceResponse> {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..600 {
        pace.tick().await;
        let answers = answers(&client.call(request, v).await.unwrap());
        let mut codes = answers.iter().map(|answer| answer.error_code);
        if !codes.any(|code| BATCH_PASSES.contains(&code)) {
            return answers;
        }
    }
    panic!("Produce still asks for a retry");
}

/// Code of an AddOffsetsToTxn, once what passes has passed.
pub(crate) async fn add_group(
    client: &mut RawClient,
    id: &str,
    session: Session,
    group: &str,
    v: i16,
) -> i16 {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..600 {
        pace.tick().await;
        let code = add_group_once(client, id, session, group, v).await;
        if !PASSES.contains(&code) {
            return code;
        }
    }
    panic!("AddOffsetsToTxn still asks for a retry");
}

/// Code of an AddOffsetsToTxn.
pub(crate) async fn add_group_once(
    client: &mut RawClient,
    id: &str,
    session: Session,
    group: &str,
    v: i16,
) -> i16 {
    let request = AddOffsetsToTxnRequest::default()
        .with_transactional_id(id_of(id))
        .with_producer_id(ProducerId(session.0))
        .with_producer_epoch(session.1)
        .with_group_id(group_id(group));
    client.call(&request, v).await.unwrap().error_code
}

pub(crate) fn end_request(id: &str, session: Session, commit: bool) -> EndTxnRequest {
    EndTxnRequest::default()
        .with_transactional_id(id_of(id))
        .with_producer_id(ProducerId(session.0))
        .with_producer_epoch(session.1)
        .with_committed(commit)
}

/// Code, producer id and epoch of an EndTxn, once what passes has passed.
pub(crate) async fn end(
    client: &mut RawClient,
    id: &str,
    session: Session,
    commit: bool,
    v: i16,
) -> (i16, i64, i16) {
    let request = end_request(id, session, commit);
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..600 {
        pace.tick().await;
        let answer: EndTxnResponse = client.call(&request, v).await.unwrap();
        if !PASSES.contains(&answer.error_code) {
            return (
                answer.error_code,
                answer.producer_id.0,
                answer.producer_epoch,
            );
        }
    }
    panic!("EndTxn still asks for a retry");
}

/// What DescribeTransactions says of an id.
pub(crate) async fn describe(client: &mut RawClient, id: &str) -> TransactionState {
    let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![id_of(id)]);
    let mut answer = client.call(&request, 0).await.unwrap();
    assert_eq!(answer.transaction_states.len(), 1);
    answer.transaction_states.remove(0)
}

/// Awaits that an id is in a state: Kafka finishes transactions behind its answers.
pub(crate) async fn await_state(client: &mut RawClient, id: &str, state: &str) -> TransactionState {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let mut last = String::new();
    for _ in 0..1200 {
        pace.tick().await;
        let described = describe(client, id).await;
        if described.error_code == 0 && described.transaction_state.as_str() == state {
            return described;
        }
        last = format!("{described:?}");
    }
    panic!("{id} does not come to {state}: {last}");
}

/// Topics with partitions of a description, in the order of names.
pub(crate) fn partitions_of(described: &TransactionState) -> Vec<(String, Vec<i32>)> {
    let topics = described.topics.iter();
    let mut topics: Vec<_> = topics
        .map(|topic| (topic.topic.to_string(), topic.partitions.clone()))
        .collect();
    for (_, partitions) in &mut topics {
        partitions.sort_unstable();
    }
    topics.sort();
    topics
}

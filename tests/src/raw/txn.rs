//! Requests of a transactional producer, at fixed versions of either dialect.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, EndTxnRequest, FindCoordinatorRequest, InitProducerIdRequest,
    ProduceRequest, ProducerId, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;

use super::RawClient;
use super::ops::{self, check, topic_name};

/// A producer id and its epoch.
pub type Session = (i64, i16);

/// The attribute of a transactional batch.
pub const TRANSACTIONAL: i16 = 0x10;
/// Version of InitProducerId that is sent.
pub const INIT_VERSION: i16 = 4;
/// Version of AddPartitionsToTxn for [`add_request`].
pub const ADD_VERSION: i16 = 3;
/// CONCURRENT_TRANSACTIONS: the transaction before is not finished.
pub const CONCURRENT: i16 = 51;
/// COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, and
/// CONCURRENT_TRANSACTIONS.
const PASSES: [i16; 4] = [14, 15, 16, CONCURRENT];
/// InitProducerId requests that [`begin_all`] has unanswered.
const WINDOW: usize = 64;

/// What a client says of its transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Partitions are added by a request, the epoch stays (`transaction.version` 0 and 1).
    V1,
    /// Partitions are added by their first batch, the epoch grows (`transaction.version` 2).
    V2,
}

impl Dialect {
    /// Version of Produce.
    pub fn produce_version(self) -> i16 {
        match self {
            Self::V1 => 11,
            Self::V2 => 12,
        }
    }

    /// Version of EndTxn.
    pub fn end_version(self) -> i16 {
        match self {
            Self::V1 => 3,
            Self::V2 => 5,
        }
    }
}

fn id_of(id: &str) -> TransactionalId {
    TransactionalId(StrBytes::from_string(id.to_owned()))
}

/// An InitProducerId that claims nothing, for [`INIT_VERSION`].
pub fn init_request(id: &str, timeout_ms: i32) -> InitProducerIdRequest {
    InitProducerIdRequest::default()
        .with_transactional_id(Some(id_of(id)))
        .with_transaction_timeout_ms(timeout_ms)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1)
}

/// An AddPartitionsToTxn of one partition, for [`ADD_VERSION`].
pub fn add_request(
    id: &str,
    session: Session,
    topic: &str,
    partition: i32,
) -> AddPartitionsToTxnRequest {
    let topic = AddPartitionsToTxnTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(id_of(id))
        .with_v3_and_below_producer_id(ProducerId(session.0))
        .with_v3_and_below_producer_epoch(session.1)
        .with_v3_and_below_topics(vec![topic])
}

/// A Produce request of one transactional batch.
pub fn produce_request(id: &str, topic: &str, partition: i32, batch: Bytes) -> ProduceRequest {
    ops::produce_request(topic, partition, batch).with_transactional_id(Some(id_of(id)))
}

/// An EndTxn, for either dialect.
pub fn end_request(id: &str, session: Session, commit: bool) -> EndTxnRequest {
    EndTxnRequest::default()
        .with_transactional_id(id_of(id))
        .with_producer_id(ProducerId(session.0))
        .with_producer_epoch(session.1)
        .with_committed(commit)
}

/// Awaits that transactional ids have a coordinator: Apache Kafka makes the topic behind it when
/// it is first asked. At most 600 times, 100 ms apart.
pub async fn await_coordinator(client: &mut RawClient, id: &str) -> Result<()> {
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    let mut last = 0;
    for _ in 0..600 {
        pace.tick().await;
        let request = FindCoordinatorRequest::default()
            .with_key(StrBytes::from_string(id.to_owned()))
            .with_key_type(1);
        last = client.call(&request, 2).await?.error_code;
        if last == 0 {
            return Ok(());
        }
    }
    bail!("no coordinator for {id}: {last}")
}

/// Sessions of ids, in their order. Answers that ask for a retry are retried at most 600 times,
/// 50 ms apart.
pub async fn begin_all(
    client: &mut RawClient,
    ids: &[String],
    timeout_ms: i32,
) -> Result<Vec<Session>> {
    let mut sessions = vec![None; ids.len()];
    let mut left: Vec<usize> = (0..ids.len()).collect();
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..600 {
        if left.is_empty() {
            let sessions: Option<Vec<Session>> = sessions.into_iter().collect();
            return sessions.context("a session is missing");
        }
        pace.tick().await;
        let mut again = Vec::new();
        let mut sent = 0;
        for (answered, &index) in left.iter().enumerate() {
            for &next in left.iter().skip(sent).take(answered + WINDOW - sent) {
                let request = init_request(&ids[next], timeout_ms);
                client.send(&request, INIT_VERSION).await?;
                sent += 1;
            }
            let (_, answer) = client
                .receive::<InitProducerIdRequest>(INIT_VERSION)
                .await?;
            if PASSES.contains(&answer.error_code) {
                again.push(index);
                continue;
            }
            check(answer.error_code, "InitProducerId")?;
            sessions[index] = Some((answer.producer_id.0, answer.producer_epoch));
        }
        left = again;
    }
    bail!("InitProducerId kept asking for a retry")
}

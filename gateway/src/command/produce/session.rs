//! The producer's identity: of nobody in particular, or of a transactional id with the one
//! transaction that all records are in.

use std::collections::BTreeSet;

use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, EndTxnRequest, EndTxnResponse,
    InitProducerIdRequest, InitProducerIdResponse, TopicName, TransactionalId,
};
use kafka_protocol::protocol::Request;
use store_adapter::ids::{ProducerEpoch, ProducerId};

use super::super::client::{Client, Key, RETRY_PAUSE, passes};
use super::super::output::{Failure, check};
use super::super::topics::text;
use super::batch::Producer;

/// Newer versions are for brokers.
const ADD_OF_CLIENTS: i16 = 3;
/// Newer versions change the epoch with every transaction.
const END_KEEPS_EPOCH: i16 = 4;

/// A producer that brokers know.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) producer: Producer,
    pub(super) transactional_id: Option<String>,
    topic: String,
    /// Partitions that the transaction has.
    added: BTreeSet<i32>,
}

impl Session {
    /// Begins one; `transaction` is an id with a timeout in milliseconds.
    pub(super) async fn begin(
        client: &mut Client,
        topic: &str,
        transaction: Option<(&str, i32)>,
    ) -> Result<Self, Failure> {
        let answer = match transaction {
            Some((id, timeout_ms)) => {
                let build = |_| {
                    InitProducerIdRequest::default()
                        .with_transactional_id(Some(TransactionalId(text(id))))
                        .with_transaction_timeout_ms(timeout_ms)
                        .with_producer_id((-1).into())
                        .with_producer_epoch(-1)
                };
                let code = |answer: &InitProducerIdResponse| answer.error_code;
                client
                    .call_coordinator(Key::Transaction(id), build, code)
                    .await?
            }
            None => idempotent(client).await?,
        };
        check(answer.error_code, || match transaction {
            Some((id, _)) => format!("transactional id {id}"),
            None => "producer id".to_owned(),
        })?;
        Ok(Self {
            producer: Producer {
                id: ProducerId(answer.producer_id.0),
                epoch: ProducerEpoch(answer.producer_epoch),
                is_transactional: transaction.is_some(),
            },
            transactional_id: transaction.map(|(id, _)| id.to_owned()),
            topic: topic.to_owned(),
            added: BTreeSet::new(),
        })
    }

    /// Puts partitions into the transaction, if there is one and they are not in it yet.
    pub(super) async fn add(
        &mut self,
        client: &mut Client,
        partitions: impl IntoIterator<Item = i32>,
    ) -> Result<(), Failure> {
        let Some(id) = &self.transactional_id else {
            return Ok(());
        };
        let new = partitions.into_iter().filter(|p| !self.added.contains(p));
        let new: Vec<i32> = new.collect();
        if new.is_empty() {
            return Ok(());
        }
        let topic = AddPartitionsToTxnTopic::default()
            .with_name(TopicName(text(&self.topic)))
            .with_partitions(new.clone());
        let request = AddPartitionsToTxnRequest::default()
            .with_v3_and_below_transactional_id(TransactionalId(text(id)))
            .with_v3_and_below_producer_id(self.producer.id.0.into())
            .with_v3_and_below_producer_epoch(self.producer.epoch.0)
            .with_v3_and_below_topics(vec![topic]);
        let code = |answer: &AddPartitionsToTxnResponse| {
            let topics = answer.results_by_topic_v3_and_below.iter();
            let partitions = topics.flat_map(|topic| &topic.results_by_partition);
            let codes = partitions.map(|partition| partition.partition_error_code);
            codes.into_iter().find(|code| *code != 0).unwrap_or(0)
        };
        let build = |_| request.clone();
        let answer = insist(client, id, ADD_OF_CLIENTS, build, code).await?;
        check(code(&answer), || format!("transaction of {id}"))?;
        self.added.extend(new);
        Ok(())
    }

    /// Ends the transaction, if there is one with records.
    pub(super) async fn end(&self, client: &mut Client, commit: bool) -> Result<(), Failure> {
        let Some(id) = &self.transactional_id else {
            return Ok(());
        };
        if self.added.is_empty() {
            return Ok(());
        }
        let build = |_| {
            EndTxnRequest::default()
                .with_transactional_id(TransactionalId(text(id)))
                .with_producer_id(self.producer.id.0.into())
                .with_producer_epoch(self.producer.epoch.0)
                .with_committed(commit)
        };
        let code = |answer: &EndTxnResponse| answer.error_code;
        let answer = insist(client, id, END_KEEPS_EPOCH, build, code).await?;
        check(answer.error_code, || format!("transaction of {id}"))
    }
}

/// Asks the coordinator of `id` what may be asked twice, again while it can't be reached.
async fn insist<R: Request>(
    client: &mut Client,
    id: &str,
    max: i16,
    build: impl Fn(i16) -> R,
    code: impl Fn(&R::Response) -> i16,
) -> Result<R::Response, Failure> {
    let late = client.monotonic() + client.patience();
    loop {
        let key = Key::Transaction(id);
        let answer = client.call_coordinator_upto(key, max, &build, &code).await;
        match answer {
            Err(Failure::Unreachable(_)) if client.monotonic() < late => {
                client.pause(RETRY_PAUSE).await;
            }
            answer => return answer,
        }
    }
}

/// A producer id that nobody else has. Asks again while an error passes.
async fn idempotent(client: &mut Client) -> Result<InitProducerIdResponse, Failure> {
    let late = client.monotonic() + client.patience();
    loop {
        let build = |_| {
            InitProducerIdRequest::default()
                .with_transactional_id(None)
                .with_transaction_timeout_ms(i32::MAX)
                .with_producer_id((-1).into())
                .with_producer_epoch(-1)
        };
        let answer = client.call(None, build).await?;
        if !passes(answer.error_code) || client.monotonic() >= late {
            return Ok(answer);
        }
        client.pause(RETRY_PAUSE).await;
    }
}

//! DescribeTransactions (key 65), version 0.
//!
//! Groups are shown as partitions of `__consumer_offsets`, by their slot. A transaction whose
//! markers other brokers owe is shown as prepared, with what is owed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coordinator::machine::txn::{self, Shown, TxnError};
use coordinator::slot_hash::fnv1a32;
use coordinator::volume::format::GROUP_SLOTS;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_transactions_response::{TopicData, TransactionState};
use kafka_protocol::messages::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, ProducerId, TopicName,
    TransactionalId,
};

use super::text;
use crate::api::{ApiResponse, Staged};
use crate::broker::Broker;
use crate::error_code;

/// The topic of Kafka's that has the offsets of groups.
const OFFSETS_TOPIC: &str = "__consumer_offsets";

pub(crate) fn handle(
    broker: &Arc<Broker>,
    request: &DescribeTransactionsRequest,
) -> Staged<ApiResponse> {
    let one = |id: &TransactionalId| {
        let mut state = match describe(broker, id) {
            Ok(found) => shown(found),
            Err(code) => TransactionState::default().with_error_code(code.code()),
        };
        state.transactional_id = TransactionalId(text(id));
        state
    };
    // Each once: an answer is never larger than what is stored.
    let mut seen = BTreeSet::new();
    let ids = request.transactional_ids.iter();
    let states = ids.filter(|id| seen.insert(*id)).map(one).collect();
    let response = DescribeTransactionsResponse::default().with_transaction_states(states);
    Staged::Now(ApiResponse::DescribeTransactions(Box::new(response)))
}

fn describe(broker: &Broker, id: &str) -> Result<Shown, ResponseError> {
    if id.is_empty() {
        return Err(error_code::txn(TxnError::InvalidRequest));
    }
    let entry = broker.txns().describe(id).map_err(error_code::txn)?;
    let entry = entry.ok_or(ResponseError::TransactionalIdNotFound)?;
    Ok(txn::shown(&entry))
}

fn shown(shown: Shown) -> TransactionState {
    let mut topics: BTreeMap<Arc<str>, BTreeSet<i32>> = shown.partitions;
    for group in &shown.groups {
        let slot = fnv1a32(group.as_bytes()) % GROUP_SLOTS;
        let slots = topics.entry(Arc::from(OFFSETS_TOPIC)).or_default();
        slots.insert(i32::try_from(slot).unwrap_or(0));
    }
    let topics = topics.into_iter().map(|(topic, partitions)| {
        TopicData::default()
            .with_topic(TopicName(text(&topic)))
            .with_partitions(partitions.into_iter().collect())
    });
    TransactionState::default()
        .with_transaction_state(text(shown.state.name()))
        .with_transaction_timeout_ms(shown.timeout_ms)
        .with_transaction_start_time_ms(shown.start_ms.unwrap_or(-1))
        .with_producer_id(ProducerId(shown.pid.0))
        .with_producer_epoch(shown.epoch.0)
        .with_topics(topics.collect())
}

//! What is asked of coordinators: `list`, `describe`, `force-terminate`.

use clap::Args;
use kafka_protocol::messages::describe_transactions_response::TransactionState;
use kafka_protocol::messages::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, InitProducerIdRequest,
    InitProducerIdResponse, ListTransactionsRequest, ListTransactionsResponse, ProducerId,
    TransactionalId,
};
use serde::Serialize;

use super::super::client::{Client, Key};
use super::super::output::{Failure, Row, check};
use super::super::topics::text;
use super::or_none;

/// TRANSACTIONAL_ID_NOT_FOUND.
const NOT_FOUND: i16 = 105;
/// INVALID_TRANSACTION_TIMEOUT.
const INVALID_TIMEOUT: i16 = 50;
/// A timeout, in milliseconds, that every broker allows.
const TIMEOUT_ALLOWED_MS: i32 = 1_000;

/// Arguments of `fencepost txn list`.
#[derive(Debug, Clone, Args)]
pub(super) struct List {
    /// Only transactions that began longer ago, in milliseconds
    #[arg(long, value_name = "MS")]
    duration_filter: Option<i64>,
    /// Only ids that this regular expression matches as a whole
    #[arg(long, value_name = "PATTERN")]
    transactional_id_pattern: Option<String>,
}

/// A transactional id, in the columns of `kafka-transactions list`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed {
    pub(super) transactional_id: String,
    coordinator: i32,
    pub(super) producer_id: i64,
    transaction_state: String,
}

impl Row for Listed {
    const HEADINGS: &'static [&'static str] = &[
        "TRANSACTIONAL-ID",
        "COORDINATOR",
        "PRODUCER-ID",
        "TRANSACTION-STATE",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.transactional_id.clone(),
            self.coordinator.to_string(),
            self.producer_id.to_string(),
            self.transaction_state.clone(),
        ]
    }
}

impl List {
    pub(super) async fn run(self, client: &mut Client) -> Result<Vec<Listed>, Failure> {
        list(client, &self, &[]).await
    }
}

/// Transactional ids of these producers, or of all for none.
pub(super) async fn of_producers(
    client: &mut Client,
    producers: &[i64],
) -> Result<Vec<Listed>, Failure> {
    let all = List {
        duration_filter: None,
        transactional_id_pattern: None,
    };
    list(client, &all, producers).await
}

/// Ids of every broker: each knows those only that it coordinates.
async fn list(
    client: &mut Client,
    filter: &List,
    producers: &[i64],
) -> Result<Vec<Listed>, Failure> {
    let mut rows = Vec::new();
    for (coordinator, address) in client.brokers().await? {
        let mut unsupported = None;
        let build = |version| {
            let producers = producers.iter().map(|id| ProducerId(*id));
            let mut request =
                ListTransactionsRequest::default().with_producer_id_filters(producers.collect());
            match filter.duration_filter {
                Some(ms) if version >= 1 => request.duration_filter = ms,
                Some(_) => unsupported = Some("--duration-filter"),
                None => {}
            }
            match &filter.transactional_id_pattern {
                Some(pattern) if version >= 2 => {
                    request.transactional_id_pattern = Some(text(pattern));
                }
                Some(_) => unsupported = Some("--transactional-id-pattern"),
                None => {}
            }
            request
        };
        let code = |answer: &ListTransactionsResponse| answer.error_code;
        let answer = client.call_loaded(&address, build, code).await?;
        if let Some(flag) = unsupported {
            return Err(Failure::Refused(format!("{address} cannot filter: {flag}")));
        }
        check(answer.error_code, || format!("transactions of {address}"))?;
        rows.extend(answer.transaction_states.iter().map(|one| Listed {
            transactional_id: one.transactional_id.to_string(),
            coordinator,
            producer_id: one.producer_id.0,
            transaction_state: one.transaction_state.to_string(),
        }));
    }
    rows.sort_by(|a, b| a.transactional_id.cmp(&b.transactional_id));
    Ok(rows)
}

/// Arguments of `fencepost txn describe`.
#[derive(Debug, Clone, Args)]
pub(super) struct Describe {
    /// The transactional id
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    transactional_id: String,
}

/// A transaction, in the columns of `kafka-transactions describe`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Described {
    coordinator_id: i32,
    transactional_id: String,
    producer_id: i64,
    producer_epoch: i16,
    transaction_state: String,
    transaction_timeout_ms: i32,
    current_transaction_start_time_ms: Option<i64>,
    transaction_duration_ms: Option<i64>,
    topic_partitions: Vec<String>,
}

impl Row for Described {
    const HEADINGS: &'static [&'static str] = &[
        "COORDINATOR-ID",
        "TRANSACTIONAL-ID",
        "PRODUCER-ID",
        "PRODUCER-EPOCH",
        "TRANSACTION-STATE",
        "TIMEOUT-MS",
        "START-TIME-MS",
        "DURATION-MS",
        "TOPIC-PARTITIONS",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.coordinator_id.to_string(),
            self.transactional_id.clone(),
            self.producer_id.to_string(),
            self.producer_epoch.to_string(),
            self.transaction_state.clone(),
            self.transaction_timeout_ms.to_string(),
            or_none(self.current_transaction_start_time_ms),
            or_none(self.transaction_duration_ms),
            self.topic_partitions.join(","),
        ]
    }
}

impl Describe {
    pub(super) async fn run(self, client: &mut Client) -> Result<Vec<Described>, Failure> {
        let id = &self.transactional_id;
        let (coordinator_id, _) = client.coordinator(Key::Transaction(id)).await?;
        let state = describe(client, id).await?;
        check(state.error_code, || format!("transactional id {id}"))?;
        let start = state.transaction_start_time_ms;
        let start = (start >= 0).then_some(start);
        let now_ms = client.now_ms();
        Ok(vec![Described {
            coordinator_id,
            transactional_id: id.clone(),
            producer_id: state.producer_id.0,
            producer_epoch: state.producer_epoch,
            transaction_state: state.transaction_state.to_string(),
            transaction_timeout_ms: state.transaction_timeout_ms,
            current_transaction_start_time_ms: start,
            transaction_duration_ms: start.map(|start| now_ms - start),
            topic_partitions: partitions(&state),
        }])
    }
}

/// Partitions of a transaction as `topic-partition`, in order.
fn partitions(state: &TransactionState) -> Vec<String> {
    let mut places: Vec<(&str, i32)> = state
        .topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|p| (topic.topic.as_str(), *p)))
        .collect();
    places.sort_unstable();
    let names = places.iter();
    names.map(|(topic, p)| format!("{topic}-{p}")).collect()
}

/// What the coordinator says of an id, also that it knows none.
pub(super) async fn describe(client: &mut Client, id: &str) -> Result<TransactionState, Failure> {
    let code = |answer: &DescribeTransactionsResponse| {
        let first = answer.transaction_states.first();
        first.map_or(0, |state| state.error_code)
    };
    let answer = client
        .call_coordinator(
            Key::Transaction(id),
            |_| {
                let ids = vec![TransactionalId(text(id))];
                DescribeTransactionsRequest::default().with_transactional_ids(ids)
            },
            code,
        )
        .await?;
    let state = answer.transaction_states.into_iter().next();
    state.ok_or_else(|| Failure::Refused(format!("transactional id {id}: no answer")))
}

/// Whether the coordinator has no such id.
pub(super) fn is_missing(state: &TransactionState) -> bool {
    state.error_code == NOT_FOUND
}

/// Arguments of `fencepost txn force-terminate`.
#[derive(Debug, Clone, Args)]
pub(super) struct ForceTerminate {
    /// The transactional id
    #[arg(
        long,
        alias = "transactionalId",
        value_name = "ID",
        allow_hyphen_values = true
    )]
    transactional_id: String,
}

/// What became of it.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Terminated {
    transactional_id: String,
    producer_id: i64,
    producer_epoch: i16,
}

impl Row for Terminated {
    const HEADINGS: &'static [&'static str] =
        &["TRANSACTIONAL-ID", "PRODUCER-ID", "PRODUCER-EPOCH"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.transactional_id.clone(),
            self.producer_id.to_string(),
            self.producer_epoch.to_string(),
        ]
    }
}

impl ForceTerminate {
    /// Begins a session of the id that nobody has, as Kafka's tool does. It would make an id that
    /// is not there, so that is looked for first; and its timeout becomes that of the id, so the
    /// id's own is given, unless the broker allows no such timeout any more.
    pub(super) async fn run(self, client: &mut Client) -> Result<Vec<Terminated>, Failure> {
        let id = &self.transactional_id;
        let state = describe(client, id).await?;
        check(state.error_code, || format!("transactional id {id}"))?;
        let mut answer = begin(client, id, state.transaction_timeout_ms).await?;
        if answer.error_code == INVALID_TIMEOUT {
            answer = begin(client, id, TIMEOUT_ALLOWED_MS).await?;
        }
        check(answer.error_code, || format!("transactional id {id}"))?;
        Ok(vec![Terminated {
            transactional_id: id.clone(),
            producer_id: answer.producer_id.0,
            producer_epoch: answer.producer_epoch,
        }])
    }
}

/// Begins a session of an id that no client claims.
async fn begin(
    client: &mut Client,
    id: &str,
    timeout_ms: i32,
) -> Result<InitProducerIdResponse, Failure> {
    client
        .call_coordinator(
            Key::Transaction(id),
            |_| {
                InitProducerIdRequest::default()
                    .with_transactional_id(Some(TransactionalId(text(id))))
                    .with_transaction_timeout_ms(timeout_ms)
                    .with_producer_id(ProducerId(-1))
                    .with_producer_epoch(-1)
            },
            |answer: &InitProducerIdResponse| answer.error_code,
        )
        .await
}

//! What inspection says on the wire and over HTTP, when everything is decided: the same as the
//! logs.

use std::collections::BTreeSet;

use gateway::api::{ApiRequest, ApiResponse};
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::{
    DescribeProducersRequest, DescribeTransactionsRequest, ListTransactionsRequest, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use serde_json::Value;

use super::super::check::Failure;
use super::super::clients::{Client, Target};
use super::super::net::Connection;
use super::check::TRIES;
use super::{AGAIN, TxnLedger, Wish, name, shown};
use crate::raw::ops::topic_name;

/// States in which nothing is open or owed.
const AT_REST: [&str; 3] = ["Empty", "CompleteCommit", "CompleteAbort"];
/// All others.
const AT_WORK: [&str; 3] = ["Ongoing", "PrepareCommit", "PrepareAbort"];

/// Asks about every id and partition.
pub(super) async fn inspect(
    client: &Client,
    ledger: &TxnLedger,
    on: &Target,
    ids: u32,
) -> Result<(), Failure> {
    let connection = client.connect().await;
    for id in 0..ids {
        let state = at_rest(client, &connection, id).await?;
        let committed = |txn: &super::Txn| txn.id == id && txn.wish == Wish::Commit && !txn.refused;
        let mut all = (1..).map_while(|number| ledger.get(number));
        if state.as_deref() == Some("CompleteCommit") && !all.any(|txn| committed(&txn)) {
            let what = format!("{} is shown as committed, and never was", name(id));
            client.history.violation(&what);
        }
    }
    let listed = list(client, &connection, &[]).await?;
    if let Some(lost) = ledger.began().difference(&listed).next() {
        let what = format!("{lost} is not listed");
        client.history.violation(&what);
    }
    let open = list(client, &connection, &AT_WORK).await?;
    if !open.is_empty() {
        let what = format!("{open:?} are listed as open, and described as ended");
        client.history.violation(&what);
    }
    producers(client, &connection, on).await?;
    for id in 0..ids {
        same(client, ledger, &connection, id).await?;
    }
    listed_over_http(client, &connection, &listed).await?;
    for partition in 0..on.partitions {
        nothing_is_held_back(client, &connection, on, partition).await?;
    }
    Ok(())
}

/// An id is the same over HTTP and on the wire.
async fn same(
    client: &Client,
    ledger: &TxnLedger,
    connection: &Connection,
    id: u32,
) -> Result<(), Failure> {
    if !ledger.has_begun(id) {
        return Ok(());
    }
    for _ in 0..TRIES {
        if shown::compare(client, ledger, connection, id).await || client.history.failed() {
            return Ok(());
        }
        client.pause(100, 100).await;
    }
    Err(format!("{} is never shown over HTTP", name(id)))
}

async fn http(client: &Client, connection: &Connection, path: &str) -> Result<Value, Failure> {
    let answer = client.net.http(&client.env, connection.server, path).await;
    match answer {
        Some((200, body)) => Ok(body),
        answer => Err(format!("{path} is answered with {answer:?}")),
    }
}

/// Every id is listed over HTTP that is listed on the wire, and none besides.
async fn listed_over_http(
    client: &Client,
    connection: &Connection,
    listed: &BTreeSet<String>,
) -> Result<(), Failure> {
    let body = http(client, connection, "/api/v1/transactions?page_size=1000").await?;
    let ids = body["transactions"].as_array().into_iter().flatten();
    let ids = ids.filter_map(|one| one["transactionalId"].as_str());
    let ids: BTreeSet<String> = ids.map(str::to_owned).collect();
    if ids != *listed || body["matched"] != listed.len() {
        let what = format!("{listed:?} are listed on the wire, over HTTP {body}");
        client.history.violation(&what);
    }
    Ok(())
}

/// A reader of committed records sees the end of a partition, and HTTP says so.
async fn nothing_is_held_back(
    client: &Client,
    connection: &Connection,
    on: &Target,
    partition: i32,
) -> Result<(), Failure> {
    let path = format!("/api/v1/topics/{}/partitions/{partition}", on.name);
    let lso = http(client, connection, &format!("{path}/lso")).await?;
    if lso["heldBack"] != 0
        || lso["openCount"] != 0
        || lso["holder"] != Value::Null
        || lso["lastStableOffset"] != lso["highWatermark"]
    {
        let what = format!("partition {partition} is shown as held back: {lso}");
        client.history.violation(&what);
    }
    let open = http(client, connection, &format!("{path}/producers?open=true")).await?;
    if open["matched"] != 0 {
        let what = format!("partition {partition} is shown with open transactions: {open}");
        client.history.violation(&what);
    }
    Ok(())
}

/// The state of an id, once nothing is open; `None` for one that nothing is known of.
async fn at_rest(
    client: &Client,
    connection: &Connection,
    id: u32,
) -> Result<Option<String>, Failure> {
    let mut last = String::new();
    for _ in 0..TRIES {
        let asked = TransactionalId(StrBytes::from_string(name(id)));
        let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![asked]);
        let request = ApiRequest::DescribeTransactions(Box::new(request));
        let Some(ApiResponse::DescribeTransactions(answer)) =
            client.ask(connection, request, 0).await
        else {
            return Err("no answer to DescribeTransactions".to_owned());
        };
        let state = answer.transaction_states.first();
        let state = state.ok_or("an empty answer to DescribeTransactions")?;
        match state.error_code {
            0 if AT_REST.contains(&state.transaction_state.as_str()) => {
                return Ok(Some(state.transaction_state.to_string()));
            }
            0 => {}
            // TRANSACTIONAL_ID_NOT_FOUND
            105 => return Ok(None),
            code if AGAIN.contains(&code) => {}
            code => return Err(format!("DescribeTransactions of {id}: {code}")),
        }
        last = format!("{state:?}");
        client.pause(100, 100).await;
    }
    Err(format!("{} is never at rest: {last}", name(id)))
}

async fn list(
    client: &Client,
    connection: &Connection,
    states: &[&'static str],
) -> Result<BTreeSet<String>, Failure> {
    for _ in 0..TRIES {
        let states = states.iter().map(|state| StrBytes::from_static_str(state));
        let request = ListTransactionsRequest::default()
            .with_state_filters(states.collect())
            .with_duration_filter(-1);
        let request = ApiRequest::ListTransactions(Box::new(request));
        let Some(ApiResponse::ListTransactions(answer)) = client.ask(connection, request, 1).await
        else {
            return Err("no answer to ListTransactions".to_owned());
        };
        match answer.error_code {
            0 => {
                let ids = answer.transaction_states.iter();
                return Ok(ids.map(|one| one.transactional_id.0.to_string()).collect());
            }
            code if AGAIN.contains(&code) => client.pause(100, 100).await,
            code => return Err(format!("ListTransactions: {code}")),
        }
    }
    Err("ListTransactions is never answered".to_owned())
}

/// No partition has an open transaction.
async fn producers(client: &Client, connection: &Connection, on: &Target) -> Result<(), Failure> {
    let topic = TopicRequest::default()
        .with_name(topic_name(&on.name))
        .with_partition_indexes((0..on.partitions).collect());
    let request = DescribeProducersRequest::default().with_topics(vec![topic]);
    let request = ApiRequest::DescribeProducers(Box::new(request));
    let Some(ApiResponse::DescribeProducers(answer)) = client.ask(connection, request, 0).await
    else {
        return Err("no answer to DescribeProducers".to_owned());
    };
    for partition in answer.topics.iter().flat_map(|topic| &topic.partitions) {
        let mut producers = partition.active_producers.iter();
        let open = producers.find(|producer| producer.current_txn_start_offset >= 0);
        if partition.error_code != 0 || open.is_some() {
            let what = format!(
                "partition {} is shown with {open:?}",
                partition.partition_index
            );
            client.history.violation(&what);
        }
    }
    Ok(())
}

//! `fencepost txn` beside Kafka's `kafka-transactions`: on one broker both say the same, and what
//! one changes the other sees.

use std::process::Output;

use bytes::BytesMut;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::list_transactions_response::TransactionState;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use kafka_protocol::messages::{
    ApiVersionsResponse, ListTransactionsRequest, ListTransactionsResponse, MetadataResponse,
    ProducerId, ResponseHeader, WriteTxnMarkersResponse,
};
use kafka_protocol::protocol::{Encodable, HeaderVersion};
use tests::raw::{RawClient, ops};
use tests::txn_tools::{Line, TRANSACTIONS, kafkas_lines, rows_of, run_ours};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{Session, add, await_state, begin, connect, describe, id_of, init_by, init_request};
use crate::kit::{P, Target, on_kafka, produce_request, text};
use crate::tools::tool;

/// The table that Kafka's tool prints.
async fn kafkas(target: &Target, args: &str) -> Vec<Line> {
    kafkas_lines(&tool(target, TRANSACTIONS, args).await)
}

async fn run(target: &Target, args: &str) -> Output {
    let (address, args) = (target.address().to_owned(), args.to_owned());
    let run = move || run_ours(&address, &args).unwrap();
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// What ours says, in the words of Kafka's tables.
async fn ours(target: &Target, args: &str) -> Vec<Line> {
    let output = run(target, &format!("{args} --format json")).await;
    rows_of(args, &output).unwrap()
}

/// What ours says when it refuses.
async fn refusal(target: &Target, args: &str) -> (i32, String) {
    let output = run(target, args).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap(), said)
}

/// The rows of both tools whose first of `names` begins with `of`, cell by cell. Headings of ours
/// are Kafka's in camel case.
fn agree(kafkas: &[Line], ours: &[Line], names: &[&str], of: &str) -> Vec<Vec<String>> {
    let camel = |name: &str| {
        let (first, rest) = name.split_at(1);
        format!("{}{rest}", first.to_lowercase())
    };
    let cells = |rows: &[Line], name: &dyn Fn(&str) -> String| {
        let mut rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| {
                let cell = |key: &&str| {
                    let found = row.get(&name(key)).cloned();
                    found.unwrap_or_else(|| panic!("{key} of {row:?}"))
                };
                names.iter().map(cell).collect::<Vec<_>>()
            })
            .filter(|row| row[0].starts_with(of))
            .collect();
        rows.sort();
        rows
    };
    let theirs = cells(kafkas, &str::to_owned);
    assert_eq!(theirs, cells(ours, &camel));
    theirs
}

/// The code of a transactional batch of version 9, for partition 0.
async fn produce(client: &mut RawClient, id: &str, topic: &str, (pid, epoch): Session) -> i16 {
    let mut spec = P(pid, epoch, 0, 3).spec();
    spec.attributes = 0x10;
    let mut request = produce_request(topic, &[(0, Some(spec.build()))]);
    request.transactional_id = Some(id_of(id));
    super::produce(client, &request, 9).await[0].error_code
}

#[tokio::test]
async fn lists_and_descriptions_agree() {
    let target = Target::shared();
    target.with_topic("tools-t", 2).await;
    let mut client = connect(&target, "tools-open").await;
    begin(&mut client, "tools-empty").await;
    let open = begin(&mut client, "tools-open").await;
    let of = [("tools-t", &[1, 0][..])];
    assert_eq!(add(&mut client, "tools-open", open, &of, 3).await, [0, 0]);
    let columns = [
        "TransactionalId",
        "Coordinator",
        "ProducerId",
        "TransactionState",
    ];
    for (filter, count) in [
        ("", 2),
        ("--duration-filter 3600000", 1),
        ("--transactional-id-pattern tools-o.*", 1),
        ("--transactional-id-pattern tools", 0),
    ] {
        let args = format!("list {filter}");
        let (theirs, ours) = (kafkas(&target, &args).await, ours(&target, &args).await);
        let rows = agree(&theirs, &ours, &columns, "tools-");
        assert_eq!(rows.len(), count, "{args}");
    }
    let columns = [
        "TransactionalId",
        "CoordinatorId",
        "ProducerId",
        "ProducerEpoch",
        "TransactionState",
        "CurrentTransactionStartTimeMs",
    ];
    for id in ["tools-empty", "tools-open"] {
        let args = format!("describe --transactional-id {id}");
        let (theirs, ours) = (kafkas(&target, &args).await, ours(&target, &args).await);
        assert_eq!(agree(&theirs, &ours, &columns, "").len(), 1);
        assert_eq!(
            theirs[0]["TransactionTimeoutMs"],
            ours[0]["transactionTimeoutMs"]
        );
        let mut places: Vec<&str> = match theirs[0].get("TopicPartitions") {
            Some(places) => places.split(',').collect(),
            None => Vec::new(),
        };
        places.sort_unstable();
        assert_eq!(places.join(","), ours[0]["topicPartitions"]);
        let duration = &ours[0]["transactionDurationMs"];
        assert_eq!(
            duration == "None",
            theirs[0]["TransactionDurationMs"] == "None"
        );
    }
    let (code, said) = refusal(&target, "describe --transactional-id tools-none").await;
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("tools-none") && said.contains("(105)"),
        "{said}"
    );
}

#[tokio::test]
async fn t67_ids_are_terminated_by_either() {
    let target = Target::shared();
    target.with_topic("t67", 1).await;
    let mut client = connect(&target, "t67").await;
    let session = begin(&mut client, "t67").await;
    assert_eq!(session.1, 0);
    let of = [("t67", &[0][..])];
    assert_eq!(add(&mut client, "t67", session, &of, 3).await, [0]);
    let args = "forceTerminateTransaction --transactionalId t67";
    tool(&target, TRANSACTIONS, args).await;
    let terminated = await_state(&mut client, "t67", "Empty").await;
    assert_eq!(
        (terminated.producer_id.0, terminated.producer_epoch),
        (session.0, 2)
    );
    assert_eq!(add(&mut client, "t67", session, &of, 3).await, [90]);

    let session = (session.0, 2);
    assert_eq!(add(&mut client, "t67", session, &of, 3).await, [0]);
    let rows = ours(&target, "force-terminate --transactional-id t67").await;
    assert_eq!(rows[0]["producerId"], session.0.to_string());
    assert_eq!(rows[0]["producerEpoch"], "4");
    let terminated = describe(&mut client, "t67").await;
    assert_eq!(terminated.transaction_state.as_str(), "Empty");
    assert_eq!(terminated.producer_epoch, 4);
    assert_eq!(add(&mut client, "t67", session, &of, 3).await, [90]);

    let (code, said) = refusal(&target, "force-terminate --transactional-id t67-none").await;
    assert_eq!(code, 1, "{said}");
    assert_eq!(describe(&mut client, "t67-none").await.error_code, 105);
}

/// The frame of an answer.
fn framed<R: Encodable + HeaderVersion>(correlation_id: i32, v: i16, answer: &R) -> Vec<u8> {
    let mut body = BytesMut::new();
    let header = ResponseHeader::default().with_correlation_id(correlation_id);
    header.encode(&mut body, R::header_version(v)).unwrap();
    answer.encode(&mut body, v).unwrap();
    let len = i32::try_from(body.len()).unwrap();
    [&len.to_be_bytes(), &body[..]].concat()
}

/// Topic `t` with a partition that this broker leads.
fn led() -> MetadataResponseTopic {
    MetadataResponseTopic::default()
        .with_name(Some(ops::topic_name("t")))
        .with_partitions(vec![MetadataResponsePartition::default()])
}

/// The answer to a WriteTxnMarkers of one partition.
fn marked(code: i16) -> WriteTxnMarkersResponse {
    let partition = WritableTxnMarkerPartitionResult::default().with_error_code(code);
    let topic = WritableTxnMarkerTopicResult::default().with_partitions(vec![partition]);
    let marker = WritableTxnMarkerResult::default().with_topics(vec![topic]);
    WriteTxnMarkersResponse::default().with_markers(vec![marker])
}

/// A broker that knows four APIs, and answers the first ListTransactions with 14. WriteTxnMarkers
/// are answered with `codes`, and then with 0.
async fn loading_broker(listener: TcpListener, codes: &'static [i16]) {
    let port = i32::from(listener.local_addr().unwrap().port());
    let mut asked = 0;
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        while let Ok(len) = stream.read_i32().await {
            let mut frame = vec![0; usize::try_from(len).unwrap()];
            stream.read_exact(&mut frame).await.unwrap();
            let number = |at: usize| i16::from_be_bytes([frame[at], frame[at + 1]]);
            let (api, v) = (number(0), number(2));
            let correlation = i32::from_be_bytes(frame[4..8].try_into().unwrap());
            let answer = match api {
                18 => {
                    let known = [(3, 1), (18, 3), (27, 1), (66, 0)].map(|(key, max)| {
                        ApiVersion::default()
                            .with_api_key(key)
                            .with_max_version(max)
                    });
                    let answer = ApiVersionsResponse::default().with_api_keys(known.into());
                    framed(correlation, v, &answer)
                }
                3 => {
                    let own = MetadataResponseBroker::default()
                        .with_host(text("127.0.0.1"))
                        .with_port(port);
                    let answer = MetadataResponse::default()
                        .with_brokers(vec![own])
                        .with_topics(vec![led()]);
                    framed(correlation, v, &answer)
                }
                27 => {
                    asked += 1;
                    let code = codes.get(asked - 1).copied().unwrap_or_default();
                    framed(correlation, v, &marked(code))
                }
                _ => {
                    asked += 1;
                    let listed = TransactionState::default().with_transactional_id(id_of("tx"));
                    let answer = match asked {
                        1 => ListTransactionsResponse::default().with_error_code(14),
                        _ => ListTransactionsResponse::default()
                            .with_transaction_states(vec![listed]),
                    };
                    framed(correlation, v, &answer)
                }
            };
            stream.write_all(&answer).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_list_waits_for_a_coordinator_that_is_loading() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let broker = tokio::spawn(loading_broker(listener, &[]));
    let args = "list --timeout 60000 --format json";
    let run = move || rows_of(args, &run_ours(&address, args).unwrap()).unwrap();
    let rows = tokio::task::spawn_blocking(run).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["transactionalId"], "tx");
    broker.abort();
}

#[tokio::test]
async fn an_abort_is_tried_again_while_what_it_is_refused_for_passes() {
    for (codes, refused) in [(&[14, 15, 6, 15][..], None), (&[6, 51], Some("(51)"))] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let broker = tokio::spawn(loading_broker(listener, codes));
        let args = "abort --topic t --partition 0 --producer-id 7 --producer-epoch 3 \
                    --coordinator-epoch 0 --timeout 60000";
        let run = move || run_ours(&address, args).unwrap();
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), refused.is_none(), "{said}");
        assert!(said.contains(refused.unwrap_or_default()), "{said}");
        broker.abort();
    }
}

#[tokio::test]
async fn ids_are_terminated_whose_timeout_is_not_allowed_any_more() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    target.with_topic("tools-long", 1).await;
    let mut client = connect(&target, "tools-long").await;
    let request = init_request("tools-long", (-1, -1)).with_transaction_timeout_ms(600_000);
    let (code, pid, epoch) = init_by(&mut client, &request, 4).await;
    assert_eq!((code, epoch), (0, 0));
    let of = [("tools-long", &[0][..])];
    let added = add(&mut client, "tools-long", (pid, epoch), &of, 3).await;
    assert_eq!(added, [0]);
    target.gateway(|gateway, _| {
        gateway.process().kill().unwrap();
        let lowered = "transaction.max.timeout.ms=60000".to_owned();
        gateway.options().overrides.push(lowered);
        gateway.restart().unwrap();
    });
    let rows = ours(&target, "force-terminate --transactional-id tools-long").await;
    assert_eq!(rows[0]["producerId"], pid.to_string());
    let mut client = connect(&target, "tools-long").await;
    let terminated = describe(&mut client, "tools-long").await;
    assert_eq!(terminated.transaction_state.as_str(), "Empty");
    assert_eq!(terminated.topics, []);
}

#[tokio::test]
async fn t68_hanging_transactions_are_found_and_aborted() {
    // Nobody asks the coordinator about a first batch: so a transaction hangs.
    let target = Target::start(&[("transaction.partition.verification.enable", "false")]);
    target.with_topic("t68", 1).await;
    let mut client = connect(&target, "t68").await;
    let session = begin(&mut client, "t68").await;
    assert_eq!(produce(&mut client, "t68", "t68", session).await, 0);

    let columns = [
        "ProducerId",
        "ProducerEpoch",
        "LatestCoordinatorEpoch",
        "LastSequence",
        "LastTimestamp",
        "CurrentTransactionStartOffset",
    ];
    let args = "describe-producers --topic t68 --partition 0";
    let broker = ops::metadata(&mut client, "t68").await.unwrap().brokers[0]
        .node_id
        .0;
    for args in [args.to_owned(), format!("{args} --broker-id {broker}")] {
        let (theirs, ours) = (kafkas(&target, &args).await, ours(&target, &args).await);
        let rows = agree(&theirs, &ours, &columns, "");
        assert_eq!(rows.len(), 1);
        assert_eq!((&*rows[0][0], &*rows[0][5]), (&*session.0.to_string(), "0"));
    }
    let columns = [
        "Topic",
        "Partition",
        "ProducerId",
        "ProducerEpoch",
        "CoordinatorEpoch",
        "StartOffset",
        "LastTimestamp",
    ];
    let find = "find-hanging --max-transaction-timeout 0";
    let of_broker = format!("{find} --broker-id {broker}");
    for args in [
        &format!("{find} --topic t68"),
        &format!("{find} --topic t68 --partition 0"),
        &of_broker,
    ] {
        let (theirs, ours) = (kafkas(&target, args).await, ours(&target, args).await);
        assert_eq!(agree(&theirs, &ours, &columns, "t68").len(), 1, "{args}");
    }
    // What the coordinator knows does not hang.
    let known = begin(&mut client, "t68-known").await;
    let of = [("t68", &[0][..])];
    assert_eq!(add(&mut client, "t68-known", known, &of, 3).await, [0]);
    assert_eq!(produce(&mut client, "t68-known", "t68", known).await, 0);
    let (theirs, found) = (
        kafkas(&target, &of_broker).await,
        ours(&target, &of_broker).await,
    );
    assert_eq!(agree(&theirs, &found, &columns, "t68").len(), 1);
    // Nothing hangs that wrote in the last minutes.
    let found = ours(&target, "find-hanging --topic t68").await;
    assert!(found.is_empty(), "{found:?}");

    let (code, said) = refusal(&target, "abort --topic t68 --partition 0 --start-offset 7").await;
    assert_eq!(code, 1, "{said}");
    let rows = ours(&target, "abort --topic t68 --partition 0 --start-offset 0").await;
    assert_eq!(rows[0]["producerId"], session.0.to_string());
    assert!(kafkas(&target, &of_broker).await.is_empty());
    // Kafka's tool aborts the next one.
    let session = begin(&mut client, "t68").await;
    assert_eq!(produce(&mut client, "t68", "t68", session).await, 0);
    assert_eq!(ours(&target, &of_broker).await.len(), 1);
    let start = &ours(&target, &of_broker).await[0]["startOffset"].clone();
    let args = format!("abort --topic t68 --partition 0 --start-offset {start}");
    tool(&target, TRANSACTIONS, &args).await;
    assert!(ours(&target, &of_broker).await.is_empty());
}

#[tokio::test]
async fn what_a_damaged_slot_may_own_is_not_said_to_hang() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    target.with_topic("damaged-slot", 1).await;
    let mut client = connect(&target, "damaged-slot").await;
    let session = begin(&mut client, "damaged-slot").await;
    let of = [("damaged-slot", &[0][..])];
    assert_eq!(add(&mut client, "damaged-slot", session, &of, 3).await, [0]);
    let code = produce(&mut client, "damaged-slot", "damaged-slot", session).await;
    assert_eq!(code, 0);
    let find = "find-hanging --max-transaction-timeout 0 --topic damaged-slot";
    assert!(ours(&target, find).await.is_empty());
    drop(client);
    target.gateway(|gateway, data| {
        gateway.process().kill().unwrap();
        let mut damaged = 0;
        for entry in std::fs::read_dir(data.join("__cluster/txn_state")).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            if text.contains("damaged-slot") && !path.to_string_lossy().contains(".prev.") {
                std::fs::write(&path, &text[..text.len() / 2]).unwrap();
                damaged += 1;
            }
        }
        assert_eq!(damaged, 1);
        gateway.restart().unwrap();
    });
    let mut client = target.connect().await;
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(50));
    // While other slots are read the answer is 14.
    let mut list = async |producers: Vec<ProducerId>| {
        loop {
            pace.tick().await;
            let request =
                ListTransactionsRequest::default().with_producer_id_filters(producers.clone());
            let answer = client.call(&request, 0).await.unwrap();
            if answer.error_code != 14 {
                return (answer.error_code, answer.transaction_states.len());
            }
        }
    };
    assert_eq!(list(vec![ProducerId(session.0)]).await, (15, 0));
    assert_eq!(list(Vec::new()).await, (0, 0));
    let (code, said) = refusal(&target, find).await;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("(15)"), "{said}");
}

//! What is done over HTTP, and what the others say of it.

use std::sync::Arc;
use std::time::Duration;

use coordinator::machine::group::classic::Caller;
use coordinator::machine::group::offsets::{NewOffset, NewTxn};
use coordinator::machine::txn::{AddClass, EndTxn};
use gateway::Gateway;
use kafka_protocol::messages::{
    DescribeTransactionsRequest, ListTransactionsRequest, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use serde_json::{Value, json};
use tests::raw::RawClient;

use super::kit::{Site, ask};

const LSO: &str = "/api/v1/topics/orders/partitions/0/lso";

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_moves_the_last_stable_offset_and_leaves_a_trace() {
    let site = Site::start().await;
    site.create("orders").await;
    let session = site.open("tx", "orders").await;
    let group: Arc<str> = "readers".into();
    let txns = site.0.broker().txns();
    let added = txns.add_groups("tx", session, &group, AddClass::Client(3), None);
    added.await.unwrap();
    let txn = NewTxn {
        producer_id: session.pid,
        producer_epoch: session.epoch,
        transactional_id: "tx".to_owned(),
        txn_seq: 1,
    };
    let name = StrBytes::from_static_str("orders");
    let offset = NewOffset {
        topic: "orders".into(),
        topic_id: site.0.broker().topic_by_name(&name).unwrap().id,
        partition: 0,
        offset: 2,
        leader_epoch: None,
        metadata: "".into(),
    };
    let nobody = Caller {
        member_id: "",
        instance_id: None,
    };
    let offsets = site.0.broker().offsets();
    let staged = offsets.stage("readers", nobody, -1, &txn, vec![offset]);
    staged.unwrap().unwrap().durable().await.unwrap();
    let staged = site.json("/api/v1/groups/readers/offsets").await;
    assert_eq!(staged["pending"][0]["offsets"][0]["offset"], 2);
    assert_eq!(staged["offsets"], json!([]));
    let path = "/api/v1/transactions/tx/abort";
    let dry = site
        .post(&format!("{path}?dry_run=true"), "{}")
        .await
        .json();
    assert_eq!(dry["outcome"], "would-abort");
    assert_eq!(dry["plan"]["partitions"][0]["holdsLastStableOffset"], true);
    assert_eq!(dry["plan"]["groups"], json!(["readers"]));
    assert_eq!(site.json(LSO).await["lastStableOffset"], 0);
    let done = site.post(path, r#"{"reason":"left open"}"#).await;
    assert_eq!(
        (done.status, &done.json()["outcome"]),
        (200, &json!("aborted"))
    );
    // Three records and the marker.
    let lso = site.json(LSO).await;
    assert_eq!(
        (&lso["lastStableOffset"], &lso["heldBack"]),
        (&json!(4), &json!(0))
    );
    let staged = site.json("/api/v1/groups/readers/offsets").await;
    assert_eq!(
        (&staged["pending"], &staged["offsets"]),
        (&json!([]), &json!([]))
    );
    let history = site.json("/api/v1/transactions/tx/history").await;
    let last: Vec<_> = history["transitions"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .take(2)
        .collect();
    assert_eq!(
        (&last[1]["to"], &last[1]["cause"]),
        (&json!("PrepareAbort"), &json!("admin"))
    );
    assert_eq!(
        (&last[0]["to"], &last[0]["cause"]),
        (&json!("CompleteAbort"), &json!("finished"))
    );
    let fences = site
        .json(&format!("/api/v1/fences?producer_id={}", session.pid.0))
        .await;
    assert_eq!(fences["brokers"][0]["fences"][0]["producerEpoch"], 1);
    let audit = site.json("/api/v1/audit").await;
    assert_eq!(audit["entries"][0]["reason"], "left open");
    assert!(
        audit["entries"][0]["who"]
            .as_str()
            .unwrap()
            .starts_with("127.0.0.1:")
    );
    // The dead session can't end what is over.
    let late = EndTxn {
        version: 4,
        session,
        commit: true,
        client: None,
    };
    assert!(txns.end_txn("tx", &late).await.is_err());
    let again = site.post(path, r#"{"reason":"left open"}"#).await;
    assert_eq!(
        (again.status, &again.json()["kafkaErrorCode"]),
        (409, &json!(48))
    );
    assert!(site.0.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn held_markers_keep_a_commit_prepared_until_they_are_released() {
    let site = Site::start().await;
    site.create("orders").await;
    site.create("others").await;
    let added = site
        .post(
            "/api/v1/faults",
            r#"{"kind":"hold-markers","transactionalId":"held"}"#,
        )
        .await;
    assert_eq!(added.status, 201);
    let session = site.open("held", "orders").await;
    let free = site.open("free", "others").await;
    let commit = |session| EndTxn {
        version: 4,
        session,
        commit: true,
        client: None,
    };
    let txns = site.0.broker().txns().clone();
    txns.end_txn("free", &commit(free)).await.unwrap();
    let ending = {
        let (txns, commit) = (txns.clone(), commit(session));
        tokio::spawn(async move { txns.end_txn("held", &commit).await })
    };
    let fired = |faults: &Value| faults["faults"][0]["fired"].as_u64() > Some(0);
    site.until("/api/v1/faults", fired).await;
    let one = site.json("/api/v1/transactions/held").await;
    assert_eq!(
        (&one["state"], &one["next"]["action"]),
        (&json!("PrepareCommit"), &json!("write-markers"))
    );
    let lso = site.json(LSO).await;
    assert_eq!(lso["holder"]["standing"], "deciding");
    assert_eq!(lso["lastStableOffset"], 0);
    assert_eq!(lso["remedies"][0]["request"], "DELETE /api/v1/faults/1");
    // Who reads it finds the fault, and that it has to go.
    let why = "its markers are held by fault 1, until it is released";
    assert_eq!(one["next"]["text"], why);
    let summary = lso["summary"].as_str().unwrap();
    assert!(summary.ends_with(&format!("; {why}.")), "{summary}");
    let refused = site
        .post("/api/v1/transactions/held/abort", r#"{"reason":"x"}"#)
        .await;
    assert_eq!(
        (refused.status, &refused.json()["kafkaErrorCode"]),
        (409, &json!(51))
    );
    // An order waits for a while before it fails.
    let mut left = Value::Null;
    for _ in 0..3000 {
        let pass = site.post("/api/v1/reconcile/run", "{}").await.json();
        left = pass["unfinished"][0].clone();
        if left["reason"] == "its markers are held by a fault" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(left["reason"], "its markers are held by a fault");
    assert_eq!(left["transactionalId"], "held");
    let released = ask(
        &site.0.addresses().admin,
        "DELETE",
        "/api/v1/faults/1",
        None,
    )
    .await;
    assert_eq!(released.status, 204);
    let done = |one: &Value| one["state"] == "CompleteCommit";
    site.until("/api/v1/transactions/held", done).await;
    assert_eq!(site.json(LSO).await["lastStableOffset"], 4);
    // In time, or told that it is not finished yet: never that it failed.
    let ended = ending.await.unwrap();
    assert!(
        ended == Ok(None)
            || ended == Err(coordinator::machine::txn::TxnError::CoordinatorNotAvailable),
        "{ended:?}"
    );
    txns.end_txn("held", &commit(session)).await.unwrap();
    assert!(site.0.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wire_and_http_say_the_same() {
    let site = Site::start().await;
    for (id, topic) in [("open", "a"), ("aborted", "b"), ("prepared", "c")] {
        site.create(topic).await;
        site.open(id, topic).await;
    }
    site.init("idle").await;
    site.post("/api/v1/transactions/aborted/abort", r#"{"reason":"x"}"#)
        .await;
    site.post("/api/v1/faults", r#"{"kind":"hold-markers"}"#)
        .await;
    let late = site
        .post("/api/v1/transactions/prepared/abort", r#"{"reason":"x"}"#)
        .await;
    assert_eq!(late.json()["outcome"], "deciding");
    let mut client = RawClient::connect(&site.0.addresses().kafka).await.unwrap();
    let list = ListTransactionsRequest::default();
    let wire = client.call(&list, 1).await.unwrap();
    let http = site.json("/api/v1/transactions").await;
    let http = http["transactions"].as_array().unwrap();
    let listed: Vec<_> = wire
        .transaction_states
        .iter()
        .map(|one| {
            json!([
                &*one.transactional_id.0,
                one.producer_id.0,
                &*one.transaction_state
            ])
        })
        .collect();
    let shown: Vec<_> = http
        .iter()
        .map(|one| json!([one["transactionalId"], one["producerId"], one["state"]]))
        .collect();
    assert_eq!(listed, shown);
    let states: Vec<_> = shown.iter().map(|one| one[2].as_str().unwrap()).collect();
    assert_eq!(
        states,
        ["CompleteAbort", "Empty", "Ongoing", "PrepareAbort"]
    );
    let ids = http.iter().map(|one| {
        let id = one["transactionalId"].as_str().unwrap().to_owned();
        TransactionalId(StrBytes::from_string(id))
    });
    let mut describe = DescribeTransactionsRequest::default();
    describe.transactional_ids = ids.collect();
    let wire = client.call(&describe, 0).await.unwrap();
    for (described, shown) in wire.transaction_states.iter().zip(http) {
        let topics = described.topics.iter();
        let topics = topics.map(|one| json!({"topic": &**one.topic, "partitions": one.partitions}));
        // Groups are shown as partitions there; these have none.
        assert_eq!(
            json!([
                described.producer_id.0,
                described.producer_epoch,
                topics.collect::<Vec<_>>()
            ]),
            json!([
                shown["producerId"],
                shown["producerEpoch"],
                shown["partitions"]
            ]),
            "{shown:#}"
        );
        let start = shown
            .get("startMs")
            .map_or(-1, |start| start.as_i64().unwrap());
        assert_eq!(described.transaction_start_time_ms, start);
        assert_eq!(described.transaction_timeout_ms, shown["timeoutMs"]);
    }
    assert!(site.0.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reaper_runs_when_it_is_asked() {
    let builder = Gateway::builder().ephemeral();
    let key = "transaction.abort.timed.out.transaction.cleanup.interval.ms";
    let started = builder.set(key, "2000000000").start().await.unwrap();
    let site = Site(started).loaded().await;
    site.create("orders").await;
    site.open_for("tx", "orders", 1).await;
    site.until("/api/v1/transactions?overdue=true", |list| {
        list["matched"] == 1
    })
    .await;
    let pass = site.post("/api/v1/reaper/run", "").await.json();
    assert_eq!(
        (&pass["done"], &pass["unfinished"]),
        (&json!(["tx"]), &json!([]))
    );
    let history = site.json("/api/v1/transactions/tx/history").await;
    let causes = history["transitions"].as_array().unwrap().iter();
    assert!(causes.into_iter().any(|one| one["cause"] == "reaper"));
    assert_eq!(site.json(LSO).await["heldBack"], 0);
    assert!(site.0.shutdown().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_address_needs_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let start = async |listen: &str| {
        let builder = Gateway::builder().ephemeral().set("admin.listen", listen);
        builder
            .set("admin.token.file", &file.to_string_lossy())
            .start()
            .await
    };
    for (token, why) in [
        ("", "16 to 1024 bytes"),
        ("with a space in it", "printable"),
    ] {
        std::fs::write(&file, token).unwrap();
        let error = start("0.0.0.0:0").await.unwrap_err().to_string();
        assert!(
            error.contains("admin.token.file") && error.contains(why),
            "{error}"
        );
        assert!(token.is_empty() || !error.contains(token), "{error}");
    }
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    let site = Site(start("0.0.0.0:0").await.unwrap());
    let address = site.0.addresses().admin.replace("0.0.0.0", "127.0.0.1");
    assert_eq!(ask(&address, "GET", "/readyz", None).await.status, 200);
    let refused = ask(&address, "GET", "/api/v1/transactions", None).await;
    assert_eq!(refused.status, 401);
    assert!(refused.head.contains("application/problem+json"));
    let path = "/api/v1/transactions HTTP/1.1\r\nAuthorization: Bearer 0123456789abcdef\r\nX: ";
    assert_eq!(ask(&address, "GET", path, None).await.status, 200);
    assert!(site.0.shutdown().await);
}

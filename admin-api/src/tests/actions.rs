use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use coordinator::machine::txn::TxnError;
use serde_json::{Value, json};

use super::double::{Double, HOSTILE, Held, Site, pid};
use super::reading::path_of;

async fn audit(site: &Site) -> Vec<Value> {
    let audit = site.get("/api/v1/audit").await.json();
    audit["entries"].as_array().unwrap().clone()
}

#[tokio::test]
async fn an_abort_is_planned_then_done_and_audited() {
    let site = Site::new(Double::new());
    let path = "/api/v1/transactions/open/abort";
    let dry = site.post(&format!("{path}?dry_run=true"), "").await.json();
    assert_eq!(
        (&dry["outcome"], &dry["dryRun"]),
        (&json!("would-abort"), &json!(true))
    );
    let plan = &dry["plan"];
    assert_eq!(
        plan["partitions"],
        json!([{"topic": "orders", "partition": 0, "firstOffset": 0,
                "holdsLastStableOffset": true}])
    );
    assert_eq!(plan["fencedProducerId"], pid(1));
    let still = site.get("/api/v1/transactions/open").await.json();
    assert_eq!(still["state"], "Ongoing");
    let done = site.post(path, r#"{"reason":"left open"}"#).await.json();
    assert_eq!(done["outcome"], "aborted");
    assert_eq!(done["before"]["state"], "Ongoing");
    assert_eq!(done["after"]["state"], "CompleteAbort");
    let again = site.post(path, r#"{"reason":"left open"}"#).await;
    assert_eq!(again.status, 409);
    assert_eq!(again.json()["kafkaErrorCode"], 48);
    let entries = audit(&site).await;
    let shown = |entry: &Value| {
        let fields = ["action", "reason", "status", "before", "after"];
        fields.map(|field| entry.get(field).cloned().unwrap_or_default())
    };
    assert_eq!(
        entries.iter().map(shown).collect::<Vec<_>>(),
        [
            json!(["abort", "left open", 409, "CompleteAbort", "CompleteAbort"]),
            json!(["abort", "left open", 200, "Ongoing", "CompleteAbort"]),
            json!(["abort-dry-run", null, 200, "Ongoing", null]),
        ]
        .map(|entry| <[Value; 5]>::try_from(entry.as_array().unwrap().clone()).unwrap())
    );
}

#[tokio::test]
async fn an_abort_of_what_changed_does_nothing() {
    let site = Site::new(Double::new());
    let path = format!("{}/abort", path_of(HOSTILE));
    for (body, status) in [
        ("", 400),
        ("{", 400),
        ("[]", 400),
        (r#"{"reason":"x","epoch":1}"#, 400),
        (r#"{"reason":"  "}"#, 400),
        (r#"{"reason":"x","producerId":7}"#, 412),
        (r#"{"reason":"x","producerEpoch":3}"#, 412),
        (r#"{"reason":"x","txnSeq":2}"#, 412),
        (r#"{"reason":"x","txnSeq":-1}"#, 400),
    ] {
        assert_eq!(
            site.post(&path, body).await.json()["status"],
            status,
            "{body}"
        );
    }
    let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(2000));
    assert_eq!(site.post(&path, &long).await.json()["status"], 400);
    let huge = format!(r#"{{"reason":"{}"}}"#, "x".repeat(1 << 17));
    assert_eq!(site.post(&path, &huge).await.json()["status"], 413);
    let request = |etag: &str| {
        let request = Request::post(&path).header("if-match", etag);
        let request = request.header("content-type", "application/json");
        request.body(Body::from(r#"{"reason":"x"}"#)).unwrap()
    };
    for other in ["\"old\"", "\"a\", \"b\"", "W/\"a\"", ""] {
        assert_eq!(site.send(request(other)).await.json()["status"], 412);
    }
    let one = site.get(&path_of(HOSTILE)).await.json();
    assert_eq!(one["state"], "Ongoing");
    let etag = format!("\"old\" , {}", one["etag"].as_str().unwrap());
    assert_eq!(site.send(request(&etag)).await.json()["outcome"], "aborted");
    let target = audit(&site).await[0]["target"].clone();
    assert_eq!(target, HOSTILE);
    let none = site.post("/api/v1/transactions/none/abort", r#"{"reason":"x"}"#);
    assert_eq!(none.await.json()["status"], 404);
    let prepared = site
        .post("/api/v1/transactions/prepared/abort?dry_run", "")
        .await;
    assert_eq!(prepared.json()["kafkaErrorCode"], 51);
}

#[tokio::test]
async fn an_abort_that_is_decided_is_no_failure_and_one_that_is_not_is() {
    let abort = async |refuses| {
        let site = Site::new(Double {
            refuses: Some(refuses),
            ..Double::new()
        });
        let path = "/api/v1/transactions/open/abort";
        site.post(path, r#"{"reason":"x"}"#).await.json()
    };
    let decided = abort(TxnError::CoordinatorNotAvailable).await;
    assert_eq!(decided["outcome"], "deciding");
    assert_eq!(decided["after"]["state"], "PrepareAbort");
    let fenced = abort(TxnError::ProducerFenced).await;
    assert_eq!(
        (&fenced["status"], &fenced["kafkaErrorCode"]),
        (&json!(412), &json!(90))
    );
}

#[tokio::test]
async fn passes_say_what_they_came_to() {
    let site = Site::new(Double::new());
    let pass = site.post("/api/v1/reaper/run", "").await.json();
    assert_eq!(pass["done"], json!([HOSTILE]));
    assert_eq!(
        pass["unfinished"],
        json!([{"transactionalId": "x", "reason": "held"}])
    );
    assert_eq!(pass["remaining"], 3);
    let pass = site
        .post("/api/v1/reconcile/run", r#"{"reason":"why"}"#)
        .await;
    assert_eq!(pass.json()["done"], json!([]));
    let actions: Vec<_> = audit(&site)
        .await
        .iter()
        .map(|one| one["action"].clone())
        .collect();
    assert_eq!(actions, ["reconcile-run", "reaper-run"]);
}

#[tokio::test]
async fn faults_are_added_and_released_where_they_are_enabled() {
    let site = Site::new(Double::new());
    let path = "/api/v1/faults";
    let added = site
        .post(
            path,
            r#"{"kind":"hold-markers","transactionalId":"prepared"}"#,
        )
        .await;
    assert_eq!(added.status, 201);
    assert_eq!(added.json()["id"], 1);
    // Whoever asks why hears of it.
    let lso = site
        .get("/api/v1/topics/orders/partitions/1/lso")
        .await
        .json();
    assert_eq!(lso["remedies"][0]["request"], "DELETE /api/v1/faults/1");
    assert_eq!(
        site.post(path, r#"{"kind":"boom"}"#).await.json()["status"],
        400
    );
    assert_eq!(
        site.get(path).await.json()["faults"][0]["kind"],
        "hold-markers"
    );
    let release = async |number: u64| {
        let request = Request::delete(format!("{path}/{number}"));
        site.send(request.body(Body::empty()).unwrap()).await.status
    };
    assert_eq!(release(1).await, 204);
    assert_eq!(release(1).await, 404);
    assert_eq!(site.get(path).await.json()["faults"], json!([]));
}

#[tokio::test]
async fn an_abort_never_hits_the_next_transaction() {
    let site = Site::new(Double {
        moves_on: true,
        ..Double::new()
    });
    let one = site.get("/api/v1/transactions/open").await.json();
    let request = Request::post("/api/v1/transactions/open/abort")
        .header("if-match", one["etag"].as_str().unwrap())
        .header("content-type", "application/json");
    let body = Body::from(r#"{"reason":"x"}"#);
    let answer = site.send(request.body(body).unwrap()).await.json();
    assert_eq!(answer["status"], 412, "{answer:#}");
    let next = site.get("/api/v1/transactions/open").await.json();
    let is = (&next["state"], &next["txnSeq"]);
    assert_eq!(is, (&json!("Ongoing"), &json!(2)));
    let entry = &audit(&site).await[0];
    assert_eq!(entry["status"], 412);
}

/// Sends a request, and goes away when what it asks for has begun.
#[allow(clippy::disallowed_methods, reason = "a caller")]
async fn give_up(path: &'static str) -> Vec<Value> {
    let held = Arc::new(Held::default());
    let site = Site::new(Double {
        held: Some(Arc::clone(&held)),
        ..Double::new()
    });
    let caller = site.clone();
    let caller = tokio::spawn(async move { caller.post(path, r#"{"reason":"why"}"#).await });
    held.begun.notified().await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    assert!(audit(&site).await.is_empty());
    held.go_on.notify_one();
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(5));
    for _ in 0..12_000 {
        let entries = audit(&site).await;
        if !entries.is_empty() {
            return entries;
        }
        pace.tick().await;
    }
    panic!("nothing is audited");
}

#[tokio::test]
async fn what_is_carried_out_is_audited_whoever_goes_away() {
    let entries = give_up("/api/v1/transactions/open/abort").await;
    let fields = ["action", "target", "reason", "outcome", "after"];
    let shown = fields.map(|field| entries[0][field].clone());
    let expected = ["abort", "open", "why", "aborted", "CompleteAbort"];
    assert_eq!(shown, expected.map(Value::from));
    let entries = give_up("/api/v1/reaper/run").await;
    let shown = ["action", "reason", "outcome"].map(|field| entries[0][field].clone());
    let expected = ["reaper-run", "why", "1 done, 1 not finished, 3 left"];
    assert_eq!(shown, expected.map(Value::from));
}

#[tokio::test]
async fn the_audit_has_pages() {
    let site = Site::new(Double::new());
    for _ in 0..5 {
        site.post("/api/v1/reaper/run", "").await;
    }
    let mut path = "/api/v1/audit?page_size=2".to_owned();
    let mut seen = Vec::new();
    loop {
        let answer = site.get(&path).await;
        let entries = answer.json()["entries"].as_array().unwrap().clone();
        seen.extend(entries.iter().map(|entry| entry["seq"].as_u64().unwrap()));
        match answer.next() {
            Some(next) => path = next,
            None => break,
        }
    }
    assert_eq!(seen, [5, 4, 3, 2, 1]);
}

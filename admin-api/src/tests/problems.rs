//! Bad input, as a table.

use axum::body::Body;
use axum::http::Request;
use serde_json::json;

use super::double::{Double, Site};

/// Bad input of every resource: method, path, body, status, and what is named.
const BAD: &[(&str, &str, &str, u16, &str)] = &[
    (
        "GET",
        "/api/v1/transactions?state=ongoing",
        "",
        400,
        "state",
    ),
    ("GET", "/api/v1/transactions?state=", "", 400, "state"),
    (
        "GET",
        "/api/v1/transactions?producer_id=1e3",
        "",
        400,
        "producer_id",
    ),
    (
        "GET",
        "/api/v1/transactions?id_pattern=(",
        "",
        400,
        "id_pattern",
    ),
    (
        "GET",
        "/api/v1/transactions?partition=0",
        "",
        400,
        "partition",
    ),
    (
        "GET",
        "/api/v1/transactions?topic=t&partition=x",
        "",
        400,
        "partition",
    ),
    (
        "GET",
        "/api/v1/transactions?coordinator=one",
        "",
        400,
        "coordinator",
    ),
    (
        "GET",
        "/api/v1/transactions?min_age_ms=1s",
        "",
        400,
        "min_age_ms",
    ),
    (
        "GET",
        "/api/v1/transactions?overdue=yes",
        "",
        400,
        "overdue",
    ),
    ("GET", "/api/v1/transactions?sort=age", "", 400, "sort"),
    (
        "GET",
        "/api/v1/transactions?page_size=1001",
        "",
        400,
        "page_size",
    ),
    (
        "GET",
        "/api/v1/transactions?page_token=x",
        "",
        400,
        "page_token",
    ),
    (
        "GET",
        "/api/v1/transactions?hanging=true",
        "",
        400,
        "hanging",
    ),
    (
        "GET",
        "/api/v1/transactions?group=a&group=b",
        "",
        400,
        "group",
    ),
    ("GET", "/api/v1/transactions/none", "", 404, ""),
    ("GET", "/api/v1/transactions/%ff", "", 400, ""),
    ("GET", "/api/v1/transactions/open?x=1", "", 400, "x"),
    ("GET", "/api/v1/transactions/none/history", "", 404, ""),
    (
        "GET",
        "/api/v1/transactions/open/history?limit=0",
        "",
        400,
        "limit",
    ),
    (
        "GET",
        "/api/v1/transactions/open/history?since=now",
        "",
        400,
        "since",
    ),
    (
        "GET",
        "/api/v1/transactions/open/history?since=-1",
        "",
        400,
        "since",
    ),
    ("GET", "/api/v1/fences?broker=-1", "", 400, "broker"),
    (
        "GET",
        "/api/v1/transactions/open/history?page_token=1",
        "",
        400,
        "page_token",
    ),
    ("GET", "/api/v1/transactions/open/commit", "", 404, ""),
    ("DELETE", "/api/v1/transactions/open", "", 405, ""),
    ("GET", "/api/v1/transactions/open/abort", "", 405, ""),
    (
        "POST",
        "/api/v1/transactions/none/abort",
        r#"{"reason":"x"}"#,
        404,
        "",
    ),
    (
        "POST",
        "/api/v1/transactions/open/abort",
        "{}",
        400,
        "reason",
    ),
    ("POST", "/api/v1/transactions/open/abort", "{", 400, ""),
    (
        "POST",
        "/api/v1/transactions/open/abort?dry_run=2",
        "{}",
        400,
        "dry_run",
    ),
    (
        "POST",
        "/api/v1/transactions/open/abort?force=true",
        "{}",
        400,
        "force",
    ),
    (
        "POST",
        "/api/v1/transactions/done/abort",
        r#"{"reason":"x"}"#,
        409,
        "",
    ),
    (
        "POST",
        "/api/v1/transactions/prepared/abort",
        r#"{"reason":"x"}"#,
        409,
        "",
    ),
    ("GET", "/api/v1/topics/none/partitions/0/lso", "", 404, ""),
    (
        "GET",
        "/api/v1/topics/orders/partitions/99/lso",
        "",
        404,
        "",
    ),
    ("GET", "/api/v1/topics/orders/partitions/x/lso", "", 400, ""),
    (
        "GET",
        "/api/v1/topics/orders/partitions/0/lso?a=1",
        "",
        400,
        "a",
    ),
    (
        "GET",
        "/api/v1/topics/damaged/partitions/0/lso",
        "",
        503,
        "",
    ),
    (
        "GET",
        "/api/v1/topics/offline/partitions/0/producers",
        "",
        503,
        "",
    ),
    (
        "GET",
        "/api/v1/topics/none/partitions/0/producers",
        "",
        404,
        "",
    ),
    (
        "GET",
        "/api/v1/topics/orders/partitions/0/producers?open=1",
        "",
        400,
        "open",
    ),
    (
        "GET",
        "/api/v1/topics/orders/partitions/0/producers?producer_id=a",
        "",
        400,
        "producer_id",
    ),
    (
        "GET",
        "/api/v1/topics/orders/partitions/0/producers?page_size=0",
        "",
        400,
        "page_size",
    ),
    ("GET", "/api/v1/marker-queue?broker=a", "", 400, "broker"),
    (
        "GET",
        "/api/v1/marker-queue?page_token=00",
        "",
        400,
        "page_token",
    ),
    ("GET", "/api/v1/fences?broker=-", "", 400, "broker"),
    ("GET", "/api/v1/fences?producer_id=", "", 400, "producer_id"),
    ("GET", "/api/v1/fences?page_size=-1", "", 400, "page_size"),
    ("GET", "/api/v1/producer-ids?broker=0", "", 400, "broker"),
    ("GET", "/api/v1/groups/none/offsets", "", 404, ""),
    ("GET", "/api/v1/groups/loading/offsets", "", 503, ""),
    (
        "GET",
        "/api/v1/groups/g%2F1/offsets?partition=0",
        "",
        400,
        "partition",
    ),
    (
        "GET",
        "/api/v1/groups/g%2F1/offsets?page_size=many",
        "",
        400,
        "page_size",
    ),
    ("POST", "/api/v1/reaper/run?now=1", "{}", 400, "now"),
    ("POST", "/api/v1/reaper/run", r#"{"why":"x"}"#, 400, ""),
    ("GET", "/api/v1/reaper/run", "", 405, ""),
    ("POST", "/api/v1/reconcile/run", "[1]", 400, ""),
    ("GET", "/api/v1/audit?page_size=0", "", 400, "page_size"),
    ("GET", "/api/v1/audit?who=me", "", 400, "who"),
    ("POST", "/api/v1/faults", r#"{"kind":"delay"}"#, 400, "kind"),
    ("POST", "/api/v1/faults", "{}", 400, ""),
    ("GET", "/api/v1/faults?all", "", 400, "all"),
    ("DELETE", "/api/v1/faults/7", "", 404, ""),
    ("DELETE", "/api/v1/faults/one", "", 400, ""),
    ("GET", "/api/v1", "", 404, ""),
    ("GET", "/api/v2/transactions", "", 404, ""),
    ("POST", "/", "", 405, ""),
];

#[tokio::test]
async fn bad_input_is_a_problem_that_names_it() {
    let site = Site::new(Double::new());
    for (method, path, body, status, name) in BAD {
        let request = Request::builder().method(*method).uri(*path);
        let request = request.header("content-type", "application/json");
        let answer = site.send(request.body(Body::from(*body)).unwrap()).await;
        let case = format!("{method} {path} {body}: {}", answer.text);
        assert_eq!(answer.status, *status, "{case}");
        let problem = answer.json();
        let detail = problem["detail"].as_str().unwrap();
        assert!(!detail.is_empty(), "{case}");
        // Its kind is explained.
        let kind = site.get(problem["type"].as_str().unwrap()).await;
        assert_eq!(kind.status, 200, "{case}");
        let title = problem["title"].as_str().unwrap();
        assert!(kind.text.starts_with(title), "{case}: {}", kind.text);
        let named = problem.pointer("/invalidParams/0/name");
        let named = named.map_or("", |name| name.as_str().unwrap());
        assert_eq!(named, *name, "{case}");
        let later = answer.headers.contains_key("retry-after");
        assert_eq!(
            later,
            problem["retriable"] == true && *status == 503,
            "{case}"
        );
    }
    // Nothing of it changed anything.
    let list = site.get("/api/v1/transactions").await.json();
    let states = json!({"CompleteCommit": 1, "Ongoing": 2, "PrepareCommit": 1});
    assert_eq!(list["byState"], states);
    // Every resource is in the table.
    let document = site.get("/openapi.json").await.json();
    for path in document["paths"].as_object().unwrap().keys() {
        let like = |asked: &str| {
            let asked = asked.split('?').next().unwrap().split('/');
            let same = |(of, is): (&str, &str)| of == is || of.starts_with('{');
            asked.clone().count() == path.split('/').count() && path.split('/').zip(asked).all(same)
        };
        assert!(BAD.iter().any(|(_, asked, ..)| like(asked)), "{path}");
    }
}

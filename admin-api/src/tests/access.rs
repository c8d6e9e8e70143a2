use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use serde_json::json;

use super::double::{Double, Held, Site, parts};
use crate::*;

const TOKEN: &str = "0123456789abcdef-secret";

fn with_token() -> Site {
    Site::of(Parts {
        token: Some(Token::new(&format!(" {TOKEN}\n")).unwrap()),
        ..parts(Arc::new(Ready))
    })
}

struct Ready;

impl Views for Ready {
    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    fn checks(&self) -> Vec<Check> {
        Vec::new()
    }

    fn metrics(&self) -> Result<String, String> {
        Ok("# EOF\n".to_owned())
    }
}

async fn ask(site: &Site, path: &str, name: &str, value: &str) -> u16 {
    let request = Request::get(path).header(name, value);
    let answer = site.send(request.body(Body::empty()).unwrap()).await;
    if answer.status >= 400 {
        answer.json();
    }
    answer.status
}

#[tokio::test]
async fn with_a_token_everything_but_health_needs_it() {
    let site = with_token();
    for path in [
        "/",
        "/api/v1/transactions",
        "/metrics",
        "/openapi.json",
        "/nothing",
    ] {
        let answer = site.get(path).await;
        assert_eq!(answer.status, 401, "{path}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        answer.json();
        for wrong in [
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcdef-secreT",
            "Bearer 0123456789abcdef-secret0",
            "Bearer 0123456789abcdef-secre",
            "Basic 0123456789abcdef-secret",
            TOKEN,
        ] {
            assert_eq!(
                ask(&site, path, "authorization", wrong).await,
                401,
                "{wrong}"
            );
        }
    }
    let right = format!("bearer {TOKEN}");
    for path in ["/", "/api/v1/transactions", "/metrics", "/openapi.json"] {
        assert_eq!(
            ask(&site, path, "authorization", &right).await,
            200,
            "{path}"
        );
    }
    assert_eq!(site.get("/livez").await.status, 200);
    assert_eq!(site.get("/readyz").await.status, 200);
    // The token does not show.
    let shown = format!("{:?}", Token::new(TOKEN).unwrap());
    assert!(!shown.contains("secret"));
    for bad in ["", "short", "with a space in it", &"x".repeat(2000)] {
        assert!(Token::new(bad).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn without_one_only_loopback_may_be_named() {
    let site = Site::new(Double::new());
    let path = "/api/v1/transactions";
    for host in [
        "127.0.0.1:9644",
        "localhost",
        "LOCALHOST:1",
        "[::1]:9644",
        "127.9.9.9",
    ] {
        assert_eq!(ask(&site, path, "host", host).await, 200, "{host}");
    }
    for host in [
        "example.org",
        "localhost.example.org:9644",
        "10.0.0.1",
        "[::2]",
        "x@localhost:x",
    ] {
        for data in [path, "/", "/metrics", "/openapi.json"] {
            assert_eq!(ask(&site, data, "host", host).await, 403, "{host}");
        }
        for probe in ["/livez", "/readyz", "/readyz?verbose"] {
            assert_eq!(ask(&site, probe, "host", host).await, 200, "{host}");
        }
    }
}

struct Unwell;

impl Views for Unwell {
    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    fn checks(&self) -> Vec<Check> {
        let secret = || "secret-topic is damaged".to_owned();
        vec![
            Check::new("shards", Err(secret())),
            Check::degraded("files", Some(secret())),
        ]
    }

    fn metrics(&self) -> Result<String, String> {
        Ok("# EOF\n".to_owned())
    }
}

#[tokio::test]
async fn probes_tell_everybody_whether_and_only_some_why() {
    let ask = async |token: Option<&str>, path: &str, name: &str, value: &str| {
        let site = Site::of(Parts {
            token: token.map(|token| Token::new(token).unwrap()),
            ..parts(Arc::new(Unwell))
        });
        let request = Request::get(path).header(name, value);
        let answer = site.send(request.body(Body::empty()).unwrap()).await;
        (answer.status, answer.text)
    };
    let bearer = format!("Bearer {TOKEN}");
    for (path, status) in [
        ("/readyz", 503),
        ("/readyz?verbose", 503),
        ("/readyz?exclude=shards", 200),
    ] {
        for (token, name, value, told) in [
            (None, "host", "localhost:9644", true),
            (None, "host", "evil.example", false),
            (Some(TOKEN), "authorization", &*bearer, true),
            (Some(TOKEN), "authorization", "Bearer x", false),
            (Some(TOKEN), "host", "localhost", false),
        ] {
            let (is, text) = ask(token, path, name, value).await;
            assert_eq!(is, status, "{path} {name}: {value}: {text}");
            assert_eq!(
                text.contains("secret-topic"),
                told,
                "{path} {value}: {text}"
            );
            let names = text.contains(if status == 503 { "shards" } else { "files" });
            assert!(names, "{text}");
        }
    }
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "callers")]
async fn so_many_requests_are_answered_at_a_time_and_probes_besides() {
    let held = Arc::new(Held::default());
    let site = Site::new(Double {
        held: Some(Arc::clone(&held)),
        ..Double::new()
    });
    let callers: Vec<_> = (0..32)
        .map(|_| {
            let site = site.clone();
            tokio::spawn(async move { site.post("/api/v1/reaper/run", "").await.status })
        })
        .collect();
    let mut answer = site.get("/api/v1/audit").await;
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(5));
    for _ in 0..12_000 {
        if answer.status != 200 {
            break;
        }
        pace.tick().await;
        answer = site.get("/api/v1/audit").await;
    }
    assert_eq!(answer.json()["status"], 503);
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(site.get("/livez").await.status, 200);
    for caller in callers {
        while !caller.is_finished() {
            // Some may not have come so far yet.
            held.go_on.notify_waiters();
            tokio::task::yield_now().await;
        }
        assert_eq!(caller.await.unwrap(), 200);
    }
    assert_eq!(site.get("/api/v1/audit").await.status, 200);
}

#[tokio::test]
async fn a_body_must_say_that_it_is_json() {
    let site = Site::new(Double::new());
    for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let request = Request::post("/api/v1/reaper/run").header("content-type", kind);
        let answer = site.send(request.body(Body::from("{}")).unwrap()).await;
        assert_eq!(answer.json()["status"], 415, "{kind}");
    }
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_answered() {
    let site = Site::new(Double {
        stuck: true,
        ..Double::new()
    });
    // The answer is there at once here, which wins; a listing of files is not.
    assert_eq!(site.get("/api/v1/audit").await.status, 200);
    let body = Body::from_stream(Never);
    let request = Request::post("/api/v1/reaper/run").header("content-type", "application/json");
    let answer = site.send(request.body(body).unwrap()).await;
    assert_eq!(answer.json()["status"], 503);
}

/// A body that never ends.
struct Never;

impl futures_util::Stream for Never {
    type Item = io::Result<Vec<u8>>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Pending
    }
}

#[tokio::test]
async fn faults_are_not_there_unless_they_are_enabled() {
    let site = Site::of(parts(Arc::new(Ready)));
    assert_eq!(site.get("/api/v1/faults").await.json()["status"], 404);
    let added = site
        .post("/api/v1/faults", r#"{"kind":"hold-markers"}"#)
        .await;
    assert_eq!(added.json()["status"], 404);
}

#[tokio::test]
async fn the_document_has_every_route_that_is_served() {
    let site = Site::new(Double::new());
    let document = site.get("/openapi.json").await.json();
    assert_eq!(document["info"]["title"], json!("Fencepost"));
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 12);
    for (path, methods) in paths {
        let path = path
            .replace("{topic}", "orders")
            .replace("{partition}", "0")
            .replace("{group}", "g%2F1")
            .replace("/faults/{id}", "/faults/1")
            .replace("{id}", "open");
        for method in methods.as_object().unwrap().keys() {
            let request = Request::builder()
                .method(&*method.to_uppercase())
                .uri(&path);
            let answer = site.send(request.body(Body::empty()).unwrap()).await;
            assert!(answer.status != 405, "{method} {path}");
            let unserved = answer.text.contains("served are");
            assert!(!unserved, "{method} {path}");
        }
    }
}

struct Waits;

impl Views for Waits {
    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    fn checks(&self) -> Vec<Check> {
        vec![Check::new(
            "start",
            Err("no space left for /secret".to_owned()),
        )]
    }

    fn metrics(&self) -> Result<String, String> {
        Err("none".to_owned())
    }
}

#[tokio::test]
async fn a_broker_that_is_not_there_yet_says_why_to_who_may_ask() {
    let token = || Some(Token::new(TOKEN).unwrap());
    let bearer = format!("Bearer {TOKEN}");
    for (token, name, value, told) in [
        (None, "host", "localhost:1", true),
        (None, "host", "elsewhere.example", false),
        (token(), "authorization", bearer.as_str(), true),
        (token(), "host", "localhost:1", false),
    ] {
        let site = Site::routed(router_starting(Arc::new(Waits), token));
        for (path, status) in [("/livez", 200), ("/readyz", 503), ("/metrics", 503)] {
            let request = Request::get(path).header(name, value);
            let answer = site.send(request.body(Body::empty()).unwrap()).await;
            assert_eq!(answer.status, status, "{path} {name}");
            let tells = answer.text.contains("/secret");
            assert_eq!(tells, told && path == "/readyz", "{path} {name}");
        }
    }
}

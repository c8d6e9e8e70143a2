use axum::body::{Body, to_bytes};
use axum::http::Request;
use tower::ServiceExt as _;

use super::double::parts;
use crate::*;

struct Double {
    damaged: bool,
}

impl Views for Double {
    fn live(&self) -> Result<(), String> {
        if self.damaged {
            return Err("no progress for 7 s".to_owned());
        }
        Ok(())
    }

    fn checks(&self) -> Vec<Check> {
        let store = if self.damaged {
            Err("disk full".to_owned())
        } else {
            Ok(())
        };
        vec![Check::new("listeners", Ok(())), Check::new("store", store)]
    }

    fn metrics(&self) -> Result<String, String> {
        if self.damaged {
            return Err("cannot".to_owned());
        }
        Ok("# EOF\n".to_owned())
    }
}

/// Status, content type and body.
async fn ask(damaged: bool, method: &str, path: &str) -> (u16, String, String) {
    let request = Request::builder().method(method).uri(path);
    let request = request.body(Body::empty()).unwrap();
    let response = router(parts(Arc::new(Double { damaged })))
        .oneshot(request)
        .await
        .unwrap();
    let status = response.status().as_u16();
    let content_type = response
        .headers()
        .get(CONTENT_TYPE)
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (
        status,
        content_type,
        String::from_utf8(body.to_vec()).unwrap(),
    )
}

#[tokio::test]
async fn a_healthy_process_says_so() {
    for path in ["/livez", "/readyz", "/readyz?exclude=store"] {
        let (status, _, body) = ask(false, "GET", path).await;
        assert_eq!((status, body.as_str()), (200, "ok"), "{path}");
    }
    let (status, _, body) = ask(false, "GET", "/readyz?verbose").await;
    assert_eq!(
        (status, body.as_str()),
        (200, "[+]listeners ok\n[+]store ok\nready\n")
    );
    let (status, _, body) = ask(false, "GET", "/livez?verbose").await;
    assert_eq!((status, body.as_str()), (200, "[+]workers ok\nlive\n"));
    let (status, content_type, body) = ask(false, "GET", "/metrics").await;
    assert_eq!((status, body.as_str()), (200, "# EOF\n"));
    assert!(content_type.starts_with("application/openmetrics-text"));
}

#[tokio::test]
async fn an_unhealthy_one_says_why() {
    for (path, expected, detail) in [
        ("/livez", 503, "no progress for 7 s"),
        ("/readyz", 503, "store: disk full"),
        ("/metrics", 500, "cannot"),
        (
            "/nothing",
            404,
            "served are /, /api/v1/..., /openapi.json, /livez, /readyz and /metrics",
        ),
    ] {
        let (status, content_type, body) = ask(true, "GET", path).await;
        assert_eq!(
            (status, content_type.as_str()),
            (expected, "application/problem+json")
        );
        let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(problem["status"], expected);
        assert_eq!(problem["detail"], detail);
    }
    let (status, _, body) = ask(true, "GET", "/readyz?verbose").await;
    assert_eq!(status, 503);
    assert_eq!(
        body,
        "[+]listeners ok\n[-]store failed: disk full\nnot ready\n"
    );
    let (status, _, body) = ask(true, "GET", "/readyz?verbose&exclude=store").await;
    assert_eq!((status, body.as_str()), (200, "[+]listeners ok\nready\n"));
    let (status, content_type, _) = ask(false, "POST", "/readyz").await;
    assert_eq!(
        (status, content_type.as_str()),
        (405, "application/problem+json")
    );
}

#[tokio::test]
async fn a_parameter_that_is_not_known_is_an_error_and_a_check_is_told() {
    for path in ["/readyz", "/livez", "/metrics", "/openapi.json"] {
        let (status, content_type, body) = ask(false, "GET", &format!("{path}?bogus")).await;
        let is = (status, content_type.as_str());
        assert_eq!(is, (400, "application/problem+json"), "{path}");
        assert!(body.contains("bogus"), "{body}");
    }
    let (status, _, body) = ask(false, "GET", "/readyz?exclude=stoer&exclude=store").await;
    let told = "ok\nstoer: no such check, nothing is left out";
    assert_eq!((status, body.as_str()), (200, told));
    let (status, _, body) = ask(true, "GET", "/readyz?verbose=1&exclude=stoer").await;
    let told = "[+]listeners ok\n[-]store failed: disk full\n\
        [?]stoer: no such check, nothing is left out\nnot ready\n";
    assert_eq!((status, body.as_str()), (503, told));
}

struct Partly;

impl Views for Partly {
    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    fn checks(&self) -> Vec<Check> {
        let why = "1 of 3 is offline".to_owned();
        vec![
            Check::new("listeners", Ok(())),
            Check::degraded("partitions", Some(why)),
            Check::degraded("disk", None),
        ]
    }

    fn metrics(&self) -> Result<String, String> {
        Ok(String::new())
    }
}

#[tokio::test]
async fn what_is_degraded_is_ready_and_says_what_is_wrong() {
    let verbose = "[+]listeners ok\n[~]partitions degraded: 1 of 3 is offline\n[+]disk ok\nready\n";
    for (path, expected) in [
        ("/readyz", "ok, degraded\npartitions: 1 of 3 is offline"),
        ("/readyz?exclude=partitions", "ok"),
        ("/readyz?verbose", verbose),
    ] {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let response = router(parts(Arc::new(Partly)))
            .oneshot(request)
            .await
            .unwrap();
        assert_eq!(response.status().as_u16(), 200, "{path}");
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        assert_eq!(body, expected, "{path}");
    }
}

//! Connections that are held open, against the port as it is served.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::double::{Double, Held, Well, parts};
use crate::listener::{ARRIVAL_MAX, CONNECTIONS_MAX};
use crate::*;

/// How long a test waits for what should come at once.
const PATIENCE: Duration = Duration::from_mins(2);

#[allow(clippy::disallowed_methods, reason = "ends with the test")]
fn served(double: Double) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let parts = Parts {
        txns: Arc::new(double),
        ..parts(Arc::new(Well))
    };
    drop(tokio::spawn(serve(listener, parts, std::future::pending())));
    address
}

async fn sending(address: SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// All that comes until the connection is closed.
async fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    // A reset is an end, too.
    read.unwrap().ok();
    String::from_utf8(answer).unwrap()
}

async fn probe(address: SocketAddr) -> String {
    let request = "GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    rest(sending(address, request).await).await
}

#[tokio::test]
async fn connections_that_trickle_do_not_keep_a_probe_out() {
    for begun in [
        "",
        "GET /livez HTTP/1.1\r\nHost: a\r\nX: ",
        "POST /api/v1/reaper/run HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
    ] {
        let address = served(Double::new());
        let mut held = Vec::new();
        for _ in 0..2 * CONNECTIONS_MAX {
            held.push(sending(address, begun).await);
        }
        for _ in 0..3 {
            let answer = probe(address).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        }
    }
}

#[tokio::test]
async fn a_body_that_says_to_be_too_long_is_not_waited_for() {
    let request = "POST /api/v1/reaper/run HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
        Content-Type: application/json\r\nContent-Length: 10000000000\r\n\r\n{";
    let answer = rest(sending(served(Double::new()), request).await).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[tokio::test]
async fn what_is_being_answered_is_not_closed_for_a_new_connection() {
    let held = Arc::new(Held::default());
    let address = served(Double {
        held: Some(Arc::clone(&held)),
        ..Double::new()
    });
    let body = r#"{"reason":"x"}"#;
    let request = format!(
        "POST /api/v1/transactions/open/abort HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let abort = sending(address, &request).await;
    held.begun.notified().await;
    let mut others = Vec::new();
    for _ in 0..2 * CONNECTIONS_MAX {
        others.push(sending(address, "GET / HTTP/1.1\r\n").await);
    }
    assert!(probe(address).await.starts_with("HTTP/1.1 200 OK"));
    held.go_on.notify_one();
    let answer = rest(abort).await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK") && answer.contains("aborted"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_request_that_does_not_arrive_in_time_is_given_up() {
    let address = served(Double {
        late: Some(ARRIVAL_MAX),
        ..Double::new()
    });
    for begun in [
        "G",
        "GET /livez HTTP/1.1\r\nX: ",
        "GET /livez HTTP/1.1\r\n\r",
    ] {
        assert_eq!(rest(sending(address, begun).await).await, "");
    }
}

//! What the tables of malformed input share: bytes by hand, and what becomes of them.
//!
//! Every table runs on a broker of its own. After each row another connection must be served, and
//! in the end memory must not have grown with what was claimed, nor the log have a panic.

use std::io;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use tests::raw::{RawClient, ops};

use crate::differences::KNOWN_DIFFERENCES;
use crate::kit::{Target, on_kafka};

/// How long a broker must stay silent to count as waiting.
const QUIET: Duration = Duration::from_millis(300);
/// How much a table may add to the highest resident memory, in bytes.
const GROWTH_MAX: u64 = 48 << 20;

/// What becomes of bytes on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The connection is closed without an answer.
    Closed,
    /// Answers with these correlation ids; the connection is served on.
    Answered(Vec<i32>),
    /// One answer with this correlation id, then the end.
    AnsweredThenClosed(i32),
    /// One answer of exactly these bytes; the connection is served on.
    Bytes(Vec<u8>),
    /// No answer, and the connection stays open.
    Waits,
}

/// One row of a table.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Sent as they are, lengths included.
    pub(crate) bytes: Vec<u8>,
    /// Whether the client ends its direction behind them.
    pub(crate) fin: bool,
    /// Written one by one.
    pub(crate) bytewise: bool,
    pub(crate) kafka: Seen,
    /// Name of the difference, and what we do.
    pub(crate) ours: Option<(&'static str, Seen)>,
}

impl Row {
    pub(crate) fn new(name: &'static str, bytes: Vec<u8>, kafka: Seen) -> Self {
        Self {
            name,
            bytes,
            fin: false,
            bytewise: false,
            kafka,
            ours: None,
        }
    }

    pub(crate) fn ours(mut self, difference: &'static str, seen: Seen) -> Self {
        self.ours = Some((difference, seen));
        self
    }

    pub(crate) fn expected(&self) -> &Seen {
        match &self.ours {
            Some((id, seen)) => {
                let known = KNOWN_DIFFERENCES.iter().any(|(name, _)| name == id);
                assert!(known, "{id} is not in the list of differences");
                if on_kafka() { &self.kafka } else { seen }
            }
            None => &self.kafka,
        }
    }
}

/// Adds the length in front of a frame's body.
pub(crate) fn framed(body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_i32(i32::try_from(body.len()).unwrap());
    bytes.put_slice(body);
    bytes
}

/// A request header with a client id; flexible ones have an empty tag section.
pub(crate) fn header(key: i16, version: i16, correlation_id: i32, flexible: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_i16(key);
    bytes.put_i16(version);
    bytes.put_i32(correlation_id);
    bytes.put_i16(2);
    bytes.put_slice(b"me");
    if flexible {
        bytes.put_u8(0);
    }
    bytes
}

/// A frame: header and body.
pub(crate) fn request(key: i16, version: i16, flexible: bool, body: &[u8]) -> Vec<u8> {
    let mut bytes = header(key, version, 77, flexible);
    bytes.put_slice(body);
    framed(&bytes)
}

fn is_reset(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| {
        matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        )
    })
}

/// The next frame; `None` when the connection is closed, by its end or by a reset.
async fn next(client: &mut RawClient) -> Option<Bytes> {
    match client.receive_frame().await {
        Ok(frame) => frame,
        Err(error) if is_reset(&error) => None,
        Err(error) => panic!("{error:#}"),
    }
}

fn correlation_id(frame: &Bytes) -> i32 {
    i32::from_be_bytes(frame[..4].try_into().unwrap())
}

/// Sends a row's bytes on a connection of its own and checks what becomes of them.
pub(crate) async fn check(target: &Target, row: &Row) {
    let mut client = target.connect().await;
    let sent = if row.bytewise {
        let mut sent = Ok(());
        for byte in &row.bytes {
            sent = client.send_bytes(&[*byte]).await;
        }
        sent
    } else {
        client.send_bytes(&row.bytes).await
    };
    // A broker may close before it has everything.
    if let Err(error) = sent {
        assert!(is_reset(&error), "{}: {error:#}", row.name);
    }
    if row.fin {
        client.shutdown_write().await.unwrap();
    }
    match row.expected() {
        Seen::Closed => {
            let got = next(&mut client).await;
            assert!(got.is_none(), "{}: answered {got:?}", row.name);
        }
        Seen::Answered(ids) => {
            for id in ids {
                let frame = next(&mut client).await;
                let frame = frame.unwrap_or_else(|| panic!("{}: closed", row.name));
                assert_eq!(correlation_id(&frame), *id, "{}", row.name);
            }
            still_served(&mut client, row).await;
        }
        Seen::AnsweredThenClosed(id) => {
            let frame = next(&mut client).await;
            let frame = frame.unwrap_or_else(|| panic!("{}: closed", row.name));
            assert_eq!(correlation_id(&frame), *id, "{}", row.name);
            assert!(next(&mut client).await.is_none(), "{}", row.name);
        }
        Seen::Bytes(expected) => {
            let frame = next(&mut client).await;
            let frame = frame.unwrap_or_else(|| panic!("{}: closed", row.name));
            assert_eq!(frame[..], expected[..], "{}", row.name);
            still_served(&mut client, row).await;
        }
        Seen::Waits => {
            let silent = client.is_silent_for(QUIET).await;
            assert!(silent, "{}: something came", row.name);
        }
    }
}

async fn still_served(client: &mut RawClient, row: &Row) {
    if !row.fin {
        let answer = ops::api_versions(client).await;
        assert!(answer.is_ok(), "{}: {answer:?}", row.name);
    }
}

/// Runs a table.
pub(crate) async fn run(target: &Target, rows: &[Row]) {
    let mut bystander = target.connect().await;
    ops::api_versions(&mut bystander).await.unwrap();
    let before = target.process(|process| process.rss_peak_bytes().unwrap());
    for row in rows {
        check(target, row).await;
        let served = ops::api_versions(&mut bystander).await;
        assert!(served.is_ok(), "after {}: {served:?}", row.name);
    }
    bounded(target, before);
    assert!(crate::kit::serves(target).await);
}

/// Highest resident memory against what it was, and the log.
pub(crate) fn bounded(target: &Target, before: u64) {
    let after = target.process(|process| process.rss_peak_bytes().unwrap());
    if !on_kafka() {
        assert!(
            after - before < GROWTH_MAX,
            "memory went from {before} to {after}"
        );
    }
    target.log_is_clean(&[]);
}

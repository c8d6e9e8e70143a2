//! `fencepost consume`.

use std::io::{BufRead, BufReader};
use std::process::Child;

use bytes::Bytes;
use serde_json::{Value, json};
use tests::raw::batch::{BatchSpec, Record};
use tests::raw::{RawClient, ops};

use super::{ended, fencepost, interrupt, start, write};
use crate::kit::{P, Target, now_ms, produce_request};
use crate::txn_apis::{self, Session};

async fn consume(target: &Target, args: &[&str]) -> String {
    fencepost(target, "consume", args).await.ok()
}

#[tokio::test]
async fn records_are_printed_as_they_were_asked_for() {
    let target = Target::shared();
    let mut client = target.with_topic("cli-formats", 1).await;
    let now = now_ms();
    let record = |key: Option<&'static str>, value: Option<&'static [u8]>| Record {
        key: key.map(Bytes::from_static_str),
        value: value.map(Bytes::from_static),
    };
    let spec = BatchSpec {
        timestamp_ms: now,
        records: vec![
            record(Some("k"), Some(b"one")),
            record(None, None),
            record(Some(""), Some(b"\xff\x00")),
        ],
        ..BatchSpec::default()
    };
    let sent = ops::produce(&mut client, "cli-formats", 0, spec.build()).await;
    assert_eq!(sent.unwrap().error_code, 0);
    let topic = "cli-formats";
    let lengths = consume(&target, &[topic, "-e", "-f", "%t[%p]@%o %K %S %T %k%%\\n"]).await;
    let expected = format!(
        "cli-formats[0]@0 1 3 {now} k%\ncli-formats[0]@1 -1 -1 {now} %\n\
         cli-formats[0]@2 0 2 {now} %\n"
    );
    assert_eq!(lengths, expected);
    let two = consume(&target, &[topic, "-c", "2", "-K", ":", "-D", ";", "-Z"]).await;
    assert_eq!(two, "k:one;NULL:NULL;");
    let json = consume(&target, &[topic, "-e", "-J"]).await;
    let rows: Vec<Value> = json
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(rows[0]["key"], "k");
    assert_eq!(rows[0]["payload"], "one");
    assert_eq!(rows[0]["ts"], now);
    assert_eq!(rows[0]["tstype"], "create");
    assert_eq!(rows[1]["payload"], Value::Null);
    assert_eq!(rows[2]["payloadHex"], "ff00");
    assert_eq!(json, consume(&target, &[topic, "-e", "-f", "json"]).await);
}

trait FromText {
    fn from_static_str(text: &'static str) -> Self;
}

impl FromText for Bytes {
    fn from_static_str(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes())
    }
}

#[tokio::test]
async fn reading_starts_and_stops_where_it_was_told() {
    let target = Target::shared();
    let mut client = target.with_topic("cli-spans", 2).await;
    let old = now_ms() - 3_600_000;
    for (partition, timestamp_ms, first) in [(0, old, 0), (0, old + 60_000, 3), (1, old, 10)] {
        let records = (first..first + 3).map(|n| Record::value(n.to_string()));
        let spec = BatchSpec {
            timestamp_ms,
            records: records.collect(),
            ..BatchSpec::default()
        };
        let sent = ops::produce(&mut client, "cli-spans", partition, spec.build()).await;
        assert_eq!(sent.unwrap().error_code, 0);
    }
    let (s, e) = (format!("s@{}", old + 1), format!("e@{}", old + 1));
    for (args, expected) in [
        (&["-p", "0"][..], &["0", "1", "2", "3", "4", "5"][..]),
        (&["-p", "0", "-o", "4"], &["4", "5"]),
        (&["-p", "0", "-o", "-2"], &["4", "5"]),
        (&["-p", "0", "-o", "-99", "-c", "2"], &["0", "1"]),
        (&["-p", "0", "-o", "end"], &[]),
        (&["-p", "0", "-o", "6"], &[]),
        (&["-p", "0", "-o", &s], &["3", "4", "5"]),
        (&["-p", "0", "-o", &e], &["0", "1", "2"]),
        (&["-p", "0", "-o", "1", "-o", &e], &["1", "2"]),
        (&["-p", "1", "-o", &s], &[]),
        (&["-p", "1"], &["10", "11", "12"]),
    ] {
        let args = [&["cli-spans", "-e"], args].concat();
        let printed = consume(&target, &args).await;
        assert_eq!(printed.lines().collect::<Vec<_>>(), expected, "{args:?}");
    }
    let all = consume(&target, &["cli-spans", "-e"]).await;
    let mut all: Vec<i32> = all.lines().map(|line| line.parse().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4, 5, 10, 11, 12]);
    for (args, says) in [
        (&["cli-spans", "-p", "0", "-o", "7"][..], "it has 0 to 6"),
        (&["cli-spans", "-p", "2", "-e"], "it has 0 to 1"),
        (&["cli-nowhere", "-e"], "(3)"),
    ] {
        let complaint = fencepost(&target, "consume", args).await.failed(1);
        assert!(complaint.contains(says), "{args:?}: {complaint}");
    }
}

async fn send(client: &mut RawClient, topic: &str, id: &str, session: Session, value: &str) {
    let mut spec = P(session.0, session.1, 0, 0).spec();
    spec.attributes = 0x10;
    spec.records = vec![Record::value(value.to_owned())];
    let mut request = produce_request(topic, &[(0, Some(spec.build()))]);
    request.transactional_id = Some(txn_apis::id_of(id));
    let sent = txn_apis::produce(client, &request, 9).await;
    assert_eq!(sent[0].error_code, 0);
}

#[tokio::test]
async fn transactions_are_seen_by_isolation() {
    let target = Target::shared();
    target.with_topic("cli-txns", 1).await;
    let topic = "cli-txns";
    let mut client = txn_apis::connect(&target, "cli-open").await;
    write(&mut client, topic, 0, &["plain"]).await;
    let mut sessions = Vec::new();
    for (id, commit) in [
        ("cli-yes", Some(true)),
        ("cli-no", Some(false)),
        ("cli-open", None),
    ] {
        let session = txn_apis::begin(&mut client, id).await;
        let of = [(topic, &[0][..])];
        assert_eq!(txn_apis::add(&mut client, id, session, &of, 3).await, [0]);
        send(&mut client, topic, id, session, id).await;
        if let Some(commit) = commit {
            let ended = txn_apis::end(&mut client, id, session, commit, 3).await;
            assert_eq!(ended.0, 0);
            let state = if commit {
                "CompleteCommit"
            } else {
                "CompleteAbort"
            };
            txn_apis::await_state(&mut client, id, state).await;
        }
        sessions.push(session);
    }
    write(&mut client, topic, 0, &["behind"]).await;
    let committed = consume(&target, &[topic, "-e"]).await;
    assert_eq!(committed, "plain\ncli-yes\n");
    let everything = consume(&target, &[topic, "-e", "--isolation", "read_uncommitted"]).await;
    assert_eq!(everything, "plain\ncli-yes\ncli-no\ncli-open\nbehind\n");
    // Offsets of markers are 2 and 4.
    let format = ["-f", "%o %x %s\\n"];
    let txn = consume(&target, &[&[topic, "-e", "--txn"], &format[..]].concat()).await;
    let expected = "0 none plain\n1 committed cli-yes\n2 committed COMMIT\n3 aborted cli-no\n\
                    4 aborted ABORT\n5 pending cli-open\n6 none behind\n";
    assert_eq!(txn, expected);
    let stable = ["--txn", "--isolation", "read_committed"];
    let txn = consume(&target, &[&[topic, "-e"], &stable[..], &format].concat()).await;
    assert_eq!(txn.lines().count(), 5);
    let json = consume(&target, &[topic, "-e", "--txn", "-J"]).await;
    let rows: Vec<Value> = json
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(rows[3]["producerId"], json!(sessions[1].0));
    assert_eq!(rows[3]["sequence"], 0);
    assert_eq!(rows[4]["marker"], "ABORT");
    assert_eq!(rows[5]["transaction"], "pending");
    let from_open = consume(&target, &[topic, "-e", "--txn", "-o", "5", "-f", "%s\\n"]).await;
    assert_eq!(from_open, "cli-open\nbehind\n");
}

/// The next line that a command prints.
fn line(lines: &mut impl BufRead) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    line
}

fn lines(child: &mut Child) -> BufReader<std::process::ChildStdout> {
    BufReader::new(child.stdout.take().unwrap())
}

#[tokio::test]
async fn what_comes_later_is_printed_at_once_until_an_interrupt() {
    let target = Target::shared();
    let mut client = target.with_topic("cli-follow", 1).await;
    write(&mut client, "cli-follow", 0, &["first"]).await;
    let mut child = start(&target, "consume", &["cli-follow"]);
    let mut printed = lines(&mut child);
    assert_eq!(line(&mut printed), "first\n");
    write(&mut client, "cli-follow", 0, &["second"]).await;
    assert_eq!(line(&mut printed), "second\n");
    interrupt(&child);
    assert_eq!(line(&mut printed), "");
    assert_eq!(ended(child).await.code, Some(0));
}

#[tokio::test]
async fn a_reader_that_has_seen_enough_ends_it() {
    let target = Target::shared();
    let mut client = target.with_topic("cli-head", 1).await;
    let value = "x".repeat(1_000);
    for _ in 0..4 {
        write(&mut client, "cli-head", 0, &[value.as_str(); 500]).await;
    }
    let mut child = start(&target, "consume", &["cli-head", "-e"]);
    let mut printed = lines(&mut child);
    assert_eq!(line(&mut printed).len(), 1_001);
    drop(printed);
    let said = ended(child).await;
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
}

#[tokio::test]
async fn a_reader_that_is_slow_gets_every_line_though_interrupted() {
    let target = Target::shared();
    let mut client = target.with_topic("cli-slow", 1).await;
    // More than fits into a pipe.
    let value = "y".repeat(1_000);
    for _ in 0..4 {
        write(&mut client, "cli-slow", 0, &[value.as_str(); 500]).await;
    }
    let mut child = start(&target, "consume", &["cli-slow"]);
    let mut printed = lines(&mut child);
    assert_eq!(line(&mut printed).len(), 1_001);
    interrupt(&child);
    let mut count = 1;
    loop {
        match line(&mut printed).len() {
            0 => break,
            // Each is whole.
            len => assert_eq!(len, 1_001),
        }
        count += 1;
    }
    assert!(count <= 2_000, "{count}");
    assert_eq!(ended(child).await.code, Some(0));
}

#[tokio::test]
async fn a_broker_that_comes_back_is_read_on() {
    let target = Target::start(&[]);
    let mut client = target.with_topic("cli-back", 1).await;
    write(&mut client, "cli-back", 0, &["before"]).await;
    let mut child = start(&target, "consume", &["cli-back", "--timeout", "60000"]);
    let mut printed = lines(&mut child);
    assert_eq!(line(&mut printed), "before\n");
    target.kill_and_restart();
    let mut client = target.connect().await;
    ops::await_topic(&mut client, "cli-back", 1).await.unwrap();
    write(&mut client, "cli-back", 0, &["after"]).await;
    assert_eq!(line(&mut printed), "after\n");
    interrupt(&child);
    assert_eq!(ended(child).await.code, Some(0));
}

/// Its records go while it waits for somebody to take what it prints.
#[tokio::test]
async fn a_reader_that_the_log_left_behind_says_what_there_is() {
    let target = Target::shared();
    let mut client = target.with_topic("cli-behind", 1).await;
    let value = "z".repeat(1_000);
    for _ in 0..4 {
        write(&mut client, "cli-behind", 0, &[value.as_str(); 500]).await;
    }
    let mut child = start(&target, "consume", &["cli-behind"]);
    let mut printed = lines(&mut child);
    assert_eq!(line(&mut printed).len(), 1_001);
    // An answer has a part of it, and that is more than fits into a pipe.
    let deleted = crate::trimming::delete(&mut client, 2, "cli-behind", &[(0, -1)]).await;
    assert_eq!(deleted, [(0, 0, 2_000)]);
    while !line(&mut printed).is_empty() {}
    let complaint = ended(child).await.failed(1);
    assert!(
        complaint.contains("it has 2000 to 2000"),
        "consume said: {complaint}"
    );
}

//! What clients hear while markers are held by the fault that our gateway offers: states that last
//! a moment otherwise. Kafka has no such fault; what can be seen of it there is in
//! `txn_apis/ending.rs`.

use std::time::Duration;

use kafka_protocol::messages::EndTxnResponse;
use tests::raw::RawClient;

use super::reading::{aborted, bases, committed, fetch, latest};
use super::{TV1, send};
use crate::kit::{P, Target, differs, on_kafka};
use crate::reading::fetch_request;
use crate::txn_apis::{
    Session, add, add_group_once, add_once, await_state, begin, connect, describe, end,
    end_request, init_request, partitions_of,
};

/// Our gateway, which holds the markers of one transactional id until they are released.
struct Held(Target);

impl Held {
    async fn start(id: &str, topics: &[&str]) -> Self {
        let target = Target::start(&[("enable.faults", "true")]);
        for topic in topics {
            target.with_topic(topic, 1).await;
        }
        let fault = format!(r#"{{"kind":"hold-markers","transactionalId":"{id}"}}"#);
        let (status, answer) = target.admin_call("POST", "/api/v1/faults", &fault);
        assert_eq!(status, 201, "{answer}");
        Self(target)
    }

    fn release(&self) {
        let (status, answer) = self.0.admin_call("DELETE", "/api/v1/faults/1", "");
        assert_eq!(status, 204, "{answer}");
    }
}

/// Code, producer id and epoch of one EndTxn.
async fn end_once(
    client: &mut RawClient,
    id: &str,
    session: Session,
    commit: bool,
    v: i16,
) -> (i16, i64, i16) {
    let request = end_request(id, session, commit);
    let answer: EndTxnResponse = client.call(&request, v).await.unwrap();
    (
        answer.error_code,
        answer.producer_id.0,
        answer.producer_epoch,
    )
}

#[tokio::test]
async fn t22_an_abort_whose_markers_are_held_is_only_ever_an_abort() {
    if on_kafka() {
        return;
    }
    let held = Held::start("t22", &["t22"]).await;
    let mut client = connect(&held.0, "t22").await;
    let session = begin(&mut client, "t22").await;
    let of = [("t22", &[0][..])];
    assert_eq!(add(&mut client, "t22", session, &of, 3).await, [0]);
    let batch = P(session.0, session.1, 0, 1);
    assert_eq!(send(&mut client, "t22", "t22", batch, TV1).await, (0, 0));
    // The repeat waits for the same decision, and the opposite is told to come again.
    for _ in 0..2 {
        let late = end_once(&mut client, "t22", session, false, 3).await;
        assert_eq!(late, (15, -1, -1));
        let other = end_once(&mut client, "t22", session, true, 3).await;
        assert_eq!(other, (51, -1, -1));
        let state = describe(&mut client, "t22").await.transaction_state;
        assert_eq!(state.as_str(), "PrepareAbort");
    }
    assert_eq!(latest(&mut client, "t22", 1).await, 0);
    assert_eq!(latest(&mut client, "t22", 0).await, 1);
    held.release();
    await_state(&mut client, "t22", "CompleteAbort").await;
    for (commit, code) in [(false, 0), (true, 48)] {
        let ended = end_once(&mut client, "t22", session, commit, 3).await;
        assert_eq!(ended.0, code, "{commit}");
    }
    // One marker, and it aborts.
    let all = fetch(&mut client, &fetch_request("t22", &[(0, 0)])).await;
    assert_eq!(bases(&all), [0, 1]);
    let seen = fetch(&mut client, &committed("t22", 0)).await;
    assert_eq!(aborted(&seen), Some(vec![(session.0, 0)]));
}

#[tokio::test]
async fn t25_a_commit_whose_markers_are_held_is_only_ever_a_commit() {
    if on_kafka() {
        return;
    }
    let held = Held::start("t25", &["t25"]).await;
    let mut client = connect(&held.0, "t25").await;
    begin(&mut client, "t25").await;
    let session = begin(&mut client, "t25").await;
    assert_eq!(session.1, 1);
    let of = [("t25", &[0][..])];
    assert_eq!(add(&mut client, "t25", session, &of, 3).await, [0]);
    let batch = P(session.0, session.1, 0, 1);
    assert_eq!(send(&mut client, "t25", "t25", batch, TV1).await, (0, 0));
    for _ in 0..2 {
        let late = end_once(&mut client, "t25", session, true, 5).await;
        assert_eq!(late, (15, -1, -1));
        let other = end_once(&mut client, "t25", session, false, 5).await;
        assert_eq!(other, (51, -1, -1));
    }
    let state = describe(&mut client, "t25").await;
    assert_eq!(state.transaction_state.as_str(), "PrepareCommit");
    assert_eq!((state.producer_id.0, state.producer_epoch), (session.0, 2));
    held.release();
    await_state(&mut client, "t25", "CompleteCommit").await;
    let again = end_once(&mut client, "t25", session, true, 5).await;
    assert_eq!(again, (0, session.0, 2));
    let other = end_once(&mut client, "t25", session, false, 5).await;
    assert_eq!(other, (48, -1, -1));
    let seen = fetch(&mut client, &committed("t25", 0)).await;
    assert_eq!((bases(&seen), aborted(&seen)), (vec![0, 1], Some(vec![])));
}

#[tokio::test]
async fn t44_nothing_of_the_next_transaction_comes_before_the_markers_of_the_last() {
    if on_kafka() {
        return;
    }
    let held = Held::start("t44", &["t44-a", "t44-b"]).await;
    let mut client = connect(&held.0, "t44").await;
    let session = begin(&mut client, "t44").await;
    let both = [("t44-a", &[0][..]), ("t44-b", &[0][..])];
    assert_eq!(add(&mut client, "t44", session, &both, 3).await, [0, 0]);
    for topic in ["t44-a", "t44-b"] {
        let batch = P(session.0, session.1, 0, 1);
        let sent = send(&mut client, "t44", topic, batch, TV1).await;
        assert_eq!(sent, (0, 0));
    }
    let late = end_once(&mut client, "t44", session, true, 3).await;
    assert_eq!(late.0, 15);
    let b = [("t44-b", &[0][..])];
    for version in 0..=3 {
        let gated = add_once(&mut client, "t44", session, &b, version).await;
        assert_eq!(gated, [51], "v{version}");
    }
    let gated = add_group_once(&mut client, "t44", session, "g44", 3).await;
    assert_eq!(gated, 51);
    let request = init_request("t44", (-1, -1));
    let gated = client.call(&request, 4).await.unwrap();
    assert_eq!(gated.error_code, 51);
    held.release();
    assert_eq!(add(&mut client, "t44", session, &b, 3).await, [0]);
    let batch = P(session.0, session.1, 1, 1);
    // Behind the marker of the transaction before.
    assert_eq!(send(&mut client, "t44", "t44-b", batch, TV1).await, (0, 2));
    assert_eq!(latest(&mut client, "t44-b", 1).await, 2);
    assert_eq!(end(&mut client, "t44", session, false, 3).await.0, 0);
    let seen = fetch(&mut client, &committed("t44-b", 0)).await;
    assert_eq!(bases(&seen), [0, 1, 2, 3]);
    assert_eq!(aborted(&seen), Some(vec![(session.0, 2)]));
}

#[tokio::test]
async fn a_decision_that_one_partition_holds_up_after_a_restart_says_so() {
    if on_kafka() {
        return;
    }
    let held = Held::start("one", &["one-a", "one-b"]).await;
    let mut client = connect(&held.0, "one").await;
    let session = begin(&mut client, "one").await;
    let both = [("one-a", &[0][..]), ("one-b", &[0][..])];
    assert_eq!(add(&mut client, "one", session, &both, 3).await, [0, 0]);
    for topic in ["one-a", "one-b"] {
        let batch = P(session.0, session.1, 0, 1);
        let sent = send(&mut client, "one", topic, batch, TV1).await;
        assert_eq!(sent, (0, 0));
    }
    let late = end_once(&mut client, "one", session, true, 3).await;
    assert_eq!(late.0, 15);
    // The hold goes with the process.
    held.0.gateway(|gateway, data| {
        gateway.process().kill().unwrap();
        std::fs::write(data.join("one-a/.topic-id.json"), "{").unwrap();
        gateway.restart().unwrap();
    });
    let mut client = connect(&held.0, "one").await;
    let why = "it is not carried out: one-a-0 has no leader that is known; what fails";
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let mut told = (0, String::new());
    for _ in 0..1200 {
        pace.tick().await;
        told = (
            latest(&mut client, "one-b", 1).await,
            held.0.admin("/api/v1/transactions/one"),
        );
        if told.0 == 2 && told.1.contains(why) {
            break;
        }
    }
    assert!(told.0 == 2 && told.1.contains(why), "{told:?}");
    let pass = held.0.admin_call("POST", "/api/v1/reconcile/run", "{}").1;
    assert!(
        pass.contains("\"reason\":\"one-a-0 has no leader"),
        "{pass}"
    );
    let shown = describe(&mut client, "one").await;
    assert_eq!(shown.transaction_state.as_str(), "PrepareCommit");
    let [a, b] = ["one-a", "one-b"].map(|topic| (topic.to_owned(), vec![0]));
    let both = differs("prepared-shows-all", vec![a.clone()], vec![a, b]);
    assert_eq!(partitions_of(&shown), both);
}

//! EndTxn, in both dialects.

use kafka_protocol::messages::EndTxnRequest;
use tests::raw::RawClient;

use super::{add, await_state, begin, connect, describe, end, end_request};
use crate::kit::{Target, differs};

#[tokio::test]
async fn t19_nothing_is_open() {
    let target = Target::shared();
    let mut client = connect(&target, "t19").await;
    let (pid, epoch) = begin(&mut client, "t19").await;
    assert_eq!(epoch, 0);
    for version in 0..=4 {
        for commit in [true, false] {
            let answer = end(&mut client, "t19", (pid, 0), commit, version).await;
            assert_eq!(answer, (48, -1, -1), "v{version}");
        }
        let nobody = end(&mut client, "t19-none", (pid, 0), true, version).await;
        assert_eq!(nobody.0, 49, "v{version}");
        let other = end(&mut client, "t19", (pid + 1, 0), true, version).await;
        assert_eq!(other.0, 49, "v{version}");
        let stale = end(&mut client, "t19", (pid, 7), true, version).await;
        assert_eq!(stale.0, if version < 2 { 47 } else { 90 }, "v{version}");
        assert_eq!(end(&mut client, "", (pid, 0), true, version).await.0, 42);
    }
    for (session, commit, code) in [
        ((pid, 0), true, 48),
        ((pid, 7), true, 90),
        ((pid, 7), false, 90),
        ((pid + 1, 0), true, 49),
    ] {
        let answer = end(&mut client, "t19", session, commit, 5).await;
        assert_eq!(answer, (code, -1, -1), "{session:?} {commit}");
    }
    assert_eq!(end(&mut client, "t19-none", (pid, 0), true, 5).await.0, 49);
}

#[tokio::test]
async fn t20_to_t22_the_epoch_stays_in_the_first_dialect() {
    let target = Target::shared();
    target.with_topic("t20", 2).await;
    let mut client = connect(&target, "t20").await;
    begin(&mut client, "t20").await;
    let session = begin(&mut client, "t20").await;
    assert_eq!(session.1, 1);
    for (commit, state) in [(true, "CompleteCommit"), (false, "CompleteAbort")] {
        for version in 0..=4 {
            let of = [("t20", &[0, 1][..])];
            assert_eq!(add(&mut client, "t20", session, &of, 3).await, [0, 0]);
            let start = describe(&mut client, "t20").await.transaction_start_time_ms;
            let answer = end(&mut client, "t20", session, commit, version).await;
            assert_eq!(answer, (0, -1, -1), "v{version}");
            let complete = await_state(&mut client, "t20", state).await;
            let shown = (complete.producer_id.0, complete.producer_epoch);
            assert_eq!(shown, session);
            assert_eq!(complete.transaction_start_time_ms, start);
            assert_eq!(complete.topics.len(), 0);
            // A repeat, and the opposite.
            let answer = end(&mut client, "t20", session, commit, version).await;
            assert_eq!(answer.0, 0, "v{version}");
            let answer = end(&mut client, "t20", session, !commit, version).await;
            assert_eq!(answer.0, 48, "v{version}");
        }
    }
}

#[tokio::test]
async fn t23_to_t26_the_epoch_grows_in_the_second_dialect() {
    let target = Target::shared();
    target.with_topic("t23", 1).await;
    let mut client = connect(&target, "t23").await;
    begin(&mut client, "t23").await;
    let (pid, epoch) = begin(&mut client, "t23").await;
    assert_eq!(epoch, 1);
    let of = [("t23", &[0][..])];
    assert_eq!(add(&mut client, "t23", (pid, 1), &of, 3).await, [0]);
    assert_eq!(
        end(&mut client, "t23", (pid, 1), true, 5).await,
        (0, pid, 2)
    );
    let complete = await_state(&mut client, "t23", "CompleteCommit").await;
    assert_eq!((complete.producer_id.0, complete.producer_epoch), (pid, 2));
    // Repeats of the session before, and what the present one can't do.
    for (epoch, commit, answer) in [
        (1, true, (0, pid, 2)),
        (1, false, (48, -1, -1)),
        (0, true, (90, -1, -1)),
        (2, true, (48, -1, -1)),
    ] {
        let got = end(&mut client, "t23", (pid, epoch), commit, 5).await;
        assert_eq!(got, answer, "epoch {epoch}, commit {commit}");
    }
    // An abort of nothing is a transaction of its own.
    assert_eq!(
        end(&mut client, "t23", (pid, 2), false, 5).await,
        (0, pid, 3)
    );
    let aborted = await_state(&mut client, "t23", "CompleteAbort").await;
    assert_eq!((aborted.producer_epoch, aborted.topics.len()), (3, 0));
    for (epoch, commit, answer) in [
        (2, false, (0, pid, 3)),
        (2, true, (48, -1, -1)),
        (3, true, (48, -1, -1)),
        (3, false, (0, pid, 4)),
    ] {
        let got = end(&mut client, "t23", (pid, epoch), commit, 5).await;
        assert_eq!(got, answer, "epoch {epoch}, commit {commit}");
    }
    // Of a session that began a transaction since, too.
    assert_eq!(add(&mut client, "t23", (pid, 4), &of, 3).await, [0]);
    for commit in [true, false] {
        let got = end(&mut client, "t23", (pid, 3), commit, 5).await;
        assert_eq!(got, (90, -1, -1), "commit {commit}");
    }
    assert_eq!(
        end(&mut client, "t23", (pid, 4), false, 5).await,
        (0, pid, 5)
    );
}

#[tokio::test]
async fn the_second_dialect_behind_a_decision_of_the_first() {
    let target = Target::shared();
    target.with_topic("behind", 1).await;
    let mut client = connect(&target, "behind").await;
    begin(&mut client, "behind").await;
    let (pid, epoch) = begin(&mut client, "behind").await;
    assert_eq!(epoch, 1);
    let of = [("behind", &[0][..])];
    assert_eq!(add(&mut client, "behind", (pid, 1), &of, 3).await, [0]);
    for commit in [true, false] {
        let stale = end(&mut client, "behind", (pid, 0), commit, 5).await;
        assert_eq!(stale, (90, -1, -1), "commit {commit}");
    }
    assert_eq!(end(&mut client, "behind", (pid, 1), true, 3).await.0, 0);
    await_state(&mut client, "behind", "CompleteCommit").await;
    // Epoch 0 was another session.
    let others = differs("epochs-of-others", (0, pid, 1), (90, -1, -1));
    for (epoch, commit, answer) in [
        (0, true, others),
        (0, false, (48, -1, -1)),
        (1, true, (48, -1, -1)),
        (2, true, (90, -1, -1)),
        (2, false, (90, -1, -1)),
        (1, false, (0, pid, 2)),
    ] {
        let got = end(&mut client, "behind", (pid, epoch), commit, 5).await;
        assert_eq!(got, answer, "epoch {epoch}, commit {commit}");
    }
    await_state(&mut client, "behind", "CompleteAbort").await;
    // The session raised its epoch itself, and aborts without raising it.
    assert_eq!(add(&mut client, "behind", (pid, 2), &of, 3).await, [0]);
    assert_eq!(end(&mut client, "behind", (pid, 2), false, 3).await.0, 0);
    await_state(&mut client, "behind", "CompleteAbort").await;
    for (epoch, commit, answer) in [
        (0, false, (90, -1, -1)),
        (1, true, (48, -1, -1)),
        (1, false, (0, pid, 2)),
        (2, true, (48, -1, -1)),
    ] {
        let got = end(&mut client, "behind", (pid, epoch), commit, 5).await;
        assert_eq!(got, answer, "epoch {epoch}, commit {commit}");
    }
}

/// Codes of requests that are sent before the first is answered.
async fn pipelined(client: &mut RawClient, requests: &[EndTxnRequest], version: i16) -> Vec<i16> {
    for request in requests {
        client.send(request, version).await.unwrap();
    }
    let mut codes = Vec::new();
    for _ in requests {
        let (_, answer) = client.receive::<EndTxnRequest>(version).await.unwrap();
        codes.push(answer.error_code);
    }
    codes
}

/// Of a decision, its repeat and the opposite, which came one behind the other: the opposite is
/// never done. Where markers take long to write, it is for the client to ask again (15).
fn one_is_done(codes: &[i16]) {
    assert!([0, 15].contains(&codes[0]), "{codes:?}");
    // Kafka has the client come again until the markers are written; when they are, it is 0 too.
    let allowed = differs("end-waits", vec![0, 51], vec![0, 15]);
    assert!(allowed.contains(&codes[1]), "{codes:?}");
    // 48 if the markers are written by then.
    assert!([48, 51].contains(&codes[2]), "{codes:?}");
}

#[tokio::test]
async fn t22_a_repeat_of_an_abort_waits_for_the_first() {
    let target = Target::shared();
    target.with_topic("t22", 4).await;
    let mut client = connect(&target, "t22").await;
    let session = begin(&mut client, "t22").await;
    let of = [("t22", &[0, 1, 2, 3][..])];
    assert_eq!(add(&mut client, "t22", session, &of, 3).await, [0; 4]);
    let abort = end_request("t22", session, false);
    let commit = end_request("t22", session, true);
    let codes = pipelined(&mut client, &[abort.clone(), abort, commit], 3).await;
    one_is_done(&codes);
    assert_eq!(end(&mut client, "t22", session, false, 3).await.0, 0);
    await_state(&mut client, "t22", "CompleteAbort").await;
}

#[tokio::test]
async fn t25_a_repeat_waits_for_the_answer_of_the_first() {
    let target = Target::shared();
    target.with_topic("t25", 4).await;
    let mut client = connect(&target, "t25").await;
    let session = begin(&mut client, "t25").await;
    let of = [("t25", &[0, 1, 2, 3][..])];
    assert_eq!(add(&mut client, "t25", session, &of, 3).await, [0; 4]);
    let commit = end_request("t25", session, true);
    let abort = end_request("t25", session, false);
    let codes = pipelined(&mut client, &[commit.clone(), commit, abort], 5).await;
    one_is_done(&codes);
    let next = (0, session.0, session.1 + 1);
    assert_eq!(end(&mut client, "t25", session, true, 5).await, next);
    await_state(&mut client, "t25", "CompleteCommit").await;
}

//! kill -9 with transactions open, decided and aborted.

use std::time::Duration;

use tests::raw::ops;

use super::reading::{aborted, bases, committed, fetch, latest, open};
use super::{TV1, batch, finish, send};
use crate::kit::{P, Target, differs, end_of, now_ms, on_kafka, produce_request};
use crate::reading::partitions;
use crate::txn_apis::{
    add, await_state, begin, connect, describe, end, id_of, init_by, init_request, produce,
};

/// What Kafka may do behind a crash: it depends on what has a leader first, the log of its
/// coordinator or the partition.
const DROPPED: &str = "markers-without-a-leader";

#[tokio::test]
async fn after_kill_9_readers_see_what_they_saw() {
    let target = Target::start(&[]);
    target.with_topic("killed", 1).await;
    let (mut client, gone) = open(&target, "killed/a").await;
    let sent = send(
        &mut client,
        "killed/a",
        "killed",
        P(gone.0, gone.1, 0, 2),
        TV1,
    )
    .await;
    assert_eq!(sent, (0, 0));
    finish(&mut client, "killed/a", gone, false).await;
    let (mut client, (pid, epoch)) = open(&target, "killed/b").await;
    let first = P(pid, epoch, 0, 1);
    assert_eq!(
        send(&mut client, "killed/b", "killed", first, TV1).await,
        (0, 3)
    );
    // Kafka starts so slowly that the transaction would time out.
    let rounds = if on_kafka() { 1 } else { 3 };
    for round in 0..rounds {
        target.kill_and_restart();
        client = connect(&target, "killed/b").await;
        ops::await_topic(&mut client, "killed", 1).await.unwrap();
        let request = committed("killed", 0);
        let answer = client.call(&request, 12).await.unwrap();
        let answer = &partitions(&answer)[0];
        assert_eq!(answer.last_stable_offset, 3, "round {round}");
        assert_eq!(aborted(answer), Some(vec![(gone.0, 0)]), "round {round}");
        // The transaction goes on without asking; what is repeated is not stored twice.
        assert_eq!(
            send(&mut client, "killed/b", "killed", first, TV1).await,
            (0, 3)
        );
    }
    assert_eq!(
        end(&mut client, "killed/b", (pid, epoch), true, 3).await.0,
        0
    );
    // Decided: whatever is killed when, it is finished, and once.
    target.kill_and_restart();
    client = connect(&target, "killed/b").await;
    await_state(&mut client, "killed/b", "CompleteCommit").await;
    ops::await_topic(&mut client, "killed", 1).await.unwrap();
    let answer = client.call(&committed("killed", 3), 12).await.unwrap();
    let answer = &partitions(&answer)[0];
    let end = end_of(&mut client, "killed").await;
    // Kafka may also write the marker a second time, or never.
    let once = differs(DROPPED, vec![(3, 4), (5, 5), (6, 6)], vec![(5, 5)]);
    let found = (answer.last_stable_offset, end);
    assert!(once.contains(&found), "last stable offset, end: {found:?}");
    target.log_is_clean(&[]);
}

/// From, to, and whether something is missing before, of the transitions of an id.
fn history(target: &Target, id: &str) -> Vec<(String, String, bool)> {
    let answer = target.admin(&format!("/api/v1/transactions/{id}/history"));
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let history: serde_json::Value = serde_json::from_str(body).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let transitions = history["transitions"].as_array().unwrap().iter();
    transitions
        .map(|one| {
            (
                text(&one["from"]),
                text(&one["to"]),
                one["gapBefore"] == true,
            )
        })
        .collect()
}

#[tokio::test]
async fn after_kill_9_each_step_is_in_the_history_once() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    target.with_topic("steps", 1).await;
    let (mut client, session) = open(&target, "steps").await;
    let batch = P(session.0, session.1, 0, 1);
    let sent = send(&mut client, "steps", "steps", batch, TV1).await;
    assert_eq!(sent, (0, 0));
    finish(&mut client, "steps", session, true).await;
    let steps = [
        ("Empty", "Empty"),
        ("Empty", "Ongoing"),
        ("Ongoing", "PrepareCommit"),
        ("PrepareCommit", "CompleteCommit"),
    ];
    let steps = steps.map(|(from, to)| (from.to_owned(), to.to_owned(), false));
    // The last line is in its file, what it says only in memory: whoever starts does it again.
    for round in 0..3 {
        // It is recorded behind what it says.
        let mut pace = tokio::time::interval(Duration::from_millis(20));
        let mut left = 3_000;
        while history(&target, "steps").len() < steps.len() && left > 0 {
            pace.tick().await;
            left -= 1;
        }
        assert_eq!(history(&target, "steps"), steps, "round {round}");
        target.kill_and_restart();
        client = connect(&target, "steps").await;
        await_state(&mut client, "steps", "CompleteCommit").await;
    }
    assert_eq!(history(&target, "steps"), steps);
    target.log_is_clean(&[]);
}

#[tokio::test]
async fn t46_what_was_not_decided_before_a_kill_goes_on_or_times_out() {
    let reaps = "transaction.abort.timed.out.transaction.cleanup.interval.ms";
    let target = Target::start(&[(reaps, "100")]);
    target.with_topic("t46", 1).await;
    let mut client = connect(&target, "t46").await;
    // Kafka starts so slowly; of ours the batch must come before.
    let timeout_ms = if on_kafka() { 40_000 } else { 15_000 };
    let request = init_request("t46", (-1, -1)).with_transaction_timeout_ms(timeout_ms);
    let (code, pid, epoch) = init_by(&mut client, &request, 4).await;
    assert_eq!((code, epoch), (0, 0));
    let of = [("t46", &[0][..])];
    assert_eq!(add(&mut client, "t46", (pid, 0), &of, 3).await, [0]);
    let sent = send(&mut client, "t46", "t46", P(pid, 0, 0, 1), TV1).await;
    assert_eq!(sent, (0, 0));
    target.kill_and_restart();
    client = connect(&target, "t46").await;
    let found = describe(&mut client, "t46").await;
    if now_ms() < found.transaction_start_time_ms + i64::from(timeout_ms) {
        assert_eq!(found.transaction_state.as_str(), "Ongoing");
    }
    let aborted_by_time = await_state(&mut client, "t46", "CompleteAbort").await;
    let session = (
        aborted_by_time.producer_id.0,
        aborted_by_time.producer_epoch,
    );
    assert_eq!(session, (pid, 1));
    ops::await_topic(&mut client, "t46", 1).await.unwrap();
    let seen = fetch(&mut client, &committed("t46", 0)).await;
    assert_eq!(
        (bases(&seen), aborted(&seen)),
        (vec![0, 1], Some(vec![(pid, 0)]))
    );
    assert_eq!(end(&mut client, "t46", (pid, 0), true, 3).await.0, 90);
}

#[tokio::test]
async fn t47_what_was_decided_before_a_kill_reaches_every_partition() {
    const PARTITIONS: i32 = 40;
    let target = Target::start(&[]);
    target.with_topic("t47", PARTITIONS).await;
    let mut client = connect(&target, "t47").await;
    let (pid, epoch) = begin(&mut client, "t47").await;
    let numbers: Vec<i32> = (0..PARTITIONS).collect();
    let of = [("t47", &numbers[..])];
    let added = add(&mut client, "t47", (pid, epoch), &of, 3).await;
    assert!(added.iter().all(|code| *code == 0), "{added:?}");
    let data: Vec<_> = numbers
        .iter()
        .map(|number| (*number, Some(batch(P(pid, epoch, 0, 1)))))
        .collect();
    let mut request = produce_request("t47", &data);
    request.transactional_id = Some(id_of("t47"));
    let sent = produce(&mut client, &request, TV1).await;
    assert!(sent.iter().all(|one| one.error_code == 0), "{sent:?}");
    assert_eq!(end(&mut client, "t47", (pid, epoch), true, 3).await.0, 0);
    // Kafka has hardly begun to write markers, and of ours the end of the transaction is not
    // written: whoever starts does it all again.
    target.kill_and_restart();
    client = connect(&target, "t47").await;
    await_state(&mut client, "t47", "CompleteCommit").await;
    ops::await_topic(&mut client, "t47", PARTITIONS)
        .await
        .unwrap();
    let ends = ops::list_offsets(&mut client, "t47", PARTITIONS, ops::LATEST);
    let ends = ends.await.unwrap();
    // A second marker changes nothing; ours is not written twice.
    let allowed = differs(DROPPED, vec![1, 2, 3], vec![2]);
    for (number, end) in ends.iter().enumerate() {
        assert!(allowed.contains(end), "partition {number} ends at {end}");
    }
    if ends[0] == 1 {
        // Kafka, without the marker: its readers wait for ever.
        assert_eq!(latest(&mut client, "t47", 1).await, 0);
        return;
    }
    assert_eq!(
        latest(&mut client, "t47", 1).await,
        end_of(&mut client, "t47").await
    );
    let seen = fetch(&mut client, &committed("t47", 0)).await;
    assert_eq!(
        (bases(&seen)[..2].to_vec(), aborted(&seen)),
        (vec![0, 1], Some(vec![]))
    );
}

//! kill -9 with transactions open, decided and aborted.

use tests::raw::ops;

use super::reading::{aborted, committed, open};
use super::{TV1, finish, send};
use crate::kit::{P, Target, end_of, on_kafka};
use crate::reading::partitions;
use crate::txn_apis::{await_state, connect, end};

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
    assert_eq!(answer.last_stable_offset, end);
    // Kafka may write the marker a second time.
    let once = on_kafka() || end == 5;
    assert!(once, "the log ends at {end}");
    target.log_is_clean(&[]);
}

//! The first batch of a transaction on a partition, markers, and old epochs.

use kafka_protocol::messages::ProduceRequest;
use tests::raw::ops;

use super::{TV1, TV2, abort, batch, finish, send};
use crate::kit::{P, Target, answers, codes, differs, end_of, produce, produce_request};
use crate::txn_apis::{self, BATCH_PASSES, add, begin, connect, end, id_of};

#[tokio::test]
async fn a_first_batch_is_verified() {
    let target = Target::shared();
    target.with_topic("verified-first", 2).await;
    let mut client = connect(&target, "verified-first").await;
    let (pid, epoch) = begin(&mut client, "verified-first").await;
    let first = P(pid, epoch, 0, 2);
    for (version, code) in [(TV1, 48), (10, 48), (11, 120)] {
        let sent = send(
            &mut client,
            "verified-first",
            "verified-first",
            first,
            version,
        )
        .await;
        assert_eq!(sent, (code, -1), "v{version}");
    }
    let other = P(pid + 1_000_000, epoch, 0, 2);
    assert_eq!(
        send(&mut client, "verified-first", "verified-first", other, TV1)
            .await
            .0,
        49
    );
    assert_eq!(
        send(&mut client, "nobody", "verified-first", first, TV1)
            .await
            .0,
        49
    );
    let newer = P(pid, epoch + 1, 0, 2);
    assert_eq!(
        send(&mut client, "verified-first", "verified-first", newer, TV1)
            .await
            .0,
        47
    );
    assert_eq!(end_of(&mut client, "verified-first").await, 0);
    let session = (pid, epoch);
    let both = [("verified-first", &[0, 1][..])];
    assert_eq!(
        add(&mut client, "verified-first", session, &both[..], 3).await,
        [0, 0]
    );
    assert_eq!(
        send(&mut client, "verified-first", "verified-first", first, TV1).await,
        (0, 0)
    );
    // It goes on; its repetition is answered for; what is outside of it is refused (T35).
    let next = P(pid, epoch, 2, 1);
    assert_eq!(
        send(&mut client, "verified-first", "verified-first", next, TV1).await,
        (0, 2)
    );
    assert_eq!(
        send(&mut client, "verified-first", "verified-first", first, TV1).await,
        (0, 0)
    );
    let outside = P(pid, epoch, 3, 1).batch();
    assert_eq!(produce(&mut client, "verified-first", outside).await.0, 48);
    finish(&mut client, "verified-first", session, true).await;
    assert_eq!(end_of(&mut client, "verified-first").await, 4);
}

#[tokio::test]
async fn partitions_of_one_request_are_judged_one_by_one() {
    let target = Target::shared();
    target.with_topic("apart", 3).await;
    let mut client = connect(&target, "apart").await;
    let (pid, epoch) = begin(&mut client, "apart").await;
    let some = [("apart", &[0, 1][..])];
    assert_eq!(
        add(&mut client, "apart", (pid, epoch), &some, 3).await,
        [0, 0]
    );
    let data: Vec<_> = (0..3)
        .map(|p| (p, Some(batch(P(pid, epoch, 0, 1)))))
        .collect();
    let mut request = produce_request("apart", &data);
    // T34.
    assert_eq!(
        codes(&client.call(&request, TV1).await.unwrap()),
        [53, 53, 53]
    );
    request.transactional_id = Some(id_of("apart"));
    let mut judged = txn_apis::produce(&mut client, &request, TV1).await;
    // Kafka answers in an order of its own.
    judged.sort_by_key(|one| one.index);
    let judged: Vec<i16> = judged.iter().map(|one| one.error_code).collect();
    assert_eq!(judged, [0, 0, 48]);
    finish(&mut client, "apart", (pid, epoch), false).await;
    let ends = ops::list_offsets(&mut client, "apart", 3, ops::LATEST).await;
    assert_eq!(ends.unwrap(), [2, 2, 0]);
}

#[tokio::test]
async fn a_new_topic_of_an_old_name_is_not_in_the_transaction() {
    let target = Target::shared();
    target.with_topic("renewed", 1).await;
    let mut client = connect(&target, "renewed").await;
    let (pid, epoch) = begin(&mut client, "renewed").await;
    let of = [("renewed", &[0][..])];
    assert_eq!(add(&mut client, "renewed", (pid, epoch), &of, 1).await, [0]);
    ops::delete_topic(&mut client, "renewed").await.unwrap();
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(50));
    for _ in 0..1200 {
        let metadata = ops::metadata(&mut client, "renewed").await.unwrap();
        if metadata.topics[0].error_code == 3 {
            break;
        }
        pace.tick().await;
    }
    let created = ops::create_topic(&mut client, "renewed", 1, &[]).await;
    created.unwrap();
    let first = P(pid, epoch, 0, 1);
    let sent = send(&mut client, "renewed", "renewed", first, TV1).await;
    assert_eq!(
        sent,
        differs("recreated-in-a-transaction", (0, 0), (48, -1))
    );
    // It can be added; of what Kafka has already this is the repetition.
    assert_eq!(add(&mut client, "renewed", (pid, epoch), &of, 1).await, [0]);
    let sent = send(&mut client, "renewed", "renewed", first, TV1).await;
    assert_eq!(sent, (0, 0));
    finish(&mut client, "renewed", (pid, epoch), true).await;
    assert_eq!(end_of(&mut client, "renewed").await, 2);
}

#[tokio::test]
async fn t49_sequences_go_on_where_the_epoch_stays() {
    let target = Target::shared();
    target.with_topic("t49", 1).await;
    let mut client = connect(&target, "t49").await;
    let (pid, epoch) = begin(&mut client, "t49").await;
    let of = [("t49", &[0][..])];
    assert_eq!(add(&mut client, "t49", (pid, epoch), &of, 3).await, [0]);
    assert_eq!(
        send(&mut client, "t49", "t49", P(pid, epoch, 0, 10), TV1).await,
        (0, 0)
    );
    finish(&mut client, "t49", (pid, epoch), true).await;
    assert_eq!(add(&mut client, "t49", (pid, epoch), &of, 3).await, [0]);
    assert_eq!(
        send(&mut client, "t49", "t49", P(pid, epoch, 0, 1), TV1)
            .await
            .0,
        45
    );
    let right = send(&mut client, "t49", "t49", P(pid, epoch, 10, 1), TV1).await;
    assert_eq!(right, differs("refused-first-batch", (45, -1), (0, 11)));
    finish(&mut client, "t49", (pid, epoch), false).await;
}

#[tokio::test]
async fn t50_a_batch_of_the_second_dialect_adds_its_partition() {
    let target = Target::shared();
    target.with_topic("t50", 1).await;
    let mut client = connect(&target, "t50").await;
    let (pid, epoch) = begin(&mut client, "t50").await;
    // An unknown producer begins at 0.
    assert_eq!(
        send(&mut client, "t50", "t50", P(pid, epoch, 3, 1), TV2)
            .await
            .0,
        45
    );
    assert_eq!(
        send(&mut client, "t50", "t50", P(pid, epoch, 0, 2), TV2).await,
        (0, 0)
    );
    let (code, same, next) = end(&mut client, "t50", (pid, epoch), true, 5).await;
    assert_eq!((code, same, next), (0, pid, epoch + 1));
    // The marker carries the next epoch: sequences begin anew. Until it is there the answer is 51.
    assert_eq!(
        send(&mut client, "t50", "t50", P(pid, next, 0, 1), TV2).await,
        (0, 3)
    );
    assert_eq!(
        send(&mut client, "t50", "t50", P(pid, next, 10, 1), TV2)
            .await
            .0,
        45
    );
    assert_eq!(
        send(&mut client, "t50", "t50", P(pid, epoch, 2, 1), TV2)
            .await
            .0,
        47
    );
    assert_eq!(end(&mut client, "t50", (pid, next), false, 5).await.0, 0);
}

#[tokio::test]
async fn first_batches_do_not_overtake_each_other() {
    let target = Target::shared();
    target.with_topic("in-order", 1).await;
    let mut client = connect(&target, "in-order").await;
    let (pid, epoch) = begin(&mut client, "in-order").await;
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(50));
    let mut taken = 0;
    for _ in 0..600 {
        if taken == 5 {
            break;
        }
        pace.tick().await;
        let left = taken..5;
        for sequence in left.clone() {
            let mut request =
                produce_request("in-order", &[(0, Some(batch(P(pid, epoch, sequence, 1))))]);
            request.transactional_id = Some(id_of("in-order"));
            client.send(&request, TV2).await.unwrap();
        }
        for sequence in left {
            let (_, answer) = client.receive::<ProduceRequest>(TV2).await.unwrap();
            let answer = &answers(&answer)[0];
            if sequence != taken {
                // One before it comes again, and so does this one.
                assert!([19, 45, 51].contains(&answer.error_code), "{answer:?}");
            } else if !BATCH_PASSES.contains(&answer.error_code) {
                let sent = (answer.error_code, answer.base_offset);
                assert_eq!(sent, (0, i64::from(sequence)));
                taken += 1;
            }
        }
    }
    assert_eq!(taken, 5);
    assert_eq!(
        end(&mut client, "in-order", (pid, epoch), true, 5).await.0,
        0
    );
}

#[tokio::test]
async fn t32_an_older_session_appends_nowhere() {
    let target = Target::shared();
    for topic in ["touched", "untouched"] {
        target.with_topic(topic, 1).await;
    }
    let mut client = connect(&target, "t32").await;
    let (pid, old) = begin(&mut client, "t32").await;
    let of = [("touched", &[0][..])];
    assert_eq!(add(&mut client, "t32", (pid, old), &of, 3).await, [0]);
    assert_eq!(
        send(&mut client, "t32", "touched", P(pid, old, 0, 1), TV1).await,
        (0, 0)
    );
    let (same, new) = begin(&mut client, "t32").await;
    assert_eq!((same, new), (pid, old + 2));
    for topic in ["touched", "untouched"] {
        for version in [TV1, 11, TV2] {
            let zombie = send(&mut client, "t32", topic, P(pid, old, 0, 1), version).await;
            assert_eq!(zombie.0, 47, "{topic} v{version}");
        }
    }
    // Whoever has its number, also outside of transactions.
    let zombie = produce(&mut client, "untouched", P(pid, old, 0, 1).batch()).await;
    let ours = differs("fence-without-a-transaction", 0, 47);
    assert_eq!(zombie.0, ours);
}

#[tokio::test]
async fn t40_markers_of_a_coordinator_that_was_replaced() {
    let target = Target::shared();
    let mut client = target.with_topic("t40", 1).await;
    let pid = 4_000_000_040;
    assert_eq!(abort(&mut client, "t40", (pid, 2), 9).await, 0);
    assert_eq!(abort(&mut client, "t40", (pid, 2), 8).await, 52);
    assert_eq!(abort(&mut client, "t40", (pid, 1), 9).await, 47);
    assert_eq!(abort(&mut client, "t40", (pid, 3), 9).await, 0);
    assert_eq!(end_of(&mut client, "t40").await, 2);
    // Nothing but markers was seen at this epoch.
    assert_eq!(
        produce(&mut client, "t40", P(pid, 2, 0, 1).batch()).await.0,
        47
    );
    assert_eq!(
        produce(&mut client, "t40", P(pid, 3, 1, 1).batch()).await.0,
        45
    );
    assert_eq!(
        produce(&mut client, "t40", P(pid, 3, 0, 1).batch()).await,
        (0, 2)
    );
}

//! The end of the epochs. A session comes there after 32766 others: the file of its slot is made to
//! say so, hence on our gateway only.

use super::{add, await_state, begin, connect, describe, end, init};
use crate::kit::{Target, on_kafka, txn_version};

/// A gateway whose transactional id is at epoch 32766, and its producer id.
async fn at_the_end(id: &str) -> (Target, i64) {
    at_the_end_of(id, txn_version()).await
}

/// The same at a version of transactions.
async fn at_the_end_of(id: &str, version: u8) -> (Target, i64) {
    let target = Target::start(&[("transaction.version", &version.to_string())]);
    target.with_topic("exhausted", 1).await;
    let mut client = connect(&target, id).await;
    let (pid, epoch) = begin(&mut client, id).await;
    assert_eq!(epoch, 0);
    drop(client);
    let patched = target.gateway(|gateway, data| {
        gateway.process().kill().unwrap();
        let mut patched = 0;
        for entry in std::fs::read_dir(data.join("__cluster/txn_state")).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let (from, to) = (
                format!("\"pid\":{pid},\"epoch\":0"),
                format!("\"pid\":{pid},\"epoch\":32766"),
            );
            if text.contains(&from) && !path.to_string_lossy().contains(".prev.") {
                // Without the checksum behind its content.
                std::fs::write(&path, text.trim_end().replace(&from, &to)).unwrap();
                patched += 1;
            }
        }
        gateway.restart().unwrap();
        patched
    });
    assert_eq!(patched, 1, "the slot of {id}");
    let mut client = connect(&target, id).await;
    let described = describe(&mut client, id).await;
    assert_eq!(
        (described.producer_id.0, described.producer_epoch),
        (pid, 32766)
    );
    (target, pid)
}

#[tokio::test]
async fn t10_a_session_beyond_the_last_epoch_gets_another_producer_id() {
    if on_kafka() {
        return;
    }
    let (target, pid) = at_the_end("t10").await;
    let mut client = connect(&target, "t10").await;
    let wrong = init(&mut client, "t10", (pid, 5), 4).await;
    assert_eq!(wrong, (-1, -1, -1));
    let (code, next, epoch) = init(&mut client, "t10", (pid, 32766), 4).await;
    assert_eq!((code, epoch), (0, 0));
    assert!(next != pid);
    // Its answer was lost.
    let again = init(&mut client, "t10", (pid, 32766), 4).await;
    assert_eq!(again, (0, next, 0));
    assert_eq!(init(&mut client, "t10", (-1, -1), 4).await, (0, next, 1));
}

#[tokio::test]
async fn a_fence_at_the_last_epoch_takes_what_nobody_is_given() {
    if on_kafka() {
        return;
    }
    for (version, first) in [(1, 0), (2, 1)] {
        let (target, pid) = at_the_end_of("fenced", version).await;
        let mut client = connect(&target, "fenced").await;
        let of = [("exhausted", &[0][..])];
        assert_eq!(add(&mut client, "fenced", (pid, 32766), &of, 3).await, [0]);
        // The abort has epoch 32767; where transactions raise epochs it brings a producer id.
        let (code, next, epoch) = init(&mut client, "fenced", (-1, -1), 4).await;
        assert_eq!((code, epoch), (0, first), "transaction.version {version}");
        assert!(next != pid);
        for claim in [(pid, 32766), (pid, 32767)] {
            let (code, ..) = end(&mut client, "fenced", claim, true, 3).await;
            assert_eq!(code, 49, "{claim:?}");
        }
        let fences = target.admin("/api/v1/fences");
        assert!(fences.contains("32767"), "{fences}");
        assert_eq!(add(&mut client, "fenced", (next, epoch), &of, 3).await, [0]);
    }
}

#[tokio::test]
async fn t28_and_t29_a_transaction_at_the_last_epoch_ends_with_another_producer_id() {
    if on_kafka() {
        return;
    }
    let (target, pid) = at_the_end("t28").await;
    let mut client = connect(&target, "t28").await;
    let of = [("exhausted", &[0][..])];
    assert_eq!(add(&mut client, "t28", (pid, 32766), &of, 3).await, [0]);
    let (code, next, epoch) = end(&mut client, "t28", (pid, 32766), true, 5).await;
    assert_eq!((code, epoch), (0, 0));
    assert!(next != pid);
    let complete = await_state(&mut client, "t28", "CompleteCommit").await;
    assert_eq!((complete.producer_id.0, complete.producer_epoch), (next, 0));
    let again = end(&mut client, "t28", (pid, 32766), true, 5).await;
    assert_eq!(again, (0, next, 0));
    let other = end(&mut client, "t28", (pid, 32766), false, 5).await;
    assert_eq!(other, (48, -1, -1));
    assert_eq!(add(&mut client, "t28", (next, 0), &of, 3).await, [0]);
    assert_eq!(
        end(&mut client, "t28", (next, 0), true, 5).await,
        (0, next, 1)
    );
}

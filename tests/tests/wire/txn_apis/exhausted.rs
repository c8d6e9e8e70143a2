//! The end of the epochs. A session comes there after 32766 others: the file of its slot is made to
//! say so, hence on our gateway only.

use super::{add, await_state, begin, connect, describe, end, init};
use crate::kit::{Target, on_kafka};

/// A gateway whose transactional id is at epoch 32766, and its producer id.
async fn at_the_end(id: &str) -> (Target, i64) {
    let target = Target::start(&[]);
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
                std::fs::write(&path, text.replace(&from, &to)).unwrap();
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

//! What time does to transactional ids.

use super::{
    add, add_group, await_state, begin, connect, describe, end, init, init_by, init_request,
};
use crate::kit::{Target, differs, txn_version};

#[tokio::test]
async fn t31_a_transaction_that_is_open_for_too_long_is_aborted() {
    let reaps = "transaction.abort.timed.out.transaction.cleanup.interval.ms";
    let target = Target::start(&[(reaps, "100")]);
    target.with_topic("t31", 1).await;
    let mut client = connect(&target, "t31").await;
    let request = init_request("t31", (-1, -1)).with_transaction_timeout_ms(300);
    let (code, pid, epoch) = init_by(&mut client, &request, 4).await;
    assert_eq!((code, epoch), (0, 0));
    let of = [("t31", &[0][..])];
    assert_eq!(add(&mut client, "t31", (pid, 0), &of, 3).await, [0]);
    let aborted = await_state(&mut client, "t31", "CompleteAbort").await;
    assert_eq!((aborted.producer_id.0, aborted.producer_epoch), (pid, 1));
    for (version, code) in (0..).zip([47, 47, 90, 90, 90, 48]) {
        // Version 5 tells a repeat from the epoch: of a commit, while it was aborted.
        let answer = end(&mut client, "t31", (pid, 0), true, version).await;
        assert_eq!(answer, (code, -1, -1), "EndTxn v{version}");
    }
    for version in 0..=4 {
        let code = if version < 2 { 47 } else { 90 };
        let answer = end(&mut client, "t31", (pid, 0), false, version).await;
        assert_eq!(answer, (code, -1, -1), "EndTxn v{version}");
    }
    let repeat = end(&mut client, "t31", (pid, 0), false, 5).await;
    let told = (0, pid, 1);
    let refused = (90, -1, -1);
    if txn_version() == 1 {
        assert_eq!(repeat, differs("epochs-of-others", told, refused));
    } else {
        assert_eq!(repeat, told);
    }
    for version in 0..=3 {
        let code = if version < 2 { 47 } else { 90 };
        let codes = add(&mut client, "t31", (pid, 0), &of, version).await;
        assert_eq!(codes, [code], "AddPartitionsToTxn v{version}");
    }
    assert_eq!(add_group(&mut client, "t31", (pid, 0), "g", 4).await, 90);
    // The session goes on by what it knows (KIP-360), where its protocol lets it.
    let resumed = init(&mut client, "t31", (pid, 0), 4).await;
    if txn_version() == 1 {
        assert_eq!(resumed, (90, -1, -1));
        let older = init(&mut client, "t31", (pid, 0), 3).await;
        assert_eq!(older, (47, -1, -1));
        return;
    }
    assert_eq!(resumed, (0, pid, 1));
    assert_eq!(add(&mut client, "t31", (pid, 1), &of, 3).await, [0]);
}

#[tokio::test]
async fn t52_an_id_that_nobody_uses_is_forgotten() {
    let sweeps = "transaction.remove.expired.transaction.cleanup.interval.ms";
    let settings = [("transactional.id.expiration.ms", "500"), (sweeps, "100")];
    let target = Target::start(&settings);
    target.with_topic("t52", 1).await;
    let mut client = connect(&target, "t52").await;
    let session = begin(&mut client, "t52").await;
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(100));
    for _ in 0..600 {
        pace.tick().await;
        if describe(&mut client, "t52").await.error_code == 105 {
            break;
        }
    }
    assert_eq!(describe(&mut client, "t52").await.error_code, 105);
    let of = [("t52", &[0][..])];
    assert_eq!(add(&mut client, "t52", session, &of, 3).await, [49]);
    assert_eq!(end(&mut client, "t52", session, true, 3).await.0, 49);
    let (code, pid, epoch) = init(&mut client, "t52", session, 4).await;
    assert_eq!((code, epoch), (0, 0));
    assert!(pid != session.0, "a producer id again");
}

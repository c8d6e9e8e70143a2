//! InitProducerId with a transactional id.

use kafka_protocol::messages::FindCoordinatorRequest;

use super::{add, await_state, begin, connect, describe, init, init_by, init_request};
use crate::kit::{Target, differs, text};

#[tokio::test]
async fn t01_to_t08_sessions_of_an_id() {
    let target = Target::shared();
    let mut client = connect(&target, "sessions").await;
    let (pid, epoch) = begin(&mut client, "sessions").await;
    assert_eq!(epoch, 0);
    let described = describe(&mut client, "sessions").await;
    assert_eq!(described.transaction_state.as_str(), "Empty");
    let shown = (
        described.producer_id.0,
        described.producer_epoch,
        described.transaction_timeout_ms,
        described.transaction_start_time_ms,
        described.topics.len(),
    );
    assert_eq!(shown, (pid, 0, 900_000, -1, 0));
    // Nothing is claimed: the next epoch, in every version.
    for (version, epoch) in (0..=5).zip(1..) {
        let none = (-1, -1);
        let answer = init(&mut client, "sessions", none, version).await;
        assert_eq!(answer, (0, pid, epoch), "v{version}");
    }
    // The session goes on, and its answer was lost.
    for _ in 0..2 {
        let answer = init(&mut client, "sessions", (pid, 6), 4).await;
        assert_eq!(answer, (0, pid, 7));
    }
    // Another session has taken over; another producer; an epoch that never was.
    for claim in [(pid, 3), (pid + 1, 7), (pid, 8)] {
        let answer = init(&mut client, "sessions", claim, 4).await;
        assert_eq!(answer, (90, -1, -1), "{claim:?}");
        let answer = init(&mut client, "sessions", claim, 3).await;
        assert_eq!(answer, (47, -1, -1), "{claim:?}");
    }
    // Whatever is claimed of an id that nobody knows.
    let (code, fresh, epoch) = init(&mut client, "sessions-new", (99, 3), 4).await;
    assert_eq!((code, epoch), (0, 0));
    assert!(![99, pid].contains(&fresh));
}

#[tokio::test]
async fn timeouts_have_bounds() {
    let target = Target::shared();
    let mut client = connect(&target, "timeouts").await;
    for (timeout_ms, code) in [
        (0, 50),
        (-1, 50),
        (900_001, 50),
        (i32::MAX, 50),
        (1, 0),
        (900_000, 0),
    ] {
        let request = init_request("timeouts", (-1, -1)).with_transaction_timeout_ms(timeout_ms);
        let answer = init_by(&mut client, &request, 4).await;
        assert_eq!(answer.0, code, "{timeout_ms}");
    }
    let described = describe(&mut client, "timeouts").await;
    assert_eq!(described.transaction_timeout_ms, 900_000);
}

#[tokio::test]
async fn t11_a_new_session_aborts_what_is_open() {
    let target = Target::shared();
    target.with_topic("t11", 1).await;
    let mut client = connect(&target, "t11").await;
    begin(&mut client, "t11").await;
    let (pid, epoch) = begin(&mut client, "t11").await;
    assert_eq!(epoch, 1);
    let open = [("t11", &[0][..])];
    assert_eq!(add(&mut client, "t11", (pid, 1), &open, 3).await, [0]);
    let request = init_request("t11", (-1, -1));
    let answer = client.call(&request, 4).await.unwrap();
    let told = (answer.error_code, answer.producer_epoch);
    // Ours waits for the abort, but not for long.
    let allowed = differs("rejoin-waits", vec![(51, -1)], vec![(0, 3), (51, -1)]);
    assert!(allowed.contains(&told), "{told:?}");
    if told.0 == 51 {
        await_state(&mut client, "t11", "CompleteAbort").await;
        assert_eq!(begin(&mut client, "t11").await, (pid, 3));
    }
    let described = describe(&mut client, "t11").await;
    assert_eq!(described.transaction_state.as_str(), "Empty");
    assert_eq!(described.topics.len(), 0);
    for old in [1, 2] {
        assert_eq!(add(&mut client, "t11", (pid, old), &open, 3).await, [90]);
    }
}

#[tokio::test]
async fn every_version_finds_the_coordinator() {
    let target = Target::shared();
    let mut client = connect(&target, "found").await;
    for version in 1..=6 {
        let request = FindCoordinatorRequest::default().with_key_type(1);
        let request = if version >= 4 {
            request.with_coordinator_keys(vec![text("found"), text("found-too")])
        } else {
            request.with_key(text("found"))
        };
        let answer = client.call(&request, version).await.unwrap();
        let found: Vec<(i16, String, i32)> = if version >= 4 {
            let each = answer.coordinators.iter();
            each.map(|one| (one.error_code, one.host.to_string(), one.port))
                .collect()
        } else {
            vec![(answer.error_code, answer.host.to_string(), answer.port)]
        };
        assert_eq!(found.len(), if version >= 4 { 2 } else { 1 });
        for (code, host, port) in found {
            assert_eq!(
                (code, format!("{host}:{port}").as_str()),
                (0, target.address())
            );
        }
    }
}

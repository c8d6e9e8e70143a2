//! DescribeTransactions and ListTransactions.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka_protocol::messages::{ListTransactionsRequest, ListTransactionsResponse, ProducerId};
use tests::raw::RawClient;

use super::{add, begin, connect, describe, partitions_of};
use crate::kit::{Target, on_kafka, text};

/// A producer id that no broker comes to hand out.
const NOBODY: i64 = i64::MAX - 1;

#[tokio::test]
async fn t65_what_is_not_there() {
    let target = Target::shared();
    let mut client = connect(&target, "t65").await;
    let unknown = describe(&mut client, "t65-none").await;
    assert_eq!(
        (unknown.error_code, unknown.transactional_id.as_str()),
        (105, "t65-none")
    );
    assert_eq!(describe(&mut client, "").await.error_code, 42);
}

#[tokio::test]
async fn an_open_transaction_is_described() {
    let target = Target::shared();
    target.with_topic("described", 3).await;
    let mut client = connect(&target, "described").await;
    let (pid, epoch) = begin(&mut client, "described").await;
    let before = crate::kit::now_ms();
    let of = [("described", &[2, 0][..])];
    assert_eq!(
        add(&mut client, "described", (pid, epoch), &of, 3).await,
        [0, 0]
    );
    let open = describe(&mut client, "described").await;
    assert_eq!(open.error_code, 0);
    assert_eq!(open.transaction_state.as_str(), "Ongoing");
    assert_eq!((open.producer_id.0, open.producer_epoch), (pid, epoch));
    assert_eq!(open.transaction_timeout_ms, 900_000);
    let began = open.transaction_start_time_ms;
    // Clocks may be set meanwhile.
    let around = before - 60_000..=crate::kit::now_ms() + 60_000;
    assert!(around.contains(&began), "{began}");
    assert_eq!(partitions_of(&open), [("described".to_owned(), vec![0, 2])]);
}

async fn list(
    client: &mut RawClient,
    request: &ListTransactionsRequest,
    v: i16,
) -> ListTransactionsResponse {
    client.call(request, v).await.unwrap()
}

/// States by id, of ids that begin with `of`.
fn listed(answer: &ListTransactionsResponse, of: &str) -> BTreeMap<String, String> {
    assert_eq!(answer.error_code, 0);
    let states = answer.transaction_states.iter();
    states
        .map(|one| {
            (
                one.transactional_id.to_string(),
                one.transaction_state.to_string(),
            )
        })
        .filter(|(id, _)| id.starts_with(of))
        .collect()
}

#[tokio::test]
async fn t64_ids_are_listed_by_filters() {
    let target = Target::shared();
    target.with_topic("t64", 1).await;
    let mut client = connect(&target, "t64-app").await;
    begin(&mut client, "t64-app").await;
    let open = begin(&mut client, "t64-app-1").await;
    let of = [("t64", &[0][..])];
    assert_eq!(add(&mut client, "t64-app-1", open, &of, 3).await, [0]);
    let both = [("t64-app", "Empty"), ("t64-app-1", "Ongoing")];
    let expect = |of: &[(&str, &str)]| -> BTreeMap<String, String> {
        let of = of.iter();
        of.map(|(id, state)| ((*id).to_owned(), (*state).to_owned()))
            .collect()
    };
    for version in 0..=2 {
        let all = list(&mut client, &ListTransactionsRequest::default(), version).await;
        assert_eq!(listed(&all, "t64"), expect(&both), "v{version}");
        let states = vec![text("Ongoing"), text("Gone"), text("Dead")];
        let request = ListTransactionsRequest::default().with_state_filters(states);
        let ongoing = list(&mut client, &request, version).await;
        assert_eq!(listed(&ongoing, "t64"), expect(&both[1..]), "v{version}");
        assert_eq!(ongoing.unknown_state_filters, [text("Gone")]);
        let request = ListTransactionsRequest::default().with_state_filters(vec![text("Gone")]);
        let none = list(&mut client, &request, version).await;
        assert_eq!(none.transaction_states.len(), 0);
        let producers = vec![ProducerId(open.0), ProducerId(NOBODY)];
        let request = ListTransactionsRequest::default().with_producer_id_filters(producers);
        let by_id = list(&mut client, &request, version).await;
        assert_eq!(listed(&by_id, ""), expect(&both[1..]), "v{version}");
        assert_eq!(by_id.transaction_states[0].producer_id.0, open.0);
    }
    // An id that never began anything is as old as time.
    for version in 1..=2 {
        let request = ListTransactionsRequest::default().with_duration_filter(3_600_000);
        let old = list(&mut client, &request, version).await;
        assert_eq!(listed(&old, "t64"), expect(&both[..1]), "v{version}");
    }
    for (pattern, ids) in [
        ("t64-app", &both[..1]),
        ("t64-app.*", &both[..]),
        (".*-app-[0-9]", &both[1..]),
        ("t64", &[]),
        ("", &both[..]),
    ] {
        let pattern = text(pattern);
        let request =
            ListTransactionsRequest::default().with_transactional_id_pattern(Some(pattern.clone()));
        let answer = list(&mut client, &request, 2).await;
        assert_eq!(listed(&answer, "t64"), expect(ids), "{pattern}");
    }
    let request = ListTransactionsRequest::default().with_transactional_id_pattern(Some(text("(")));
    let refused = list(&mut client, &request, 2).await;
    assert_eq!(
        (refused.error_code, refused.transaction_states.len()),
        (128, 0)
    );
}

#[tokio::test]
async fn what_changes_nothing_is_not_logged_as_a_change() {
    if on_kafka() {
        return;
    }
    let target = Target::start(&[]);
    target.with_topic("dry", 1).await;
    let mut client = connect(&target, "dry").await;
    let session = begin(&mut client, "dry").await;
    let of = [("dry", &[0][..])];
    assert_eq!(add(&mut client, "dry", session, &of, 3).await, [0]);
    for (query, body, status) in [
        ("?dry_run=true", "{}", 200),
        ("", r#"{"reason":"late","txnSeq":99}"#, 412),
        ("", r#"{"reason":"left open"}"#, 200),
        ("", r#"{"reason":"again"}"#, 409),
    ] {
        let path = format!("/api/v1/transactions/dry/abort{query}");
        let (found, answer) = target.admin_call("POST", &path, body);
        assert_eq!(found, status, "{answer}");
    }
    let logged = |what: &str| {
        let log = target.gateway(|gateway, _| gateway.log().unwrap());
        log.matches(what).count()
    };
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    for _ in 0..1500 {
        pace.tick().await;
        if logged("a request ") >= 4 {
            break;
        }
    }
    let changed = logged("a request changed something");
    assert_eq!((changed, logged("a request changed nothing")), (1, 3));
}

//! AddPartitionsToTxn and AddOffsetsToTxn.

use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTransaction;
use kafka_protocol::messages::{AddPartitionsToTxnRequest, ProducerId};
use tests::raw::RawClient;

use super::{Session, add, add_group, begin, connect, describe, id_of, partitions_of, topics};
use crate::kit::{Target, differs};

#[tokio::test]
async fn t13_to_t17_partitions_of_a_transaction() {
    let target = Target::shared();
    target.with_topic("adding", 2).await;
    let mut client = connect(&target, "adding").await;
    let one = [("adding", &[0][..])];
    for version in 0..=3 {
        let codes = add(&mut client, "adding-none", (5, 0), &one, version).await;
        assert_eq!(codes, [49], "v{version}");
        assert_eq!(add(&mut client, "", (5, 0), &one, version).await, [42]);
    }
    begin(&mut client, "adding").await;
    let (pid, epoch) = begin(&mut client, "adding").await;
    assert_eq!(epoch, 1);
    // A partition that is not there: the others are not attempted.
    let some = [("adding", &[0, 7][..]), ("adding-none", &[0][..])];
    for version in 0..=3 {
        let codes = add(&mut client, "adding", (pid, 1), &some, version).await;
        assert_eq!(codes, [55, 3, 3], "v{version}");
    }
    let described = describe(&mut client, "adding").await;
    assert_eq!(described.transaction_state.as_str(), "Empty");

    assert_eq!(add(&mut client, "adding", (pid, 1), &one, 0).await, [0]);
    let open = describe(&mut client, "adding").await;
    assert_eq!(open.transaction_state.as_str(), "Ongoing");
    assert!(open.transaction_start_time_ms > 0);
    assert_eq!(partitions_of(&open), [("adding".to_owned(), vec![0])]);
    // The same again, and one more: it began when it began.
    for (partitions, version) in [(&[0][..], 3), (&[0, 1][..], 1)] {
        let of = [("adding", partitions)];
        let codes = add(&mut client, "adding", (pid, 1), &of, version).await;
        assert!(codes.iter().all(|code| *code == 0), "{codes:?}");
        let again = describe(&mut client, "adding").await;
        assert_eq!(
            again.transaction_start_time_ms,
            open.transaction_start_time_ms
        );
    }
    let open = describe(&mut client, "adding").await;
    assert_eq!(partitions_of(&open), [("adding".to_owned(), vec![0, 1])]);

    for (session, old, new) in [
        ((pid, 0), 47, 90),
        ((pid, 2), 47, 90),
        ((pid + 1, 1), 49, 49),
    ] {
        for version in 0..=3 {
            let code = if version < 2 { old } else { new };
            let codes = add(&mut client, "adding", session, &one, version).await;
            assert_eq!(codes, [code], "{session:?} v{version}");
        }
    }
}

#[tokio::test]
async fn groups_of_a_transaction() {
    let target = Target::shared();
    let mut client = connect(&target, "adding-groups").await;
    let (pid, epoch) = begin(&mut client, "adding-groups").await;
    assert_eq!(epoch, 0);
    for version in 0..=4 {
        let code = add_group(&mut client, "adding-nobody", (5, 0), "g", version).await;
        assert_eq!(code, 49, "v{version}");
        assert_eq!(add_group(&mut client, "", (5, 0), "g", version).await, 42);
        let fenced = if version < 2 { 47 } else { 90 };
        let code = add_group(&mut client, "adding-groups", (pid, 1), "g", version).await;
        assert_eq!(code, fenced, "v{version}");
        let code = add_group(&mut client, "adding-groups", (pid, 0), "g", version).await;
        assert_eq!(code, 0, "v{version}");
    }
    let open = describe(&mut client, "adding-groups").await;
    assert_eq!(open.transaction_state.as_str(), "Ongoing");
    let topics = partitions_of(&open);
    assert_eq!(topics.len(), 1);
    assert_eq!(
        (topics[0].0.as_str(), topics[0].1.len()),
        ("__consumer_offsets", 1)
    );
}

/// Codes of partition 0 and 1 of a topic, as one broker asks another.
async fn between_brokers(
    client: &mut RawClient,
    (id, topic): (&str, &str),
    session: Session,
    verify_only: bool,
    version: i16,
) -> Vec<i16> {
    let transaction = AddPartitionsToTxnTransaction::default()
        .with_transactional_id(id_of(id))
        .with_producer_id(ProducerId(session.0))
        .with_producer_epoch(session.1)
        .with_verify_only(verify_only)
        .with_topics(topics(&[(topic, &[0, 1])]));
    let request = AddPartitionsToTxnRequest::default().with_transactions(vec![transaction]);
    let answer = client.call(&request, version).await.unwrap();
    assert_eq!(
        (answer.error_code, answer.results_by_transaction.len()),
        (0, 1)
    );
    let result = &answer.results_by_transaction[0];
    assert_eq!(result.transactional_id, id_of(id));
    let mut partitions = result.topic_results[0].results_by_partition.clone();
    partitions.sort_by_key(|partition| partition.partition_index);
    let partitions = partitions.iter();
    partitions.map(|p| p.partition_error_code).collect()
}

#[tokio::test]
async fn brokers_verify_and_add() {
    let target = Target::shared();
    target.with_topic("verified", 2).await;
    let mut client = connect(&target, "verified").await;
    let session = begin(&mut client, "verified").await;
    let of = ("verified", "verified");
    for version in 4..=5 {
        for verify_only in [true, false] {
            let mut ask = async |of, session| {
                between_brokers(&mut client, of, session, verify_only, version).await
            };
            assert_eq!(ask(("verified-none", "verified"), (5, 0)).await, [49, 49]);
            assert_eq!(ask(of, (session.0 + 1, 0)).await, [49, 49]);
            assert_eq!(ask(of, (session.0, 1)).await, [90, 90]);
            assert_eq!(ask(("verified", "verified-none"), session).await, [3, 3]);
        }
    }
    let verified = between_brokers(&mut client, of, session, true, 5).await;
    assert_eq!(verified, [120, 120]);
    let one = [("verified", &[1][..])];
    assert_eq!(add(&mut client, "verified", session, &one, 3).await, [0]);
    let verified = between_brokers(&mut client, of, session, true, 4).await;
    assert_eq!(verified, [120, 0]);
    let added = between_brokers(&mut client, of, session, false, 4).await;
    assert_eq!(added, [0, 0]);
    let verified = between_brokers(&mut client, of, session, true, 5).await;
    assert_eq!(verified, [0, 0]);
}

#[tokio::test]
async fn a_transaction_has_a_thousand_groups_at_most() {
    // In memory: each addition would be synced.
    let target = Target::start(&[("store", "memory:")]);
    let mut client = connect(&target, "many-groups").await;
    let session = begin(&mut client, "many-groups").await;
    for number in 0..1_000 {
        let group = format!("many-{number}");
        let code = add_group(&mut client, "many-groups", session, &group, 3).await;
        assert_eq!(code, 0, "{group}");
    }
    for (version, code) in [(3, 42), (4, 120)] {
        let told = add_group(&mut client, "many-groups", session, "many", version).await;
        assert_eq!(
            told,
            differs("limits-of-transactions", 0, code),
            "v{version}"
        );
        let again = add_group(&mut client, "many-groups", session, "many-7", version).await;
        assert_eq!(again, 0);
    }
}

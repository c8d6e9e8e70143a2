//! ApiVersions, FindCoordinator, InitProducerId.

use std::collections::BTreeSet;

use kafka_protocol::messages::{
    ApiVersionsRequest, FindCoordinatorRequest, InitProducerIdRequest, ProducerId, TransactionalId,
};
use tests::raw::ops;

use crate::kit::{Target, on_kafka, text};

/// Key, lowest and highest version of what is served.
const SERVED: [(i16, i16, i16); 43] = [
    (0, 0, 13),
    (1, 4, 18),
    (2, 1, 10),
    (3, 0, 13),
    (8, 2, 9),
    (9, 1, 9),
    (10, 0, 6),
    (11, 0, 9),
    (12, 0, 4),
    (13, 0, 5),
    (14, 0, 5),
    (15, 0, 6),
    (16, 0, 5),
    (18, 0, 4),
    (19, 2, 7),
    (20, 1, 6),
    (21, 0, 2),
    (22, 0, 5),
    (23, 2, 4),
    (24, 0, 5),
    (25, 0, 4),
    (26, 0, 5),
    (27, 1, 1),
    (28, 0, 5),
    (32, 1, 4),
    (33, 0, 2),
    (35, 1, 4),
    (37, 0, 3),
    (42, 0, 2),
    (43, 0, 2),
    (44, 0, 1),
    (45, 0, 1),
    (46, 0, 0),
    (47, 0, 0),
    (57, 0, 2),
    (60, 0, 2),
    (61, 0, 0),
    (65, 0, 0),
    (66, 0, 2),
    (68, 0, 1),
    (69, 0, 1),
    (74, 0, 1),
    (75, 0, 0),
];

fn versions_request(name: &str, version: &str) -> ApiVersionsRequest {
    ApiVersionsRequest::default()
        .with_client_software_name(text(name))
        .with_client_software_version(text(version))
}

#[tokio::test]
async fn a07_versions_are_advertised_as_clients_need_them() {
    let target = Target::shared();
    let mut client = target.connect().await;
    for version in 0..=4 {
        let request = versions_request("wire", "1");
        let response = client.call(&request, version).await.unwrap();
        assert_eq!(response.error_code, 0);
        let got: BTreeSet<(i16, i16, i16)> = response
            .api_keys
            .iter()
            .map(|api| (api.api_key, api.min_version, api.max_version))
            .collect();
        assert_eq!(got.len(), response.api_keys.len(), "no key twice");
        for row in SERVED {
            let (key, min, max) = row;
            if [2, 8, 9, 27, 35].contains(&key) && on_kafka() {
                // Kafka's newest needs a newer schema than the decoder has.
                assert!(got.contains(&(key, min, max + 1)));
            } else {
                assert!(got.contains(&row), "v{version}: {row:?}");
            }
        }
        for (key, ..) in &got {
            assert!(![4, 5, 6, 7, 52, 56, 71, 72].contains(key), "{key}");
        }
        if !on_kafka() {
            assert_eq!(got, SERVED.into(), "nothing that is not served");
        }
        if version >= 3 {
            assert!(response.finalized_features_epoch >= 0);
        }
    }
}

#[tokio::test]
async fn everything_advertised_is_answered_at_both_ends() {
    let target = Target::shared();
    let mut client = target.with_topic("ends", 1).await;
    for version in [3, 13] {
        let request = if version == 13 {
            let id = crate::idempotence::topic_id(&mut client, "ends").await;
            crate::idempotence::produce_by_id(id, crate::kit::plain(1))
        } else {
            crate::kit::produce_request("ends", &[(0, Some(crate::kit::plain(1)))])
        };
        let response = client.call(&request, version).await.unwrap();
        assert_eq!(crate::kit::codes(&response), [0], "Produce v{version}");
    }
    for version in 4..=18 {
        let mut request = crate::reading::fetch_request("ends", &[(0, 0)]);
        if version >= 13 {
            request.topics[0].topic_id = crate::idempotence::topic_id(&mut client, "ends").await;
        }
        let response = client.call(&request, version).await.unwrap();
        let answer = &crate::reading::partitions(&response)[0];
        assert_eq!(answer.error_code, 0, "Fetch v{version}");
        assert_eq!(answer.high_watermark, 2);
    }
}

#[tokio::test]
async fn software_names_follow_kafkas_pattern() {
    let target = Target::shared();
    let mut client = target.connect().await;
    for (name, version, code) in [
        ("", "1", 42),
        ("a", "", 42),
        ("-a", "1", 42),
        ("a", "1.", 42),
        ("a b", "1", 42),
        ("apache-kafka-java", "4.3.1", 0),
    ] {
        let request = versions_request(name, version);
        let response = client.call(&request, 3).await.unwrap();
        assert_eq!(response.error_code, code, "{name:?} {version:?}");
        assert_eq!(response.api_keys.is_empty(), code != 0);
    }
}

fn find(key: &str, key_type: i8, version: i16) -> FindCoordinatorRequest {
    let request = FindCoordinatorRequest::default().with_key_type(key_type);
    if version >= 4 {
        request.with_coordinator_keys(vec![text(key), text("another")])
    } else {
        request.with_key(text(key))
    }
}

#[tokio::test]
async fn unknown_kinds_of_coordinator_are_refused() {
    let target = Target::shared();
    let mut client = target.connect().await;
    for (version, key_type) in [(1, 2), (5, 2), (3, 9), (6, -1)] {
        let response = client
            .call(&find("x", key_type, version), version)
            .await
            .unwrap();
        let codes: Vec<i16> = if version >= 4 {
            response.coordinators.iter().map(|c| c.error_code).collect()
        } else {
            vec![response.error_code]
        };
        assert!(
            codes.iter().all(|c| *c == 42),
            "v{version} {key_type}: {codes:?}"
        );
    }
}

fn init(id: Option<&str>, producer_id: i64, producer_epoch: i16) -> InitProducerIdRequest {
    InitProducerIdRequest::default()
        .with_transactional_id(id.map(|id| TransactionalId(text(id))))
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(ProducerId(producer_id))
        .with_producer_epoch(producer_epoch)
}

#[tokio::test]
async fn producer_ids_are_fresh_on_every_connection() {
    let target = Target::shared();
    let mut clients = [target.connect().await, target.connect().await];
    let mut seen = BTreeSet::new();
    for round in 0..40 {
        for client in &mut clients {
            let (id, epoch) = ops::init_producer_id(client).await.unwrap();
            assert_eq!(epoch, 0);
            assert!(id >= 0);
            assert!(seen.insert(id), "{id} twice, round {round}");
        }
    }
    // Without a transactional id whatever the request claims is ignored.
    for version in 0..=5 {
        let (id, epoch) = if version >= 3 { (77, 3) } else { (-1, -1) };
        let request = init(None, id, epoch).with_transaction_timeout_ms(-7);
        let response = clients[0].call(&request, version).await.unwrap();
        assert_eq!((response.error_code, response.producer_epoch), (0, 0));
        assert!(seen.insert(response.producer_id.0), "v{version}");
    }
}

#[tokio::test]
async fn t04_init_producer_id_refusals() {
    let target = Target::shared();
    let mut client = target.connect().await;
    ops::init_producer_id(&mut client).await.unwrap();
    for (id, producer_id, epoch, version, code) in [
        (Some(""), -1, -1, 4, 42),
        (Some(""), -1, -1, 0, 42),
        (None, 5, -1, 3, 42),
        (None, -1, 5, 4, 42),
        (Some("t"), 5, -1, 4, 42),
    ] {
        let request = init(id, producer_id, epoch);
        let response = client.call(&request, version).await.unwrap();
        let got = (
            response.error_code,
            response.producer_id.0,
            response.producer_epoch,
        );
        assert_eq!(
            got,
            (code, -1, -1),
            "{id:?} {producer_id} {epoch} v{version}"
        );
    }
}

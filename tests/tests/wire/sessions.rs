//! Fetch sessions (KIP-227).

use kafka_protocol::messages::fetch_request::ForgottenTopic;
use kafka_protocol::messages::{FetchRequest, FetchResponse};
use tests::raw::{RawClient, ops};

use crate::idempotence::topic_id;
use crate::kit::{Target, plain, produce};
use crate::reading::{fetch_request, partitions, records};

const VERSION: i16 = 12;

/// An incremental request that changes nothing.
fn incremental(id: i32, epoch: i32) -> FetchRequest {
    fetch_request("", &[])
        .with_topics(Vec::new())
        .with_session_id(id)
        .with_session_epoch(epoch)
}

async fn call(client: &mut RawClient, request: &FetchRequest) -> FetchResponse {
    client.call(request, VERSION).await.unwrap()
}

/// Opens a session over partitions 0 and 1, both at offset 0.
async fn open(client: &mut RawClient, topic: &str) -> i32 {
    let request = fetch_request(topic, &[(0, 0), (1, 0)]).with_session_epoch(0);
    let response = call(client, &request).await;
    assert_eq!(response.error_code, 0);
    assert_ne!(response.session_id, 0);
    assert_eq!(partitions(&response).len(), 2, "a full answer");
    response.session_id
}

fn indices(response: &FetchResponse) -> Vec<i32> {
    partitions(response)
        .iter()
        .map(|p| p.partition_index)
        .collect()
}

#[tokio::test]
async fn r18_an_incremental_answer_has_only_news() {
    let target = Target::shared();
    let mut client = target.with_topic("session", 2).await;
    let id = open(&mut client, "session").await;
    let quiet = call(&mut client, &incremental(id, 1)).await;
    assert_eq!((quiet.error_code, quiet.session_id), (0, id));
    assert!(quiet.responses.is_empty());

    assert_eq!(produce(&mut client, "session", plain(2)).await, (0, 0));
    let news = call(&mut client, &incremental(id, 2)).await;
    assert_eq!(indices(&news), [0]);
    assert!(!records(&partitions(&news)[0]).is_empty());

    // The reader moves on: to the end, where nothing is new.
    let moved = fetch_request("session", &[(0, 2)])
        .with_session_id(id)
        .with_session_epoch(3);
    let response = call(&mut client, &moved).await;
    assert!(response.responses.is_empty());

    // Forgotten: its news are no news.
    let forget = ForgottenTopic::default()
        .with_topic(ops::topic_name("session"))
        .with_partitions(vec![0]);
    let request = incremental(id, 4).with_forgotten_topics_data(vec![forget]);
    assert_eq!(call(&mut client, &request).await.error_code, 0);
    assert_eq!(produce(&mut client, "session", plain(1)).await, (0, 2));
    let response = call(&mut client, &incremental(id, 5)).await;
    assert!(response.responses.is_empty());
}

#[tokio::test]
async fn what_is_wanted_and_forgotten_at_once_is_forgotten() {
    let target = Target::shared();
    let topic = "wanted-and-forgotten";
    let mut client = target.with_topic(topic, 3).await;
    let id = open(&mut client, topic).await;
    // One that the session has, and one that it has not.
    let forget = ForgottenTopic::default()
        .with_topic(ops::topic_name(topic))
        .with_partitions(vec![1, 2]);
    let request = fetch_request(topic, &[(1, 0), (2, 0)])
        .with_session_id(id)
        .with_session_epoch(1)
        .with_forgotten_topics_data(vec![forget]);
    let response = call(&mut client, &request).await;
    assert_eq!((response.error_code, response.session_id), (0, id));
    assert!(response.responses.is_empty());
    for partition in [0, 1, 2] {
        let sent = ops::produce(&mut client, topic, partition, plain(1)).await;
        assert_eq!(sent.unwrap().error_code, 0);
    }
    let news = call(&mut client, &incremental(id, 2)).await;
    assert_eq!(indices(&news), [0]);
}

#[tokio::test]
async fn a_new_high_watermark_alone_is_news() {
    let target = Target::shared();
    let mut client = target.with_topic("watermark", 2).await;
    assert_eq!(produce(&mut client, "watermark", plain(1)).await, (0, 0));
    let request = fetch_request("watermark", &[(0, 1), (1, 0)]).with_session_epoch(0);
    let opened = call(&mut client, &request).await;
    let id = opened.session_id;
    assert_eq!(produce(&mut client, "watermark", plain(1)).await, (0, 1));
    // Read to the new end before the session asks: no records, but a watermark it has not seen.
    let moved = fetch_request("watermark", &[(0, 2)])
        .with_session_id(id)
        .with_session_epoch(1);
    let response = call(&mut client, &moved).await;
    assert_eq!(indices(&response), [0]);
    let answer = &partitions(&response)[0];
    assert_eq!((answer.high_watermark, records(answer).len()), (2, 0));
}

#[tokio::test]
async fn unknown_sessions_and_wrong_epochs() {
    let target = Target::shared();
    let mut client = target.with_topic("epochs-of-sessions", 2).await;
    let id = open(&mut client, "epochs-of-sessions").await;
    for (request, code) in [
        (incremental(id, 5), 71),
        (incremental(id, 2), 71),
        // Only -1 is without a session.
        (incremental(id, -2), 71),
        (incremental(id, i32::MIN), 71),
        (incremental(0, -2), 70),
        (incremental(id.wrapping_add(12_345), 1), 70),
    ] {
        let response = call(&mut client, &request).await;
        assert_eq!((response.error_code, response.session_id), (code, 0));
        assert!(response.responses.is_empty());
    }
    // A wrong epoch ends nothing: the right one still goes on, once.
    assert_eq!(call(&mut client, &incremental(id, 1)).await.error_code, 0);
    assert_eq!(call(&mut client, &incremental(id, 1)).await.error_code, 71);
    assert_eq!(call(&mut client, &incremental(id, 2)).await.error_code, 0);
    // Epoch -1 closes it.
    let close = fetch_request("epochs-of-sessions", &[(0, 0)]).with_session_id(id);
    let response = call(&mut client, &close).await;
    assert_eq!((response.error_code, response.session_id), (0, 0));
    assert_eq!(indices(&response), [0]);
    assert_eq!(call(&mut client, &incremental(id, 3)).await.error_code, 70);
}

#[tokio::test]
async fn a_session_is_of_names_or_of_ids() {
    let target = Target::shared();
    let mut client = target.with_topic("names-or-ids", 2).await;
    let id = open(&mut client, "names-or-ids").await;
    let by_id = client.call(&incremental(id, 1), 13).await.unwrap();
    assert_eq!(by_id.error_code, 106);
    let topic = topic_id(&mut client, "names-or-ids").await;
    let mut request = fetch_request("", &[(0, 0)]).with_session_epoch(0);
    request.topics[0].topic_id = topic;
    let opened = client.call(&request, 13).await.unwrap();
    assert_ne!(opened.session_id, 0);
    let response = call(&mut client, &incremental(opened.session_id, 1)).await;
    assert_eq!(response.error_code, 106);
}

#[tokio::test]
async fn r19_without_a_slot_there_is_no_session() {
    let target = Target::start(&[("max.incremental.fetch.session.cache.slots", "0")]);
    let mut client = target.with_topic("no-slot", 1).await;
    let request = fetch_request("no-slot", &[(0, 0)]).with_session_epoch(0);
    let response = call(&mut client, &request).await;
    assert_eq!((response.error_code, response.session_id), (0, 0));
    assert_eq!(indices(&response), [0]);
    let none = fetch_request("no-slot", &[(0, 0)]);
    assert_eq!(call(&mut client, &none).await.session_id, 0);
}

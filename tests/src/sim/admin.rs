//! Clients that create, delete and create again, and one that asks for producer ids only.

use gateway::api::{ApiRequest, ApiResponse};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{CreateTopicsRequest, DeleteTopicsRequest};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::clients::{Client, init_producer_id};
use super::net::Connection;
use super::txns;
use crate::raw::ops::topic_name;

/// Requests for producer ids in flight.
const IDS_IN_FLIGHT: usize = 40;

/// Partitions that a topic of this name has: names end with the count.
pub(crate) fn partitions_of(name: &str) -> usize {
    name.rsplit('-')
        .next()
        .map_or(0, |n| n.parse().unwrap_or(0))
}

/// Creates and deletes topics for ever.
pub(crate) async fn churn(client: Client, auto_partitions: u32) {
    // What was asked for when a connection broke is asked for again.
    let mut again: Option<String> = None;
    loop {
        let connection = client.connect().await;
        for _ in 0..=client.world.below(20) {
            let done = match client.world.below(10) {
                0..5 => {
                    let (number, partitions) = (client.world.below(2), client.world.below(2));
                    let fresh = format!("churn-{number}-{}", 1 + partitions);
                    let name = again.take().unwrap_or(fresh);
                    let done = create(&client, &connection, &name).await;
                    again = done.is_none().then_some(name);
                    done
                }
                5..8 => delete(&client, &connection).await,
                8 => {
                    let name = format!("auto-{}-{auto_partitions}", client.world.below(4));
                    observe(&client, &connection, Some(&name), true).await
                }
                _ => observe(&client, &connection, None, false).await,
            };
            if done.is_none() {
                break;
            }
            client.pause(0, 10).await;
        }
    }
}

/// Who reads records of transactions has no naive model of compaction.
const UNCOMPACTED: (&str, &str) = ("cleanup.policy", "delete");

fn config((key, value): (&'static str, &'static str)) -> CreatableTopicConfig {
    CreatableTopicConfig::default()
        .with_name(StrBytes::from_static_str(key))
        .with_value(Some(StrBytes::from_static_str(value)))
}

/// Creates a topic; `None` when the connection broke.
pub(crate) async fn create(client: &Client, connection: &Connection, name: &str) -> Option<i16> {
    let partitions = i32::try_from(partitions_of(name)).unwrap_or(1);
    let topic = CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(1)
        .with_configs(if txns::is_topic(name) {
            vec![config(UNCOMPACTED)]
        } else {
            Vec::new()
        });
    let request = CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(30_000);
    let request = ApiRequest::CreateTopics(Box::new(request));
    let answer = client.ask(connection, request, 7).await?;
    let ApiResponse::CreateTopics(answer) = answer else {
        client.history.violation("another answer to CreateTopics");
        return None;
    };
    let result = answer.topics.first()?;
    client.world.note(&format!(
        "create {name}: {} {} by {}",
        result.error_code, result.topic_id, connection.server
    ));
    match ResponseError::try_from_code(result.error_code) {
        None => client
            .history
            .topic(result.topic_id, name, partitions_of(name)),
        Some(ResponseError::TopicAlreadyExists) => {}
        Some(error) if error.is_retriable() => {}
        Some(error) => {
            let what = format!("CreateTopics {name} was answered with {error:?}");
            client.history.violation(&what);
        }
    }
    Some(result.error_code)
}

async fn delete(client: &Client, connection: &Connection) -> Option<i16> {
    let topics = client.history.topics().into_iter();
    let churned: Vec<(Uuid, String)> = topics
        .filter(|(_, fate)| !fate.deleted && !fate.name.starts_with("main"))
        .map(|(id, fate)| (id, fate.name))
        .collect();
    if churned.is_empty() {
        return Some(0);
    }
    let (id, name) = &churned[client.world.index(churned.len())];
    client.history.deleting(*id);
    let state = DeleteTopicState::default()
        .with_name(None)
        .with_topic_id(*id);
    let request = DeleteTopicsRequest::default()
        .with_topics(vec![state])
        .with_timeout_ms(30_000);
    let request = ApiRequest::DeleteTopics(Box::new(request));
    let answer = client.ask(connection, request, 6).await?;
    let ApiResponse::DeleteTopics(answer) = answer else {
        client.history.violation("another answer to DeleteTopics");
        return None;
    };
    let code = answer.responses.first()?.error_code;
    let server = connection.server;
    client
        .world
        .note(&format!("delete {name} {id}: {code} by {server}"));
    match ResponseError::try_from_code(code) {
        None => client.history.deleted(*id),
        Some(ResponseError::UnknownTopicId) => {}
        Some(error) if error.is_retriable() => {}
        Some(error) => {
            let what = format!("DeleteTopics {name} was answered with {error:?}");
            client.history.violation(&what);
        }
    }
    Some(code)
}

/// Looks at topics as they are; `None` when the connection broke.
async fn observe(
    client: &Client,
    connection: &Connection,
    name: Option<&str>,
    create: bool,
) -> Option<i16> {
    let before = client.history.topics();
    let topics = client.metadata(connection, name, create).await?;
    let newest = client.net.current() == Some(connection.server);
    for topic in topics {
        if topic.error_code != 0 {
            continue;
        }
        let gone = before.get(&topic.topic_id).is_some_and(|fate| fate.deleted);
        if newest && gone {
            let what = format!("topic {} is back after its deletion", topic.topic_id);
            client.history.violation(&what);
        }
        seen(client, &topic);
    }
    Some(0)
}

/// Takes note of a topic in Metadata, which exists whole or not at all.
pub(crate) fn seen(client: &Client, topic: &MetadataResponseTopic) {
    let name = topic.name.as_ref().map_or("", |name| name.as_str());
    client
        .history
        .topic(topic.topic_id, name, topic.partitions.len());
    if topic.partitions.len() != partitions_of(name) {
        let what = format!("topic {name} has {} partitions", topic.partitions.len());
        client.history.violation(&what);
    }
}

/// Asks for producer ids for ever.
pub(crate) async fn ids(client: Client) {
    loop {
        let connection = client.connect().await;
        let mut flights = std::collections::VecDeque::new();
        loop {
            while flights.len() < IDS_IN_FLIGHT {
                match connection.send(init_producer_id(), 4, Vec::new()).await {
                    Ok(wait) => flights.push_back(wait),
                    Err(_) => break,
                }
            }
            let Some(wait) = flights.pop_front() else {
                break;
            };
            match client.answer(wait).await {
                Some(ApiResponse::InitProducerId(answer)) if answer.error_code == 0 => {
                    client.history.session(answer.producer_id.0);
                }
                Some(_) => client.pause(1, 20).await,
                None => break,
            }
            if client.world.chance(10) {
                client.pause(0, 4).await;
            }
        }
    }
}

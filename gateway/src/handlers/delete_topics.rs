//! DeleteTopics (key 20), versions 1 to 6. v5 error messages; v6 by id.
//!
//! Answered when the tombstone is durable; space follows. What is named twice is refused with 42,
//! also by name and by id, and everything with 73 (42 below v3) unless `delete.topic.enable`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

/// A topic by name or by id.
type Named = (Option<TopicName>, Uuid);

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: DeleteTopicsRequest,
) -> Staged<ApiResponse> {
    let (broker, version) = (broker.clone(), context.version);
    let by_state = version >= 6;
    Staged::Later(Box::pin(async move {
        let asked: Vec<Named> = if by_state {
            request
                .topics
                .into_iter()
                .map(|topic| (topic.name, topic.topic_id))
                .collect()
        } else {
            request
                .topic_names
                .into_iter()
                .map(|name| (Some(name), Uuid::nil()))
                .collect()
        };
        let mut response = DeleteTopicsResponse::default();
        let asked = each_once(asked);
        if !broker.config().delete_topics {
            let disabled = asked.into_iter().map(|(named, _)| disabled(named, version));
            response.responses = disabled.collect();
            return ApiResponse::DeleteTopics(Box::new(response));
        }
        let both = named_both_ways(&broker, &asked);
        for ((name, id), times) in asked {
            let result = match both.get(&(name.clone(), id)) {
                _ if times > 1 => refused(name, id, "It is named more than once."),
                Some(Both::Name(id)) => refused(name, *id, "It is named by its id, too."),
                // It is answered under its name.
                Some(Both::Id) => continue,
                None => one(&broker, name, id).await,
            };
            response.responses.push(result);
        }
        ApiResponse::DeleteTopics(Box::new(response))
    }))
}

/// How a topic is named that is named by its name and by its id.
enum Both {
    /// By its name; this is its id.
    Name(Uuid),
    /// By its id.
    Id,
}

fn named_both_ways(broker: &Broker, asked: &[(Named, usize)]) -> BTreeMap<Named, Both> {
    let ids = asked
        .iter()
        .filter(|((name, id), _)| name.is_none() && !id.is_nil());
    let ids: BTreeSet<Uuid> = ids.map(|((_, id), _)| *id).collect();
    let mut both = BTreeMap::new();
    if ids.is_empty() {
        return both;
    }
    for ((name, id), times) in asked {
        let (Some(known), true, 1) = (name, id.is_nil(), times) else {
            continue;
        };
        let found = broker.find_topic(known).ok().map(|topic| topic.id);
        if let Some(found) = found.filter(|found| ids.contains(found)) {
            both.insert((name.clone(), *id), Both::Name(found));
            both.insert((None, found), Both::Id);
        }
    }
    both
}

/// Nothing is deleted here.
fn disabled((name, id): Named, version: i16) -> DeletableTopicResult {
    let mut result = DeletableTopicResult::default();
    result.name = name;
    result.topic_id = id;
    let code = if version >= 3 {
        ResponseError::TopicDeletionDisabled
    } else {
        ResponseError::InvalidRequest
    };
    result.error_code = code.code();
    result.error_message = None;
    result
}

/// What is named, with how often it is.
fn each_once(asked: Vec<Named>) -> Vec<(Named, usize)> {
    let mut times = BTreeMap::new();
    for named in &asked {
        *times.entry(named.clone()).or_insert(0_usize) += 1;
    }
    let once = |named: Named| times.remove(&named).map(|times| (named, times));
    asked.into_iter().filter_map(once).collect()
}

/// As Kafka does: what is named more than once is answered once, and not deleted.
fn refused(name: Option<TopicName>, id: Uuid, why: &'static str) -> DeletableTopicResult {
    let mut result = DeletableTopicResult::default();
    result.name = name;
    result.topic_id = id;
    result.error_code = ResponseError::InvalidRequest.code();
    result.error_message = Some(StrBytes::from_static_str(why));
    result
}

async fn one(broker: &Arc<Broker>, name: Option<TopicName>, id: Uuid) -> DeletableTopicResult {
    let mut result = DeletableTopicResult::default();
    result.topic_id = id;
    let found = match (&name, id.is_nil()) {
        (Some(name), true) => broker.find_topic(name).map_err(error_code::no_topic),
        (None, false) => broker.topic_by_id(id).ok_or(ResponseError::UnknownTopicId),
        _ => Err(ResponseError::InvalidRequest),
    };
    result.name = name;
    let outcome = match found {
        Ok(topic) => {
            result.name = Some(TopicName(topic.name.clone()));
            result.topic_id = topic.id;
            broker
                .delete_topic(topic.id)
                .await
                .map_err(|error| error_code::topic(&error))
        }
        Err(code) => Err(code),
    };
    if let Err(code) = outcome {
        result.error_code = code.code();
        result.error_message = Some(StrBytes::from_string(code.to_string()));
    }
    result
}

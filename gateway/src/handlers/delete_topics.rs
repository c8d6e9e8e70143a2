//! DeleteTopics (key 20), versions 1 to 6. v5 error messages; v6 by id.
//!
//! Answered when the tombstone is durable; space follows. What is named twice is refused with 42.

use std::collections::BTreeMap;
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
    let broker = broker.clone();
    let by_state = context.version >= 6;
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
        for ((name, id), times) in each_once(asked) {
            let result = if times == 1 {
                one(&broker, name, id).await
            } else {
                twice(name, id)
            };
            response.responses.push(result);
        }
        ApiResponse::DeleteTopics(Box::new(response))
    }))
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
fn twice(name: Option<TopicName>, id: Uuid) -> DeletableTopicResult {
    let mut result = DeletableTopicResult::default();
    let what = if name.is_some() { "name" } else { "id" };
    result.name = name;
    result.topic_id = id;
    result.error_code = ResponseError::InvalidRequest.code();
    result.error_message = Some(StrBytes::from_string(format!("Duplicate topic {what}.")));
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

//! DeleteTopics (key 20), versions 1 to 6. v5 error messages; v6 by id.
//!
//! Answered when the tombstone is durable; space follows.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse, TopicName};
use uuid::Uuid;

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: DeleteTopicsRequest,
) -> Staged<ApiResponse> {
    let broker = broker.clone();
    let by_state = context.version >= 6;
    Staged::Later(Box::pin(async move {
        let asked: Vec<(Option<TopicName>, Uuid)> = if by_state {
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
        for (name, id) in asked {
            response.responses.push(one(&broker, name, id).await);
        }
        ApiResponse::DeleteTopics(Box::new(response))
    }))
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
    }
    result
}

//! ListConfigResources (key 74), versions 0 and 1. v0 is about client metrics, v1 about any types.
//!
//! Difference from Kafka: no loggers are listed, because none are described.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::list_config_resources_response::ConfigResource;
use kafka_protocol::messages::{ListConfigResourcesRequest, ListConfigResourcesResponse};
use kafka_protocol::protocol::StrBytes;

use super::config_resource::{BROKER, TOPIC};
use super::{bounded, text};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;

/// What a client may ask for: topics, brokers, loggers of brokers, client metrics, groups.
const TYPES: [i8; 5] = [TOPIC, BROKER, 8, CLIENT_METRICS, 32];
const CLIENT_METRICS: i8 = 16;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: ListConfigResourcesRequest,
) -> Staged<ApiResponse> {
    let types = match context.version {
        0 => vec![CLIENT_METRICS],
        _ if request.resource_types.is_empty() => TYPES.to_vec(),
        _ => request.resource_types,
    };
    bounded(broker, context, move |broker| {
        let mut response = ListConfigResourcesResponse::default();
        if types.iter().all(|asked| TYPES.contains(asked)) {
            response.config_resources = resources(broker, &types);
        } else {
            response.error_code = ResponseError::UnsupportedVersion.code();
        }
        ApiResponse::ListConfigResources(Box::new(response.into()))
    })
}

fn resources(broker: &Broker, types: &[i8]) -> Vec<ConfigResource> {
    let resource = |kind: i8, name: StrBytes| {
        let mut resource = ConfigResource::default();
        resource.resource_type = kind;
        resource.resource_name = name;
        resource
    };
    let mut resources = Vec::new();
    if types.contains(&BROKER) {
        resources.push(resource(BROKER, text(&broker.id().0.to_string())));
    }
    if types.contains(&TOPIC) {
        let topics = broker.topics();
        resources.extend(
            topics
                .iter()
                .map(|topic| resource(TOPIC, topic.name.clone())),
        );
    }
    resources
}

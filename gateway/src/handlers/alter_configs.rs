//! AlterConfigs (key 33), versions 0 to 2: the configs of a resource are what the request says, and
//! no others. Deprecated by Kafka for IncrementalAlterConfigs.
//!
//! What is stored is in force when the answer leaves. What has no mechanism is refused with 40, and
//! so are, with 42, changes of the broker.

use std::sync::Arc;

use kafka_protocol::messages::alter_configs_request::AlterConfigsResource;
use kafka_protocol::messages::alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse};
use kafka_protocol::protocol::StrBytes;

use super::config_resource::{self, Change, Refusal};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    _context: &RequestContext,
    request: AlterConfigsRequest,
) -> Staged<ApiResponse> {
    let broker = broker.clone();
    Staged::Later(Box::pin(async move {
        let named = request.resources.iter();
        let named = named.map(|one| (one.resource_type, &one.resource_name));
        let repeated = config_resource::repeated(named);
        let mut response = AlterConfigsResponse::default();
        for asked in request.resources {
            let mut result = AlterConfigsResourceResponse::default();
            result.resource_type = asked.resource_type;
            result.resource_name = asked.resource_name.clone();
            result.error_message = None;
            let outcome = if repeated.contains(&(asked.resource_type, asked.resource_name.clone()))
            {
                Err(config_resource::once_only())
            } else {
                one(&broker, &asked, request.validate_only).await
            };
            if let Err(refusal) = outcome {
                result.error_code = refusal.code.code();
                result.error_message = Some(StrBytes::from_string(refusal.message));
            }
            response.responses.push(result);
        }
        ApiResponse::AlterConfigs(Box::new(response))
    }))
}

async fn one(
    broker: &Broker,
    asked: &AlterConfigsResource,
    validate_only: bool,
) -> Result<(), Refusal> {
    let entries = asked.configs.iter();
    config_resource::check_entries(entries.map(|entry| (&entry.name, entry.value.is_some())))?;
    let configs = asked.configs.iter().filter_map(|entry| {
        let value = entry.value.as_ref()?;
        Some((entry.name.to_string(), value.to_string()))
    });
    let change = Change::Replace(configs.collect());
    let (kind, name) = (asked.resource_type, &asked.resource_name);
    config_resource::alter(broker, kind, name, change, validate_only).await
}

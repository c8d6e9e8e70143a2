//! IncrementalAlterConfigs (key 44), versions 0 and 1: sets, deletes, and for lists adds and
//! removes entries.
//!
//! What is stored is in force when the answer leaves. What has no mechanism is refused with 40. Of
//! brokers the defaults of topics can be changed; all else is refused with 42.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};
use kafka_protocol::protocol::StrBytes;

use super::config_resource::{self, Change, Refusal};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::topic_config::ConfigOp;

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    _context: &RequestContext,
    request: IncrementalAlterConfigsRequest,
) -> Staged<ApiResponse> {
    let broker = broker.clone();
    Staged::Later(Box::pin(async move {
        let named = request.resources.iter();
        let named = named.map(|one| (one.resource_type, &one.resource_name));
        let repeated = config_resource::repeated(named);
        let mut response = IncrementalAlterConfigsResponse::default();
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
        ApiResponse::IncrementalAlterConfigs(Box::new(response))
    }))
}

async fn one(
    broker: &Broker,
    asked: &AlterConfigsResource,
    validate_only: bool,
) -> Result<(), Refusal> {
    let entries = asked.configs.iter();
    config_resource::check_entries(entries.map(|entry| {
        let has_value = entry.config_operation == DELETE || entry.value.is_some();
        (&entry.name, has_value)
    }))?;
    let operations = asked.configs.iter().map(operation);
    let change = Change::Operations(operations.collect::<Result<_, _>>()?);
    let (kind, name) = (asked.resource_type, &asked.resource_name);
    config_resource::alter(broker, kind, name, change, validate_only).await
}

fn operation(entry: &AlterableConfig) -> Result<(String, ConfigOp), Refusal> {
    let value = entry.value.as_ref().map(ToString::to_string);
    let value = value.unwrap_or_default();
    let op = match entry.config_operation {
        SET => ConfigOp::Set(value),
        DELETE => ConfigOp::Delete,
        APPEND => ConfigOp::Append(value),
        SUBTRACT => ConfigOp::Subtract(value),
        other => {
            let message = format!("{other} is no operation on configs.");
            return Err(Refusal::new(ResponseError::InvalidRequest, message));
        }
    };
    Ok((entry.name.to_string(), op))
}

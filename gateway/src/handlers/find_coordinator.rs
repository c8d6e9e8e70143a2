//! FindCoordinator (key 10), versions 0 to 6. v1 key types; v4 several keys; v6 share groups.
//!
//! Groups and transactional ids have no coordinator yet: 15, which clients retry. Share groups
//! need v6, else 42; an unknown key type is 42.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{BrokerId, FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;

const KEY_TYPE_SHARE: i8 = 2;

pub(crate) fn handle(
    _broker: &Arc<Broker>,
    context: &RequestContext,
    request: &FindCoordinatorRequest,
) -> Staged<ApiResponse> {
    let code = match request.key_type {
        0 | 1 => ResponseError::CoordinatorNotAvailable,
        KEY_TYPE_SHARE if context.version >= 6 => ResponseError::CoordinatorNotAvailable,
        _ => ResponseError::InvalidRequest,
    };
    let message = StrBytes::from_static_str(match code {
        ResponseError::InvalidRequest => "unknown coordinator key type",
        _ => "no coordinator for this key type is running",
    });
    let mut response = FindCoordinatorResponse::default();
    if context.version >= 4 {
        response.coordinators = request
            .coordinator_keys
            .iter()
            .map(|key| {
                let mut coordinator = Coordinator::default();
                coordinator.key = key.clone();
                coordinator.node_id = BrokerId(-1);
                coordinator.port = -1;
                coordinator.error_code = code.code();
                coordinator.error_message = Some(message.clone());
                coordinator
            })
            .collect();
    } else {
        response.node_id = BrokerId(-1);
        response.port = -1;
        response.error_code = code.code();
        response.error_message = Some(message);
    }
    Staged::Now(ApiResponse::FindCoordinator(Box::new(response)))
}

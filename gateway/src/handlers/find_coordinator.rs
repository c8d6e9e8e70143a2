//! FindCoordinator (key 10), versions 0 to 6. v1 key types; v4 several keys; v6 share groups.
//!
//! A group or transactional id is coordinated by the owner of its slot: the answer has the address
//! of the listener that the client used. Where the owner is not known, and for share groups, the
//! answer is 15, which clients retry. Share groups need v6, else 42; an unknown key type is 42.
//!
//! Difference from Kafka: a key that is named twice is answered once.

use std::collections::BTreeSet;
use std::sync::Arc;

use coordinator::service::groups::Route;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{BrokerId, FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;

const KEY_TYPE_GROUP: i8 = 0;
const KEY_TYPE_TRANSACTION: i8 = 1;
const KEY_TYPE_SHARE: i8 = 2;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &FindCoordinatorRequest,
) -> Staged<ApiResponse> {
    let find = |key: &StrBytes| find(broker, context, request.key_type, key);
    let mut response = FindCoordinatorResponse::default();
    if context.version >= 4 {
        let mut seen = BTreeSet::new();
        let keys = request.coordinator_keys.iter();
        let keys = keys.filter(|key| seen.insert(*key));
        response.coordinators = keys.map(find).collect();
    } else {
        let found = find(&request.key);
        response.node_id = found.node_id;
        response.host = found.host;
        response.port = found.port;
        response.error_code = found.error_code;
        response.error_message = found.error_message;
    }
    Staged::Now(ApiResponse::FindCoordinator(Box::new(response)))
}

fn find(broker: &Broker, context: &RequestContext, key_type: i8, key: &StrBytes) -> Coordinator {
    let mut coordinator = Coordinator::default().with_key(key.clone());
    let here = match key_type {
        KEY_TYPE_GROUP => matches!(broker.groups().route(key), Route::Here { .. }),
        KEY_TYPE_TRANSACTION => broker.txns().coordinates(key),
        _ => false,
    };
    let code = match key_type {
        _ if here => {
            let (host, port) = broker.address(context.connection.listener);
            return coordinator
                .with_node_id(BrokerId(broker.id().0))
                .with_host(host)
                .with_port(port)
                .with_error_message(None);
        }
        KEY_TYPE_GROUP | KEY_TYPE_TRANSACTION => ResponseError::CoordinatorNotAvailable,
        KEY_TYPE_SHARE if context.version >= 6 => ResponseError::CoordinatorNotAvailable,
        _ => ResponseError::InvalidRequest,
    };
    let message = match code {
        ResponseError::InvalidRequest => "unknown coordinator key type",
        _ => "no coordinator for this key is running",
    };
    coordinator.node_id = BrokerId(-1);
    coordinator.port = -1;
    coordinator.error_code = code.code();
    coordinator.error_message = Some(StrBytes::from_static_str(message));
    coordinator
}

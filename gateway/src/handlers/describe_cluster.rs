//! DescribeCluster (key 60), versions 0 to 2. v1 endpoint types; v2 fenced brokers, of which a
//! lone broker has none.

use std::sync::Arc;

use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::{BrokerId, DescribeClusterRequest, DescribeClusterResponse};
use kafka_protocol::protocol::StrBytes;

use super::operations;
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;

const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &DescribeClusterRequest,
) -> Staged<ApiResponse> {
    let mut response = DescribeClusterResponse::default();
    response.error_message = None;
    response.cluster_authorized_operations = operations::NOT_GIVEN;
    // Before v1 brokers are the only endpoints.
    let wanted = if context.version >= 1 {
        request.endpoint_type
    } else {
        BROKERS
    };
    match wanted {
        BROKERS => describe(broker, context, request, &mut response),
        CONTROLLERS => refuse(
            &mut response,
            ResponseError::MismatchedEndpointType,
            "The request was sent to an endpoint of brokers, not of controllers.",
        ),
        _ => refuse(
            &mut response,
            ResponseError::UnsupportedEndpointType,
            "There is no such type of endpoint.",
        ),
    }
    Staged::Now(ApiResponse::DescribeCluster(Box::new(response)))
}

fn refuse(response: &mut DescribeClusterResponse, code: ResponseError, why: &'static str) {
    response.error_code = code.code();
    response.error_message = Some(StrBytes::from_static_str(why));
}

fn describe(
    broker: &Broker,
    context: &RequestContext,
    request: &DescribeClusterRequest,
    response: &mut DescribeClusterResponse,
) {
    let (host, port) = broker.address(context.connection.listener);
    let mut this = DescribeClusterBroker::default();
    this.broker_id = BrokerId(broker.id().0);
    this.host = host;
    this.port = port;
    this.rack = None;
    response.brokers.push(this);
    response.endpoint_type = BROKERS;
    response.cluster_id = broker.cluster_id();
    response.controller_id = BrokerId(broker.id().0);
    if request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = operations::CLUSTER;
    }
}

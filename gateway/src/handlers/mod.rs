//! One API key, one file. A handler returns its answer; it never writes to a connection.

pub mod api_versions;
mod create_topics;
mod delete_groups;
mod delete_topics;
mod describe_groups;
mod fetch;
mod find_coordinator;
mod heartbeat;
mod init_producer_id;
mod join_group;
mod leave_group;
mod list_groups;
mod list_offsets;
mod metadata;
mod offset_commit;
mod offset_delete;
mod offset_fetch;
mod produce;
mod sync_group;

use std::sync::Arc;

use kafka_protocol::protocol::StrBytes;

use crate::api::{ApiRequest, ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::features::Features;

/// Runs the first stage of a request.
pub(crate) fn dispatch(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: ApiRequest,
) -> Staged<ApiResponse> {
    match request {
        ApiRequest::Produce(request) => produce::handle(broker, context, *request),
        ApiRequest::Fetch(request) => fetch::handle(broker, context, *request),
        ApiRequest::ListOffsets(request) => list_offsets::handle(broker, context, *request),
        ApiRequest::Metadata(request) => metadata::handle(broker, context, *request),
        ApiRequest::OffsetCommit(request) => offset_commit::handle(broker, context, &request),
        ApiRequest::OffsetFetch(request) => offset_fetch::handle(broker, context, &request),
        ApiRequest::FindCoordinator(request) => find_coordinator::handle(broker, context, &request),
        ApiRequest::JoinGroup(request) => join_group::handle(broker, context, &request),
        ApiRequest::Heartbeat(request) => heartbeat::handle(broker, context, &request),
        ApiRequest::LeaveGroup(request) => leave_group::handle(broker, context, &request),
        ApiRequest::SyncGroup(request) => sync_group::handle(broker, context, &request),
        ApiRequest::DescribeGroups(request) => describe_groups::handle(broker, context, &request),
        ApiRequest::ListGroups(request) => list_groups::handle(broker, context, &request),
        ApiRequest::ApiVersions(request) => {
            let response = api_versions::answer(context, &request, &Features::current());
            Staged::Now(ApiResponse::ApiVersions(Box::new(response)))
        }
        ApiRequest::CreateTopics(request) => create_topics::handle(broker, context, *request),
        ApiRequest::DeleteTopics(request) => delete_topics::handle(broker, context, *request),
        ApiRequest::InitProducerId(request) => init_producer_id::handle(broker, context, &request),
        ApiRequest::DeleteGroups(request) => delete_groups::handle(broker, context, *request),
        ApiRequest::OffsetDelete(request) => offset_delete::handle(broker, context, &request),
    }
}

/// Text for an answer.
fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Text that outlives its request: copied, so that it does not hold the frame.
fn shared_text(text: &StrBytes) -> Arc<str> {
    text.as_str().into()
}

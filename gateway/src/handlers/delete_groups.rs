//! DeleteGroups (key 42), versions 0 to 2. A group with members is refused with 68, one that is not
//! there with 69. Answered when the group's file says that it is gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::{DeleteGroupsRequest, DeleteGroupsResponse};

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    _context: &RequestContext,
    request: DeleteGroupsRequest,
) -> Staged<ApiResponse> {
    let mut seen = BTreeSet::new();
    let mut deletions = Vec::new();
    for group in request.groups_names {
        if seen.insert(group.clone()) {
            // All before the first is waited for: they are written side by side.
            let deletion = broker.offsets().delete_group(&group);
            deletions.push((group, deletion));
        }
    }
    Staged::Later(Box::pin(async move {
        let mut response = DeleteGroupsResponse::default();
        for (group, deletion) in deletions {
            let code = match deletion.await {
                Ok(()) => 0,
                Err(error) => error_code::group(error).code(),
            };
            let result = DeletableGroupResult::default();
            let result = result.with_group_id(group).with_error_code(code);
            response.results.push(result);
        }
        ApiResponse::DeleteGroups(Box::new(response))
    }))
}

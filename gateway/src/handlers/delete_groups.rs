//! DeleteGroups (key 42), versions 0 to 2. A group with members is refused with 68, one that is not
//! there with 69. Answered when the group's file says that it is gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::{DeleteGroupsRequest, DeleteGroupsResponse};

use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

/// Groups that are deleted side by side.
const AT_ONCE: usize = 256;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    _context: &RequestContext,
    request: DeleteGroupsRequest,
) -> Staged<ApiResponse> {
    let broker = broker.clone();
    Staged::Later(Box::pin(async move {
        let mut seen = BTreeSet::new();
        let named = request.groups_names.into_iter();
        let groups: Vec<_> = named.filter(|group| seen.insert(group.clone())).collect();
        let mut response = DeleteGroupsResponse::default();
        for some in groups.chunks(AT_ONCE) {
            // A request has many, and others want this worker.
            tokio::task::yield_now().await;
            // All before the first is waited for: they are written side by side.
            let begun = some
                .iter()
                .map(|group| broker.offsets().delete_group(group));
            let deletions: Vec<_> = begun.collect();
            for (group, deletion) in some.iter().zip(deletions) {
                let code = match deletion.await {
                    Ok(()) => 0,
                    Err(error) => error_code::group(error).code(),
                };
                let result = DeletableGroupResult::default();
                let result = result.with_group_id(group.clone()).with_error_code(code);
                response.results.push(result);
            }
        }
        ApiResponse::DeleteGroups(Box::new(response))
    }))
}

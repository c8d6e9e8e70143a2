//! OffsetCommit (key 8), versions 2 to 9. v5 retention is the broker's; v6 leader epochs; v7 static
//! members.
//!
//! The first stage orders the commit behind those before it; it is answered when the file of the
//! group is fsynced. Metadata that is too long fails its partition alone (12), as does a partition
//! that does not exist (3); everything else is an answer for all partitions.

use std::sync::Arc;

use coordinator::machine::group::GroupError;
use coordinator::machine::group::classic::Caller;
use coordinator::machine::group::offsets::NewOffset;
use coordinator::service::groups::{OffsetCommit, Pending};
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::offset_commit_request::OffsetCommitRequestPartition;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::{OffsetCommitRequest, OffsetCommitResponse};

use super::new_offsets::{self, Asked, Outcomes};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

/// A retention of the client's that means the broker's.
const DEFAULT_RETENTION: i64 = -1;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &OffsetCommitRequest,
) -> Staged<ApiResponse> {
    let mut offsets = Vec::new();
    let topics = request.topics.iter();
    let topics = topics.map(|topic| (&topic.name, topic.partitions.iter().map(asked)));
    let outcomes = new_offsets::judge(broker, topics, &mut offsets);
    if !outcomes.any_exists() {
        return Staged::Now(answer(outcomes, None));
    }
    match commit(broker, context.version, request, offsets) {
        Ok(pending) => Staged::Later(Box::pin(async move {
            let failed = pending.durable().await.err();
            answer(outcomes, failed.map(error_code::group))
        })),
        Err(error) => Staged::Now(answer(outcomes, Some(error_code::group(error)))),
    }
}

fn commit(
    broker: &Broker,
    version: i16,
    request: &OffsetCommitRequest,
    offsets: Vec<NewOffset>,
) -> Result<Pending, GroupError> {
    let retention = request.retention_time_ms;
    let commit = OffsetCommit {
        caller: Caller {
            member_id: &request.member_id,
            instance_id: request.group_instance_id.as_deref(),
        },
        generation: request.generation_id_or_member_epoch,
        offsets,
        retention_ms: (version <= 4 && retention != DEFAULT_RETENTION).then_some(retention),
        missing: if version >= 9 {
            GroupError::GroupIdNotFound
        } else {
            GroupError::IllegalGeneration
        },
    };
    broker.offsets().commit(&request.group_id, commit)
}

fn asked(asked: &OffsetCommitRequestPartition) -> Asked<'_> {
    Asked {
        partition: asked.partition_index,
        offset: asked.committed_offset,
        leader_epoch: asked.committed_leader_epoch,
        metadata: asked.committed_metadata.as_ref(),
    }
}

fn answer(outcomes: Outcomes, failed: Option<ResponseError>) -> ApiResponse {
    let topics = outcomes.codes(failed).map(|(name, codes)| {
        let partitions = codes.map(|(index, code)| {
            OffsetCommitResponsePartition::default()
                .with_partition_index(index)
                .with_error_code(code)
        });
        OffsetCommitResponseTopic::default()
            .with_name(name)
            .with_partitions(partitions.collect())
    });
    let response = OffsetCommitResponse::default().with_topics(topics.collect());
    ApiResponse::OffsetCommit(Box::new(response))
}

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
use kafka_protocol::messages::offset_commit_request::OffsetCommitRequestTopic;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::{OffsetCommitRequest, OffsetCommitResponse, TopicName};

use super::shared_text;
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

/// A retention of the client's that means the broker's.
const DEFAULT_RETENTION: i64 = -1;

/// Partitions by topic, in the order of the request; what fails on its own has its code.
type Outcomes = Vec<(TopicName, Vec<(i32, Option<ResponseError>)>)>;

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &OffsetCommitRequest,
) -> Staged<ApiResponse> {
    let mut offsets = Vec::new();
    let outcomes = judge(broker, &request.topics, &mut offsets);
    let existing = |(_, code): &(i32, Option<ResponseError>)| {
        *code != Some(ResponseError::UnknownTopicOrPartition)
    };
    // Without a partition that exists the group is not asked.
    if !outcomes
        .iter()
        .any(|(_, partitions)| partitions.iter().any(existing))
    {
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

/// What can be said of each partition without its group, and the offsets of those that are good.
fn judge(
    broker: &Broker,
    topics: &[OffsetCommitRequestTopic],
    offsets: &mut Vec<NewOffset>,
) -> Outcomes {
    let metadata_max = broker.config().groups.offsets.metadata_max_bytes;
    let mut outcomes = Outcomes::with_capacity(topics.len());
    for topic in topics {
        let hosted = broker.topic_by_name(&topic.name);
        let name: Arc<str> = shared_text(&topic.name);
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let index = asked.partition_index;
            let exists = |hosted: &&Arc<_>| hosts(hosted, index);
            let metadata = asked.committed_metadata.as_ref();
            let code = match hosted.as_ref().filter(exists) {
                None => Some(ResponseError::UnknownTopicOrPartition),
                Some(_) if metadata.is_some_and(|text| text.len() > metadata_max) => {
                    Some(ResponseError::OffsetMetadataTooLarge)
                }
                Some(hosted) => {
                    offsets.push(NewOffset {
                        topic: Arc::clone(&name),
                        topic_id: hosted.id,
                        partition: index,
                        offset: asked.committed_offset,
                        leader_epoch: Some(asked.committed_leader_epoch).filter(|e| *e >= 0),
                        metadata: metadata.map_or_else(|| "".into(), shared_text),
                    });
                    None
                }
            };
            partitions.push((index, code));
        }
        outcomes.push((topic.name.clone(), partitions));
    }
    outcomes
}

fn hosts(topic: &crate::broker::HostedTopic, partition: i32) -> bool {
    topic.partition(partition).is_some()
}

/// The answer; `failed` is the code of every partition that exists.
fn answer(outcomes: Outcomes, failed: Option<ResponseError>) -> ApiResponse {
    let topics = outcomes.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(|(index, own)| {
            let code = match own {
                Some(ResponseError::UnknownTopicOrPartition) => own,
                own => failed.or(own),
            };
            OffsetCommitResponsePartition::default()
                .with_partition_index(index)
                .with_error_code(code.map_or(0, |code| code.code()))
        });
        OffsetCommitResponseTopic::default()
            .with_name(name)
            .with_partitions(partitions.collect())
    });
    let response = OffsetCommitResponse::default().with_topics(topics.collect());
    ApiResponse::OffsetCommit(Box::new(response))
}

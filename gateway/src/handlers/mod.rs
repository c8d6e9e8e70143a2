//! One API key, one file. A handler returns its answer; it never writes to a connection.

mod add_offsets_to_txn;
mod add_partitions_to_txn;
mod alter_configs;
mod alter_partition_reassignments;
pub mod api_versions;
mod config_resource;
mod consumer_groups;
mod create_partitions;
mod create_topics;
mod delete_groups;
mod delete_records;
mod delete_topics;
mod describe_cluster;
mod describe_configs;
mod describe_groups;
mod describe_log_dirs;
mod describe_producers;
mod describe_topic_partitions;
mod describe_transactions;
mod elect_leaders;
mod end_txn;
mod fetch;
mod find_coordinator;
mod heartbeat;
mod incremental_alter_configs;
mod init_producer_id;
mod join_group;
mod leave_group;
mod list_config_resources;
mod list_groups;
mod list_offsets;
mod list_partition_reassignments;
pub(crate) mod list_transactions;
mod metadata;
mod new_offsets;
mod offset_commit;
mod offset_delete;
mod offset_fetch;
mod offset_for_leader_epoch;
mod operations;
mod produce;
mod sync_group;
mod txn_offset_commit;
mod txn_request;
mod update_features;
mod write_txn_markers;

use std::sync::Arc;

use kafka_protocol::messages as kp;
use kafka_protocol::protocol::StrBytes;
use smallvec::smallvec;
use store_adapter::ids::ProducerId;

use crate::api::{ApiRequest, ApiResponse, CloseReason, RequestContext, Staged};
use crate::broker::Broker;
use crate::order::ADD_OF_BROKERS_FROM;
use crate::turns::{Key, Keys, Turn};
use crate::wire::codec;

/// From this many bytes on an answer is made only when there is room for it.
const ROOM_FROM: usize = 64 << 10;

/// Runs the first stage of a request, in its place among those of its connection.
pub(crate) async fn dispatch(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: ApiRequest,
) -> Staged<ApiResponse> {
    let turn = match in_its_place(context, &request).await {
        Ok(turn) => turn,
        Err(reason) => return Staged::Close(reason),
    };
    let staged = handle(broker, context, request).await;
    match turn {
        Some(turn) => turn.keep(&*broker.env().runtime, context.admitted.clone(), staged),
        None => staged,
    }
}

#[allow(clippy::too_many_lines, reason = "one line for each API")]
async fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: ApiRequest,
) -> Staged<ApiResponse> {
    match request {
        ApiRequest::Produce(request) => produce::handle(broker, context, *request).await,
        ApiRequest::Fetch(request) => fetch::handle(broker, context, &request),
        ApiRequest::ListOffsets(request) => list_offsets::handle(broker, context, *request),
        ApiRequest::Metadata(request) => metadata::handle(broker, context, *request),
        ApiRequest::OffsetCommit(request) => offset_commit::handle(broker, context, &request),
        ApiRequest::OffsetFetch(request) => offset_fetch::handle(broker, context, *request),
        ApiRequest::FindCoordinator(request) => find_coordinator::handle(broker, context, &request),
        ApiRequest::JoinGroup(request) => join_group::handle(broker, context, &request),
        ApiRequest::Heartbeat(request) => heartbeat::handle(broker, context, &request),
        ApiRequest::LeaveGroup(request) => leave_group::handle(broker, context, &request),
        ApiRequest::SyncGroup(request) => sync_group::handle(broker, context, &request),
        ApiRequest::DescribeGroups(request) => describe_groups::handle(broker, context, *request),
        ApiRequest::ConsumerGroupHeartbeat(_) => consumer_groups::heartbeat(),
        ApiRequest::ConsumerGroupDescribe(request) => consumer_groups::describe(*request),
        ApiRequest::ListGroups(request) => list_groups::handle(broker, context, *request),
        ApiRequest::ApiVersions(request) => {
            let response = api_versions::answer(context, &request, &broker.features());
            Staged::Now(ApiResponse::ApiVersions(Box::new(response)))
        }
        ApiRequest::CreateTopics(request) => create_topics::handle(broker, context, *request),
        ApiRequest::DeleteTopics(request) => delete_topics::handle(broker, context, *request),
        ApiRequest::InitProducerId(request) => init_producer_id::handle(broker, context, &request),
        ApiRequest::DeleteRecords(request) => delete_records::handle(broker, context, *request),
        ApiRequest::OffsetForLeaderEpoch(request) => {
            offset_for_leader_epoch::handle(broker, context, *request)
        }
        ApiRequest::AlterConfigs(request) => alter_configs::handle(broker, context, *request),
        ApiRequest::CreatePartitions(request) => {
            create_partitions::handle(broker, context, *request)
        }
        ApiRequest::IncrementalAlterConfigs(request) => {
            incremental_alter_configs::handle(broker, context, *request)
        }
        ApiRequest::ElectLeaders(request) => elect_leaders::handle(broker, context, &request),
        ApiRequest::AlterPartitionReassignments(request) => {
            alter_partition_reassignments::handle(broker, context, &request)
        }
        ApiRequest::ListPartitionReassignments(_) => list_partition_reassignments::handle(),
        ApiRequest::UpdateFeatures(request) => update_features::handle(broker, context, *request),
        ApiRequest::DescribeProducers(request) => {
            describe_producers::handle(broker, context, *request)
        }
        ApiRequest::DescribeConfigs(request) => describe_configs::handle(broker, context, *request),
        ApiRequest::DescribeLogDirs(r) => describe_log_dirs::handle(broker, context, *r),
        ApiRequest::ListConfigResources(r) => list_config_resources::handle(broker, context, *r),
        ApiRequest::DescribeCluster(request) => describe_cluster::handle(broker, context, &request),
        ApiRequest::DescribeTopicPartitions(request) => {
            describe_topic_partitions::handle(broker, context, *request)
        }
        ApiRequest::DeleteGroups(request) => delete_groups::handle(broker, context, *request),
        ApiRequest::OffsetDelete(request) => offset_delete::handle(broker, context, &request),
        ApiRequest::AddPartitionsToTxn(request) => {
            add_partitions_to_txn::handle(broker, context, *request)
        }
        ApiRequest::AddOffsetsToTxn(request) => {
            add_offsets_to_txn::handle(broker, context, &request)
        }
        ApiRequest::EndTxn(request) => end_txn::handle(broker, context, &request),
        ApiRequest::WriteTxnMarkers(request) => {
            write_txn_markers::handle(broker, context, *request)
        }
        ApiRequest::TxnOffsetCommit(request) => {
            txn_offset_commit::handle(broker, context, &request)
        }
        ApiRequest::DescribeTransactions(request) => {
            describe_transactions::handle(broker, &request)
        }
        ApiRequest::ListTransactions(request) => {
            list_transactions::handle(broker, context, *request)
        }
    }
}

/// Waits for what has to be settled before, among requests that overlap, and takes its turn.
/// Produce sees to itself; what stands alone has nothing to wait for.
async fn in_its_place(
    context: &RequestContext,
    request: &ApiRequest,
) -> Result<Option<Turn>, CloseReason> {
    let connection = &context.connection;
    let of_session = |id: &StrBytes, producer: kp::ProducerId| {
        let mut keys: Keys = smallvec![Key::Transaction(shared_text(id))];
        if producer.0 >= 0 {
            keys.push(Key::Producer(ProducerId(producer.0)));
        }
        keys
    };
    let keys: Keys = match request {
        ApiRequest::OffsetCommit(request) => {
            let group = || smallvec![Key::Group(shared_text(&request.group_id))];
            connection.turns.free(group).await?;
            return Ok(None);
        }
        ApiRequest::InitProducerId(request) => {
            let Some(id) = &request.transactional_id else {
                return Ok(None);
            };
            of_session(id, request.producer_id)
        }
        ApiRequest::AddPartitionsToTxn(request) if context.version < ADD_OF_BROKERS_FROM => {
            of_session(
                &request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
            )
        }
        ApiRequest::AddOffsetsToTxn(request) => {
            of_session(&request.transactional_id, request.producer_id)
        }
        ApiRequest::EndTxn(request) => of_session(&request.transactional_id, request.producer_id),
        ApiRequest::TxnOffsetCommit(request) => {
            let mut keys = of_session(&request.transactional_id, request.producer_id);
            keys.push(Key::Group(shared_text(&request.group_id)));
            keys
        }
        _ => return Ok(None),
    };
    Turn::next(connection, keys).await.map(Some)
}

/// The answer that `build` makes. A large one is not kept while it waits for its turn: it is made
/// again then, when the budget for answers has room for it.
fn bounded(
    broker: &Arc<Broker>,
    context: &RequestContext,
    build: impl Fn(&Arc<Broker>) -> ApiResponse + Send + 'static,
) -> Staged<ApiResponse> {
    match small(broker, context.version, &build) {
        Ok(response) => Staged::Now(response),
        Err(bytes) => {
            let broker = Arc::clone(broker);
            Staged::Later(Box::pin(async move { filled(&broker, bytes, build).await }))
        }
    }
}

/// The same for an answer whose turn it is.
async fn in_turn(
    broker: &Arc<Broker>,
    version: i16,
    build: impl Fn(&Arc<Broker>) -> ApiResponse,
) -> ApiResponse {
    match small(broker, version, &build) {
        Ok(response) => response,
        Err(bytes) => filled(broker, bytes, build).await,
    }
}

/// What `build` makes, or if that is large, its bytes.
fn small(
    broker: &Arc<Broker>,
    version: i16,
    build: &impl Fn(&Arc<Broker>) -> ApiResponse,
) -> Result<ApiResponse, usize> {
    let response = build(broker);
    let bytes = codec::body_len(&response, version);
    if bytes < ROOM_FROM {
        Ok(response)
    } else {
        Err(bytes)
    }
}

async fn filled(
    broker: &Arc<Broker>,
    bytes: usize,
    build: impl Fn(&Arc<Broker>) -> ApiResponse,
) -> ApiResponse {
    let room = broker.answers().room(bytes).await;
    let mut response = build(broker);
    response.put_room(room.into());
    response
}

/// Text for an answer.
fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Text that outlives its request: copied, so that it does not hold the frame.
fn shared_text(text: &StrBytes) -> Arc<str> {
    text.as_str().into()
}

//! TxnOffsetCommit (key 28), versions 0 to 5. v2 leader epochs; v3 members; v4 knows 120; v5 adds
//! the group to the transaction (KIP-890).
//!
//! First the transaction is looked at, then the group. Offsets are durable with the group before
//! the answer, and seen by nobody until the transaction commits. A stale epoch is 47 in every
//! version.

use std::sync::Arc;

use coordinator::machine::group::classic::Caller;
use coordinator::machine::group::offsets::{NewOffset, NewTxn};
use coordinator::machine::txn::{Added, Client, Session};
use coordinator::service::groups::Pending;
use kafka_protocol::error::ResponseError;
use kafka_protocol::messages::txn_offset_commit_request::TxnOffsetCommitRequestPartition;
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::{TxnOffsetCommitRequest, TxnOffsetCommitResponse};

use super::new_offsets::{self, Asked, Outcomes};
use super::{shared_text, txn_request};
use crate::api::{ApiResponse, RequestContext, Staged};
use crate::broker::Broker;
use crate::error_code;

/// What is asked, apart from the offsets.
struct Commit {
    version: i16,
    id: Arc<str>,
    session: Session,
    client: Client,
    group: Arc<str>,
    generation: i32,
    member_id: Arc<str>,
    instance_id: Option<Arc<str>>,
}

pub(crate) fn handle(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &TxnOffsetCommitRequest,
) -> Staged<ApiResponse> {
    let mut offsets = Vec::new();
    let topics = request.topics.iter();
    let topics = topics.map(|topic| (&topic.name, topic.partitions.iter().map(asked)));
    let outcomes = new_offsets::judge(broker, topics, &mut offsets);
    if !outcomes.any_exists() {
        return Staged::Now(answer(outcomes, None));
    }
    if request.group_id.is_empty() {
        return Staged::Now(answer(outcomes, Some(ResponseError::InvalidGroupId)));
    }
    let commit = Commit {
        version: context.version,
        id: txn_request::shared_id(&request.transactional_id),
        session: txn_request::session(request.producer_id, request.producer_epoch),
        client: txn_request::client(context),
        group: shared_text(&request.group_id),
        generation: request.generation_id,
        member_id: shared_text(&request.member_id),
        instance_id: request.group_instance_id.as_ref().map(shared_text),
    };
    let broker = broker.clone();
    txn_request::begun(async move {
        let failed = commit.run(&broker, offsets).await.err();
        answer(outcomes, failed)
    })
}

impl Commit {
    async fn run(&self, broker: &Broker, offsets: Vec<NewOffset>) -> Result<(), ResponseError> {
        let txn_seq = self.transaction(broker).await?;
        let of_group = |error| error_code::txn_group(error, self.version);
        let pending = self.stage(broker, txn_seq, offsets)?;
        pending.durable().await.map_err(of_group)
    }

    /// The number of the transaction that has the group.
    async fn transaction(&self, broker: &Broker) -> Result<u64, ResponseError> {
        let (id, session) = (&self.id, self.session);
        let coordinators = broker.coordinators();
        if id.is_empty() {
            return Err(ResponseError::InvalidRequest);
        }
        let refused = |error| error_code::txn_offsets(error, self.version);
        let not_in_txn = || error_code::not_in_txn(self.version);
        if self.version < 5 {
            let verified = coordinators.verify_group(id, session, &self.group).await;
            return verified.map_err(refused)?.ok_or_else(not_in_txn);
        }
        let client = Some(&self.client);
        let added = coordinators.add_groups(id, session, &self.group, client);
        match added.await.map_err(refused)? {
            Added::InTxn(txn_seq) => Ok(txn_seq),
            Added::Missing(_) => Err(not_in_txn()),
        }
    }

    fn stage(
        &self,
        broker: &Broker,
        txn_seq: u64,
        offsets: Vec<NewOffset>,
    ) -> Result<Pending, ResponseError> {
        let caller = Caller {
            member_id: &self.member_id,
            instance_id: self.instance_id.as_deref(),
        };
        let txn = NewTxn {
            producer_id: self.session.pid,
            producer_epoch: self.session.epoch,
            transactional_id: self.id.to_string(),
            txn_seq,
        };
        let offsets = broker
            .offsets()
            .stage(&self.group, caller, self.generation, &txn, offsets);
        offsets
            .map_err(|error| error_code::txn_group(error, self.version))?
            .map_err(|error| error_code::stage(error, self.version))
    }
}

fn asked(asked: &TxnOffsetCommitRequestPartition) -> Asked<'_> {
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
            TxnOffsetCommitResponsePartition::default()
                .with_partition_index(index)
                .with_error_code(code)
        });
        TxnOffsetCommitResponseTopic::default()
            .with_name(name)
            .with_partitions(partitions.collect())
    });
    let response = TxnOffsetCommitResponse::default().with_topics(topics.collect());
    ApiResponse::TxnOffsetCommit(Box::new(response))
}

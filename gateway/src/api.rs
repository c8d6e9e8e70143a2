//! What a request and its answer are between the wire and the handlers.
//!
//! A call has two stages. The future that [`ApiService::call`] returns completes when the request
//! is *ordered*: classified, offsets assigned, queued for commit. Only then is the next request of
//! that connection read; a Produce that waits for a coordinator is ordered while those of other
//! producers are. The answer is a second future inside [`Staged::Later`]; answers leave in
//! request order.
//!
//! Kinds whose first stage gives what they do its place overlap ([`crate::order`]): their second
//! stage makes progress without being polled, and dropping it cancels nothing that was ordered.
//! All others begin when everything before them is settled, and nothing begins before they are;
//! they may do all they do in the second stage.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kafka_protocol::messages as kp;
use kafka_protocol::protocol::StrBytes;
use store_adapter::runtime::BoxFuture;

use crate::admitted::Admitted;
use crate::answer_budget::AnswerRoom;
use crate::turns::Turns;
use crate::wire::fetch::FetchReply;
use crate::wire::wide::Wide;

/// The outcome of the first stage.
pub enum Staged<R> {
    /// Answered.
    Now(R),
    /// Ordered; the answer follows. The request stays counted until it is written.
    Later(BoxFuture<'static, R>),
    /// The same, for an answer that may be long in coming and keeps no byte of the request: it is
    /// counted no more.
    Parked(BoxFuture<'static, R>),
    /// There is no answer (Produce with acks=0).
    Silent,
    /// There is no answer either, but what was ordered may fail yet: then the connection is closed.
    Unsaid(BoxFuture<'static, Option<CloseReason>>),
    /// The connection is closed without an answer.
    Close(CloseReason),
}

impl<R> std::fmt::Debug for Staged<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Now(_) => "Now",
            Self::Later(_) => "Later",
            Self::Parked(_) => "Parked",
            Self::Silent => "Silent",
            Self::Unsaid(_) => "Unsaid",
            Self::Close(_) => "Close",
        })
    }
}

impl<R: Send + 'static> Staged<R> {
    /// Applies `f` to the answer, whenever it comes.
    pub fn map<S: Send + 'static>(self, f: impl FnOnce(R) -> S + Send + 'static) -> Staged<S> {
        match self {
            Self::Now(reply) => Staged::Now(f(reply)),
            Self::Later(reply) => Staged::Later(Box::pin(async move { f(reply.await) })),
            Self::Parked(reply) => Staged::Parked(Box::pin(async move { f(reply.await) })),
            Self::Silent => Staged::Silent,
            Self::Unsaid(outcome) => Staged::Unsaid(outcome),
            Self::Close(reason) => Staged::Close(reason),
        }
    }
}

/// Why a connection is closed without an answer: one log line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// Kafka closes on a version it does not know, except for ApiVersions.
    #[error("unsupported version {version} of api key {key}")]
    UnsupportedVersion {
        /// Api key.
        key: i16,
        /// Version asked for.
        version: i16,
    },
    /// An api key that is not offered.
    #[error("unsupported api key {0}")]
    UnsupportedKey(i16),
    /// The frame guard or the decoder refused the bytes.
    #[error("malformed request: {0}")]
    Malformed(String),
    /// A partition failed in a Produce with acks=0, which has no other way to say so.
    #[error("error in a request without acknowledgement: code {0}")]
    UnacknowledgedError(i16),
    /// The connection ended while the request waited for those before it: it was not ordered.
    #[error("the connection is over")]
    Over,
    /// A defect of ours; the panic text is in the log.
    #[error("internal error")]
    Internal,
}

/// What is fixed for one connection.
#[derive(Debug)]
pub struct ConnectionContext {
    /// A number for logs; unique in the process.
    pub id: u64,
    /// The client's address; `None` in simulation.
    pub peer: Option<SocketAddr>,
    /// The address of ours that it has connected to; `None` in simulation.
    pub local: Option<SocketAddr>,
    /// Index of the listener in the broker's configuration: answers carry its addresses.
    pub listener: usize,
    /// Name and version of the client's software, from ApiVersions v3+.
    pub software: OnceLock<(StrBytes, StrBytes)>,
    /// What requests that are not settled concern.
    pub turns: Turns,
}

/// What a handler knows of its request besides the body.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// The connection.
    pub connection: Arc<ConnectionContext>,
    /// Request version, already within the offered range.
    pub version: i16,
    /// Client id of the header.
    pub client_id: Option<StrBytes>,
    /// When the frame was complete, on the monotonic clock.
    pub received: Duration,
    /// The bytes of the frame in the budget for requests in memory.
    pub admitted: Admitted,
}

/// Where a decoded request goes: the broker in production, a double in tests of the shell.
pub trait ApiService: Clone + Send + Sync + 'static {
    /// Orders the request; the first stage is the returned future. It must not wait for anything
    /// unbounded, because the next request of the connection is read only after it, and it is
    /// never dropped half-way. Its turn (`crate::turns`) may be long in coming: then it is not
    /// ordered once the connection is over.
    fn call(
        &self,
        ctx: RequestContext,
        request: ApiRequest,
    ) -> BoxFuture<'static, Staged<ApiResponse>>;
}

/// One row of the handler list, for ApiVersions and the docs.
#[derive(Debug, Clone)]
pub struct ApiInfo {
    /// Api key.
    pub key: i16,
    /// Kafka's name.
    pub name: &'static str,
    /// Versions that are served.
    pub versions: RangeInclusive<i16>,
    /// Lowest version that ApiVersions claims: Produce claims 0 though 0-2 are refused, because
    /// old librdkafka disables features otherwise (KAFKA-18659).
    pub advertised_min: i16,
    /// Behaviour and differences from Kafka, one line for the docs table.
    pub notes: &'static str,
}

/// The handler list: the only place that knows keys and versions. From it come [`ApiRequest`],
/// [`ApiResponse`], decoding, encoding, dispatch, the ApiVersions answer and the docs table.
///
/// Row: variant, key, served versions, advertised minimum, request type, response type, notes.
#[macro_export]
macro_rules! api_list {
    ($apply:ident) => {
        $apply! {
            Produce, 0, 3..=13, 0, kp::ProduceRequest, kp::ProduceResponse,
                "acks 0, 1 and all; 1 is answered like all. \
v0-2 are advertised and refused, as Kafka does. The first batch of a transaction on a partition \
waits for its coordinator, at most 100 ms.";
            Fetch, 1, 4..=18, 4, kp::FetchRequest, FetchReply,
                "Sessions (KIP-227), long poll, whole batches only; \
stored bytes are sent as they are.";
            ListOffsets, 2, 1..=10, 1, kp::ListOffsetsRequest, kp::ListOffsetsResponse,
                "v11 needs a newer schema than the decoder has; it only adds tiering.";
            Metadata, 3, 0..=13, 0, kp::MetadataRequest, Wide<kp::MetadataResponse>,
                "Topic ids; auto-creation.";
            OffsetCommit, 8, 2..=9, 2, kp::OffsetCommitRequest, kp::OffsetCommitResponse,
                "Answered when it is fsynced; commits of one group share writes.";
            OffsetFetch, 9, 1..=9, 1, kp::OffsetFetchRequest, Wide<kp::OffsetFetchResponse>,
                "Several groups from v8; v10 needs a newer schema than the decoder has.";
            FindCoordinator, 10, 0..=6, 0,
                kp::FindCoordinatorRequest, kp::FindCoordinatorResponse,
                "Groups and transactional ids: the owner of their slot. Share groups: 15.";
            JoinGroup, 11, 0..=9, 0, kp::JoinGroupRequest, kp::JoinGroupResponse,
                "Classic protocol: member ids first (KIP-394), static members (KIP-345), \
skip_assignment (KIP-814).";
            Heartbeat, 12, 0..=4, 0, kp::HeartbeatRequest, kp::HeartbeatResponse,
                "Membership is in memory: after a restart members are told 25 and join again. \
                 So is who names a static member by its id of before, until another takes the \
                 member's place (82).";
            LeaveGroup, 13, 0..=5, 0, kp::LeaveGroupRequest, kp::LeaveGroupResponse,
                "Several members from v3, also by group instance id alone.";
            SyncGroup, 14, 0..=5, 0, kp::SyncGroupRequest, kp::SyncGroupResponse,
                "A request that a later one of the same member replaces is answered with 27; \
Kafka never answers it. Answered when all that was accepted of the group before is durable; \
15 where that fails, as in Kafka.";
            DescribeGroups, 15, 0..=6, 0, kp::DescribeGroupsRequest,
                Wide<kp::DescribeGroupsResponse>,
                "A group that is not there is Dead to v5 and 69 from v6. One whose members a \
restart forgot is in PreparingRebalance for a minute, or until one is back.";
            ListGroups, 16, 0..=5, 0, kp::ListGroupsRequest, Wide<kp::ListGroupsResponse>,
                "By state from v4, by type from v5.";
            ApiVersions, 18, 0..=4, 0, kp::ApiVersionsRequest, kp::ApiVersionsResponse,
                "Unknown versions are answered with 35 in a v0 body (KIP-511).";
            CreateTopics, 19, 2..=7, 2, kp::CreateTopicsRequest, kp::CreateTopicsResponse,
                "Any replication factor is accepted and reported honestly, or as \
`virtual.replicas` says.";
            DeleteTopics, 20, 1..=6, 1, kp::DeleteTopicsRequest, kp::DeleteTopicsResponse,
                "By name, and by id from v6.";
            DeleteRecords, 21, 0..=2, 0, kp::DeleteRecordsRequest, kp::DeleteRecordsResponse,
                "The log's start moves durably; space follows. Topics that are only compacted: 44.";
            InitProducerId, 22, 0..=5, 0,
                kp::InitProducerIdRequest, kp::InitProducerIdResponse,
                "An open transaction is aborted first, which is waited for up to 100 ms before the \
answer is 51. Without a transactional id: a fresh id, epoch 0.";
            OffsetForLeaderEpoch, 23, 2..=4, 2,
                kp::OffsetForLeaderEpochRequest, kp::OffsetForLeaderEpochResponse,
                "The log's batches are the history of epochs.";
            AddPartitionsToTxn, 24, 0..=5, 0,
                kp::AddPartitionsToTxnRequest, kp::AddPartitionsToTxnResponse,
                "v4 and v5 are for brokers: accepted from the own host only, 31 otherwise.";
            AddOffsetsToTxn, 25, 0..=4, 0,
                kp::AddOffsetsToTxnRequest, kp::AddOffsetsToTxnResponse,
                "The group is part of the transaction, durably.";
            EndTxn, 26, 0..=5, 0, kp::EndTxnRequest, kp::EndTxnResponse,
                "Answered when every marker and decision is durable, here or queued; 15 after 2 s, \
and it stays decided.";
            WriteTxnMarkers, 27, 1..=1, 1,
                kp::WriteTxnMarkersRequest, kp::WriteTxnMarkersResponse,
                "From the broker's own host only, 31 otherwise; 51 while the coordinator, of \
whichever broker, has decided and not finished, 6 while one is loading, 15 while one can't be \
asked. v2 needs a newer schema than the decoder has.";
            TxnOffsetCommit, 28, 0..=5, 0,
                kp::TxnOffsetCommitRequest, kp::TxnOffsetCommitResponse,
                "Fsynced before it is answered; seen when the transaction commits.";
            DescribeConfigs, 32, 1..=4, 1,
                kp::DescribeConfigsRequest, Wide<kp::DescribeConfigsResponse>,
                "Topics and this broker, with every config that Kafka lists; \
                 what has no effect says so.";
            AlterConfigs, 33, 0..=2, 0, kp::AlterConfigsRequest, kp::AlterConfigsResponse,
                "Topics and brokers; configs that are not named are as if they had not been set.";
            DescribeLogDirs, 35, 1..=4, 1,
                kp::DescribeLogDirsRequest, Wide<kp::DescribeLogDirsResponse>,
                "The one directory, and the bytes of records in it. v5 needs a newer schema than \
the decoder has; it only adds cordoning.";
            CreatePartitions, 37, 0..=3, 0,
                kp::CreatePartitionsRequest, kp::CreatePartitionsResponse,
                "New partitions are served before the answer.";
            DeleteGroups, 42, 0..=2, 0, kp::DeleteGroupsRequest, kp::DeleteGroupsResponse,
                "A group with members is refused with 68.";
            ElectLeaders, 43, 0..=2, 0, kp::ElectLeadersRequest, kp::ElectLeadersResponse,
                "84: the one broker leads everything that it can.";
            IncrementalAlterConfigs, 44, 0..=1, 0,
                kp::IncrementalAlterConfigsRequest, kp::IncrementalAlterConfigsResponse,
                "Topics, and of brokers the defaults of topics; in force before the answer.";
            AlterPartitionReassignments, 45, 0..=1, 0,
                kp::AlterPartitionReassignmentsRequest, kp::AlterPartitionReassignmentsResponse,
                "Every partition has one replica, this broker.";
            ListPartitionReassignments, 46, 0..=0, 0,
                kp::ListPartitionReassignmentsRequest, kp::ListPartitionReassignmentsResponse,
                "None is ever under way.";
            OffsetDelete, 47, 0..=0, 0, kp::OffsetDeleteRequest, kp::OffsetDeleteResponse,
                "Not of topics that a member is subscribed to: 86.";
            UpdateFeatures, 57, 0..=2, 0,
                kp::UpdateFeaturesRequest, kp::UpdateFeaturesResponse,
                "`transaction.version`, 0 to 2, and `group.version`, 0; durable and in force \
                 before the answer.";
            DescribeCluster, 60, 0..=2, 0,
                kp::DescribeClusterRequest, kp::DescribeClusterResponse,
                "One broker, which is its own controller.";
            DescribeProducers, 61, 0..=0, 0,
                kp::DescribeProducersRequest, Wide<kp::DescribeProducersResponse>,
                "What partitions know of their producers.";
            DescribeTransactions, 65, 0..=0, 0,
                kp::DescribeTransactionsRequest, kp::DescribeTransactionsResponse,
                "Groups as partitions of `__consumer_offsets`; what is owed is shown as prepared.";
            ListTransactions, 66, 0..=2, 0,
                kp::ListTransactionsRequest, kp::ListTransactionsResponse,
                "By state, producer id, from v1 duration, from v2 pattern (KIP-1152).";
            ConsumerGroupHeartbeat, 68, 0..=1, 0,
                kp::ConsumerGroupHeartbeatRequest, kp::ConsumerGroupHeartbeatResponse,
                "35: `group.version` is 0, which only has classic groups; clients say so.";
            ConsumerGroupDescribe, 69, 0..=1, 0,
                kp::ConsumerGroupDescribeRequest, kp::ConsumerGroupDescribeResponse,
                "35 for each group: `group.version` is 0; clients ask DescribeGroups then.";
            ListConfigResources, 74, 0..=1, 0,
                kp::ListConfigResourcesRequest, Wide<kp::ListConfigResourcesResponse>,
                "Topics and this broker: nothing else has configs.";
            DescribeTopicPartitions, 75, 0..=0, 0,
                kp::DescribeTopicPartitionsRequest, Wide<kp::DescribeTopicPartitionsResponse>,
                "Pages of at most 2000 partitions.";
        }
    };
}

macro_rules! define_messages {
    ($($name:ident, $key:literal, $versions:expr, $min:literal, $request:ty, $response:ty,
       $notes:literal;)*) => {
        /// A decoded request.
        #[derive(Debug, Clone)]
        #[allow(missing_docs, reason = "the variants are Kafka's api names")]
        pub enum ApiRequest { $($name(Box<$request>),)* }

        /// A response before encoding.
        #[derive(Debug, Clone)]
        #[allow(missing_docs, reason = "the variants are Kafka's api names")]
        pub enum ApiResponse { $($name(Box<$response>),)* }

        impl ApiRequest {
            /// The api key.
            pub fn key(&self) -> i16 {
                match self { $(Self::$name(_) => $key,)* }
            }
        }

        impl ApiResponse {
            /// The api key.
            pub fn key(&self) -> i16 {
                match self { $(Self::$name(_) => $key,)* }
            }

            /// Kafka's name of the api.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name),)* }
            }
        }

        /// The handler list as data, in order of keys.
        pub fn api_table() -> Vec<ApiInfo> {
            vec![$(ApiInfo {
                key: $key,
                name: stringify!($name),
                versions: $versions,
                advertised_min: $min,
                notes: $notes,
            },)*]
        }
    };
}

api_list!(define_messages);

impl ApiResponse {
    /// What the response holds of the budget for answers, to be kept until it is written.
    pub fn take_room(&mut self) -> AnswerRoom {
        self.room().map(std::mem::take).unwrap_or_default()
    }

    /// Gives the response what it holds of the budget for answers.
    pub(crate) fn put_room(&mut self, room: AnswerRoom) {
        if let Some(place) = self.room() {
            *place = room;
        }
    }

    /// The place for it, in responses that can be large whatever their request was.
    fn room(&mut self) -> Option<&mut AnswerRoom> {
        match self {
            Self::Fetch(reply) => Some(&mut reply.room),
            Self::Metadata(reply) => Some(&mut reply.room),
            Self::OffsetFetch(reply) => Some(&mut reply.room),
            Self::DescribeGroups(reply) => Some(&mut reply.room),
            Self::ListGroups(reply) => Some(&mut reply.room),
            Self::DescribeConfigs(reply) => Some(&mut reply.room),
            Self::DescribeLogDirs(reply) => Some(&mut reply.room),
            Self::ListConfigResources(reply) => Some(&mut reply.room),
            Self::DescribeProducers(reply) => Some(&mut reply.room),
            Self::DescribeTopicPartitions(reply) => Some(&mut reply.room),
            _ => None,
        }
    }
}

//! Codes of groups.

use coordinator::machine::group::GroupError;
use kafka_protocol::error::ResponseError;

/// ConsumerGroupHeartbeat and ConsumerGroupDescribe, as long as `group.version` is 0 and there are
/// only classic groups.
pub const NO_CONSUMER_PROTOCOL: ResponseError = ResponseError::UnsupportedVersion;

/// JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups, DeleteGroups, and
/// whatever else asks a group.
pub fn group(error: GroupError) -> ResponseError {
    match error {
        GroupError::InvalidGroupId => ResponseError::InvalidGroupId,
        GroupError::InvalidSessionTimeout => ResponseError::InvalidSessionTimeout,
        GroupError::UnknownMemberId => ResponseError::UnknownMemberId,
        GroupError::IllegalGeneration => ResponseError::IllegalGeneration,
        GroupError::InconsistentGroupProtocol => ResponseError::InconsistentGroupProtocol,
        GroupError::RebalanceInProgress => ResponseError::RebalanceInProgress,
        GroupError::FencedInstanceId => ResponseError::FencedInstanceId,
        GroupError::MemberIdRequired => ResponseError::MemberIdRequired,
        GroupError::GroupMaxSizeReached => ResponseError::GroupMaxSizeReached,
        GroupError::NonEmptyGroup => ResponseError::NonEmptyGroup,
        GroupError::GroupIdNotFound => ResponseError::GroupIdNotFound,
        GroupError::SubscribedToTopic => ResponseError::GroupSubscribedToTopic,
        GroupError::OffsetsTooLarge => ResponseError::InvalidCommitOffsetSize,
        GroupError::NotCoordinator => ResponseError::NotCoordinator,
        GroupError::CoordinatorLoading => ResponseError::CoordinatorLoadInProgress,
        GroupError::CoordinatorNotAvailable => ResponseError::CoordinatorNotAvailable,
    }
}

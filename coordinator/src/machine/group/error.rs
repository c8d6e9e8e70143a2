//! Why a request of a group is refused. Numbers are chosen at the wire.

/// A reason, by Kafka's name of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum GroupError {
    /// The group id is empty.
    #[error("the group id is empty")]
    InvalidGroupId,
    /// The session timeout is outside of what the broker allows.
    #[error("the session timeout is outside of the allowed range")]
    InvalidSessionTimeout,
    /// No such member, or no such group.
    #[error("unknown member")]
    UnknownMemberId,
    /// The request is of an older or a future generation.
    #[error("not the current generation")]
    IllegalGeneration,
    /// No protocol that every member supports, or another protocol type.
    #[error("no common protocol")]
    InconsistentGroupProtocol,
    /// The group rebalances; the member must rejoin.
    #[error("the group is rebalancing")]
    RebalanceInProgress,
    /// Another process has taken this group instance id over (KIP-345).
    #[error("another member has taken the group instance id over")]
    FencedInstanceId,
    /// Join again with the member id of this answer (KIP-394).
    #[error("join again with the given member id")]
    MemberIdRequired,
    /// `group.max.size` is reached.
    #[error("the group is full")]
    GroupMaxSizeReached,
    /// The group has members.
    #[error("the group has members")]
    NonEmptyGroup,
    /// No such group.
    #[error("no such group")]
    GroupIdNotFound,
    /// A member is subscribed to the topic.
    #[error("a member is subscribed to the topic")]
    SubscribedToTopic,
    /// The group has more offsets and metadata than one file can take.
    #[error("more offsets and metadata than a group can have")]
    OffsetsTooLarge,
    /// This broker does not coordinate the group.
    #[error("another broker coordinates the group")]
    NotCoordinator,
    /// The group's state is being loaded.
    #[error("the group is being loaded")]
    CoordinatorLoading,
    /// The group cannot be served now.
    #[error("the group cannot be served now")]
    CoordinatorNotAvailable,
}

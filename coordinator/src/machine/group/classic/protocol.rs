//! What goes into the machine and what comes out of it.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::super::GroupError;
use super::BYTES_MAX;

/// A member's id: `<client id>-<uuid>`, or `<group instance id>-<uuid>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub Arc<str>);

impl MemberId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for MemberId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for MemberId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A parked request: it is answered later by an [`Answer`] with this number. Unique in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub u64);

/// A protocol that a member supports, and what it tells the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protocol {
    /// Name of the assignor.
    pub name: Arc<str>,
    /// The member's metadata for it.
    pub metadata: Bytes,
}

/// A JoinGroup request.
#[derive(Debug, Clone)]
pub struct Join {
    /// Empty for a member that has none yet.
    pub member_id: Arc<str>,
    /// Group instance id of a static member (KIP-345).
    pub instance_id: Option<Arc<str>>,
    /// Client id of the header.
    pub client_id: Arc<str>,
    /// Where the client is.
    pub client_host: Arc<str>,
    /// A member that is not heard of for so long is removed.
    pub session_timeout_ms: u32,
    /// How long a rebalance waits for this member.
    pub rebalance_timeout_ms: u32,
    /// `consumer`, `connect`, ...
    pub protocol_type: Arc<str>,
    /// In order of preference.
    pub protocols: Vec<Protocol>,
    /// Whether a member without an id is told to come again with one (KIP-394, v4+).
    pub requires_member_id: bool,
    /// Whether the client understands that it leads and must not assign (KIP-814, v9+).
    pub supports_skip_assignment: bool,
    /// Why the client joins (KIP-800).
    pub reason: Option<Arc<str>>,
}

/// Who a request says it comes from.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The member.
    pub member_id: &'a str,
    /// Its group instance id, if it says that it is static.
    pub instance_id: Option<&'a str>,
}

/// A SyncGroup request.
#[derive(Debug, Clone)]
pub struct Sync<'a> {
    /// Who asks.
    pub caller: Caller<'a>,
    /// The generation that it knows.
    pub generation: i32,
    /// The protocol type that it knows, from v5 on.
    pub protocol_type: Option<&'a str>,
    /// The protocol that it knows, from v5 on.
    pub protocol_name: Option<&'a str>,
    /// Of the leader: what each member gets.
    pub assignments: Vec<(Arc<str>, Bytes)>,
}

/// A member that leaves, or is removed by an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving {
    /// Empty when an operator names the group instance id alone.
    pub member_id: Arc<str>,
    /// Group instance id.
    pub instance_id: Option<Arc<str>>,
    /// Why (KIP-800).
    pub reason: Option<Arc<str>>,
}

/// A member as the leader is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its id.
    pub member_id: MemberId,
    /// Its group instance id.
    pub instance_id: Option<Arc<str>>,
    /// Its metadata for the chosen protocol.
    pub metadata: Bytes,
}

/// Most characters of a client's reason that are kept.
const REASON_MAX: usize = 255;

/// A client's reason, for the log.
pub(super) fn reason_told(reason: Option<&str>) -> String {
    let reason = reason.unwrap_or("not provided");
    reason.chars().take(REASON_MAX).collect()
}

/// A successful JoinGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The member's id.
    pub member_id: MemberId,
    /// The generation.
    pub generation: i32,
    /// The group's protocol type.
    pub protocol_type: Option<Arc<str>>,
    /// The protocol that all members support and most prefer.
    pub protocol_name: Option<Arc<str>>,
    /// Who assigns.
    pub leader: MemberId,
    /// The leader keeps the assignment that it finds (KIP-814).
    pub skip_assignment: bool,
    /// All members, for the leader alone.
    pub members: Vec<JoinedMember>,
}

/// A refused JoinGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRefused {
    /// The reason.
    pub error: GroupError,
    /// The member id of the answer: the one to come again with where that is the reason.
    pub member_id: Arc<str>,
}

/// The answer to a JoinGroup.
pub type JoinReply = Result<Joined, JoinRefused>;

/// A successful SyncGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synced {
    /// The group's protocol type.
    pub protocol_type: Option<Arc<str>>,
    /// The protocol in force.
    pub protocol_name: Option<Arc<str>>,
    /// What the member gets.
    pub assignment: Bytes,
}

/// The answer to a SyncGroup.
pub type SyncReply = Result<Synced, GroupError>;

/// The outcome of a request that may have to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Staged<R> {
    /// Answered.
    Now(R),
    /// Answered later, perhaps by the effects of this very call.
    Parked(Token),
}

/// The answer to a parked request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Of a JoinGroup.
    Join(Token, JoinReply),
    /// Of a SyncGroup.
    Sync(Token, SyncReply),
}

/// What happened, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// A rebalance begins.
    Rebalancing {
        /// The generation that ends.
        generation: i32,
        /// Why.
        reason: String,
    },
    /// Every member that came back is in the new generation.
    Generation {
        /// Its number.
        generation: i32,
        /// How many members it has.
        members: usize,
    },
    /// The assignment is known.
    Stable {
        /// The generation.
        generation: i32,
    },
    /// The last member is gone.
    Empty {
        /// The generation.
        generation: i32,
    },
    /// A member was removed.
    Removed {
        /// Who.
        member: MemberId,
        /// Why.
        reason: String,
    },
    /// A static member came back under a new member id.
    Replaced {
        /// Its group instance id.
        instance_id: Arc<str>,
        /// The id that is fenced now.
        old: MemberId,
        /// The id of now.
        new: MemberId,
    },
    /// A leader left members without an assignment.
    Unassigned {
        /// The generation.
        generation: i32,
        /// How many.
        members: usize,
    },
}

/// What the caller has to do once the machine has decided.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use]
pub struct Effects {
    /// Parked requests that are answered now.
    pub answers: Vec<Answer>,
    /// What to log.
    pub facts: Vec<Fact>,
}

/// What of the configuration the machine needs.
#[derive(Debug, Clone)]
pub struct ClassicConfig {
    /// `group.initial.rebalance.delay.ms`.
    pub initial_rebalance_delay_ms: u32,
    /// `group.min.session.timeout.ms`.
    pub min_session_timeout_ms: u32,
    /// `group.max.session.timeout.ms`.
    pub max_session_timeout_ms: u32,
    /// `group.max.size`.
    pub max_size: usize,
    /// What the members of one group may take in memory, bytes.
    pub bytes_max: usize,
}

impl Default for ClassicConfig {
    /// Kafka's defaults, and a bound that Kafka has not.
    fn default() -> Self {
        Self {
            initial_rebalance_delay_ms: 3_000,
            min_session_timeout_ms: 6_000,
            max_session_timeout_ms: 1_800_000,
            max_size: 2_147_483_647,
            bytes_max: BYTES_MAX,
        }
    }
}

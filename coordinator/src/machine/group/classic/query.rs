//! What others may ask of a group.

use std::sync::Arc;

use bytes::Bytes;

use super::{Caller, ClassicGroup, ClassicState, MemberId};
use crate::machine::group::{GroupError, Now};

/// A group as DescribeGroups shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Its state.
    pub state: ClassicState,
    /// `consumer`, `connect`, ...; none if it never had a member.
    pub protocol_type: Option<Arc<str>>,
    /// The protocol in force, of a stable group alone.
    pub protocol_name: Option<Arc<str>>,
    /// Its members.
    pub members: Vec<DescribedMember>,
}

/// A member as DescribeGroups shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescribedMember {
    /// Its id.
    pub member_id: MemberId,
    /// Its group instance id.
    pub instance_id: Option<Arc<str>>,
    /// Client id.
    pub client_id: Arc<str>,
    /// Where it is.
    pub client_host: Arc<str>,
    /// Its metadata for the protocol in force, of a stable group alone.
    pub metadata: Bytes,
    /// What it was assigned.
    pub assignment: Bytes,
}

impl ClassicGroup {
    /// The state.
    pub fn state(&self) -> ClassicState {
        self.state
    }

    /// The generation; 0 before the first.
    pub fn generation(&self) -> i32 {
        self.generation
    }

    /// The protocol type; none if the group never had a member.
    pub fn protocol_type(&self) -> Option<&Arc<str>> {
        self.protocol_type.as_ref()
    }

    /// Since when the group has had no members, in ms since the Unix epoch; `None` if it has some.
    pub fn empty_since(&self) -> Option<i64> {
        (self.state == ClassicState::Empty).then_some(self.since_ms)
    }

    /// Whether the members are consumers of topics.
    pub fn uses_consumer_protocol(&self) -> bool {
        self.protocol_type.as_deref() == Some("consumer")
    }

    /// Whether a member consumes `topic`, or may.
    pub fn is_subscribed_to(&self, topic: &str) -> bool {
        match &self.subscribed {
            Some(topics) => topics.contains(topic),
            None => self.uses_consumer_protocol(),
        }
    }

    /// Whether it is known which topics the members consume: retention needs to know.
    pub fn knows_subscriptions(&self) -> bool {
        self.subscribed.is_some()
    }

    /// Whether the group may be deleted.
    pub fn can_delete(&self) -> Result<(), GroupError> {
        match self.state {
            ClassicState::Dead => Err(GroupError::GroupIdNotFound),
            ClassicState::Empty => Ok(()),
            _ => Err(GroupError::NonEmptyGroup),
        }
    }

    /// Whether offsets of the group may be deleted; those of subscribed topics never.
    pub fn can_delete_offsets(&self) -> Result<(), GroupError> {
        match self.state {
            ClassicState::Dead => Err(GroupError::GroupIdNotFound),
            ClassicState::Empty => Ok(()),
            _ if self.uses_consumer_protocol() => Ok(()),
            _ => Err(GroupError::NonEmptyGroup),
        }
    }

    /// What the group takes in memory, bytes, about.
    pub fn bytes(&self) -> usize {
        self.members.bytes()
    }

    /// Whether nothing but its generation would be lost with it: no members, none expected.
    pub fn can_forget(&self) -> bool {
        let gone = matches!(self.state, ClassicState::Empty | ClassicState::Dead);
        gone && self.pending.is_empty()
    }

    /// Whether the caller may commit offsets. `generation` is negative for a consumer that uses
    /// the group for its offsets alone.
    pub fn check_commit(&self, caller: Caller<'_>, generation: i32) -> Result<(), GroupError> {
        self.check_member_or_simple(caller, generation)?;
        let simple = is_simple(caller, generation);
        if simple && self.state != ClassicState::Empty {
            return Err(GroupError::UnknownMemberId);
        }
        if self.state == ClassicState::CompletingRebalance {
            return Err(GroupError::RebalanceInProgress);
        }
        Ok(())
    }

    /// Whether the caller may add offsets to a transaction: also before the generation is
    /// complete, and also for a producer that names no member.
    pub fn check_txn_commit(&self, caller: Caller<'_>, generation: i32) -> Result<(), GroupError> {
        self.check_member_or_simple(caller, generation)
    }

    /// A commit shows that the member is there: gives it its session timeout again.
    pub fn touch(&mut self, member_id: &str, now: Now) {
        let alive = matches!(
            self.state,
            ClassicState::Stable | ClassicState::PreparingRebalance
        );
        if alive {
            self.restart_session(member_id, now);
        }
    }

    fn check_member_or_simple(
        &self,
        caller: Caller<'_>,
        generation: i32,
    ) -> Result<(), GroupError> {
        if self.state == ClassicState::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        let no_generation = generation < 0 && self.state == ClassicState::Empty;
        if no_generation || is_simple(caller, generation) {
            return Ok(());
        }
        self.validate(caller)?;
        if generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        Ok(())
    }

    /// Whether the caller is the member that it says, and not fenced. Where nobody took the place
    /// of an instance in this process, another id is the one that it had before this process: what
    /// a client sent with it, and sends again, does not say that there are two of it.
    pub(super) fn validate(&self, caller: Caller<'_>) -> Result<(), GroupError> {
        if let Some(instance) = caller.instance_id {
            let id = self.members.by_instance(instance);
            let id = id.ok_or(GroupError::UnknownMemberId)?;
            if id.as_str() != caller.member_id {
                let member = self.members.get(id.as_str());
                let former = self.had_members && !member.is_some_and(|m| m.is_renamed);
                return Err(if former {
                    GroupError::UnknownMemberId
                } else {
                    GroupError::FencedInstanceId
                });
            }
        }
        if self.members.contains(caller.member_id) {
            Ok(())
        } else {
            Err(GroupError::UnknownMemberId)
        }
    }

    /// What the group looks like.
    pub fn describe(&self) -> Described {
        let stable = self.state == ClassicState::Stable;
        let protocol = self.protocol_name.as_deref().filter(|_| stable);
        let members = self.members.iter().map(|member| DescribedMember {
            member_id: member.id.clone(),
            instance_id: member.instance_id.clone(),
            client_id: Arc::clone(&member.client_id),
            client_host: Arc::clone(&member.client_host),
            metadata: member.metadata(protocol),
            assignment: member.assignment().clone(),
        });
        Described {
            state: self.state,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol_name.clone().filter(|_| stable),
            members: members.collect(),
        }
    }
}

/// Whether the request is of a consumer outside of membership.
fn is_simple(caller: Caller<'_>, generation: i32) -> bool {
    generation < 0 && caller.member_id.is_empty() && caller.instance_id.is_none()
}

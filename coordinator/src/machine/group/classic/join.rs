//! JoinGroup.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::member::Member;
use super::protocol::reason_told;
use super::timers::TimerKey;
use super::{
    Answer, Caller, ClassicConfig, ClassicGroup, ClassicState, Effects, Fact, Join, JoinRefused,
    JoinReply, Joined, JoinedMember, MemberId, NEW_MEMBER_JOIN_TIMEOUT_MS, Protocol, Staged, Turn,
};
use crate::machine::group::{GroupError, Now};

impl ClassicGroup {
    /// A member joins, or joins again. `unique` gives the part of a new member id that nobody ever
    /// had. The caller has checked group id and session timeout.
    pub fn join(
        &mut self,
        config: &ClassicConfig,
        mut join: Join,
        unique: &mut dyn FnMut() -> String,
        now: Now,
    ) -> (Staged<JoinReply>, Effects) {
        without_repeats(&mut join.protocols);
        let mut turn = Turn::new(config, now);
        let staged = self.join_in(&join, unique, &mut turn);
        (staged, turn.effects)
    }

    fn join_in(
        &mut self,
        join: &Join,
        unique: &mut dyn FnMut() -> String,
        turn: &mut Turn<'_>,
    ) -> Staged<JoinReply> {
        let is_new = join.member_id.is_empty();
        if !self.accepts(&join.member_id, turn.config) {
            self.remove(&join.member_id, turn);
            self.maybe_complete_join(turn);
            return refused(GroupError::GroupMaxSizeReached, "");
        }
        // The id of the answer to a new member is empty: it has none.
        if self.state == ClassicState::Dead {
            return refused(GroupError::CoordinatorNotAvailable, &join.member_id);
        }
        if !self.supports(join) {
            return refused(GroupError::InconsistentGroupProtocol, &join.member_id);
        }
        // A member that is there stays until its session ends: it may come back as it was.
        if !self.fits(join, turn.config) {
            return refused(GroupError::GroupMaxSizeReached, "");
        }
        if is_new {
            self.join_new(join, unique, turn)
        } else {
            self.join_existing(join, turn)
        }
    }

    /// Whether there is room for the member. During a join phase those who are back are counted:
    /// of too many members the last to come back are turned away.
    fn accepts(&self, member_id: &str, config: &ClassicConfig) -> bool {
        match self.state {
            ClassicState::Empty | ClassicState::Dead => true,
            ClassicState::PreparingRebalance => {
                let member = self.members.get(member_id);
                member.is_some_and(Member::waits_in_join)
                    || self.members.parked_join() < config.max_size
            }
            ClassicState::CompletingRebalance | ClassicState::Stable => {
                self.members.contains(member_id) || self.members.len() < config.max_size
            }
        }
    }

    /// Whether the group's members, with this one as it is now, take no more than they may.
    fn fits(&self, join: &Join, config: &ClassicConfig) -> bool {
        let grows = self.join_growth(join);
        grows == 0 || self.members.bytes().saturating_add(grows) <= config.bytes_max
    }

    /// How many bytes more the members take with a join, about.
    pub fn join_growth(&self, join: &Join) -> usize {
        let instance = join.instance_id.as_ref();
        let before = self.members.get(&join.member_id).or_else(|| {
            let id = self.members.by_instance(instance?)?;
            self.members.get(id.as_str())
        });
        let before = before.map_or(0, Member::joined_bytes);
        Member::bytes_of(join).saturating_sub(before)
    }

    fn supports(&self, join: &Join) -> bool {
        if self.state == ClassicState::Empty {
            return !join.protocol_type.is_empty() && !join.protocols.is_empty();
        }
        self.protocol_type.as_ref() == Some(&join.protocol_type)
            && self.members.support_any(&join.protocols)
    }

    fn join_new(
        &mut self,
        join: &Join,
        unique: &mut dyn FnMut() -> String,
        turn: &mut Turn<'_>,
    ) -> Staged<JoinReply> {
        let prefix = join.instance_id.as_ref().unwrap_or(&join.client_id);
        let id = MemberId(format!("{prefix}-{}", unique()).into());
        let known = join.instance_id.as_ref();
        let known = known.and_then(|instance| self.members.by_instance(instance).cloned());
        if let Some(old) = known {
            return self.replace_static(join, &old, &id, turn);
        }
        if join.instance_id.is_none() && join.requires_member_id {
            let key = TimerKey::Session(id.clone());
            self.timers
                .set(key, turn.now.mono_ms, join.session_timeout_ms);
            let reply = refused(GroupError::MemberIdRequired, id.as_str());
            self.pending.insert(id);
            while let Some(oldest) = self.pending.evict() {
                self.timers.cancel(TimerKey::Session(oldest));
            }
            return reply;
        }
        self.add(id, join, turn)
    }

    fn join_existing(&mut self, join: &Join, turn: &mut Turn<'_>) -> Staged<JoinReply> {
        let id = MemberId(Arc::clone(&join.member_id));
        if self.pending.contains(&id) {
            // An id of a pending member was given to one that is not static.
            if join.instance_id.is_some() {
                return refused(GroupError::UnknownMemberId, id.as_str());
            }
            return self.add(id, join, turn);
        }
        let caller = Caller {
            member_id: &join.member_id,
            instance_id: join.instance_id.as_deref(),
        };
        if let Err(error) = self.validate(caller) {
            return refused(error, id.as_str());
        }
        let member = self.members.get(id.as_str());
        let same = member.is_some_and(|member| member.matches(&join.protocols));
        let leads = self.leader.as_ref() == Some(&id);
        match self.state {
            ClassicState::PreparingRebalance => self.rejoin(&id, join, "joins again", turn),
            // It has not received the answer: this is the same one again.
            ClassicState::CompletingRebalance if same => Staged::Now(Ok(self.joined(&id, leads))),
            // The leader may know of a change that no metadata shows.
            ClassicState::Stable if leads => self.rejoin(&id, join, "the leader joins again", turn),
            ClassicState::Stable if same => Staged::Now(Ok(self.joined(&id, false))),
            ClassicState::CompletingRebalance | ClassicState::Stable => {
                self.rejoin(&id, join, "a member's metadata changed", turn)
            }
            ClassicState::Empty | ClassicState::Dead => {
                refused(GroupError::UnknownMemberId, id.as_str())
            }
        }
    }

    fn add(&mut self, id: MemberId, join: &Join, turn: &mut Turn<'_>) -> Staged<JoinReply> {
        if self.members.is_empty() {
            self.protocol_type = Some(Arc::clone(&join.protocol_type));
        }
        if self.state == ClassicState::PreparingRebalance {
            self.new_member_added = true;
        }
        self.pending.remove(&id);
        self.leader.get_or_insert_with(|| id.clone());
        self.members.insert(Member::new(id.clone(), join));
        let token = self.token();
        self.members.set_parked_join(id.as_str(), Some(token));
        let key = TimerKey::Session(id);
        self.timers
            .set(key, turn.now.mono_ms, NEW_MEMBER_JOIN_TIMEOUT_MS);
        let reason = reason_told(join.reason.as_deref());
        self.rebalance_or_complete(format!("a new member joins: {reason}"), turn);
        Staged::Parked(token)
    }

    fn rejoin(
        &mut self,
        id: &MemberId,
        join: &Join,
        why: &str,
        turn: &mut Turn<'_>,
    ) -> Staged<JoinReply> {
        let token = self.park_join(id, join, turn);
        let reason = reason_told(join.reason.as_deref());
        self.rebalance_or_complete(format!("{why}: {reason}"), turn);
        Staged::Parked(token)
    }

    /// Parks a join of a member; one that it waits in already is refused.
    fn park_join(&mut self, id: &MemberId, join: &Join, turn: &mut Turn<'_>) -> super::Token {
        self.members.update(id.as_str(), join);
        let token = self.token();
        if let Some(old) = self.members.set_parked_join(id.as_str(), Some(token)) {
            let refused = JoinRefused {
                error: GroupError::RebalanceInProgress,
                member_id: Arc::clone(&id.0),
            };
            turn.answer(Answer::Join(old, Err(refused)));
        }
        token
    }

    /// A static member came back without its id: it goes on under a new one (KIP-345).
    fn replace_static(
        &mut self,
        join: &Join,
        old: &MemberId,
        new: &MemberId,
        turn: &mut Turn<'_>,
    ) -> Staged<JoinReply> {
        self.refuse_parked(old, GroupError::FencedInstanceId, Arc::clone(&old.0), turn);
        self.timers.cancel(TimerKey::Session(old.clone()));
        self.members.rename(old.as_str(), new);
        if self.pending_sync.remove(old) {
            self.pending_sync.insert(new.clone());
        }
        let old_leader = self.leader.clone();
        if old_leader.as_ref() == Some(old) {
            self.leader = Some(new.clone());
        }
        if let Some(member) = self.members.get_mut(new.as_str()) {
            // It gets an answer with its id at once, or by a rebalance that waits for it.
            member.is_new = false;
        }
        turn.fact(Fact::Replaced {
            instance_id: join.instance_id.clone().unwrap_or_default(),
            old: old.clone(),
            new: new.clone(),
        });
        if self.state == ClassicState::Stable {
            self.members.update(new.as_str(), join);
            let elected = self.members.elect_protocol(self.leader.as_ref());
            if self.protocol_name == elected {
                self.restart_session(new.as_str(), turn.now);
                return Staged::Now(Ok(self.rejoined_static(join, new, old_leader)));
            }
        }
        let token = self.park_join(new, join, turn);
        self.restart_session(new.as_str(), turn.now);
        self.rebalance_or_complete("a static member came back".to_owned(), turn);
        Staged::Parked(token)
    }

    /// The answer to a static member that came back while nothing has to change. A client that
    /// cannot be told to skip the assignment (before v9) is told the leader of before, so that it
    /// does not assign.
    fn rejoined_static(&self, join: &Join, id: &MemberId, old_leader: Option<MemberId>) -> Joined {
        let leads = self.leader.as_ref() == Some(id);
        if join.supports_skip_assignment {
            return Joined {
                skip_assignment: leads,
                ..self.joined(id, leads)
            };
        }
        let joined = self.joined(id, false);
        Joined {
            leader: old_leader.unwrap_or_else(|| "".into()),
            ..joined
        }
    }

    /// The answer of the current generation.
    pub(super) fn joined(&self, id: &MemberId, with_members: bool) -> Joined {
        let protocol = self.protocol_name.as_deref();
        let members = self.members.iter().map(|member| JoinedMember {
            member_id: member.id.clone(),
            instance_id: member.instance_id.clone(),
            metadata: member.metadata(protocol),
        });
        Joined {
            member_id: id.clone(),
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol_name.clone(),
            leader: self.leader.clone().unwrap_or_else(|| "".into()),
            skip_assignment: false,
            members: if with_members {
                members.collect()
            } else {
                Vec::new()
            },
        }
    }
}

fn refused(error: GroupError, member_id: &str) -> Staged<JoinReply> {
    Staged::Now(Err(JoinRefused {
        error,
        member_id: member_id.into(),
    }))
}

/// Of protocols with one name, the first counts.
fn without_repeats(protocols: &mut Vec<Protocol>) {
    let mut seen = BTreeSet::new();
    protocols.retain(|protocol| seen.insert(Arc::clone(&protocol.name)));
}

//! SyncGroup, Heartbeat, LeaveGroup.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::protocol::reason_told;
use super::timers::TimerKey;
use super::{
    Answer, Caller, ClassicConfig, ClassicGroup, ClassicState, Effects, Fact, Leaving, MemberId,
    Staged, Sync, SyncReply, Synced, Turn,
};
use crate::machine::group::{GroupError, Now};

impl ClassicGroup {
    /// A member asks for its assignment; the leader brings everyone's.
    pub fn sync(
        &mut self,
        config: &ClassicConfig,
        sync: Sync<'_>,
        now: Now,
    ) -> (Staged<SyncReply>, Effects) {
        let mut turn = Turn::new(config, now);
        let staged = match self.check_sync(&sync) {
            Ok(()) => self.sync_in(sync, &mut turn),
            Err(error) => Staged::Now(Err(error)),
        };
        (staged, turn.effects)
    }

    /// How many bytes more the members take with what the leader brings, about.
    pub fn sync_growth(&self, sync: &Sync<'_>) -> usize {
        let brought = sync.assignments.iter();
        let brought: usize = brought.map(|(_, assignment)| assignment.len()).sum();
        brought.saturating_sub(self.members.assigned_bytes())
    }

    fn check_sync(&self, sync: &Sync<'_>) -> Result<(), GroupError> {
        match self.state {
            ClassicState::Dead => return Err(GroupError::CoordinatorNotAvailable),
            ClassicState::Empty => return Err(GroupError::UnknownMemberId),
            _ => {}
        }
        self.validate(sync.caller)?;
        if sync.generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        let differs = |told: Option<&str>, have: &Option<Arc<str>>| {
            let both = told.zip(have.as_deref());
            both.is_some_and(|(told, have)| told != have)
        };
        if differs(sync.protocol_type, &self.protocol_type)
            || differs(sync.protocol_name, &self.protocol_name)
        {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        Ok(())
    }

    fn sync_in(&mut self, sync: Sync<'_>, turn: &mut Turn<'_>) -> Staged<SyncReply> {
        let id = sync.caller.member_id;
        match self.state {
            ClassicState::CompletingRebalance => {
                let token = self.token();
                let member = self.members.get_mut(id);
                let old = member.and_then(|member| member.parked_sync.replace(token));
                if let Some(old) = old {
                    turn.answer(Answer::Sync(old, Err(GroupError::RebalanceInProgress)));
                }
                self.has_synced(id);
                let leads = self.leader.as_ref().is_some_and(|l| l.as_str() == id);
                if leads {
                    self.assign(sync.assignments, turn);
                }
                Staged::Parked(token)
            }
            ClassicState::Stable => {
                self.has_synced(id);
                Staged::Now(Ok(self.synced(id)))
            }
            ClassicState::PreparingRebalance => Staged::Now(Err(GroupError::RebalanceInProgress)),
            ClassicState::Empty | ClassicState::Dead => {
                Staged::Now(Err(GroupError::UnknownMemberId))
            }
        }
    }

    fn has_synced(&mut self, id: &str) {
        self.pending_sync.remove(id);
        if self.pending_sync.is_empty() {
            self.timers.cancel(TimerKey::Sync);
        }
    }

    fn assign(&mut self, assignments: Vec<(Arc<str>, Bytes)>, turn: &mut Turn<'_>) {
        let mut assignments: BTreeMap<Arc<str>, Bytes> = assignments.into_iter().collect();
        let mut unassigned = 0;
        for id in self.members.ids() {
            let assignment = assignments.remove(&id.0);
            unassigned += usize::from(assignment.is_none());
            self.members
                .assign(id.as_str(), assignment.unwrap_or_default());
        }
        if unassigned > 0 {
            turn.fact(Fact::Unassigned {
                generation: self.generation,
                members: unassigned,
            });
        }
        self.propagate(None, turn);
        self.enter(ClassicState::Stable, turn.now);
        turn.fact(Fact::Stable {
            generation: self.generation,
        });
    }

    pub(super) fn synced(&self, id: &str) -> Synced {
        let member = self.members.get(id);
        Synced {
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol_name.clone(),
            assignment: member.map(|m| m.assignment().clone()).unwrap_or_default(),
        }
    }

    /// A member is there.
    pub fn heartbeat(
        &mut self,
        caller: Caller<'_>,
        generation: i32,
        now: Now,
    ) -> Result<(), GroupError> {
        if self.state == ClassicState::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        self.validate(caller)?;
        if generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        self.restart_session(caller.member_id, now);
        match self.state {
            ClassicState::PreparingRebalance => Err(GroupError::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    /// Members leave, or are removed; an outcome for each, in order.
    pub fn leave(
        &mut self,
        config: &ClassicConfig,
        leaving: &[Leaving],
        now: Now,
    ) -> (Result<Vec<Result<(), GroupError>>, GroupError>, Effects) {
        if self.state == ClassicState::Dead {
            let refused = Err(GroupError::CoordinatorNotAvailable);
            return (refused, Effects::default());
        }
        let mut turn = Turn::new(config, now);
        let outcomes: Vec<_> = leaving
            .iter()
            .map(|leaving| self.leave_one(leaving, &mut turn))
            .collect();
        if outcomes.iter().any(Result::is_ok) {
            match self.state {
                ClassicState::Stable | ClassicState::CompletingRebalance => {
                    self.rebalance_or_complete("members left".to_owned(), &mut turn);
                }
                ClassicState::PreparingRebalance => self.maybe_complete_join(&mut turn),
                ClassicState::Empty | ClassicState::Dead => {}
            }
        }
        (Ok(outcomes), turn.effects)
    }

    fn leave_one(&mut self, leaving: &Leaving, turn: &mut Turn<'_>) -> Result<(), GroupError> {
        let instance = leaving.instance_id.as_deref();
        let id = if leaving.member_id.is_empty() {
            let found = instance.and_then(|instance| self.members.by_instance(instance));
            found.cloned().ok_or(GroupError::UnknownMemberId)?
        } else {
            let id = MemberId(Arc::clone(&leaving.member_id));
            if !self.pending.contains(&id) {
                self.validate(Caller {
                    member_id: &leaving.member_id,
                    instance_id: instance,
                })?;
            }
            id
        };
        self.remove(id.as_str(), turn);
        let reason = reason_told(leaving.reason.as_deref());
        turn.fact(Fact::Removed {
            member: id,
            reason: format!("it left: {reason}"),
        });
        Ok(())
    }
}

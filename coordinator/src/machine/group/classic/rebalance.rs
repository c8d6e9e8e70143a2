//! Phases: a rebalance begins, members come back or are removed, a generation begins.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::member::Member;
use super::timers::TimerKey;
use super::{
    Answer, ClassicConfig, ClassicGroup, ClassicState, Effects, Fact, JoinPhase, JoinRefused,
    MemberId, SyncReply, Turn, subscription,
};
use crate::machine::group::{GroupError, Now};

impl ClassicGroup {
    /// Does everything whose time has come.
    pub fn on_deadline(&mut self, config: &ClassicConfig, now: Now) -> Effects {
        let mut turn = Turn::new(config, now);
        while let Some(key) = self.timers.pop_due(now.mono_ms) {
            match key {
                TimerKey::Join => self.end_join_phase(&mut turn),
                TimerKey::Sync => self.remove_unsynced(&mut turn),
                TimerKey::Session(id) => self.expire(&id, &mut turn),
            }
        }
        turn.effects
    }

    /// Begins a rebalance where one can begin; goes on with the one that is under way otherwise.
    pub(super) fn rebalance_or_complete(&mut self, reason: String, turn: &mut Turn<'_>) {
        if ClassicState::PreparingRebalance.can_follow(self.state) {
            self.prepare_rebalance(reason, turn);
        } else {
            self.maybe_complete_join(turn);
        }
    }

    fn prepare_rebalance(&mut self, reason: String, turn: &mut Turn<'_>) {
        if self.state == ClassicState::CompletingRebalance {
            self.propagate(Some(GroupError::RebalanceInProgress), turn);
        }
        self.pending_sync.clear();
        self.timers.cancel(TimerKey::Sync);
        turn.fact(Fact::Rebalancing {
            generation: self.generation,
            reason,
        });
        let initial = self.state == ClassicState::Empty;
        self.enter(ClassicState::PreparingRebalance, turn.now);
        self.new_member_added = false;
        if initial {
            let delay_ms = turn.config.initial_rebalance_delay_ms;
            let timeout_ms = self.members.rebalance_timeout_ms();
            self.join_phase = JoinPhase::Initial {
                delay_ms,
                remaining_ms: timeout_ms.saturating_sub(delay_ms),
            };
            self.timers.set(TimerKey::Join, turn.now.mono_ms, delay_ms);
        } else {
            self.join_phase = JoinPhase::Rebalance;
            self.timers.set(
                TimerKey::Join,
                turn.now.mono_ms,
                self.members.rebalance_timeout_ms(),
            );
            self.maybe_complete_join(turn);
        }
    }

    /// Ends the join phase if everyone is back. The first one of an empty group lasts its delay.
    pub(super) fn maybe_complete_join(&mut self, turn: &mut Turn<'_>) {
        let preparing = self.state == ClassicState::PreparingRebalance;
        if preparing && self.join_phase == JoinPhase::Rebalance && self.has_all_joined() {
            self.complete_join(turn);
        }
    }

    fn has_all_joined(&self) -> bool {
        self.members.len() == self.members.parked_join() && self.pending.is_empty()
    }

    fn end_join_phase(&mut self, turn: &mut Turn<'_>) {
        if let JoinPhase::Initial {
            delay_ms,
            remaining_ms,
        } = self.join_phase
            && self.new_member_added
            && remaining_ms != 0
        {
            self.new_member_added = false;
            let next_ms = turn.config.initial_rebalance_delay_ms.min(remaining_ms);
            self.join_phase = JoinPhase::Initial {
                delay_ms: next_ms,
                remaining_ms: remaining_ms.saturating_sub(delay_ms),
            };
            self.timers.set(TimerKey::Join, turn.now.mono_ms, next_ms);
            return;
        }
        self.complete_join(turn);
    }

    fn complete_join(&mut self, turn: &mut Turn<'_>) {
        self.timers.cancel(TimerKey::Join);
        let missing = self.members.iter().filter(|member| {
            let dynamic = member.instance_id.is_none();
            dynamic && !member.waits_in_join()
        });
        let missing: Vec<MemberId> = missing.map(|member| member.id.clone()).collect();
        for id in missing {
            self.remove(id.as_str(), turn);
            turn.fact(Fact::Removed {
                member: id,
                reason: "it did not join within the rebalance timeout".to_owned(),
            });
        }
        if !self.members.is_empty() && !self.elect_joined_leader() {
            // Static members only, and none came back: they stay until their sessions end.
            self.join_phase = JoinPhase::Rebalance;
            self.timers.set(
                TimerKey::Join,
                turn.now.mono_ms,
                self.members.rebalance_timeout_ms(),
            );
            return;
        }
        self.begin_generation(turn);
    }

    /// Makes a member lead that is there to assign; false if there is none.
    fn elect_joined_leader(&mut self) -> bool {
        let leader = self.leader.as_ref();
        let leader = leader.and_then(|id| self.members.get(id.as_str()));
        if leader.is_some_and(Member::waits_in_join) {
            return true;
        }
        let Some(joined) = self.members.senior(Member::waits_in_join).cloned() else {
            return false;
        };
        self.leader = Some(joined);
        true
    }

    fn begin_generation(&mut self, turn: &mut Turn<'_>) {
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.pending_sync.clear();
        self.protocol_name = self.members.elect_protocol(self.leader.as_ref());
        self.subscribed = self.subscribed_topics();
        if self.members.is_empty() {
            self.enter(ClassicState::Empty, turn.now);
            turn.fact(Fact::Empty {
                generation: self.generation,
            });
            return;
        }
        self.enter(ClassicState::CompletingRebalance, turn.now);
        turn.fact(Fact::Generation {
            generation: self.generation,
            members: self.members.len(),
        });
        for id in self.members.ids() {
            let leads = self.leader.as_ref() == Some(&id);
            if let Some(token) = self.members.set_parked_join(id.as_str(), None) {
                let joined = self.joined(&id, leads);
                turn.answer(Answer::Join(token, Ok(joined)));
            }
            self.restart_session(id.as_str(), turn.now);
            if let Some(member) = self.members.get_mut(id.as_str()) {
                member.is_new = false;
            }
            self.pending_sync.insert(id);
        }
        self.timers.set(
            TimerKey::Sync,
            turn.now.mono_ms,
            self.members.rebalance_timeout_ms(),
        );
    }

    /// Topics of the members' metadata for the protocol in force; `None` where it is not known.
    fn subscribed_topics(&self) -> Option<BTreeSet<String>> {
        if !self.uses_consumer_protocol() {
            return None;
        }
        let mut topics = BTreeSet::new();
        for member in self.members.iter() {
            let metadata = member.metadata(self.protocol_name.as_deref());
            subscription::topics(&metadata, &mut topics)?;
        }
        Some(topics)
    }

    fn remove_unsynced(&mut self, turn: &mut Turn<'_>) {
        let in_generation = matches!(
            self.state,
            ClassicState::CompletingRebalance | ClassicState::Stable
        );
        if !in_generation || self.pending_sync.is_empty() {
            return;
        }
        for id in std::mem::take(&mut self.pending_sync) {
            self.remove(id.as_str(), turn);
            turn.fact(Fact::Removed {
                member: id,
                reason: "it did not sync within the rebalance timeout".to_owned(),
            });
        }
        self.prepare_rebalance("members did not sync".to_owned(), turn);
    }

    fn expire(&mut self, id: &MemberId, turn: &mut Turn<'_>) {
        if self.pending.remove(id) {
            self.maybe_complete_any_join(turn);
            return;
        }
        let member = self.members.get(id.as_str());
        // A member that is parked gets a new deadline with its answer.
        if member.is_none_or(Member::has_satisfied_heartbeat) {
            return;
        }
        self.remove(id.as_str(), turn);
        turn.fact(Fact::Removed {
            member: id.clone(),
            reason: "its session timed out".to_owned(),
        });
        if self.state == ClassicState::PreparingRebalance {
            self.maybe_complete_any_join(turn);
        } else {
            self.rebalance_or_complete("a member's session timed out".to_owned(), turn);
        }
    }

    /// When someone is gone whom a join phase waited for, also the first one of a group ends.
    fn maybe_complete_any_join(&mut self, turn: &mut Turn<'_>) {
        if self.state == ClassicState::PreparingRebalance && self.has_all_joined() {
            self.complete_join(turn);
        }
    }

    /// Removes a member or a pending one. Who waits is answered as a stranger.
    pub(super) fn remove(&mut self, id: &str, turn: &mut Turn<'_>) {
        let id = MemberId::from(id);
        self.refuse_parked(&id, GroupError::UnknownMemberId, "".into(), turn);
        self.members.remove(id.as_str());
        if self.leader.as_ref() == Some(&id) {
            self.leader = self.members.senior(|_| true).cloned();
        }
        self.pending.remove(&id);
        self.pending_sync.remove(&id);
        self.timers.cancel(TimerKey::Session(id));
    }

    /// Answers what a member waits in with `error`; `told` is the member id of a join's answer.
    pub(super) fn refuse_parked(
        &mut self,
        id: &MemberId,
        error: GroupError,
        told: Arc<str>,
        turn: &mut Turn<'_>,
    ) {
        if let Some(token) = self.members.set_parked_join(id.as_str(), None) {
            let refused = JoinRefused {
                error,
                member_id: told,
            };
            turn.answer(Answer::Join(token, Err(refused)));
        }
        let member = self.members.get_mut(id.as_str());
        if let Some(token) = member.and_then(|member| member.parked_sync.take()) {
            turn.answer(Answer::Sync(token, Err(error)));
        }
    }

    /// Answers everyone who waits for an assignment: with it, or with `error` and no assignment.
    pub(super) fn propagate(&mut self, error: Option<GroupError>, turn: &mut Turn<'_>) {
        for id in self.members.ids() {
            if error.is_some() {
                self.members.assign(id.as_str(), bytes::Bytes::new());
            }
            let Some(member) = self.members.get_mut(id.as_str()) else {
                continue;
            };
            let Some(token) = member.parked_sync.take() else {
                continue;
            };
            let reply: SyncReply = match error {
                Some(error) => Err(error),
                None => Ok(self.synced(id.as_str())),
            };
            turn.answer(Answer::Sync(token, reply));
            self.restart_session(id.as_str(), turn.now);
        }
    }

    /// Gives a member its session timeout again.
    pub(super) fn restart_session(&mut self, id: &str, now: Now) {
        if let Some(member) = self.members.get(id) {
            let key = TimerKey::Session(member.id.clone());
            self.timers.set(key, now.mono_ms, member.session_timeout_ms);
        }
    }
}

//! What members ask: JoinGroup, SyncGroup, Heartbeat, LeaveGroup; and what shows them.

use std::sync::Arc;

use super::offsets::membership;
use super::{Groups, Reply};
use crate::machine::group::GroupError;
use crate::machine::group::classic::{
    Caller, Described, Effects, Join, JoinRefused, JoinReply, Leaving, Staged, Sync, SyncReply,
};

impl Groups {
    /// JoinGroup.
    pub fn join(&self, group: &str, join: Join) -> Reply<JoinReply> {
        let config = &self.shared.config.classic;
        let member_id = Arc::clone(&join.member_id);
        let refuse = |error| {
            Reply::Now(Err(JoinRefused {
                error,
                member_id: Arc::clone(&member_id),
            }))
        };
        if group.is_empty() {
            return refuse(GroupError::InvalidGroupId);
        }
        let allowed = config.min_session_timeout_ms..=config.max_session_timeout_ms;
        if !allowed.contains(&join.session_timeout_ms) {
            return refuse(GroupError::InvalidSessionTimeout);
        }
        if let Err(error) = self.admit(group) {
            return refuse(error);
        }
        let create = member_id.is_empty() || self.shared.slots.may_be_untold(group);
        let decided = self.decide(group, create, |state, now| {
            if let Err(error) = state.offsets.check() {
                return (refuse(error), Effects::default());
            }
            if !self.has_room(state.classic.join_growth(&join)) {
                return (
                    refuse(GroupError::CoordinatorNotAvailable),
                    Effects::default(),
                );
            }
            let mut unique = || self.shared.env.uuid().to_string();
            let (staged, effects) = state.classic.join(config, join, &mut unique, now);
            let reply = match staged {
                Staged::Now(reply) => Reply::Now(reply),
                Staged::Parked(token) => Reply::Later(state.park_join(token)),
            };
            (reply, effects)
        });
        match decided {
            Ok(Some(reply)) => {
                self.expect(group, &reply);
                reply
            }
            Ok(None) => refuse(GroupError::UnknownMemberId),
            Err(error) => refuse(error),
        }
    }

    /// SyncGroup. Answered when everything is durable that was accepted of the group before it.
    pub fn sync(&self, group: &str, sync: Sync<'_>) -> Reply<SyncReply> {
        let config = &self.shared.config.classic;
        let decided = self.admit_named(group).and_then(|()| {
            self.decide(group, false, |state, now| {
                let room = self.has_room(state.classic.sync_growth(&sync));
                if state.offsets.check().is_err() || !room {
                    let refused = Err(GroupError::CoordinatorNotAvailable);
                    return (Reply::Now(refused), Effects::default());
                }
                let (staged, effects) = state.classic.sync(config, sync, now);
                // Before the effects, which are the answers of those who wait.
                state.begin();
                let reply = match staged {
                    Staged::Now(Ok(synced)) => Reply::Later(state.wait_for_assignment(synced)),
                    Staged::Now(Err(error)) => Reply::Now(Err(error)),
                    Staged::Parked(token) => Reply::Later(state.park_sync(token)),
                };
                (reply, effects)
            })
        });
        match decided {
            Ok(Some(reply)) => reply,
            Ok(None) => Reply::Now(Err(GroupError::UnknownMemberId)),
            Err(error) => Reply::Now(Err(error)),
        }
    }

    /// Heartbeat.
    pub fn heartbeat(
        &self,
        group: &str,
        caller: Caller<'_>,
        generation: i32,
    ) -> Result<(), GroupError> {
        self.admit_named(group)?;
        let decided = self.decide(group, false, |state, now| {
            let reply = state.classic.heartbeat(caller, generation, now);
            (reply, Effects::default())
        })?;
        decided.unwrap_or(Err(GroupError::UnknownMemberId))
    }

    /// LeaveGroup: an outcome for each member of the request, in its order.
    pub fn leave(
        &self,
        group: &str,
        leaving: &[Leaving],
    ) -> Result<Vec<Result<(), GroupError>>, GroupError> {
        self.admit_named(group)?;
        let config = &self.shared.config.classic;
        let decided = self.decide(group, false, |state, now| {
            state.classic.leave(config, leaving, now)
        })?;
        decided.unwrap_or_else(|| Ok(vec![Err(GroupError::UnknownMemberId); leaving.len()]))
    }

    /// What a group looks like; `None` if there is none.
    ///
    /// # Errors
    /// [`GroupError::CoordinatorLoading`] while nothing is known of it, and as [`Groups::admit`].
    pub fn describe(&self, group: &str) -> Result<Option<Described>, GroupError> {
        self.admit(group)?;
        let Some(cell) = self.cell(group) else {
            return Ok(None);
        };
        let mut state = cell.lock();
        if state.offsets.book.is_unread() {
            return Err(GroupError::CoordinatorLoading);
        }
        if state.is_missing() {
            return Ok(None);
        }
        state.keep_time(self.now());
        Ok(Some(Described {
            state: state.shown_state(),
            protocol_type: membership(&state).protocol_type,
            ..state.classic.describe()
        }))
    }

    fn admit_named(&self, group: &str) -> Result<(), GroupError> {
        if group.is_empty() {
            return Err(GroupError::InvalidGroupId);
        }
        self.admit(group)
    }
}

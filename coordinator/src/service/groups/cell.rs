//! One group in memory: its machines, and the requests that wait on them.
//!
//! The lock of a cell is held for one decision and never across an await or a write. Lock order:
//! map of cells, cell, queue of deadlines; none is taken while a later one is held.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::offset_state::OffsetState;
use super::offsets::membership;
use crate::machine::group::Now;
use crate::machine::group::classic::{Answer, ClassicGroup, ClassicState, Effects, Fact, Token};
use crate::machine::group::classic::{JoinReply, SyncReply, Synced};

/// How long members of before this process may come back to a group that had some. They are heard
/// of every third of their session timeout, which is 45 s by Kafka's default.
pub(super) const AWAITED_MS: u64 = 60_000;

/// A group.
#[derive(Debug)]
pub struct GroupCell {
    id: Arc<str>,
    state: Mutex<CellState>,
}

/// What the lock of a cell guards.
#[derive(Debug)]
pub struct CellState {
    /// Membership.
    pub classic: ClassicGroup,
    /// Offsets.
    pub offsets: OffsetState,
    /// Requests that wait: at most one JoinGroup and one SyncGroup a member.
    parked: BTreeMap<Token, Parked>,
    /// The deadline under which the group is queued, in monotonic milliseconds.
    pub(super) queued: Option<u64>,
    /// Until when members of before this process may come back, in monotonic milliseconds.
    awaited_until: Option<u64>,
    /// The cell is no longer in the map: look the group up again.
    pub(super) forgotten: bool,
    /// What of the group is counted among what the members of all groups take, bytes.
    pub(super) counted_bytes: usize,
    /// The same of its offsets.
    pub(super) counted_offsets: usize,
}

#[derive(Debug)]
enum Parked {
    Join(oneshot::Sender<JoinReply>),
    Sync(oneshot::Sender<SyncReply>),
}

impl GroupCell {
    /// An empty group.
    pub(super) fn new(id: Arc<str>, offsets: OffsetState, now: Now) -> Self {
        Self {
            id,
            state: Mutex::new(CellState {
                classic: ClassicGroup::new(now),
                offsets,
                parked: BTreeMap::new(),
                queued: None,
                awaited_until: None,
                forgotten: false,
                counted_bytes: 0,
                counted_offsets: 0,
            }),
        }
    }

    /// The group id.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Takes the lock. Changes of membership go through [`super::Groups`], which runs the effects
    /// and keeps the deadline.
    pub fn lock(&self) -> MutexGuard<'_, CellState> {
        self.state.lock()
    }
}

impl CellState {
    /// Whether nothing would be lost if the cell were not there.
    pub fn is_idle(&self) -> bool {
        self.is_vacant() && !self.offsets.book.remembers()
    }

    /// Plans that the group's file goes, if nothing is left of the group.
    pub(super) fn plan_removal(&mut self) {
        if self.is_idle() {
            self.offsets.plan_removal();
        }
    }

    /// Whether there are no members and no offsets. Decided transactions may be remembered.
    pub(super) fn is_vacant(&self) -> bool {
        self.classic.can_forget() && self.parked.is_empty() && self.offsets.is_blank()
    }

    /// Whether requests should hear that there is no such group: it has no members, no offsets,
    /// and never had a generation since this process began.
    pub fn is_missing(&self) -> bool {
        self.is_vacant() && self.classic.generation() == 0
    }

    /// The file of a group was read of which this process knows nothing yet. One that had members
    /// has them still: they have not heard that this process has forgotten them.
    pub(super) fn await_members(&mut self, now: Now) {
        let table = self.offsets.book.durable();
        let had_members = table.protocol_type().is_some() && table.empty_since_ms().is_none();
        if had_members {
            self.classic.note_former_members();
        }
        self.awaited_until = had_members.then(|| now.mono_ms.saturating_add(AWAITED_MS));
    }

    /// Gives members of before this process up whose time is over.
    pub(super) fn keep_time(&mut self, now: Now) {
        self.awaited_until = self.awaited_until.filter(|until| now.mono_ms < *until);
    }

    /// Whether the group has members that this process knows nothing of: the first one that comes
    /// back begins a generation.
    pub(super) fn is_awaiting(&self) -> bool {
        let unknown = self.classic.state() == ClassicState::Empty && self.classic.generation() == 0;
        unknown && self.awaited_until.is_some()
    }

    /// The state, as others see it.
    pub(super) fn shown_state(&self) -> ClassicState {
        if self.is_awaiting() {
            ClassicState::PreparingRebalance
        } else {
            self.classic.state()
        }
    }

    /// Prepares that a stable group is known after a restart.
    pub(super) fn begin(&mut self) {
        if self.classic.state() == ClassicState::Stable {
            let members = membership(self);
            self.offsets.book.begin(&members);
        }
    }

    /// Where the answer to a SyncGroup comes that is decided already.
    pub(super) fn wait_for_assignment(&mut self, synced: Synced) -> oneshot::Receiver<SyncReply> {
        let (reply, wait) = oneshot::channel();
        self.offsets.answer_sync(reply, synced);
        wait
    }

    pub(super) fn park_join(&mut self, token: Token) -> oneshot::Receiver<JoinReply> {
        let (reply, wait) = oneshot::channel();
        self.parked.insert(token, Parked::Join(reply));
        wait
    }

    pub(super) fn park_sync(&mut self, token: Token) -> oneshot::Receiver<SyncReply> {
        let (reply, wait) = oneshot::channel();
        self.parked.insert(token, Parked::Sync(reply));
        wait
    }

    /// Answers whom the machine answers, and logs what it tells.
    pub(super) fn run(&mut self, group: &str, effects: Effects) {
        for answer in effects.answers {
            self.answer(answer);
        }
        for fact in &effects.facts {
            log(group, fact);
            if matches!(fact, Fact::Empty { .. }) {
                // Without it a restart would look for its members.
                let members = membership(self);
                self.offsets.book.note_membership(&members);
            }
        }
    }

    fn answer(&mut self, answer: Answer) {
        let heard = match answer {
            Answer::Join(token, reply) => match self.parked.remove(&token) {
                Some(Parked::Join(waits)) => waits.send(reply).is_ok(),
                other => unexpected(token, other.is_some()),
            },
            Answer::Sync(token, reply) => match self.parked.remove(&token) {
                Some(Parked::Sync(waits)) => match reply {
                    Ok(synced) => return self.offsets.answer_sync(waits, synced),
                    Err(error) => waits.send(Err(error)).is_ok(),
                },
                other => unexpected(token, other.is_some()),
            },
        };
        if !heard {
            tracing::trace!("nobody waits for this answer any more");
        }
    }

    /// Requests that wait now.
    pub fn parked(&self) -> usize {
        self.parked.len()
    }
}

fn unexpected(token: Token, of_another_kind: bool) -> bool {
    tracing::error!(
        token = token.0,
        of_another_kind,
        "an answer without its request"
    );
    false
}

fn log(group: &str, fact: &Fact) {
    match fact {
        Fact::Rebalancing { generation, reason } => {
            tracing::info!(group, generation, reason, "group rebalances");
        }
        Fact::Generation {
            generation,
            members,
        } => tracing::info!(group, generation, members, "group has a new generation"),
        Fact::Stable { generation } => tracing::info!(group, generation, "group is stable"),
        Fact::Empty { generation } => tracing::info!(group, generation, "group is empty"),
        Fact::Removed { member, reason } => {
            tracing::info!(group, %member, reason, "member removed from its group");
        }
        Fact::Replaced {
            instance_id,
            old,
            new,
        } => tracing::info!(group, %instance_id, %old, %new, "static member replaced"),
        Fact::Unassigned {
            generation,
            members,
        } => tracing::debug!(group, generation, members, "members without an assignment"),
    }
}

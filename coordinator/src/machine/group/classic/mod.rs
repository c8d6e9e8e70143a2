//! The classic group protocol: who is a member, who leads, which generation it is.
//!
//! ```text
//!            a member joins            the join phase ends           the leader assigns
//!   Empty ─────────────────► Preparing ──────────────────► Completing ───────────────► Stable
//!     ▲                      │  ▲  ▲                          │                          │
//!     └──────────────────────┘  │  └──────────────────────────┘                          │
//!        everyone is gone       └────────────────────────────────────────────────────────┘
//!                                  a member joins, leaves, changes, or is not heard of
//! ```
//!
//! Any state can become Dead: the group was deleted or is coordinated elsewhere.
//!
//! Synchronous and without a clock: every function is told the time and answers with a reply (or
//! the token of a request that has to wait) and effects. The group carries its own deadlines:
//! [`ClassicGroup::next_deadline`] says when [`ClassicGroup::on_deadline`] wants to be called.
//! Follows the classic part of Apache Kafka 4's group coordinator, also in the order of errors,
//! except that every request that waits is answered: where Kafka forgets one that was replaced by
//! a later request of the same member, it is refused here.

mod join;
mod member;
mod pending;
mod protocol;
mod query;
mod rebalance;
mod requests;
mod subscription;
mod timers;

#[cfg(test)]
mod matrix_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use protocol::{
    Answer, Caller, ClassicConfig, Effects, Fact, Join, JoinRefused, JoinReply, Joined,
    JoinedMember, Leaving, MemberId, Protocol, Staged, Sync, SyncReply, Synced, Token,
};
pub use query::{Described, DescribedMember};

use self::member::Members;
use self::pending::Pending;
pub use self::pending::{PENDING_BYTES_MAX, PENDING_MAX};
use self::timers::{TimerKey, Timers};
use super::{GroupError, Now};

/// How long a member that joins for the first time may wait for its first generation: it does
/// not know its id yet and cannot send heartbeats (`group.new.member.join.timeout.ms` of Kafka,
/// a constant there).
pub const NEW_MEMBER_JOIN_TIMEOUT_MS: u32 = 300_000;
/// What the members of one group may take in memory, bytes: names, metadata, assignments. The
/// answer to a leader, which has all metadata, stays far below what the wire can carry.
pub const BYTES_MAX: usize = 64 << 20;

/// The state of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClassicState {
    /// No members.
    Empty,
    /// Members are joining.
    PreparingRebalance,
    /// Members wait for the leader's assignment.
    CompletingRebalance,
    /// Every member has its assignment.
    Stable,
    /// Gone.
    Dead,
}

impl ClassicState {
    /// Kafka's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::PreparingRebalance => "PreparingRebalance",
            Self::CompletingRebalance => "CompletingRebalance",
            Self::Stable => "Stable",
            Self::Dead => "Dead",
        }
    }

    /// Whether the state may follow `before`.
    pub fn can_follow(self, before: Self) -> bool {
        use ClassicState::{CompletingRebalance, Dead, Empty, PreparingRebalance, Stable};
        match self {
            Empty | CompletingRebalance => before == PreparingRebalance,
            PreparingRebalance => matches!(before, Stable | CompletingRebalance | Empty),
            Stable => before == CompletingRebalance,
            Dead => true,
        }
    }
}

/// What ends a join phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JoinPhase {
    /// The first members of an empty group: `delay_ms` more, again and again while members keep
    /// arriving, for at most `remaining_ms` in all.
    Initial { delay_ms: u32, remaining_ms: u32 },
    /// Every member is back, or the rebalance timeout.
    Rebalance,
}

/// A group.
#[derive(Debug, Clone)]
pub struct ClassicGroup {
    state: ClassicState,
    /// When the state began, ms since the Unix epoch.
    since_ms: i64,
    generation: i32,
    protocol_type: Option<Arc<str>>,
    protocol_name: Option<Arc<str>>,
    leader: Option<MemberId>,
    members: Members,
    /// Given an id, and expected to join with it (KIP-394).
    pending: Pending,
    /// Members of the generation that have not asked for their assignment.
    pending_sync: BTreeSet<MemberId>,
    join_phase: JoinPhase,
    /// A member arrived since the initial delay was last extended.
    new_member_added: bool,
    /// It had members before this process, whose ids nobody knows.
    had_members: bool,
    /// Topics that the members of the generation consume; `None` if that is not known.
    subscribed: Option<BTreeSet<String>>,
    timers: Timers,
    next_token: u64,
}

/// One call of the machine.
struct Turn<'a> {
    config: &'a ClassicConfig,
    now: Now,
    effects: Effects,
}

impl<'a> Turn<'a> {
    fn new(config: &'a ClassicConfig, now: Now) -> Self {
        Self {
            config,
            now,
            effects: Effects::default(),
        }
    }

    fn fact(&mut self, fact: Fact) {
        self.effects.facts.push(fact);
    }

    fn answer(&mut self, answer: Answer) {
        self.effects.answers.push(answer);
    }
}

impl ClassicGroup {
    /// A group without members.
    pub fn new(now: Now) -> Self {
        Self {
            state: ClassicState::Empty,
            since_ms: now.wall_ms,
            generation: 0,
            protocol_type: None,
            protocol_name: None,
            leader: None,
            members: Members::default(),
            pending: Pending::default(),
            pending_sync: BTreeSet::new(),
            join_phase: JoinPhase::Rebalance,
            new_member_added: false,
            had_members: false,
            subscribed: None,
            timers: Timers::default(),
            next_token: 0,
        }
    }

    /// The group had members before this process began, of which nothing is known.
    pub fn note_former_members(&mut self) {
        self.had_members = true;
    }

    /// When [`ClassicGroup::on_deadline`] wants to be called, in monotonic milliseconds.
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.next()
    }

    /// The group is gone from here: everyone who waits is told why, and nothing happens any more.
    pub fn die(&mut self, error: GroupError, now: Now) -> Effects {
        let config = ClassicConfig::default();
        let mut turn = Turn::new(&config, now);
        for id in self.members.ids() {
            self.refuse_parked(&id, error, id.0.clone(), &mut turn);
        }
        self.members = Members::default();
        self.leader = None;
        self.pending.clear();
        self.pending_sync.clear();
        self.timers.clear();
        self.enter(ClassicState::Dead, now);
        turn.effects
    }

    /// Forgets a member that was given an id and has not come back with it. `None`: it has.
    pub fn forget_pending(
        &mut self,
        config: &ClassicConfig,
        member_id: &Arc<str>,
        now: Now,
    ) -> Option<Effects> {
        let id = MemberId(Arc::clone(member_id));
        if !self.pending.remove(&id) {
            return None;
        }
        self.timers.cancel(TimerKey::Session(id));
        let mut turn = Turn::new(config, now);
        self.maybe_complete_join(&mut turn);
        Some(turn.effects)
    }

    fn enter(&mut self, state: ClassicState, now: Now) {
        debug_assert!(
            state.can_follow(self.state),
            "{state:?} after {:?}",
            self.state
        );
        self.state = state;
        self.since_ms = now.wall_ms;
    }

    fn token(&mut self) -> Token {
        let token = Token(self.next_token);
        self.next_token += 1;
        token
    }
}

//! What the members and the offsets of all groups take in memory.
//!
//! Bytes that clients send and that are kept as long as they are members: names, metadata,
//! assignments. A member that says a lot and goes away stays for minutes.
//!
//! Offsets are counted as they are in files, which is more than in memory. What is there is loaded
//! and goes on, whatever it takes; only what would be new is refused.
//!
//! Who was only given an id, and is expected to come back with it, is not among them: a flood of
//! first requests must not keep anybody out. Of too many the one that came first is forgotten.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::{CellState, GroupCell, Groups, Reply};
use crate::machine::group::GroupError;
use crate::machine::group::classic::JoinReply;
use crate::machine::group::offsets::BYTES_MAX;

/// What the members of all groups may take in memory, bytes; who would add to more is answered as
/// by a coordinator that is not available.
pub const MEMBERS_BYTES_MAX: usize = 512 << 20;

/// What the offsets of all groups may take, bytes; who would add to more is answered likewise.
pub const OFFSETS_BYTES_MAX: usize = 1 << 30;

/// Members of all groups that were given an id and are expected to come back with it, at most. Who
/// has just been given one comes back at once.
pub const PENDING_ALL_MAX: usize = 65_536;

/// The last members that were given an id, each with its group, the oldest first. Most have come
/// back long ago.
pub(super) type Expected = Mutex<VecDeque<(Arc<str>, Arc<str>)>>;

impl Groups {
    /// Remembers who was given an id; forgets who was before so many others.
    pub(super) fn expect(&self, group: &str, reply: &Reply<JoinReply>) {
        let Reply::Now(Err(refused)) = reply else {
            return;
        };
        if refused.error != GroupError::MemberIdRequired {
            return;
        }
        let oldest = {
            let mut expected = self.shared.expected.lock();
            expected.push_back((group.into(), Arc::clone(&refused.member_id)));
            let too_many = expected.len() > self.shared.config.pending_max;
            too_many.then(|| expected.pop_front()).flatten()
        };
        let Some((group, member_id)) = oldest else {
            return;
        };
        let Some(cell) = self.cell(&group) else {
            return;
        };
        let mut state = cell.lock();
        let config = &self.shared.config.classic;
        let forgotten = state.classic.forget_pending(config, &member_id, self.now());
        if let Some(effects) = forgotten {
            self.carry_out(&cell, &mut state, effects);
            drop(state);
            self.forget_missing(&group);
        }
    }

    /// Whether the members of all groups may take so many bytes more. Those that are decided on
    /// side by side may go beyond it together.
    pub(super) fn has_room(&self, grows: usize) -> bool {
        let taken = self.shared.members_bytes.load(Ordering::Relaxed);
        grows == 0 || taken.saturating_add(grows) <= self.shared.config.members_bytes_max
    }

    /// Whether the offsets of all groups may grow by so much. Those that are decided on side by
    /// side may go beyond it together.
    ///
    /// # Errors
    /// [`GroupError::CoordinatorNotAvailable`] if not.
    pub(super) fn check_offsets_room(
        &self,
        growth: impl FnOnce() -> usize,
    ) -> Result<(), GroupError> {
        let taken = self.shared.offsets_bytes.load(Ordering::Relaxed);
        let max = self.shared.config.offsets_bytes_max;
        if taken.saturating_add(BYTES_MAX) <= max {
            // No group grows by more.
            return Ok(());
        }
        let grows = growth();
        if grows == 0 || taken.saturating_add(grows) <= max {
            return Ok(());
        }
        Err(GroupError::CoordinatorNotAvailable)
    }

    /// Counts what a group takes now.
    pub(super) fn count_bytes(&self, cell: &GroupCell, state: &mut CellState) {
        let there = !state.forgotten;
        let count = |all: &AtomicUsize, counted: &mut usize, bytes: usize| {
            let now = if there { bytes + cell.id().len() } else { 0 };
            let before = std::mem::replace(counted, now);
            if now > before {
                all.fetch_add(now - before, Ordering::Relaxed);
            } else if now < before {
                all.fetch_sub(before - now, Ordering::Relaxed);
            }
        };
        let (members, offsets) = (state.classic.bytes(), state.offsets.book.bytes());
        count(
            &self.shared.members_bytes,
            &mut state.counted_bytes,
            members,
        );
        count(
            &self.shared.offsets_bytes,
            &mut state.counted_offsets,
            offsets,
        );
    }
}

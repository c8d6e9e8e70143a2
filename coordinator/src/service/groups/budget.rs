//! What the members of all groups take in memory.
//!
//! Bytes that clients send and that are kept as long as they are members, or expected: names,
//! metadata, assignments. A member that says a lot and goes away stays for minutes.

use std::sync::atomic::Ordering;

use super::{CellState, GroupCell, Groups};

/// What the members of all groups may take in memory, bytes; who would add to more is answered as
/// by a coordinator that is not available.
pub const MEMBERS_BYTES_MAX: usize = 512 << 20;

impl Groups {
    /// Whether the members of all groups may take so many bytes more. Those that are decided on
    /// side by side may go beyond it together.
    pub(super) fn has_room(&self, grows: usize) -> bool {
        let taken = self.shared.members_bytes.load(Ordering::Relaxed);
        grows == 0 || taken.saturating_add(grows) <= self.shared.config.members_bytes_max
    }

    /// Counts what a group's members take now.
    pub(super) fn count_bytes(&self, cell: &GroupCell, state: &mut CellState) {
        let name = if state.forgotten { 0 } else { cell.id().len() };
        let now = state.classic.bytes() + name;
        let before = std::mem::replace(&mut state.counted_bytes, now);
        let all = &self.shared.members_bytes;
        if now > before {
            all.fetch_add(now - before, Ordering::Relaxed);
        } else if now < before {
            all.fetch_sub(before - now, Ordering::Relaxed);
        }
    }
}

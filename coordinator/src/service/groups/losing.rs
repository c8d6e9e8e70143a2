//! Slots that another process has: nothing is known of their groups any more.

use super::slots::Phase;
use super::{GroupError, Groups, Route};

impl Groups {
    /// Another process has the slot: who waits on a group of it is sent away, and nothing that was
    /// known of its groups is answered or listed.
    pub(super) fn lose(&self, slot: u32) {
        // First, so that nobody makes a cell behind this.
        self.shared.slots.set(slot, Phase::Lost);
        for cell in self.cells() {
            let kept = matches!(self.route(cell.id()), Route::Here { slot: other, .. }
                if other != slot);
            if !kept {
                self.send_away(cell.id());
            }
        }
    }

    /// Another process has the group.
    pub(super) fn send_away(&self, group: &str) {
        let Some(cell) = self.cell(group) else {
            return;
        };
        cell.lock().offsets.lost();
        let dropped = self.drop_cell(group, GroupError::NotCoordinator, |_| Ok(()));
        if dropped.is_ok() {
            tracing::debug!(group, "another process has this group");
        }
    }
}

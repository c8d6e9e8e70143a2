//! Which group slots this process can answer for.

use std::collections::BTreeMap;

use parking_lot::RwLock;

use super::offset_state::OffsetState;
use crate::machine::group::GroupError;
use crate::volume::layout;

/// What is known of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is being taken over: which groups it has is not known yet.
    Loading,
    /// Its groups are known.
    Ready,
    /// Another process has it.
    Lost,
}

/// The slots. Without any, groups have no files, and every slot can be answered for.
#[derive(Debug, Default)]
pub(super) struct Slots(RwLock<BTreeMap<u32, Phase>>);

impl Slots {
    pub(super) fn set(&self, slot: u32, phase: Phase) {
        let mut slots = self.0.write();
        // What is lost stays lost.
        if slots.get(&slot) != Some(&Phase::Lost) {
            slots.insert(slot, phase);
        }
    }

    /// Whether requests for groups of a slot can be answered.
    pub(super) fn check(&self, slot: u32) -> Result<(), GroupError> {
        let slots = self.0.read();
        match slots.get(&slot) {
            Some(Phase::Ready) => Ok(()),
            Some(Phase::Loading) => Err(GroupError::CoordinatorLoading),
            None if slots.is_empty() => Ok(()),
            Some(Phase::Lost) | None => Err(GroupError::NotCoordinator),
        }
    }

    /// Slots that are not ready, and not lost.
    pub(super) fn loading(&self) -> usize {
        let slots = self.0.read();
        slots
            .values()
            .filter(|phase| **phase == Phase::Loading)
            .count()
    }

    /// The offsets of a group that nothing is known of. A name that was hashed may have been
    /// damaged so that its group could not be told: it is looked at again.
    pub(super) fn new_state(&self, group: &str) -> OffsetState {
        let filed = !self.0.read().is_empty();
        if filed && layout::is_hashed(group) {
            OffsetState::unread()
        } else {
            OffsetState::default()
        }
    }
}

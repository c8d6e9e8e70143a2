//! Which group slots this process can answer for.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// The slots. Where groups have no files every slot can be answered for; where they have, one that
/// this process did not begin with is another's, whatever it is assigned since.
#[derive(Debug, Default)]
pub(super) struct Slots {
    phases: RwLock<BTreeMap<u32, Phase>>,
    /// Whether groups have files.
    filed: AtomicBool,
    /// Files under hashed names that do not tell their group, which are damaged or could not be
    /// read, with their slots. At most one a file.
    untold: RwLock<BTreeMap<String, u32>>,
}

impl Slots {
    /// Groups have files, in these slots.
    pub(super) fn begin(&self, slots: impl Iterator<Item = u32>) {
        self.filed.store(true, Ordering::Relaxed);
        for slot in slots {
            self.set(slot, Phase::Loading);
        }
    }

    pub(super) fn set(&self, slot: u32, phase: Phase) {
        let mut phases = self.phases.write();
        // What is lost stays lost.
        if phases.get(&slot) != Some(&Phase::Lost) {
            phases.insert(slot, phase);
        }
    }

    /// Whether requests for groups of a slot can be answered.
    pub(super) fn check(&self, slot: u32) -> Result<(), GroupError> {
        let phases = self.phases.read();
        match phases.get(&slot) {
            Some(Phase::Ready) => Ok(()),
            Some(Phase::Loading) => Err(GroupError::CoordinatorLoading),
            None if !self.filed.load(Ordering::Relaxed) => Ok(()),
            Some(Phase::Lost) | None => Err(GroupError::NotCoordinator),
        }
    }

    /// Slots that are not ready, and not lost.
    pub(super) fn loading(&self) -> usize {
        let phases = self.phases.read();
        phases
            .values()
            .filter(|phase| **phase == Phase::Loading)
            .count()
    }

    /// A file with this name does not tell its group.
    pub(super) fn set_untold(&self, slot: u32, file_name: String) {
        self.untold.write().insert(file_name, slot);
    }

    /// The files that do not tell their group, with their slots.
    pub(super) fn untold(&self) -> BTreeMap<String, u32> {
        self.untold.read().clone()
    }

    /// What became of the file with this name is known.
    pub(super) fn is_told(&self, file_name: &str) {
        self.untold.write().remove(file_name);
    }

    /// The group's file was read: whether there is one is known.
    pub(super) fn told(&self, group: &str) {
        if !self.untold.read().is_empty() {
            let mut untold = self.untold.write();
            file_names(group).for_each(|name| {
                untold.remove(&name);
            });
        }
    }

    /// Whether such a file may be the group's: it has to be read before the group is answered.
    pub(super) fn may_be_untold(&self, group: &str) -> bool {
        let untold = self.untold.read();
        !untold.is_empty() && file_names(group).any(|name| untold.contains_key(&name))
    }

    /// The offsets of a group that nothing is known of.
    pub(super) fn new_state(&self, group: &str) -> OffsetState {
        if self.may_be_untold(group) {
            OffsetState::unread()
        } else {
            OffsetState::default()
        }
    }
}

fn file_names(group: &str) -> impl Iterator<Item = String> {
    (0..layout::OFFSETS_NAMES).map(move |number| {
        let path = layout::offsets_path(group, number);
        path.file_name().to_owned()
    })
}

//! What people ask of groups and their offsets.

use std::sync::Arc;

use super::offsets::membership;
use super::{Groups, Offsets};
use crate::machine::group::offsets::OffsetTable;
use crate::machine::group::{GroupError, GroupType};

/// One line of a list of groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedGroup {
    /// The group id.
    pub group: Arc<str>,
    /// Its type.
    pub group_type: GroupType,
    /// Kafka's name of its state.
    pub state: &'static str,
    /// `consumer`, or empty.
    pub protocol_type: Arc<str>,
}

impl Groups {
    /// Every group, by its id, but for those whose file can't be read.
    ///
    /// # Errors
    /// [`GroupError::CoordinatorLoading`] until every slot is taken over and the file of every
    /// group was looked at: a list would lack groups.
    pub fn list(&self) -> Result<Vec<ListedGroup>, GroupError> {
        self.check_running()?;
        if self.shared.slots.loading() > 0 {
            return Err(GroupError::CoordinatorLoading);
        }
        let now = self.now();
        let mut listed = Vec::new();
        for cell in self.cells() {
            let mut state = cell.lock();
            if !state.offsets.check_seen()? || state.is_missing() {
                continue;
            }
            state.keep_time(now);
            listed.push(ListedGroup {
                group: Arc::clone(cell.id()),
                group_type: GroupType::Classic,
                state: state.shown_state().name(),
                protocol_type: membership(&state).protocol_type.unwrap_or_default(),
            });
        }
        Ok(listed)
    }
}

impl Offsets {
    /// Everything that is durable of a group's offsets, staged ones too; `None` if there is no
    /// such group.
    ///
    /// # Errors
    /// As [`Offsets::fetch`].
    pub fn table(&self, group: &str) -> Result<Option<Arc<OffsetTable>>, GroupError> {
        let shown = self.on_cell(group, false, |state, _| {
            state.offsets.check()?;
            if state.is_missing() {
                return Ok(None);
            }
            Ok(Some(state.offsets.book.durable_table()))
        })?;
        shown.unwrap_or(Ok(None))
    }
}

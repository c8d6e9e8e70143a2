//! What people ask of a group's offsets.

use std::sync::Arc;

use super::Offsets;
use crate::machine::group::GroupError;
use crate::machine::group::offsets::OffsetTable;

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

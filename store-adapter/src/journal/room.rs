//! Room on the volume: reserved ahead of the rounds, and left to what frees it.

use super::files::path;
use super::queue::Queued;
use super::writer::Writer;
use crate::store::StoreError;
use crate::volume::{Reserve, VolumeError};

/// Space that is reserved ahead, bytes: a full disk is then found before anything is written.
const RESERVE_STEP: u64 = 8 << 20;
impl Writer {
    /// Why appends are refused though the disk is not full yet. What is reserved already is used
    /// up first; what deletes goes on.
    pub(super) async fn no_room_for(&self, taken: &[Queued]) -> Option<StoreError> {
        let bytes = taken.iter().map(|queued| queued.command.append_bytes());
        let bytes: usize = bytes.sum();
        let end = self.current.position.saturating_add(bytes as u64);
        let reserve = self.parts.config.reserve;
        if bytes == 0 || end <= self.current.allocated || reserve == Reserve::None {
            return None;
        }
        let space = self.parts.files.volume().space().await;
        if !space.is_ok_and(|space| reserve.is_touched(space)) {
            return None;
        }
        let path = path(self.current.id).to_string();
        if let Some(space) = &self.parts.config.space {
            space.refused(&path);
        }
        Some(StoreError::Full { path })
    }

    /// Makes sure of the space of a round, and of more.
    pub(super) async fn reserve(&mut self, len: u64) -> Result<(), StoreError> {
        let end = self.current.position.saturating_add(len);
        if end <= self.current.allocated {
            return Ok(());
        }
        let segment = self.parts.config.segment_bytes;
        let step = RESERVE_STEP.min(segment);
        // Not beyond where the file is closed: what is reserved there is nobody's until it goes.
        let ahead = end.saturating_add(step).min(segment.max(end));
        for wanted in [ahead, end] {
            match self.current.file.allocate(wanted).await {
                Ok(()) => {
                    self.current.allocated = wanted;
                    return Ok(());
                }
                Err(VolumeError::NoSpace { .. }) => {}
                // Reserving is a precaution; the write itself will tell.
                Err(_) => return Ok(()),
            }
        }
        let path = path(self.current.id).to_string();
        if let Some(space) = &self.parts.config.space {
            space.refused(&path);
        }
        Err(StoreError::Full { path })
    }
}

//! Owned files: how exactly one owner writes a file that many brokers can reach, without a lock
//! and without a clock.
//!
//! Each single-writer file belongs to an [`Area`], and an area to the highest *owner epoch* claimed
//! in it. A writer prepares every change in a *ticket*, a temporary file in the area's directory,
//! and renames it over the target. A taker claims, names itself in `current.json`, and unlinks the
//! tickets of all lower epochs before and after that. A writer that still read the old
//! `current.json` made its ticket before the second unlinking, so its rename either came before the
//! taker read the target, or has no source any more, however late a file server executes it.
//!
//! This module does not know what the files mean, and deletes a target only where it is told to.

mod area;
mod claim;
mod dir_syncs;
mod removal;
mod take_over;

use std::sync::Arc;

use dir_syncs::DirSyncs;

use crate::fault::{Fault, planted};
use crate::runtime::Random;
use crate::volume::{Volume, VolumeError, VolumePath};

pub use area::{Area, PresentOwner};
pub use claim::{Claim, Draft};

/// The most bytes of `current.json` that are read.
const CURRENT_MAX: u64 = 64 * 1024;

/// Why an owned file was not read, written or taken over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OwnedError {
    /// Another epoch owns the area. What was read of it before is out of date; whether the write
    /// that found out took effect is unknown, and is the new owner's to know.
    #[error("the area is owned by another epoch")]
    Stale,
    /// A file can't be what was written: it must not be overwritten by a guess.
    #[error("{path} is damaged: {why}")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// It failed and left no trace.
    #[error("not applied: {0}")]
    NotApplied(#[source] VolumeError),
    /// It failed and may have taken effect: read the target again before the next decision.
    #[error("maybe applied: {0}")]
    MaybeApplied(#[source] VolumeError),
}

/// Takes over areas of one volume.
#[derive(Debug, Clone)]
pub struct OwnedFiles {
    volume: Arc<dyn Volume>,
    random: Arc<dyn Random>,
    syncs: Arc<DirSyncs>,
}

impl OwnedFiles {
    /// Owned files of `volume`; `random` names the tickets and must not repeat itself within one
    /// owner epoch.
    pub fn new(volume: Arc<dyn Volume>, random: Arc<dyn Random>) -> Self {
        Self {
            volume,
            random,
            syncs: Arc::default(),
        }
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<dyn Volume> {
        &self.volume
    }

    /// fsyncs `dir`, unless the simulation wants to see what happens without. One sync serves
    /// everybody who asked before it began.
    async fn sync_dir(&self, dir: &VolumePath) -> Result<(), VolumeError> {
        if planted(Fault::DirectoryNotSynced) {
            return Ok(());
        }
        self.syncs.sync(&self.volume, dir).await
    }

    /// A further handle of an area that `owner` has taken over, beside the one it has already.
    ///
    /// # Errors
    /// `Stale` when another epoch owns the area, or nobody does; `NotApplied` when that could not
    /// be found out.
    pub async fn attach(&self, area: Area, owner: PresentOwner) -> Result<Claim, OwnedError> {
        match self.present_owner(area).await? {
            Some(present) if present == owner => Ok(Claim::new(self.clone(), area, owner)),
            _ => Err(OwnedError::Stale),
        }
    }

    /// Who owns `area` at present; `None` if nobody ever did. By a fresh open, and yet only a
    /// snapshot: nothing may be written on the strength of it.
    ///
    /// # Errors
    /// `NotApplied` when `current.json` can't be read, `Damaged` when it can't be understood.
    pub async fn present_owner(&self, area: Area) -> Result<Option<PresentOwner>, OwnedError> {
        let path = current_path(area);
        let bytes = match self.volume.read(&path, CURRENT_MAX).await {
            Ok(bytes) => bytes,
            Err(VolumeError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(OwnedError::NotApplied(error)),
        };
        PresentOwner::decode(&bytes)
            .map(Some)
            .map_err(|why| OwnedError::Damaged {
                path: path.to_string(),
                why,
            })
    }
}

fn current_path(area: Area) -> VolumePath {
    area.dir().join("current.json")
}

/// Unlinks `path`; one that is gone already is as good.
async fn remove_if_there(volume: &Arc<dyn Volume>, path: &VolumePath) -> Result<(), VolumeError> {
    match volume.remove(path).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

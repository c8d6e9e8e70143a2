//! `__consumer_offsets/*.json` on the volume, in the areas of the group slots.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use store_adapter::ids::OwnerEpoch;
use store_adapter::runtime::BoxFuture;
use store_adapter::volume::VolumePath;
use store_adapter::volume::owned::{Area, Claim, OwnedError, OwnedFiles, PresentOwner};

use super::files::Files;
use crate::service::groups::{FoundGroup, GroupFileError, GroupFiles};
use crate::volume::format::GroupOffsetsFile;
use crate::volume::layout::{self, OffsetsName};

/// The files of the groups that this broker coordinates. Its futures are awaited in io tasks only.
#[derive(Debug)]
pub struct VolumeGroupFiles {
    files: Files,
    owned: OwnedFiles,
    instance: u64,
    /// At most one a slot.
    claims: Mutex<BTreeMap<u32, Arc<Claim>>>,
}

impl VolumeGroupFiles {
    pub(super) fn new(files: Files, owned: OwnedFiles, instance: u64) -> Self {
        Self {
            files,
            owned,
            instance,
            claims: Mutex::default(),
        }
    }

    fn claimed(&self, slot: u32) -> Result<Arc<Claim>, GroupFileError> {
        let claims = self.claims.lock();
        claims.get(&slot).cloned().ok_or(GroupFileError::Stale)
    }

    async fn take(&self, slot: u32, epoch: OwnerEpoch) -> Result<Vec<FoundGroup>, OwnedError> {
        let owner = PresentOwner {
            epoch,
            broker: self.files.broker,
            instance: self.instance,
        };
        let claim = self.owned.take_over(Area::GroupSlot(slot), owner).await?;
        let written = claim.written().await?;
        self.claims.lock().insert(slot, Arc::new(claim));
        let dir = layout::offsets_dir();
        let written = written.iter().filter(|path| path.parent() == dir);
        Ok(written.filter_map(|path| found(path.file_name())).collect())
    }

    async fn load(
        &self,
        claim: &Claim,
        path: &VolumePath,
    ) -> Result<Option<GroupOffsetsFile>, OwnedError> {
        self.files.read(claim, path).await
    }

    async fn load_group(
        &self,
        slot: u32,
        group: &str,
    ) -> Result<Option<GroupOffsetsFile>, GroupFileError> {
        let claim = self.claimed(slot)?;
        let (path, _) = path_of(&claim, group).await?;
        let Some(file) = self.load(&claim, &path).await.map_err(file_error)? else {
            return Ok(None);
        };
        match &file.group {
            Some(inside) if inside != group => {
                let why = format!("it is of the group {inside:?}");
                let damaged = self.files.damaged(&path, why, None).await;
                Err(file_error(damaged))
            }
            _ => Ok(Some(file)),
        }
    }
}

impl GroupFiles for VolumeGroupFiles {
    fn claim(
        &self,
        slot: u32,
        epoch: OwnerEpoch,
    ) -> BoxFuture<'_, Result<Vec<FoundGroup>, GroupFileError>> {
        Box::pin(async move { self.take(slot, epoch).await.map_err(file_error) })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<FoundGroup>, GroupFileError>> {
        Box::pin(async move {
            let names = self.files.fresh_list(&layout::offsets_dir()).await;
            let names = names.map_err(|error| GroupFileError::NotApplied(error.to_string()))?;
            Ok(names
                .iter()
                .filter_map(|entry| found(&entry.name))
                .collect())
        })
    }

    fn identify<'a>(
        &'a self,
        slot: u32,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, GroupFileError>> {
        Box::pin(async move {
            let claim = self.claimed(slot)?;
            let path = layout::offsets_dir().join(name);
            if claim.is_condemned(&path).await.map_err(file_error)? {
                return Ok(None);
            }
            let file = self.load(&claim, &path).await.map_err(file_error)?;
            let Some(file) = file else {
                return Ok(None);
            };
            if let Some(group) = file.group
                && path_of(&claim, &group).await?.0 == path
            {
                return Ok(Some(group));
            }
            let why = "its name is not that of its group".to_owned();
            Err(file_error(self.files.damaged(&path, why, None).await))
        })
    }

    fn read<'a>(
        &'a self,
        slot: u32,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<GroupOffsetsFile>, GroupFileError>> {
        Box::pin(self.load_group(slot, group))
    }

    fn remove<'a>(
        &'a self,
        slot: u32,
        group: &'a str,
    ) -> BoxFuture<'a, Result<(), GroupFileError>> {
        Box::pin(async move {
            let claim = self.claimed(slot)?;
            let (path, number) = path_of(&claim, group).await?;
            if number + 1 == layout::OFFSETS_NAMES {
                // The group needs it.
                return Ok(());
            }
            claim.remove(&path).await.map_err(file_error)
        })
    }

    fn replace<'a>(
        &'a self,
        slot: u32,
        group: &'a str,
        file: GroupOffsetsFile,
    ) -> BoxFuture<'a, Result<(), GroupFileError>> {
        Box::pin(async move {
            let claim = self.claimed(slot)?;
            let (path, _) = path_of(&claim, group).await?;
            let replaced = self.files.replace(&claim, &path, &file).await;
            replaced.map_err(file_error)
        })
    }
}

/// Where the file of a group lies, and which of its names that is: the first one that nobody may
/// yet unlink.
async fn path_of(claim: &Claim, group: &str) -> Result<(VolumePath, u32), GroupFileError> {
    for number in 0..layout::OFFSETS_NAMES {
        let path = layout::offsets_path(group, number);
        if !claim.is_condemned(&path).await.map_err(file_error)? {
            return Ok((path, number));
        }
    }
    let why = "every name that its file may have is condemned";
    Err(GroupFileError::NotApplied(why.to_owned()))
}

fn found(name: &str) -> Option<FoundGroup> {
    match layout::offsets_group(name)? {
        OffsetsName::Group(group) => Some(FoundGroup::Named(group)),
        OffsetsName::Hashed(hash) => Some(FoundGroup::Hashed {
            hash,
            name: name.to_owned(),
        }),
    }
}

fn file_error(error: OwnedError) -> GroupFileError {
    match error {
        OwnedError::Stale => GroupFileError::Stale,
        OwnedError::Damaged { .. } => GroupFileError::Damaged(error.to_string()),
        OwnedError::NotApplied(error) => GroupFileError::NotApplied(error.to_string()),
        OwnedError::MaybeApplied(error) => GroupFileError::MaybeApplied(error.to_string()),
    }
}

//! `txn_state/*.json` on the volume, in the areas of the transaction slots.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use store_adapter::ids::OwnerEpoch;
use store_adapter::runtime::BoxFuture;
use store_adapter::volume::owned::{Area, Claim, OwnedError, OwnedFiles, PresentOwner};

use super::files::Files;
use crate::service::txns::{SlotFileError, SlotFiles};
use crate::slot_hash::fnv1a32;
use crate::volume::format::{SlotText, TXN_SLOTS, TxnSlotFile};
use crate::volume::layout::Place;

/// The transaction slots that this broker owns. Its futures are awaited in io tasks only.
#[derive(Debug)]
pub struct VolumeSlotFiles {
    files: Files,
    owned: OwnedFiles,
    instance: u64,
    /// At most one a slot.
    claims: Mutex<BTreeMap<u32, Arc<Claim>>>,
}

impl VolumeSlotFiles {
    pub(super) fn new(files: Files, owned: OwnedFiles, instance: u64) -> Self {
        Self {
            files,
            owned,
            instance,
            claims: Mutex::default(),
        }
    }

    /// The claim of a slot, if this broker has taken it over.
    pub(super) fn claim_of(&self, slot: u32) -> Option<Arc<Claim>> {
        self.claims.lock().get(&slot).cloned()
    }

    fn claimed(&self, slot: u32) -> Result<Arc<Claim>, SlotFileError> {
        self.claim_of(slot).ok_or(SlotFileError::Stale)
    }

    async fn take(&self, slot: u32, epoch: OwnerEpoch) -> Result<TxnSlotFile, OwnedError> {
        let owner = PresentOwner {
            epoch,
            broker: self.files.broker,
            instance: self.instance,
        };
        let claim = self.owned.take_over(Area::TxnSlot(slot), owner).await?;
        let found: Option<TxnSlotFile> = self
            .files
            .read(&claim, &Place::TxnSlot(slot).path())
            .await?;
        let previous = Place::TxnSlotPrevious(slot).path();
        if let Some(file) = &found {
            if let Some(id) = file.ids.keys().find(|id| !is_of(id, slot)) {
                // Before it takes the place of what it could be repaired from.
                let path = Place::TxnSlot(slot).path();
                let why = format!("{id:?} is of another slot");
                return Err(self.files.damaged(&path, why, None).await);
            }
            self.files.replace(&claim, &previous, file).await?;
        } else {
            let before: Option<TxnSlotFile> = self.files.read(&claim, &previous).await?;
            if before.is_some() {
                let why = "it is missing, though it had a generation before".to_owned();
                let path = Place::TxnSlot(slot).path();
                return Err(self.files.damaged(&path, why, None).await);
            }
        }
        self.claims.lock().insert(slot, Arc::new(claim));
        Ok(found.unwrap_or_default())
    }
}

impl SlotFiles for VolumeSlotFiles {
    fn claim(
        &self,
        slot: u32,
        epoch: OwnerEpoch,
    ) -> BoxFuture<'_, Result<TxnSlotFile, SlotFileError>> {
        Box::pin(async move { self.take(slot, epoch).await.map_err(file_error) })
    }

    fn load(&self, slot: u32) -> BoxFuture<'_, Result<TxnSlotFile, SlotFileError>> {
        Box::pin(async move {
            let claim = self.claimed(slot)?;
            let found = self.files.read(&claim, &Place::TxnSlot(slot).path()).await;
            Ok(found.map_err(file_error)?.unwrap_or_default())
        })
    }

    fn check(&self, slot: u32) -> BoxFuture<'_, Result<(), SlotFileError>> {
        Box::pin(async move {
            let claim = self.claimed(slot)?;
            claim.check().await.map_err(file_error)
        })
    }

    fn replace(&self, slot: u32, text: SlotText) -> BoxFuture<'_, Result<(), SlotFileError>> {
        Box::pin(async move {
            let claim = self.claimed(slot)?;
            let path = Place::TxnSlot(slot).path();
            let replaced = claim.replace(&path, text.bytes().clone()).await;
            replaced.map_err(file_error)
        })
    }
}

/// Whether a slot is that of an id.
fn is_of(id: &str, slot: u32) -> bool {
    fnv1a32(id.as_bytes()).checked_rem(TXN_SLOTS) == Some(slot)
}

fn file_error(error: OwnedError) -> SlotFileError {
    match error {
        OwnedError::Stale => SlotFileError::Stale,
        OwnedError::Damaged { .. } => SlotFileError::Damaged(error.to_string()),
        OwnedError::NotApplied(error) => SlotFileError::NotApplied(error.to_string()),
        OwnedError::MaybeApplied(error) => SlotFileError::MaybeApplied(error.to_string()),
    }
}

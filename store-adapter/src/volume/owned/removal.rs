//! Unlinking a target whose name may be used again.
//!
//! Unlinking is not fenced: what an owner has begun may be executed at any later time, also when
//! another owner has written the target anew. So it is announced by an owned file of the area, the
//! *intent* `x-<epoch>-<target>`, which is fenced: an owner that has been succeeded makes none, and
//! a successor finds every one that there is, for it looks behind its second sweep. The intent
//! goes, durably, when the unlinking was answered; only then may the target be written again.
//!
//! A target whose intent a successor finds, or of whose unlinking the end is not known, is
//! *condemned* for ever, by the owned file `c-<target>`: nobody writes or reads it any more, for
//! somebody may yet unlink it. Its owner goes on under another name, and so does everybody after
//! it, because nobody unlinks `c-<target>`.
//!
//! What counts of both files is that they are there, and their names: what is inside is for people,
//! and takes and gives nothing when it is damaged.

use bytes::Bytes;

use super::area::{condemned, condemned_name, intended, intent_name, mark_name, target_name};
use super::claim::MARK_LEN_MAX;
use super::{Claim, OwnedError, remove_if_there};
use crate::fault::{Fault, planted};
use crate::volume::{DirEntry, VolumeError, VolumePath};

impl Claim {
    /// Whether somebody may yet unlink `target`, so that it must not be used. It stays so.
    ///
    /// # Errors
    /// As of [`Claim::put`]: whether it is could not be made certain.
    pub async fn is_condemned(&self, target: &VolumePath) -> Result<bool, OwnedError> {
        let doubtful = self.doubtful.lock().contains(target);
        if doubtful {
            self.condemn(target).await?;
        }
        let condemned = self.condemned.lock();
        Ok(!condemned.is_empty() && condemned.contains(&target_name(target)))
    }

    /// Unlinks `target` and its mark: it was never written then. What it says must not matter any
    /// more. It may be written again when this returns `Ok`. Nothing else may be done with it at
    /// the same time.
    ///
    /// # Errors
    /// `Stale`: the area has another owner, and nothing was unlinked. `NotApplied`: nothing was
    /// unlinked. `MaybeApplied`: ask [`Claim::is_condemned`] before the target is used.
    pub async fn remove(&self, target: &VolumePath) -> Result<(), OwnedError> {
        let epoch = self.area().epoch_text(self.epoch());
        let name = intent_name(&epoch, &target_name(target));
        let intent = self.area().dir().join(&name);
        if !planted(Fault::RemovalNotAnnounced) {
            match self.put(&intent, text_of(target)).await {
                Err(OwnedError::MaybeApplied(error)) => return Err(self.doubt(target, error)),
                announced => announced?,
            }
        }
        let unlinked = async {
            self.unlink(target).await?;
            remove_if_there(self.volume(), &intent).await?;
            self.files.sync_dir(&self.area().dir()).await
        };
        unlinked.await.map_err(|error| self.doubt(target, error))
    }

    fn doubt(&self, target: &VolumePath, error: VolumeError) -> OwnedError {
        self.doubtful.lock().insert(target.clone());
        OwnedError::MaybeApplied(error)
    }

    /// In this order a crash leaves a target without a mark, not one that seems lost.
    pub(super) async fn unlink(&self, target: &VolumePath) -> Result<(), VolumeError> {
        self.marked.lock().remove(target);
        let dir = self.area().dir();
        remove_if_there(self.volume(), &dir.join(&mark_name(target).name)).await?;
        self.files.sync_dir(&dir).await?;
        remove_if_there(self.volume(), target).await?;
        self.files.sync_dir(&target.parent()).await
    }

    async fn condemn(&self, target: &VolumePath) -> Result<(), OwnedError> {
        self.record(&target_name(target), text_of(target)).await?;
        self.doubtful.lock().remove(target);
        Ok(())
    }

    async fn record(&self, target: &str, inside: Bytes) -> Result<(), OwnedError> {
        let record = self.area().dir().join(&condemned_name(target));
        self.put(&record, inside).await?;
        self.condemned.lock().insert(target.to_owned());
        Ok(())
    }

    /// Takes note of what is announced and condemned among an area's names, as they are behind the
    /// second sweep.
    pub(super) async fn note_condemned(&self, names: &[DirEntry]) -> Result<(), OwnedError> {
        let condemned = names.iter().filter_map(|entry| condemned(&entry.name));
        self.condemned.lock().extend(condemned.map(str::to_owned));
        for entry in names {
            let Some(target) = intended(&entry.name) else {
                continue;
            };
            if self.condemned.lock().contains(target) {
                continue;
            }
            let intent = self.area().dir().join(&entry.name);
            match self.volume().read(&intent, MARK_LEN_MAX).await {
                Ok(inside) => self.record(target, inside).await?,
                // Who announced it had its answer.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(OwnedError::NotApplied(error)),
            }
        }
        Ok(())
    }
}

fn text_of(target: &VolumePath) -> Bytes {
    Bytes::copy_from_slice(target.as_str().as_bytes())
}

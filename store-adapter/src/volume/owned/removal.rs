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

use bytes::Bytes;

use super::area::{
    MarkedTarget, condemned_name, condemned_target, intended_target, intent_name, mark_name,
    path_of,
};
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
        Ok(!condemned.is_empty() && condemned.contains(target))
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
        let name = intent_name(&epoch, target);
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
        let record = self.area().dir().join(&condemned_name(target));
        self.put(&record, text_of(target)).await?;
        self.condemned.lock().insert(target.clone());
        self.doubtful.lock().remove(target);
        Ok(())
    }

    /// Takes note of what is announced and condemned among an area's names, as they are behind the
    /// second sweep.
    pub(super) async fn note_condemned(&self, names: &[DirEntry]) -> Result<(), OwnedError> {
        for entry in names {
            if let Some(target) = condemned_target(&entry.name)
                && let Some(target) = self.resolve(&entry.name, target).await?
            {
                self.condemned.lock().insert(target);
            }
        }
        for entry in names {
            if let Some(target) = intended_target(&entry.name)
                && let Some(target) = self.resolve(&entry.name, target).await?
                && !self.condemned.lock().contains(&target)
            {
                self.condemn(&target).await?;
            }
        }
        Ok(())
    }

    /// The target of an intent or a record; `None` where it is gone meanwhile.
    async fn resolve(
        &self,
        name: &str,
        target: MarkedTarget,
    ) -> Result<Option<VolumePath>, OwnedError> {
        let path = match target {
            MarkedTarget::Named(target) => return Ok(Some(target)),
            MarkedTarget::Inside => self.area().dir().join(name),
        };
        match self.volume().read(&path, MARK_LEN_MAX).await {
            Ok(inside) => {
                let damaged = || OwnedError::Damaged {
                    path: path.to_string(),
                    why: "it does not name a target".to_owned(),
                };
                let inside = std::str::from_utf8(&inside).map_err(|_| damaged())?;
                Ok(Some(path_of(inside)))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(OwnedError::NotApplied(error)),
        }
    }
}

fn text_of(target: &VolumePath) -> Bytes {
    Bytes::copy_from_slice(target.as_str().as_bytes())
}

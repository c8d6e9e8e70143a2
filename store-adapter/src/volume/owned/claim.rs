//! What the owner of an area does: read targets, replace them, and check that it still owns them.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::area::{MarkedTarget, mark_name, marked_target, path_of, ticket_epoch};
use super::{Area, OwnedError, OwnedFiles, PresentOwner, remove_if_there};
use crate::fault::{Fault, planted};
use crate::ids::OwnerEpoch;
use crate::volume::{DirEntry, Volume, VolumeError, VolumeFile, VolumePath};

/// How many marked targets a claim remembers. Forgetting costs one more look.
const MARKED_MAX: usize = 4096;
/// The most bytes of a mark that has its target inside.
pub(super) const MARK_LEN_MAX: u64 = 64 << 10;
/// How many nonces are tried for one ticket.
const NONCE_TRIES: u32 = 16;

/// An area that was taken over. Two replaces of one target must not run at the same time; of
/// different targets they may.
#[derive(Debug)]
pub struct Claim {
    pub(super) files: OwnedFiles,
    area: Area,
    owner: PresentOwner,
    /// Targets whose mark is durable.
    pub(super) marked: Mutex<BTreeSet<VolumePath>>,
    /// Names of targets that are not used any more: see [`Claim::is_condemned`].
    pub(super) condemned: Mutex<BTreeSet<String>>,
    /// Targets that are to be condemned before they are looked at.
    pub(super) doubtful: Mutex<BTreeSet<VolumePath>>,
    /// Tickets whose rename or unlinking failed. A file server may yet execute such a rename, so
    /// they are unlinked before anything else is read or written.
    leftover: Mutex<BTreeSet<VolumePath>>,
}

/// A temporary file of the area.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) name: String,
    pub(super) path: VolumePath,
}

/// A replace that was begun: see [`Claim::begin`].
#[derive(Debug)]
pub struct Draft {
    ticket: Ticket,
    file: Arc<dyn VolumeFile>,
}

impl Draft {
    /// Where the content goes.
    pub fn file(&self) -> &Arc<dyn VolumeFile> {
        &self.file
    }
}

impl Claim {
    pub(super) fn new(files: OwnedFiles, area: Area, owner: PresentOwner) -> Self {
        Self {
            files,
            area,
            owner,
            marked: Mutex::default(),
            condemned: Mutex::default(),
            doubtful: Mutex::default(),
            leftover: Mutex::default(),
        }
    }

    /// The area.
    pub fn area(&self) -> Area {
        self.area
    }

    /// The epoch by which the area is owned.
    pub fn epoch(&self) -> OwnerEpoch {
        self.owner.epoch
    }

    /// The owner.
    pub fn owner(&self) -> PresentOwner {
        self.owner
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<dyn Volume> {
        self.files.volume()
    }

    /// Whether this epoch still owns the area, by a fresh open of `current.json`.
    ///
    /// # Errors
    /// `Stale` when another epoch owns it, `NotApplied` when that could not be found out.
    pub async fn check(&self) -> Result<(), OwnedError> {
        match self.files.present_owner(self.area).await? {
            Some(owner) if owner.epoch == self.owner.epoch => Ok(()),
            Some(_) => Err(OwnedError::Stale),
            None => Err(OwnedError::Damaged {
                path: super::current_path(self.area).to_string(),
                why: "it is gone, though the area was taken over".to_owned(),
            }),
        }
    }

    /// Begins a replace whose content is written piece by piece: the ticket exists, so that a
    /// taker can find it, before the present owner is read. End it with [`Claim::finish`] or
    /// [`Claim::abandon`].
    ///
    /// # Errors
    /// `Stale`: the area has another owner. `NotApplied`: nothing happened.
    pub async fn begin(&self) -> Result<Draft, OwnedError> {
        self.remove_leftover().await?;
        let (ticket, file) = self.new_ticket().await?;
        match self.check().await {
            Ok(()) => Ok(Draft { ticket, file }),
            Err(error) => {
                self.discard(&ticket).await;
                Err(error)
            }
        }
    }

    /// Makes what was written to `draft` durable and the content of `target`. Certain when it
    /// returns `Ok`. The target is not marked as written: it may be unlinked later.
    ///
    /// # Errors
    /// As of [`Claim::replace`].
    pub async fn finish(&self, draft: Draft, target: &VolumePath) -> Result<(), OwnedError> {
        if !planted(Fault::DraftNotSynced)
            && let Err(error) = draft.file.sync_data().await
        {
            self.discard(&draft.ticket).await;
            return Err(OwnedError::NotApplied(error));
        }
        self.rename(&draft.ticket, target).await
    }

    /// Gives up a replace that was begun.
    pub async fn abandon(&self, draft: Draft) {
        self.discard(&draft.ticket).await;
    }

    /// Replaces the whole content of `target`. Durable and certain when it returns `Ok`; only then
    /// may memory, effects and answers follow. The target's directory must exist.
    ///
    /// # Errors
    /// `Stale`: the area has another owner. `NotApplied`: nothing happened. `MaybeApplied`: read
    /// the target again before the next decision.
    pub async fn replace(&self, target: &VolumePath, bytes: Bytes) -> Result<(), OwnedError> {
        self.put(target, bytes).await?;
        self.mark(target).await.map_err(OwnedError::MaybeApplied)
    }

    /// As [`Claim::replace`], of a file that others rename or unlink in time: nobody may take it
    /// for lost when it is gone, so it has no mark, and [`Claim::read`] is not for it.
    ///
    /// # Errors
    /// As [`Claim::replace`].
    pub async fn put(&self, target: &VolumePath, bytes: Bytes) -> Result<(), OwnedError> {
        self.remove_leftover().await?;
        let (ticket, file) = self.new_ticket().await?;
        if let Err(error) = self.fill(&file, bytes).await {
            self.discard(&ticket).await;
            return Err(error);
        }
        self.rename(&ticket, target).await
    }

    /// Steps 4 and 5 of a replace.
    async fn rename(&self, ticket: &Ticket, target: &VolumePath) -> Result<(), OwnedError> {
        if let Err(error) = self.volume().rename(&ticket.path, target).await {
            // Without a source: unlinked by a taker, or renamed by a call whose answer was
            // lost, or it is the target's directory that is missing.
            if error.is_not_found() && self.check().await == Err(OwnedError::Stale) {
                return Err(OwnedError::Stale);
            }
            return Err(self.rename_failed(ticket, error).await);
        }
        let synced = self.files.sync_dir(&target.parent()).await;
        synced.map_err(OwnedError::MaybeApplied)
    }

    /// Steps 2 and 3 of a replace: the ticket exists, so that a taker can find it, before the
    /// present owner is read.
    async fn fill(&self, file: &Arc<dyn VolumeFile>, bytes: Bytes) -> Result<(), OwnedError> {
        self.check().await?;
        let wrote = file.write_at(0, &[bytes]).await;
        wrote.map_err(OwnedError::NotApplied)?;
        file.sync_data().await.map_err(OwnedError::NotApplied)
    }

    /// Reads `target`, of at most `max` bytes; `None` if it was never written. File and directory
    /// are fsynced, so that nothing is decided on what a power cut could take away.
    ///
    /// # Errors
    /// `Damaged` when it was written and is gone, empty or too large; `NotApplied` when it could
    /// not be read.
    pub async fn read(&self, target: &VolumePath, max: u64) -> Result<Option<Bytes>, OwnedError> {
        self.remove_leftover().await?;
        let mut found = self.read_file(target, max).await?;
        if found.is_none() && self.is_listed(&target.parent(), target.file_name()).await? {
            // The failed look-up was out of date.
            found = self.read_file(target, max).await?;
            if found.is_none() {
                let path = target.to_string();
                return Err(OwnedError::NotApplied(VolumeError::NotFound { path }));
            }
        }
        let why = match found {
            Some(bytes) if !bytes.is_empty() => {
                self.mark(target).await.map_err(OwnedError::NotApplied)?;
                return Ok(Some(bytes));
            }
            Some(_) => "it is empty, though it was written before",
            None => "it is missing, though it was written before",
        };
        if self.is_marked(target).await? {
            return Err(damaged(target, why));
        }
        Ok(None)
    }

    /// The durable content of `target`; `None` when the look-up failed.
    async fn read_file(&self, target: &VolumePath, max: u64) -> Result<Option<Bytes>, OwnedError> {
        let read = async {
            let file = match self.volume().open(target).await {
                Ok(file) => file,
                Err(error) if error.is_not_found() => return Ok(Ok(None)),
                Err(error) => return Err(error),
            };
            let len = file.size().await?;
            if len > max {
                return Ok(Err(damaged(
                    target,
                    &format!("{len} bytes, more than {max}"),
                )));
            }
            let bytes = file
                .read_at(0, usize::try_from(len).unwrap_or(usize::MAX))
                .await?;
            file.sync_data().await?;
            self.files.sync_dir(&target.parent()).await?;
            Ok(Ok(Some(bytes)))
        };
        read.await.map_err(OwnedError::NotApplied)?
    }

    /// Whether `dir` has `name`, believed also when it has not: the listing comes after an own
    /// create in that directory. Makes the directory if it is missing.
    async fn is_listed(&self, dir: &VolumePath, name: &str) -> Result<bool, OwnedError> {
        let look = async {
            // Named like a ticket, so that one that a crash leaves in an area is swept.
            let probe = dir.join(&self.ticket_name());
            match self.volume().create_new(&probe).await {
                Err(error) if error.is_not_found() => {
                    self.volume().create_dir_all(dir).await?;
                    self.volume().create_new(&probe).await?;
                }
                outcome => drop(outcome?),
            }
            let names = self.volume().list(dir).await?;
            if *dir == self.area.dir() {
                remove_if_there(self.volume(), &probe).await?;
            } else {
                self.remove_probes(dir, &names).await?;
            }
            Ok(names.iter().any(|entry| entry.name == name))
        };
        look.await.map_err(OwnedError::NotApplied)
    }

    /// Removes the own probe and those that crashes left outside of areas. One that another owner
    /// uses has done its work with its creation.
    async fn remove_probes(&self, dir: &VolumePath, names: &[DirEntry]) -> Result<(), VolumeError> {
        for entry in names {
            if ticket_epoch(&entry.name).is_some() {
                remove_if_there(self.volume(), &dir.join(&entry.name)).await?;
            }
        }
        Ok(())
    }

    /// Whether `target` has its "was written" mark.
    async fn is_marked(&self, target: &VolumePath) -> Result<bool, OwnedError> {
        let dir = self.area.dir();
        let name = mark_name(target).name;
        match self.volume().open(&dir.join(&name)).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => self.is_listed(&dir, &name).await,
            Err(error) => Err(OwnedError::NotApplied(error)),
        }
    }

    /// Every target of the area that was written, by the marks. To be asked after a take-over,
    /// whose own creates make the listing fresh. A mark that can't be understood is left out.
    ///
    /// # Errors
    /// `NotApplied` when the marks can't be read.
    pub async fn written(&self) -> Result<Vec<VolumePath>, OwnedError> {
        let dir = self.area.dir();
        let names = self.volume().list(&dir).await;
        let mut targets = Vec::new();
        for entry in names.map_err(OwnedError::NotApplied)? {
            let target = match marked_target(&entry.name) {
                Some(MarkedTarget::Named(target)) => target,
                Some(MarkedTarget::Inside) => {
                    let path = self
                        .volume()
                        .read(&dir.join(&entry.name), MARK_LEN_MAX)
                        .await;
                    let path = path.map_err(OwnedError::NotApplied)?;
                    let target = std::str::from_utf8(&path).map(path_of);
                    match target {
                        Ok(target) if mark_name(&target).name == entry.name => target,
                        _ => continue,
                    }
                }
                None => continue,
            };
            targets.push(target);
        }
        Ok(targets)
    }

    /// Makes the mark of `target` durable: it was written, so that it can't be missing later.
    ///
    /// After the first rename and before its answer. Made before it, a crash between the two would
    /// leave a target that looks damaged for ever and never was written.
    async fn mark(&self, target: &VolumePath) -> Result<(), VolumeError> {
        if self.marked.lock().contains(target) {
            return Ok(());
        }
        let dir = self.area.dir();
        let mark = mark_name(target);
        match self.volume().create_new(&dir.join(&mark.name)).await {
            Ok(file) if mark.hashed => {
                let path = Bytes::copy_from_slice(target.as_str().as_bytes());
                file.write_at(0, &[path]).await?;
            }
            // An existing one may still be in the cache only.
            Ok(_) | Err(VolumeError::AlreadyExists { .. }) => {}
            Err(error) => return Err(error),
        }
        self.files.sync_dir(&dir).await?;
        let mut marked = self.marked.lock();
        if marked.len() >= MARKED_MAX {
            marked.clear();
        }
        marked.insert(target.clone());
        Ok(())
    }

    /// Unlinks `target` for good, with its mark. Not fenced as [`Claim::remove`] is: for files
    /// whose name is never used again and whose time is over, which nobody may miss: there an
    /// owner of the past does nothing that the present one would not.
    ///
    /// # Errors
    /// Any failure: try again.
    pub async fn forget(&self, target: &VolumePath) -> Result<(), OwnedError> {
        self.unlink(target).await.map_err(OwnedError::MaybeApplied)
    }

    fn ticket_name(&self) -> String {
        let epoch = self.area.epoch_text(self.owner.epoch);
        format!("t-{epoch}-{:016x}", self.files.random.next_u64())
    }

    /// Makes a ticket. Its name is never used again: a rename of an earlier ticket that a file
    /// server still holds back must not find it.
    pub(super) async fn new_ticket(&self) -> Result<(Ticket, Arc<dyn VolumeFile>), OwnedError> {
        let mut tries = 0;
        loop {
            let name = self.ticket_name();
            let path = self.area.dir().join(&name);
            let ticket = Ticket { name, path };
            match self.volume().create_new(&ticket.path).await {
                Ok(file) => return Ok((ticket, file)),
                Err(VolumeError::AlreadyExists { .. }) if tries < NONCE_TRIES => tries += 1,
                Err(error) => {
                    self.discard(&ticket).await;
                    return Err(OwnedError::NotApplied(error));
                }
            }
        }
    }

    /// After a failed rename: with its ticket unlinked it can't happen any more, and has not.
    pub(super) async fn rename_failed(&self, ticket: &Ticket, error: VolumeError) -> OwnedError {
        match self.volume().remove(&ticket.path).await {
            Ok(()) => OwnedError::NotApplied(error),
            Err(removing) => {
                if !removing.is_not_found() {
                    self.leftover.lock().insert(ticket.path.clone());
                }
                OwnedError::MaybeApplied(error)
            }
        }
    }

    /// Unlinks a ticket that will not be renamed, now or before the next read or write.
    pub(super) async fn discard(&self, ticket: &Ticket) {
        if let Err(error) = remove_if_there(self.volume(), &ticket.path).await {
            tracing::debug!(%error, "a ticket stays for now");
            self.leftover.lock().insert(ticket.path.clone());
        }
    }

    /// At most one ticket for each call that ran at the same time: none starts before they are
    /// gone.
    async fn remove_leftover(&self) -> Result<(), OwnedError> {
        loop {
            let Some(path) = self.leftover.lock().first().cloned() else {
                return Ok(());
            };
            let removed = remove_if_there(self.volume(), &path).await;
            removed.map_err(OwnedError::NotApplied)?;
            self.leftover.lock().remove(&path);
        }
    }
}

fn damaged(path: &VolumePath, why: &str) -> OwnedError {
    OwnedError::Damaged {
        path: path.to_string(),
        why: why.to_owned(),
    }
}

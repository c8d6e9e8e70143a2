//! Gives space back: writes a closed journal file anew without what nobody needs any more.
//!
//! A file goes when no log needs it. One that a few logs still need is written anew with their
//! batches alone, once less than half of it is needed, and takes the old one's place by the
//! owned-file primitive: whole and durable, under the same name, by one rename. So the order of
//! files and offsets stays, a crash leaves the one or the other, and a fenced owner changes
//! nothing. In the background, one file at a time, slower than the disk.
//!
//! Compaction goes the same way: the batches of some logs pass a sieve while their file is written
//! anew (`sift.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use super::copying::{Needed, Output, data_len};
use super::extents::{Extent, FileIndex, Segment, from_offset};
use super::file::{FILE_HEADER_LEN, FileHeader, FileId};
use super::files::{Closed, Files, path};
use super::garbage::Garbage;
use super::round::footer;
use super::shard::{Log, Registry, Shard};
use super::sift::Sifters;
use super::{FlushPolicy, JournalConfig, keeper};
use crate::fault::{Fault, planted};
use crate::runtime::Env;
use crate::volume::owned::{Claim, Draft, OwnedError};
use crate::volume::{VolumeError, VolumeFile};

/// How long freed bytes gather before files are looked at.
const GATHER: Duration = Duration::from_millis(200);
/// When it is tried again after an error.
const RETRY: Duration = Duration::from_secs(5);
/// Bytes of one round of a file that is written anew.
const ROUND_BYTES: usize = 1 << 20;
/// Pause behind each round, and behind as much that is read: about 64 MiB/s at most.
const PAUSE: Duration = Duration::from_millis(15);

/// Bytes that were read since others could last use the disk.
#[derive(Debug, Default)]
pub(super) struct Pace(usize);

/// Gives the space of one shard back.
#[derive(Debug)]
pub(crate) struct Rewriter {
    pub(crate) env: Env,
    pub(crate) config: JournalConfig,
    pub(crate) files: Arc<Files>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) shard: Arc<Shard>,
    pub(crate) claim: Arc<Claim>,
    pub(crate) garbage: Arc<Garbage>,
}

/// Why a file was not written anew.
#[derive(Debug)]
pub(super) enum Failed {
    /// This file is not as its index says: left alone for good.
    Damaged(FileId),
    /// The shard is closed, or another owner's.
    Ended,
    /// More of it is needed than was thought.
    NotWorth,
    /// There is no room for what is kept of it beside the old one.
    NoRoom,
    /// Nothing happened, and it may go better later.
    Step(VolumeError),
    /// It may have taken the old one's place. Readers go on with the old one, which is as good, and
    /// the next one that takes the place settles it.
    Unsure(VolumeError),
}

impl From<VolumeError> for Failed {
    fn from(error: VolumeError) -> Self {
        Self::Step(error)
    }
}

impl From<OwnedError> for Failed {
    fn from(error: OwnedError) -> Self {
        match error {
            OwnedError::Stale => Self::Ended,
            OwnedError::NotApplied(error) => Self::Step(error),
            OwnedError::MaybeApplied(error) => Self::Unsure(error),
            OwnedError::Damaged { path, why } => Self::Step(VolumeError::Io {
                path,
                what: "read",
                cause: why,
            }),
        }
    }
}

impl Rewriter {
    /// Works until the writer has ended.
    pub(crate) async fn run(self) {
        self.work().await;
        self.shard.rewrites.close();
    }

    async fn work(&self) {
        let mut left_alone = Vec::new();
        let mut unsettled = None;
        let mut again = false;
        loop {
            tokio::select! {
                biased;
                () = self.garbage.ended.cancelled() => return,
                () = self.garbage.more.notified() => {}
                () = self.shard.rewrites.pushed() => {}
                () = self.env.clock.sleep(RETRY), if again => {}
            }
            tokio::select! {
                biased;
                () = self.garbage.ended.cancelled() => return,
                () = self.env.clock.sleep(GATHER) => {}
            }
            match self.look(&mut left_alone, &mut unsettled).await {
                Ok(more) => again = more,
                Err(_) => return,
            }
        }
    }

    /// Does what there is to do; whether some of it may go better later. An error: the shard has
    /// ended.
    async fn look(
        &self,
        left_alone: &mut Vec<FileId>,
        unsettled: &mut Option<FileId>,
    ) -> Result<bool, Failed> {
        if !self.settle(left_alone, unsettled).await? {
            return Ok(true);
        }
        let mut again = self.is_current_garbage() && self.leave_current().await.is_err();
        again |= self.sift(left_alone).await?;
        again |= self.give_back(left_alone).await?;
        Ok(again | self.join(left_alone, unsettled).await?)
    }

    /// Writes files anew of which little is needed; whether some may go better later. An error: the
    /// shard has ended.
    pub(super) async fn give_back(&self, left_alone: &mut Vec<FileId>) -> Result<bool, Failed> {
        let mut again = false;
        // Files that this pass is done with, whatever came of it.
        let mut passed = Vec::new();
        while let Some((id, closed)) = self.pick(left_alone, &passed) {
            passed.push(id);
            match self.rewrite(id, closed.len).await {
                Ok(()) | Err(Failed::NotWorth) => {}
                Err(Failed::Ended) => return Err(Failed::Ended),
                // It is gone: nobody needs it any more.
                Err(Failed::Step(_)) if !self.files.has(id) => {}
                Err(failed) => again |= self.note(id, failed, left_alone),
            }
        }
        Ok(again)
    }

    /// Says why a file was not written anew; whether it may go better later.
    pub(super) fn note(&self, id: FileId, failed: Failed, left_alone: &mut Vec<FileId>) -> bool {
        let path = path(id);
        match failed {
            Failed::Ended | Failed::NotWorth => false,
            Failed::Damaged(id) => {
                if self.files.damaged(id) {
                    let path = super::files::path(id);
                    tracing::error!(%path, "a journal file is damaged; it is kept");
                }
                left_alone.push(id);
                false
            }
            Failed::NoRoom => {
                tracing::debug!(%path, "too little space is free to write a journal file anew");
                true
            }
            Failed::Unsure(error) => {
                tracing::warn!(%path, %error, "a journal file may have been written anew");
                true
            }
            Failed::Step(error) => {
                tracing::warn!(%path, %error, "a journal file could not be written anew");
                true
            }
        }
    }

    async fn rewrite(&self, id: FileId, len: u64) -> Result<(), Failed> {
        let needed = self.needed(id).await?;
        if bytes_of(&needed) >= len / 2 {
            return Err(Failed::NotWorth);
        }
        let mut sifters = Sifters::default();
        self.replace(&[id], &needed, &mut sifters).await
    }

    /// Writes the first of `files`, which follow one another, anew with what is needed of all of
    /// them, as far as the sieves leave it. It is in order of logs and files.
    pub(super) async fn replace(
        &self,
        files: &[FileId],
        needed: &[Needed],
        sifters: &mut Sifters,
    ) -> Result<(), Failed> {
        let kept = bytes_of(needed);
        if let Ok(space) = self.files.volume().space().await {
            let reserve = self.config.reserve;
            let fits = if sifters.is_empty() {
                // It is done to give space back.
                reserve.has_room_to_free(kept, space)
            } else {
                reserve.has_room_for(kept, space)
            };
            if !fits {
                return Err(Failed::NoRoom);
            }
        }
        let header = self.header_over(files).await?;
        let draft = self.claim.begin().await?;
        match self.fill(header, needed, sifters, &draft).await {
            Ok((closed, index)) => self.put(files, closed, index, draft).await,
            Err(failed) => {
                self.claim.abandon(draft).await;
                Err(failed)
            }
        }
    }

    /// The header of the first of `files`, if it answers for the lsns of all of them.
    async fn header_over(&self, files: &[FileId]) -> Result<FileHeader, Failed> {
        let (Some(first), Some(last)) = (files.first(), files.last()) else {
            return Err(Failed::NotWorth);
        };
        let (first, last) = (self.header(*first).await?, self.header(*last).await?);
        let end = match last.rewritten {
            Some(_) => last.end_lsn(0),
            None => last.end_lsn(data_len(&self.files, last.id).await?),
        };
        let answers = end.checked_sub(first.first_lsn);
        Ok(FileHeader {
            rewritten: Some(answers.ok_or(Failed::Damaged(last.id))?),
            unsynced: false,
            ..first
        })
    }

    async fn header(&self, id: FileId) -> Result<FileHeader, Failed> {
        let file = self.files.handle(id).await?;
        let bytes = file.read_at(0, FILE_HEADER_LEN).await?;
        FileHeader::decode(id, &bytes).map_err(|_| Failed::Damaged(id))
    }

    /// What of `id` the logs need. What they do not need, they will not after a crash either.
    pub(super) async fn needed(&self, id: FileId) -> Result<Vec<Needed>, Failed> {
        let index = self.files.index(id).await?;
        let mut all = Vec::new();
        for (log, extents) in &index.logs {
            let Some(log) = self.registry.get(*log).filter(|log| self.has(log, id)) else {
                continue;
            };
            let start = log.bounds.borrow().start;
            let extents = from_offset(extents, start).to_vec();
            all.push(Needed {
                log: log.id,
                file: id,
                start,
                extents,
            });
        }
        if self.config.flush == FlushPolicy::Os {
            // A trim that a power cut takes back must not miss what it trimmed.
            let current = Arc::clone(&self.garbage.current.lock());
            current.sync_data().await?;
        }
        Ok(all)
    }

    /// What the logs know of a file that was written anew: its real bytes, which were an estimate.
    fn summarise(&self, id: FileId, index: &FileIndex) {
        for (log, extents) in &index.logs {
            let (Some(log), Some(now)) = (self.registry.get(*log), Segment::of(id, extents)) else {
                continue;
            };
            let mut index = log.index.write();
            if let Some(segment) = index.sealed.iter_mut().find(|segment| segment.file == id) {
                *segment = now;
            }
        }
    }

    fn has(&self, log: &Log, id: FileId) -> bool {
        let index = log.index.read();
        // One that is being sealed may still be the active file of some logs.
        let sealed = index.sealed.iter().any(|segment| segment.file == id);
        log.shard.id == self.shard.id && (sealed || index.active_file == Some(id))
    }

    /// Writes what is needed to `draft`, as it comes.
    async fn fill(
        &self,
        header: FileHeader,
        needed: &[Needed],
        sifters: &mut Sifters,
        draft: &Draft,
    ) -> Result<(Closed, FileIndex), Failed> {
        let seed = header.id.seed();
        let mut out = Output::new(header);
        let mut pace = Pace::default();
        for (at, one) in needed.iter().enumerate() {
            let old = self.files.handle(one.file).await?;
            for extent in &one.extents {
                let bytes = self.read(&*old, extent, &mut pace).await?;
                sifters
                    .take_extent(&bytes, extent, one, &mut out)
                    .ok_or(Failed::Damaged(one.file))?;
                if out.round.len() >= ROUND_BYTES {
                    self.write(&mut out, draft).await?;
                    pace = Pace::default();
                }
                self.rest_if_due(&mut pace).await?;
            }
            if needed.get(at + 1).is_none_or(|next| next.log != one.log) {
                sifters.end(one.log, &mut out);
            }
        }
        self.write(&mut out, draft).await?;
        let position = out.position;
        let footer = footer(out.index.encode_footer(position), seed, position);
        let len: usize = footer.iter().map(Bytes::len).sum();
        draft.file().write_at(position, &footer).await?;
        let closed = Closed {
            len: position.saturating_add(len as u64),
            footer: true,
        };
        Ok((closed, out.index))
    }

    /// Writes one round, and lets others use the disk.
    async fn write(&self, out: &mut Output, draft: &Draft) -> Result<(), Failed> {
        let (position, bytes) = out.close();
        let counters = &self.config.counters;
        let len = bytes.len() as u64;
        counters.rewritten_bytes.fetch_add(len, Ordering::Relaxed);
        draft.file().write_at(position, &[bytes]).await?;
        if !planted(Fault::DraftNotSynced) {
            draft.file().sync_data().await?;
        }
        self.rest().await
    }

    /// Lets others use the disk.
    async fn rest(&self) -> Result<(), Failed> {
        tokio::select! {
            biased;
            () = self.garbage.ended.cancelled() => Err(Failed::Ended),
            () = self.env.clock.sleep(PAUSE) => Ok(()),
        }
    }

    /// Lets others use the disk, if enough was read.
    pub(super) async fn rest_if_due(&self, pace: &mut Pace) -> Result<(), Failed> {
        if pace.0 < ROUND_BYTES {
            return Ok(());
        }
        *pace = Pace::default();
        self.rest().await
    }

    /// Reads an extent, unless the shard ends before it is there.
    pub(super) async fn read(
        &self,
        file: &dyn VolumeFile,
        extent: &Extent,
        pace: &mut Pace,
    ) -> Result<Bytes, Failed> {
        let len = usize::try_from(extent.span).unwrap_or(usize::MAX);
        pace.0 = pace.0.saturating_add(len);
        tokio::select! {
            biased;
            () = self.garbage.ended.cancelled() => Err(Failed::Ended),
            bytes = file.read_at(extent.position, len) => Ok(bytes?),
        }
    }

    async fn put(
        &self,
        files: &[FileId],
        closed: Closed,
        index: FileIndex,
        draft: Draft,
    ) -> Result<(), Failed> {
        let Some((&id, others)) = files.split_first() else {
            return Err(Failed::NotWorth);
        };
        if let Err(error) = self.files.hold(id).await {
            self.claim.abandon(draft).await;
            // It is gone: nobody needs it any more.
            return if error.is_not_found() {
                Ok(())
            } else {
                Err(error.into())
            };
        }
        let before = self.files.closed_len(id);
        // The logs of a shard that closes are forgotten: nothing seems to be needed of it.
        if self.garbage.ended.is_cancelled() {
            self.files.kept(id);
            self.claim.abandon(draft).await;
            return Err(Failed::Ended);
        }
        match self.claim.finish(draft, &path(id)).await {
            Ok(()) => {
                let mut freed = before;
                for other in others {
                    freed = freed.saturating_add(self.files.closed_len(*other));
                    self.files.count(*other);
                }
                freed = freed.saturating_sub(closed.len);
                tracing::debug!(path = %path(id), freed, "a journal file was written anew");
                // The writer does it where others go, which count their logs.
                if others.is_empty() {
                    self.summarise(id, &index);
                }
                let doomed = self.files.swapped(id, closed, index);
                let counters = &self.config.counters;
                counters.rewrites.fetch_add(1, Ordering::Relaxed);
                counters.freed_bytes.fetch_add(freed, Ordering::Relaxed);
                self.remove_if(doomed, id).await;
                Ok(())
            }
            // Readers hold the old one, in its place or not.
            Err(OwnedError::MaybeApplied(error)) => {
                self.remove_if(self.files.unsure(id), id).await;
                Err(Failed::Unsure(error))
            }
            // Whoever owns it now cleans up.
            Err(OwnedError::Stale) => {
                self.files.kept(id);
                Err(Failed::Ended)
            }
            Err(error) => {
                self.remove_if(self.files.kept(id), id).await;
                Err(error.into())
            }
        }
    }

    /// Removes a file that was to go while it was written anew.
    async fn remove_if(&self, doomed: bool, id: FileId) {
        if doomed {
            keeper::remove(&self.files, id).await;
        }
    }
}

/// How many bytes that is.
fn bytes_of(needed: &[Needed]) -> u64 {
    let extents = needed.iter().flat_map(|one| &one.extents);
    extents.map(|extent| u64::from(extent.bytes)).sum()
}

//! Compaction in the journal: batches of some logs pass a sieve while their file is written anew.
//!
//! The frames of a log tile its offsets, also where batches are gone: the frame of the next batch
//! that is left begins where the first one of those began. Where none that was sifted follows in
//! the file, the last one stays as a batch of nobody and without records. So every reader, and
//! every check that nothing is missing, finds for each offset one frame that answers for it.
//!
//! Files are taken in order of offset, and a log is left where one of its files could not be
//! written: what made a batch needless may not go before that batch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::FlushPolicy;
use super::asked::{Asked, closed};
use super::copying::{Needed, Taker, each_needed};
use super::extents::Extent;
use super::file::FileId;
use super::files::path;
use super::frame::Frame;
use super::queue::{Command, Reply, answer};
use super::rewrite::{Failed, Pace, Rewriter};
use crate::batch::BatchHeader;
use crate::ids::LogId;
use crate::rebuild::filler;
use crate::store::{Left, Op, Rewrite, Rewritten, Sieve, StoreError, StoredBatch};

/// A log that is being sifted.
#[derive(Debug)]
struct Sifting {
    rewrite: Rewrite,
    reply: Reply<Rewritten>,
    report: Rewritten,
    /// Whether a file of it could not be done: no later one is.
    stopped: bool,
    /// Why, if it was refused.
    refused: Option<StoreError>,
}

/// The sieve of one log before what is written.
#[derive(Debug)]
struct Sifter {
    sieve: Arc<dyn Sieve>,
    /// Batches that end at or behind it pass.
    upto: i64,
    /// Where the batches that are gone began, and the last one of them.
    gone: Option<(i64, Frame, Bytes)>,
    bytes_before: u64,
    bytes_after: u64,
    changed: bool,
}

/// The sieves of the logs of one file.
#[derive(Debug, Default)]
pub(super) struct Sifters(BTreeMap<LogId, Sifter>);

impl Sifters {
    /// Hands what the sieves leave of an extent to `out`; as of [`each_needed`].
    pub(super) fn take_extent(
        &mut self,
        bytes: &Bytes,
        extent: &Extent,
        needed: &Needed,
        out: &mut dyn Taker,
    ) -> Option<()> {
        let sifter = self.0.get_mut(&needed.log);
        let mut before = Before { sifter, out };
        each_needed(bytes, extent, needed, &mut before)
    }

    /// The log has nothing more in the file.
    pub(super) fn end(&mut self, log: LogId, out: &mut dyn Taker) {
        if let Some(sifter) = self.0.get_mut(&log) {
            sifter.end(out);
        }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether something of what they were given is left out.
    fn change_something(&self) -> bool {
        self.0.values().any(|sifter| sifter.changed)
    }

    fn of<'a>(logs: impl Iterator<Item = &'a Sifting>) -> Self {
        let sifters = logs.map(|sifting| {
            let Rewrite {
                log, sieve, upto, ..
            } = &sifting.rewrite;
            (*log, Sifter::new(Arc::clone(sieve), *upto))
        });
        Self(sifters.collect())
    }

    /// One sieve for all that is written of `logs`.
    pub(super) fn all(logs: impl Iterator<Item = LogId>, sieve: &Arc<dyn Sieve>) -> Self {
        let sifters = logs.map(|log| (log, Sifter::new(Arc::clone(sieve), i64::MAX)));
        Self(sifters.collect())
    }
}

/// Takes the frames of one log and hands on what is left of them.
struct Before<'a> {
    sifter: Option<&'a mut Sifter>,
    out: &'a mut dyn Taker,
}

impl Taker for Before<'_> {
    fn take(&mut self, frame: &Frame, batch: &Bytes) {
        match &mut self.sifter {
            Some(sifter) => sifter.take(frame, batch, self.out),
            None => self.out.take(frame, batch),
        }
    }
}

impl Sifter {
    fn new(sieve: Arc<dyn Sieve>, upto: i64) -> Self {
        Self {
            sieve,
            upto,
            gone: None,
            bytes_before: 0,
            bytes_after: 0,
            changed: false,
        }
    }

    fn take(&mut self, frame: &Frame, batch: &Bytes, out: &mut dyn Taker) {
        let header = BatchHeader::read(batch).ok();
        let Some(header) = header.filter(|_| frame.last() < self.upto) else {
            // A reader that may come up to there only has to find how far that is.
            self.end(out);
            out.take(frame, batch);
            return;
        };
        self.bytes_before += frame.len();
        let stored = StoredBatch {
            bytes: batch.clone(),
            base_offset: header.base_offset,
            last_offset: frame.last(),
            append_ms: frame.append_ms,
        };
        match self.sieve.sift(&stored) {
            Left::Whole => {
                self.bytes_after += frame.len();
                self.put(frame, batch, out);
            }
            Left::Batch(left) => {
                self.changed = true;
                let frame = resized(frame, &left);
                self.bytes_after += frame.len();
                self.put(&frame, &left, out);
            }
            Left::Nothing => {
                let base = self.gone.as_ref().map_or(frame.base, |(base, ..)| *base);
                self.gone = Some((base, *frame, batch.clone()));
                let range = frame.last().saturating_sub(base);
                // One frame can't answer for more.
                if i32::try_from(range).is_err() {
                    self.end(out);
                }
            }
        }
    }

    /// Hands on a frame that also answers for what is gone before it.
    fn put(&mut self, frame: &Frame, batch: &Bytes, out: &mut dyn Taker) {
        let Some((base, ..)) = self.gone else {
            out.take(frame, batch);
            return;
        };
        let Ok(range) = u32::try_from(frame.last().saturating_sub(base)) else {
            self.end(out);
            out.take(frame, batch);
            return;
        };
        self.gone = None;
        self.changed = true;
        let frame = Frame {
            base,
            last_delta: range,
            ..*frame
        };
        out.take(&frame, batch);
    }

    /// Nothing follows what is gone: its last batch stays, without records.
    fn end(&mut self, out: &mut dyn Taker) {
        let Some((base, frame, batch)) = self.gone.take() else {
            return;
        };
        let left = BatchHeader::read(&batch).map_or_else(|_| batch.clone(), |h| filler(&h));
        self.changed |= left != batch || base != frame.base;
        let range = frame.last().saturating_sub(base);
        let whole = Frame {
            base,
            last_delta: u32::try_from(range).unwrap_or(u32::MAX),
            ..resized(&frame, &left)
        };
        self.bytes_after += whole.len();
        out.take(&whole, &left);
    }
}

/// The frame of a batch that stands in place of another.
fn resized(frame: &Frame, batch: &Bytes) -> Frame {
    let time = BatchHeader::read(batch).map(|header| header.max_timestamp);
    Frame {
        payload_len: u32::try_from(batch.len()).unwrap_or(u32::MAX),
        max_timestamp: time.unwrap_or(frame.max_timestamp),
        ..*frame
    }
}

/// Takes frames to see what the sieves make of them.
struct Nowhere;

impl Taker for Nowhere {
    fn take(&mut self, _frame: &Frame, _batch: &Bytes) {}
}

impl Rewriter {
    /// Does all rewrites that wait, file by file, and between two of them what gives back what was
    /// given up meanwhile: there may be as many as the shard has. Whether something of that may go
    /// better later. An error: the shard has ended.
    pub(super) async fn sift(&self, left_alone: &mut Vec<FileId>) -> Result<bool, Failed> {
        let asked = self.shard.rewrites.take();
        let mut logs = self.admit(asked).await;
        let files: BTreeSet<FileId> = logs.values().flat_map(|one| self.files_of(one)).collect();
        let mut outcome = Ok(());
        let mut again = false;
        for id in files {
            if outcome.is_ok() && self.garbage.more.notified().now_or_never().is_some() {
                match self.give_back(left_alone).await {
                    Ok(more) => again |= more,
                    Err(ended) => outcome = Err(ended),
                }
            }
            if self.garbage.ended.is_cancelled() {
                outcome = Err(Failed::Ended);
            }
            if outcome.is_err() || logs.values().all(|one| one.stopped) {
                break;
            }
            match self.sift_file(id, &mut logs, left_alone).await {
                Ok(()) => {}
                Err(Failed::Ended) => outcome = Err(Failed::Ended),
                // It is gone: nobody needs it any more.
                Err(Failed::Step(_)) if !self.files.has(id) => {}
                Err(failed) => {
                    self.note(id, failed, left_alone);
                    for one in logs
                        .values_mut()
                        .filter(|one| self.segment(one, id).is_some())
                    {
                        one.stopped = true;
                    }
                }
            }
        }
        for one in logs.into_values() {
            let refused = one.refused.or_else(|| outcome.is_err().then(closed));
            let refused = refused.filter(|_| one.report.bytes_before == 0);
            answer(one.reply, refused.map_or(Ok(one.report), Err));
        }
        outcome.map(|()| again)
    }

    /// The rewrites whose epochs hold their logs.
    async fn admit(&self, asked: Vec<Asked>) -> BTreeMap<LogId, Sifting> {
        let mut logs = BTreeMap::new();
        for Asked { rewrite, reply } in asked {
            let id = rewrite.log;
            if logs.contains_key(&id) {
                let twice = "the log is being compacted".to_owned();
                answer(reply, Err(StoreError::Unavailable(twice)));
                continue;
            }
            let may = match self.check_epoch(&rewrite).await {
                Ok(()) => self.seal(&rewrite).await,
                refused => refused,
            };
            if let Err(error) = may {
                answer(reply, Err(error));
                continue;
            }
            let log = self.registry.get(id);
            let start = log.map_or(0, |log| log.bounds.borrow().start);
            let report = Rewritten {
                upto: start,
                ..Rewritten::default()
            };
            let sifting = Sifting {
                rewrite,
                reply,
                report,
                stopped: false,
                refused: None,
            };
            logs.insert(id, sifting);
        }
        logs
    }

    /// Whether the epoch still holds the log: a trim that moves nothing is refused otherwise.
    async fn check_epoch(&self, rewrite: &Rewrite) -> Result<(), StoreError> {
        let (reply, outcome) = oneshot::channel();
        let (log, epoch) = (rewrite.log, rewrite.epoch);
        let trim = Op::Trim {
            log,
            epoch,
            start: 0,
        };
        self.shard.queue.push(Command::Group(vec![trim], reply));
        outcome.await.unwrap_or(Err(StoreError::Fenced))
    }

    /// Has the file that is being written closed, if something to be sifted is in it. For several
    /// logs it is closed once.
    async fn seal(&self, rewrite: &Rewrite) -> Result<(), StoreError> {
        let log = self.registry.get(rewrite.log);
        let first = log.and_then(|log| log.index.read().active.first().map(|first| first.base));
        if !rewrite.seal || first.is_none_or(|base| base >= rewrite.upto) {
            return Ok(());
        }
        self.leave_current().await
    }

    /// Has the file that is being written closed.
    pub(super) async fn leave_current(&self) -> Result<(), StoreError> {
        let (reply, outcome) = oneshot::channel();
        self.shard.queue.push(Command::Roll(reply));
        outcome.await.unwrap_or_else(|_| Err(closed()))
    }

    /// The closed files in which the log has something to be sifted.
    fn files_of(&self, sifting: &Sifting) -> Vec<FileId> {
        let Some(log) = self.registry.get(sifting.rewrite.log) else {
            return Vec::new();
        };
        let index = log.index.read();
        let below = |base: i64| base < sifting.rewrite.upto;
        let segments = index.sealed.iter().filter(|segment| below(segment.base));
        segments.map(|segment| segment.file).collect()
    }

    /// Behind the last offset of the log in a closed file.
    fn segment(&self, sifting: &Sifting, id: FileId) -> Option<i64> {
        let log = self.registry.get(sifting.rewrite.log)?;
        let index = log.index.read();
        let segment = index.sealed.iter().find(|segment| segment.file == id)?;
        Some(segment.last.saturating_add(1))
    }

    async fn sift_file(
        &self,
        id: FileId,
        logs: &mut BTreeMap<LogId, Sifting>,
        left_alone: &[FileId],
    ) -> Result<(), Failed> {
        let here = |one: &&Sifting| !one.stopped && self.segment(one, id).is_some();
        let mut sifters = Sifters::of(logs.values().filter(here));
        // Of one that is not there nobody needs anything any more.
        if !self.files.has(id) || sifters.is_empty() {
            return Ok(());
        }
        if left_alone.contains(&id) || self.files.is_damaged(id) {
            let (path, logs) = (path(id), sifters.0.len());
            let why = "its logs are not compacted from there on: it is damaged and kept as it is";
            tracing::warn!(%path, logs, "{why}");
            return Err(Failed::NotWorth);
        }
        let needed = self.needed(id).await?;
        if !self.would_change(id, &needed, &mut sifters).await? {
            self.done(id, logs, &sifters);
            return Ok(());
        }
        self.make_settled_durable(&sifters).await?;
        self.leave_out_fenced(logs, &mut sifters).await;
        if sifters.change_something() {
            for sifter in sifters.0.values_mut() {
                (sifter.bytes_before, sifter.bytes_after) = (0, 0);
            }
            self.replace(&[id], &needed, &mut sifters).await?;
        }
        self.done(id, logs, &sifters);
        Ok(())
    }

    /// Stops the logs whose epochs do not hold them any more, or of which that can't be told now.
    /// The others go on.
    async fn leave_out_fenced(&self, logs: &mut BTreeMap<LogId, Sifting>, sifters: &mut Sifters) {
        for log in sifters.0.keys().copied().collect::<Vec<_>>() {
            let Some(one) = logs.get_mut(&log) else {
                continue;
            };
            if let Err(error) = self.check_epoch(&one.rewrite).await {
                one.stopped = true;
                one.refused = Some(error);
                sifters.0.remove(&log);
            }
        }
    }

    /// Whether the sieves leave something of a file out.
    async fn would_change(
        &self,
        id: FileId,
        needed: &[Needed],
        sifters: &mut Sifters,
    ) -> Result<bool, Failed> {
        let file = self.files.handle(id).await?;
        let mut pace = Pace::default();
        for one in needed {
            if !sifters.0.contains_key(&one.log) {
                continue;
            }
            for extent in &one.extents {
                let bytes = self.read(&*file, extent, &mut pace).await?;
                sifters
                    .take_extent(&bytes, extent, one, &mut Nowhere)
                    .ok_or(Failed::Damaged(id))?;
                self.rest_if_due(&mut pace).await?;
            }
            sifters.end(one.log, &mut Nowhere);
        }
        Ok(sifters.change_something())
    }

    /// A power cut must not take back the record for which an older one goes.
    async fn make_settled_durable(&self, sifters: &Sifters) -> Result<(), Failed> {
        if self.config.flush == FlushPolicy::Fsync {
            return Ok(());
        }
        let mut files = BTreeSet::new();
        for id in sifters.0.keys() {
            if let Some(log) = self.registry.get(*id) {
                files.extend(log.index.read().sealed.iter().map(|segment| segment.file));
            }
        }
        for id in files {
            self.files.handle(id).await?.sync_data().await?;
        }
        let current = Arc::clone(&self.garbage.current.lock());
        current.sync_data().await?;
        Ok(())
    }

    fn done(&self, id: FileId, logs: &mut BTreeMap<LogId, Sifting>, sifters: &Sifters) {
        for (log, sifter) in &sifters.0 {
            let Some(one) = logs.get_mut(log) else {
                continue;
            };
            let behind = self.segment(one, id).unwrap_or(one.report.upto);
            one.report.upto = one.report.upto.max(behind.min(one.rewrite.upto));
            one.report.bytes_before += sifter.bytes_before;
            one.report.bytes_after += sifter.bytes_after;
        }
    }
}

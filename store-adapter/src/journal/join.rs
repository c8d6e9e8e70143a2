//! Makes one file of several small ones that follow one another.
//!
//! A file goes when nobody needs it. The last batches of a log, or the one that stands for those
//! that compaction left out, may need it for ever, so each file would leave a small one behind. So
//! the first of a run of small files is written anew with what is needed of all of them, and the
//! others go when it has its place. What it answers for is a run of lsns and, of each log, a run of
//! offsets, as before.
//!
//! Until the others are gone, batches lie in two files: an opening takes those of the earlier one
//! (`index_logs`). So nothing may be changed in the others once the joined one may have its place:
//! they might come back without it.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::asked::closed;
use super::extents::Segment;
use super::file::FileId;
use super::queue::{Command, Reply, answer};
use super::rewrite::{Failed, Rewriter};
use super::sift::Sifters;
use super::writer::Writer;
use crate::batch::BatchHeader;
use crate::fault::{Fault, planted};
use crate::ids::LogId;
use crate::rebuild::is_filler;
use crate::store::{Left, Sieve, StoreError, StoredBatch};

/// What became of a file that was to be joined with others.
#[derive(Debug)]
pub(crate) struct Joined {
    /// The file, of which a use was counted by [`Command::Keep`].
    pub(super) into: FileId,
    /// The others, if it has taken their place.
    pub(super) from: Vec<FileId>,
    /// What each log has in it then.
    pub(super) logs: Vec<(LogId, Segment)>,
}

/// Leaves out the batches that only stand for others: the frame of the next one can.
#[derive(Debug)]
struct Fillers;

impl Sieve for Fillers {
    fn sift(&self, batch: &StoredBatch) -> Left {
        match BatchHeader::read(&batch.bytes) {
            Ok(header) if is_filler(&header) || planted(Fault::JoinedNotWhole) => Left::Nothing,
            _ => Left::Whole,
        }
    }
}

impl Rewriter {
    /// Joins one run of small files, if there is one; whether it may go better later. An error: the
    /// shard has ended.
    ///
    /// `unsettled` is a file of which it is not known whether it was joined. Until it is, nothing
    /// else of the shard may be written anew.
    pub(super) async fn join(
        &self,
        left_alone: &mut Vec<FileId>,
        unsettled: &mut Option<FileId>,
    ) -> Result<bool, Failed> {
        let Some(run) = self.small_files(left_alone) else {
            return Ok(false);
        };
        let Some(&into) = run.first() else {
            return Ok(false);
        };
        // Nobody may remove it while it takes the place of others.
        let (reply, outcome) = oneshot::channel();
        self.shard.queue.push(Command::Keep(into, reply));
        match outcome.await.unwrap_or_else(|_| Err(closed())) {
            Ok(()) => {}
            // It is about to go, or the writer has too much to do.
            Err(_) if self.shard.check().is_ok() => return Ok(true),
            Err(_) => return Err(Failed::Ended),
        }
        let failed = match self.join_files(&run).await {
            Ok(()) => {
                // There may be another run.
                self.garbage.more.notify_one();
                return Ok(false);
            }
            Err(Failed::Ended) => return Err(Failed::Ended),
            Err(failed) => failed,
        };
        if let Failed::Unsure(_) = failed {
            *unsettled = Some(into);
        } else {
            self.tell(into, Vec::new(), Vec::new()).await?;
        }
        // One of them was trimmed away meanwhile: nobody needs it any more.
        if matches!(failed, Failed::Step(_)) && !run.iter().all(|id| self.files.has(*id)) {
            return Ok(true);
        }
        Ok(self.note(into, failed, left_alone))
    }

    /// Writes the file anew that may have been joined, with its own batches alone: then it is not.
    /// Whether that is so by now. An error: the shard has ended.
    pub(super) async fn settle(
        &self,
        left_alone: &mut Vec<FileId>,
        unsettled: &mut Option<FileId>,
    ) -> Result<bool, Failed> {
        let Some(id) = *unsettled else {
            return Ok(true);
        };
        let outcome = match self.needed(id).await {
            Ok(needed) => {
                let mut sifters = Sifters::default();
                self.replace(&[id], &needed, &mut sifters).await
            }
            Err(failed) => Err(failed),
        };
        match outcome {
            Ok(()) => {
                *unsettled = None;
                self.tell(id, Vec::new(), Vec::new()).await?;
                Ok(true)
            }
            Err(Failed::Ended) => Err(Failed::Ended),
            Err(failed) => {
                self.note(id, failed, left_alone);
                Ok(false)
            }
        }
    }

    async fn join_files(&self, run: &[FileId]) -> Result<(), Failed> {
        let mut needed = Vec::new();
        for id in run {
            needed.extend(self.needed(*id).await?);
        }
        needed.sort_by_key(|one| (one.log, one.file));
        let fillers: Arc<dyn Sieve> = Arc::new(Fillers);
        let logs = needed.iter().map(|one| one.log);
        let mut sifters = Sifters::all(logs, &fillers);
        self.replace(run, &needed, &mut sifters).await?;
        let Some((into, others)) = run.split_first() else {
            return Ok(());
        };
        let index = self.files.index(*into).await?;
        let logs = index.logs.iter();
        let logs = logs.filter_map(|(log, all)| Some((*log, Segment::of(*into, all)?)));
        self.tell(*into, others.to_vec(), logs.collect()).await
    }

    /// Tells the writer what became of `into`. An error: the shard has ended.
    async fn tell(
        &self,
        into: FileId,
        from: Vec<FileId>,
        logs: Vec<(LogId, Segment)>,
    ) -> Result<(), Failed> {
        let joined = Joined { into, from, logs };
        let (reply, outcome) = oneshot::channel();
        self.shard.queue.push(Command::Join(joined, reply));
        match outcome.await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Failed::Ended),
        }
    }
}

impl Writer {
    /// Counts one more use of a closed file; not found if nobody needs it any more.
    pub(super) fn keep_file(&mut self, id: FileId, reply: Reply<()>) {
        let outcome = match self.refs.get_mut(&id) {
            Some(uses) => {
                *uses = uses.saturating_add(1);
                Ok(())
            }
            None => Err(StoreError::NotFound),
        };
        answer(reply, outcome);
    }

    /// Has the logs find their batches in a file that was joined with others, which go. Takes the
    /// use away that [`Writer::keep_file`] counted.
    pub(super) async fn joined(&mut self, joined: Joined, reply: Reply<()>) {
        let mut files = vec![joined.into];
        files.extend(&joined.from);
        for (id, segment) in joined.logs {
            if let Some(log) = self.logs.get(&id) {
                log.index.write().join(&files, segment);
            }
        }
        for id in &files {
            let logs = self.logs.values();
            let uses = logs.filter(|log| log.index.read().has(*id)).count();
            self.refs.insert(*id, uses);
        }
        files.retain(|id| self.refs.get(id) == Some(&0));
        for id in &files {
            self.refs.remove(id);
        }
        let gone = joined.from.iter().filter(|id| files.contains(id)).count();
        let counter = &self.parts.config.counters.joined_files;
        counter.fetch_add(gone as u64, std::sync::atomic::Ordering::Relaxed);
        self.remove_files(files).await;
        answer(reply, Ok(()));
    }
}

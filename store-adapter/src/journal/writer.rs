//! The writer of a shard: takes what is queued, commits it as one round, publishes, answers.
//!
//! No timer: a round holds what was queued while the last one was synced. The writer alone changes
//! the catalogue; readers see what it published. No lock is held while it writes or syncs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};

use super::file::FileId;
use super::files::{Files, path};
use super::garbage::Garbage;
use super::index::Changes;
use super::keeper::Job;
use super::queue::{Command, Queued, answer};
use super::recovery::{Current, Opened};
use super::rewrite::Rewriter;
use super::round::{Encoded, Pending, Plan};
use super::shard::{Log, Registry, Shard};
use super::table::{Entry, Table, to_catalogue};
use super::{FlushPolicy, JournalConfig};
use crate::fault::{Fault, planted};
use crate::ids::LogId;
use crate::runtime::Env;
use crate::store::{LogState, StoreError};
use crate::volume::VolumeError;
use crate::volume::owned::{Claim, OwnedError};

/// Bytes after which the local index gets a checkpoint.
const CHECKPOINT_BYTES: u64 = 16 << 20;
/// How often an unanswered claim check is repeated, and after what pause.
const CHECK_TRIES: u32 = 5;
const CHECK_PAUSE: Duration = Duration::from_millis(50);

/// What a writer is made of besides the shard.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub(crate) env: Env,
    pub(crate) config: JournalConfig,
    pub(crate) files: Arc<Files>,
    pub(crate) registry: Arc<Registry>,
    /// Data lengths of files whose sync failed, for an opening by the same process.
    pub(crate) known: Arc<Mutex<BTreeMap<FileId, u64>>>,
    pub(crate) keeper: mpsc::Sender<Job>,
    /// Whether the next checkpoint of the local index must hold all logs.
    pub(crate) all: Arc<AtomicBool>,
}

/// The writer of one shard.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(super) parts: Parts,
    pub(super) shard: Arc<Shard>,
    pub(super) claim: Arc<Claim>,
    /// What is told to whoever gives space back.
    pub(super) garbage: Arc<Garbage>,
    pub(super) table: Table,
    pub(super) logs: BTreeMap<LogId, Arc<Log>>,
    pub(super) current: Current,
    /// How many logs need each closed file.
    pub(super) refs: BTreeMap<FileId, usize>,
    /// Up to which command those of a log fail, because one before them did.
    failed: BTreeMap<LogId, u64>,
    /// The current file may hold a round that was not committed: it is left before the next one.
    pub(super) must_leave: bool,
    /// Files whose length only the next file's header tells.
    pub(super) unsure: BTreeSet<FileId>,
    /// Logs that changed since the last checkpoint of the local index.
    dirty: BTreeSet<LogId>,
    /// Bytes written since then.
    dirty_bytes: u64,
}

/// Why a round was not committed.
enum Failure {
    /// Nothing of it was written.
    Nothing(StoreError),
    /// It may be in the file, or come to be.
    Unsure(VolumeError),
}

impl Writer {
    /// The writer of a shard that was opened; publishes its logs.
    pub(crate) fn new(parts: Parts, shard: Arc<Shard>, opened: Opened) -> Self {
        let mut logs = BTreeMap::new();
        let mut indexes = opened.indexes;
        for (id, entry) in &opened.table {
            let log = new_log(*id, entry, &shard);
            *log.index.write() = indexes.remove(id).unwrap_or_default();
            logs.insert(*id, log);
        }
        if let Some(failing) = &parts.files.failing {
            failing.claimed(shard.id, Arc::clone(&opened.claim));
        }
        parts.registry.remove_shard(shard.id);
        parts.registry.insert(logs.values().cloned());
        Self {
            garbage: Arc::new(Garbage::new(Arc::clone(&opened.current.file))),
            parts,
            shard,
            claim: opened.claim,
            table: opened.table,
            logs,
            current: opened.current,
            refs: opened.refs,
            failed: BTreeMap::new(),
            must_leave: false,
            unsure: opened.unsure,
            dirty: BTreeSet::new(),
            dirty_bytes: 0,
        }
    }

    /// Who gives the shard's space back, until [`Garbage::ended`].
    pub(crate) fn rewriter(&self) -> Rewriter {
        Rewriter {
            env: self.parts.env.clone(),
            config: self.parts.config.clone(),
            files: Arc::clone(&self.parts.files),
            registry: Arc::clone(&self.parts.registry),
            shard: Arc::clone(&self.shard),
            claim: Arc::clone(&self.claim),
            garbage: Arc::clone(&self.garbage),
        }
    }

    /// Commits rounds until the shard is closed.
    pub(crate) async fn run(mut self, dead: Vec<FileId>) {
        self.remove_files(dead).await;
        loop {
            let config = &self.parts.config;
            let (groups, bytes) = (config.round_groups, config.round_bytes);
            let mut taken = self.shard.queue.take(groups, bytes).await;
            if taken.is_empty() {
                return;
            }
            let alone = taken.pop_if(|queued| queued.command.comes_alone());
            match alone.map(|queued| queued.command) {
                None => self.round(taken).await,
                Some(Command::Close(reply)) => {
                    self.close(reply).await;
                    return;
                }
                Some(Command::Roll(reply)) => self.roll_if_used(reply).await,
                Some(Command::Keep(id, reply)) => self.keep_file(id, reply),
                Some(Command::Join(joined, reply)) => self.joined(joined, reply).await,
                Some(other) => other.refuse(StoreError::NotFound),
            }
        }
    }

    async fn round(&mut self, taken: Vec<Queued>) {
        if self.must_leave
            && let Err(error) = self.roll().await
        {
            let error = self.leave_failed(&error);
            for queued in taken {
                queued.command.refuse(error.clone());
            }
            return;
        }
        let last = taken.last().map_or(0, |queued| queued.number);
        let full = self.no_room_for(&taken).await;
        let mut plan = Plan::of(taken.len());
        for queued in taken {
            if let Some(error) = full.as_ref().filter(|_| queued.command.append_bytes() > 0) {
                queued.command.refuse(error.clone());
                continue;
            }
            let max = self.parts.config.max_append;
            let failed = |log| self.failed.get(&log).copied().unwrap_or(0);
            plan.add(&self.table, queued, max, failed);
        }
        self.failed.retain(|_, number| *number > last);
        if !plan.pending.is_empty() {
            self.commit(plan).await;
        }
        if self.current.position >= self.parts.config.segment_bytes
            && !self.must_leave
            && self.shard.check().is_ok()
            && let Err(error) = self.roll().await
        {
            // The current file can grow on; the next round tries again. A full disk is said once.
            if matches!(error, VolumeError::NoSpace { .. }) {
                tracing::debug!(%error, "cannot begin a journal file");
            } else {
                tracing::warn!(%error, "cannot begin a journal file");
            }
        }
    }

    async fn commit(&mut self, mut plan: Plan) {
        let mut encoded = None;
        if !plan.is_empty() {
            let current = &self.current;
            let round = plan.encode(current.id.seed(), current.position, current.first_lsn);
            if let Err(failure) = self.write(&round).await {
                self.failed_round(plan, failure).await;
                return;
            }
            encoded = Some(round);
        }
        if let Err(error) = self.check_claim().await {
            self.lost_claim(plan.pending, &error, encoded.is_some());
            return;
        }
        self.publish(plan, encoded).await;
    }

    async fn write(&mut self, round: &Encoded) -> Result<(), Failure> {
        self.reserve(round.len).await.map_err(Failure::Nothing)?;
        let file = &self.current.file;
        let written = file.write_at(self.current.position, &round.parts).await;
        written.map_err(Failure::Unsure)?;
        let counters = &self.parts.config.counters;
        counters.rounds.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(round.len, Ordering::Relaxed);
        match self.parts.config.flush {
            FlushPolicy::Fsync => {
                counters.syncs.fetch_add(1, Ordering::Relaxed);
                file.sync_data().await.map_err(Failure::Unsure)
            }
            FlushPolicy::Os => Ok(()),
        }
    }

    async fn failed_round(&mut self, plan: Plan, failure: Failure) {
        // What is queued by now was queued behind it.
        let number = self.shard.queue.last_number();
        for log in plan.staged.logs() {
            self.failed.insert(*log, number);
        }
        let error = match failure {
            Failure::Nothing(error) => error,
            Failure::Unsure(cause) => {
                let path = path(self.current.id);
                tracing::error!(%path, %cause, "a journal round failed; the file is left");
                self.must_leave = true;
                self.parts.files.distrust(self.current.id);
                let known = (self.current.id, self.current.position);
                self.parts.known.lock().extend([known]);
                if let Err(error) = self.roll().await {
                    self.leave_failed(&error);
                }
                StoreError::Uncertain { fenced: false }
            }
        };
        for pending in plan.pending {
            pending.fail(error.clone());
        }
    }

    /// The file can't be left. With a full disk that may change; otherwise the shard ends.
    fn leave_failed(&self, error: &VolumeError) -> StoreError {
        let error = super::volume_error(error);
        if matches!(error, StoreError::Full { .. }) {
            return error;
        }
        let error = match error {
            StoreError::Offline(why) => StoreError::Offline(why),
            other => StoreError::Offline(other.to_string()),
        };
        tracing::error!(shard = self.shard.id.0, %error, "the shard is offline");
        self.shard.queue.close(&error);
        error
    }

    /// Whether the shard is still owned, asked until there is an answer.
    async fn check_claim(&self) -> Result<(), OwnedError> {
        if planted(Fault::NoClaimCheck) {
            return Ok(());
        }
        let mut tries = 1;
        loop {
            match self.claim.check().await {
                Err(OwnedError::NotApplied(error)) if tries < CHECK_TRIES => {
                    tracing::warn!(%error, "cannot read who owns the shard; trying again");
                    self.parts.env.clock.sleep(CHECK_PAUSE).await;
                    tries += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn lost_claim(&self, pending: Vec<Pending>, error: &OwnedError, written: bool) {
        let fenced = *error == OwnedError::Stale;
        let shard_error = match super::owned_error(error) {
            StoreError::Fenced => StoreError::Fenced,
            other => StoreError::Offline(other.to_string()),
        };
        tracing::warn!(shard = self.shard.id.0, %error, "the shard is closed");
        self.shard.queue.close(&shard_error);
        for pending in pending {
            pending.fail(if written {
                StoreError::Uncertain { fenced }
            } else {
                shard_error.clone()
            });
        }
    }

    async fn publish(&mut self, plan: Plan, encoded: Option<Encoded>) {
        let mut dead = Vec::new();
        let mut freed = false;
        let changes = plan.staged.into_changes();
        for (id, change) in &changes {
            let replaced = match (self.table.get(id), change) {
                (Some(before), Some(after)) => before.birth != after.birth,
                (before, _) => before.is_some(),
            };
            if replaced {
                dead.extend(self.forget(*id));
                freed = true;
            }
            if let Some(entry) = change
                && !self.logs.contains_key(id)
            {
                let log = new_log(*id, entry, &self.shard);
                self.logs.insert(*id, Arc::clone(&log));
                self.parts.registry.insert([log]);
            }
        }
        if let Some(encoded) = encoded {
            self.index_round(&encoded, &changes);
            self.current.position += encoded.len;
            let written = self.current.written();
            self.garbage.written.store(written, Ordering::Relaxed);
            self.current.anchor = encoded.anchor;
            self.dirty_bytes += encoded.len;
        }
        self.dirty.extend(changes.keys());
        for (id, change) in changes {
            let Some(entry) = change else { continue };
            if let Some(log) = self.logs.get(&id) {
                let before = *log.bounds.borrow();
                log.bounds.send_if_modified(|bounds| {
                    std::mem::replace(bounds, entry.bounds) != entry.bounds
                });
                if before.start != entry.bounds.start {
                    freed = true;
                    let files = log.index.write().drop_below(entry.bounds.start);
                    dead.extend(unreferenced(&mut self.refs, files));
                }
            }
            self.table.insert(id, entry);
        }
        // The last one first: who waits for several waits for them in order, and is woken once.
        for pending in plan.pending.into_iter().rev() {
            match pending {
                Pending::Done(reply) => answer(reply, Ok(())),
                Pending::Acquired(log, reply) => answer(reply, self.state(log)),
            }
        }
        if freed {
            self.garbage.more.notify_one();
        }
        self.remove_files(dead).await;
        if self.dirty_bytes >= CHECKPOINT_BYTES.min(self.parts.config.segment_bytes / 4) {
            self.checkpoint();
        }
    }

    /// Hands the keeper what changed, unless it is busy: then the next time.
    fn checkpoint(&mut self) {
        let Ok(permit) = self.parts.keeper.try_reserve() else {
            return;
        };
        let all = self.parts.all.load(Ordering::SeqCst);
        if all {
            self.dirty.extend(self.table.keys());
        }
        let dirty = std::mem::take(&mut self.dirty);
        self.dirty_bytes = 0;
        let logs = dirty.into_iter().map(|id| {
            let change = self.table.get(&id).zip(self.logs.get(&id));
            let change = change.map(|(entry, log)| {
                let extents = log.index.read().active.clone();
                (to_catalogue(id, entry), extents)
            });
            (id, change)
        });
        permit.send(Job::Checkpoint(Changes {
            file: self.current.id,
            anchor: self.current.anchor,
            logs: logs.collect(),
            all,
        }));
    }

    fn state(&self, log: LogId) -> Result<LogState, StoreError> {
        let entry = self.table.get(&log).ok_or(StoreError::NotFound)?;
        Ok(LogState {
            bounds: entry.bounds,
            last_epoch: entry.last_epoch,
        })
    }

    /// Forgets a log that was deleted; returns the files that nothing needs any more.
    fn forget(&mut self, id: LogId) -> Vec<FileId> {
        self.table.remove(&id);
        let Some(log) = self.logs.remove(&id) else {
            return Vec::new();
        };
        self.parts.registry.remove(id, self.shard.id);
        let sealed = log.index.read().sealed.iter().map(|s| s.file).collect();
        unreferenced(&mut self.refs, sealed)
    }

    fn index_round(&self, round: &Encoded, changes: &BTreeMap<LogId, Option<Entry>>) {
        let current = &self.current;
        for run in round.appends.chunk_by(|a, b| a.0.log == b.0.log) {
            let Some((first, _)) = run.first() else {
                continue;
            };
            let (Some(log), Some(Some(entry))) =
                (self.logs.get(&first.log), changes.get(&first.log))
            else {
                continue;
            };
            let mut index = log.index.write();
            for (frame, position) in run {
                if current.first_lsn.saturating_add(*position) > entry.birth {
                    index.add(current.id, frame, *position);
                }
            }
        }
        let now = self.parts.env.clock.monotonic();
        self.parts.files.written(current.id, &round.appends, now);
    }

    pub(super) async fn remove_files(&mut self, files: Vec<FileId>) {
        let unsynced = self.parts.config.flush == FlushPolicy::Os;
        for file in files {
            let before = file.seq.checked_sub(1).map(|seq| FileId { seq, ..file });
            if before.is_some_and(|before| self.unsure.contains(&before)) {
                // Its header tells how long the file before it is. The next owner removes both.
                continue;
            }
            // What made it needless must not be taken back by a power cut.
            let behind = unsynced.then(|| Arc::clone(&self.current.file));
            self.keep(Job::Remove(file, behind)).await;
        }
    }

    pub(super) async fn keep(&self, job: Job) {
        if self.parts.keeper.send(job).await.is_err() {
            tracing::debug!("the keeper has ended; the next owner cleans up");
        }
    }
}

fn new_log(id: LogId, entry: &Entry, shard: &Arc<Shard>) -> Arc<Log> {
    Arc::new(Log {
        id,
        name: Arc::clone(&entry.name),
        shard: Arc::clone(shard),
        bounds: watch::Sender::new(entry.bounds),
        index: RwLock::default(),
        damaged: entry.damaged.clone(),
    })
}

/// Takes one use of each of `files` away; returns those that have none left.
fn unreferenced(refs: &mut BTreeMap<FileId, usize>, files: Vec<FileId>) -> Vec<FileId> {
    let mut dead = Vec::new();
    for file in files {
        if let Some(count) = refs.get_mut(&file) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                refs.remove(&file);
                dead.push(file);
            }
        }
    }
    dead
}

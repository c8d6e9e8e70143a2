//! The writer of a shard: takes what is queued, commits it as one round, publishes, answers.
//!
//! No timer: a round holds what was queued while the last one was synced. The writer alone changes
//! the catalogue; readers see what it published. No lock is held while it writes or syncs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};

use super::extents::FileIndex;
use super::files::{Closed, Files, journal_dir, path};
use super::frame::{FileHeader, FileId};
use super::keeper::Job;
use super::queue::{Command, Queued, Reply, answer};
use super::recovery::{Current, Opened, begin_file};
use super::round::{Encoded, Pending, Plan, footer};
use super::shard::{Log, Registry, Shard};
use super::table::{Entry, Table};
use super::{FlushPolicy, JournalConfig};
use crate::fault::{Fault, planted};
use crate::ids::LogId;
use crate::runtime::Env;
use crate::store::{LogState, StoreError};
use crate::volume::VolumeError;
use crate::volume::owned::{Claim, OwnedError};

/// Space that is reserved ahead, bytes: a full disk is then found before anything is written.
const RESERVE_STEP: u64 = 8 << 20;
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
}

/// The writer of one shard.
#[derive(Debug)]
pub(crate) struct Writer {
    parts: Parts,
    shard: Arc<Shard>,
    claim: Claim,
    table: Table,
    logs: BTreeMap<LogId, Arc<Log>>,
    current: Current,
    /// How many logs need each closed file.
    refs: BTreeMap<FileId, usize>,
    /// Up to which command those of a log fail, because one before them did.
    failed: BTreeMap<LogId, u64>,
    /// The current file may hold a round that was not committed: it is left before the next one.
    must_leave: bool,
    /// Files whose length only the next file's header tells.
    unsure: BTreeSet<FileId>,
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
        parts.registry.remove_shard(shard.id);
        parts.registry.insert(logs.values().cloned());
        Self {
            parts,
            shard,
            claim: opened.claim,
            table: opened.table,
            logs,
            current: opened.current,
            refs: opened.refs,
            failed: BTreeMap::new(),
            must_leave: false,
            unsure: BTreeSet::new(),
        }
    }

    /// Commits rounds until the shard is closed.
    pub(crate) async fn run(mut self, dead: Vec<FileId>) {
        self.remove_files(dead).await;
        loop {
            let config = &self.parts.config;
            let (groups, bytes) = (config.round_groups, config.round_bytes);
            let taken = self.shard.queue.take(groups, bytes).await;
            let mut taken = taken.into_iter().peekable();
            match taken.peek() {
                None => return,
                Some(queued) if matches!(queued.command, Command::Close(_)) => {
                    if let Some(Command::Close(reply)) = taken.next().map(|q| q.command) {
                        self.close(reply).await;
                    }
                    return;
                }
                Some(_) => self.round(taken.collect()).await,
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
        let mut plan = Plan::default();
        for queued in taken {
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
            // The current file can grow on; the next round tries again.
            tracing::warn!(%error, "cannot begin a journal file");
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

    async fn reserve(&mut self, len: u64) -> Result<(), StoreError> {
        let end = self.current.position.saturating_add(len);
        if end <= self.current.allocated {
            return Ok(());
        }
        let step = RESERVE_STEP.min(self.parts.config.segment_bytes);
        for wanted in [end.saturating_add(step), end] {
            match self.current.file.allocate(wanted).await {
                Ok(()) => {
                    self.current.allocated = wanted;
                    return Ok(());
                }
                Err(VolumeError::NoSpace { .. }) => {}
                // Reserving is a precaution; the write itself will tell.
                Err(_) => return Ok(()),
            }
        }
        Err(StoreError::Full)
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
        if error == StoreError::Full {
            return error;
        }
        let error = StoreError::Offline(error.to_string());
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
        let changes = plan.staged.into_changes();
        for (id, change) in &changes {
            let replaced = match (self.table.get(id), change) {
                (Some(before), Some(after)) => before.birth != after.birth,
                (before, _) => before.is_some(),
            };
            if replaced {
                dead.extend(self.forget(*id));
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
        }
        for (id, change) in changes {
            let Some(entry) = change else { continue };
            if let Some(log) = self.logs.get(&id) {
                let before = *log.bounds.borrow();
                log.bounds.send_if_modified(|bounds| {
                    std::mem::replace(bounds, entry.bounds) != entry.bounds
                });
                if before.start != entry.bounds.start {
                    let files = log.index.write().drop_below(entry.bounds.start);
                    dead.extend(unreferenced(&mut self.refs, files));
                }
            }
            self.table.insert(id, entry);
        }
        for pending in plan.pending {
            match pending {
                Pending::Done(reply) => answer(reply, Ok(())),
                Pending::Acquired(log, reply) => answer(reply, self.state(log)),
            }
        }
        self.remove_files(dead).await;
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
    }

    /// Begins the next file and closes the current one. On failure the current one stays.
    async fn roll(&mut self) -> Result<(), VolumeError> {
        let old = self.current.id;
        let volume = Arc::clone(self.parts.files.volume());
        let id = FileId {
            seq: old.seq.saturating_add(1),
            ..old
        };
        let header = FileHeader {
            id,
            first_lsn: self.current.first_lsn.saturating_add(self.current.position),
            previous_len: self.current.position,
        };
        let file = match volume.create_new(&path(id)).await {
            // Left by an attempt whose outcome was lost: it has no header.
            Err(VolumeError::AlreadyExists { .. }) => {
                volume.remove(&path(id)).await?;
                volume.create_new(&path(id)).await?
            }
            outcome => outcome?,
        };
        let next = match begin_file(&volume, &file, header, &self.table).await {
            Ok(next) => next,
            Err(error) => {
                self.abandon(id).await;
                return Err(error);
            }
        };
        self.parts.files.add_handle(id, file);
        let before = std::mem::replace(&mut self.current, next);
        let index = self.active_index();
        let mut closed = Closed {
            len: before.position,
            footer: false,
        };
        if std::mem::take(&mut self.must_leave) {
            self.unsure.insert(old);
        } else if let Some(len) = write_footer(&before, &index).await {
            closed = Closed { len, footer: true };
            self.keep(Job::Sync(before.file)).await;
        }
        let users = self.seal_logs(old, closed, index);
        if users == 0 {
            self.remove_files(vec![old]).await;
        } else {
            self.refs.insert(old, users);
        }
        Ok(())
    }

    /// Takes back a file that could not be begun. While it may be found, the file before it must
    /// not grow: its header says where that one ends.
    async fn abandon(&self, id: FileId) {
        let volume = self.parts.files.volume();
        let removed = async {
            volume.remove(&path(id)).await?;
            volume.sync_dir(&journal_dir(id.shard)).await
        };
        if let Err(error) = removed.await {
            let error = StoreError::Offline(error.to_string());
            tracing::error!(shard = self.shard.id.0, %error, "the shard is offline");
            self.shard.queue.close(&error);
        }
    }

    /// The index of the file that is being written.
    fn active_index(&self) -> FileIndex {
        let logs = self
            .logs
            .iter()
            .map(|(id, log)| (*id, log.index.read().active.clone()));
        FileIndex {
            logs: logs.filter(|(_, extents)| !extents.is_empty()).collect(),
        }
    }

    /// Turns the logs' extents in `file` into summaries; returns how many logs have some.
    fn seal_logs(&self, file: FileId, closed: Closed, index: FileIndex) -> usize {
        self.parts.files.add(file, closed, Some(index));
        let sealed = self.logs.values().map(|log| log.index.write().seal());
        sealed.filter(|sealed| *sealed).count()
    }

    async fn remove_files(&mut self, files: Vec<FileId>) {
        for file in files {
            let before = file.seq.checked_sub(1).map(|seq| FileId { seq, ..file });
            if before.is_some_and(|before| self.unsure.contains(&before)) {
                // Its header tells how long the file before it is. The next owner removes both.
                continue;
            }
            self.keep(Job::Remove(file)).await;
        }
    }

    async fn keep(&self, job: Job) {
        if self.parts.keeper.send(job).await.is_err() {
            tracing::debug!("the keeper has ended; the next owner cleans up");
        }
    }

    async fn close(mut self, reply: Reply<()>) {
        let outcome = if self.must_leave {
            Ok(())
        } else {
            let index = self.active_index();
            // Without a footer the next opening reads the file instead.
            write_footer(&self.current, &index).await;
            self.current.file.sync_data().await
        };
        self.shard
            .queue
            .close(&StoreError::Offline("the shard is closed".to_owned()));
        self.parts.registry.remove_shard(self.shard.id);
        self.logs.clear();
        answer(reply, outcome.map_err(|error| super::volume_error(&error)));
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

/// Writes the footer of `current` behind its data, not synced; returns where it ends.
async fn write_footer(current: &Current, index: &FileIndex) -> Option<u64> {
    let position = current.position;
    let payload = index.encode_footer(position);
    let parts = footer(payload, current.id.seed(), position);
    let len: usize = parts.iter().map(bytes::Bytes::len).sum();
    match current.file.write_at(position, &parts).await {
        Ok(()) => Some(position.saturating_add(len as u64)),
        Err(error) => {
            tracing::warn!(%error, "a journal file stays without a footer");
            None
        }
    }
}

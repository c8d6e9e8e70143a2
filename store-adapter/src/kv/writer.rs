//! The writer of a shard: takes what is queued, commits it as one round, publishes, answers;
//! sweeps while nothing is queued.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::KvConfig;
use super::db::{Changes, Db};
use super::recovery::Opened;
use super::rounds::Rounds;
use super::shard::{Log, Registry, Shard};
use super::state::{Pending, Plan, Round, Table};
use super::sweep::Sweep;
use crate::ids::LogId;
use crate::journal::queue::{Command, Queued, answer};
use crate::journal::{FlushPolicy, owned_error, volume_error};
use crate::runtime::Env;
use crate::store::{LogState, StoreError};
use crate::volume::owned::{Claim, OwnedError};
use crate::volume::{Volume, VolumeFile};

/// How often a writer that commits nothing looks whether the shard is still its own: whoever takes
/// it over waits for the database's lock.
const CLAIM_LOOK: Duration = Duration::from_secs(1);
/// How often an unanswered claim check is repeated, and after what pause.
const CHECK_TRIES: u32 = 5;
const CHECK_PAUSE: Duration = Duration::from_millis(50);
/// Bytes that sled may write for one byte of a batch, and besides: its segments.
const SPACE_FACTOR: u64 = 4;
const SPACE_BYTES: u64 = 48 << 20;

/// The writer of one shard.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) env: Env,
    pub(super) config: KvConfig,
    pub(super) volume: Arc<dyn Volume>,
    pub(super) registry: Arc<Registry>,
    pub(super) shard: Arc<Shard>,
    claim: Claim,
    db: Arc<Db>,
    file: Arc<dyn VolumeFile>,
    rounds: Rounds,
    /// The last round that was written.
    round: u64,
    table: Table,
    logs: BTreeMap<LogId, Arc<Log>>,
    next_birth: u64,
    sweep: Sweep,
    /// When it was last looked, while it swept, whether the shard is still its own.
    looked: Duration,
    /// Whether a sync failed: what the page cache has is not what the disk has.
    unsynced: bool,
}

/// What a writer takes over from whoever opens the shard.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) env: Env,
    pub(super) config: KvConfig,
    pub(super) volume: Arc<dyn Volume>,
    pub(super) registry: Arc<Registry>,
    pub(super) shard: Arc<Shard>,
}

impl Writer {
    /// The writer of a shard that was opened; publishes its logs.
    pub(super) fn new(parts: Parts, opened: Opened) -> Self {
        let shard = parts.shard;
        *shard.db.lock() = Some(Arc::clone(&opened.db));
        let found = opened.found;
        let mut logs = BTreeMap::new();
        parts.registry.remove_shard(shard.id);
        for (id, entry) in &found.table {
            let log = Log::new(*id, entry, &shard);
            parts.registry.insert([Arc::clone(&log)]);
            logs.insert(*id, log);
        }
        Self {
            env: parts.env,
            config: parts.config,
            volume: parts.volume,
            registry: parts.registry,
            shard,
            claim: opened.claim,
            db: opened.db,
            file: opened.file,
            rounds: opened.rounds,
            round: found.round,
            table: found.table,
            logs,
            next_birth: found.next_birth,
            sweep: Sweep {
                deleted: found.deleted,
                trimmed: found.trimmed,
            },
            looked: Duration::ZERO,
            unsynced: false,
        }
    }

    /// Commits rounds until the shard is closed. Returns whether a sync failed.
    pub(super) async fn run(mut self) -> bool {
        let close = loop {
            let Some(taken) = self.next().await else {
                continue;
            };
            let mut taken = taken.into_iter().peekable();
            match taken.peek() {
                None => break None,
                Some(queued) if matches!(queued.command, Command::Close(_)) => {
                    break taken.next().map(|queued| queued.command);
                }
                Some(_) => self.round(taken.collect()).await,
            }
        };
        self.end(close).await
    }

    /// What is queued; `None` where there was something else to do first.
    async fn next(&mut self) -> Option<Vec<Queued>> {
        let (groups, bytes) = (self.config.round_groups, self.config.round_bytes);
        if !self.sweep.is_done() {
            let now = self.env.clock.monotonic();
            if now.saturating_sub(self.looked) >= CLAIM_LOOK {
                self.looked = now;
                self.look_at_claim().await;
            }
            let queued = self.shard.queue.take(groups, bytes).now_or_never();
            if queued.is_none()
                && let Err(error) = self.sweep.step(&self.db, &self.table)
            {
                self.shard.refuse(&error);
            }
            return queued;
        }
        tokio::select! {
            biased;
            queued = self.shard.queue.take(groups, bytes) => Some(queued),
            () = self.env.clock.sleep(CLAIM_LOOK) => {
                self.look_at_claim().await;
                None
            }
        }
    }

    async fn look_at_claim(&self) {
        if self.claim.check().await == Err(OwnedError::Stale) {
            self.lost_claim(Vec::new(), &OwnedError::Stale, false);
        }
    }

    async fn round(&mut self, taken: Vec<Queued>) {
        let full = self.no_room_for(&taken).await;
        let mut plan = Plan::new(&self.table, self.config.max_append, self.next_birth);
        let mut broken = None;
        for queued in taken {
            let refused = full
                .as_ref()
                .filter(|_| queued.command.append_bytes() > 0)
                .or(broken.as_ref());
            match refused {
                Some(error) => queued.command.refuse(error.clone()),
                None if self.is_stale(&queued.command) => {
                    let why = "the log was compacted meanwhile".to_owned();
                    queued.command.refuse(StoreError::Unavailable(why));
                }
                None => broken = plan.add(queued, &*self.db).err(),
            }
        }
        let round = plan.finish(self.round + 1);
        if let Some(error) = broken {
            self.shard.refuse(&error);
            fail(round.pending, &error);
        } else if !round.pending.is_empty() {
            self.commit(round).await;
        }
        if !self.sweep.is_done()
            && self.shard.check().is_ok()
            && let Err(error) = self.sweep.step(&self.db, &self.table)
        {
            self.shard.refuse(&error);
        }
    }

    /// Whether it replaces batches that are not there any more as they were read.
    fn is_stale(&self, command: &Command) -> bool {
        let Command::Replace(replace, _) = command else {
            return false;
        };
        let log = self.logs.get(&replace.log);
        log.is_none_or(|log| log.replaced() != replace.seen)
    }

    async fn commit(&mut self, mut round: Round) {
        let written = !round.changed.is_empty();
        let replaced = round.replaced.and_then(|id| self.logs.get(&id).cloned());
        if let Some(log) = &replaced {
            log.replaces();
        }
        if written {
            let changes = std::mem::take(&mut round.changes);
            if let Err(error) = self.write(changes).await {
                tracing::error!(shard = self.shard.id.0, %error, "a round failed");
                self.shard.refuse(&error);
                fail(round.pending, &StoreError::Uncertain { fenced: false });
                return;
            }
        }
        if let Err(error) = self.check_claim().await {
            self.lost_claim(round.pending, &error, written);
            return;
        }
        self.publish(round);
        if let Some(log) = replaced {
            log.replaces();
        }
    }

    async fn write(&mut self, changes: Changes) -> Result<(), StoreError> {
        let number = self.round + 1;
        self.db.apply(changes)?;
        self.db.flush()?;
        self.round = number;
        if self.config.flush == FlushPolicy::Fsync {
            self.sync().await?;
        }
        Ok(())
    }

    /// Makes what was written durable, and counts it.
    async fn sync(&mut self) -> Result<(), StoreError> {
        let synced = async {
            self.file.sync_data().await?;
            self.rounds.acknowledge(self.round).await
        };
        let synced = synced.await;
        self.unsynced |= synced.is_err();
        synced.map_err(|error| match volume_error(&error) {
            StoreError::Offline(why) => StoreError::Offline(why),
            other => StoreError::Offline(other.to_string()),
        })
    }

    /// Whether the shard is still owned, asked until there is an answer.
    async fn check_claim(&self) -> Result<(), OwnedError> {
        let mut tries = 1;
        loop {
            match self.claim.check().await {
                Err(OwnedError::NotApplied(error)) if tries < CHECK_TRIES => {
                    tracing::warn!(%error, "cannot read who owns the shard; trying again");
                    self.env.clock.sleep(CHECK_PAUSE).await;
                    tries += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn lost_claim(&self, pending: Vec<Pending>, error: &OwnedError, written: bool) {
        let fenced = *error == OwnedError::Stale;
        let shard_error = match owned_error(error) {
            StoreError::Fenced => StoreError::Fenced,
            other => StoreError::Offline(other.to_string()),
        };
        tracing::warn!(shard = self.shard.id.0, %error, "the shard is closed");
        self.shard.queue.close(&shard_error);
        if written {
            fail(pending, &StoreError::Uncertain { fenced });
        } else {
            fail(pending, &shard_error);
        }
    }

    fn publish(&mut self, round: Round) {
        self.next_birth = round.next_birth;
        self.sweep.deleted.extend(round.deleted);
        for (id, entry) in round.changed {
            let before = self.table.get(&id);
            let birth = entry.as_ref().map(|entry| entry.birth);
            if before.is_some_and(|before| Some(before.birth) != birth) {
                self.registry.remove(id, self.shard.id);
                self.logs.remove(&id);
            } else if let (Some(before), Some(entry)) = (before, &entry)
                && before.bounds.start < entry.bounds.start
            {
                self.sweep.trimmed.insert(id);
            }
            let Some(entry) = entry else {
                self.table.remove(&id);
                continue;
            };
            if let Some(log) = self.logs.get(&id) {
                log.publish(&entry);
            } else {
                let log = Log::new(id, &entry, &self.shard);
                self.registry.insert([Arc::clone(&log)]);
                self.logs.insert(id, log);
                if entry.bounds.start > 0 {
                    self.sweep.trimmed.insert(id);
                }
            }
            self.table.insert(id, entry);
        }
        // The last one first: who waits for several waits for them in order, and is woken once.
        for pending in round.pending.into_iter().rev() {
            match pending {
                Pending::Done(reply) => answer(reply, Ok(())),
                Pending::Acquired(log, reply) => answer(reply, self.state(log)),
            }
        }
    }

    fn state(&self, log: LogId) -> Result<LogState, StoreError> {
        let entry = self.table.get(&log).ok_or(StoreError::NotFound)?;
        Ok(LogState {
            bounds: entry.bounds,
            last_epoch: entry.last_epoch,
        })
    }

    /// Why appends are refused though the disk is not full yet: sled does not survive that it is.
    /// What deletes goes on.
    async fn no_room_for(&self, taken: &[Queued]) -> Option<StoreError> {
        let bytes = taken.iter().map(|queued| queued.command.append_bytes());
        let bytes = bytes.sum::<usize>() as u64;
        if bytes == 0 {
            return None;
        }
        let space = self.volume.space().await.ok()?;
        let wanted = SPACE_BYTES.saturating_add(bytes.saturating_mul(SPACE_FACTOR));
        if space.free >= wanted && !self.config.reserve.is_touched(space) {
            return None;
        }
        let path = super::sled_dir(self.shard.id).to_string();
        if let Some(space) = &self.config.space {
            space.refused(&path);
        }
        Some(StoreError::Full { path })
    }

    /// Lets the database go, and then answers whoever closes the shard.
    async fn end(mut self, close: Option<Command>) -> bool {
        let mut outcome = Ok(());
        if self.shard.check().is_ok() {
            outcome = match self.db.flush() {
                Ok(()) => self.sync().await,
                Err(error) => Err(error),
            };
        }
        let closed = StoreError::Offline("the shard was closed".to_owned());
        self.shard.queue.close(&closed);
        let unsynced = self.unsynced;
        let shard = Arc::clone(&self.shard);
        drop(shard.db.lock().take());
        drop(self);
        if let Some(Command::Close(reply)) = close {
            answer(reply, outcome);
        }
        unsynced
    }
}

fn fail(pending: Vec<Pending>, error: &StoreError) {
    for pending in pending {
        pending.fail(error.clone());
    }
}

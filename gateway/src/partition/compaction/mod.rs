//! Compaction: of every key the newest record stays.
//!
//! A pass looks at the log in the background (`scan.rs`), decides what survives (`survivors.rs`),
//! and has the store leave out the rest. It changes nothing at or behind the last stable offset,
//! nor the last batch of the log, by which the newest snapshot proves that it belongs to the log
//! (`INV-P4`). That snapshot is written before anything goes: what the log told of producers and
//! transactions is in it (`INV-P5`).

mod plan;
#[cfg(test)]
mod samples;
mod scan;
mod survivors;

pub use plan::{CompactionRules, Look, Plan, Planner, WHOLE};
pub use scan::Scan;
pub use survivors::{Aborted, LastWritten, NewestOffsets, Survivors, last_written};

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use coordinator::machine::producer::ProducerStates;
use futures_util::future::join_all;
use store_adapter::store::{Piece, Rewrite, Rewritten};

use super::retention::MOST_BYTES;
use super::{Partition, RetentionRules, Status, TrimError, Visible, caught_up};

/// Bytes read at once.
const READ_BYTES: usize = 1 << 20;
/// Pause behind each read: about 64 MiB/s at most.
const PAUSE: Duration = Duration::from_millis(15);
/// Most partitions that are handed to the store at once.
const TOGETHER_MAX: usize = 64;
/// How long a log is left alone of which a file could not be written anew, ms.
const STUCK_MS: i64 = 600_000;

/// What compaction remembers of a partition. Without it the whole log is looked at.
#[derive(Debug, Default)]
pub(super) struct Cleaned {
    /// Below it every key has but one record.
    upto: i64,
    /// Whether there is something of a transaction below it.
    transactional: bool,
    /// Behind the last batch of which it is known that it can't be taken apart.
    opaque_upto: Option<i64>,
    /// Left alone until then, ms since the Unix epoch.
    not_before_ms: i64,
    /// The time of the first piece from an offset on, by `max.compaction.lag.ms`.
    first: Option<(i64, i64)>,
}

/// How a pass is to go.
#[derive(Debug, Clone, Copy)]
pub struct CompactionPass {
    /// Rules of the topic.
    pub rules: CompactionRules,
    /// When its segments would close.
    pub retention: RetentionRules,
    /// `log.cleaner.dedupe.buffer.size`: bytes of memory for the keys of all partitions that are
    /// compacted together.
    pub budget: usize,
    /// Whether the file that is being written may be closed.
    pub may_seal: bool,
}

/// What a pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// How far it came, and what it left.
    pub rewritten: Rewritten,
    /// Whether it had the file that was being written closed.
    pub sealed: bool,
}

/// A partition of which it is known what survives.
#[derive(Debug)]
struct Judged {
    scan: Scan,
    rewrite: Rewrite,
    /// Bytes of memory for what is known of it.
    bytes: usize,
}

/// What became of a partition: nothing, if it was not time.
type Outcome = Result<Option<Compacted>, TrimError>;

/// Compacts those of `partitions` for which it is time, as `pass_of` says of each; tells of each
/// what was done, if anything. Their logs lie in the same files: what comes due together is handed
/// to the store together, and the memory for keys is one for all.
///
/// That takes long. So each is asked for when it is looked at, and again before anything of it
/// goes: what a change of configs keeps that was answered meanwhile must stay.
pub async fn compact_together(
    partitions: impl IntoIterator<Item = Arc<Partition>>,
    pass_of: &(dyn Fn(&Partition) -> Option<CompactionPass> + Send + Sync),
    tell: &mut (dyn FnMut(&Partition, Outcome) + Send),
) {
    let mut partitions = partitions.into_iter();
    loop {
        let (mut due, mut bytes) = (Vec::new(), 0_usize);
        for partition in partitions.by_ref() {
            let Some(pass) = pass_of(&partition) else {
                continue;
            };
            let budget = pass.budget.saturating_sub(bytes);
            match partition
                .judge_records(CompactionPass { budget, ..pass })
                .await
            {
                Ok(None) => tell(&partition, Ok(None)),
                Err(error) => tell(&partition, Err(error)),
                Ok(Some(judged)) => {
                    bytes = bytes.saturating_add(judged.bytes);
                    due.push((partition, pass.rules, judged));
                }
            }
            // The next one finds at least half of the memory free.
            if due.len() >= TOGETHER_MAX || bytes > pass.budget / 2 {
                break;
            }
        }
        if due.is_empty() {
            return;
        }
        due.retain(|(partition, rules, _)| {
            let stands = pass_of(partition).is_some_and(|pass| pass.rules == *rules);
            if !stands {
                tell(partition, Ok(None));
            }
            stands
        });
        let rewriting = due.into_iter().map(|(partition, _, judged)| async move {
            let done = partition.rewrite_records(judged).await;
            (partition, done)
        });
        for (partition, done) in join_all(rewriting).await {
            tell(&partition, done.map(Some));
        }
    }
}

impl Partition {
    /// Compacts the partition alone, if it is time. What was done, if anything.
    ///
    /// # Errors
    /// See [`TrimError`]; the next pass tries again.
    pub async fn compact(&self, pass: CompactionPass) -> Result<Option<Compacted>, TrimError> {
        match self.judge_records(pass).await? {
            Some(judged) => self.rewrite_records(judged).await.map(Some),
            None => Ok(None),
        }
    }

    /// Finds out what of the log survives, and makes durable what it will tell no more.
    async fn judge_records(&self, pass: CompactionPass) -> Result<Option<Judged>, TrimError> {
        let Some(plan) = self.plan_compaction(&pass).await? else {
            return Ok(None);
        };
        let (survivors, scan, bytes) = self.look_for_survivors(&pass, plan.upto).await?;
        self.forget_aborted(&survivors.needless_markers);
        // From here on the log alone does not tell everything any more.
        self.write_snapshot()
            .await
            .map_err(TrimError::Unavailable)?;
        let rewrite = Rewrite {
            log: self.id,
            epoch: self.epoch,
            upto: scan.end().min(plan.upto),
            seal: plan.seal,
            sieve: Arc::new(survivors),
        };
        Ok(Some(Judged {
            scan,
            rewrite,
            bytes,
        }))
    }

    async fn rewrite_records(&self, judged: Judged) -> Result<Compacted, TrimError> {
        let sealed = judged.rewrite.seal;
        let rewritten = self.deps.store.rewrite(judged.rewrite).await?;
        self.remember(&judged.scan, &rewritten);
        Ok(Compacted { rewritten, sealed })
    }

    async fn plan_compaction(&self, pass: &CompactionPass) -> Result<Option<Plan>, TrimError> {
        let now_ms = self.deps.env.clock.wall_ms();
        let (visible, last) = self.look(ProducerStates::last_batch);
        let (Some(settled), Some(last)) = (self.deps.store.settled(self.id), last) else {
            return Ok(None);
        };
        let Visible {
            log_start,
            high_watermark,
            last_stable,
            ..
        } = visible;
        let upto = last_stable.min(high_watermark).min(last.base_offset);
        let (clean_upto, not_before_ms) = {
            let cleaned = self.cleaned.lock();
            (cleaned.upto.max(log_start), cleaned.not_before_ms)
        };
        let reach = if pass.may_seal {
            upto
        } else {
            upto.min(settled)
        };
        let closed = self.state.lock().status != Status::Open;
        if closed || clean_upto >= reach || now_ms < not_before_ms {
            return Ok(None);
        }
        let Some(size) = self.deps.store.size(self.id) else {
            return Ok(None);
        };
        let look = Look {
            clean_upto,
            settled,
            upto,
            now_ms,
            may_seal: pass.may_seal,
            segment_bytes: pass.retention.segment_bytes,
            segment_ms: pass.retention.segment_ms,
        };
        if !self.may_be_due(pass.rules, look, log_start).await? {
            return Ok(None);
        }
        let mut planner = Planner::new(pass.rules, look);
        let (mut next, mut behind) = (clean_upto, 0_u64);
        loop {
            let pieces = self.deps.store.pieces(self.id, next, MOST_BYTES).await?;
            let Some(last) = pieces.last() else { break };
            next = last.last.saturating_add(1);
            for piece in &pieces {
                behind = behind.saturating_add(piece.bytes);
                planner.push(piece);
            }
            if planner.is_idle() {
                return Ok(None);
            }
        }
        let before = self.bytes_before(log_start, size.from).await?;
        let clean_bytes = size.bytes.saturating_add(before).saturating_sub(behind);
        Ok(planner.finish(clean_bytes))
    }

    /// Whether it may be time, as far as that can be told without a look at more than one piece:
    /// there is no more to be compacted than what is counted, and no less that is clean.
    async fn may_be_due(
        &self,
        rules: CompactionRules,
        look: Look,
        log_start: i64,
    ) -> Result<bool, TrimError> {
        let Some(parts) = self.deps.store.parts(self.id, log_start) else {
            return Ok(true);
        };
        let mut planner = Planner::new(rules, look);
        // Nothing is older than it can be.
        if rules.max_lag_ms < look.now_ms
            && let Some(first_time) = self.first_time(look.clean_upto).await?
        {
            planner.begins(first_time);
        }
        for part in &parts {
            planner.push_part(part);
        }
        let clean = |part: &&Piece| part.base >= log_start && part.last < look.clean_upto;
        let clean = parts.iter().filter(clean).map(|part| part.bytes).sum();
        Ok(planner.finish(clean).is_some())
    }

    /// When the first piece from an offset on is of.
    async fn first_time(&self, from: i64) -> Result<Option<i64>, TrimError> {
        let known = self.cleaned.lock().first.filter(|(of, _)| *of == from);
        if let Some((_, time)) = known {
            return Ok(Some(time));
        }
        let pieces = self.deps.store.pieces(self.id, from, 1).await?;
        let time = pieces.first().map(|piece| piece.max_timestamp);
        self.cleaned.lock().first = time.map(|time| (from, time));
        Ok(time)
    }

    /// Reads the log, and says what of it survives, and how much memory that needs.
    async fn look_for_survivors(
        &self,
        pass: &CompactionPass,
        upto: i64,
    ) -> Result<(Survivors, Scan, usize), TrimError> {
        // Nobody appends meanwhile: copied here, and put in order behind it.
        let (visible, (aborted, producers)) = self.look(|producers| {
            let aborted = producers.all_aborted().to_vec();
            (aborted, last_written(producers, upto))
        });
        let (aborted, producers) = (Aborted::new(&aborted), producers.into_iter().collect());
        let (clean_upto, transactional, opaque) = {
            let cleaned = self.cleaned.lock();
            let clean_upto = cleaned.upto.max(visible.log_start);
            let opaque = cleaned
                .opaque_upto
                .is_some_and(|end| end > visible.log_start);
            (clean_upto, cleaned.transactional, opaque)
        };
        let now_ms = self.deps.env.clock.wall_ms();
        let mut scan = Scan::new(aborted.clone(), clean_upto, pass.budget, now_ms);
        scan.transactional = transactional;
        // What is clean has to be looked at for the sake of transactions only.
        let mut next = if transactional {
            visible.log_start
        } else {
            clean_upto
        };
        let mut room = true;
        while room && next < upto {
            if self.state.lock().status != Status::Open {
                return Err(TrimError::NotLeader);
            }
            let store = &*self.deps.store;
            let batches = caught_up::read(store, self.id, next, READ_BYTES, upto).await?;
            let Some(last) = batches.last() else { break };
            next = last.last_offset.saturating_add(1);
            room = batches.iter().all(|batch| scan.take(batch));
            drop(batches);
            self.deps.env.clock.sleep(PAUSE).await;
        }
        if scan.opaque > 0 {
            let batches = scan.opaque;
            tracing::warn!(log = %self.id, batches, "batches that can't be read are not compacted");
        }
        let bytes = scan.bytes();
        let survivors = Survivors {
            newest: std::mem::take(&mut scan.newest),
            aborted,
            needless_markers: std::mem::take(&mut scan.needless_markers),
            producers,
            now_ms: self.deps.env.clock.wall_ms(),
            delete_retention_ms: pass.rules.delete_retention_ms,
            tombstones_stay: opaque || scan.opaque > 0,
        };
        let bytes = bytes.saturating_add(survivors.known_bytes());
        Ok((survivors, scan, bytes))
    }

    /// Forgets aborted transactions of which nothing is left.
    fn forget_aborted(&self, needless_markers: &BTreeSet<i64>) {
        let mut state = self.state.lock();
        if state.producers.forget_aborted(needless_markers) > 0 {
            state.aborted_forgotten += 1;
        }
    }

    fn remember(&self, scan: &Scan, rewritten: &Rewritten) {
        self.oldest.forget();
        let mut cleaned = self.cleaned.lock();
        cleaned.first = None;
        cleaned.transactional = scan.transactional;
        if scan.opaque > 0 {
            cleaned.opaque_upto = cleaned.opaque_upto.max(Some(scan.end()));
        }
        if rewritten.upto <= cleaned.upto {
            // A file of the log can't be written anew: why, the store has said.
            cleaned.not_before_ms = self.deps.env.clock.wall_ms().saturating_add(STUCK_MS);
        }
        cleaned.upto = cleaned.upto.max(rewritten.upto);
    }
}

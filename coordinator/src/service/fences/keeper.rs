//! The io task that writes the own file and reads those of others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use store_adapter::ids::{BrokerId, ProducerEpoch, ProducerId};
use store_adapter::runtime::Clock;
use tokio::sync::{mpsc, oneshot};

use super::{FenceFileError, FenceFiles, FenceTable, LastUse};
use crate::machine::txn::Fence;
use crate::volume::format::FencesFile;

type Reply = oneshot::Sender<Result<(), FenceFileError>>;

/// Publications that share a write, at most.
const TAKE: usize = 1024;

/// What the task is asked for.
#[derive(Debug)]
pub(super) enum Ask {
    Publish(Vec<Fence>, Reply),
    /// Drops what has expired, if it is told who uses what.
    Poll(Option<Arc<dyn LastUse>>, Reply),
}

/// The io task.
#[derive(Debug)]
pub(super) struct Keeper {
    clock: Arc<dyn Clock>,
    files: Arc<dyn FenceFiles>,
    table: Arc<FenceTable>,
    expiration_ms: i64,
    /// The most fences of the own file.
    fences_max: usize,
    /// Whether what was asked for last has failed.
    failing: Arc<AtomicBool>,
    /// What the own file holds; `None` before the first read and after a failure.
    own: Option<FencesFile>,
    /// A replace failed: what is read may not be durable, and is written again.
    unsure: bool,
    others: Vec<(BrokerId, Arc<FencesFile>)>,
}

impl Keeper {
    pub(super) fn new(
        clock: Arc<dyn Clock>,
        files: Arc<dyn FenceFiles>,
        table: Arc<FenceTable>,
        expiration_ms: i64,
        fences_max: usize,
        failing: Arc<AtomicBool>,
    ) -> Self {
        Self {
            clock,
            files,
            table,
            expiration_ms,
            fences_max,
            failing,
            own: None,
            unsure: false,
            others: Vec::new(),
        }
    }

    /// Serves until nobody can ask any more.
    pub(super) async fn run(mut self, mut asked: mpsc::UnboundedReceiver<Ask>) {
        let mut asks = Vec::new();
        while asked.recv_many(&mut asks, TAKE).await > 0 {
            let (mut fences, mut publishers, mut pollers) = (Vec::new(), Vec::new(), Vec::new());
            let mut uses = None;
            for ask in asks.drain(..) {
                match ask {
                    Ask::Publish(some, reply) => {
                        fences.extend(some);
                        publishers.push(reply);
                    }
                    Ask::Poll(told, reply) => {
                        uses = told.or(uses);
                        pollers.push(reply);
                    }
                }
            }
            if !publishers.is_empty() {
                let outcome = self.publish(fences).await;
                self.failing.store(outcome.is_err(), Ordering::Relaxed);
                answer(publishers, &outcome);
            }
            if !pollers.is_empty() {
                let outcome = self.poll(uses).await;
                self.failing.store(outcome.is_err(), Ordering::Relaxed);
                answer(pollers, &outcome);
            }
        }
    }

    async fn publish(&mut self, fences: Vec<Fence>) -> Result<(), FenceFileError> {
        let now_ms = self.clock.wall_ms();
        let mut own = self.take_own().await?;
        let mut changed = false;
        for fence in &fences {
            changed |= own.raise(fence.pid.0, fence.epoch.0, now_ms);
        }
        let dropped = own.keep_newest(self.fences_max);
        if dropped > 0 {
            tracing::warn!(
                dropped,
                "more producers are fenced than are kept: the oldest go"
            );
        }
        self.keep(own, changed).await?;
        self.table.raise(fences);
        Ok(())
    }

    async fn poll(&mut self, uses: Option<Arc<dyn LastUse>>) -> Result<(), FenceFileError> {
        self.others = self.files.others().await;
        let outcome = match self.take_own().await {
            Ok(mut own) => {
                let changed = uses.is_some_and(|uses| self.expire(&mut own, &*uses));
                self.keep(own, changed).await
            }
            Err(error) => Err(error),
        };
        let mut all = BTreeMap::new();
        if self.own.is_none() {
            // What was in force of the own file stays until it can be read again.
            all.extend(
                self.table
                    .list()
                    .iter()
                    .map(|fence| (fence.pid, fence.epoch)),
            );
        }
        let others = self.others.iter().map(|(_, file)| &**file);
        for file in self.own.iter().chain(others) {
            for (pid, epoch) in &file.fences {
                let epoch = ProducerEpoch(*epoch);
                let lowest = all.entry(ProducerId(*pid)).or_insert(epoch);
                *lowest = epoch.max(*lowest);
            }
        }
        self.table.replace(all);
        outcome
    }

    /// Drops what nobody has used for long; whether there was any. Who uses what is asked only of
    /// what was last known to be used that long ago.
    fn expire(&self, own: &mut FencesFile, uses: &dyn LastUse) -> bool {
        let now_ms = self.clock.wall_ms();
        let before_ms = now_ms.saturating_sub(self.expiration_ms);
        let old = own.unused_since(before_ms, now_ms);
        if old.is_empty() {
            return false;
        }
        let Some(used) = uses.last_use(&old) else {
            return false;
        };
        for (pid, at_ms) in used {
            own.touch(pid.0, at_ms);
        }
        own.expire(before_ms)
    }

    /// The own file. Taken, so that after a failure it is read again.
    async fn take_own(&mut self) -> Result<FencesFile, FenceFileError> {
        match self.own.take() {
            Some(own) => Ok(own),
            None => self.files.own().await,
        }
    }

    /// Writes the own file, if anything of it is not durable.
    async fn keep(&mut self, own: FencesFile, changed: bool) -> Result<(), FenceFileError> {
        if changed || self.unsure {
            self.unsure = true;
            self.files.replace(&own).await?;
            self.unsure = false;
        }
        self.own = Some(own);
        Ok(())
    }
}

fn answer(replies: Vec<Reply>, outcome: &Result<(), FenceFileError>) {
    for reply in replies {
        // Whoever asked may have gone.
        reply.send(outcome.clone()).unwrap_or_default();
    }
}

//! The io tasks that take over, read and write slots. A slot is in their queue at most once, so its
//! file has one writer at a time; different slots are written side by side.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use store_adapter::runtime::Env;
use tokio::sync::{Notify, Semaphore};

use super::files::{SlotFileError, SlotFiles};
use super::slot::{Phase, Slot, Work};
use crate::volume::format::TxnSlotFile;

/// Slots that are read or written side by side.
pub(super) const WRITERS: usize = 8;
/// How long to wait before what failed is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// How often that wait is doubled for a slot that is found damaged again and again: to 8 s.
const DAMAGED_DOUBLINGS: u32 = 4;

/// What happens to slot files.
#[derive(Debug, Default)]
pub struct TxnCounters {
    /// Slots that were replaced: two syncs each, of the file and of the directory.
    pub writes: AtomicU64,
    /// Replaces that failed or whose outcome is not known.
    pub failed_writes: AtomicU64,
}

/// Slots that have work, in order. Bounded by the number of slots.
#[derive(Debug)]
pub(super) struct WriteQueue {
    slots: Mutex<VecDeque<Arc<Mutex<Slot>>>>,
    ready: Semaphore,
}

impl WriteQueue {
    pub(super) fn new() -> Self {
        Self {
            slots: Mutex::default(),
            ready: Semaphore::new(0),
        }
    }

    /// Queues a slot that is marked as queued.
    pub(super) fn push(&self, slot: Arc<Mutex<Slot>>) {
        self.slots.lock().push_back(slot);
        self.ready.add_permits(1);
    }

    /// Ends the writers, behind what they do now.
    pub(super) fn close(&self) {
        self.ready.close();
    }

    async fn next(&self) -> Option<Arc<Mutex<Slot>>> {
        let permit = self.ready.acquire().await.ok()?;
        permit.forget();
        self.slots.lock().pop_front()
    }
}

/// One io task.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    pub(super) env: Env,
    pub(super) files: Arc<dyn SlotFiles>,
    pub(super) queue: Arc<WriteQueue>,
    pub(super) counters: Arc<TxnCounters>,
    /// Told when a slot was read again and can be answered for.
    pub(super) reread: Arc<Notify>,
    /// How many slots the cluster has.
    pub(super) slots: u32,
}

impl Writer {
    /// Works until the queue is closed.
    pub(super) async fn run(self) {
        while let Some(slot) = self.queue.next().await {
            self.serve(slot).await;
        }
    }

    /// Does one piece of a slot's work, and puts it back if there is more.
    async fn serve(&self, slot: Arc<Mutex<Slot>>) {
        let (number, work) = {
            let mut state = slot.lock();
            (state.number, state.work())
        };
        let well = match work {
            None => true,
            Some(Work::Claim(epoch)) => {
                let claimed = self.files.claim(number, epoch).await;
                self.loaded(&slot, claimed)
            }
            Some(Work::Load) => {
                let loaded = self.files.load(number).await;
                self.loaded(&slot, loaded)
            }
            Some(Work::Write(text)) => {
                let outcome = self.files.replace(number, text).await;
                self.written(&slot, outcome)
            }
            Some(Work::Check) => {
                let outcome = self.files.check(number).await;
                checked(&slot, outcome);
                true
            }
        };
        if !well {
            self.again_later(slot);
            return;
        }
        let more = {
            let mut state = slot.lock();
            state.queued = state.wants_work();
            state.queued
        };
        if more {
            self.queue.push(slot);
        }
    }

    /// Puts the slot back when some time has passed: one that stays damaged, twice as long as the
    /// time before.
    fn again_later(&self, slot: Arc<Mutex<Slot>>) {
        let queue = self.queue.clone();
        let looks = slot.lock().damaged_looks;
        let pause = AGAIN * 2_u32.pow(looks.saturating_sub(1).min(DAMAGED_DOUBLINGS));
        let pause = self.env.clock.sleep(pause);
        let task = async move {
            pause.await;
            queue.push(slot);
        };
        drop(self.env.runtime.spawn("txn-slot-again", Box::pin(task)));
    }

    /// Whether there is nothing to try again.
    fn loaded(&self, slot: &Mutex<Slot>, loaded: Result<TxnSlotFile, SlotFileError>) -> bool {
        let mut state = slot.lock();
        let now_ms = self.env.clock.wall_ms();
        let loaded = loaded.and_then(|file| state.loaded(file, self.slots, now_ms));
        match loaded {
            Ok(()) => return true,
            Err(SlotFileError::Stale) => {
                state.lost();
                return true;
            }
            Err(SlotFileError::Damaged(why)) => {
                if state.phase != Phase::Damaged {
                    tracing::warn!(slot = state.number, why, "a transaction slot is damaged");
                }
                state.damaged();
            }
            Err(error) => {
                tracing::warn!(%error, slot = state.number, "a transaction slot is not read yet");
            }
        }
        false
    }

    fn written(&self, slot: &Mutex<Slot>, outcome: Result<(), SlotFileError>) -> bool {
        let count = match outcome {
            Ok(()) => &self.counters.writes,
            Err(_) => &self.counters.failed_writes,
        };
        count.fetch_add(1, Ordering::Relaxed);
        let mut state = slot.lock();
        match outcome {
            Ok(()) => {
                let reread = state.phase == Phase::Rewrite;
                state.written();
                if reread {
                    self.reread.notify_one();
                }
                return true;
            }
            Err(SlotFileError::Stale) => {
                tracing::error!(slot = state.number, "another process owns this slot");
                state.lost();
                return true;
            }
            Err(SlotFileError::Damaged(why)) => {
                tracing::warn!(slot = state.number, why, "a transaction slot is damaged");
                state.damaged();
            }
            Err(SlotFileError::MaybeApplied(error)) => {
                tracing::warn!(slot = state.number, error, "a slot may not be written");
                state.maybe_written();
            }
            Err(error @ SlotFileError::NotApplied(_)) => {
                tracing::warn!(slot = state.number, %error, "a slot was not written");
                state.not_written();
            }
        }
        false
    }
}

fn checked(slot: &Mutex<Slot>, outcome: Result<(), SlotFileError>) {
    let mut state = slot.lock();
    match outcome {
        Ok(()) => state.owned(),
        Err(SlotFileError::Stale) => {
            tracing::error!(slot = state.number, "another process owns this slot");
            state.lost();
        }
        Err(error) => {
            tracing::warn!(slot = state.number, %error, "cannot read who owns a slot");
            state.not_checked();
        }
    }
}

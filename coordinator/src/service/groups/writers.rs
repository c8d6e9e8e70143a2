//! The io tasks that read and write the files of groups.
//!
//! A group is in their queue at most once, so that its file has one writer at a time; all changes
//! that were prepared while a write was under way share the next. Different groups are written side
//! by side, by as many tasks as were ever needed at once.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use store_adapter::runtime::{BoxFuture, Env};
use tokio::sync::{Notify, Semaphore};

use super::files::{GroupFileError, GroupFiles};
use super::offset_state::Work;
use super::{GroupCell, Groups, Route};
use crate::machine::group::offsets::Image;
use crate::volume::format::{GroupOffsetsFile, Kept};

/// Files that are read or written side by side at most: file systems let them share the commits of
/// their journal. With more of them, what comes meanwhile is in more and emptier writes.
const WRITERS_MAX: usize = 8;

/// What happens to the files of groups.
#[derive(Debug, Default)]
pub struct OffsetCounters {
    /// Files that were replaced: a sync of each, and of the directory one for all that wait for it.
    pub writes: AtomicU64,
    /// Replaces that failed or whose outcome is not known.
    pub failed_writes: AtomicU64,
}

/// Groups that have work, in order. Bounded by the number of groups.
#[derive(Debug)]
pub(super) struct WriteQueue {
    groups: Mutex<VecDeque<Arc<str>>>,
    ready: Semaphore,
    /// Tasks that take groups out.
    writers: AtomicUsize,
    /// Those of them that have none.
    free: AtomicUsize,
    /// Groups whose file could not be read or written, by the time at which to try again.
    failed: Mutex<BTreeSet<(Duration, Arc<str>)>>,
    /// Notified when there is something to try again.
    pub(super) again: Notify,
}

impl WriteQueue {
    pub(super) fn new() -> Self {
        Self {
            groups: Mutex::default(),
            ready: Semaphore::new(0),
            writers: AtomicUsize::new(0),
            free: AtomicUsize::new(0),
            failed: Mutex::default(),
            again: Notify::new(),
        }
    }

    pub(super) fn push(&self, group: Arc<str>) {
        self.groups.lock().push_back(group);
        self.ready.add_permits(1);
    }

    /// Keeps a group until it is to be tried again.
    fn put_off(&self, group: Arc<str>, until: Duration) {
        self.failed.lock().insert((until, group));
        self.again.notify_one();
    }

    /// Puts what failed and is to be tried again by `now` into the queue; when to call it next.
    pub(super) fn retry(&self, now: Duration) -> Option<Duration> {
        loop {
            let (_, group) = {
                let mut failed = self.failed.lock();
                let (at, _) = failed.first()?;
                if *at > now {
                    return Some(*at);
                }
                failed.pop_first()?
            };
            self.push(group);
        }
    }

    /// Ends the writers, behind what they do now.
    pub(super) fn close(&self) {
        self.ready.close();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.ready.is_closed()
    }

    /// The next group; `None` when the queue was closed.
    async fn next(&self) -> Option<Arc<str>> {
        let permit = self.ready.acquire().await.ok()?;
        permit.forget();
        self.groups.lock().pop_front()
    }

    /// Counts one more writer, which is free; false if there may not be more.
    fn add_writer(&self) -> bool {
        let one_more = |writers| (writers < WRITERS_MAX).then_some(writers + 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let added = self.writers.fetch_update(set, fetch, one_more).is_ok();
        self.free.fetch_add(usize::from(added), Ordering::Relaxed);
        added
    }
}

/// One io task.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    pub(super) env: Env,
    pub(super) groups: Groups,
    pub(super) files: Arc<dyn GroupFiles>,
    pub(super) queue: Arc<WriteQueue>,
    pub(super) counters: Arc<OffsetCounters>,
}

/// How a piece of work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    /// Look for more.
    Well,
    /// Look again later.
    Later,
    /// The slot is another process's.
    Lost,
}

impl Writer {
    /// Starts one more writer, if there may be more.
    pub(super) fn start(&self) {
        if self.queue.add_writer() {
            let task = self.clone().run();
            drop(self.env.runtime.spawn_io("group-offsets", task));
        }
    }

    /// Works until the queue is closed. There is always a writer that is free, up to the most.
    fn run(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            while let Some(group) = self.queue.next().await {
                if self.queue.free.fetch_sub(1, Ordering::Relaxed) == 1 {
                    self.start();
                }
                self.serve(group).await;
                self.queue.free.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    /// Does one piece of a group's work, and puts it back if there is more.
    async fn serve(&self, group: Arc<str>) {
        let Some(cell) = self.groups.cell(&group) else {
            return;
        };
        let Route::Here { slot, .. } = self.groups.route(&group) else {
            self.groups.send_away(&group);
            return;
        };
        let Some(work) = cell.lock().offsets.work() else {
            return;
        };
        let done = match work {
            Work::Read => self.read(&cell, slot).await,
            Work::Write(image, kept) => self.write(&cell, slot, &image, &kept).await,
            Work::Remove => self.remove(&cell, slot).await,
        };
        match done {
            Done::Well => {
                if cell.lock().offsets.work().is_some() {
                    self.queue.push(group);
                } else {
                    self.groups.forget_missing(&group);
                }
            }
            Done::Later => {
                let wait = cell.lock().offsets.failed();
                self.queue.put_off(group, self.env.clock.monotonic() + wait);
            }
            Done::Lost => {
                tracing::error!(slot, "another process owns this group slot");
                self.groups.lose(slot);
            }
        }
    }

    async fn read(&self, cell: &GroupCell, slot: u32) -> Done {
        match self.files.read(slot, cell.id()).await {
            Ok(file) => {
                let now = self.groups.now();
                self.groups.shared.slots.told(cell.id());
                let mut state = cell.lock();
                let first = state.offsets.book.is_unread();
                state.offsets.read(file, now.wall_ms);
                if first {
                    state.await_members(now);
                }
                state.plan_removal();
                self.groups.count_bytes(cell, &mut state);
                Done::Well
            }
            Err(GroupFileError::Stale) => Done::Lost,
            Err(error) => {
                tracing::debug!(%error, group = %cell.id(), "offsets not read; trying again");
                cell.lock().offsets.not_read();
                Done::Later
            }
        }
    }

    /// Removes a file of which nothing is left. What can't be removed now is looked at again when
    /// the slot is taken over the next time.
    async fn remove(&self, cell: &GroupCell, slot: u32) -> Done {
        let outcome = self.files.remove(slot, cell.id()).await;
        if outcome == Err(GroupFileError::Stale) {
            return Done::Lost;
        }
        if let Err(error) = outcome {
            tracing::debug!(%error, group = %cell.id(), "the file of a deleted group stays");
        }
        cell.lock().offsets.removed();
        Done::Well
    }

    async fn write(&self, cell: &GroupCell, slot: u32, image: &Image, kept: &Kept) -> Done {
        let file = GroupOffsetsFile::of(cell.id(), &image.table, kept);
        let outcome = self.files.replace(slot, cell.id(), file).await;
        let count = match outcome {
            Ok(()) => &self.counters.writes,
            Err(_) => &self.counters.failed_writes,
        };
        count.fetch_add(1, Ordering::Relaxed);
        let mut state = cell.lock();
        let done = match outcome {
            Ok(()) => {
                state.offsets.written(image);
                state.plan_removal();
                Done::Well
            }
            Err(GroupFileError::Stale) => Done::Lost,
            Err(GroupFileError::MaybeApplied(error)) => {
                tracing::warn!(error, group = %cell.id(), "offsets may not be written");
                state.offsets.maybe_written();
                Done::Later
            }
            Err(error) => {
                tracing::warn!(%error, group = %cell.id(), "offsets not written");
                state.offsets.not_written();
                // Nothing is left of it, unless the file must be written anyway.
                if state.offsets.book.is_settled() {
                    Done::Well
                } else {
                    Done::Later
                }
            }
        };
        self.groups.count_bytes(cell, &mut state);
        done
    }
}

//! The groups that this broker coordinates: who may ask, who waits, and when time is up.
//!
//! Decisions are the machine's. A group is a cell behind a lock; a request that has to wait is a
//! oneshot in its cell; one task runs the deadlines of all groups.

mod budget;
pub mod cell;
mod deadlines;
mod files;
mod housekeeping;
mod inspect;
mod loader;
mod losing;
mod members;
mod offset_state;
mod offsets;
mod routing;
mod slots;
mod writers;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use store_adapter::runtime::Env;
use tokio::sync::{Notify, oneshot};

use self::budget::Expected;
pub use self::budget::{MEMBERS_BYTES_MAX, OFFSETS_BYTES_MAX, PENDING_ALL_MAX};
pub use self::cell::{CellState, GroupCell};
pub use self::files::{FoundGroup, GroupFileError, GroupFiles};
pub use self::inspect::ListedGroup;
pub use self::offset_state::{OffsetState, Pending};
pub use self::offsets::{
    FetchedOffset, FetchedTopic, OffsetCommit, OffsetConfig, Offsets, TopicPartitions,
};
pub use self::routing::{GroupRouting, Route};
use self::slots::Slots;
pub use self::writers::OffsetCounters;
use self::writers::WriteQueue;

use crate::machine::group::classic::{ClassicConfig, ClassicGroup, Effects};
use crate::machine::group::{GroupError, Now};

/// Groups in memory; a new one beyond them is answered as not available.
pub const GROUPS_MAX: usize = 1 << 20;

/// What of the configuration groups use.
#[derive(Debug, Clone)]
pub struct GroupConfig {
    /// Membership.
    pub classic: ClassicConfig,
    /// Offsets.
    pub offsets: OffsetConfig,
    /// What the members of all groups may take in memory, bytes.
    pub members_bytes_max: usize,
    /// What the offsets of all groups may take, bytes.
    pub offsets_bytes_max: usize,
    /// Members of all groups that were given an id and are expected to come back with it, at most.
    pub pending_max: usize,
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            classic: ClassicConfig::default(),
            offsets: OffsetConfig::default(),
            members_bytes_max: MEMBERS_BYTES_MAX,
            offsets_bytes_max: OFFSETS_BYTES_MAX,
            pending_max: PENDING_ALL_MAX,
        }
    }
}

/// An answer, or where it will come.
#[derive(Debug)]
pub enum Reply<R> {
    /// Answered.
    Now(R),
    /// Parked: the sender is dropped only when the service is.
    Later(oneshot::Receiver<R>),
}

/// The service; clones share it. When the last one is dropped its task ends.
#[derive(Debug, Clone)]
pub struct Groups {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    env: Env,
    config: GroupConfig,
    routing: Arc<dyn GroupRouting>,
    cells: RwLock<BTreeMap<Arc<str>, Arc<GroupCell>>>,
    /// Groups by the time at which they want to be called. One entry a group, or none.
    deadlines: Mutex<BTreeSet<(u64, Arc<str>)>>,
    wake: Arc<Notify>,
    stopped: AtomicBool,
    /// What the members of all groups take in memory.
    members_bytes: AtomicUsize,
    /// What the offsets of all groups take.
    offsets_bytes: AtomicUsize,
    /// Who was given an id last.
    expected: Expected,
    /// Which slots can be answered for.
    slots: Slots,
    /// Groups whose files are to be read or written.
    writes: Arc<WriteQueue>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

impl Groups {
    /// Starts the service with no groups.
    pub fn start(env: &Env, config: GroupConfig, routing: Arc<dyn GroupRouting>) -> Self {
        let wake = Arc::new(Notify::new());
        let shared = Arc::new(Shared {
            env: env.clone(),
            config,
            routing,
            cells: RwLock::default(),
            deadlines: Mutex::default(),
            wake: Arc::clone(&wake),
            stopped: AtomicBool::new(false),
            members_bytes: AtomicUsize::new(0),
            offsets_bytes: AtomicUsize::new(0),
            expected: Expected::default(),
            slots: Slots::default(),
            writes: Arc::new(WriteQueue::new()),
        });
        let task = deadlines::run(env.clone(), Arc::downgrade(&shared), wake);
        drop(env.runtime.spawn("group-deadlines", Box::pin(task)));
        Self { shared }
    }

    /// Settings.
    pub fn config(&self) -> &GroupConfig {
        &self.shared.config
    }

    /// The time, by both clocks.
    pub fn now(&self) -> Now {
        let clock = &self.shared.env.clock;
        Now {
            mono_ms: u64::try_from(clock.monotonic().as_millis()).unwrap_or(u64::MAX),
            wall_ms: clock.wall_ms(),
        }
    }

    /// Who coordinates a group.
    pub fn route(&self, group: &str) -> Route {
        self.shared.routing.route(group)
    }

    /// Whether this broker answers for the group now.
    pub fn admit(&self, group: &str) -> Result<(), GroupError> {
        self.check_running()?;
        match self.route(group) {
            Route::Here { slot, .. } => self.shared.slots.check(slot),
            Route::Broker(_) | Route::Nobody => Err(GroupError::NotCoordinator),
        }
    }

    /// The group's cell, if the group is known.
    pub fn cell(&self, group: &str) -> Option<Arc<GroupCell>> {
        self.shared.cells.read().get(group).cloned()
    }

    /// The group's cell; a new empty group where none is known.
    ///
    /// # Errors
    /// [`GroupError::CoordinatorNotAvailable`] beyond [`GROUPS_MAX`].
    pub fn cell_or_new(&self, group: &str) -> Result<Arc<GroupCell>, GroupError> {
        if let Some(cell) = self.cell(group) {
            return Ok(cell);
        }
        let now = self.now();
        let mut cells = self.shared.cells.write();
        if let Some(cell) = cells.get(group) {
            return Ok(Arc::clone(cell));
        }
        if cells.len() >= GROUPS_MAX {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        let id: Arc<str> = group.into();
        let offsets = self.shared.slots.new_state(&id);
        let cell = Arc::new(GroupCell::new(Arc::clone(&id), offsets, now));
        cells.insert(id, Arc::clone(&cell));
        Ok(cell)
    }

    /// Decides on a group under its lock, runs the effects, keeps its deadline, and puts it into
    /// the queue of the writers if there is something to read or write. `None` if there is no such
    /// group and it is not to be created.
    ///
    /// # Errors
    /// As [`Groups::cell_or_new`].
    pub fn decide<R>(
        &self,
        group: &str,
        create: bool,
        decide: impl FnOnce(&mut CellState, Now) -> (R, Effects),
    ) -> Result<Option<R>, GroupError> {
        loop {
            let cell = if create {
                self.cell_or_new(group)?
            } else {
                match self.cell(group) {
                    Some(cell) => cell,
                    None => return Ok(None),
                }
            };
            let mut state = cell.lock();
            if state.forgotten {
                continue;
            }
            // Looked at under the lock: what is parked before this is answered by `stop`, or when
            // the slot is lost.
            self.admit(group)?;
            let now = self.now();
            state.keep_time(now);
            let (reply, effects) = decide(&mut state, now);
            self.carry_out(&cell, &mut state, effects);
            let refused = create && state.is_missing();
            drop(state);
            if refused {
                // It was made for a request that left nothing.
                self.forget_missing(group);
            }
            return Ok(Some(reply));
        }
    }

    /// Runs the effects of a decision on a group, keeps its deadline, counts what it takes, and
    /// puts it into the queue of the writers if there is something to read or write.
    pub(super) fn carry_out(&self, cell: &GroupCell, state: &mut CellState, effects: Effects) {
        state.run(cell.id(), effects);
        self.keep_deadline(cell, state);
        self.count_bytes(cell, state);
        if state.offsets.wants_queue() {
            self.shared.writes.push(Arc::clone(cell.id()));
        }
    }

    /// Drops what is known of a group that is idle; whether it was. Where decided transactions are
    /// remembered only the members are forgotten.
    pub fn forget(&self, group: &str) -> bool {
        let idle = |state: &CellState| {
            let idle = state.is_idle();
            if idle {
                Ok(())
            } else {
                Err(GroupError::NonEmptyGroup)
            }
        };
        let told = GroupError::CoordinatorNotAvailable;
        if self.drop_cell(group, told, idle).is_ok() {
            return true;
        }
        if let Some(cell) = self.cell(group) {
            let mut state = cell.lock();
            if state.is_vacant() {
                state.classic = ClassicGroup::new(self.now());
            }
        }
        false
    }

    /// Makes the cell of a group that has a file; whether it is new.
    fn install(&self, group: &str, mut offsets: OffsetState) -> Result<bool, GroupError> {
        let now = self.now();
        let mut cells = self.shared.cells.write();
        if cells.contains_key(group) {
            return Ok(false);
        }
        if cells.len() >= GROUPS_MAX {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        let queued = offsets.wants_queue();
        let id: Arc<str> = group.into();
        cells.insert(Arc::clone(&id), Arc::new(GroupCell::new(id, offsets, now)));
        Ok(queued)
    }

    /// Drops the cell of a group of which nothing is left: it never was there, or it was deleted,
    /// also where nobody waits for the deletion any more.
    fn forget_missing(&self, group: &str) {
        let missing = |state: &CellState| {
            let deleted = state.offsets.book.durable().is_deleted();
            let missing = state.is_idle() && (state.is_missing() || deleted);
            missing.then_some(()).ok_or(GroupError::NonEmptyGroup)
        };
        let told = GroupError::CoordinatorNotAvailable;
        if self.drop_cell(group, told, missing).is_ok() {
            tracing::debug!(group, "nothing is left of a group");
        }
    }

    /// Every cell there is.
    fn cells(&self) -> Vec<Arc<GroupCell>> {
        self.shared.cells.read().values().cloned().collect()
    }

    /// Drops a cell that `may` go; who waits on it is `told` why.
    fn drop_cell(
        &self,
        group: &str,
        told: GroupError,
        may: impl FnOnce(&CellState) -> Result<(), GroupError>,
    ) -> Result<(), GroupError> {
        let mut cells = self.shared.cells.write();
        let cell = cells.get(group).ok_or(GroupError::GroupIdNotFound)?;
        let cell = Arc::clone(cell);
        let mut state = cell.lock();
        if state.offsets.removing {
            // Another cell would write the file at the same time.
            return Err(GroupError::CoordinatorNotAvailable);
        }
        may(&state)?;
        state.forgotten = true;
        let effects = state.classic.die(told, self.now());
        state.run(group, effects);
        self.count_bytes(&cell, &mut state);
        cells.remove(group);
        if let Some(queued) = state.queued.take() {
            let entry = (queued, Arc::clone(cell.id()));
            self.shared.deadlines.lock().remove(&entry);
        }
        Ok(())
    }

    /// Refuses what comes and answers what waits: the clients look for a coordinator elsewhere.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        let now = self.now();
        for cell in self.cells() {
            let mut state = cell.lock();
            let effects = state.classic.die(GroupError::NotCoordinator, now);
            state.run(cell.id(), effects);
            self.count_bytes(&cell, &mut state);
        }
    }

    fn check_running(&self) -> Result<(), GroupError> {
        if self.shared.stopped.load(Ordering::Acquire) {
            return Err(GroupError::NotCoordinator);
        }
        Ok(())
    }
}

//! A volume in memory that crashes as a real one does, for tests and the simulation.
//!
//! A killed process loses nothing here: the cache survives. A power cut keeps what was synced and,
//! by seed, any part of the rest: see [`MemoryVolume::power_cut`]. Each [`MemoryVolume::mount`] is
//! one broker's view of the same tree, with a hook that delays, fails or stops each of its steps.
//! Nothing here depends on time, on addresses or on hash order.

mod content;
mod hook;
mod stale;
#[cfg(test)]
mod tests;
mod tree;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

pub use hook::{Step, StepAnswer, StepFault, StepHook, StepOp, StepOutcome};

use crate::runtime::Clock;
use crate::volume::{
    DirEntry, FileRange, Space, Volume, VolumeError, VolumeFile, VolumeFuture, VolumePath,
};
use stale::StaleView;
use tree::{FileRef, Tree};

/// A tree in memory, as one mount sees it. Clones are the same mount.
#[derive(Debug, Clone)]
pub struct MemoryVolume {
    tree: Arc<Mutex<Tree>>,
    mount: Arc<Mount>,
}

struct Mount {
    hook: Option<Arc<dyn StepHook>>,
    /// The mount is dead once the tree's generation is another. `None`: it outlives power cuts.
    generation: Option<u64>,
    stale: Option<Mutex<StaleView>>,
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mount")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// Listings and failed look-ups that a mount believes too long.
#[derive(Debug, Clone)]
pub struct Staleness {
    /// The time that passes.
    pub clock: Arc<dyn Clock>,
    /// How long at most something out of date is believed.
    pub age_max: Duration,
    /// Draws how long each is.
    pub seed: u64,
}

impl Default for MemoryVolume {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryVolume {
    /// An empty tree. This mount has no hook, sees everything at once and outlives power cuts.
    pub fn new() -> Self {
        Self {
            tree: Arc::new(Mutex::new(Tree::new())),
            mount: Arc::new(Mount {
                hook: None,
                generation: None,
                stale: None,
            }),
        }
    }

    /// Another mount of the same tree: one broker instance's, until the next power cut.
    pub fn mount(&self, hook: Arc<dyn StepHook>, staleness: Option<Staleness>) -> Self {
        let generation = Some(self.tree.lock().generation);
        let stale = staleness.map(|s| Mutex::new(StaleView::new(s.clock, s.age_max, s.seed)));
        Self {
            tree: self.tree.clone(),
            mount: Arc::new(Mount {
                hook: Some(hook),
                generation,
                stale,
            }),
        }
    }

    /// Cuts the power. What was synced survives; of every other write and change of a name, `seed`
    /// decides what does: nothing, everything, what came first, or any of it. Mounts and open
    /// files from before answer errors from then on.
    pub fn power_cut(&self, seed: u64) {
        self.tree.lock().power_cut(seed);
    }

    /// Sets the size of the file system, bytes. Writes beyond it answer `NoSpace`.
    pub fn set_total(&self, total: u64) {
        self.tree.lock().set_total(total);
    }

    /// The renames and removals that were answered by [`StepOutcome::Late`] and wait.
    pub fn late(&self) -> Vec<Step> {
        self.tree.lock().late.clone()
    }

    /// Executes the rename or removal at `index` of [`MemoryVolume::late`].
    ///
    /// # Errors
    /// What it answers: `NotFound` when its source is gone, or when nothing waits at `index`.
    pub fn run_late(&self, index: usize) -> Result<(), VolumeError> {
        self.tree.lock().run_late(index)
    }

    /// A hash of every name and every byte as readers see them, and of what is late. Equal for
    /// equal trees within one build.
    pub fn fingerprint(&self) -> u64 {
        self.tree.lock().fingerprint()
    }

    /// One step: asks the hook, and acts as it says. `act` is told how many bytes it may write.
    async fn step<T: Send>(
        &self,
        step: Step,
        show: fn(&T) -> StepAnswer<'_>,
        act: impl FnOnce(&mut Tree, u64) -> Result<T, VolumeError> + Send,
    ) -> Result<T, VolumeError> {
        let outcome = match &self.mount.hook {
            Some(hook) => hook.before(&step).await,
            None => StepOutcome::Proceed,
        };
        let result = self.act(&step, outcome, act);
        if matches!(outcome, StepOutcome::Stop | StepOutcome::StopAfter) {
            return std::future::pending().await;
        }
        if result.is_ok() {
            self.changed_by_us(&step);
        }
        if let Some(hook) = &self.mount.hook {
            hook.after(&step, result.as_ref().map_or_else(StepAnswer::Failed, show));
        }
        result
    }

    fn act<T>(
        &self,
        step: &Step,
        outcome: StepOutcome,
        act: impl FnOnce(&mut Tree, u64) -> Result<T, VolumeError>,
    ) -> Result<T, VolumeError> {
        let mut tree = self.tree.lock();
        if self.mount.generation.is_some_and(|g| g != tree.generation) {
            return Err(power_was_cut(&step.path));
        }
        let (limit, fault) = match outcome {
            StepOutcome::Proceed | StepOutcome::StopAfter => (Some(u64::MAX), None),
            StepOutcome::FailAfter(fault) => (Some(u64::MAX), Some(fault)),
            StepOutcome::FailPartly { bytes, fault } if step.op == StepOp::WriteAt => {
                (Some(bytes), Some(fault))
            }
            // A sync that may write nothing is one that fails.
            StepOutcome::Fail(fault) | StepOutcome::FailPartly { fault, .. } => {
                ((step.op == StepOp::SyncData).then_some(0), Some(fault))
            }
            StepOutcome::Late(fault) => {
                if matches!(step.op, StepOp::Rename | StepOp::Remove) {
                    tree.late.push(step.clone());
                }
                (None, Some(fault))
            }
            StepOutcome::Stop => (None, Some(StepFault::Io)),
        };
        let done = limit.map(|limit| act(&mut tree, limit));
        match (done, fault) {
            (Some(Err(error)), _) => Err(error),
            (Some(Ok(value)), None) => Ok(value),
            (_, fault) => Err(fault.unwrap_or(StepFault::Io).error(&step.path)),
        }
    }

    /// A name that this mount itself changes is seen at once.
    fn changed_by_us(&self, step: &Step) {
        let Some(stale) = &self.mount.stale else {
            return;
        };
        let mut stale = stale.lock();
        match step.op {
            StepOp::CreateNew | StepOp::Remove | StepOp::RemoveDir => stale.changed(&step.path),
            StepOp::Rename => {
                stale.changed(&step.path);
                step.to.iter().for_each(|to| stale.changed(to));
            }
            StepOp::CreateDirAll => {
                let mut made = step.path.clone();
                while made != VolumePath::root() {
                    stale.changed(&made);
                    made = made.parent();
                }
            }
            _ => {}
        }
    }

    /// A look-up by name, which a mount may believe to fail for longer than it does.
    fn find(&self, tree: &Tree, path: &VolumePath) -> Result<FileRef, VolumeError> {
        let Some(stale) = &self.mount.stale else {
            return tree.file(path);
        };
        let mut stale = stale.lock();
        if stale.is_missing(path) {
            return Err(tree::not_found(path));
        }
        tree.file(path).inspect_err(|error| {
            if error.is_not_found() {
                stale.missed(path);
            }
        })
    }

    fn names(&self, tree: &Tree, dir: &VolumePath) -> Result<Vec<DirEntry>, VolumeError> {
        let Some(stale) = &self.mount.stale else {
            return tree.list(dir);
        };
        let mut stale = stale.lock();
        if let Some(names) = stale.listing(dir) {
            return Ok(names);
        }
        let names = tree.list(dir)?;
        stale.listed(dir, &names);
        Ok(names)
    }

    fn handle(&self, tree: &Tree, path: &VolumePath, file: FileRef, writable: bool) -> Handle {
        Arc::new(MemoryFile {
            volume: self.clone(),
            path: path.clone(),
            file,
            writable,
            generation: tree.generation,
        })
    }

    fn open_as<'a>(&'a self, path: &'a VolumePath, writable: bool) -> VolumeFuture<'a, Handle> {
        let step = Step::new(StepOp::Open, path);
        Box::pin(self.step(step, done, move |tree, _| {
            let file = self.find(tree, path)?;
            Ok(self.handle(tree, path, file, writable))
        }))
    }
}

type Handle = Arc<dyn VolumeFile>;

fn done<T>(_: &T) -> StepAnswer<'_> {
    StepAnswer::Done
}

fn shown_bytes(bytes: &Bytes) -> StepAnswer<'_> {
    StepAnswer::Bytes(bytes)
}

#[allow(clippy::ptr_arg, reason = "shows what a step answers, which is a Vec")]
fn shown_names(names: &Vec<DirEntry>) -> StepAnswer<'_> {
    StepAnswer::Names(names)
}

fn power_was_cut(path: &VolumePath) -> VolumeError {
    tree::io(path, "use", "the power was cut")
}

impl Volume for MemoryVolume {
    fn create_new<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Handle> {
        let step = Step::new(StepOp::CreateNew, path);
        Box::pin(self.step(step, done, move |tree, _| {
            let file = tree.create(path)?;
            Ok(self.handle(tree, path, file, true))
        }))
    }

    fn open<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Handle> {
        self.open_as(path, false)
    }

    fn open_write<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Handle> {
        self.open_as(path, true)
    }

    fn read<'a>(&'a self, path: &'a VolumePath, max: u64) -> VolumeFuture<'a, Bytes> {
        let step = Step::new(StepOp::Read, path);
        Box::pin(self.step(step, shown_bytes, move |tree, _| {
            let file = self.find(tree, path)?;
            let file = file.lock();
            let len = file.len();
            if len > max {
                let path = path.to_string();
                return Err(VolumeError::TooLarge { path, len, max });
            }
            Ok(file.read(0, usize::MAX))
        }))
    }

    fn rename<'a>(&'a self, from: &'a VolumePath, to: &'a VolumePath) -> VolumeFuture<'a, ()> {
        let step = Step {
            to: Some(to.clone()),
            ..Step::new(StepOp::Rename, from)
        };
        Box::pin(self.step(step, done, move |tree, _| tree.rename(from, to)))
    }

    fn remove<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()> {
        let step = Step::new(StepOp::Remove, path);
        Box::pin(self.step(step, done, move |tree, _| tree.remove(path)))
    }

    fn remove_dir<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()> {
        let step = Step::new(StepOp::RemoveDir, path);
        Box::pin(self.step(step, done, move |tree, _| tree.remove_dir(path)))
    }

    fn list<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, Vec<DirEntry>> {
        let step = Step::new(StepOp::List, dir);
        Box::pin(self.step(step, shown_names, move |tree, _| self.names(tree, dir)))
    }

    fn create_dir_all<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()> {
        let step = Step::new(StepOp::CreateDirAll, dir);
        Box::pin(self.step(step, done, move |tree, _| tree.create_dirs(dir)))
    }

    fn sync_dir<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()> {
        let step = Step::new(StepOp::SyncDir, dir);
        Box::pin(self.step(step, done, move |tree, _| tree.sync_dir(dir)))
    }

    fn space(&self) -> VolumeFuture<'_, Space> {
        let step = Step::new(StepOp::Space, &VolumePath::root());
        let show = |space: &Space| StepAnswer::Number(space.free);
        Box::pin(self.step(step, show, |tree, _| Ok(tree.space())))
    }
}

/// An open file of a [`MemoryVolume`].
#[derive(Debug)]
struct MemoryFile {
    volume: MemoryVolume,
    path: VolumePath,
    file: FileRef,
    writable: bool,
    generation: u64,
}

impl MemoryFile {
    /// A step on this handle, which a power cut makes useless even where the mount outlives it.
    fn step<'a, T: Send + 'a>(
        &'a self,
        step: Step,
        show: fn(&T) -> StepAnswer<'_>,
        act: impl FnOnce(&mut Tree, u64) -> Result<T, VolumeError> + Send + 'a,
    ) -> VolumeFuture<'a, T> {
        Box::pin(self.volume.step(step, show, move |tree, limit| {
            if tree.generation != self.generation {
                return Err(power_was_cut(&self.path));
            }
            act(tree, limit)
        }))
    }
}

impl VolumeFile for MemoryFile {
    fn write_at<'a>(&'a self, offset: u64, parts: &'a [Bytes]) -> VolumeFuture<'a, ()> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        let step = Step::new(StepOp::WriteAt, &self.path).range(offset, len);
        self.step(step, done, move |tree, limit| {
            if !self.writable {
                return Err(tree::io(&self.path, "write", "opened for reading"));
            }
            tree.write(&self.path, &self.file, offset, parts, limit)
        })
    }

    fn read_at(&self, offset: u64, len: usize) -> VolumeFuture<'_, Bytes> {
        let step = Step::new(StepOp::ReadAt, &self.path).range(offset, len as u64);
        self.step(step, shown_bytes, move |_, _| {
            Ok(self.file.lock().read(offset, len))
        })
    }

    fn sync_data(&self) -> VolumeFuture<'_, ()> {
        let step = Step::new(StepOp::SyncData, &self.path);
        self.step(step, done, |_, limit| {
            let mut file = self.file.lock();
            if limit == 0 {
                file.fail_sync();
            } else {
                file.sync();
            }
            Ok(())
        })
    }

    fn allocate(&self, len: u64) -> VolumeFuture<'_, ()> {
        let step = Step::new(StepOp::Allocate, &self.path).range(0, len);
        self.step(step, done, move |tree, _| {
            if !self.writable {
                return Err(tree::io(&self.path, "reserve", "opened for reading"));
            }
            tree.allocate(&self.path, &self.file, len)
        })
    }

    fn size(&self) -> VolumeFuture<'_, u64> {
        let step = Step::new(StepOp::Size, &self.path);
        self.step(
            step,
            |len| StepAnswer::Number(*len),
            |_, _| Ok(self.file.lock().len()),
        )
    }

    fn range(&self, _offset: u64, _len: usize) -> Option<FileRange> {
        None
    }
}

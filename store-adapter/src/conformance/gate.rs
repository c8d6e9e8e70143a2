//! A volume that can be shut like a killed process, that counts the syncs of the store's files, and
//! that fails when it is told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::runtime::BoxFuture;
use crate::volume::memory::StepFault;
use crate::volume::{
    DirEntry, FileRange, Space, Volume, VolumeError, VolumeFile, VolumeFuture, VolumePath,
};

/// One broker's way to a volume. Once shut, no step does anything or ever answers.
#[derive(Debug, Clone)]
pub struct GateVolume {
    inner: Arc<dyn Volume>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    shut: AtomicBool,
    syncs: Arc<AtomicU64>,
    fail_syncs: AtomicBool,
    full: AtomicBool,
    after_sync: Mutex<Option<BoxFuture<'static, ()>>>,
    told: Mutex<Option<Told>>,
    /// The step that was to stop has come.
    stopped: CancellationToken,
    /// What waits there, and all that comes, fails.
    ended: CancellationToken,
}

/// A step that is not to go well.
#[derive(Debug, Clone, Copy)]
struct Told {
    /// Steps before it.
    left: u64,
    what: Outcome,
}

#[derive(Debug, Clone, Copy)]
enum Outcome {
    /// It fails, undone or, `behind`, done all the same.
    Fail { fault: StepFault, behind: bool },
    /// It waits for the end, and so do all that come behind it.
    Stop,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

impl Gate {
    async fn pass<T>(&self, step: VolumeFuture<'_, T>) -> Result<T, VolumeError> {
        if self.shut.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let told = self.told();
        if self.stopped.is_cancelled() {
            self.ended.cancelled().await;
            return Err(failed(StepFault::Io));
        }
        match told {
            Some(Outcome::Fail { fault, behind }) => {
                if behind {
                    step.await?;
                }
                Err(failed(fault))
            }
            _ => step.await,
        }
    }

    /// Counts a step, and says what becomes of it, if it is the one.
    fn told(&self) -> Option<Outcome> {
        let mut waiting = self.told.lock();
        let told = waiting.as_mut()?;
        if told.left > 0 {
            told.left -= 1;
            return None;
        }
        let what = told.what;
        *waiting = None;
        if matches!(what, Outcome::Stop) {
            self.stopped.cancel();
        }
        Some(what)
    }
}

fn failed(fault: StepFault) -> VolumeError {
    fault.error(&VolumePath::root().join("told-to-fail"))
}

impl GateVolume {
    /// A way to `inner`; `syncs` counts the syncs of files that batches are in.
    pub fn new(inner: Arc<dyn Volume>, syncs: Arc<AtomicU64>) -> Self {
        let gate = Gate {
            syncs,
            ..Gate::default()
        };
        Self {
            inner,
            gate: Arc::new(gate),
        }
    }

    /// Whether syncs of files that batches are in fail from now on.
    pub fn fail_syncs(&self, fail: bool) {
        self.gate.fail_syncs.store(fail, Ordering::SeqCst);
    }

    /// Whether it says from now on that nothing is free.
    pub fn fill(&self, full: bool) {
        self.gate.full.store(full, Ordering::SeqCst);
    }

    /// What is done once, between the next sync of a file that batches are in and its answer.
    pub fn after_sync(&self, work: BoxFuture<'static, ()>) {
        *self.gate.after_sync.lock() = Some(work);
    }

    /// Behind so many steps one fails, undone or, `behind`, done all the same.
    pub fn fail_at(&self, left: u64, fault: StepFault, behind: bool) {
        let what = Outcome::Fail { fault, behind };
        *self.gate.told.lock() = Some(Told { left, what });
    }

    /// Behind so many steps nothing is done any more: what is there is what a killed process left.
    pub fn stop_at(&self, left: u64) {
        let what = Outcome::Stop;
        *self.gate.told.lock() = Some(Told { left, what });
    }

    /// Forgets what it was told, if that has not come.
    pub fn go_on(&self) {
        *self.gate.told.lock() = None;
    }

    /// Whether what it was told has come, or it was told nothing.
    pub fn has_come(&self) -> bool {
        self.gate.told.lock().is_none()
    }

    /// Whether the step has come that stops everything.
    pub fn has_stopped(&self) -> bool {
        self.gate.stopped.is_cancelled()
    }

    /// Completes when the step has come that stops everything.
    pub async fn stopped(&self) {
        self.gate.stopped.cancelled().await;
    }

    /// Lets what was stopped end, by a failure.
    pub fn end(&self) {
        self.gate.ended.cancel();
    }

    /// Shuts it: the broker is dead.
    pub fn shut(&self) {
        self.gate.shut.store(true, Ordering::SeqCst);
    }

    fn file<'a>(
        &'a self,
        path: &VolumePath,
        open: VolumeFuture<'a, Arc<dyn VolumeFile>>,
    ) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        let name = path.file_name();
        let journal = name == "db" || name.strip_suffix(".log").is_some();
        Box::pin(async move {
            let inner = self.gate.pass(open).await?;
            let gate = Arc::clone(&self.gate);
            let file: Arc<dyn VolumeFile> = Arc::new(GateFile {
                inner,
                gate,
                journal,
            });
            Ok(file)
        })
    }
}

impl Volume for GateVolume {
    fn create_new<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        self.file(path, self.inner.create_new(path))
    }
    fn open<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        self.file(path, self.inner.open(path))
    }
    fn open_write<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        self.file(path, self.inner.open_write(path))
    }
    fn read<'a>(&'a self, path: &'a VolumePath, max: u64) -> VolumeFuture<'a, Bytes> {
        Box::pin(self.gate.pass(self.inner.read(path, max)))
    }
    fn rename<'a>(&'a self, from: &'a VolumePath, to: &'a VolumePath) -> VolumeFuture<'a, ()> {
        Box::pin(self.gate.pass(self.inner.rename(from, to)))
    }
    fn remove<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()> {
        Box::pin(self.gate.pass(self.inner.remove(path)))
    }
    fn remove_dir<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()> {
        Box::pin(self.gate.pass(self.inner.remove_dir(path)))
    }
    fn list<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, Vec<DirEntry>> {
        Box::pin(self.gate.pass(self.inner.list(dir)))
    }
    fn create_dir_all<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()> {
        Box::pin(self.gate.pass(self.inner.create_dir_all(dir)))
    }
    fn sync_dir<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()> {
        Box::pin(self.gate.pass(self.inner.sync_dir(dir)))
    }
    fn space(&self) -> VolumeFuture<'_, Space> {
        if self.gate.full.load(Ordering::SeqCst) {
            return Box::pin(std::future::ready(Ok(Space {
                free: 0,
                total: 1 << 40,
            })));
        }
        Box::pin(self.gate.pass(self.inner.space()))
    }
}

#[derive(Debug)]
struct GateFile {
    inner: Arc<dyn VolumeFile>,
    gate: Arc<Gate>,
    journal: bool,
}

impl VolumeFile for GateFile {
    fn write_at<'a>(&'a self, offset: u64, parts: &'a [Bytes]) -> VolumeFuture<'a, ()> {
        Box::pin(self.gate.pass(self.inner.write_at(offset, parts)))
    }
    fn read_at(&self, offset: u64, len: usize) -> VolumeFuture<'_, Bytes> {
        Box::pin(self.gate.pass(self.inner.read_at(offset, len)))
    }
    fn sync_data(&self) -> VolumeFuture<'_, ()> {
        if !self.journal {
            return Box::pin(self.gate.pass(self.inner.sync_data()));
        }
        self.gate.syncs.fetch_add(1, Ordering::SeqCst);
        if self.gate.fail_syncs.load(Ordering::SeqCst) {
            return Box::pin(std::future::ready(Err(VolumeError::Io {
                path: "a file of the store".to_owned(),
                what: "fdatasync",
                cause: "told to fail".to_owned(),
            })));
        }
        Box::pin(async move {
            self.gate.pass(self.inner.sync_data()).await?;
            let after = self.gate.after_sync.lock().take();
            if let Some(after) = after {
                after.await;
            }
            Ok(())
        })
    }
    fn allocate(&self, len: u64) -> VolumeFuture<'_, ()> {
        Box::pin(self.gate.pass(self.inner.allocate(len)))
    }
    fn size(&self) -> VolumeFuture<'_, u64> {
        Box::pin(self.gate.pass(self.inner.size()))
    }
    fn range(&self, offset: u64, len: usize) -> Option<FileRange> {
        self.inner.range(offset, len)
    }
}

//! A volume that can be shut like a killed process, that counts the syncs of the store's files, and
//! that fails when it is told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::runtime::BoxFuture;
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
        step.await
    }
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

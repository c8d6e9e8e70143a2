//! Row 6: what a reader notices of a disk whose syncs stall.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use gateway::gateway::Gateway;
use store_adapter::volume::{
    DirEntry, FileRange, PosixVolume, Space, Volume, VolumeFile, VolumeFuture, VolumePath,
};
use tokio::runtime::Builder;

use super::client::{loadgen, loadgen_command, read_report};
use super::progress;
use super::results::{Case, MS, Results};
use super::subject::Subject;
use crate::wallclock;

/// How long every sync of a journal file takes while syncs are slow.
const STALL: Duration = Duration::from_millis(200);

/// A broker in this process whose syncs take [`STALL`]: one client reads old records over and
/// over, another writes.
pub(super) fn measure(dir: &std::path::Path, quick: bool, results: &mut Results) -> Result<()> {
    progress("a reader beside a writer whose syncs stall");
    let data = tempfile::tempdir_in(dir)?;
    let volume = Arc::new(SlowVolume::new(PosixVolume::open(data.path())?));
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let index = data.path().join("local").display().to_string();
    let starting = Gateway::builder()
        .free_ports()
        .data_dir(data.path())
        .set("index.dir", &index)
        .volume(Arc::clone(&volume) as Arc<dyn Volume>)
        .start();
    let gateway = runtime.block_on(starting)?;
    let address = gateway.addresses().kafka.clone();
    loadgen(
        &address,
        "produce --topic old --partitions 1 --bytes 50000000",
    )?;
    let seconds = if quick { 1 } else { 5 };
    volume.stall(true);
    let write = format!("produce --topic new --partitions 4 --seconds {seconds}");
    let writer = loadgen_command(&address, &write)?
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("writer")?;
    let read = format!(
        "fetch --topic old --partitions 1 --partition-max-bytes 65536 --repeat --seconds {seconds}"
    );
    let reader = loadgen(&address, &read)?;
    let writer = read_report(&write, &writer.wait_with_output()?)?;
    volume.stall(false);
    runtime.block_on(gateway.shutdown());
    for (what, value) in [
        (
            "fetch of 64 KiB while each fdatasync takes 200 ms, p99",
            reader.latency_ms.p99,
        ),
        (
            "produce while each fdatasync takes 200 ms, p50",
            writer.latency_ms.p50,
        ),
    ] {
        let case = Case {
            row: 6,
            what: what.to_owned(),
            unit: MS,
        };
        results.add(Subject::Fencepost, case, value);
    }
    Ok(())
}

/// A volume whose files sync slowly on request.
#[derive(Debug)]
struct SlowVolume {
    inner: PosixVolume,
    slow: Arc<AtomicBool>,
}

impl SlowVolume {
    fn new(inner: PosixVolume) -> Self {
        Self {
            inner,
            slow: Arc::default(),
        }
    }

    fn stall(&self, slow: bool) {
        self.slow.store(slow, Ordering::SeqCst);
    }

    fn file<'a>(
        &'a self,
        path: &VolumePath,
        open: VolumeFuture<'a, Arc<dyn VolumeFile>>,
    ) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        let journal = path.file_name().strip_suffix(".log").is_some();
        Box::pin(async move {
            let inner = open.await?;
            if !journal {
                return Ok(inner);
            }
            let slow = Arc::clone(&self.slow);
            Ok(Arc::new(SlowFile { inner, slow }) as Arc<dyn VolumeFile>)
        })
    }
}

impl Volume for SlowVolume {
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
        self.inner.read(path, max)
    }
    fn rename<'a>(&'a self, from: &'a VolumePath, to: &'a VolumePath) -> VolumeFuture<'a, ()> {
        self.inner.rename(from, to)
    }
    fn remove<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()> {
        self.inner.remove(path)
    }
    fn remove_dir<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()> {
        self.inner.remove_dir(path)
    }
    fn list<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, Vec<DirEntry>> {
        self.inner.list(dir)
    }
    fn create_dir_all<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()> {
        self.inner.create_dir_all(dir)
    }
    fn sync_dir<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()> {
        self.inner.sync_dir(dir)
    }
    fn space(&self) -> VolumeFuture<'_, Space> {
        self.inner.space()
    }
}

#[derive(Debug)]
struct SlowFile {
    inner: Arc<dyn VolumeFile>,
    slow: Arc<AtomicBool>,
}

impl VolumeFile for SlowFile {
    fn write_at<'a>(&'a self, offset: u64, parts: &'a [Bytes]) -> VolumeFuture<'a, ()> {
        self.inner.write_at(offset, parts)
    }
    fn read_at(&self, offset: u64, len: usize) -> VolumeFuture<'_, Bytes> {
        self.inner.read_at(offset, len)
    }
    fn sync_data(&self) -> VolumeFuture<'_, ()> {
        Box::pin(async move {
            if self.slow.load(Ordering::SeqCst) {
                // As a disk does it: the io thread is held.
                wallclock::pause(STALL);
            }
            self.inner.sync_data().await
        })
    }
    fn allocate(&self, len: u64) -> VolumeFuture<'_, ()> {
        self.inner.allocate(len)
    }
    fn size(&self) -> VolumeFuture<'_, u64> {
        self.inner.size()
    }
    fn range(&self, offset: u64, len: usize) -> Option<FileRange> {
        self.inner.range(offset, len)
    }
}

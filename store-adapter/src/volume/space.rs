//! Whether the volume is full, as those who write find out; said once when it begins and ends.
//! Syncs are counted on the way.
//!
//! What appends leave free, others may fill. So some of it is held in a file, which is given up
//! when something is to be deleted on a volume without space, and taken again when there is some.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use super::{
    DirEntry, FileRange, Space, Volume, VolumeError, VolumeFile, VolumeFuture, VolumePath,
};
use crate::runtime::{BoxFuture, Env};

/// How often a full volume is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Free bytes with which a volume is not full any more.
const ENOUGH: u64 = 1 << 20;
/// Nothing was refused for so long when it is not full any more.
const CALM: Duration = Duration::from_secs(2);
/// Most of the room that is held, bytes.
const HELD_MAX: u64 = 16 << 20;

/// Room that appends leave to what must go on when they can't: trims, deletions, offsets,
/// snapshots, and the files that give space back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reserve {
    /// None: appends go on until the volume is full.
    #[default]
    None,
    /// So many bytes.
    Bytes(u64),
    /// A hundredth of the file system, at most 256 MiB.
    Part,
}

impl Reserve {
    const PART: u64 = 100;
    const PART_MAX: u64 = 256 << 20;
    /// Bytes that are written whatever is said to be free: where a volume is full that gives its
    /// space back, and a volume without any says so itself.
    const SMALL: u64 = 1 << 20;

    /// Whether a volume with `space` has no room for appends.
    pub fn is_touched(self, space: Space) -> bool {
        space.free < self.bytes(space.total)
    }

    /// Whether a copy of `bytes`, which may give nothing back, fits into a volume with `space`:
    /// half of what is reserved stays for those that it is reserved for.
    pub fn has_room_for(self, bytes: u64, space: Space) -> bool {
        bytes <= Self::SMALL || space.free >= bytes.saturating_add(self.bytes(space.total) / 2)
    }

    /// Whether a copy of `bytes` fits that gives back more than it takes: it may take all that is
    /// reserved, since on a full volume nothing else would give space back.
    pub fn has_room_to_free(self, bytes: u64, space: Space) -> bool {
        bytes <= Self::SMALL || space.free >= bytes
    }

    fn bytes(self, total: u64) -> u64 {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes,
            Self::Part => (total / Self::PART).min(Self::PART_MAX),
        }
    }
}

/// Syncs that were asked of a watched volume.
#[derive(Debug, Default)]
pub struct SyncCounters {
    /// Of files.
    pub files: AtomicU64,
    /// Of directories, those apart that making a directory needs.
    pub directories: AtomicU64,
}

/// Whether a volume is full; clones share it.
#[derive(Debug, Clone)]
pub struct SpaceWatch(Arc<State>);

#[derive(Debug)]
struct State {
    env: Env,
    full: watch::Sender<bool>,
    /// When something was refused last, ms of the monotonic clock.
    refused_ms: AtomicU64,
    volume: Arc<dyn Volume>,
    reserve: Reserve,
    /// The file that holds room for deletions, if one is to.
    held: OnceLock<VolumePath>,
    /// Whether it does.
    holds: AtomicBool,
    syncs: Arc<SyncCounters>,
}

impl SpaceWatch {
    /// Watches `volume`, which was not full so far.
    pub fn new(env: &Env, volume: Arc<dyn Volume>) -> Self {
        Self::with_reserve(env, volume, Reserve::None)
    }

    /// The same, of a volume that counts as full while `reserve` is touched.
    pub fn with_reserve(env: &Env, volume: Arc<dyn Volume>, reserve: Reserve) -> Self {
        Self(Arc::new(State {
            reserve,
            env: env.clone(),
            full: watch::Sender::new(false),
            refused_ms: AtomicU64::new(0),
            volume,
            held: OnceLock::new(),
            holds: AtomicBool::new(false),
            syncs: Arc::default(),
        }))
    }

    /// From now on a file at `path` holds a part of the reserve, when there is space for both. One
    /// of an earlier process is taken over; without a reserve it goes.
    pub async fn hold_room(&self, path: VolumePath) {
        let watch = self.clone();
        let task = Box::pin(async move { watch.begin_to_hold(path).await });
        self.in_io(task).await;
    }

    async fn begin_to_hold(&self, path: VolumePath) {
        let volume = &self.0.volume;
        let (space, found) = (volume.space().await, volume.open(&path).await.is_ok());
        let Ok(space) = space else { return };
        if self.held_bytes(space) > 0 {
            let path = self.0.held.get_or_init(|| path);
            self.0.holds.store(found, Ordering::Relaxed);
            if found || self.has_enough(space) {
                self.take_room(path, space).await;
            }
        } else if found && let Err(error) = volume.remove(&path).await {
            tracing::warn!(%error, "room is held that nobody asks for");
        }
    }

    async fn take_room(&self, path: &VolumePath, space: Space) {
        let volume = &self.0.volume;
        let file = match volume.open_write(path).await {
            Err(error) if error.is_not_found() => volume.create_new(path).await,
            file => file,
        };
        let taken = match file {
            Ok(file) => file.allocate(self.held_bytes(space)).await,
            Err(error) => Err(error),
        };
        match taken {
            Ok(()) => self.0.holds.store(true, Ordering::Relaxed),
            Err(error) => tracing::debug!(%error, "no room is held for deletions"),
        }
    }

    /// Before something is deleted: gives up the room that is held where the volume has less space
    /// than that. What deletes writes too, before it gives space back.
    pub async fn make_way(&self) {
        if !self.0.holds.load(Ordering::Relaxed) {
            return;
        }
        let watch = self.clone();
        let task = Box::pin(async move { watch.give_room().await });
        self.in_io(task).await;
    }

    async fn give_room(&self) {
        let volume = &self.0.volume;
        let (Some(path), Ok(space)) = (self.0.held.get(), volume.space().await) else {
            return;
        };
        let scarce = space.free < self.held_bytes(space);
        if !scarce || !self.0.holds.swap(false, Ordering::Relaxed) {
            return;
        }
        match volume.remove(path).await {
            Err(error) if !error.is_not_found() => {
                tracing::warn!(%error, "the room that is held can't be given to deletions");
                self.0.holds.store(true, Ordering::Relaxed);
            }
            _ => {
                tracing::warn!(%path, "the room that was held is given to deletions");
                self.refused(path.as_str());
            }
        }
    }

    /// Has `steps` done where steps of the volume are awaited.
    async fn in_io(&self, steps: BoxFuture<'static, ()>) {
        let (done, ended) = oneshot::channel();
        let task = Box::pin(async move {
            steps.await;
            // The asker may have gone.
            done.send(()).unwrap_or_default();
        });
        drop(self.0.env.runtime.spawn_io("room", task));
        ended.await.unwrap_or_default();
    }

    fn held_bytes(&self, space: Space) -> u64 {
        self.0.reserve.bytes(space.total).min(HELD_MAX)
    }

    /// What goes through [`SpaceWatch::watched`] is counted here.
    pub fn syncs(&self) -> &Arc<SyncCounters> {
        &self.0.syncs
    }

    /// The volume, through which the watch sees what is refused. A failed reservation does not
    /// count: it may be repeated with less.
    pub fn watched(&self) -> Arc<dyn Volume> {
        Arc::new(Watched(self.clone()))
    }

    /// Whether the volume is full.
    pub fn is_full(&self) -> bool {
        *self.0.full.borrow()
    }

    /// Follows [`SpaceWatch::is_full`].
    pub fn changes(&self) -> watch::Receiver<bool> {
        self.0.full.subscribe()
    }

    /// Notes that there was no space for a write to `path`.
    pub fn refused(&self, path: &str) {
        let now = ms(self.0.env.clock.monotonic());
        self.0.refused_ms.store(now, Ordering::Relaxed);
        let begins = self.0.full.send_if_modified(|full| {
            let begins = !*full;
            *full = true;
            begins
        });
        if begins {
            let what = "the disk is full: writes are refused, and tried again, until space is free";
            tracing::error!(path, "{what}");
            let watch = self.clone();
            let task = Box::pin(async move { watch.until_free().await });
            drop(self.0.env.runtime.spawn_io("space", task));
        }
    }

    /// Looks at the volume until it is not full any more.
    async fn until_free(&self) {
        let clock = &self.0.env.clock;
        loop {
            clock.sleep(LOOK).await;
            let refused = self.0.refused_ms.load(Ordering::Relaxed);
            let calm = ms(clock.monotonic()).saturating_sub(refused) >= ms(CALM);
            match self.0.volume.space().await {
                Ok(space) if self.has_enough(space) && calm => {
                    if let Some(path) = self.0.held.get() {
                        self.take_room(path, space).await;
                    }
                    // Said before it is shown: who sees it finds it in the log.
                    tracing::info!(free = space.free, "the disk has space again");
                    self.0.full.send_replace(false);
                    return;
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "the volume can't be measured"),
            }
        }
    }

    fn has_enough(&self, space: Space) -> bool {
        let holds = self.0.holds.load(Ordering::Relaxed);
        let to_hold = self.0.held.get().filter(|_| !holds);
        let to_hold = to_hold.map_or(0, |_| self.held_bytes(space));
        let reserve = self.0.reserve.bytes(space.total);
        space.free >= ENOUGH.saturating_add(reserve).saturating_add(to_hold)
    }

    fn note<T>(&self, outcome: Result<T, VolumeError>) -> Result<T, VolumeError> {
        if let Err(VolumeError::NoSpace { path }) = &outcome {
            self.refused(path);
        }
        outcome
    }

    fn step<'a, T: 'a>(&'a self, step: VolumeFuture<'a, T>) -> VolumeFuture<'a, T> {
        Box::pin(async move { self.note(step.await) })
    }

    fn open<'a>(
        &'a self,
        step: VolumeFuture<'a, Arc<dyn VolumeFile>>,
    ) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        Box::pin(async move {
            let inner = self.note(step.await)?;
            let watch = self.clone();
            let file: Arc<dyn VolumeFile> = Arc::new(WatchedFile { inner, watch });
            Ok(file)
        })
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// See [`SpaceWatch::watched`].
#[derive(Debug)]
struct Watched(SpaceWatch);

impl Watched {
    fn inner(&self) -> &Arc<dyn Volume> {
        &self.0.0.volume
    }
}

impl Volume for Watched {
    fn create_new<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        self.0.open(self.inner().create_new(path))
    }
    fn open<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        self.inner().open(path)
    }
    fn open_write<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        self.0.open(self.inner().open_write(path))
    }
    fn read<'a>(&'a self, path: &'a VolumePath, max: u64) -> VolumeFuture<'a, Bytes> {
        self.inner().read(path, max)
    }
    fn rename<'a>(&'a self, from: &'a VolumePath, to: &'a VolumePath) -> VolumeFuture<'a, ()> {
        self.0.step(self.inner().rename(from, to))
    }
    fn remove<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()> {
        self.0.step(self.inner().remove(path))
    }
    fn remove_dir<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()> {
        self.0.step(self.inner().remove_dir(path))
    }
    fn list<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, Vec<DirEntry>> {
        self.inner().list(dir)
    }
    fn create_dir_all<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()> {
        self.0.step(self.inner().create_dir_all(dir))
    }
    fn sync_dir<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()> {
        let count = &self.0.syncs().directories;
        count.fetch_add(1, Ordering::Relaxed);
        self.0.step(self.inner().sync_dir(dir))
    }
    fn space(&self) -> VolumeFuture<'_, Space> {
        self.inner().space()
    }
}

#[derive(Debug)]
struct WatchedFile {
    inner: Arc<dyn VolumeFile>,
    watch: SpaceWatch,
}

impl VolumeFile for WatchedFile {
    fn write_at<'a>(&'a self, offset: u64, parts: &'a [Bytes]) -> VolumeFuture<'a, ()> {
        self.watch.step(self.inner.write_at(offset, parts))
    }
    fn read_at(&self, offset: u64, len: usize) -> VolumeFuture<'_, Bytes> {
        self.inner.read_at(offset, len)
    }
    fn sync_data(&self) -> VolumeFuture<'_, ()> {
        self.watch.syncs().files.fetch_add(1, Ordering::Relaxed);
        self.watch.step(self.inner.sync_data())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::MemoryVolume;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_full_volume_is_known_until_it_has_space() {
        let memory = MemoryVolume::new();
        let watch = SpaceWatch::new(&Env::real(), Arc::new(memory.clone()));
        let volume = watch.watched();
        let mut changes = watch.changes();
        let path = VolumePath::root().join("a");
        let file = volume.create_new(&path).await.unwrap();
        memory.set_total(1 << 21);
        file.write_at(0, &[Bytes::from(vec![1; 1 << 20])])
            .await
            .unwrap();
        assert!(!watch.is_full());
        let large = [Bytes::from(vec![1; 4 << 20])];
        file.write_at(0, &large).await.unwrap_err();
        assert!(*changes.wait_for(|full| *full).await.unwrap());
        memory.set_total(1 << 30);
        file.write_at(0, &large).await.unwrap();
        assert!(!*changes.wait_for(|full| !*full).await.unwrap());
        assert!(!watch.is_full());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn room_is_held_until_a_deletion_needs_it_and_taken_again() {
        let memory = MemoryVolume::new();
        let watch =
            |reserve| SpaceWatch::with_reserve(&Env::real(), Arc::new(memory.clone()), reserve);
        let path = VolumePath::root().join("held");
        let is_there = async || memory.open(&path).await.is_ok();
        let first = watch(Reserve::Bytes(4 << 20));
        // There is room for what is held or for what is left free, not for both.
        memory.set_total(8 << 20);
        first.hold_room(path.clone()).await;
        assert!(!is_there().await);
        memory.set_total(1 << 30);
        let watched = watch(Reserve::Bytes(4 << 20));
        watched.hold_room(path.clone()).await;
        assert!(is_there().await);
        // With as much space as is held, a deletion has what it needs.
        memory.set_total(4 << 20);
        watched.make_way().await;
        assert!(is_there().await && !watched.is_full());
        memory.set_total((4 << 20) - 1);
        watched.make_way().await;
        assert!(!is_there().await && watched.is_full());
        let mut changes = watched.changes();
        memory.set_total(1 << 30);
        changes.wait_for(|full| !*full).await.unwrap();
        assert!(is_there().await);
        // Taken over by the next process, on a volume that has no space.
        memory.set_total(1);
        let next = watch(Reserve::Bytes(4 << 20));
        next.hold_room(path.clone()).await;
        assert!(is_there().await);
        watch(Reserve::None).hold_room(path.clone()).await;
        assert!(!is_there().await);
    }

    #[test]
    fn a_copy_leaves_half_of_what_is_reserved() {
        let space = Space {
            free: 60 << 20,
            total: 1000 << 20,
        };
        for (reserve, mib, fits) in [
            (Reserve::Bytes(40 << 20), 40, true),
            (Reserve::Bytes(40 << 20), 41, false),
            (Reserve::Bytes(200 << 20), 2, false),
            (Reserve::Bytes(200 << 20), 1, true),
            (Reserve::None, 60, true),
            (Reserve::None, 61, false),
        ] {
            assert_eq!(reserve.has_room_for(mib << 20, space), fits, "{reserve:?}");
        }
        // Where that gives space back it may take all there is; a little is tried in any case.
        let full = Space { free: 0, ..space };
        let reserve = Reserve::Bytes(200 << 20);
        for (mib, space, fits) in [
            (60, space, true),
            (61, space, false),
            (1, full, true),
            (2, full, false),
        ] {
            assert_eq!(reserve.has_room_to_free(mib << 20, space), fits, "{mib}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn syncs_are_counted_by_what_is_synced() {
        let watch = SpaceWatch::new(&Env::real(), Arc::new(MemoryVolume::new()));
        let volume = watch.watched();
        let path = VolumePath::root().join("a");
        let file = volume.create_new(&path).await.unwrap();
        file.sync_data().await.unwrap();
        let again = volume.open_write(&path).await.unwrap();
        again.sync_data().await.unwrap();
        volume.sync_dir(&VolumePath::root()).await.unwrap();
        let SyncCounters { files, directories } = &**watch.syncs();
        let counted = [files, directories].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counted, [2, 1]);
    }
}

//! A volume over another one, which is only read: what a process would find and do there, without
//! doing it.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{
    DirEntry, FileRange, MemoryVolume, Space, Volume, VolumeError, VolumeFile, VolumeFuture,
    VolumePath,
};

/// Largest file of the volume below that is written to, bytes: it is held in memory from then on.
const WRITTEN_MAX: u64 = 64 << 20;

type Handle = Arc<dyn VolumeFile>;

/// The volume below with what was changed over it, in memory.
#[derive(Debug)]
pub struct Overlay {
    below: Arc<dyn Volume>,
    /// Files that were made or written.
    over: MemoryVolume,
    /// What is no longer seen of the volume below: unlinked, renamed, or replaced and unlinked.
    gone: Mutex<BTreeSet<VolumePath>>,
}

impl Overlay {
    /// Nothing is changed yet.
    pub fn new(below: Arc<dyn Volume>) -> Self {
        Self {
            below,
            over: MemoryVolume::new(),
            gone: Mutex::default(),
        }
    }

    fn is_gone(&self, path: &VolumePath) -> bool {
        self.gone.lock().contains(path)
    }

    /// A file of the volume below, if it is still seen.
    async fn open_below(&self, path: &VolumePath) -> Result<Handle, VolumeError> {
        if self.is_gone(path) {
            return Err(not_found(path));
        }
        let file = self.below.open(path).await?;
        Ok(Arc::new(Below(file)))
    }

    /// The names below, if the directory is still seen.
    async fn list_below(&self, dir: &VolumePath) -> Result<Vec<DirEntry>, VolumeError> {
        if self.is_gone(dir) {
            return Err(not_found(dir));
        }
        let mut names = self.below.list(dir).await?;
        names.retain(|entry| !self.is_gone(&dir.join(&entry.name)));
        Ok(names)
    }

    /// Makes the directory of `path` in memory, if there is one below.
    async fn make_parent(&self, path: &VolumePath) -> Result<(), VolumeError> {
        let dir = path.parent();
        match self.list_below(&dir).await {
            Ok(_) => self.over.create_dir_all(&dir).await,
            Err(VolumeError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes `path` a file in memory with the content that it has below.
    async fn lift(&self, path: &VolumePath) -> Result<(), VolumeError> {
        let file = self.open_below(path).await?;
        let len = file.size().await?;
        if len > WRITTEN_MAX {
            let (path, max) = (path.to_string(), WRITTEN_MAX);
            return Err(VolumeError::TooLarge { path, len, max });
        }
        let content = file.read_at(0, usize::try_from(len).unwrap_or(usize::MAX));
        let content = content.await?;
        self.make_parent(path).await?;
        let copy = self.over.create_new(path).await?;
        copy.write_at(0, &[content]).await
    }
}

impl Volume for Overlay {
    fn create_new<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Handle> {
        Box::pin(async move {
            match self.open_below(path).await {
                Err(VolumeError::NotFound { .. }) => {}
                Err(error) => return Err(error),
                Ok(_) => {
                    let path = path.to_string();
                    return Err(VolumeError::AlreadyExists { path });
                }
            }
            self.make_parent(path).await?;
            self.over.create_new(path).await
        })
    }

    fn open<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Handle> {
        Box::pin(async move {
            match self.over.open(path).await {
                Err(VolumeError::NotFound { .. }) => self.open_below(path).await,
                found => found,
            }
        })
    }

    fn open_write<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Handle> {
        Box::pin(async move {
            match self.over.open_write(path).await {
                Err(VolumeError::NotFound { .. }) => {
                    self.lift(path).await?;
                    self.over.open_write(path).await
                }
                found => found,
            }
        })
    }

    fn read<'a>(&'a self, path: &'a VolumePath, max: u64) -> VolumeFuture<'a, Bytes> {
        Box::pin(async move {
            match self.over.read(path, max).await {
                Err(VolumeError::NotFound { .. }) if self.is_gone(path) => Err(not_found(path)),
                Err(VolumeError::NotFound { .. }) => self.below.read(path, max).await,
                found => found,
            }
        })
    }

    fn rename<'a>(&'a self, from: &'a VolumePath, to: &'a VolumePath) -> VolumeFuture<'a, ()> {
        Box::pin(async move {
            match self.over.open(from).await {
                Ok(_) => {}
                Err(VolumeError::NotFound { .. }) => self.lift(from).await?,
                Err(error) => return Err(error),
            }
            self.make_parent(to).await?;
            self.over.rename(from, to).await?;
            self.gone.lock().insert(from.clone());
            Ok(())
        })
    }

    fn remove<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()> {
        Box::pin(async move {
            match self.over.remove(path).await {
                Ok(()) => {}
                Err(VolumeError::NotFound { .. }) => drop(self.open_below(path).await?),
                Err(error) => return Err(error),
            }
            self.gone.lock().insert(path.clone());
            Ok(())
        })
    }

    fn remove_dir<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()> {
        Box::pin(async move {
            if !self.list(path).await?.is_empty() {
                return Err(VolumeError::Io {
                    path: path.to_string(),
                    what: "remove",
                    cause: "directory not empty".to_owned(),
                });
            }
            match self.over.remove_dir(path).await {
                Err(VolumeError::NotFound { .. }) | Ok(()) => {}
                Err(error) => return Err(error),
            }
            self.gone.lock().insert(path.clone());
            Ok(())
        })
    }

    fn list<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, Vec<DirEntry>> {
        Box::pin(async move {
            let below = self.list_below(dir).await;
            match (below, self.over.list(dir).await) {
                (Ok(below), Ok(over)) => {
                    let both: BTreeSet<DirEntry> = below.into_iter().chain(over).collect();
                    Ok(both.into_iter().collect())
                }
                (Err(VolumeError::NotFound { .. }), over) => over,
                (Ok(below), Err(VolumeError::NotFound { .. })) => Ok(below),
                (Err(error), _) | (_, Err(error)) => Err(error),
            }
        })
    }

    fn create_dir_all<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()> {
        Box::pin(self.over.create_dir_all(dir))
    }

    fn sync_dir<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()> {
        Box::pin(async move { self.list(dir).await.map(|_| ()) })
    }

    fn space(&self) -> VolumeFuture<'_, Space> {
        self.below.space()
    }
}

/// A file of the volume below.
#[derive(Debug)]
struct Below(Handle);

impl VolumeFile for Below {
    /// Whatever it is: it was opened for reading.
    fn write_at<'a>(&'a self, offset: u64, parts: &'a [Bytes]) -> VolumeFuture<'a, ()> {
        self.0.write_at(offset, parts)
    }

    fn read_at(&self, offset: u64, len: usize) -> VolumeFuture<'_, Bytes> {
        self.0.read_at(offset, len)
    }

    fn sync_data(&self) -> VolumeFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn allocate(&self, _: u64) -> VolumeFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn size(&self) -> VolumeFuture<'_, u64> {
        self.0.size()
    }

    fn range(&self, offset: u64, len: usize) -> Option<FileRange> {
        self.0.range(offset, len)
    }
}

fn not_found(path: &VolumePath) -> VolumeError {
    VolumeError::NotFound {
        path: path.to_string(),
    }
}

//! The real volume: a directory of a file system. The only place that calls it.
//!
//! Every system call happens while its future is polled and blocks the polling thread; debug
//! builds refuse to be polled where a tokio runtime is current.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use smallvec::SmallVec;

use super::range::OpenFile;
use super::{
    DirEntry, FileRange, Space, Volume, VolumeError, VolumeFile, VolumeFuture, VolumePath,
};

/// The most bytes of one write call. Buffered writes of 512 KiB and more fall into a slow mode of
/// the page cache (large folios) on some kernels.
const WRITE_CALL_BYTES: usize = 256 * 1024;
/// The most buffers of one write call: Linux's `IOV_MAX`.
const WRITE_CALL_PARTS: usize = 1024;

/// A volume on a mounted file system.
#[derive(Debug)]
pub struct PosixVolume {
    root: PathBuf,
}

impl PosixVolume {
    /// The volume at `root`, which is there; nothing is made or synced. Blocks.
    ///
    /// # Errors
    /// When it is not a directory.
    pub fn existing(root: impl Into<PathBuf>) -> Result<Self, VolumeError> {
        let root = root.into();
        match root.canonicalize() {
            Ok(real) if real.is_dir() => Ok(Self { root: real }),
            Ok(_) => Err(VolumeError::Io {
                path: root.display().to_string(),
                what: "use as a directory",
                cause: std::io::Error::from(Errno::NOTDIR).to_string(),
            }),
            Err(cause) => Err(VolumeError::Io {
                path: root.display().to_string(),
                what: "use as a directory",
                cause: cause.to_string(),
            }),
        }
    }

    /// Opens the volume at `root`, making the directory (and those above it) if it is missing.
    /// Blocks.
    ///
    /// # Errors
    /// When the directory can't be made or is not a directory.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, VolumeError> {
        let root = root.into();
        // Named as it was given: there is no volume yet that its names could be relative to.
        let failed = |cause: &std::io::Error| VolumeError::Io {
            path: root.display().to_string(),
            what: "use as a directory",
            cause: cause.to_string(),
        };
        let missing: Vec<&Path> = root.ancestors().take_while(|dir| !dir.exists()).collect();
        std::fs::create_dir_all(&root).map_err(|e| failed(&e))?;
        let real = root.canonicalize().map_err(|e| failed(&e))?;
        if !real.is_dir() {
            return Err(failed(&Errno::NOTDIR.into()));
        }
        // The name of the root itself, which an earlier process may have made just before it died,
        // and those of the directories above it that were made now.
        for parent in real.ancestors().skip(1).take(missing.len().max(1)) {
            let synced = std::fs::File::open(parent).and_then(|dir| dir.sync_all());
            match synced {
                Err(error) if !missing.is_empty() => return Err(failed(&error)),
                Err(error) => tracing::debug!(%error, ?parent, "not synced"),
                Ok(()) => {}
            }
        }
        Ok(Self { root: real })
    }

    /// Where the volume is on this machine.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn full(&self, path: &VolumePath) -> PathBuf {
        // `Path::join` of an empty string would add a trailing slash, which is harmless.
        self.root.join(path.as_str())
    }

    fn open_fd(
        &self,
        path: &VolumePath,
        flags: OFlags,
        what: &'static str,
    ) -> Result<OwnedFd, VolumeError> {
        let full = self.full(path);
        let mode = Mode::from_raw_mode(0o644);
        retry_on_intr(|| rustix::fs::open(&full, flags | OFlags::CLOEXEC, mode))
            .map_err(|errno| error(path, what, errno))
    }

    fn open_file(
        &self,
        path: &VolumePath,
        flags: OFlags,
        what: &'static str,
    ) -> Result<PosixFile, VolumeError> {
        let fd = self.open_fd(path, flags, what)?;
        let path = path.clone();
        let file = Arc::new(OpenFile::new(fd));
        Ok(PosixFile { file, path })
    }

    fn read_whole(&self, path: &VolumePath, max: u64) -> Result<Bytes, VolumeError> {
        let file = self.open_file(path, OFlags::RDONLY, "open")?;
        let len = file.len()?;
        if len > max {
            let path = path.to_string();
            return Err(VolumeError::TooLarge { path, len, max });
        }
        file.read_exactly(0, usize::try_from(len).unwrap_or(usize::MAX))
    }

    fn fsync_dir(&self, dir: &VolumePath) -> Result<(), VolumeError> {
        let fd = self.open_fd(dir, OFlags::RDONLY | OFlags::DIRECTORY, "open directory")?;
        retry_on_intr(|| rustix::fs::fsync(&fd)).map_err(|errno| error(dir, "sync", errno))
    }

    fn make_dirs(&self, dir: &VolumePath) -> Result<(), VolumeError> {
        let mut above = VolumePath::root();
        for name in dir.as_str().split('/').filter(|name| !name.is_empty()) {
            let path = above.join(name);
            let full = self.full(&path);
            let mode = Mode::from_raw_mode(0o755);
            match retry_on_intr(|| rustix::fs::mkdir(&full, mode)) {
                Ok(()) | Err(Errno::EXIST) => self.fsync_dir(&above)?,
                Err(errno) => return Err(error(&path, "make directory", errno)),
            }
            above = path;
        }
        // The last name may have been there already, as something else than a directory.
        self.open_fd(dir, OFlags::RDONLY | OFlags::DIRECTORY, "open directory")?;
        Ok(())
    }

    fn names(&self, dir: &VolumePath) -> Result<Vec<DirEntry>, VolumeError> {
        let failed = |cause: &std::io::Error| io_error(dir, "list", cause);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.full(dir)).map_err(|e| failed(&e))? {
            let entry = entry.map_err(|e| failed(&e))?;
            let is_dir = match entry.file_type() {
                Ok(kind) => kind.is_dir(),
                // The name was removed since it was listed.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(e) => return Err(failed(&e)),
            };
            // No name of ours is anything but UTF-8, and a lossy one could not be opened.
            if let Ok(name) = entry.file_name().into_string() {
                names.push(DirEntry { name, is_dir });
            }
        }
        names.sort();
        Ok(names)
    }
}

impl Volume for PosixVolume {
    fn create_new<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        blocking(move || Ok(shared(self.open_file(path, flags, "create")?)))
    }

    fn open<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        blocking(move || Ok(shared(self.open_file(path, OFlags::RDONLY, "open")?)))
    }

    fn open_write<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, Arc<dyn VolumeFile>> {
        blocking(move || Ok(shared(self.open_file(path, OFlags::RDWR, "open")?)))
    }

    fn read<'a>(&'a self, path: &'a VolumePath, max: u64) -> VolumeFuture<'a, Bytes> {
        blocking(move || self.read_whole(path, max))
    }

    fn rename<'a>(&'a self, from: &'a VolumePath, to: &'a VolumePath) -> VolumeFuture<'a, ()> {
        blocking(move || {
            let (old, new) = (self.full(from), self.full(to));
            // Never repeated on EINTR: the first call may have been executed.
            rustix::fs::rename(&old, &new).map_err(|errno| error(from, "rename", errno))
        })
    }

    fn remove<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()> {
        blocking(move || {
            rustix::fs::unlink(self.full(path)).map_err(|errno| error(path, "remove", errno))
        })
    }

    fn remove_dir<'a>(&'a self, path: &'a VolumePath) -> VolumeFuture<'a, ()> {
        blocking(move || {
            rustix::fs::rmdir(self.full(path))
                .map_err(|errno| error(path, "remove directory", errno))
        })
    }

    fn list<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, Vec<DirEntry>> {
        blocking(move || self.names(dir))
    }

    fn create_dir_all<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()> {
        blocking(move || self.make_dirs(dir))
    }

    fn sync_dir<'a>(&'a self, dir: &'a VolumePath) -> VolumeFuture<'a, ()> {
        blocking(move || self.fsync_dir(dir))
    }

    fn space(&self) -> VolumeFuture<'_, Space> {
        blocking(move || {
            let root = VolumePath::root();
            let stat = retry_on_intr(|| rustix::fs::statvfs(&self.root))
                .map_err(|errno| error(&root, "measure", errno))?;
            Ok(Space {
                free: stat.f_bavail.saturating_mul(stat.f_frsize),
                total: stat.f_blocks.saturating_mul(stat.f_frsize),
            })
        })
    }
}

/// An open file of a [`PosixVolume`].
#[derive(Debug)]
struct PosixFile {
    file: Arc<OpenFile>,
    path: VolumePath,
}

impl PosixFile {
    fn len(&self) -> Result<u64, VolumeError> {
        let stat = retry_on_intr(|| rustix::fs::fstat(&self.file.fd))
            .map_err(|errno| error(&self.path, "measure", errno))?;
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            return Err(error(&self.path, "read", Errno::ISDIR));
        }
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Reads `len` bytes, or what there is of them. The file's length bounds the buffer.
    fn read_range(&self, offset: u64, len: usize) -> Result<Bytes, VolumeError> {
        let there = self.len()?.saturating_sub(offset);
        self.read_exactly(
            offset,
            len.min(usize::try_from(there).unwrap_or(usize::MAX)),
        )
    }

    /// Reads `len` bytes, or fewer if the file became shorter.
    fn read_exactly(&self, offset: u64, len: usize) -> Result<Bytes, VolumeError> {
        let mut buffer: Vec<u8> = Vec::new();
        buffer
            .try_reserve_exact(len)
            .map_err(|_| error(&self.path, "read", Errno::NOMEM))?;
        while buffer.len() < len {
            let at = offset + buffer.len() as u64;
            match rustix::io::pread(&self.file.fd, spare_capacity(&mut buffer), at) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(error(&self.path, "read", errno)),
            }
        }
        // The allocator may have given more room than was asked for.
        buffer.truncate(len);
        Ok(Bytes::from(buffer))
    }

    fn write_all(&self, mut offset: u64, parts: &[Bytes]) -> Result<(), VolumeError> {
        // Where the next byte to write is: the part, and the position in it.
        let (mut part, mut within) = (0, 0);
        loop {
            while parts.get(part).is_some_and(|bytes| within == bytes.len()) {
                (part, within) = (part + 1, 0);
            }
            if part == parts.len() {
                return Ok(());
            }
            let slices = next_call(&parts[part..], within);
            let mut written = match rustix::io::pwritev(&self.file.fd, &slices, offset) {
                Ok(0) => return Err(error(&self.path, "write", Errno::IO)),
                Ok(written) => written,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(error(&self.path, "write", errno)),
            };
            offset += written as u64;
            while written > 0 {
                let step = written.min(parts[part].len() - within);
                (within, written) = (within + step, written - step);
                if within == parts[part].len() {
                    (part, within) = (part + 1, 0);
                }
            }
        }
    }
}

/// The buffers of one write call: from `within` the first part on, as much as one call takes.
fn next_call(parts: &[Bytes], mut within: usize) -> SmallVec<[IoSlice<'_>; 64]> {
    let mut slices = SmallVec::new();
    let mut room = WRITE_CALL_BYTES;
    for bytes in parts {
        if room == 0 || slices.len() == WRITE_CALL_PARTS {
            break;
        }
        let take = room.min(bytes.len() - within);
        if take > 0 {
            slices.push(IoSlice::new(&bytes[within..within + take]));
        }
        room -= take;
        within = 0;
    }
    slices
}

impl VolumeFile for PosixFile {
    fn write_at<'a>(&'a self, offset: u64, parts: &'a [Bytes]) -> VolumeFuture<'a, ()> {
        blocking(move || self.write_all(offset, parts))
    }

    fn read_at(&self, offset: u64, len: usize) -> VolumeFuture<'_, Bytes> {
        blocking(move || self.read_range(offset, len))
    }

    fn sync_data(&self) -> VolumeFuture<'_, ()> {
        blocking(move || {
            retry_on_intr(|| rustix::fs::fdatasync(&self.file.fd))
                .map_err(|errno| error(&self.path, "sync", errno))
        })
    }

    fn allocate(&self, len: u64) -> VolumeFuture<'_, ()> {
        blocking(move || {
            if len == 0 {
                return Ok(());
            }
            let fd = &self.file.fd;
            let reserve = || rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, 0, len);
            match retry_on_intr(reserve) {
                // A file system that can't reserve finds out about missing room at the write.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
                Err(errno) => Err(error(&self.path, "reserve", errno)),
            }
        })
    }

    fn size(&self) -> VolumeFuture<'_, u64> {
        blocking(move || self.len())
    }

    fn range(&self, offset: u64, len: usize) -> Option<FileRange> {
        FileRange::new(&self.file, offset, len)
    }
}

fn shared(file: PosixFile) -> Arc<dyn VolumeFile> {
    Arc::new(file)
}

/// A future that does `call` when it is polled first.
fn blocking<'a, T: 'a>(
    call: impl FnOnce() -> Result<T, VolumeError> + Send + 'a,
) -> VolumeFuture<'a, T> {
    Box::pin(async move {
        debug_assert!(
            tokio::runtime::Handle::try_current().is_err(),
            "a volume future is polled by a tokio worker, not by an io task"
        );
        call()
    })
}

fn io_error(path: &VolumePath, what: &'static str, cause: &std::io::Error) -> VolumeError {
    match Errno::from_io_error(cause) {
        Some(errno) => error(path, what, errno),
        None => VolumeError::Io {
            path: named(path),
            what,
            cause: cause.to_string(),
        },
    }
}

/// The name in an error; the root has none of its own.
fn named(path: &VolumePath) -> String {
    match path.as_str() {
        "" => "the data directory".to_owned(),
        name => name.to_owned(),
    }
}

fn error(path: &VolumePath, what: &'static str, errno: Errno) -> VolumeError {
    let path = named(path);
    match errno {
        Errno::NOENT => VolumeError::NotFound { path },
        Errno::EXIST => VolumeError::AlreadyExists { path },
        Errno::NOSPC | Errno::DQUOT => VolumeError::NoSpace { path },
        Errno::ROFS | Errno::ACCESS | Errno::PERM => VolumeError::ReadOnly { path },
        Errno::MFILE | Errno::NFILE => VolumeError::TooManyOpenFiles { path },
        errno => VolumeError::Io {
            path,
            what,
            cause: errno.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_their_reason() {
        let path = VolumePath::root().join("a");
        let of = |errno| error(&path, "write", errno);
        let name = || "a".to_owned();
        assert_eq!(of(Errno::NOENT), VolumeError::NotFound { path: name() });
        assert_eq!(
            of(Errno::EXIST),
            VolumeError::AlreadyExists { path: name() }
        );
        for errno in [Errno::NOSPC, Errno::DQUOT] {
            assert_eq!(of(errno), VolumeError::NoSpace { path: name() });
        }
        for errno in [Errno::ROFS, Errno::ACCESS, Errno::PERM] {
            assert_eq!(of(errno), VolumeError::ReadOnly { path: name() });
        }
        for errno in [Errno::MFILE, Errno::NFILE] {
            assert_eq!(of(errno), VolumeError::TooManyOpenFiles { path: name() });
        }
        let root = error(&VolumePath::root(), "sync", Errno::NOSPC).to_string();
        assert_eq!(root, "the data directory: no space left");
        let other = of(Errno::IO).to_string();
        assert!(other.starts_with("a: write: "), "{other}");
    }

    #[test]
    fn one_call_writes_a_bounded_slice() {
        let large = vec![Bytes::from(vec![0; 200_000]); 3];
        let lens = |slices: &[IoSlice<'_>]| slices.iter().map(|s| s.len()).collect::<Vec<_>>();
        assert_eq!(lens(&next_call(&large, 0)), [200_000, 62_144]);
        assert_eq!(lens(&next_call(&large, 199_999)), [1, 200_000, 62_143]);
        let many = vec![Bytes::from_static(b"x"); 5000];
        assert_eq!(next_call(&many, 0).len(), WRITE_CALL_PARTS);
        assert!(next_call(&[], 0).is_empty());
    }

    #[test]
    #[cfg(debug_assertions)]
    fn a_tokio_worker_may_not_poll_it() {
        let dir = tempfile::tempdir().unwrap();
        let volume = PosixVolume::open(dir.path()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let polled = std::panic::AssertUnwindSafe(|| runtime.block_on(volume.space()));
        assert!(std::panic::catch_unwind(polled).is_err());
        super::super::block_on(volume.space()).unwrap();
    }
}

//! A part of an open file, sent to a socket without being read into memory.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;

/// A part of an open file. It holds the file open: what is renamed over the name, or unlinks it,
/// changes nothing here.
#[derive(Debug, Clone)]
pub struct FileRange {
    file: Arc<OpenFile>,
    offset: u64,
    len: usize,
}

/// An open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) fd: OwnedFd,
    /// Whether something of it could not be sent: then there are no more parts of it, and whoever
    /// reads it finds out what is wrong.
    failed: AtomicBool,
}

impl OpenFile {
    pub(super) fn new(fd: OwnedFd) -> Self {
        let failed = AtomicBool::new(false);
        Self { fd, failed }
    }
}

impl FileRange {
    /// `len` bytes of `file` from `offset` on.
    pub(super) fn new(file: &Arc<OpenFile>, offset: u64, len: usize) -> Option<Self> {
        let able = cfg!(target_os = "linux") && !file.failed.load(Ordering::Relaxed);
        able.then(|| Self {
            file: Arc::clone(file),
            offset,
            len,
        })
    }

    /// Bytes that are left.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sends as much as a socket that does not block takes at once, and leaves the rest. Blocks
    /// while the disk is read: never on an async worker.
    ///
    /// # Errors
    /// What the system says of the socket or of the file; `UnexpectedEof` where the file is shorter
    /// than the part.
    #[cfg(target_os = "linux")]
    pub fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let sent = loop {
            let mut offset = self.offset;
            match rustix::fs::sendfile(socket, &self.file.fd, Some(&mut offset), self.len) {
                Err(Errno::INTR) => {}
                Err(Errno::IO) => return Err(self.failed(Errno::IO.into())),
                sent => break sent?,
            }
        };
        self.take(sent)?;
        Ok(sent)
    }

    /// As on a system that cannot: nothing is made there that could be sent.
    #[cfg(not(target_os = "linux"))]
    pub fn send(&mut self, _socket: BorrowedFd<'_>) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Reads what is left, for a file that the system cannot send from. Blocks.
    ///
    /// # Errors
    /// What the system says; `UnexpectedEof` where the file is shorter than the part.
    pub fn read(&self) -> io::Result<Bytes> {
        let mut rest = self.clone();
        let mut buffer: Vec<u8> = Vec::new();
        buffer.try_reserve_exact(self.len)?;
        while !rest.is_empty() {
            match rustix::io::pread(&self.file.fd, spare_capacity(&mut buffer), rest.offset) {
                Err(Errno::INTR) => {}
                // The allocator may have given more room than was asked for.
                read => rest.take(read?.min(rest.len))?,
            }
        }
        buffer.truncate(self.len);
        Ok(Bytes::from(buffer))
    }

    fn take(&mut self, count: usize) -> io::Result<()> {
        if count == 0 && self.len > 0 {
            return Err(self.failed(io::ErrorKind::UnexpectedEof.into()));
        }
        self.offset += count as u64;
        self.len -= count;
        Ok(())
    }

    fn failed(&self, error: io::Error) -> io::Error {
        self.file.failed.store(true, Ordering::Relaxed);
        error
    }
}

impl PartialEq for FileRange {
    fn eq(&self, other: &Self) -> bool {
        let place = |range: &Self| (range.offset, range.len);
        Arc::ptr_eq(&self.file, &other.file) && place(self) == place(other)
    }
}

impl Eq for FileRange {}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::super::{PosixVolume, Volume, VolumeFile, VolumePath, block_on};
    use super::*;

    fn file(volume: &PosixVolume, name: &str, content: &[u8]) -> Arc<dyn VolumeFile> {
        let path = VolumePath::root().join(name);
        let file = block_on(volume.create_new(&path)).unwrap();
        block_on(file.write_at(0, &[Bytes::copy_from_slice(content)])).unwrap();
        file
    }

    fn socket() -> (UnixStream, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (near, far)
    }

    #[test]
    fn a_full_socket_takes_a_part_and_the_rest_later() {
        let dir = tempfile::tempdir().unwrap();
        let volume = PosixVolume::open(dir.path()).unwrap();
        let content: Vec<u8> = (0..3_000_000_u32)
            .map(|n| (n / 1000).to_le_bytes()[0])
            .collect();
        let open = file(&volume, "a", &content);
        let mut range = open.range(1000, content.len() - 1000).unwrap();
        // The name is another's by then, and then nobody's.
        file(&volume, "b", b"other");
        let path = |name| VolumePath::root().join(name);
        block_on(volume.rename(&path("b"), &path("a"))).unwrap();
        block_on(volume.remove(&path("a"))).unwrap();
        drop(open);
        let (near, mut far) = socket();
        let (mut received, mut blocked) = (Vec::new(), 0);
        let mut buffer = vec![0; 100_000];
        while !range.is_empty() {
            match range.send(near.as_fd()) {
                Ok(sent) => assert!(sent > 0),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    blocked += 1;
                    let read = far.read(&mut buffer).unwrap();
                    received.extend_from_slice(&buffer[..read]);
                }
            }
        }
        drop(near);
        far.read_to_end(&mut received).unwrap();
        assert!(blocked > 0);
        assert!(received == content[1000..]);
    }

    #[test]
    fn what_the_file_does_not_have_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let volume = PosixVolume::open(dir.path()).unwrap();
        let open = file(&volume, "a", b"0123456789");
        let mut range = open.range(6, 10).unwrap();
        let (near, mut far) = socket();
        assert_eq!(range.send(near.as_fd()).unwrap(), 4);
        let error = range.send(near.as_fd()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        drop(near);
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"6789");
        // From then on it is read.
        assert_eq!(open.range(0, 4), None);
    }

    #[test]
    fn a_peer_that_has_gone_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let volume = PosixVolume::open(dir.path()).unwrap();
        let open = file(&volume, "a", b"0123456789");
        let mut range = open.range(0, 10).unwrap();
        assert_eq!(range.read().unwrap()[..], *b"0123456789");
        let (near, far) = socket();
        drop(far);
        let error = range.send(near.as_fd()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        // That is not the file's fault.
        assert!(open.range(0, 4).is_some());
    }
}

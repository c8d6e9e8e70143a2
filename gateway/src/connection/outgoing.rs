//! What goes out of a connection next, piece by piece.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use bytes::{Buf, Bytes};
use smallvec::SmallVec;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::wire::segment::Segment;

/// Slices of one vectored write.
const SLICES_MAX: usize = 64;

/// Pieces in order, and how far they are written.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    segments: Vec<Segment>,
    /// The first that is not written.
    next: usize,
    /// Bytes that were sent from files and are not counted yet.
    pub(super) from_files: u64,
}

impl Outgoing {
    pub(super) fn extend(&mut self, segments: impl IntoIterator<Item = Segment>) {
        self.segments.extend(segments);
    }

    pub(super) fn clear(&mut self) {
        self.segments.clear();
        self.next = 0;
    }

    pub(super) fn is_done(&self) -> bool {
        self.next >= self.segments.len()
    }

    /// Whether the next piece is in a file.
    pub(super) fn is_in_file(&self) -> bool {
        matches!(self.segments.get(self.next), Some(Segment::File(_)))
    }

    /// Writes pieces in memory, up to the next one in a file; something at least.
    pub(super) async fn write(&mut self, socket: &TcpStream) -> io::Result<usize> {
        let write = || self.write_now(socket.as_fd());
        socket.async_io(Interest::WRITABLE, write).await
    }

    /// Of what comes next, writes or sends what the socket takes at once. Blocks while the disk is
    /// read.
    pub(super) fn send_now(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let Some(Segment::File(range)) = self.segments.get_mut(self.next) else {
            return self.write_now(socket);
        };
        match range.send(socket) {
            Ok(sent) => {
                self.from_files += sent as u64;
                if range.is_empty() {
                    self.let_go();
                }
                Ok(sent)
            }
            Err(error) if is_unable(&error) => {
                let bytes = range.read()?;
                self.segments[self.next] = bytes.into();
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    fn write_now(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let written = {
            let pieces = self.segments.iter().skip(self.next);
            let pieces = pieces.map_while(Segment::bytes).take(SLICES_MAX);
            let slices: SmallVec<[IoSlice<'_>; SLICES_MAX]> =
                pieces.map(|bytes| IoSlice::new(bytes)).collect();
            rustix::io::retry_on_intr(|| rustix::io::writev(socket, &slices))?
        };
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.advance(written);
        Ok(written)
    }

    /// Takes `written` bytes off the pieces in memory.
    fn advance(&mut self, mut written: usize) {
        while let Some(Segment::Bytes(bytes)) = self.segments.get_mut(self.next) {
            if written < bytes.len() {
                bytes.advance(written);
                break;
            }
            written -= bytes.len();
            self.let_go();
        }
    }

    /// What is written is let go at once: it may be a large piece of a log, or hold a file open.
    fn let_go(&mut self) {
        if let Some(segment) = self.segments.get_mut(self.next) {
            *segment = Bytes::new().into();
        }
        self.next += 1;
    }
}

/// Whether the system cannot send from this file at all: some network file systems.
fn is_unable(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, Unsupported};
    matches!(error.kind(), InvalidInput | Unsupported)
}

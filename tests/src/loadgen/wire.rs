//! One non-blocking connection: requests out with writev, frames in from one reused buffer.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail};
use rustix::buffer::spare_capacity;

/// Most slices handed to one writev.
const SLICES_MAX: usize = 64;
/// Least room offered to one read, in bytes.
const READ_ROOM: usize = 256 * 1024;
/// Longest answer accepted, in bytes.
const FRAME_LEN_MAX: usize = 512 * 1024 * 1024;

/// The socket, what is still to be written and what was read but not consumed.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    /// Glue of requests not yet wholly written; bounded by the requests in flight.
    outbox: VecDeque<Vec<u8>>,
    /// Bytes of the first request that are written already.
    written: usize,
    inbox: Vec<u8>,
    /// Bytes at the front of the inbox that were consumed.
    consumed: usize,
    /// Glue buffers to use again.
    spare: Vec<Vec<u8>>,
}

impl Wire {
    pub(super) fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connect {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            outbox: VecDeque::new(),
            written: 0,
            inbox: Vec::with_capacity(READ_ROOM),
            consumed: 0,
            spare: Vec::new(),
        })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether bytes wait for the socket to take them.
    pub(super) fn has_backlog(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// A buffer for the next request; give it back with [`Wire::queue`].
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Queues a request.
    pub(super) fn queue(&mut self, glue: Vec<u8>) {
        self.outbox.push_back(glue);
    }

    /// Writes until all is written or the socket is full. Behind each position of `cuts` in a
    /// queued request comes `tail`.
    pub(super) fn flush(&mut self, cuts: &[usize], tail: &[u8]) -> Result<()> {
        while !self.outbox.is_empty() {
            let slices = self.slices(cuts, tail);
            let written = match (&self.stream).write_vectored(&slices) {
                Ok(0) => bail!("the broker takes no more bytes"),
                Ok(written) => written,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e).context("write"),
            };
            self.written += written;
            while let Some(first) = self.outbox.front() {
                let len = first.len() + cuts.len() * tail.len();
                if self.written < len {
                    break;
                }
                self.written -= len;
                self.spare.extend(self.outbox.pop_front());
            }
        }
        Ok(())
    }

    fn slices<'a>(&'a self, cuts: &[usize], tail: &'a [u8]) -> Vec<IoSlice<'a>> {
        let mut slices = Vec::with_capacity(SLICES_MAX);
        let mut skip = self.written;
        let mut push = |slices: &mut Vec<IoSlice<'a>>, part: &'a [u8]| {
            let from = skip.min(part.len());
            skip -= from;
            if from < part.len() && slices.len() < SLICES_MAX {
                slices.push(IoSlice::new(&part[from..]));
            }
        };
        for glue in &self.outbox {
            let mut from = 0;
            for &cut in cuts {
                push(&mut slices, &glue[from..cut]);
                push(&mut slices, tail);
                from = cut;
            }
            push(&mut slices, &glue[from..]);
            if slices.len() == SLICES_MAX {
                break;
            }
        }
        slices
    }

    /// Reads once; false when nothing was there. A closed connection is an error.
    pub(super) fn fill(&mut self) -> Result<bool> {
        if self.consumed > 0 {
            self.inbox.drain(..self.consumed);
            self.consumed = 0;
        }
        let missing = self
            .frame_len()?
            .map_or(0, |len| len.saturating_sub(self.inbox.len()));
        self.inbox.reserve(missing.max(READ_ROOM));
        match rustix::io::read(&self.stream, spare_capacity(&mut self.inbox)) {
            Ok(0) => bail!("the broker closed the connection"),
            Ok(_) => Ok(true),
            Err(e) if e == rustix::io::Errno::AGAIN || e == rustix::io::Errno::INTR => Ok(false),
            Err(e) => Err(e).context("read"),
        }
    }

    /// The body of the next whole frame. It stays readable until the next [`Wire::fill`].
    pub(super) fn next_frame(&mut self) -> Result<Option<std::ops::Range<usize>>> {
        let Some(len) = self.frame_len()? else {
            return Ok(None);
        };
        let from = self.consumed;
        if self.inbox.len() - from < len {
            return Ok(None);
        }
        self.consumed += len;
        Ok(Some(from + 4..from + len))
    }

    /// The bytes of a range that [`Wire::next_frame`] gave.
    pub(super) fn frame(&self, range: std::ops::Range<usize>) -> &[u8] {
        &self.inbox[range]
    }

    /// Length of the frame at the front, its own four bytes included.
    fn frame_len(&self) -> Result<Option<usize>> {
        let Some(prefix) = self.inbox[self.consumed..].first_chunk::<4>() else {
            return Ok(None);
        };
        match usize::try_from(i32::from_be_bytes(*prefix)) {
            Ok(len) if len <= FRAME_LEN_MAX => Ok(Some(len + 4)),
            _ => bail!("a frame of {} bytes", i32::from_be_bytes(*prefix)),
        }
    }
}

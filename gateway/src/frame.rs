//! Cuts frames out of a socket.
//!
//! A frame is a 4-byte length and that many bytes. Own framing, because three things happen
//! between the length and the body: the limit of its api is checked, its bytes are taken out of
//! the budget that all connections share ([`ByteBudget`]), and only then memory grows, as bytes
//! arrive. A length that is only claimed costs nothing: a frame that stops arriving gives the room
//! that it has not filled back, and from then on takes it bit by bit, as bytes come. A frame that
//! stays away while others wait for the room that it holds is given up.
//!
//! Idle connections hold no buffer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use store_adapter::runtime::Clock;
use tokio::net::tcp::OwnedReadHalf;

use crate::byte_budget::{ByteBudget, Permit};
use crate::wire::header::{self, PEEK_LEN, Peek};

/// Smallest buffer for a read.
const READ_MIN: usize = 4 * 1024;
/// Largest buffer for a frame that has not begun.
const READ_AHEAD_MAX: usize = 256 * 1024;
/// Largest buffer that is reserved for an admitted frame before its bytes have arrived. What is
/// reserved and not received is no memory in use.
const WHOLE_MAX: usize = 4 * 1024 * 1024;
/// A frame must bring so many bytes, or its end, in a [`STALL_WINDOW`]. One that did not gets room
/// for so many at a time.
const STALL_MIN: usize = 64 * 1024;
/// After so long without enough of it a frame has stalled.
const STALL_WINDOW: Duration = Duration::from_secs(2);
/// How long a frame that goes on waits for room, and how long others wait for the room of one that
/// does not; then its connection closes.
const ROOM_PATIENCE: Duration = Duration::from_secs(5);
const LENGTH_LEN: usize = 4;

/// Why no more frames come.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length is negative or too small for a header.
    #[error("frame length {0}")]
    Length(i32),
    /// The length is over the limit.
    #[error("frame of {len} bytes, at most {max} are allowed")]
    TooLarge {
        /// Bytes that the frame claims.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The peer closed in the middle of a frame.
    #[error("closed in the middle of a frame")]
    Truncated,
    /// The frame stalled, gave room back, and got none again in time.
    #[error("no room for the rest of a frame that stalled")]
    NoRoom,
    /// The frame stalled, and others waited for the room of what had come of it.
    #[error("a frame stalled, and others wait for its room")]
    Stalled,
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A complete frame.
#[derive(Debug)]
pub struct Frame {
    /// The fixed part of the header.
    pub peek: Peek,
    /// Header and body, without the length.
    pub bytes: Bytes,
    /// Its bytes in the budget.
    pub permit: Permit,
}

/// Reads frames from one connection.
#[derive(Debug)]
pub struct FrameReader {
    half: OwnedReadHalf,
    buffer: BytesMut,
    /// Bytes of the last frame with its length: the next is probably like it.
    expected: usize,
    frame_max: usize,
    budget: ByteBudget,
    clock: Arc<dyn Clock>,
}

impl FrameReader {
    /// Reads from `half`; no frame may have more than `frame_max` bytes (or the limit of its api).
    pub fn new(
        half: OwnedReadHalf,
        frame_max: usize,
        budget: ByteBudget,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            half,
            buffer: BytesMut::new(),
            expected: 0,
            frame_max,
            budget,
            clock,
        }
    }

    /// Completes when the next frame has begun (true) or the peer has closed (false). May be
    /// dropped: nothing is lost.
    ///
    /// # Errors
    /// If the socket failed.
    pub async fn begun(&mut self) -> io::Result<bool> {
        if self.buffer.is_empty() {
            // The old buffer may be pinned by requests; a fresh one is made when bytes are there.
            self.buffer = BytesMut::new();
            return Ok(self.fill(LENGTH_LEN, usize::MAX).await? > 0);
        }
        Ok(true)
    }

    /// The next frame, which has begun; `None` if the peer closed before its first byte.
    ///
    /// # Errors
    /// See [`FrameError`]. The connection is of no use afterwards.
    pub async fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        while self.buffer.len() < LENGTH_LEN {
            if self.fill(LENGTH_LEN, usize::MAX).await? == 0 {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                return Err(FrameError::Truncated);
            }
        }
        let claimed = i32::from_be_bytes([
            self.buffer[0],
            self.buffer[1],
            self.buffer[2],
            self.buffer[3],
        ]);
        let len = usize::try_from(claimed).map_err(|_| FrameError::Length(claimed))?;
        if len < PEEK_LEN {
            return Err(FrameError::Length(claimed));
        }
        let peek = self.peek(len).await?;
        let permit = self.budget.take(len).await?;
        let permit = self.body(LENGTH_LEN + len, permit).await?;
        self.expected = LENGTH_LEN + len;
        self.buffer.advance(LENGTH_LEN);
        let bytes = self.buffer.split_to(len).freeze();
        Ok(Some(Frame {
            peek,
            bytes,
            permit,
        }))
    }

    /// Reads the fixed header and checks the limit of its api.
    async fn peek(&mut self, len: usize) -> Result<Peek, FrameError> {
        let check = |max: usize| {
            if len > max {
                return Err(FrameError::TooLarge { len, max });
            }
            Ok(())
        };
        check(self.frame_max)?;
        while self.buffer.len() < LENGTH_LEN + PEEK_LEN {
            if self.fill(LENGTH_LEN + PEEK_LEN, usize::MAX).await? == 0 {
                return Err(FrameError::Truncated);
            }
        }
        let peek = header::peek(&self.buffer[LENGTH_LEN..]).ok_or(FrameError::Truncated)?;
        check(header::frame_limit(peek.key))?;
        Ok(peek)
    }

    /// Reads until `end` bytes are in the buffer.
    async fn body(&mut self, end: usize, mut permit: Permit) -> Result<Permit, FrameError> {
        // How many bytes the permit is for.
        let mut admitted = end;
        while self.buffer.len() < end {
            if self.buffer.len() >= admitted {
                admitted = end.min(self.buffer.len() + STALL_MIN);
                permit = self.room(permit, admitted).await?;
            }
            if !self.window(admitted, end).await? {
                permit.give_back(self.buffer.len());
                self.goes_on(&permit).await?;
                admitted = self.buffer.len();
            }
        }
        Ok(permit)
    }

    /// Reads up to `admitted` bytes of `end`, for one stall window at most. Whether enough came.
    async fn window(&mut self, admitted: usize, end: usize) -> Result<bool, FrameError> {
        let start = self.buffer.len();
        let mut timer = self.clock.sleep(STALL_WINDOW);
        while self.buffer.len() < admitted {
            let most = if admitted < end {
                admitted - self.buffer.len()
            } else {
                usize::MAX
            };
            let filled = tokio::select! {
                biased;
                filled = self.fill(end, most) => filled?,
                () = &mut timer => return Ok(self.buffer.len() - start >= STALL_MIN),
            };
            if filled == 0 {
                return Err(FrameError::Truncated);
            }
        }
        Ok(true)
    }

    /// Waits for more of a frame that stalled, unless others wait for what it holds.
    async fn goes_on(&self, permit: &Permit) -> Result<(), FrameError> {
        if permit.is_empty() {
            return Ok(self.half.readable().await?);
        }
        tokio::select! {
            biased;
            readable = self.half.readable() => Ok(readable?),
            () = self.budget.contended(permit, &self.clock, ROOM_PATIENCE) => {
                Err(FrameError::Stalled)
            }
        }
    }

    /// Room for `len` bytes of a frame that goes on. Bounded: frames that stalled hold what they
    /// received, and if each waited for the others nothing would ever come free.
    async fn room(&self, permit: Permit, len: usize) -> Result<Permit, FrameError> {
        tokio::select! {
            biased;
            room = self.budget.grow(permit, len) => Ok(room?),
            () = self.clock.sleep(ROOM_PATIENCE) => Err(FrameError::NoRoom),
        }
    }

    /// Reads once, at most `most` bytes, with room up to `end` bytes where that many may be
    /// reserved. 0 is the end of the stream. May be dropped: nothing is lost.
    async fn fill(&mut self, end: usize, most: usize) -> io::Result<usize> {
        loop {
            self.half.readable().await?;
            self.make_room(end);
            match self.half.try_read_buf(&mut (&mut self.buffer).limit(most)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Readiness is a hint. An idle connection must not hold the room made for it.
                    if self.buffer.is_empty() {
                        self.buffer = BytesMut::new();
                    }
                }
                done => return done,
            }
        }
    }

    /// Makes room for what is expected now: exactly the frame, or as much again as has arrived.
    fn make_room(&mut self, end: usize) {
        let len = self.buffer.len();
        let capacity = self.buffer.capacity();
        if capacity > len && capacity >= end.min(WHOLE_MAX) {
            return;
        }
        let target = match len {
            // A large one gets its own buffer once its length is known: little is read before, as
            // all of that is copied.
            0 if self.expected > READ_AHEAD_MAX => READ_MIN,
            0 if end <= LENGTH_LEN + PEEK_LEN => self.expected.max(READ_MIN),
            // Once: what grows step by step is copied, and held twice meanwhile.
            _ if len >= WHOLE_MAX => end,
            _ => end.max(READ_MIN).min(WHOLE_MAX),
        };
        let mut larger = BytesMut::with_capacity(target);
        larger.extend_from_slice(&self.buffer);
        self.buffer = larger;
    }
}

//! Cuts frames out of a socket.
//!
//! A frame is a 4-byte length and that many bytes. Own framing, because three things happen
//! between the length and the body: the limit of its api is checked, its bytes are admitted to the
//! budget that all connections share, and only then memory grows, as bytes arrive. A buffer of
//! [`READ_MIN`] needs no admission, so what comes byte by byte takes nothing from others.
//!
//! What a buffer holds of the budget lives as long as the buffer: with the frames that were cut
//! from it, and with the beginning of a next one that lies in it. Idle connections hold no buffer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use store_adapter::runtime::Clock;
use tokio::net::tcp::OwnedReadHalf;

use crate::admitted::Admitted;
use crate::request_budget::{self, Admission, Parts, Shares};
use crate::wire::header::{self, PEEK_LEN, Peek};

/// Smallest buffer for a read; it is not counted before its first frame is complete.
pub(crate) const READ_MIN: usize = 4 * 1024;
/// Largest buffer for a frame that has not begun.
const READ_AHEAD_MAX: usize = 256 * 1024;
/// Largest buffer that is reserved for a frame that is admitted in part. What is reserved and not
/// received is no memory in use.
const WHOLE_MAX: usize = 4 * 1024 * 1024;
const LENGTH_LEN: usize = 4;
/// Bytes by which a frame that holds room must go on in [`PROGRESS_TIME`] while others wait.
const PROGRESS: usize = 64 * 1024;
const PROGRESS_TIME: Duration = Duration::from_secs(5);
/// A frame that holds room is complete in this time and a second for each MiB, or makes way for
/// others that wait: clients give up a request after 30 s (`request.timeout.ms`).
const FRAME_TIME: Duration = Duration::from_secs(30);
/// Bytes of a frame for which it has a second more.
const SECOND: usize = 1 << 20;

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
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How the frame under way goes on, as the sweeper sees it: ms of the monotonic clock, or 0 for
/// never.
#[derive(Debug, Default)]
pub struct Pace {
    /// The parts of the budget that it holds something of.
    parts: AtomicU8,
    /// Until when the frame has to be complete; 0 unless one is under way that holds room.
    until: AtomicU64,
    /// When it went on by [`PROGRESS`] bytes last; 0 while it waits for room itself.
    moved: AtomicU64,
    /// When bytes came last, of any frame.
    came: AtomicU64,
}

impl Pace {
    /// Whether it holds room of `wanted` that others should rather have.
    pub fn is_slow(&self, now: Duration, wanted: Parts) -> bool {
        if !wanted.meets(Parts::from_bits(self.parts.load(Ordering::Relaxed))) {
            return false;
        }
        let at = |ms: &AtomicU64| Duration::from_millis(ms.load(Ordering::Relaxed));
        let (until, moved) = (at(&self.until), at(&self.moved));
        let stands = !moved.is_zero() && now.saturating_sub(moved) >= PROGRESS_TIME;
        !until.is_zero() && (stands || now >= until)
    }

    /// Bytes came.
    pub(crate) fn came(&self, now: Duration) {
        Self::set(&self.came, Some(now));
    }

    /// When bytes came last, in milliseconds of the monotonic clock.
    pub fn came_ms(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }

    fn set(at: &AtomicU64, time: Option<Duration>) {
        let ms = time.map_or(0, |time| {
            u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
        });
        at.store(ms, Ordering::Relaxed);
    }
}

/// A complete frame.
#[derive(Debug)]
pub struct Frame {
    /// The fixed part of the header.
    pub peek: Peek,
    /// Header and body, without the length.
    pub bytes: Bytes,
    /// What its buffer holds of the budget.
    pub admitted: Admitted,
}

/// Reads frames from one connection.
#[derive(Debug)]
pub struct FrameReader {
    half: OwnedReadHalf,
    buffer: BytesMut,
    /// Bytes that the buffer may have: those that were admitted, or that need no admission.
    room: usize,
    /// Bytes of the frame under way that were admitted, and what they hold.
    counted: usize,
    shares: Shares,
    /// What the buffer holds if a frame was cut from it already.
    shared: Admitted,
    /// Bytes of the last frame with its length: the next is probably like it.
    expected: usize,
    frame_max: usize,
    admission: Arc<Admission>,
    clock: Arc<dyn Clock>,
    pace: Arc<Pace>,
    /// When the pace of the frame was noted first, and what had come when it was noted last.
    noted: Option<(Duration, usize)>,
}

impl FrameReader {
    /// Reads from `half`; no frame may have more than `frame_max` bytes (or the limit of its api).
    pub(crate) fn new(
        half: OwnedReadHalf,
        frame_max: usize,
        admission: Arc<Admission>,
        clock: Arc<dyn Clock>,
        pace: Arc<Pace>,
    ) -> Self {
        Self {
            half,
            buffer: BytesMut::new(),
            room: 0,
            counted: 0,
            shares: Shares::new(),
            shared: Admitted::default(),
            expected: 0,
            frame_max,
            admission,
            clock,
            pace,
            noted: None,
        }
    }

    /// Completes when the next frame has begun (true) or the peer has closed (false). May be
    /// dropped: nothing is lost. `is_next`: its turn has come; otherwise what comes of it takes
    /// nothing from others.
    ///
    /// # Errors
    /// If the socket failed.
    pub async fn begun(&mut self, is_next: bool) -> io::Result<bool> {
        if self.buffer.is_empty() {
            let expected = if is_next { self.expected } else { 0 };
            return Ok(self.fill(expected).await? > 0);
        }
        Ok(true)
    }

    /// What has come of the next frame waits for its turn. If it is little, it gives back the room
    /// of the buffer that it lies in; if it is more, it counts as one that does not go on.
    pub fn stand(&mut self) {
        if self.buffer.len() > READ_MIN {
            self.note(0);
        } else if !self.buffer.is_empty() && self.holds() {
            let mut own = BytesMut::with_capacity(READ_MIN);
            own.extend_from_slice(&self.buffer);
            self.let_go();
            self.shared = Admitted::default();
            self.buffer = own;
            self.room = READ_MIN;
        }
    }

    /// Whether the buffer holds something of the budget.
    fn holds(&self) -> bool {
        !self.shares.is_empty() || self.shared.is_some()
    }

    /// Its turn has come.
    pub fn go_on(&mut self) {
        if self.noted.take().is_some() {
            Pace::set(&self.pace.until, None);
        }
    }

    /// The next frame, which has begun.
    ///
    /// # Errors
    /// See [`FrameError`]. The connection is of no use afterwards.
    pub async fn next(&mut self) -> Result<Frame, FrameError> {
        self.read_until(LENGTH_LEN).await?;
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
        self.read_until(LENGTH_LEN + len).await?;
        self.go_on();
        self.expected = LENGTH_LEN + len;
        if !self.shares.is_empty() {
            self.shared = self.admission.admitted(std::mem::take(&mut self.shares));
            self.counted = 0;
        } else if !self.shared.is_some() {
            self.shared = self.admission.admit(READ_MIN).await?;
        }
        Ok(self.cut(peek, len))
    }

    fn cut(&mut self, peek: Peek, len: usize) -> Frame {
        self.buffer.advance(LENGTH_LEN);
        let bytes = self.buffer.split_to(len).freeze();
        self.room -= LENGTH_LEN + len;
        let admitted = if self.buffer.is_empty() {
            // It would pin the memory of the request; the next one gets its own.
            self.let_go();
            std::mem::take(&mut self.shared)
        } else {
            self.shared.clone()
        };
        Frame {
            peek,
            bytes,
            admitted,
        }
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
        self.read_until(LENGTH_LEN + PEEK_LEN).await?;
        let peek = header::peek(&self.buffer[LENGTH_LEN..]).ok_or(FrameError::Truncated)?;
        check(header::frame_limit(peek.key))?;
        Ok(peek)
    }

    /// Reads until `end` bytes are in the buffer, and no more than are admitted.
    async fn read_until(&mut self, end: usize) -> Result<(), FrameError> {
        while self.buffer.len() < end {
            // What begins behind another frame gets a buffer of its own: it pins that of the other.
            if self.buffer.len() >= self.room || self.shared.is_some() {
                self.grow(end).await?;
            }
            self.note(end);
            if self.fill(self.expected).await? == 0 {
                return Err(FrameError::Truncated);
            }
        }
        Ok(())
    }

    /// Notes the pace of a frame of `end` bytes that holds room and is not complete.
    fn note(&mut self, end: usize) {
        if !self.holds() {
            return;
        }
        let parts = request_budget::parts(&self.shares) | self.shared.parts();
        self.pace.parts.store(parts.bits(), Ordering::Relaxed);
        let len = self.buffer.len();
        if self.noted.is_some_and(|(_, noted)| len < noted + PROGRESS) {
            return;
        }
        let now = self.clock.monotonic();
        let began = self.noted.map_or(now, |(began, _)| began);
        let more = Duration::from_secs((end / SECOND) as u64);
        Pace::set(&self.pace.until, Some(began + FRAME_TIME + more));
        Pace::set(&self.pace.moved, Some(now));
        self.noted = Some((began, len));
    }

    /// Reads once, up to what is admitted; the frame probably has `expected` bytes if it has not
    /// begun. 0 is the end of the stream. May be dropped: nothing is lost.
    async fn fill(&mut self, expected: usize) -> io::Result<usize> {
        loop {
            self.half.readable().await?;
            if self.room == 0 {
                self.read_ahead(expected);
            }
            let left = self.room.saturating_sub(self.buffer.len());
            match self.half.try_read_buf(&mut (&mut self.buffer).limit(left)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Readiness is a hint. An idle connection must not hold the room made for it.
                    if self.buffer.is_empty() {
                        self.let_go();
                    }
                }
                done => {
                    if done.as_ref().is_ok_and(|bytes| *bytes > 0) {
                        self.pace.came(self.clock.monotonic());
                    }
                    return done;
                }
            }
        }
    }

    /// A buffer for a frame that has not begun: for all that it probably has, if there is room for
    /// it. A large one gets its own buffer once its length is known: little is read before, as all
    /// of that is copied.
    fn read_ahead(&mut self, wanted: usize) {
        self.room = READ_MIN;
        if (READ_MIN + 1..=READ_AHEAD_MAX).contains(&wanted)
            && let Some(share) = self.admission.budget.try_take(wanted, wanted)
        {
            self.shares.push(share);
            self.counted = wanted;
            self.room = wanted;
        }
        self.buffer = BytesMut::with_capacity(self.room);
    }

    /// Gives the empty buffer away.
    fn let_go(&mut self) {
        self.buffer = BytesMut::new();
        self.shares.clear();
        self.counted = 0;
        self.room = 0;
    }

    /// Makes room for a frame of `end` bytes, or for more of it, in a buffer of its own.
    async fn grow(&mut self, end: usize) -> io::Result<()> {
        let len = self.buffer.len();
        if end > READ_MIN && self.counted <= len {
            // While it waits it is not to blame for not going on.
            self.note(end);
            let budget = &self.admission.budget;
            let step = budget.step(end, len, self.expected);
            let missing = step - self.counted;
            let share = if let Some(share) = budget.try_take(end, missing) {
                share
            } else {
                Pace::set(&self.pace.moved, None);
                let share = budget.take(end, missing).await?;
                Pace::set(&self.pace.moved, Some(self.clock.monotonic()));
                share
            };
            self.counted = if share.whole { end } else { step };
            self.shares.push(share);
        }
        // One that is admitted whole has one buffer, whatever its size: nothing of it is copied.
        let target = if self.counted >= end {
            end
        } else {
            end.max(READ_MIN).min(WHOLE_MAX.max(2 * len))
        };
        if self.shared.is_some() || self.buffer.capacity() < target {
            let mut larger = BytesMut::with_capacity(target);
            larger.extend_from_slice(&self.buffer);
            self.buffer = larger;
            self.shared = Admitted::default();
        }
        self.room = if self.counted == 0 {
            READ_MIN
        } else {
            self.counted.min(target)
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use store_adapter::runtime::Env;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::request_budget::ByteBudget;

    #[tokio::test]
    async fn every_byte_that_comes_is_noted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let (half, _write) = listener.accept().await.unwrap().0.into_split();
        let admission = Admission::new(ByteBudget::new(1 << 20));
        let (clock, pace) = (Env::real().clock, Arc::new(Pace::default()));
        let mut frames = FrameReader::new(half, 1 << 20, admission, clock, Arc::clone(&pace));
        assert_eq!(pace.came_ms(), 0);
        client.write_all(&[0]).await.unwrap();
        assert!(frames.begun(true).await.unwrap());
        assert!(pace.came_ms() > 0);
        assert!(!pace.is_slow(Duration::MAX, Parts::ALL), "it holds nothing");
    }
}

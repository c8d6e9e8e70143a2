//! A Kafka client with no opinions: it sends what it is told, at the version it is told, and
//! returns what comes back. It retries nothing, follows no metadata and hides no error code, so a
//! suite can pipeline, reorder, lie, or send bytes that no real client would.
//!
//! Bounds: a response longer than [`RESPONSE_LEN_MAX`] is an error, and no wait is longer than the
//! client's `patience` (two minutes unless set).

pub mod batch;
mod codec;
pub mod fetch;
pub mod group;
pub mod ops;
pub mod txn;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use kafka_protocol::protocol::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::time::timeout;

pub use codec::{CLIENT_ID, decode_response, encode_request};

/// Longest response body that a client accepts, in bytes.
pub const RESPONSE_LEN_MAX: usize = 256 * 1024 * 1024;

const PATIENCE: Duration = Duration::from_mins(2);

/// One connection. Requests may be pipelined: any number of [`RawClient::send`] before the matching
/// [`RawClient::receive`], in the same order.
#[derive(Debug)]
pub struct RawClient {
    writer: RawWriter,
    reader: RawReader,
}

/// The sending half of a connection.
#[derive(Debug)]
pub struct RawWriter {
    stream: OwnedWriteHalf,
    next_correlation_id: i32,
    patience: Duration,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub struct RawReader {
    stream: OwnedReadHalf,
    buffer: BytesMut,
    patience: Duration,
}

impl RawClient {
    /// Connects, with Nagle's algorithm off.
    pub async fn connect(address: impl ToSocketAddrs) -> Result<Self> {
        let stream = timeout(PATIENCE, TcpStream::connect(address))
            .await
            .context("no connection in time")?
            .context("connect")?;
        Self::over(stream)
    }

    /// The same over a connection that the caller has made.
    pub fn over(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        let (read, write) = stream.into_split();
        Ok(Self {
            writer: RawWriter {
                stream: write,
                next_correlation_id: 1,
                patience: PATIENCE,
            },
            reader: RawReader {
                stream: read,
                buffer: BytesMut::new(),
                patience: PATIENCE,
            },
        })
    }

    /// Bounds every later wait on this connection by `patience`.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.writer.patience = patience;
        self.reader.patience = patience;
        self
    }

    /// Sends one request and awaits its response; an answer to another request is an error.
    pub async fn call<R: Request>(&mut self, request: &R, version: i16) -> Result<R::Response> {
        let sent = self.send(request, version).await?;
        let (answered, response) = self.receive::<R>(version).await?;
        if sent != answered {
            bail!("sent correlation id {sent}, got the answer to {answered}");
        }
        Ok(response)
    }

    /// Sends one request and returns its correlation id.
    pub async fn send<R: Request>(&mut self, request: &R, version: i16) -> Result<i32> {
        self.writer.send(request, version).await
    }

    /// Awaits the next response, which must be one to an `R` of `version`.
    pub async fn receive<R: Request>(&mut self, version: i16) -> Result<(i32, R::Response)> {
        self.reader.receive::<R>(version).await
    }

    /// Sends `body` as a frame: its length in four bytes, then itself.
    pub async fn send_frame(&mut self, body: &[u8]) -> Result<()> {
        self.writer.send_frame(body).await
    }

    /// Sends bytes as they are, with no length in front.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.send_bytes(bytes).await
    }

    /// Awaits the next frame and returns its body (correlation id first); `None` when the peer
    /// closed the connection instead.
    pub async fn receive_frame(&mut self) -> Result<Option<Bytes>> {
        self.reader.receive_frame().await
    }

    /// Whether nothing arrives for `quiet`, which is how "no answer" is observed.
    pub async fn is_silent_for(&mut self, quiet: Duration) -> bool {
        self.reader.is_silent_for(quiet).await
    }

    /// Ends the sending direction only: the peer reads an end of stream, answers can still arrive.
    pub async fn shutdown_write(&mut self) -> Result<()> {
        self.writer.stream.shutdown().await.context("shutdown")
    }

    /// Resets the connection: what is under way in either direction is lost.
    pub fn reset(self) -> Result<()> {
        let stream = self.reader.stream.reunite(self.writer.stream);
        stream?.set_zero_linger().context("linger")
    }

    /// Cuts the connection in two halves that different tasks can own.
    pub fn into_split(self) -> (RawWriter, RawReader) {
        (self.writer, self.reader)
    }
}

impl RawWriter {
    /// Sends one request and returns its correlation id.
    pub async fn send<R: Request>(&mut self, request: &R, version: i16) -> Result<i32> {
        let correlation_id = self.next_correlation_id;
        self.next_correlation_id = correlation_id.wrapping_add(1);
        let frame = encode_request(request, version, correlation_id)?;
        self.send_bytes(&frame).await?;
        Ok(correlation_id)
    }

    /// Sends `body` as a frame: its length in four bytes, then itself.
    pub async fn send_frame(&mut self, body: &[u8]) -> Result<()> {
        let len = i32::try_from(body.len()).context("frame too long for its length field")?;
        let mut frame = Vec::with_capacity(body.len() + 4);
        frame.extend_from_slice(&len.to_be_bytes());
        frame.extend_from_slice(body);
        self.send_bytes(&frame).await
    }

    /// Sends bytes as they are, with no length in front.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        timeout(self.patience, self.stream.write_all(bytes))
            .await
            .context("the peer did not take the bytes in time")?
            .context("write")
    }
}

impl RawReader {
    /// Awaits the next response, which must be one to an `R` of `version`.
    pub async fn receive<R: Request>(&mut self, version: i16) -> Result<(i32, R::Response)> {
        let frame = self.receive_frame().await?;
        let frame = frame.context("connection closed instead of an answer")?;
        decode_response::<R>(frame, version)
    }

    /// Awaits the next frame and returns its body; `None` when the peer closed the connection
    /// between two frames. A connection cut inside a frame is an error.
    pub async fn receive_frame(&mut self) -> Result<Option<Bytes>> {
        let patience = self.patience;
        timeout(patience, self.next_frame())
            .await
            .context("no answer in time")?
    }

    /// Whether nothing arrives for `quiet`.
    pub async fn is_silent_for(&mut self, quiet: Duration) -> bool {
        // A read, because readiness may be left over from the answer before.
        let quiet_so_far = self.buffer.is_empty();
        let arrived = timeout(quiet, self.stream.read_buf(&mut self.buffer)).await;
        quiet_so_far && arrived.is_err()
    }

    async fn next_frame(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(prefix) = self.buffer.first_chunk::<4>() {
                let len =
                    usize::try_from(i32::from_be_bytes(*prefix)).context("negative length")?;
                if len > RESPONSE_LEN_MAX {
                    bail!("a response of {len} bytes, more than {RESPONSE_LEN_MAX}");
                }
                if self.buffer.len() >= 4 + len {
                    let frame = self.buffer.split_to(4 + len).freeze();
                    return Ok(Some(frame.slice(4..)));
                }
                self.buffer.reserve(4 + len - self.buffer.len());
            }
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) if self.buffer.is_empty() => return Ok(None),
                Ok(0) => bail!("connection closed inside a frame"),
                Ok(_) => {}
                // A peer that closes with our bytes unread resets the connection; to a suite both
                // are "closed".
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
                Err(e) => return Err(e).context("read"),
            }
        }
    }
}

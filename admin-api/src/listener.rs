//! A listener with bounds: of open connections, so that inspection can't use up descriptors, and of
//! the time that a request may take to arrive and a connection be silent.
//!
//! Callers can't keep each other out, nor the probes of whoever looks after the process: with all
//! places taken the connection that has waited longest for its client is closed for a new one. One
//! whose request is being answered is not; those are bounded by `access`, to fewer than there are
//! places.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};

use crate::views::BoxFuture;

/// Open connections.
pub(crate) const CONNECTIONS_MAX: usize = 64;
/// How long a connection may send and take nothing. More than a request may take.
const IDLE_MAX: Duration = Duration::from_mins(1);
/// How long a request may take to arrive, its body too.
pub(crate) const ARRIVAL_MAX: Duration = Duration::from_secs(10);

/// The places of open connections.
#[derive(Debug, Default)]
struct Places {
    lines: Mutex<BTreeMap<u64, Arc<Line>>>,
    freed: Notify,
    /// Counts what happens: the order in which connections began to wait for their clients.
    clock: AtomicU64,
}

impl Places {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for a place, for which one that waits for its client is closed if need be.
    async fn make_room(&self) {
        while !self.has_room() {
            self.freed.notified().await;
        }
    }

    fn has_room(&self) -> bool {
        let mut lines = self.lines.lock();
        if lines.len() < CONNECTIONS_MAX {
            return true;
        }
        let waiting = lines.iter().filter(|(_, line)| !line.is_answered());
        let oldest = waiting.min_by_key(|(_, line)| line.since.load(Ordering::Relaxed));
        let oldest = oldest.map(|(number, _)| *number);
        let Some(line) = oldest.and_then(|number| lines.remove(&number)) else {
            return false;
        };
        drop(line.close.lock().take());
        true
    }
}

/// What is known of a connection.
#[derive(Debug)]
pub(crate) struct Line {
    places: Arc<Places>,
    /// A request of it is being answered.
    answered: AtomicBool,
    /// Requests that have arrived.
    arrived: AtomicU64,
    /// Since when it waits for its client, by the clock of the places.
    since: AtomicU64,
    /// Dropped to close it.
    close: Mutex<Option<oneshot::Sender<()>>>,
}

impl Line {
    /// A request has arrived whole, or nothing more of it is read; until what is returned is
    /// dropped it is being answered.
    pub(crate) fn answer(self: &Arc<Self>) -> Answering {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        self.answered.store(true, Ordering::Relaxed);
        Answering(Arc::clone(self))
    }

    fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Answering(Arc<Line>);

impl Drop for Answering {
    fn drop(&mut self) {
        let now = self.0.places.tick();
        self.0.since.store(now, Ordering::Relaxed);
        self.0.answered.store(false, Ordering::Relaxed);
    }
}

/// A clock: completes after a duration.
pub type Sleep = Arc<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>;

pub(crate) struct Bounded {
    inner: TcpListener,
    places: Arc<Places>,
    sleep: Sleep,
}

impl Bounded {
    pub(crate) fn new(inner: TcpListener, sleep: Sleep) -> Self {
        Self {
            inner,
            places: Arc::default(),
            sleep,
        }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, peer) = Listener::accept(&mut self.inner).await;
        self.places.make_room().await;
        let number = self.places.tick();
        let (close, closed) = oneshot::channel();
        let line = Arc::new(Line {
            places: Arc::clone(&self.places),
            answered: AtomicBool::new(false),
            arrived: AtomicU64::new(0),
            since: AtomicU64::new(number),
            close: Mutex::new(Some(close)),
        });
        self.places.lines.lock().insert(number, Arc::clone(&line));
        let connection = Connection {
            stream,
            number,
            line,
            closed,
            idle: (self.sleep)(IDLE_MAX),
            arriving: None,
            sleep: Arc::clone(&self.sleep),
        };
        (connection, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

/// A connection and its place.
pub(crate) struct Connection {
    stream: TcpStream,
    number: u64,
    line: Arc<Line>,
    /// Ends when its place is needed.
    closed: oneshot::Receiver<()>,
    /// Ends when it was silent for too long.
    idle: BoxFuture<'static, ()>,
    /// While a request arrives: how many had before, and an end when it takes too long.
    arriving: Option<(u64, BoxFuture<'static, ()>)>,
    sleep: Sleep,
}

impl Connection {
    pub(crate) fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// Bytes of a request have come.
    fn comes(&mut self) {
        let arrived = self.line.arrived.load(Ordering::Relaxed);
        let known = self.arriving.as_ref().is_some_and(|(of, _)| *of == arrived);
        if !known && !self.line.is_answered() {
            self.arriving = Some((arrived, (self.sleep)(ARRIVAL_MAX)));
        }
    }

    /// Begins to count anew after something has moved; until then, looks whether it is too late.
    fn watch<T>(&mut self, cx: &mut Context<'_>, moved: Poll<T>) -> Poll<io::Result<T>> {
        let late = || Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        let arrived = self.line.arrived.load(Ordering::Relaxed);
        self.arriving.take_if(|(before, _)| *before != arrived);
        if let Some((_, end)) = &mut self.arriving
            && end.as_mut().poll(cx).is_ready()
        {
            return late();
        }
        if let Poll::Ready(moved) = moved {
            self.idle = (self.sleep)(IDLE_MAX);
            return Poll::Ready(Ok(moved));
        }
        // Its answer is on the way: that is bounded by itself.
        if !self.line.is_answered() && Pin::new(&mut self.closed).poll(cx).is_ready() {
            return late();
        }
        ready!(self.idle.as_mut().poll(cx));
        late()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.line.places.lines.lock().remove(&self.number);
        self.line.places.freed.notify_one();
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let moved = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.comes();
        }
        let moved = ready!(self.watch(cx, moved))?;
        Poll::Ready(moved)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let moved = Pin::new(&mut self.stream).poll_write(cx, buf);
        let moved = ready!(self.watch(cx, moved))?;
        Poll::Ready(moved)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

//! A listener with bounds: of open connections, so that inspection can't use up descriptors, and
//! of the time that one may be silent, so that idle ones can't keep others out.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::views::BoxFuture;

/// Open connections; more wait in the kernel.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection may send and take nothing. More than a request may take.
const IDLE_MAX: Duration = Duration::from_mins(1);

/// A clock: completes after a duration.
pub type Sleep = Arc<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>;

pub(crate) struct Bounded {
    inner: TcpListener,
    places: Arc<Semaphore>,
    sleep: Sleep,
}

impl Bounded {
    pub(crate) fn new(inner: TcpListener, sleep: Sleep) -> Self {
        Self {
            inner,
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            sleep,
        }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // Never closed, so there is always a permit in the end.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let (stream, peer) = Listener::accept(&mut self.inner).await;
        let connection = Connection {
            stream,
            idle: (self.sleep)(IDLE_MAX),
            sleep: Arc::clone(&self.sleep),
            _place: place,
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
    /// Ends when it was silent for too long.
    idle: BoxFuture<'static, ()>,
    sleep: Sleep,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Begins to count anew after something has moved; until then, looks whether it is too late.
    fn watch<T>(&mut self, cx: &mut Context<'_>, moved: Poll<T>) -> Poll<io::Result<T>> {
        match moved {
            Poll::Ready(moved) => {
                self.idle = (self.sleep)(IDLE_MAX);
                Poll::Ready(Ok(moved))
            }
            Poll::Pending => {
                ready!(self.idle.as_mut().poll(cx));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let moved = Pin::new(&mut self.stream).poll_read(cx, buf);
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

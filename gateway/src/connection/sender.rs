//! Sends answers of which pieces are in files: the kernel takes them from the page cache.
//!
//! What is not there is read from the disk within the call, so threads of their own make it and no
//! async worker. They wait for a peer for a moment only, and only while nobody else has something
//! to send: a socket that takes nothing is left to its connection.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};
use store_adapter::runtime::Runtime;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{mpsc, oneshot};

use super::outgoing::Outgoing;

/// Threads.
const THREADS: usize = 2;
/// Answers that may wait for one thread; more wait where they are asked.
const JOBS_MAX: usize = 256;
/// How long a thread with nothing else to do waits for a peer to take more: to go by way of its
/// connection costs some 0.1 ms for each fill of the socket.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};
/// After so many bytes others come first.
const TURN: usize = 4 << 20;

/// The threads; clones share them, and they end with the last one.
#[derive(Debug, Clone)]
pub struct Senders(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    threads: Vec<mpsc::Sender<Job>>,
    turn: AtomicUsize,
}

/// Something to send, and who is told how far it came.
#[derive(Debug)]
struct Job {
    half: Arc<OwnedWriteHalf>,
    out: Outgoing,
    done: oneshot::Sender<(Outgoing, io::Result<usize>)>,
}

impl Senders {
    /// Starts the threads.
    pub fn new(runtime: &dyn Runtime) -> Self {
        let threads = (0..THREADS).map(|n| {
            let (jobs, queue) = mpsc::channel(JOBS_MAX);
            // Ends with the last sender.
            drop(runtime.spawn_io(&format!("send-{n}"), Box::pin(run(queue))));
            jobs
        });
        Self(Arc::new(Inner {
            threads: threads.collect(),
            turn: AtomicUsize::new(0),
        }))
    }

    /// Sends what the socket takes at once; what is left, and how many bytes went. When this is
    /// dropped, what was under way goes on until the socket takes no more.
    pub(super) async fn send(
        &self,
        half: &Arc<OwnedWriteHalf>,
        out: Outgoing,
    ) -> io::Result<(Outgoing, io::Result<usize>)> {
        let ended = || io::Error::other("no thread to send from files");
        let turn = self.0.turn.fetch_add(1, Ordering::Relaxed);
        let thread = self.0.threads.get(turn % THREADS).ok_or_else(ended)?;
        let half = Arc::clone(half);
        let (done, sent) = oneshot::channel();
        let job = Job { half, out, done };
        thread.send(job).await.map_err(|_| ended())?;
        sent.await.map_err(|_| ended())
    }
}

async fn run(mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        let Job {
            half,
            mut out,
            done,
        } = job;
        if done.is_closed() {
            continue;
        }
        let sent = send((*half).as_ref(), &mut out, || jobs.is_empty());
        // First, so that whoever waits is the only one that has it again.
        drop(half);
        // The connection may have ended.
        done.send((out, sent)).unwrap_or_default();
    }
}

fn send(socket: &TcpStream, out: &mut Outgoing, alone: impl Fn() -> bool) -> io::Result<usize> {
    let blocks = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    let (mut sent, mut waited) = (0, false);
    while !out.is_done() && sent < TURN {
        let mut more = out.send_now(socket.as_fd());
        if more.as_ref().is_err_and(blocks) {
            if !waited && alone() && takes_soon(socket) {
                waited = true;
                continue;
            }
            // Once more, so that its connection hears when it takes more.
            more = socket.try_io(Interest::WRITABLE, || out.send_now(socket.as_fd()));
        }
        match more {
            Ok(more) => {
                sent += more;
                waited = false;
            }
            Err(error) if blocks(&error) && sent > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// Whether the socket takes more within [`PATIENCE`].
fn takes_soon(socket: &TcpStream) -> bool {
    let mut ready = [PollFd::new(socket, PollFlags::OUT)];
    rustix::event::poll(&mut ready, Some(&PATIENCE)).is_ok_and(|ready| ready > 0)
}

//! Listeners and the accept loops.
//!
//! A connection over a limit is closed at once: waiting would only move the queue into the
//! kernel. An error of accept never ends a listener and never spins: when the process is out of
//! descriptors, the loop pauses. One sweeper looks after idle and stuck connections of all
//! listeners, instead of a timer per request.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use store_adapter::runtime::{Clock, Env};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::ConnectionContext;
use crate::connection::{self, Activity, Contended, Eviction, Shared};
use crate::stack::Stack;
use crate::turns::Turns;

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 1024;
/// Pause after an error of accept that will not go away by itself at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE: Duration = Duration::from_mins(1);
/// A drain waits this part of its time for a peer that takes nothing.
const DRAIN_STALL_PART: u32 = 4;

/// Limits of all listeners together.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Open connections.
    pub connections: usize,
    /// Open connections from one address.
    pub connections_per_ip: usize,
    /// A connection on which nothing happens is closed after this time.
    pub idle: Duration,
    /// A peer that does not take its answers is closed after this time.
    pub write_stall: Duration,
    /// What the system is asked to buffer of one connection's answers, bytes; `None` leaves it to
    /// the system.
    pub send_buffer: Option<usize>,
}

/// A bound socket.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    /// The address that it got; never port 0.
    pub address: SocketAddr,
}

impl Listener {
    /// Binds `address` (port 0 takes a free one). Must be called on a tokio runtime.
    ///
    /// # Errors
    /// What the operating system says, for example that the port is in use.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        // A restart must not wait for connections of the last process to time out.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() && address.ip().is_unspecified() {
            socket.set_only_v6(false)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let socket = TcpListener::from_std(socket.into())?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// Closes whatever connects, without end: clients come again instead of waiting.
    pub(crate) async fn turn_away(&self, clock: &dyn Clock) {
        loop {
            if self.socket.accept().await.is_err() {
                clock.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Running listeners.
#[derive(Debug)]
pub struct Server {
    shared: Arc<ServerShared>,
}

#[derive(Debug)]
struct ServerShared {
    env: Env,
    connection: Shared,
    limits: Limits,
    open: Mutex<Open>,
    next_id: AtomicU64,
    tasks: TaskTracker,
    stop_accepting: CancellationToken,
    /// How long a drain, once there is one, waits for a peer that takes nothing.
    drain_stall: OnceLock<Duration>,
    kill: CancellationToken,
}

/// Open connections; as many as the limit of connections.
#[derive(Debug, Default)]
struct Open {
    by_ip: HashMap<IpAddr, usize>,
    activities: BTreeMap<u64, Arc<Activity>>,
}

impl Server {
    /// Starts accepting on `listeners`; their index goes into [`ConnectionContext::listener`].
    pub fn start(
        listeners: Vec<Listener>,
        stack: &Stack,
        env: &Env,
        connection: Shared,
        limits: Limits,
    ) -> Self {
        let shared = Arc::new(ServerShared {
            env: env.clone(),
            connection,
            limits,
            open: Mutex::new(Open::default()),
            next_id: AtomicU64::new(1),
            tasks: TaskTracker::new(),
            stop_accepting: CancellationToken::new(),
            drain_stall: OnceLock::new(),
            kill: CancellationToken::new(),
        });
        for (index, listener) in listeners.into_iter().enumerate() {
            let accept = accept(Arc::clone(&shared), listener.socket, index, stack.clone());
            shared.spawn("accept", accept);
        }
        // Not one of the tasks that a drain waits for: it serves them to the end.
        let sweep = Box::pin(sweep(Arc::clone(&shared)));
        drop(shared.env.runtime.spawn("sweep", sweep));
        Self { shared }
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.shared.open.lock().activities.len()
    }

    /// Stops accepting, lets every connection answer what it has ordered for at most `limit`,
    /// then closes what is left. True if nothing was left. Whoever takes none of its answers for a
    /// quarter of that is closed before.
    pub async fn drain(&self, limit: Duration) -> bool {
        let shared = &self.shared;
        shared.drain_stall.get_or_init(|| limit / DRAIN_STALL_PART);
        shared.stop_accepting.cancel();
        shared.connection.drain.cancel();
        shared.tasks.close();
        let complete = tokio::select! {
            biased;
            () = shared.tasks.wait() => true,
            () = shared.env.clock.sleep(limit) => false,
        };
        shared.kill.cancel();
        shared.tasks.wait().await;
        complete
    }
}

impl ServerShared {
    fn spawn(&self, name: &str, task: impl Future<Output = ()> + Send + 'static) {
        let task = self.tasks.track_future(task);
        drop(self.env.runtime.spawn(name, Box::pin(task)));
    }

    /// Registers a connection; `None` if it is over a limit.
    fn admit(self: &Arc<Self>, ip: IpAddr) -> Option<Admitted> {
        let now = self.env.clock.monotonic();
        let mut open = self.open.lock();
        if open.activities.len() >= self.limits.connections {
            return None;
        }
        let same_ip = open.by_ip.entry(ip).or_default();
        if *same_ip >= self.limits.connections_per_ip {
            return None;
        }
        *same_ip += 1;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(Activity::new(now, self.kill.child_token()));
        open.activities.insert(id, Arc::clone(&activity));
        self.connection.metrics.connections.inc();
        Some(Admitted {
            server: Arc::clone(self),
            id,
            ip,
            activity,
        })
    }
}

/// An open connection's place in the tables; given up when dropped.
struct Admitted {
    server: Arc<ServerShared>,
    id: u64,
    ip: IpAddr,
    activity: Arc<Activity>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut open = self.server.open.lock();
        open.activities.remove(&self.id);
        if let Some(same_ip) = open.by_ip.get_mut(&self.ip) {
            *same_ip -= 1;
            if *same_ip == 0 {
                open.by_ip.remove(&self.ip);
            }
        }
        self.server.connection.metrics.connections.dec();
    }
}

async fn accept(shared: Arc<ServerShared>, socket: TcpListener, index: usize, stack: Stack) {
    let mut failing = false;
    loop {
        let accepted = tokio::select! {
            biased;
            () = shared.stop_accepting.cancelled() => return,
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                failing = false;
                open(&shared, stream, peer, index, &stack);
            }
            // The client gave up between its connect and our accept.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Out of descriptors or memory: once per episode in the log, and no spinning.
                if !failing {
                    tracing::warn!(%error, "cannot accept connections");
                }
                failing = true;
                shared.env.clock.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn open(
    shared: &Arc<ServerShared>,
    stream: TcpStream,
    peer: SocketAddr,
    listener: usize,
    stack: &Stack,
) {
    let metrics = &shared.connection.metrics;
    let Some(admitted) = shared.admit(peer.ip().to_canonical()) else {
        metrics.connections_rejected.inc();
        tracing::debug!(%peer, "connection refused: too many");
        return;
    };
    metrics.connections_opened.inc();
    if let Err(error) = tune(&stream, shared.limits.send_buffer) {
        tracing::debug!(%peer, %error, "cannot tune a connection");
    }
    let context = Arc::new(ConnectionContext {
        id: admitted.id,
        peer: Some(peer),
        local: stream.local_addr().ok(),
        listener,
        software: OnceLock::new(),
        turns: Turns::of(admitted.activity.ending()),
    });
    let (reader, writer) = connection::tasks(
        stream,
        context,
        stack.clone(),
        &shared.connection,
        &admitted.activity,
    );
    let admitted = Arc::new(admitted);
    let place = Arc::clone(&admitted);
    shared.spawn("connection-reader", async move {
        reader.await;
        drop(place);
    });
    shared.spawn("connection-writer", async move {
        writer.await;
        drop(admitted);
    });
}

fn tune(stream: &TcpStream, send_buffer: Option<usize>) -> io::Result<()> {
    // Answers are small and written whole: waiting for more only adds latency.
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    send_buffer.map_or(Ok(()), |bytes| socket.set_send_buffer_size(bytes))
}

async fn sweep(shared: Arc<ServerShared>) {
    loop {
        tokio::select! {
            biased;
            () = shared.kill.cancelled() => return,
            () = shared.env.clock.sleep(SWEEP_INTERVAL) => {}
        }
        let now = shared.env.clock.monotonic();
        let contended = Contended {
            answers: shared.connection.answers.is_contended(),
            requests: shared.connection.budget.contended(),
        };
        let (idle, stuck) = (shared.limits.idle, shared.limits.write_stall);
        let stuck = shared.drain_stall.get().map_or(stuck, |at| stuck.min(*at));
        let activities: Vec<_> = {
            let open = shared.open.lock();
            open.activities
                .iter()
                .map(|(id, a)| (*id, Arc::clone(a)))
                .collect()
        };
        for (conn, activity) in activities {
            match activity.sweep(now, idle, stuck, contended) {
                None => {}
                Some(Eviction::Idle) => tracing::debug!(conn, "connection closed: idle"),
                Some(Eviction::Stuck) => {
                    tracing::info!(conn, "connection closed: answers are not read");
                }
                Some(Eviction::Hoarding) => {
                    let why = "answers are not read, and others wait for their room";
                    tracing::info!(conn, "connection closed: {why}");
                }
                Some(Eviction::Dribbling) => {
                    let why = "a frame stalled, and others wait for its room";
                    tracing::info!(conn, "connection closed: {why}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_system_buffers_what_it_is_asked_to() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || async { TcpStream::connect(address).await.unwrap() };
        let untouched = SockRef::from(&connect().await).send_buffer_size().unwrap();
        // Linux takes twice what it is asked for.
        for (asked, had) in [(Some(20_000), 40_000), (None, untouched)] {
            let stream = connect().await;
            tune(&stream, asked).unwrap();
            let socket = SockRef::from(&stream);
            assert_eq!(socket.send_buffer_size().unwrap(), had);
            assert!(socket.tcp_nodelay().unwrap());
        }
    }
}

//! Connections cut at the decoded request: per connection a reader that orders requests one after
//! the other and a writer that answers in that order, as the gateway's own do; requests and
//! answers are delayed, and lost with their connection.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use gateway::api::{ApiRequest, ApiResponse, ConnectionContext, RequestContext, Staged};
use gateway::broker::Broker;
use gateway::order::{self, Line, Settled};
use gateway::turns::Turns;
use parking_lot::Mutex;
use serde_json::Value;
use store_adapter::ids::BrokerId;
use store_adapter::runtime::Env;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::clients::PATIENCE;
use super::executor::World;
use super::history::{BatchId, History, Place};
use super::http;

/// Requests that a connection holds before its client waits.
const REQUESTS_MAX: usize = 64;
/// Answers that wait in a connection.
const ANSWERS_MAX: usize = 16;

/// How often the network misbehaves.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NetRates {
    /// Requests lost with their connection, in a thousand.
    pub(crate) lose_request: u64,
    /// Answers lost with their connection, in a thousand.
    pub(crate) lose_answer: u64,
    /// Longest delay of a request or an answer, microseconds.
    pub(crate) delay_us: u64,
}

/// An instance that can be reached.
#[derive(Clone)]
pub(crate) struct Server {
    /// Its number in the run.
    pub(crate) number: u64,
    /// Its environment.
    pub(crate) env: Env,
    /// Its services.
    pub(crate) broker: Arc<Broker>,
    /// Its admin surface.
    pub(crate) admin: Router,
    /// Cancelled when it reads no further requests.
    pub(crate) stop: CancellationToken,
}

/// What one instance answers for at a time, where two brokers share the work.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Duty {
    /// Leads a partition.
    Partition(Place),
    /// Coordinates a group.
    Group(String),
    /// Coordinates a transactional id.
    Txn(String),
}

/// Who can be reached.
#[derive(Default)]
struct Servers {
    /// Every instance of two brokers; clients try one after the other.
    members: Vec<Server>,
    /// Who took a duty over last; `None` while it is being moved.
    duties: BTreeMap<Duty, Option<u64>>,
    /// The newest instance.
    current: Option<Server>,
    /// An older one that is not dead.
    older: Option<Server>,
    calm: bool,
}

/// The network.
pub(crate) struct Network {
    pub(super) world: World,
    history: Arc<History>,
    pub(super) rates: NetRates,
    servers: Mutex<Servers>,
    connections: AtomicU64,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

/// A request on its way.
struct Sent {
    request: ApiRequest,
    version: i16,
    batches: Vec<BatchId>,
    answer: oneshot::Sender<ApiResponse>,
}

/// A client's end of a connection.
pub(crate) struct Connection {
    /// The instance at the other end.
    pub(crate) server: u64,
    requests: mpsc::Sender<Sent>,
}

/// The other end is gone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Broken;

impl Connection {
    /// Sends a request; the answer comes, or the connection breaks.
    pub(crate) async fn send(
        &self,
        request: ApiRequest,
        version: i16,
        batches: Vec<BatchId>,
    ) -> Result<oneshot::Receiver<ApiResponse>, Broken> {
        let (answer, wait) = oneshot::channel();
        let sent = Sent {
            request,
            version,
            batches,
            answer,
        };
        self.requests.send(sent).await.map_err(|_| Broken)?;
        Ok(wait)
    }
}

impl Network {
    /// A network without servers.
    pub(crate) fn new(world: &World, history: &Arc<History>, rates: NetRates) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            history: history.clone(),
            rates,
            servers: Mutex::default(),
            connections: AtomicU64::new(0),
        })
    }

    /// Says which instance clients reach, and which older one they may reach too.
    pub(crate) fn route(&self, current: Option<Server>, older: Option<Server>) {
        let mut servers = self.servers.lock();
        servers.current = current;
        servers.older = older;
        servers.members.clear();
    }

    /// Says which instances of two brokers clients reach.
    pub(crate) fn route_members(&self, members: Vec<Server>) {
        self.servers.lock().members = members;
    }

    /// An instance of another broker than `own`.
    pub(crate) fn other_than(&self, own: BrokerId) -> Option<Server> {
        let servers = self.servers.lock();
        let mut others = servers.members.iter();
        others.find(|server| server.broker.id() != own).cloned()
    }

    /// Who has a duty from now on; nobody that is known, while it is being moved.
    pub(crate) fn takes(&self, duty: Duty, server: Option<u64>) {
        self.servers.lock().duties.insert(duty, server);
    }

    /// Whether nobody has taken a duty over from this instance.
    pub(crate) fn answers_for(&self, server: u64, duty: &Duty) -> bool {
        let servers = self.servers.lock();
        match servers
            .duties
            .get(duty)
            .filter(|_| !servers.members.is_empty())
        {
            Some(newest) => *newest == Some(server),
            None => servers.current.as_ref().is_some_and(|s| s.number == server),
        }
    }

    /// The instance that has a duty, and from which nobody has taken it over.
    pub(crate) fn holder(&self, duty: &Duty) -> Option<u64> {
        let servers = self.servers.lock();
        if servers.members.is_empty() {
            return servers.current.as_ref().map(|server| server.number);
        }
        servers.duties.get(duty).copied().flatten()
    }

    /// What an instance that can be reached says over HTTP, status and body; `None` where there is
    /// no answer in time.
    pub(crate) async fn http(&self, env: &Env, number: u64, path: &str) -> Option<(u16, Value)> {
        let server = {
            let servers = self.servers.lock();
            let mut all = servers.members.iter().chain(&servers.current);
            all.find(|server| server.number == number).cloned()?
        };
        let (answer, wait) = oneshot::channel();
        let path = path.to_owned();
        let task = async move {
            // Whoever asked may have lost patience.
            drop(answer.send(http::get(server.admin, &path).await));
        };
        drop(server.env.runtime.spawn("http", Box::pin(task)));
        tokio::select! {
            biased;
            answer = wait => answer.ok(),
            () = env.clock.sleep(PATIENCE) => None,
        }
    }

    /// The number of the newest instance.
    pub(crate) fn current(&self) -> Option<u64> {
        self.servers.lock().current.as_ref().map(|s| s.number)
    }

    /// Loses nothing any more.
    pub(crate) fn calm(&self) {
        self.servers.lock().calm = true;
    }

    /// Whether nothing is lost any more.
    pub(crate) fn is_calm(&self) -> bool {
        self.servers.lock().calm
    }

    pub(super) fn unlucky(&self, rate: u64) -> bool {
        !self.servers.lock().calm && self.world.below(1000) < rate
    }

    pub(super) async fn delay(&self, env: &Env) {
        let us = self.world.below(self.rates.delay_us + 1);
        // Half of them are not worth a timer.
        if us > self.rates.delay_us / 2 {
            env.clock.sleep(Duration::from_micros(us)).await;
        }
    }

    /// Connects to an instance, if there is one; not to `left`, if there is another.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        env: &Env,
        left: Option<u64>,
    ) -> Option<Connection> {
        let us = 50 + self.world.below(self.rates.delay_us + 1);
        env.clock.sleep(Duration::from_micros(us)).await;
        let server = {
            let servers = self.servers.lock();
            let (current, older) = (servers.current.clone(), servers.older.clone());
            let mut members: Vec<&Server> = servers.members.iter().collect();
            if members.len() > 1 {
                members.retain(|server| Some(server.number) != left);
            }
            let member = self.world.index(members.len());
            match older {
                _ if !members.is_empty() => members.get(member).copied().cloned(),
                Some(older) if current.is_none() || self.world.chance(25) => Some(older),
                _ => current,
            }
        }?;
        let id = self.connections.fetch_add(1, Ordering::Relaxed);
        let (requests, queue) = mpsc::channel(REQUESTS_MAX);
        let (staged, answers) = mpsc::channel(ANSWERS_MAX);
        let (line, settled) = Line::new();
        let (net, env, number) = (self.clone(), server.env.clone(), server.number);
        let writer = Box::pin(write(net, env, answers, settled));
        drop(server.env.runtime.spawn("writer", writer));
        let runtime = server.env.runtime.clone();
        let reader = Box::pin(read(self.clone(), server, id, queue, (staged, line)));
        drop(runtime.spawn("reader", reader));
        Some(Connection {
            server: number,
            requests,
        })
    }
}

/// An answer of the first stage, and who waits for the second.
type Answer = (Staged<ApiResponse>, oneshot::Sender<ApiResponse>);

/// Orders requests one after the other.
async fn read(
    net: Arc<Network>,
    server: Server,
    id: u64,
    mut requests: mpsc::Receiver<Sent>,
    (staged, mut line): (mpsc::Sender<Answer>, Line),
) {
    let connection = Arc::new(ConnectionContext {
        id,
        peer: None,
        local: None,
        listener: 0,
        software: OnceLock::new(),
        turns: Turns::default(),
    });
    loop {
        let sent = tokio::select! {
            biased;
            () = staged.closed() => return,
            () = server.stop.cancelled() => return,
            sent = requests.recv() => sent,
        };
        let Some(sent) = sent else { return };
        net.delay(&server.env).await;
        if net.unlucky(net.rates.lose_request) {
            net.world
                .note(&format!("connection {id} broke before a request"));
            return;
        }
        let overlaps = order::overlaps(sent.request.key(), sent.version);
        let in_its_place = async { line.free().await && (overlaps || line.settled().await) };
        let begins = tokio::select! {
            biased;
            () = server.stop.cancelled() => false,
            begins = in_its_place => begins,
        };
        if !begins {
            return;
        }
        let context = RequestContext {
            admitted: gateway::admitted::Admitted::default(),
            connection: connection.clone(),
            version: sent.version,
            client_id: None,
            received: server.env.clock.monotonic(),
        };
        for batch in &sent.batches {
            net.history.submitted(*batch, server.number);
        }
        let answer = server.broker.call(&context, sent.request).await;
        match answer {
            Staged::Now(_) => line.add(overlaps, false),
            Staged::Later(_) | Staged::Parked(_) => line.add(overlaps, true),
            Staged::Silent | Staged::Unsaid(_) | Staged::Close(_) => {}
        }
        if staged.send((answer, sent.answer)).await.is_err() {
            return;
        }
    }
}

/// Answers in the order of requests. What was ordered goes on when this ends.
async fn write(net: Arc<Network>, env: Env, mut answers: mpsc::Receiver<Answer>, settled: Settled) {
    while let Some((staged, answer)) = answers.recv().await {
        let response = match staged {
            Staged::Now(response) => response,
            Staged::Later(response) | Staged::Parked(response) => response.await,
            Staged::Silent | Staged::Unsaid(_) => continue,
            Staged::Close(reason) => {
                net.history
                    .violation(&format!("connection closed: {reason}"));
                return;
            }
        };
        settled.add();
        net.delay(&env).await;
        if net.unlucky(net.rates.lose_answer) {
            net.world.note("connection broke before an answer");
            return;
        }
        // A client that went away is not waiting.
        answer.send(response).unwrap_or_default();
    }
}

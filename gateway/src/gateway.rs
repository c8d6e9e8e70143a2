//! A whole broker in this process: sockets, stack, services, admin port. The library's entry.
//!
//! Up: sockets are bound (a port in use must not cost a claim), the broker comes up on its volume,
//! then the sockets are served. Down: readiness fails, no connection is accepted, what is ordered
//! is answered within a limit, the broker gives up what it owns.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use coordinator::service::cluster;
use coordinator::volume::layout::held_room;
use serde::Serialize;
use store_adapter::journal::{JournalCounters, MemoryIndex};
use store_adapter::local::{MemoryIdentity, ProcHost};
use store_adapter::runtime::{BoxFuture, Env};
use store_adapter::volume::{MemoryVolume, PosixVolume, SpaceWatch, Volume, VolumeError};
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Health, HealthParts};
use crate::api::{ApiRequest, ApiResponse, ApiService, RequestContext, Staged};
use crate::boot::{BootConfig, BootError, NamedListener, Outside, Running, StoreKind};
use crate::broker::{Advertised, Broker, NoPeers};
use crate::config::{Config, ConfigError, ListenerConfig, Origin, Settings};
use crate::connection::{Senders, Shared};
use crate::metrics::{Metrics, Sources};
use crate::request_budget::ByteBudget;
use crate::server::{Listener, Server};
use crate::stack;
use crate::starting::Starting;

/// How long a broker that has stopped waits for who reads its last answers over HTTP.
const ADMIN_STOP: Duration = Duration::from_secs(1);

/// Why a broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A value is not allowed.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A socket could not be bound.
    #[error("cannot listen on {address} ({key}): {source}")]
    Bind {
        /// The key that asks for it.
        key: &'static str,
        /// The address, as it was given.
        address: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// The data directory cannot be used.
    #[error("data directory: {0}")]
    Volume(#[from] VolumeError),
    /// The broker did not come up.
    #[error("data directory {dir}: {error}{}", advice(.error))]
    Boot {
        /// The data directory, to which paths in the error are relative.
        dir: String,
        /// Why.
        error: BootError,
    },
}

/// What is to be done about an error whose text does not say so.
fn advice(error: &BootError) -> &'static str {
    match error {
        BootError::Node(cluster::StartError::Volume(VolumeError::ReadOnly { .. })) => {
            "; make it writable for this process and start again"
        }
        BootError::Node(cluster::StartError::Volume(VolumeError::TooManyOpenFiles { .. })) => {
            "; raise the limit of open files (ulimit -n)"
        }
        BootError::Node(_) | BootError::Shard { .. } => "",
    }
}

/// Where a running broker is reached. As JSON, the line of `--print-addresses`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Addresses {
    /// HOST:PORT that is bound, of the first listener.
    pub kafka: String,
    /// HOST:PORT of the admin port.
    pub admin: String,
    /// What clients are told, by the name of the listener.
    pub listeners: BTreeMap<String, String>,
}

impl Addresses {
    fn new(sockets: &[Listener], listeners: &[NamedListener], admin: SocketAddr) -> Self {
        let first = sockets.first().map(|socket| socket.address.to_string());
        Self {
            kafka: first.unwrap_or_default(),
            admin: admin.to_string(),
            listeners: listeners.iter().map(told).collect(),
        }
    }
}

/// A running broker.
pub struct Gateway {
    config: Config,
    addresses: Addresses,
    env: Env,
    running: Running,
    server: Server,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    stop_admin: CancellationToken,
    admin: BoxFuture<'static, ()>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// Settings of a broker that is to start.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    settings: Settings,
    volume: Option<Arc<dyn Volume>>,
}

impl Builder {
    /// Sets a key of the configuration, by its name in `docs/configuration.md`.
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.settings.set(key, value, Origin::Library);
        self
    }

    /// Free ports, and nothing that outlives the process: for tests.
    pub fn ephemeral(self) -> Self {
        self.free_ports().set("store", "memory:")
    }

    /// Free ports on loopback.
    pub fn free_ports(self) -> Self {
        self.set("listeners", "PLAINTEXT://127.0.0.1:0")
            .set("admin.listen", "127.0.0.1:0")
    }

    /// Keeps everything in `dir`.
    pub fn data_dir(self, dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        self.set("log.dirs", &dir.to_string_lossy())
    }

    /// Keeps the files that brokers share on `volume` instead of in the data directory: for a
    /// volume that is no directory, or that counts, delays or fails what is done to it. With
    /// `store` `memory:` or `strict:` it is not used; with `layout=kv` sled opens its files in the
    /// data directory itself.
    pub fn volume(self, volume: Arc<dyn Volume>) -> Self {
        Self {
            volume: Some(volume),
            ..self
        }
    }

    /// Starts the broker. Must be called on a tokio runtime with several workers.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(self) -> Result<Gateway, StartError> {
        Gateway::start_on(Config::new(&self.settings)?, self.volume).await
    }
}

impl Gateway {
    /// Begins with the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts a broker in the real environment.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        Self::start_on(config, None).await
    }

    async fn start_on(config: Config, volume: Option<Arc<dyn Volume>>) -> Result<Self, StartError> {
        let env = Env::real();
        let (sockets, listeners) = bind(&config.listeners)?;
        let (admin_socket, admin_address) =
            admin::bind(config.admin).map_err(|source| StartError::Bind {
                key: "admin.listen",
                address: config.admin.to_string(),
                source,
            })?;
        let addresses = Addresses::new(&sockets, &listeners, admin_address);
        let journal = Arc::default();
        let mut outside = outside(&env, &config, volume)?;
        let space = SpaceWatch::with_reserve(&env, outside.volume, config.reserve);
        outside.volume = space.watched();
        let starting = Starting {
            env: &env,
            space: &space,
            sockets: &sockets,
            admin: &admin_socket,
            token: config.admin_token.as_ref(),
        };
        let running = boot(&starting, &config, &outside, listeners, &journal).await?;
        let metrics = Arc::new(Metrics::new(&sources(&config, &running, &space, &journal)));
        let shared = Shared {
            clock: Arc::clone(&env.clock),
            metrics: Arc::clone(&metrics),
            budget: ByteBudget::new(config.queued_bytes),
            answers: running.broker.answers().clone(),
            senders: Senders::new(&*env.runtime),
            log_limit: Arc::default(),
            frame_max: config.frame_max,
            drain: CancellationToken::new(),
        };
        let health = Health::new(HealthParts {
            env: env.clone(),
            node: running.node.clone(),
            broker: Arc::clone(&running.broker),
            journal,
            space,
            metrics: Arc::clone(&metrics),
            requests: shared.budget.clone(),
        });
        let stop_admin = CancellationToken::new();
        let beat = Arc::clone(&health).beat_until(stop_admin.clone());
        drop(env.runtime.spawn("beat", Box::pin(beat)));
        let shown = admin_parts(&env, &config, &running, &health);
        let admin = admin::serve(&env, admin_socket, shown, stop_admin.clone());
        let stack = stack::compose(Service(running.broker.clone()), &metrics, &env.clock);
        let server = Server::start(sockets, &stack, &env, shared, config.limits.clone());
        Ok(Self {
            config,
            addresses,
            env,
            running,
            server,
            metrics,
            health,
            stop_admin,
            admin,
        })
    }

    /// Where it is reached.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The services, for tests that look behind the sockets.
    pub fn broker(&self) -> &Arc<Broker> {
        &self.running.broker
    }

    /// What the process counts.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Clock, tasks, randomness.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Completes when another process has taken over what this one owned: it serves nothing any
    /// more and should end.
    pub async fn fenced(&self) {
        let mut status = self.running.node.status();
        // The sender lives as long as the node.
        while !self.running.is_fenced() {
            if status.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Stops in order; see the module. True if every request was answered in time.
    pub async fn shutdown(self) -> bool {
        self.health.drain();
        self.running.broker.begin_stop();
        let complete = self.server.drain(self.config.drain).await;
        if !complete {
            tracing::warn!("some requests were not answered in time");
        }
        self.running.stop().await;
        self.stop_admin.cancel();
        tokio::select! {
            () = self.admin => {}
            () = self.env.clock.sleep(ADMIN_STOP) => {
                tracing::info!("the admin port is left while answers of it are not read");
            }
        }
        complete
    }
}

/// The broker behind the stack.
#[derive(Debug, Clone)]
struct Service(Arc<Broker>);

impl ApiService for Service {
    fn call(
        &self,
        ctx: RequestContext,
        request: ApiRequest,
    ) -> BoxFuture<'static, Staged<ApiResponse>> {
        let broker = Arc::clone(&self.0);
        Box::pin(async move { broker.call(&ctx, request).await })
    }
}

/// What metrics are made of.
fn sources(
    config: &Config,
    running: &Running,
    space: &SpaceWatch,
    journal: &Arc<JournalCounters>,
) -> Sources {
    Sources {
        durability: config.durability(),
        store: config.store.label(),
        produce_classified: Arc::clone(running.broker.produce_classified()),
        offsets: Arc::clone(running.broker.offsets().counters()),
        history: Arc::clone(running.history.counters()),
        syncs: Arc::clone(space.syncs()),
        store_refusals: Arc::clone(running.broker.store_refusals()),
        compactions: Arc::clone(running.broker.compactions()),
        journal: (config.store == StoreKind::Sled).then(|| Arc::clone(journal)),
    }
}

/// What the admin surface shows and does.
fn admin_parts(
    env: &Env,
    config: &Config,
    running: &Running,
    health: &Arc<Health>,
) -> admin_api::Parts {
    admin_api::Parts {
        views: Arc::<Health>::clone(health),
        txns: running.txn_views(env),
        token: config.admin_token.clone(),
        faults: config.enable_faults,
    }
}

fn told(listener: &NamedListener) -> (String, String) {
    let Advertised { host, port } = &listener.advertised;
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.clone()
    };
    (listener.name.clone(), format!("{host}:{port}"))
}

/// Binds every listener; a port 0 that clients would be told becomes the one that was taken.
fn bind(listeners: &[ListenerConfig]) -> Result<(Vec<Listener>, Vec<NamedListener>), StartError> {
    let mut sockets = Vec::new();
    let mut named = Vec::new();
    for listener in listeners {
        let socket = bind_one(listener).map_err(|source| StartError::Bind {
            key: "listeners",
            address: format!("{}:{}", listener.bind.host, listener.bind.port),
            source,
        })?;
        let port = match listener.advertised.port {
            0 => socket.address.port(),
            port => port,
        };
        let host = listener.advertised.host.clone();
        named.push(NamedListener {
            name: listener.name.clone(),
            advertised: Advertised { host, port },
        });
        sockets.push(socket);
    }
    Ok((sockets, named))
}

fn bind_one(listener: &ListenerConfig) -> io::Result<Listener> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for address in listener.bind.bind_addresses()? {
        match Listener::bind(address) {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn outside(
    env: &Env,
    config: &Config,
    volume: Option<Arc<dyn Volume>>,
) -> Result<Outside, VolumeError> {
    if config.store.is_volatile() {
        // Topics that outlived their records would show logs that lost everything.
        return Ok(Outside {
            volume: Arc::new(MemoryVolume::new()),
            host: Arc::new(ProcHost),
            identity: Arc::new(MemoryIdentity::default()),
            index: Arc::new(MemoryIndex::new()),
            peers: Arc::new(NoPeers),
        });
    }
    let volume = match volume {
        Some(volume) => volume,
        None => Arc::new(PosixVolume::open(config.data_dir.clone())?),
    };
    Ok(Outside::real(env, volume, &config.index_dir))
}

async fn boot(
    starting: &Starting<'_>,
    config: &Config,
    outside: &Outside,
    listeners: Vec<NamedListener>,
    journal: &Arc<JournalCounters>,
) -> Result<Running, StartError> {
    let boot = BootConfig {
        broker_id: config.broker_id,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        shards: 1,
        store: config.store.clone(),
        flush: config.flush,
        journal_segment_bytes: config.journal_segment_bytes,
        // A batch counts in the queue at most about five times what its request has; requests have
        // at most the budget, a quarter more, and one frame.
        journal_queue_bytes: (config.queued_bytes.saturating_mul(2) + config.frame_max)
            .saturating_mul(5),
        listeners,
        broker: config.broker.clone(),
        journal_counters: Arc::clone(journal),
        space: Some(starting.space.clone()),
        assigned: false,
        reserve: config.reserve,
    };
    let env = starting.env;
    let start = || -> BoxFuture<'static, _> {
        Box::pin(Running::start(env.clone(), outside.clone(), boot.clone()))
    };
    let started = starting.until_started(start).await;
    let running = started.map_err(|error| StartError::Boot {
        dir: config.data_dir.display().to_string(),
        error,
    })?;
    starting.space.hold_room(held_room(config.broker_id)).await;
    Ok(running)
}

//! From settings to a broker on a volume: the order in which its parts come up and go down.
//!
//! Up: volume, claims of the node, index, shards of the store, producer ids, partitions. Down: the
//! reverse, after requests were drained.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use admin_api::TxnViews;
use coordinator::service::cluster::{ClusterNode, Levels, NodeConfig, NodeStatus, StartError};
use coordinator::service::fences::{FenceFiles, Fences};
use coordinator::service::groups::{GroupFiles, Groups, Offsets};
use coordinator::service::marker_queue::{MarkerQueues, QueueFiles};
use coordinator::service::producer_ids::ProducerIds;
use coordinator::service::txns::{SlotFiles, TxnConfig, Txns};
use coordinator::volume::format::Listener;
use store_adapter::ids::{BrokerId, ShardId};
use store_adapter::journal::{
    FlushPolicy, IndexStore, JournalConfig, JournalCounters, JournalStore, SledIndex,
};
use store_adapter::kv::{KvConfig, KvStore};
use store_adapter::local::{Host, IdentityFile, LocalIdentity, ProcHost};
use store_adapter::memory::MemoryStore;
use store_adapter::runtime::Env;
use store_adapter::store::{LogStore, StoreError};
use store_adapter::strict::{StrictConfig, StrictStore};
use store_adapter::volume::{Reserve, SpaceWatch, Volume, VolumeError};

use crate::admin::Transactions;
use crate::broker::{
    Advertised, Broker, BrokerConfig, BrokerParts, NoPeers, NodeCatalogue, NodeSnapshots, Peers,
    report_opened,
};
use crate::features::{TRANSACTION_VERSION, transaction_version};
use crate::txns::history::History;
use crate::txns::hold::Holds;
use crate::txns::{self, NodeHomes, QueuePasses, start_passes};

/// How long a broker that stops waits for the files of its transaction slots.
const FLUSH_FOR: Duration = Duration::from_secs(2);

/// Where records are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreKind {
    /// The journal on the volume.
    Sled,
    /// sled databases on the volume.
    Kv {
        /// The directory that the volume's root is.
        root: PathBuf,
    },
    /// Nowhere: they end with the process.
    Memory,
    /// Nowhere, and by the rules of the worst store there may be.
    Strict {
        /// The outcome of every so-manieth group stays unknown; 0: of none.
        uncertain_every: u64,
    },
}

impl StoreKind {
    /// What metrics call it.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Sled => "sled",
            Self::Kv { .. } => "sled-kv",
            Self::Memory => "memory",
            Self::Strict { .. } => "strict",
        }
    }

    /// Whether what it keeps ends with the process.
    pub fn is_volatile(&self) -> bool {
        matches!(self, Self::Memory | Self::Strict { .. })
    }
}

/// A listener as clients see it.
#[derive(Debug, Clone)]
pub struct NamedListener {
    /// Its name (`PLAINTEXT`).
    pub name: String,
    /// What clients are told.
    pub advertised: Advertised,
}

/// Everything a broker needs to come up.
#[derive(Debug, Clone)]
pub struct BootConfig {
    /// This broker's number (`node.id`).
    pub broker_id: BrokerId,
    /// Version of the software.
    pub version: String,
    /// Shards of the embedded store.
    pub shards: u32,
    /// Where records are kept.
    pub store: StoreKind,
    /// When a commit is acknowledged (`flush.policy`).
    pub flush: FlushPolicy,
    /// Bytes of a journal file (`journal.segment.bytes`).
    pub journal_segment_bytes: u64,
    /// Bytes that may wait for the writer of a shard. Admission keeps requests well below.
    pub journal_queue_bytes: usize,
    /// Listeners, in the order of the sockets.
    pub listeners: Vec<NamedListener>,
    /// Settings of the broker's services.
    pub broker: BrokerConfig,
    /// What the journal counts into.
    pub journal_counters: Arc<JournalCounters>,
    /// What watches the volume for space, if anything does.
    pub space: Option<SpaceWatch>,
    /// Whether who owns what is decided elsewhere; a lone broker decides itself.
    pub assigned: bool,
    /// Room that appends leave on the volume (`journal.reserved.bytes`).
    pub reserve: Reserve,
}

/// What is outside the process.
#[derive(Debug, Clone)]
pub struct Outside {
    /// The shared directory tree.
    pub volume: Arc<dyn Volume>,
    /// This host and process.
    pub host: Arc<dyn Host>,
    /// The cluster that the local directory belongs to.
    pub identity: Arc<dyn LocalIdentity>,
    /// The journal's local index.
    pub index: Arc<dyn IndexStore>,
    /// Coordinators of transactional ids at other brokers.
    pub peers: Arc<dyn Peers>,
}

impl Outside {
    /// This host and the shared files on `volume`; what is local, in `index_dir`.
    pub fn real(env: &Env, volume: Arc<dyn Volume>, index_dir: &Path) -> Self {
        Self {
            volume,
            host: Arc::new(ProcHost),
            identity: Arc::new(IdentityFile::new(index_dir.join("cluster-id"))),
            index: Arc::new(SledIndex::new(env.clone(), index_dir.join("sled"))),
            peers: Arc::new(NoPeers),
        }
    }
}

/// Why a broker did not come up.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The node did not start.
    #[error(transparent)]
    Node(#[from] StartError),
    /// A shard could not be opened.
    #[error("shard {shard}: {error}")]
    Shard {
        /// Its number.
        shard: u32,
        /// Why.
        error: StoreError,
    },
}

impl BootError {
    /// What there was no space for, if that is why.
    pub fn no_space(&self) -> Option<&str> {
        match self {
            Self::Node(StartError::Volume(VolumeError::NoSpace { path })) => Some(path),
            Self::Node(_) | Self::Shard { .. } => None,
        }
    }
}

/// A broker that is up.
#[derive(Debug)]
pub struct Running {
    /// Its services.
    pub broker: Arc<Broker>,
    /// Its place in the cluster.
    pub node: ClusterNode,
    /// What became of transactions.
    pub history: Arc<History>,
    /// Markers that are held on purpose.
    pub holds: Arc<Holds>,
}

impl Running {
    /// Brings a broker up.
    ///
    /// # Errors
    /// See [`BootError`].
    pub async fn start(env: Env, outside: Outside, config: BootConfig) -> Result<Self, BootError> {
        let volume = Arc::clone(&outside.volume);
        let index = Arc::clone(&outside.index);
        let peers = Arc::clone(&outside.peers);
        // First of all: it refuses a double start, which the index would only wait for.
        let node = start_node(&env, outside, &config).await?;
        let store: Arc<dyn LogStore> = match &config.store {
            StoreKind::Memory => Arc::new(MemoryStore::new()),
            StoreKind::Strict { uncertain_every } => {
                let strict = StrictConfig {
                    uncertain_every: *uncertain_every,
                    ..StrictConfig::default()
                };
                Arc::new(StrictStore::new(env.clone(), strict))
            }
            StoreKind::Kv { root } => {
                let kv = KvConfig {
                    broker: config.broker_id,
                    flush: config.flush,
                    queue_bytes: config.journal_queue_bytes,
                    space: config.space.clone(),
                    reserve: config.reserve,
                    ..KvConfig::default()
                };
                Arc::new(KvStore::new(env.clone(), volume, root.clone(), kv))
            }
            StoreKind::Sled => {
                let journal = JournalConfig {
                    broker: config.broker_id,
                    flush: config.flush,
                    segment_bytes: config.journal_segment_bytes,
                    queue_bytes: config.journal_queue_bytes,
                    counters: Arc::clone(&config.journal_counters),
                    space: config.space.clone(),
                    reserve: config.reserve,
                    ..JournalConfig::default()
                };
                Arc::new(JournalStore::new(env.clone(), volume, index, journal))
            }
        };
        Self::start_services(env, node, config, store, peers).await
    }

    /// Brings a broker up on a store whose shards are not open yet.
    ///
    /// # Errors
    /// See [`BootError`].
    pub async fn start_on(
        env: Env,
        outside: Outside,
        config: BootConfig,
        store: Arc<dyn LogStore>,
    ) -> Result<Self, BootError> {
        let peers = Arc::clone(&outside.peers);
        let node = start_node(&env, outside, &config).await?;
        Self::start_services(env, node, config, store, peers).await
    }

    async fn start_services(
        env: Env,
        node: ClusterNode,
        config: BootConfig,
        store: Arc<dyn LogStore>,
        peers: Arc<dyn Peers>,
    ) -> Result<Self, BootError> {
        for (shard, owner) in node.shards() {
            match store.open_shard(shard, owner).await {
                Ok(opened) => report_opened(&opened),
                Err(error) => leave_closed(&node, shard, error).await?,
            }
        }
        let block_file = Arc::new(node.block_file());
        let routing = Arc::new(node.clone());
        let groups = Groups::start(&env, config.broker.groups.clone(), routing);
        let files: Arc<dyn GroupFiles> = node.group_files();
        let (view, slots) = (node.watch_view(), node.group_slots());
        let offsets = Offsets::start(&env, &groups, &files, view, slots);
        let producer_ids = Arc::new(ProducerIds::start(&env, config.broker_id, block_file));
        let fences = start_fences(&env, &node, &config.broker).await;
        let passes = queue_passes(&env, &node, &offsets);
        let files: Arc<dyn SlotFiles> = node.txn_files();
        let ids = Arc::clone(&producer_ids);
        let version = transaction_version(&node.view().features);
        let txn_config = TxnConfig {
            version: i8::try_from(version).unwrap_or(0),
            ..config.broker.txns.clone()
        };
        let history = History::start(&env, node.volume(), node.txn_slots());
        let holds = Holds::new(&env);
        let ports = txns::ports(ids, fences.clone(), &passes, history.clone());
        let ports = holds.around(ports);
        let txns = Txns::start(
            &env,
            txn_config,
            &files,
            ports,
            u32::try_from(node.view().assignment.txn_slots.len()).unwrap_or(u32::MAX),
            node.txn_slots(),
        );
        let parts = BrokerParts {
            offsets,
            groups,
            producer_ids,
            txns,
            peers,
            fences,
            env,
            id: config.broker_id,
            cluster_id: node.view().cluster_id.to_string(),
            config: config.broker,
            listeners: config.listeners.into_iter().map(|l| l.advertised).collect(),
            catalogue: Arc::new(NodeCatalogue(node.clone())),
            store,
            snapshots: Arc::new(NodeSnapshots(node.clone())),
            volume: node.volume(),
            space: config.space,
        };
        let broker = Broker::start(parts).await;
        passes.markers.bind(&broker);
        start_passes(&broker, passes);
        Ok(Self {
            broker,
            node,
            history,
            holds,
        })
    }

    /// What the admin surface sees of transactions, and does about them.
    pub fn txn_views(&self, env: &Env) -> Arc<dyn TxnViews> {
        let volume = self.node.volume();
        Transactions::new(env, &self.broker, volume, &self.history, &self.holds)
    }

    /// Whether a later process owns what this one owned.
    pub fn is_fenced(&self) -> bool {
        *self.node.status().borrow() == NodeStatus::Fenced
    }

    /// Takes the broker down: snapshots, store, claims. Requests must be drained.
    pub async fn stop(&self) {
        if let Err(error) = self.node.drain().await {
            tracing::warn!(%error, "could not say that this broker drains");
        }
        self.broker.txns().flushed(FLUSH_FOR).await;
        self.broker.relinquish().await;
        if let Err(error) = self.node.stop().await {
            tracing::warn!(%error, "could not give up what this broker owns");
        }
    }
}

/// Goes on without a shard that is damaged, or for which there is no space now: the others serve,
/// and this one is answered with retriable errors.
async fn leave_closed(
    node: &ClusterNode,
    shard: ShardId,
    error: StoreError,
) -> Result<(), BootError> {
    let shard = shard.0;
    match &error {
        StoreError::Corrupt { path, why } => {
            tracing::error!(shard, %error, "the shard is damaged and offline");
            node.report_damage(path, why).await;
            Ok(())
        }
        // Said once where it began, and tried again until there is.
        StoreError::Full { .. } => {
            tracing::debug!(shard, %error, "the shard is offline until there is space");
            Ok(())
        }
        _ => Err(BootError::Shard { shard, error }),
    }
}

fn queue_passes(env: &Env, node: &ClusterNode, offsets: &Offsets) -> QueuePasses {
    let files: Arc<dyn QueueFiles> = node.queue_files();
    QueuePasses {
        queues: MarkerQueues::start(env, files),
        homes: Arc::new(NodeHomes(node.clone())),
        markers: Arc::default(),
        offsets: offsets.clone(),
        busy: Arc::default(),
    }
}

/// The fences of every broker, in force before anything is served.
async fn start_fences(env: &Env, node: &ClusterNode, config: &BrokerConfig) -> Fences {
    let files: Arc<dyn FenceFiles> = node.fence_files();
    let fences = Fences::start(env, files, config.producer_id_expiration_ms);
    if let Err(error) = fences.load().await {
        tracing::error!(%error, "this broker publishes no fences until that is repaired");
    }
    fences
}

async fn start_node(
    env: &Env,
    outside: Outside,
    config: &BootConfig,
) -> Result<ClusterNode, StartError> {
    let node = NodeConfig {
        broker_id: config.broker_id,
        listeners: config.listeners.iter().map(registered).collect(),
        version: config.version.clone(),
        shards: config.shards,
        assigned: config.assigned,
        features: Levels::from([(
            TRANSACTION_VERSION.to_owned(),
            config.broker.txns.version.into(),
        )]),
    };
    ClusterNode::start(
        env.clone(),
        outside.volume,
        outside.host,
        outside.identity,
        node,
    )
    .await
}

fn registered(listener: &NamedListener) -> Listener {
    Listener {
        name: listener.name.clone(),
        host: listener.advertised.host.clone(),
        port: listener.advertised.port,
    }
}

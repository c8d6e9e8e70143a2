//! The broker: what handlers work on. Cut at the decoded request: [`Broker::call`] is the whole
//! gateway without sockets, and the simulation drives exactly this.

mod alter;
mod catalogue;
mod compaction;
mod error;
mod hosted;
mod measure;
mod node;
mod peers;
mod placement;
mod repair;
mod retention;
mod stopping;

use std::future::Future;
use std::sync::Arc;

use coordinator::service::fences::Fences;
use coordinator::service::groups::{GroupConfig, Groups, Offsets};
use coordinator::service::producer_ids::ProducerIds;
use coordinator::service::txns::{TxnConfig, Txns};
use kafka_protocol::protocol::StrBytes;
use parking_lot::{Mutex, RwLock};
use store_adapter::ids::BrokerId;
use store_adapter::runtime::{BoxFuture, Env};
use store_adapter::store::LogStore;
use store_adapter::volume::{SpaceWatch, Volume};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

pub use catalogue::{Catalogue, CatalogueTopic};
pub use compaction::CleanerConfig;
pub use error::{NoTopic, TopicError};
pub use hosted::{HostedTopic, NewTopic};
pub use node::{NodeCatalogue, NodeSnapshots};
pub use peers::{Coordinators, NoPeers, Peers};
pub use repair::{Condition, report_opened};

use self::alter::TopicDefaults;
use self::hosted::Hosted;
use crate::answer_budget::AnswerBudget;
use crate::api::{ApiRequest, ApiResponse, RequestContext, Staged};
use crate::fetch_session::FetchSessions;
use crate::metrics::{Compactions, ProduceClassified, StoreRefusals};
use crate::partition::{
    Lane, Partition, PartitionDeps, SnapshotFiles, SnapshotPace, UNPACKING_MAX,
};

/// What of the configuration the broker's services use.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    /// `num.partitions`.
    pub num_partitions: u32,
    /// `virtual.replicas`, at least 1.
    pub virtual_replicas: u16,
    /// `auto.create.topics.enable`.
    pub auto_create_topics: bool,
    /// `delete.topic.enable`.
    pub delete_topics: bool,
    /// `fetch.max.bytes`.
    pub fetch_max_bytes: usize,
    /// `queued.max.response.bytes`.
    pub queued_response_bytes: usize,
    /// `max.incremental.fetch.session.cache.slots`.
    pub fetch_session_slots: usize,
    /// `producer.id.expiration.ms`.
    pub producer_id_expiration_ms: i64,
    /// `producer.id.expiration.check.interval.ms`.
    pub producer_id_check_interval: std::time::Duration,
    /// `log.initial.task.delay.ms`: when retention is looked for first.
    pub retention_initial_delay: std::time::Duration,
    /// `log.retention.check.interval.ms`.
    pub retention_check_interval: std::time::Duration,
    /// `log.cleaner.*`.
    pub cleaner: CleanerConfig,
    /// Rules of topics that set none of their own, until others are set while the broker runs.
    pub topic_defaults: crate::partition::validate::TopicRules,
    /// Groups.
    pub groups: GroupConfig,
    /// Transactions.
    pub txns: TxnConfig,
    /// `transaction.partition.verification.enable`.
    pub txn_partition_verification: bool,
    /// `transaction.abort.timed.out.transaction.cleanup.interval.ms`.
    pub txn_reap_interval: std::time::Duration,
    /// `transaction.remove.expired.transaction.cleanup.interval.ms`.
    pub txn_expire_interval: std::time::Duration,
    /// `transaction.reconcile.interval.ms`.
    pub txn_reconcile_interval: std::time::Duration,
    /// `transaction.poll.interval.ms`.
    pub txn_poll_interval: std::time::Duration,
    /// Where records are, for people: the directory, or `memory:`.
    pub log_dir: String,
    /// Every key as it was given, for DescribeConfigs.
    pub settings: Arc<crate::config::Settings>,
}

/// What clients are told of a listener.
#[derive(Debug, Clone)]
pub struct Advertised {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// What a broker is made of. Every part is needed.
#[derive(Debug)]
pub struct BrokerParts {
    /// Clock, tasks, randomness.
    pub env: Env,
    /// This broker's number.
    pub id: BrokerId,
    /// The cluster's id.
    pub cluster_id: String,
    /// Settings.
    pub config: BrokerConfig,
    /// Advertised addresses, by index of the listener.
    pub listeners: Vec<Advertised>,
    /// Topics on the volume.
    pub catalogue: Arc<dyn Catalogue>,
    /// The records; its shards are open.
    pub store: Arc<dyn LogStore>,
    /// Producer ids.
    pub producer_ids: Arc<ProducerIds>,
    /// Groups that this broker coordinates.
    pub groups: Groups,
    /// Their offsets.
    pub offsets: Offsets,
    /// Transactional ids that this broker coordinates.
    pub txns: Txns,
    /// Coordinators of the others.
    pub peers: Arc<dyn Peers>,
    /// Fences of every broker.
    pub fences: Fences,
    /// Snapshot files.
    pub snapshots: Arc<dyn SnapshotFiles>,
    /// What all of it is on. Its futures are awaited in io tasks only.
    pub volume: Arc<dyn Volume>,
    /// Makes way for deletions on a full volume.
    pub space: Option<SpaceWatch>,
}

/// What [`Broker::wide_polls`] has.
const WIDE_POLLS_KIB: usize = 64 << 10;

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    env: Env,
    id: BrokerId,
    cluster_id: StrBytes,
    config: BrokerConfig,
    listeners: Vec<(StrBytes, i32)>,
    catalogue: Arc<dyn Catalogue>,
    store: Arc<dyn LogStore>,
    producer_ids: Arc<ProducerIds>,
    groups: Groups,
    offsets: Offsets,
    coordinators: Coordinators,
    fences: Fences,
    snapshots: Arc<dyn SnapshotFiles>,
    snapshot_pace: Arc<SnapshotPace>,
    volume: Arc<dyn Volume>,
    space: Option<SpaceWatch>,
    sessions: Mutex<FetchSessions>,
    answers: AnswerBudget,
    /// KiB for long polls of many partitions.
    wide_polls: Arc<Semaphore>,
    hosted: Hosted,
    topic_defaults: RwLock<Arc<TopicDefaults>>,
    stopping: CancellationToken,
    classified: Arc<ProduceClassified>,
    refusals: Arc<StoreRefusals>,
    compactions: Arc<Compactions>,
    /// Told when something closed that may be opened again.
    repair: Arc<Notify>,
    /// Bounds what is unpacked at a time.
    unpacking: Arc<Semaphore>,
}

impl Broker {
    /// Opens every partition of the catalogue and starts the background work. Damaged partitions
    /// are reported and answered with an error; the others serve.
    pub async fn start(parts: BrokerParts) -> Arc<Self> {
        let listeners = parts
            .listeners
            .into_iter()
            .map(|listener| {
                (
                    StrBytes::from_string(listener.host),
                    i32::from(listener.port),
                )
            })
            .collect();
        let set = parts.catalogue.broker_configs();
        let topic_defaults = TopicDefaults::new(&parts.config, parts.id.0, set);
        topic_defaults.tell();
        let broker = Arc::new(Self {
            topic_defaults: RwLock::new(Arc::new(topic_defaults)),
            sessions: Mutex::new(FetchSessions::new(parts.config.fetch_session_slots)),
            answers: AnswerBudget::new(parts.config.queued_response_bytes),
            wide_polls: Arc::new(Semaphore::new(WIDE_POLLS_KIB)),
            env: parts.env,
            id: parts.id,
            cluster_id: StrBytes::from_string(parts.cluster_id),
            config: parts.config,
            listeners,
            catalogue: parts.catalogue,
            store: parts.store,
            producer_ids: parts.producer_ids,
            groups: parts.groups,
            offsets: parts.offsets,
            coordinators: Coordinators::new(parts.txns, parts.peers),
            fences: parts.fences,
            snapshots: parts.snapshots,
            snapshot_pace: Arc::default(),
            volume: parts.volume,
            space: parts.space,
            hosted: Hosted::default(),
            stopping: CancellationToken::new(),
            classified: Arc::default(),
            refusals: Arc::default(),
            compactions: Arc::default(),
            repair: Arc::default(),
            unpacking: Arc::new(Semaphore::new(UNPACKING_MAX)),
        });
        broker.host_catalogue().await;
        broker.start_following();
        broker.start_expiry();
        broker.start_retention();
        broker.start_compaction();
        broker.start_repair();
        broker
    }

    /// Runs the first stage of a request; the second is inside the answer. Only a Produce that
    /// opens a transaction waits in it, and not for long. Never to be dropped half-way.
    pub async fn call(
        self: &Arc<Self>,
        context: &RequestContext,
        request: ApiRequest,
    ) -> Staged<ApiResponse> {
        crate::handlers::dispatch(self, context, request).await
    }

    /// Answers long polls with what there is, sends members of groups away, and refuses to open
    /// anything new.
    pub fn begin_stop(&self) {
        self.stopping.cancel();
        self.groups.stop();
    }

    /// Writes snapshots of what changed, and closes the store. Requests must be drained.
    pub async fn relinquish(&self) {
        self.begin_stop();
        let changed = self.hosted.partitions().into_iter();
        let changed = changed.map(|partition| (partition.unsaved(), partition));
        let changed = changed.filter(|(bytes, _)| *bytes > 0).collect();
        let write = async |partition: Arc<Partition>| partition.relinquish().await;
        let clock = || self.env.clock.monotonic();
        let left = stopping::most_first(changed, write, clock).await;
        if left > 0 {
            let what = "the disk is slow: some partitions stop without a snapshot, and the next \
                        start reads what they got since their last one";
            tracing::warn!(partitions = left, "{what}");
        }
        if let Err(error) = self.store.close().await {
            tracing::error!(%error, "the store did not close cleanly");
        }
    }

    /// Completes when the broker begins to stop.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + '_ {
        self.stopping.cancelled()
    }

    /// The same, for tasks that outlive the broker.
    pub(crate) fn when_stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        self.stopping.clone().cancelled_owned()
    }

    /// This broker's number.
    pub fn id(&self) -> BrokerId {
        self.id
    }

    /// The cluster's id.
    pub fn cluster_id(&self) -> StrBytes {
        self.cluster_id.clone()
    }

    /// Settings.
    pub fn config(&self) -> &BrokerConfig {
        &self.config
    }

    /// Clock, tasks, randomness.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The records.
    pub fn store(&self) -> &Arc<dyn LogStore> {
        &self.store
    }

    /// Fetch sessions. The lock is never held across an await.
    pub(crate) fn sessions(&self) -> &Mutex<FetchSessions> {
        &self.sessions
    }

    /// The bytes that large answers may hold.
    pub fn answers(&self) -> &AnswerBudget {
        &self.answers
    }

    /// KiB that long polls of many partitions may take while they wait.
    pub(crate) fn wide_polls(&self) -> &Arc<Semaphore> {
        &self.wide_polls
    }

    /// Batches of Produce by their class.
    pub fn produce_classified(&self) -> &Arc<ProduceClassified> {
        &self.classified
    }

    /// What the store refused, by cause.
    pub fn store_refusals(&self) -> &Arc<StoreRefusals> {
        &self.refusals
    }

    /// What compaction did.
    pub fn compactions(&self) -> &Arc<Compactions> {
        &self.compactions
    }

    /// Producer ids.
    pub(crate) fn producer_ids(&self) -> &ProducerIds {
        &self.producer_ids
    }

    /// Groups.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Offsets of groups.
    pub fn offsets(&self) -> &Offsets {
        &self.offsets
    }

    /// Transactional ids that this broker coordinates.
    pub fn txns(&self) -> &Txns {
        self.coordinators.here()
    }

    /// Who is asked about a transaction, whoever coordinates it.
    pub fn coordinators(&self) -> &Coordinators {
        &self.coordinators
    }

    /// Fences of every broker.
    pub fn fences(&self) -> &Fences {
        &self.fences
    }

    /// The advertised address of a listener: the one that the client used.
    pub(crate) fn address(&self, listener: usize) -> (StrBytes, i32) {
        self.listeners
            .get(listener)
            .or(self.listeners.first())
            .cloned()
            .unwrap_or_default()
    }

    fn start_expiry(self: &Arc<Self>) {
        let broker = Arc::downgrade(self);
        let env = self.env.clone();
        let interval = self.config.producer_id_check_interval;
        let stopping = self.stopping.clone();
        let task: BoxFuture<'static, ()> = Box::pin(async move {
            loop {
                tokio::select! {
                    biased;
                    () = stopping.cancelled() => return,
                    () = env.clock.sleep(interval) => {}
                }
                let Some(broker) = broker.upgrade() else {
                    return;
                };
                let now_ms = env.clock.wall_ms();
                for partition in broker.hosted.partitions() {
                    partition.expire_producers(now_ms);
                }
            }
        });
        drop(self.env.runtime.spawn("producer-expiry", task));
    }

    fn deps(&self, lane: Lane) -> PartitionDeps {
        PartitionDeps {
            env: self.env.clone(),
            store: self.store.clone(),
            lane,
            snapshots: self.snapshots.clone(),
            snapshot_pace: self.snapshot_pace.clone(),
            fences: self.fences.table().clone(),
            classified: self.classified.clone(),
            refusals: self.refusals.clone(),
            repair: self.repair.clone(),
            space: self.space.clone(),
            unpacking: self.unpacking.clone(),
        }
    }
}

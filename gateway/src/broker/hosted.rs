//! Topics that this broker serves, and their life: hosted at start, created, deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use kafka_protocol::protocol::StrBytes;
use parking_lot::RwLock;
use store_adapter::ids::{LogId, ShardId};
use store_adapter::runtime::BoxFuture;
use store_adapter::store::StoreError;
use uuid::Uuid;

use super::{Broker, CatalogueTopic, NoTopic, TopicError};
use crate::partition::validate::TopicRules;
use crate::partition::{AppendError, Lane, Partition, Reopening};
use crate::topic_config::{self, Applied};

/// What comes of stored configs that do not apply.
pub(super) const KEPT: &str = "a stored config of the topic is not in force: none of its records \
                               is deleted or compacted until it is altered";

/// Partitions that are opened at a time.
const OPENING_MAX: usize = 1024;

/// A topic to be created.
#[derive(Debug, Clone)]
pub struct NewTopic {
    /// Name.
    pub name: String,
    /// Partition count, at least 1.
    pub partitions: u32,
    /// Topic configs, by Kafka's names.
    pub configs: BTreeMap<String, String>,
}

/// A topic that is served.
#[derive(Debug)]
pub struct HostedTopic {
    /// Name.
    pub name: StrBytes,
    /// Topic id.
    pub id: Uuid,
    /// Configs that were set, by Kafka's names.
    pub configs: BTreeMap<String, String>,
    /// What its batches must be like.
    pub rules: TopicRules,
    /// Why some of the configs are not in force.
    pub(super) refused: Vec<String>,
    /// Whether all that was set of the broker is in force.
    defaults_apply: bool,
    /// Its partitions, also those that their storage does not serve.
    pub partitions: Vec<Arc<Partition>>,
    /// The shard of each partition.
    pub(super) shards: Vec<ShardId>,
}

impl HostedTopic {
    /// A partition by its number, whether it serves or not; `None` when the topic has none of
    /// that number.
    pub fn any_partition(&self, index: i32) -> Option<&Arc<Partition>> {
        self.partitions.get(usize::try_from(index).ok()?)
    }

    /// A partition by its number, or why it does not serve.
    pub fn partition(&self, index: i32) -> Option<Result<Arc<Partition>, AppendError>> {
        let partition = self.any_partition(index)?;
        Some(
            match partition.unavailable().or_else(|| partition.elsewhere()) {
                None => Ok(partition.clone()),
                Some(error) => Err(error),
            },
        )
    }

    /// Whether records of it may go by its rules. What was stored may have meant to keep them.
    pub(super) fn reclaims(&self) -> bool {
        self.refused.is_empty() && self.defaults_apply
    }

    /// Whether it is served as the catalogue has it.
    fn is(&self, topic: &CatalogueTopic) -> bool {
        self.configs == topic.configs && self.partitions.len() == topic.partitions.len()
    }
}

#[derive(Debug, Default)]
struct Topics {
    by_name: BTreeMap<StrBytes, Arc<HostedTopic>>,
    by_id: BTreeMap<Uuid, Arc<HostedTopic>>,
}

/// Everything hosted. Names are copies, never slices of a frame.
#[derive(Debug, Default)]
pub(super) struct Hosted {
    topics: RwLock<Topics>,
    lanes: parking_lot::Mutex<BTreeMap<ShardId, Lane>>,
    /// Creation, change and deletion, one at a time.
    pub(super) changing: tokio::sync::Mutex<()>,
}

impl Hosted {
    /// Every partition, in order of topic names.
    pub(super) fn partitions(&self) -> Vec<Arc<Partition>> {
        let topics = self.topics.read();
        let topics = topics.by_name.values();
        topics
            .flat_map(|topic| topic.partitions.iter().cloned())
            .collect()
    }

    fn insert(&self, topic: HostedTopic) {
        let topic = Arc::new(topic);
        let mut topics = self.topics.write();
        topics.by_name.insert(topic.name.clone(), topic.clone());
        topics.by_id.insert(topic.id, topic);
    }

    fn remove(&self, id: Uuid) -> Option<Arc<HostedTopic>> {
        let mut topics = self.topics.write();
        let topic = topics.by_id.remove(&id)?;
        let name = topic.name.clone();
        if topics
            .by_name
            .get(&name)
            .is_some_and(|named| named.id == id)
        {
            topics.by_name.remove(&name);
        }
        Some(topic)
    }
}

impl Broker {
    /// A topic by name.
    pub fn topic_by_name(&self, name: &StrBytes) -> Option<Arc<HostedTopic>> {
        self.hosted.topics.read().by_name.get(name).cloned()
    }

    /// A topic by name, or why there is none.
    pub fn find_topic(&self, name: &StrBytes) -> Result<Arc<HostedTopic>, NoTopic> {
        self.topic_by_name(name).ok_or_else(|| {
            if self.catalogue.is_damaged(name) {
                NoTopic::Damaged
            } else {
                NoTopic::Unknown
            }
        })
    }

    /// A topic by id.
    pub fn topic_by_id(&self, id: Uuid) -> Option<Arc<HostedTopic>> {
        self.hosted.topics.read().by_id.get(&id).cloned()
    }

    /// Every topic, in order of names.
    pub fn topics(&self) -> Vec<Arc<HostedTopic>> {
        self.hosted
            .topics
            .read()
            .by_name
            .values()
            .cloned()
            .collect()
    }

    /// Whether Kafka allows the name.
    pub fn valid_topic_name(&self, name: &str) -> bool {
        self.catalogue.valid_name(name)
    }

    /// Checks that a topic of this name could be created.
    ///
    /// # Errors
    /// What is wrong with the name, or that there is such a topic.
    pub(crate) fn check_topic_name(&self, name: &str) -> Result<(), TopicError> {
        self.catalogue.check(name, 1)
    }

    /// Creates and opens a topic; with `validate_only` only checks. The id of the new topic.
    pub async fn create_topic(
        self: &Arc<Self>,
        new: NewTopic,
        validate_only: bool,
    ) -> Result<Option<Uuid>, TopicError> {
        self.check_topic_configs(&new.configs)?;
        self.catalogue.check(&new.name, new.partitions)?;
        if validate_only {
            return Ok(None);
        }
        let _one_at_a_time = self.hosted.changing.lock().await;
        let topic = self
            .catalogue
            .create(&new.name, new.partitions, new.configs)
            .await?;
        let id = topic.id;
        self.host(topic).await;
        Ok(Some(id))
    }

    /// Creates a topic that a client asked about. Another one who did so first is no error.
    pub(crate) async fn auto_create(self: &Arc<Self>, name: &StrBytes) -> Result<(), TopicError> {
        let new = NewTopic {
            name: name.to_string(),
            partitions: self.config.num_partitions,
            configs: BTreeMap::new(),
        };
        match self.create_topic(new, false).await {
            Ok(_) => Ok(()),
            Err(TopicError::Exists(_)) if self.topic_by_name(name).is_some() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes a topic: the tombstone is durable before the topic stops being served.
    pub(crate) async fn delete_topic(&self, id: Uuid) -> Result<(), TopicError> {
        if let Some(space) = &self.space {
            space.make_way().await;
        }
        let _one_at_a_time = self.hosted.changing.lock().await;
        self.catalogue.delete(id).await?;
        self.unhost(id).await;
        Ok(())
    }

    async fn unhost(&self, id: Uuid) {
        let Some(topic) = self.hosted.remove(id) else {
            return;
        };
        for partition in &topic.partitions {
            partition.close(AppendError::NotLeader);
        }
        if let Err(error) = self.store.delete(id).await {
            tracing::warn!(topic = %id, %error, "records of a deleted topic not deleted yet");
        }
    }

    /// Follows the catalogue until the broker stops. The request that changed a topic may be gone
    /// with its connection before that topic is served, or was answered that nobody knows.
    pub(super) fn start_following(self: &Arc<Self>) {
        let broker = Arc::downgrade(self);
        let mut changes = self.catalogue.changes();
        let stopping = self.stopping.clone();
        let task: BoxFuture<'static, ()> = Box::pin(async move {
            loop {
                let changed = tokio::select! {
                    biased;
                    () = stopping.cancelled() => None,
                    changed = changes.next() => changed,
                };
                let (Some(()), Some(broker)) = (changed, broker.upgrade()) else {
                    return;
                };
                broker.follow_catalogue().await;
            }
        });
        drop(self.env.runtime.spawn("topics", task));
    }

    async fn follow_catalogue(self: &Arc<Self>) {
        self.follow_features();
        let _one_at_a_time = self.hosted.changing.lock().await;
        self.follow_broker_configs().await;
        for topic in self.topics() {
            if self.catalogue.is_deleted(topic.id) {
                self.unhost(topic.id).await;
            }
        }
        for topic in self.catalogue.topics() {
            match self.topic_by_id(topic.id) {
                None => self.host(topic).await,
                Some(served) if served.is(&topic) => {}
                Some(_) => self.refresh(topic).await,
            }
        }
    }

    pub(super) async fn host_catalogue(self: &Arc<Self>) {
        let topics = self.catalogue.topics();
        self.delete_leftovers(&topics).await;
        let made = topics.into_iter().map(|topic| {
            let partitions = self.unopened(&topic, 0);
            (topic, partitions)
        });
        let made: Vec<_> = made.collect();
        let all: Vec<_> = made.iter().flat_map(|(_, some)| some).cloned().collect();
        self.open(&all).await;
        for (topic, partitions) in made {
            self.serve(topic, partitions);
        }
    }

    /// Logs whose topic was deleted before their records were.
    async fn delete_leftovers(&self, topics: &[CatalogueTopic]) {
        let Ok(logs) = self.store.list().await else {
            return;
        };
        let mut gone: Vec<Uuid> = logs.iter().map(|log| log.id.topic).collect();
        gone.dedup();
        gone.retain(|id| {
            !topics.iter().any(|topic| topic.id == *id) && self.catalogue.is_deleted(*id)
        });
        for id in gone {
            if let Err(error) = self.store.delete(id).await {
                tracing::warn!(topic = %id, %error, "records of a deleted topic not deleted yet");
            }
        }
    }

    async fn host(&self, topic: CatalogueTopic) {
        let partitions = self.unopened(&topic, 0);
        self.open(&partitions).await;
        self.serve(topic, partitions);
    }

    /// Serves a topic as the catalogue has it now, with what is open of it.
    fn serve(&self, topic: CatalogueTopic, partitions: Vec<(Arc<Partition>, ShardId)>) {
        let defaults = self.topic_defaults();
        let Applied { rules, refused } = topic_config::applied(&defaults.rules, &topic.configs);
        for why in &refused {
            let topic = topic.name.as_str();
            tracing::error!(topic, why, "{KEPT}");
        }
        let (partitions, shards) = partitions.into_iter().unzip();
        self.hosted.insert(HostedTopic {
            name: StrBytes::from_string(topic.name),
            id: topic.id,
            configs: topic.configs,
            rules,
            refused,
            defaults_apply: defaults.refused.is_empty(),
            partitions,
            shards,
        });
    }

    /// Makes a topic that is served what the catalogue says: configs, and more partitions.
    pub(super) async fn refresh(&self, topic: CatalogueTopic) {
        let served = self.topic_by_id(topic.id);
        let mut partitions: Vec<_> = served.map_or_else(Vec::new, |served| {
            let partitions = served.partitions.iter().cloned();
            partitions.zip(served.shards.iter().copied()).collect()
        });
        let more = self.unopened(&topic, partitions.len());
        self.open(&more).await;
        partitions.extend(more);
        self.serve(topic, partitions);
    }

    /// The partitions of a topic from number `from` on, with their shards.
    fn unopened(&self, topic: &CatalogueTopic, from: usize) -> Vec<(Arc<Partition>, ShardId)> {
        let name: Arc<str> = topic.name.as_str().into();
        let partitions = (0_u32..).zip(&topic.partitions).skip(from);
        partitions
            .map(|(partition, (shard, epoch))| {
                let id = LogId {
                    topic: topic.id,
                    partition,
                };
                let deps = self.deps(self.lane(*shard));
                let expiration = self.config.producer_id_expiration_ms;
                let partition = Partition::unopened(id, name.clone(), *epoch, expiration, deps);
                (partition, *shard)
            })
            .collect()
    }

    /// Opens those of `partitions` that are in shards of this broker. Many at a time, so that their
    /// fences share commits; in order, so that every start is the same.
    async fn open(&self, partitions: &[(Arc<Partition>, ShardId)]) {
        let shards: BTreeSet<ShardId> = self.catalogue.shards().iter().map(|(s, _)| *s).collect();
        let (own, others): (Vec<_>, Vec<_>) = partitions
            .iter()
            .partition(|(_, shard)| shards.contains(shard));
        for (partition, _) in others {
            // Who leads a partition owns its shard.
            partition.close(AppendError::NotLeader);
        }
        let mut begun = Vec::with_capacity(own.len());
        for some in own.chunks(OPENING_MAX) {
            let mut beginning = FuturesOrdered::new();
            for (partition, shard) in some {
                beginning.push_back(self.begin_opening(partition, *shard));
            }
            while let Some(one) = beginning.next().await {
                begun.push(one);
            }
        }
        self.replay_together(&own, &mut begun).await;
        let mut begun = begun.into_iter();
        for some in own.chunks(OPENING_MAX) {
            let mut finishing = FuturesOrdered::new();
            for ((partition, shard), begun) in some.iter().zip(begun.by_ref()) {
                finishing.push_back(async move {
                    let opened = match begun {
                        Ok(begun) => partition.finish_opening(begun).await,
                        Err(error) => Err(error),
                    };
                    (partition, *shard, opened)
                });
            }
            while let Some((partition, shard, opened)) = finishing.next().await {
                if let Err(error) = opened {
                    self.not_opened(partition, shard, &error);
                }
            }
        }
    }

    fn not_opened(&self, partition: &Partition, shard: ShardId, error: &StoreError) {
        // Why a shard is closed is said once for all that is in it.
        if self.store.check_shard(shard).is_ok() {
            let (topic, partition) = (&**partition.topic(), partition.id().partition);
            tracing::error!(topic, partition, %error, "partition not opened");
        }
        self.repair.notify_one();
    }

    /// Replays what lies behind the snapshots in one pass, where that is less than a pass for each
    /// partition. What is left is replayed when their opening is finished.
    async fn replay_together(
        &self,
        partitions: &[&(Arc<Partition>, ShardId)],
        begun: &mut [Result<Reopening, StoreError>],
    ) {
        let ids = partitions.iter().map(|(partition, _)| partition.id());
        let mut openings: BTreeMap<LogId, &mut Reopening> = ids
            .zip(begun)
            .filter_map(|(log, begun)| Some((log, begun.as_mut().ok()?)))
            .collect();
        let behind = openings
            .iter()
            .filter_map(|(log, opening)| Some((*log, opening.next()?)));
        let behind: Vec<_> = behind.collect();
        let Some(mut batches) = self.store.read_through(&behind) else {
            return;
        };
        while let Some(some) = batches.recv().await {
            for (log, batch) in some {
                let opening = openings.get_mut(&log);
                let outcome = opening.map(|opening| opening.replay(log, &batch));
                if outcome.is_some_and(|outcome| outcome.is_err()) {
                    // It goes on by itself from there, and says why it can't.
                    openings.remove(&log);
                }
            }
        }
    }

    /// Opens a partition, with its log if there is none yet.
    pub(super) async fn open_partition(
        &self,
        partition: &Partition,
        shard: ShardId,
    ) -> Result<(), StoreError> {
        let begun = self.begin_opening(partition, shard).await?;
        partition.finish_opening(begun).await
    }

    async fn begin_opening(
        &self,
        partition: &Partition,
        shard: ShardId,
    ) -> Result<Reopening, StoreError> {
        let created = self.store.create(partition.id(), partition.topic(), shard);
        if let Err(error) = created.await {
            partition.not_opened(&error);
            return Err(error);
        }
        partition.begin_opening().await
    }

    fn lane(&self, shard: ShardId) -> Lane {
        let mut lanes = self.hosted.lanes.lock();
        let new = || Lane::start(&self.env, &format!("lane-{}", shard.0)).0;
        lanes.entry(shard).or_insert_with(new).clone()
    }
}

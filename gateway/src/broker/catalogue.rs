//! The port by which the broker sees topics and features on the volume.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use coordinator::service::cluster::{BrokerConfigs, Configs, FinalizedFeatures, Levels};
use futures_util::stream::BoxStream;
use store_adapter::ids::{LeaderEpoch, OwnerEpoch, ShardId};
use store_adapter::runtime::BoxFuture;
use uuid::Uuid;

use super::TopicError;

/// A topic that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogueTopic {
    /// Topic id.
    pub id: Uuid,
    /// Name.
    pub name: String,
    /// Of each partition: its shard and leader epoch.
    pub partitions: Vec<(ShardId, LeaderEpoch)>,
    /// Topic configs, by Kafka's names.
    pub configs: BTreeMap<String, String>,
}

/// Topics on the volume. Implemented over the controller's files; by a map in tests.
pub trait Catalogue: Send + Sync + Debug + 'static {
    /// Every topic that exists, in order of names.
    fn topics(&self) -> Vec<CatalogueTopic>;
    /// Creates a topic, durably.
    fn create<'a>(
        &'a self,
        name: &'a str,
        partitions: u32,
        configs: BTreeMap<String, String>,
    ) -> BoxFuture<'a, Result<CatalogueTopic, TopicError>>;
    /// Checks what `create` would check of a name.
    fn check(&self, name: &str, partitions: u32) -> Result<(), TopicError>;
    /// Replaces all configs of a topic, durably.
    fn alter_configs(
        &self,
        id: Uuid,
        configs: BTreeMap<String, String>,
    ) -> BoxFuture<'_, Result<CatalogueTopic, TopicError>>;
    /// Gives a topic more partitions, `total` in all, durably.
    fn add_partitions(
        &self,
        id: Uuid,
        total: u32,
    ) -> BoxFuture<'_, Result<CatalogueTopic, TopicError>>;
    /// Checks what `add_partitions` would check.
    fn check_more_partitions(&self, id: Uuid, total: u32) -> Result<(), TopicError>;
    /// Deletes a topic, durably.
    fn delete(&self, id: Uuid) -> BoxFuture<'_, Result<(), TopicError>>;
    /// The features that the cluster has finalized.
    fn features(&self) -> Arc<FinalizedFeatures>;
    /// Finalizes levels of features, durably.
    fn finalize(&self, levels: Levels) -> BoxFuture<'_, Result<(), TopicError>>;
    /// What was set of brokers while they ran.
    fn broker_configs(&self) -> Arc<BrokerConfigs>;
    /// Replaces what was set of a broker, by its number, or under the empty name of every broker,
    /// durably.
    fn alter_broker_configs(
        &self,
        broker: String,
        configs: Configs,
    ) -> BoxFuture<'_, Result<(), TopicError>>;
    /// Whether Kafka allows the name.
    fn valid_name(&self, name: &str) -> bool;
    /// Whether there is a tombstone of this id: the only proof that a topic is gone.
    fn is_deleted(&self, id: Uuid) -> bool;
    /// Whether a topic of this name exists but its files are damaged.
    fn is_damaged(&self, name: &str) -> bool;
    /// The shards of the store that this broker owns, in order, with the epochs to open them with.
    fn shards(&self) -> Vec<(ShardId, OwnerEpoch)>;
    /// Yields whenever topics may have changed since the last item.
    fn changes(&self) -> BoxStream<'static, ()>;
}

//! The broker's ports over the coordinator's node: topics, and the snapshot files of partitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use coordinator::service::cluster::{
    self, BrokerConfigs, ClusterNode, Configs, FinalizedFeatures, Levels, NodeError, PartitionFile,
    Topic, validate_topic_name,
};
use coordinator::volume::format::{
    Extra, Manifest, ProducerSnapshot, Restored, TxnIndexSnapshot, Writer, restore,
};
use futures_util::stream::{self, BoxStream};
use store_adapter::ids::{LeaderEpoch, LogId, OwnerEpoch, ShardId};
use store_adapter::runtime::BoxFuture;
use uuid::Uuid;

use super::{Catalogue, CatalogueTopic, TopicError};
use crate::partition::{PartitionSnapshot, SnapshotFiles};

/// Topics on the volume, through the node.
#[derive(Debug, Clone)]
pub struct NodeCatalogue(pub ClusterNode);

impl From<cluster::TopicError> for TopicError {
    fn from(error: cluster::TopicError) -> Self {
        let text = error.to_string();
        match error {
            cluster::TopicError::InvalidName(_) | cluster::TopicError::Collides { .. } => {
                Self::InvalidName(text)
            }
            cluster::TopicError::AlreadyExists { .. } => Self::Exists(text),
            cluster::TopicError::InvalidPartitions { asked, max } => {
                Self::TooManyPartitions { asked, max }
            }
            cluster::TopicError::TooManyPartitions { .. } => Self::NoRoom(text),
            cluster::TopicError::NotMorePartitions { .. } => Self::NotMorePartitions(text),
            cluster::TopicError::ConfigsTooLarge { .. } => Self::InvalidConfig(text),
            cluster::TopicError::UnknownId { .. } => Self::Unknown,
            cluster::TopicError::NotController => Self::NotController,
            cluster::TopicError::Damaged { .. } => Self::Damaged(text),
            cluster::TopicError::Unavailable(_) | cluster::TopicError::Stopped => {
                Self::Unavailable(text)
            }
        }
    }
}

impl NodeCatalogue {
    fn describe(&self, topic: &Topic) -> CatalogueTopic {
        let partitions = (0_u32..).zip(&topic.shards).map(|(partition, shard)| {
            let log = LogId {
                topic: topic.id,
                partition,
            };
            // A lone broker leads everything; 0 is the epoch of a partition not assigned yet.
            (*shard, self.0.leads(log).unwrap_or(LeaderEpoch(0)))
        });
        CatalogueTopic {
            id: topic.id,
            name: topic.name.to_string(),
            partitions: partitions.collect(),
            configs: topic.configs.clone(),
        }
    }
}

/// Why what `cluster.json` says was not changed.
fn of_cluster(error: &NodeError) -> TopicError {
    match error {
        NodeError::Fenced | NodeError::NotLeader => TopicError::NotController,
        NodeError::Damaged { .. } => TopicError::Damaged(error.to_string()),
        NodeError::Unavailable(_) | NodeError::Stopped => {
            TopicError::Unavailable(error.to_string())
        }
    }
}

impl Catalogue for NodeCatalogue {
    fn topics(&self) -> Vec<CatalogueTopic> {
        self.0
            .view()
            .topics
            .iter()
            .map(|topic| self.describe(topic))
            .collect()
    }

    fn create<'a>(
        &'a self,
        name: &'a str,
        partitions: u32,
        configs: BTreeMap<String, String>,
    ) -> BoxFuture<'a, Result<CatalogueTopic, TopicError>> {
        Box::pin(async move {
            let new = cluster::NewTopic {
                name: name.to_owned(),
                partitions,
                configs,
            };
            let topic = self.0.create_topic(new).await?;
            Ok(self.describe(&topic))
        })
    }

    fn check(&self, name: &str, partitions: u32) -> Result<(), TopicError> {
        Ok(self.0.check_topic(name, partitions)?)
    }

    fn alter_configs(
        &self,
        id: Uuid,
        configs: BTreeMap<String, String>,
    ) -> BoxFuture<'_, Result<CatalogueTopic, TopicError>> {
        Box::pin(async move {
            let topic = self.0.alter_topic_configs(id, configs).await?;
            Ok(self.describe(&topic))
        })
    }

    fn add_partitions(
        &self,
        id: Uuid,
        total: u32,
    ) -> BoxFuture<'_, Result<CatalogueTopic, TopicError>> {
        Box::pin(async move {
            let topic = self.0.add_partitions(id, total).await?;
            Ok(self.describe(&topic))
        })
    }

    fn check_more_partitions(&self, id: Uuid, total: u32) -> Result<(), TopicError> {
        Ok(self.0.check_more_partitions(id, total)?)
    }

    fn delete(&self, id: Uuid) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async move { Ok(self.0.delete_topic(id).await?) })
    }

    fn features(&self) -> Arc<FinalizedFeatures> {
        self.0.view().features.clone()
    }

    fn finalize(&self, levels: Levels) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async move {
            self.0
                .finalize(levels)
                .await
                .map_err(|error| of_cluster(&error))
        })
    }

    fn broker_configs(&self) -> Arc<BrokerConfigs> {
        self.0.view().broker_configs.clone()
    }

    fn alter_broker_configs(
        &self,
        broker: String,
        configs: Configs,
    ) -> BoxFuture<'_, Result<(), TopicError>> {
        Box::pin(async move {
            let altered = self.0.alter_broker_configs(broker, configs).await;
            altered.map_err(|error| of_cluster(&error))
        })
    }

    fn valid_name(&self, name: &str) -> bool {
        validate_topic_name(name).is_ok()
    }

    fn is_deleted(&self, id: Uuid) -> bool {
        self.0.view().topics.is_deleted(id)
    }

    fn is_damaged(&self, name: &str) -> bool {
        self.0.view().topics.is_damaged(name)
    }

    fn shards(&self) -> Vec<(ShardId, OwnerEpoch)> {
        self.0.shards()
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        let view = self.0.watch_view();
        Box::pin(stream::unfold(view, |mut view| async move {
            // Ends with the node.
            view.changed().await.ok()?;
            Some(((), view))
        }))
    }
}

/// Snapshot files on the volume, through the node.
#[derive(Debug, Clone)]
pub struct NodeSnapshots(pub ClusterNode);

impl NodeSnapshots {
    async fn write_files(&self, snapshot: PartitionSnapshot) -> Result<(), NodeError> {
        let writer = Writer {
            leader_epoch: snapshot.epoch,
            topic_id: snapshot.log.topic,
        };
        let log = snapshot.log;
        // The index first: a producer state never covers more than its index does.
        let index = TxnIndexSnapshot::of(&snapshot.image, writer);
        self.0
            .write_partition(log, PartitionFile::TxnIndex(index))
            .await?;
        let producers = ProducerSnapshot::of(&snapshot.image, writer);
        self.0
            .write_partition(log, PartitionFile::ProducerState(producers))
            .await?;
        let manifest = Manifest {
            epoch: snapshot.epoch.0,
            high_watermark: snapshot.visible.high_watermark,
            log_start_offset: snapshot.visible.log_start,
            topic_id: None,
            extra: Extra::default(),
        };
        self.0
            .write_partition(log, PartitionFile::Manifest(manifest))
            .await
    }
}

impl SnapshotFiles for NodeSnapshots {
    fn read(&self, log: LogId) -> BoxFuture<'_, Option<Restored>> {
        Box::pin(async move {
            let content = match self.0.read_partition(log).await {
                Ok(content) => content,
                Err(error) => {
                    tracing::warn!(%log, %error, "snapshots not read: replaying the whole log");
                    return None;
                }
            };
            let (Some(producers), Some(index)) = (&content.producer_state, &content.txn_index)
            else {
                return None;
            };
            match restore(producers, index, log.topic) {
                Ok(restored) => restored,
                Err(error) => {
                    tracing::warn!(%log, %error, "snapshots contradict: replaying the whole log");
                    None
                }
            }
        })
    }

    fn write(&self, snapshot: PartitionSnapshot) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.write_files(snapshot)
                .await
                .map_err(|error| error.to_string())
        })
    }
}

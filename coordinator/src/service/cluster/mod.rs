//! A broker process on a volume: how it starts, what it owns, and how it changes topics.
//!
//! [`ClusterNode`] is a handle. All file work is one io task behind a bounded channel, so callers
//! on async workers never touch the volume. Readers get immutable snapshots ([`ClusterView`]).
//!
//! A lone broker is its own controller: it claims the controller's area, writes `assignment.json`
//! with itself as the owner of everything, and alone changes topics. It never fences itself; what
//! fences it is a later claim, which every replace checks.
//!
//! A broker that is *assigned* ([`NodeConfig::assigned`]) leaves the assignment to whoever writes
//! it and shows its readers what it says. What it owns when it starts it takes over; what is given
//! to it later, with its next start.

mod audit;
mod block_file;
mod boot;
mod controller;
mod damage;
mod error;
mod features;
mod fence_files;
mod files;
mod group_files;
mod inspect;
mod node;
mod partition_files;
mod placement;
mod queue_files;
mod registration;
mod topic_files;
mod topic_name;
mod txn_files;
mod view;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use store_adapter::ids::{BrokerId, LeaderEpoch, LogId, OwnerEpoch, ShardId};
use store_adapter::local::{Host, LocalIdentity};
use store_adapter::runtime::Env;
use store_adapter::volume::Volume;
use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

pub use audit::{Audit, AuditError, audit};
pub use block_file::VolumeBlockFile;
pub use damage::{Damage, DamageLog};
pub use error::{NodeError, StartError, TopicError};
pub use features::{BrokerConfigs, Configs, FinalizedFeatures, Levels};
pub use fence_files::VolumeFenceFiles;
pub use group_files::VolumeGroupFiles;
pub use inspect::{Found, QUEUE_SHOWN_MAX, QueuedMarkers, SharedFiles};
pub use partition_files::{PartitionContent, PartitionFile};
pub use queue_files::VolumeQueueFiles;
pub use topic_name::{NameError, validate as validate_topic_name};
pub use txn_files::VolumeSlotFiles;
pub use view::{Assignment, ClusterView, Ownership, Topic, TopicIndex};

use crate::volume::format::Listener;
use boot::Ports;
use node::{Command, Node, Reply};

/// The most partitions of one topic. Kafka names no limit; this bounds what one request can make
/// the broker allocate.
pub const TOPIC_PARTITIONS_MAX: u32 = 10_000;
/// The most partitions of a cluster: the assignment lists each.
pub const PARTITIONS_MAX: usize = 200_000;
/// The most bytes of keys and values of a topic's configs.
pub const CONFIGS_LEN_MAX: usize = 64 << 10;
/// Commands that wait for the io task before callers wait too.
const COMMANDS_MAX: usize = 256;

/// What a broker is told of itself.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its id (`node.id`).
    pub broker_id: BrokerId,
    /// What clients are told (`advertised.listeners`).
    pub listeners: Vec<Listener>,
    /// Version of the software.
    pub version: String,
    /// The fewest shards of the embedded store, at least 1. There are never fewer than before.
    pub shards: u32,
    /// Levels of features that a cluster begins with. What it has finalized wins.
    pub features: Levels,
    /// Whether who owns what is decided elsewhere: the assignment on the volume is kept as it is,
    /// and followed at every heartbeat, and topics are not changed here. Without an assignment the
    /// broker writes the first, as a lone one.
    pub assigned: bool,
}

/// Whether this process still owns what it owned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeStatus {
    /// It serves.
    Running,
    /// A later process has taken over: nothing that this one writes takes effect.
    Fenced,
    /// It was stopped.
    Stopped,
}

/// A topic to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// Number of partitions, 1 to [`TOPIC_PARTITIONS_MAX`].
    pub partitions: u32,
    /// Configs under their Kafka names, checked by the caller.
    pub configs: BTreeMap<String, String>,
}

/// A broker that has started. When every handle is dropped without [`ClusterNode::stop`], the
/// process leaves the volume as a crash would.
#[derive(Debug, Clone)]
pub struct ClusterNode {
    broker: BrokerId,
    instance: u64,
    commands: mpsc::Sender<Command>,
    view: watch::Receiver<Arc<ClusterView>>,
    status: watch::Receiver<NodeStatus>,
    refused: watch::Receiver<Option<String>>,
    damage: Arc<DamageLog>,
    block_file: VolumeBlockFile,
    group_files: Arc<VolumeGroupFiles>,
    txn_files: Arc<VolumeSlotFiles>,
    fence_files: Arc<VolumeFenceFiles>,
    queue_files: Arc<VolumeQueueFiles>,
    volume: Arc<dyn Volume>,
}

impl ClusterNode {
    /// Starts a broker on a volume: see the errors for what it refuses.
    ///
    /// Takes up to two seconds when the broker's registration comes from a process that can't be
    /// seen from this host.
    pub async fn start(
        env: Env,
        volume: Arc<dyn Volume>,
        host: Arc<dyn Host>,
        identity: Arc<dyn LocalIdentity>,
        config: NodeConfig,
    ) -> Result<Self, StartError> {
        let (started, wait) = oneshot::channel();
        let runtime = env.runtime.clone();
        let ports = Ports {
            env,
            volume,
            host,
            identity,
            config,
        };
        // Detached: it ends when every handle is dropped, or by `stop`.
        drop(runtime.spawn_io("cluster", Box::pin(serve(ports, started))));
        wait.await.unwrap_or(Err(StartError::Stopped))
    }

    /// The broker's id.
    pub fn broker(&self) -> BrokerId {
        self.broker
    }

    /// The number of this process among those of its broker, from 1.
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// Topics and assignment as they are now.
    pub fn view(&self) -> Arc<ClusterView> {
        self.view.borrow().clone()
    }

    /// Follows [`ClusterNode::view`].
    pub fn watch_view(&self) -> watch::Receiver<Arc<ClusterView>> {
        self.view.clone()
    }

    /// Follows whether this process still owns what it owned.
    pub fn status(&self) -> watch::Receiver<NodeStatus> {
        self.status.clone()
    }

    /// Why the volume takes no heartbeat or assignment; `None` while it does, and when it is full.
    pub fn refused(&self) -> Option<String> {
        self.refused.borrow().clone()
    }

    /// The epoch by which this broker owns a shard, to open it with; `None` when it does not.
    pub fn shard_owner(&self, shard: ShardId) -> Option<OwnerEpoch> {
        let owner = self.view.borrow().assignment.shard(shard)?;
        (owner.broker == self.broker).then_some(OwnerEpoch {
            assignment: owner.epoch,
            instance: self.instance,
        })
    }

    /// The shards that this broker owns, in order, with the epochs to open them with.
    pub fn shards(&self) -> Vec<(ShardId, OwnerEpoch)> {
        let count = u32::try_from(self.view.borrow().assignment.shards.len());
        (0..count.unwrap_or(u32::MAX))
            .map(ShardId)
            .filter_map(|shard| Some((shard, self.shard_owner(shard)?)))
            .collect()
    }

    /// The group slots that this broker owns, in order, with the epochs to claim them with.
    pub fn group_slots(&self) -> Vec<(u32, OwnerEpoch)> {
        self.own_slots(&self.view().assignment.group_slots)
    }

    /// The transaction slots that this broker owns, in order, with the epochs to claim them with.
    pub fn txn_slots(&self) -> Vec<(u32, OwnerEpoch)> {
        self.own_slots(&self.view().assignment.txn_slots)
    }

    fn own_slots(&self, slots: &[Ownership]) -> Vec<(u32, OwnerEpoch)> {
        let slots = (0..).zip(slots);
        let own = slots.filter(|(_, owner)| owner.broker == self.broker);
        let epoch = |owner: &Ownership| OwnerEpoch {
            assignment: owner.epoch,
            instance: self.instance,
        };
        own.map(|(slot, owner)| (slot, epoch(owner))).collect()
    }

    /// The epoch by which this broker leads a log; `None` when it does not.
    pub fn leads(&self, log: LogId) -> Option<LeaderEpoch> {
        let owner = self.view.borrow().leader(log)?;
        (owner.broker == self.broker).then(|| owner.leader_epoch())
    }

    /// Files that were found damaged.
    pub fn damage(&self) -> Vec<Damage> {
        self.damage.list()
    }

    /// Reports a file that the store found damaged; one of JSON gets a copy in quarantine.
    pub async fn report_damage(&self, path: &str, why: &str) {
        let (path, why) = (path.to_owned(), why.to_owned());
        if self
            .ask(|reply| Command::Damaged(path, why, reply))
            .await
            .is_none()
        {
            tracing::debug!("damage is not reported any more: the node has stopped");
        }
    }

    /// The producer-id blocks of this broker.
    pub fn block_file(&self) -> VolumeBlockFile {
        self.block_file.clone()
    }

    /// The files of the groups that this broker coordinates.
    pub fn group_files(&self) -> Arc<VolumeGroupFiles> {
        self.group_files.clone()
    }

    /// The files of the transaction slots that this broker owns.
    pub fn txn_files(&self) -> Arc<VolumeSlotFiles> {
        self.txn_files.clone()
    }

    /// The marker queues on the volume.
    pub fn queue_files(&self) -> Arc<VolumeQueueFiles> {
        self.queue_files.clone()
    }

    /// The volume, for files that nobody owns. Its futures are awaited in io tasks only.
    pub fn volume(&self) -> Arc<dyn Volume> {
        self.volume.clone()
    }

    /// The fences on the volume.
    pub fn fence_files(&self) -> Arc<VolumeFenceFiles> {
        self.fence_files.clone()
    }

    /// Creates a topic; durable and visible in [`ClusterNode::view`] when it returns. Of concurrent
    /// creations of one name, one succeeds. After `Unavailable` it may exist or not.
    pub async fn create_topic(&self, new: NewTopic) -> Result<Arc<Topic>, TopicError> {
        let asked = self.ask(|reply| Command::Create(new, reply)).await;
        asked.unwrap_or(Err(TopicError::Stopped))
    }

    /// Whether a topic of this name and size could be created, without creating it: what
    /// [`ClusterNode::create_topic`] would answer as things are now.
    pub fn check_topic(&self, name: &str, partitions: u32) -> Result<(), TopicError> {
        controller::check_new(&self.view().topics, name, partitions)
    }

    /// Deletes a topic; durable and gone from [`ClusterNode::view`] when it returns. After
    /// `Unavailable` it may be gone or not.
    pub async fn delete_topic(&self, id: Uuid) -> Result<(), TopicError> {
        let asked = self.ask(|reply| Command::Delete(id, reply)).await;
        asked.unwrap_or(Err(TopicError::Stopped))
    }

    /// Replaces all configs of a topic, which the caller has checked; durable and visible in
    /// [`ClusterNode::view`] when it returns. After `Unavailable` either the old or the new ones
    /// hold.
    pub async fn alter_topic_configs(
        &self,
        id: Uuid,
        configs: BTreeMap<String, String>,
    ) -> Result<Arc<Topic>, TopicError> {
        let asked = self.ask(|reply| Command::AlterConfigs(id, configs, reply));
        asked.await.unwrap_or(Err(TopicError::Stopped))
    }

    /// Gives a topic more partitions, `total` in all; durable and visible in
    /// [`ClusterNode::view`] when it returns. After `Unavailable` they may be there or not.
    pub async fn add_partitions(&self, id: Uuid, total: u32) -> Result<Arc<Topic>, TopicError> {
        let asked = self.ask(|reply| Command::AddPartitions(id, total, reply));
        asked.await.unwrap_or(Err(TopicError::Stopped))
    }

    /// Whether a topic could have `total` partitions: what [`ClusterNode::add_partitions`] would
    /// answer as things are now.
    pub fn check_more_partitions(&self, id: Uuid, total: u32) -> Result<(), TopicError> {
        controller::check_more(&self.view().topics, id, total).map(|_| ())
    }

    /// Finalizes levels of features, which the caller has checked; durable and visible in
    /// [`ClusterNode::view`] when it returns. After `Unavailable` either the old or the new ones
    /// hold.
    pub async fn finalize(&self, levels: Levels) -> Result<(), NodeError> {
        let asked = self.ask(|reply| Command::Finalize(levels, reply)).await;
        asked.unwrap_or(Err(NodeError::Stopped))
    }

    /// Replaces the configs of a broker, by its number, or under the empty name those of every
    /// broker, which the caller has checked; durable and visible in [`ClusterNode::view`] when it
    /// returns. After `Unavailable` either the old or the new ones hold.
    pub async fn alter_broker_configs(
        &self,
        broker: String,
        configs: Configs,
    ) -> Result<(), NodeError> {
        let asked = self.ask(|reply| Command::AlterBroker(broker, configs, reply));
        asked.await.unwrap_or(Err(NodeError::Stopped))
    }

    /// Reads what the leader of a partition left. The shard must have been opened before, if the
    /// store keeps files.
    pub async fn read_partition(&self, log: LogId) -> Result<PartitionContent, NodeError> {
        let asked = self.ask(|reply| Command::ReadPartition(log, reply)).await;
        asked.unwrap_or(Err(NodeError::Stopped))
    }

    /// Writes one file of a partition that this broker leads; durable when it returns.
    pub async fn write_partition(&self, log: LogId, file: PartitionFile) -> Result<(), NodeError> {
        let file = Box::new(file);
        let asked = self.ask(|reply| Command::WritePartition(log, file, reply));
        asked.await.unwrap_or(Err(NodeError::Stopped))
    }

    /// Tells the cluster that this broker is about to stop. It still owns what it owns.
    pub async fn drain(&self) -> Result<(), NodeError> {
        let asked = self.ask(Command::Drain).await;
        asked.unwrap_or(Err(NodeError::Stopped))
    }

    /// Gives up what this broker owns and ends the io task. To be called when nothing writes any
    /// more.
    pub async fn stop(&self) -> Result<(), NodeError> {
        let asked = self.ask(Command::Stop).await;
        asked.unwrap_or(Err(NodeError::Stopped))
    }

    /// Asks the io task; `None` when it has ended.
    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        answer.await.ok()
    }
}

/// The io task: starts, hands out the handle, serves.
async fn serve(ports: Ports, started: oneshot::Sender<Result<ClusterNode, StartError>>) {
    let damage = Arc::new(DamageLog::default());
    let booted = boot::boot(&ports, damage.clone()).await;
    let booted = booted.and_then(|booted| {
        let view = booted.controller.view().ok_or(StartError::Stopped)?;
        Ok((booted, view))
    });
    let (booted, view) = match booted {
        Ok(booted) => booted,
        Err(error) => {
            if started.send(Err(error)).is_err() {
                tracing::debug!("nobody waits for this start any more");
            }
            return;
        }
    };
    let (commands, queue) = mpsc::channel(COMMANDS_MAX);
    let (view, view_reader) = watch::channel(Arc::new(view));
    let (status, status_reader) = watch::channel(NodeStatus::Running);
    let (refused, refused_reader) = watch::channel(None);
    let instance = booted.claim.epoch().instance;
    let (files, owned) = (booted.files.clone(), booted.owned.clone());
    let txn_files = VolumeSlotFiles::new(files.clone(), owned.clone(), instance);
    let txn_files = Arc::new(txn_files);
    let (slots, watched) = (txn_files.clone(), view_reader.clone());
    let queue_files = VolumeQueueFiles::new(files.clone(), slots, watched.clone());
    let fence_files = VolumeFenceFiles::new(files.clone(), booted.claim.clone(), watched);
    let handle = ClusterNode {
        broker: ports.config.broker_id,
        instance,
        commands,
        view: view_reader,
        status: status_reader,
        refused: refused_reader,
        damage,
        block_file: VolumeBlockFile {
            files: files.clone(),
            claim: booted.claim.clone(),
        },
        volume: files.volume.clone(),
        group_files: Arc::new(VolumeGroupFiles::new(files, owned, instance)),
        txn_files,
        fence_files: Arc::new(fence_files),
        queue_files: Arc::new(queue_files),
    };
    let node = Node::new(ports.env.clone(), booted, view, status, refused);
    if started.send(Ok(handle)).is_ok() {
        node.run(queue).await;
    }
}
